"""Models split over several files: one model, named by any part (M-14, T-25).

The number in the name counts from 1, the one inside from 0; only part 1 carries the architecture. A set is whole or it
is refused before anything starts, saying which part is wrong.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from stoker.domain.models import ModelFacts, ModelFile
from stoker.errors import ErrorCode, StoreError
from stoker.store.byte_source import FileBytes
from stoker.store.gguf import Header, TensorSums, read_header
from stoker.store.gguf_facts import facts_of

if TYPE_CHECKING:
    from hashlib import _Hash

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<total>[0-9]{5})\.gguf")
_SAMPLE_BYTES = 64 << 10

Stamp = tuple[str, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """A file name that is part ``number`` of ``total``."""

    stem: str
    number: int
    total: int

    def name(self, number: int) -> str:
        return f"{self.stem}-{number:05d}-of-{self.total:05d}.gguf"


def parse_part(name: str) -> Part | None:
    """The part that a file name states; None for an ordinary name, even if it merely resembles one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    part = Part(match["stem"], int(match["number"]), int(match["total"]))
    return part if 1 <= part.number <= part.total else None


def set_paths(path: str) -> tuple[str, ...]:
    """All files of the model that ``path`` belongs to, part 1 first. Raises ``set-incomplete`` with the numbers."""
    part = parse_part(os.path.basename(path))
    if part is None:
        return (path,)
    folder = os.path.dirname(path)
    paths = tuple(os.path.join(folder, part.name(number)) for number in range(1, part.total + 1))
    missing = [number for number, each in enumerate(paths, 1) if not os.path.isfile(each)]
    if missing:
        raise _incomplete(part.stem, f"{len(missing)} of {part.total} parts are missing: {_few(missing)}", missing)
    empty = [number for number, each in enumerate(paths, 1) if os.path.getsize(each) == 0]
    if empty:
        raise _incomplete(part.stem, f"part {_few(empty)} of {part.total} is corrupt: it is an empty file", empty)
    return paths


def stamp(path: str) -> Stamp:
    """What tells one content of a file from another without reading it (T-21)."""
    found = os.stat(path)
    return (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def read_files(paths: tuple[str, ...]) -> ModelFacts:
    """Facts of one model in these files, part 1 first; every part's own header must agree (M-14)."""
    tensors = TensorSums()
    files: list[ModelFile] = []
    first: Header | None = None
    sampled = sha256()
    for number, path in enumerate(paths):
        with FileBytes(path) as source:
            header = read_header(source)
            _sample(sampled, source)
        _agree(header, number, len(paths))
        tensors.add(header.tensors)
        files.append(ModelFile(header.name, header.file_bytes))
        first = first or header
    assert first is not None
    stated = first.keys.get("split.tensors.count")
    if len(paths) > 1 and isinstance(stated, int) and stated != tensors.count:
        raise _incomplete(first.name, f"the parts hold {tensors.count} tensors, the first one states {stated}", [])
    return facts_of(first, tensors, tuple(files), f"sample:{sampled.hexdigest()}")


def _sample(hasher: _Hash, source: FileBytes) -> None:
    """Name a content without reading all of it: its size, its beginning, its middle and its end."""
    hasher.update(source.size.to_bytes(8, "little"))
    for offset in (0, source.size // 2, max(0, source.size - _SAMPLE_BYTES)):
        hasher.update(source.read(offset, _SAMPLE_BYTES))


def _agree(header: Header, index: int, total: int) -> None:
    count, number = header.keys.get("split.count"), header.keys.get("split.no")
    if total == 1:
        if isinstance(count, int) and count > 1:
            raise _incomplete(header.name, f"it is one of {count} parts inside, but its name does not say which", [])
        return
    if count != total:
        raise _incomplete(header.name, f"it says {count} parts inside, its name says {total}", [index + 1])
    if number != index:
        raise _incomplete(header.name, f"it says it is part {number} counted from 0, its name says {index + 1}", [])


def _incomplete(name: str, what: str, parts: list[int]) -> StoreError:
    return StoreError(
        ErrorCode.SET_INCOMPLETE,
        f"The split model {name} is not whole: {what}.",
        remedy="Get the missing or wrong parts again and put them beside the others.",
        details={"parts": parts[:100]},
    )


def _few(numbers: list[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:10])
    return shown if len(numbers) <= 10 else f"{shown} and {len(numbers) - 10} more"
