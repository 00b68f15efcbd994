"""What people may type for a model, taken apart (T-1 to T-4). Grammar only: it looks nothing up."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from hashlib import sha256

from stoker.errors import ErrorCode, UsageError
from stoker.ids import ModelId

SOURCES = frozenset({"hf", "file", "bundled", "ollama", "lmstudio"})
MAX_BYTES = 512
SHOWN_CHARACTERS = 80
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Reference:
    """``source`` None: a bare name. ``selector``: a label, a file inside, or a folder ending in a slash."""

    source: str | None
    path: str
    revision: str | None = None
    selector: str | None = None

    def __str__(self) -> str:
        head = f"{self.source}:" if self.source else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{head}{self.path}{revision}{f'#{self.selector}' if self.selector else ''}"


def parse_reference(text: str) -> Reference:
    """Raises `UsageError` ``reference-invalid`` for what is no reference."""
    _check_text(text)
    source, path = _source(text)
    if source == "file":
        if not path.startswith(("/", "~/")):
            raise _invalid(text, "file: takes an absolute path or one that begins with ~/")
        return Reference(source, path)
    path, _, selector = path.partition("#")
    if "#" in selector:
        raise _invalid(text, "there is more than one #")
    if "#" in text and not selector:
        raise _invalid(text, "nothing follows #")
    path, at, revision = path.partition("@")
    if source is None and not selector and not at:
        path, selector = _label(path)
    if not path or path.startswith("/") or any(part in {"", ".", ".."} for part in path.split("/")):
        raise _invalid(text, "the name has an empty or dotted part; a file is named file:/path")
    if at and (source not in {None, "hf"} or not _REVISION.fullmatch(revision)):
        raise _invalid(text, "what follows @ is no revision")
    if source == "hf" and path.count("/") != 1:
        raise _invalid(text, "hf: takes owner/name")
    if source == "bundled" and ("/" in path or selector):
        raise _invalid(text, "bundled: takes one name")
    return Reference(source, path, revision or None, selector or None)


def model_id(reference: str) -> ModelId:
    """The first 32 hex digits of SHA-256 over a canonical reference (T-5)."""
    return ModelId(sha256(reference.encode()).hexdigest()[:32])


def _check_text(text: str) -> None:
    if not text:
        raise UsageError(ErrorCode.REFERENCE_INVALID, "The name of a model is empty.", remedy="Name a model.")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise _invalid(text, f"it is {size} bytes long, at most {MAX_BYTES} are allowed")
    if _CONTROL.search(text) or any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise _invalid(text, "it holds control characters or is not UTF-8")
    if not unicodedata.is_normalized("NFC", text):
        raise _invalid(text, "it is not in Unicode form NFC")


def _source(text: str) -> tuple[str | None, str]:
    """A word before a colon that is no source belongs to the name (T-2)."""
    word, colon, rest = text.partition(":")
    return (word, rest) if colon and word in SOURCES else (None, text)


def _label(path: str) -> tuple[str, str]:
    """``name:LABEL`` means ``name#LABEL`` (T-2)."""
    name, colon, label = path.rpartition(":")
    return (name, label) if colon and name and _LABEL.fullmatch(label) else (path, "")


def _invalid(text: str, why: str) -> UsageError:
    shown = _CONTROL.sub("?", text[:SHOWN_CHARACTERS]).encode("utf-8", "replace").decode()
    return UsageError(
        ErrorCode.REFERENCE_INVALID,
        f"“{shown}” is not the name of a model: {why}.",
        remedy="Write a stored name, file:/absolute/path.gguf or bundled:name.",
    )
