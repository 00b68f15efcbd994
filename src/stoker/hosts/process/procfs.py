"""Who a process is: identities, verdicts, descendants, markers, and signals to exactly one process (S-42, S-43).

A pid alone names nobody: the start time and the boot complete it. Only a process whose verdict is `same` is ever
signalled, through a handle taken before the start time was checked again. Blocking calls on ``/proc``; callers bring
a thread. Linux only.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator

from stoker.domain.reconcile import IdentityVerdict
from stoker.hosts.process.guardian import members, read_stat, send_signal
from stoker.ids import Generation, Scope
from stoker.ports.units import ProcessIdentity, Survivor

MARKER = "STOKER_UNIT"
_KERNEL_THREAD = 0x200000
_EXEC_LOOKS, _EXEC_LOOK_S = 5, 0.001


@functools.cache
def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a process that exists now."""
    try:
        return ProcessIdentity(pid, read_stat(pid)[4], boot_id())
    except (OSError, ValueError, IndexError):
        return None


def verdict(identity: ProcessIdentity) -> IdentityVerdict:
    """What became of ``identity``. One that only waits to be reaped is gone; a dead leader with live threads is not."""
    if identity.boot_id != boot_id():
        return IdentityVerdict.GONE
    try:
        _, state, _, threads, start_time = read_stat(identity.pid)
    except (FileNotFoundError, ProcessLookupError):
        return IdentityVerdict.GONE
    except (OSError, ValueError, IndexError):
        return IdentityVerdict.UNREADABLE
    if start_time != identity.start_time:
        return IdentityVerdict.OTHER
    return IdentityVerdict.GONE if state in "ZX" and threads <= 1 else IdentityVerdict.SAME


def descendants(root: ProcessIdentity) -> tuple[ProcessIdentity, ...]:
    """Everything alive under ``root``, while it is that process."""
    if verdict(root) is not IdentityVerdict.SAME:
        return ()
    return tuple(ProcessIdentity(pid, start, boot_id()) for pid, start, _, _ in members(root.pid))


def signal_exactly(identity: ProcessIdentity, number: int) -> None:
    if verdict(identity) is IdentityVerdict.SAME:
        send_signal(identity.pid, identity.start_time, number)


def reap_exactly(identity: ProcessIdentity) -> None:
    """Collect the status of a dead process that became our child; any other child is left alone (S-39)."""
    try:
        _, state, parent, _, start_time = read_stat(identity.pid)
        if parent == os.getpid() and state == "Z" and start_time == identity.start_time:
            os.waitpid(identity.pid, os.WNOHANG)
    except (OSError, ValueError, IndexError):
        return


def survivor(identity: ProcessIdentity) -> Survivor | None:
    try:
        name, state, *_ = read_stat(identity.pid)
    except (OSError, ValueError, IndexError):
        return None
    return Survivor(identity.pid, name, state)


def marked(scope: Scope) -> Iterator[tuple[ProcessIdentity, Generation]]:
    """Processes whose environment, where it can be read, carries a marker of ``scope``. Absence proves nothing.

    A listing is a moment: what a listed process forked before it went is in no listing before the next. So it is
    listed again until there is nobody new.
    """
    prefix = f"{MARKER}={scope}:".encode()
    examined: set[str] = set()
    while fresh := [entry for entry in os.listdir("/proc") if entry.isdigit() and entry not in examined]:
        examined.update(fresh)
        for entry in fresh:
            before = identify(int(entry))
            found = next((word for word in _environment(entry).split(b"\0") if word.startswith(prefix)), b"")
            number = found.removeprefix(prefix)
            if before is not None and number.isdigit() and identify(int(entry)) == before:
                yield before, Generation(int(number))


def _environment(entry: str) -> bytes:
    """The environment area; empty is looked at again, because in the middle of an exec it is empty for a moment."""
    for _ in range(_EXEC_LOOKS):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                found = file.read()
            if found or not _has_program(entry):
                return found
        except (OSError, ValueError, IndexError):
            return b""
        time.sleep(_EXEC_LOOK_S)
    return b""


def _has_program(entry: str) -> bool:
    """Neither a thread of the kernel nor dead."""
    with open(f"/proc/{entry}/stat", "rb") as file:
        rest = file.read().rpartition(b")")[2].split()
    return rest[0] not in {b"Z", b"X"} and not int(rest[6]) & _KERNEL_THREAD
