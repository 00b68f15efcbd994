"""One daemon per data folder: a lock the kernel holds for us, and a text for people and clients (S-89, C-42).

The lock decides, the text never does: a pid in it may long be another program's. The kernel drops the lock when the
process dies, however it dies. Children do not get it: the descriptor closes on exec, and a plain fork closes it too.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, replace

from stoker.errors import ErrorCode, HostError, UsageError
from stoker.journal.private import ForeignPathError, private_folder

LOCK_NAME = "owner.lock"

# A client that only asks whether the lock is held takes it for an instant; a start must not fail on that.
_TRIES, _PAUSE_S = 5, 0.02
_TEXT_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """What the lock file says. ``state``: starting or ready."""

    instance: str
    pid: int
    version: str
    control_socket: str
    gateway_address: str
    state: str = "starting"


class OwnerLock:
    """Held from `acquire` until `release` or the end of this process."""

    def __init__(self, path: str, descriptor: int, owner: Owner) -> None:
        self.path = path
        self.owner = owner
        self._descriptor = descriptor
        self._write()
        _held.add(self)

    @classmethod
    def acquire(cls, data_dir: str, owner: Owner) -> OwnerLock:
        """Take the folder. Raises `UsageError` ``daemon-already-running`` and then has changed nothing."""
        folder = os.path.realpath(data_dir)
        path = os.path.join(folder, LOCK_NAME)
        try:
            private_folder(folder)
            descriptor = _locked(path)
        except OSError as exc:
            raise HostError(
                ErrorCode.JOURNAL_UNWRITABLE,
                f"The owner lock {path} cannot be taken: {exc}.",
                remedy="Set daemon.data_dir to a private folder of this account on a local disk.",
            ) from exc
        if descriptor is None:
            raise _running(folder, owner)
        return cls(path, descriptor, owner)

    def update(self, **changes: str) -> None:
        """Change the text, for example ``state="ready"`` or the addresses once they are bound."""
        self.owner = replace(self.owner, **changes)  # type: ignore[arg-type]  # all but pid are text
        self._write()

    def release(self) -> None:
        """Let go. The text is emptied first, so that nobody takes a daemon that left for one that runs."""
        if self._descriptor < 0:
            return
        os.ftruncate(self._descriptor, 0)
        self._forget()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        _held.discard(self)

    def _write(self) -> None:
        text = (json.dumps(asdict(self.owner), sort_keys=True) + "\n").encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))


def read_owner(data_dir: str) -> Owner | None:
    """What the folder's last daemon wrote of itself, None if nothing. It may be dead: connect to find out."""
    try:
        with open(os.path.join(os.path.realpath(data_dir), LOCK_NAME), "rb") as file:
            text = file.read(_TEXT_LIMIT).decode()
        # A text that is being replaced may still have the tail of the one before.
        body, _ = json.JSONDecoder().raw_decode(text)
        return Owner(**{name: body[name] for name in Owner.__slots__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_owned(data_dir: str) -> bool:
    """Does a living process hold the folder?"""
    try:
        descriptor = os.open(os.path.join(os.path.realpath(data_dir), LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class ScopeLock:
    """Held beside the owner lock, in a folder that all data folders of this account share: one daemon per scope (S-97).

    A copied folder carries the scope of its original, so its daemon finds the lock taken. A moved one does not.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _held.add(self)

    @classmethod
    def acquire(cls, machine_dir: str, scope: str, data_dir: str) -> ScopeLock:
        """Raises `UsageError` ``scope-duplicate``, saying how to get a new id."""
        folder, path = os.path.realpath(data_dir), os.path.join(machine_dir, f"scope-{scope}.lock")
        try:
            private_folder(machine_dir)
            descriptor = _locked(path)
            other = "" if descriptor is not None else _text(path)
        except OSError as exc:
            raise HostError(
                ErrorCode.JOURNAL_UNWRITABLE,
                f"The scope lock {path} cannot be taken: {exc}.",
                remedy="Set daemon.volatile_dir to a private folder of this account.",
            ) from exc
        if descriptor is None:
            user = f"the daemon on {other}" if other else "another daemon"
            raise UsageError(
                ErrorCode.SCOPE_DUPLICATE,
                f"The data folder {folder} has the scope id {scope}, which {user} uses.",
                remedy=f"If {folder} is a copy, delete journal.sqlite and scope in it: the next start takes a new id.",
                details={"scope": scope, "folder": folder, "other": other},
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, folder.encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        if self._descriptor >= 0:
            self._forget()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        _held.discard(self)


def _locked(path: str) -> int | None:
    """A descriptor that holds the exclusive lock of the file that is at ``path`` now; None if another holds it."""
    for _ in range(_TRIES):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            os.close(descriptor)
            raise ForeignPathError(f"{path} belongs to uid {found.st_uid}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            time.sleep(_PAUSE_S)
            continue
        if _is_at(path, found):
            os.fchmod(descriptor, 0o600)
            return descriptor
        os.close(descriptor)  # somebody replaced the file meanwhile: a lock on the old one guards nothing
    return None


def _is_at(path: str, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), found)
    except FileNotFoundError:
        return False


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(_TEXT_LIMIT)


def _running(folder: str, newcomer: Owner) -> UsageError:
    holder = read_owner(folder)
    who = f"the daemon {holder.instance} (pid {holder.pid}, {holder.state})" if holder else "another daemon"
    return UsageError(
        ErrorCode.DAEMON_ALREADY_RUNNING,
        f"The data folder {folder} is in use by {who}; "
        f"the daemon {newcomer.instance} (pid {newcomer.pid}) did not start.",
        remedy="Use the daemon that runs, stop it first, or give this one another daemon.data_dir.",
        details={"folder": folder, "holder": asdict(holder) if holder else None, "refused": asdict(newcomer)},
    )


_held: set[OwnerLock | ScopeLock] = set()


def _close_in_child() -> None:
    """A forked child shares the lock until it closes its copy; it must not keep the folder after its parent died."""
    for lock in tuple(_held):
        lock._forget()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_close_in_child)
