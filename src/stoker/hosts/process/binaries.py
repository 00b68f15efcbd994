"""Which file an engine's argv names, and whether it may be guarded (S-36).

The exec of a set-uid, set-gid or file-capability program clears the parent-death signal, so such a program, or a script
whose interpreter is one, is refused before anything is created.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

_MOST_INTERPRETERS = 4


class Privileged(Exception):  # noqa: N818 - an answer, not a fault
    """The program would run with more than our rights."""


def resolve(argv0: str, env: Mapping[str, str]) -> str:
    """The executable file, looked up in the *plan's* PATH; OSError if there is none, `Privileged` if refused."""
    folders = [""] if "/" in argv0 else env.get("PATH", os.defpath).split(os.pathsep)
    candidates = [os.path.join(folder, argv0) for folder in folders]
    found = next((path for path in candidates if os.access(path, os.X_OK) and os.path.isfile(path)), None)
    if found is None:
        denied = any(os.path.exists(path) for path in candidates)
        raise OSError(errno.EACCES if denied else errno.ENOENT, "no executable file", argv0)
    _refuse_privileged(found)
    return os.path.abspath(found)


def _refuse_privileged(path: str) -> None:
    for _ in range(1 + _MOST_INTERPRETERS):  # a script runs as its interpreter, which may be a script again
        if is_privileged(path):
            raise Privileged(path)
        interpreter = _interpreter(path)
        if interpreter is None or not os.path.isfile(interpreter):
            return
        path = interpreter


def is_privileged(path: str) -> bool:
    mode = os.stat(path).st_mode
    if mode & stat.S_ISUID or (mode & stat.S_ISGID and mode & stat.S_IXGRP):
        return True
    try:
        return "security.capability" in os.listxattr(path)
    except OSError:
        return False  # a file system without attributes has no file capabilities


def _interpreter(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            first = file.read(256).split(b"\n", 1)[0]
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None
