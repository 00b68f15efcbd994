"""The models this host has by file: configured folders, bundled files, and any path named with ``file:``.

Nothing is copied, moved or written (T-17). A bad file never hides its neighbours: `scan` gives it with its reason.
Only text, embedding and rerank files are models (T-23); an unknown name is never answered by another model (T-4).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from threading import Lock

from stoker.domain.models import LOADABLE, StoredModel
from stoker.errors import ErrorCode, StokerError, StoreError, UsageError
from stoker.store import bundled
from stoker.store.header_cache import HeaderCache
from stoker.store.layout import Found, find_models, split_label, stem_of
from stoker.store.references import Reference, model_id, parse_reference
from stoker.store.split import Stamp, set_paths, stamp

NEAR_NAMES = 3


@dataclass(frozen=True, slots=True)
class BadModel:
    """A file that looks like a model and cannot be one, with its reason (T-62)."""

    path: str
    stem: str
    error: StokerError


_Bad = list[BadModel]  # the class below has a method of the name `list`


class LocalModels:
    """`stoker.ports.models.Models` over files in place. Thread-safe; reads the disk on every call."""

    def __init__(self, folders: Sequence[str] = (), *, find: bundled.FindSpec = find_spec) -> None:
        self._folders = tuple(os.path.abspath(os.path.expanduser(folder)) for folder in folders)
        self._find = find
        self._headers = HeaderCache()
        self._verified: dict[Stamp, str] = {}
        self._verifying = Lock()

    def list(self) -> tuple[StoredModel, ...]:
        return self.scan()[0]

    def scan(self) -> tuple[tuple[StoredModel, ...], tuple[BadModel, ...]]:
        """Every model that can be offered, by name, and every file that cannot, with its reason."""
        good: dict[str, StoredModel] = {}
        bad: _Bad = []
        for bundle in bundled.BUNDLES:
            path = bundled.bundle_path(bundle, self._find)
            if path is not None:
                self._try(good, bad, Found(path, bundle.name), bundle)
        for folder in self._folders:
            for found in find_models(folder):
                self._try(good, bad, found, None)
        models = sorted(good.values(), key=lambda model: (model.names[0], model.reference))
        return tuple(models), tuple(bad)

    def _try(self, good: dict[str, StoredModel], bad: _Bad, found: Found, bundle: bundled.Bundle | None) -> None:
        try:
            model = self._bundled(bundle, verify=False) if bundle else self._file(found.path)
        except StokerError as error:
            bad.append(BadModel(found.path, found.stem, error))
            return
        good.setdefault(model.reference, model)

    def resolve(self, reference: str) -> StoredModel:
        """See the port. A bare name is a stored name first; then a base name, alone or with ``:LABEL``."""
        parsed = parse_reference(reference)
        match parsed.source:
            case "file":
                return self._named_file(parsed.path)
            case "bundled":
                bundle = bundled.find_bundle(parsed.path)
                if bundle is None:
                    raise _not_found(reference, (f"bundled:{each.name}" for each in bundled.BUNDLES))
                return self._bundled(bundle, verify=True)
            case None:
                return self._named(reference, parsed)
            case _:
                raise _not_found(reference, self._names())

    def check_unchanged(self, model: StoredModel) -> None:
        """T-21: device, inode, size and modification time of every file are what they were."""
        for before in model.stamps:
            path = before[0]
            try:
                now = stamp(path)
            except OSError as error:
                raise _missing(path) from error
            if now != before:
                raise StoreError(
                    ErrorCode.REVISION_CHANGED,
                    f"{os.path.basename(path)} has changed since its header was read: {before[3]} bytes then, "
                    f"{now[3]} now.",
                    remedy="Ask again: the model is read and planned anew.",
                    details={"path": path, "bytes_before": before[3], "bytes_now": now[3]},
                )

    def _named(self, text: str, parsed: Reference) -> StoredModel:
        models, bad = self.scan()
        exact = [model for model in models if text in model.names]
        candidates = exact or [model for model in models if _fits(model, parsed)]
        if len(candidates) == 1:
            model = candidates[0]
            bundle = bundled.find_bundle(model.reference.removeprefix("bundled:"))
            return self._bundled(bundle, verify=True) if bundle else model
        if candidates:
            raise UsageError(
                ErrorCode.REFERENCE_AMBIGUOUS,
                f"“{text}” fits {len(candidates)} models: {_some(model.reference for model in candidates)}.",
                remedy="Name one of them in full.",
                details={"candidates": [model.reference for model in candidates[:20]]},
            )
        for entry in bad:
            if text == entry.stem:
                raise entry.error
        raise _not_found(text, (name for model in models for name in model.names))

    def _names(self) -> tuple[str, ...]:
        return tuple(name for model in self.list() for name in model.names)

    def _named_file(self, path: str) -> StoredModel:
        path = os.path.abspath(os.path.expanduser(path))
        if os.path.isdir(path):
            return self._only_model(path)
        if not os.path.exists(path):
            set_paths(path)  # a missing part is told with its number
            raise _missing(path)
        return self._file(path)

    def _only_model(self, folder: str) -> StoredModel:
        """A folder means the one model in it (M-14)."""
        good: dict[str, StoredModel] = {}
        bad: _Bad = []
        for found in find_models(folder):
            if os.path.dirname(found.path) == folder:
                self._try(good, bad, found, None)
        if len(good) == 1:
            return next(iter(good.values()))
        if good:
            raise UsageError(
                ErrorCode.REFERENCE_AMBIGUOUS,
                f"The folder holds {len(good)} models: {_some(sorted(good))}.",
                remedy="Name one of the files.",
            )
        if bad:
            raise bad[0].error
        raise _not_found(f"file:{folder}", ())

    def _file(self, path: str) -> StoredModel:
        real = os.path.realpath(path)
        # A link may have any name; the set is found beside the file that carries its part's name.
        paths = set_paths(path if _is_part(path) else real)
        try:
            stamps = tuple(stamp(each) for each in paths)
            facts = self._headers.facts(paths)
        except FileNotFoundError as error:
            raise _missing(path) from error
        except OSError as error:
            raise StoreError(
                ErrorCode.MODEL_FILE_MISSING,
                f"{os.path.basename(path)} cannot be read: {error.strerror}.",
                remedy="Make the file readable for the user that runs stoker.",
            ) from error
        if facts.kind not in LOADABLE:
            raise UsageError(
                ErrorCode.WRONG_KIND,
                f"{os.path.basename(path)} is a file of kind {facts.kind.value}, not a model that can be loaded alone.",
                remedy="Name the model that it belongs to.",
                details={"kind": facts.kind.value},
            )
        reference = f"file:{paths[0]}"
        return StoredModel(
            model_id=model_id(reference),
            reference=reference,
            names=(stem_of(path),),
            path=paths[0],
            facts=facts,
            added_at=stamps[0][4] / 1e9,
            stamps=stamps,
        )

    def _bundled(self, bundle: bundled.Bundle, *, verify: bool) -> StoredModel:
        path = bundled.bundle_path(bundle, self._find)
        if path is None:
            raise bundled.not_installed(bundle.name)
        model = self._file(path)
        digest = self._verify(bundle, path, model.stamps[0]) if verify else bundled.recorded_digest(bundle, path)
        reference = f"bundled:{bundle.name}"
        facts = replace(model.facts, content_id=f"sha256:{digest}") if digest else model.facts
        return replace(
            model, model_id=model_id(reference), reference=reference, names=(bundle.name, reference), facts=facts
        )

    def _verify(self, bundle: bundled.Bundle, path: str, seen: Stamp) -> str:
        """Once for each state of the file; callers that come meanwhile wait for the one reading."""
        with self._verifying:
            if seen not in self._verified:
                self._verified = {seen: bundled.verify(bundle, path)}
            return self._verified[seen]


def _is_part(path: str) -> bool:
    return len(stem_of(path)) < len(os.path.basename(path)) - len(".gguf")


def _fits(model: StoredModel, parsed: Reference) -> bool:
    """Does a base name, alone or with a label in any case, mean this model (T-2, T-29, T-30)?"""
    parts = split_label(model.names[0])
    if parts is None or parsed.path != parts[0] or parsed.revision:
        return False
    return parsed.selector is None or parsed.selector.lower() == parts[1].lower()


def _missing(path: str) -> StoreError:
    return StoreError(
        ErrorCode.MODEL_FILE_MISSING,
        f"There is no file {os.path.basename(path)} where the model should be.",
        remedy="Put the file back, or name another one.",
        details={"path": path},
    )


def _not_found(text: str, names: Iterable[str]) -> StoreError:
    near = get_close_matches(text, sorted(set(names)), n=NEAR_NAMES, cutoff=0.6)
    known = f" Near names: {', '.join(near)}." if near else ""
    return StoreError(
        ErrorCode.MODEL_NOT_FOUND,
        f"No model named “{text[:80]}” is stored here.{known}",
        remedy="stoker list shows the models there are; a file is named file:/absolute/path.gguf.",
        details={"near": near},
    )


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:5]) + (f" and {len(every) - 5} more" if len(every) > 5 else "")
