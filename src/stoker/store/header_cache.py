"""Facts by file, read once and kept while the file is the same (M-18, T-16).

Keyed by path, device, inode, size and both times; at most 64 models. Callers on several threads that ask for one file
share one read. Errors are not kept: a file that was mended is read again.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

from stoker.domain.models import ModelFacts
from stoker.store.split import read_files

CAPACITY = 64
Key = tuple[tuple[str, int, int, int, int, int], ...]


class HeaderCache:
    """Least recently used facts go first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._kept: OrderedDict[Key, ModelFacts] = OrderedDict()
        self._reading: dict[Key, Lock] = {}
        self.reads = 0

    def facts(self, paths: tuple[str, ...]) -> ModelFacts:
        """Facts of the model in ``paths``, part 1 first. Raises what the reader raises, and `OSError`."""
        key = tuple(_key(path) for path in paths)
        with self._lock:
            if (kept := self._get(key)) is not None:
                return kept
            turn = self._reading.setdefault(key, Lock())
        with turn:
            with self._lock:
                if (kept := self._get(key)) is not None:
                    return kept
                self.reads += 1
            try:
                facts = read_files(paths)
            finally:
                with self._lock:
                    self._reading.pop(key, None)
            with self._lock:
                self._kept[key] = facts
                while len(self._kept) > self._capacity:
                    self._kept.popitem(last=False)
            return facts

    def _get(self, key: Key) -> ModelFacts | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)


def _key(path: str) -> tuple[str, int, int, int, int, int]:
    found = os.stat(path)
    return (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
