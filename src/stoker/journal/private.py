"""Folders and files that only this account may read (C-44): tightened when they are ours, refused when not.

Knows nothing of what lies in them.
"""

from __future__ import annotations

import os
import stat


class ForeignPathError(OSError):
    """A file or folder of ours that belongs to another account, or is not what it should be."""


def private_folder(path: str) -> None:
    """Make ``path`` a folder of mode 0700 that belongs to this account, parents included where they are missing."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    _tighten(path, os.stat(path), stat.S_ISDIR, 0o700, "folder")


def private_file(path: str) -> None:
    """Make ``path`` a regular file of mode 0600 that belongs to this account; created empty if missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _tighten(path, os.fstat(descriptor), stat.S_ISREG, 0o600, "file")
    finally:
        os.close(descriptor)


def write_whole(path: str, text: str) -> None:
    """Replace ``path`` by a 0600 file holding ``text``; after a power cut either the old or the new one is there."""
    new = f"{path}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        left = text.encode()
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(new, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _tighten(path: str, found: os.stat_result, is_kind: object, mode: int, word: str) -> None:
    assert callable(is_kind)
    if not is_kind(found.st_mode):
        raise ForeignPathError(f"{path} is not a {word}")
    if found.st_uid != os.geteuid():
        raise ForeignPathError(f"{path} belongs to uid {found.st_uid}, not to uid {os.geteuid()} of this account")
    if stat.S_IMODE(found.st_mode) & ~mode:
        os.chmod(path, mode)
