"""Where a header reader gets its bytes: a file here, or ranges of a remote one (M-15).

A source knows its size and hands out ranges; it never gives more than was asked for. `Cursor` walks one with a window
of at most 1 MiB and checks every step against what is left, before anything is allocated (M-4).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from struct import Struct, error
from typing import Protocol, Self

from stoker.errors import ErrorCode, StoreError

WINDOW_BYTES = 1 << 20
FIRST_BYTES = 64 << 10
_LENGTH = Struct("<Q").unpack_from


class ByteSource(Protocol):
    """Bytes of one object, by range."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``; fewer only at the end of the object."""
        ...


class FileBytes:
    """A local file, opened for reading only. Close it, or use it in a ``with``."""

    def __init__(self, path: str) -> None:
        # Not blocking: a pipe among the files of a folder must not hold up its neighbours.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        self._size = os.fstat(self._fd).st_size
        self._name = os.path.basename(path)

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryBytes:
    """Bytes in memory, for headers that came with something else."""

    def __init__(self, data: bytes, name: str = "memory") -> None:
        self._data = data
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class Cursor:
    """A place in a source that only moves forward, at most to ``limit`` bytes from the start."""

    def __init__(self, source: ByteSource, limit: int) -> None:
        self.source = source
        self.end = min(source.size, limit)
        self._window = b""
        self._base = 0
        self._at = 0

    @property
    def position(self) -> int:
        return self._base + self._at

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def need(self, length: int, field: str) -> None:
        """Raise unless ``length`` more bytes are there."""
        if length > self.remaining:
            reason = "header-limit" if self.end < self.source.size else "truncated"
            raise self.corrupt(field, f"needs {length} bytes, {self.remaining} are left", reason)

    def take(self, length: int, field: str) -> bytes:
        """The next ``length`` bytes; the caller has bounded ``length``."""
        self.need(length, field)
        if self._at + length > len(self._window):
            self._slide(length)
        start = self._at
        self._at += length
        return self._window[start : self._at]

    def uint(self, width: int, field: str) -> int:
        return int.from_bytes(self.take(width, field), "little")

    def skip(self, length: int, field: str) -> None:
        self.need(length, field)
        if self._at + length <= len(self._window):
            self._at += length
            return
        self._base, self._at, self._window = self.position + length, 0, b""

    def digest(self, length: int, field: str) -> str:
        """SHA-256 of the next ``length`` bytes, read piece by piece."""
        self.need(length, field)
        hasher = sha256()
        while length:
            piece = self.take(min(length, WINDOW_BYTES), field)
            hasher.update(piece)
            length -= len(piece)
        return hasher.hexdigest()

    def skip_strings(self, count: int, limit: int, field: str) -> None:
        """Walk ``count`` length-prefixed strings without keeping any (M-5).

        A string is refused when it reaches further than ``limit`` bytes beyond the window it begins in.
        """
        while count:
            self.need(8, field)
            if len(self._window) - self._at < 8:
                self._slide(8)
            count, beyond = self._walk(count)
            if beyond > limit:
                raise self.corrupt(field, f"holds a string longer than {limit} bytes")
            self.need(beyond, field)
            if beyond:
                self._base, self._at, self._window = self.position + beyond, 0, b""

    def _walk(self, count: int) -> tuple[int, int]:
        """Walk inside the window: how many strings are left, and how far the last one reaches out of it.

        The hot loop of large vocabularies: the end of the window ends it, not a comparison at each step.
        """
        window, at, left = self._window, self._at, count
        try:
            for left in range(count, 0, -1):  # noqa: B007 - what is left is the result
                at += _LENGTH(window, at)[0] + 8
            left = 0
        except (error, OverflowError):
            pass
        self._at = min(at, len(window))
        return left, at - self._at

    def _slide(self, length: int) -> None:
        """Move the window so that ``length`` bytes lie in it; the first reads are small, most headers are."""
        position = self.position
        size = max(length, FIRST_BYTES if position < FIRST_BYTES else WINDOW_BYTES)
        window = self.source.read(position, min(size, self.end - position))
        if len(window) < length:
            raise self.corrupt("file", f"gave {len(window)} of {length} bytes at {position}", "truncated")
        self._window, self._base, self._at = window, position, 0

    def corrupt(self, field: str, what: str, reason: str = "bounds") -> StoreError:
        """The error of M-4: field, offset and limit in one sentence."""
        details: Mapping[str, object] = {"field": field, "offset": self.position, "reason": reason}
        return StoreError(
            ErrorCode.MODEL_FILE_CORRUPT,
            f"{self.source.name}: {field} at offset {self.position} {what}.",
            remedy="Get the file again; it is damaged or incomplete.",
            details=details,
        )
