"""LeakError checks: what a test may not leave behind. Context managers for tasks, descriptors and child processes.

Decides what counts as left behind: more of a kind after the block than before it. Ends that need a moment (a child
being reaped, a task finishing its cancellation) get a bounded time, polled; what is still there then is a `LeakError`
that names each thing. It ends nothing itself: a check that tidied up would hide the next leak.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import anyio
import psutil

POLL_S = 0.01
PATIENCE_S = 2.0


class LeakError(AssertionError):
    """Something outlived the block that made it; the message names it."""


@contextlib.contextmanager
def no_leaked_descriptors(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Fail if the process has file descriptors after the block that it had not before.

    A descriptor is told apart by number and by what it is open on, so one that was closed and opened anew on
    something else counts as new.
    """
    before = _descriptors()
    yield
    gc.collect()
    _expect_none(lambda: sorted(set(_descriptors().items()) - set(before.items())), "descriptor", patience_s)


@contextlib.contextmanager
def no_leaked_children(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Fail if a descendant of this process that the block started lives on, or waits to be reaped."""
    before = _children()
    yield
    _expect_none(lambda: sorted(_describe(child) for child in _children() - before), "child process", patience_s)


@contextlib.asynccontextmanager
async def no_leaked_tasks(patience_s: float = PATIENCE_S) -> AsyncIterator[None]:
    """Fail if tasks of the running event loop that the block started are not done after it. asyncio and trio."""
    before = _tasks()
    yield
    deadline = anyio.current_time() + patience_s
    while left := sorted(name for task, name in _tasks().items() if task not in before):
        if anyio.current_time() >= deadline:
            raise LeakError(_sentence("task", left, patience_s))
        await anyio.sleep(POLL_S)


@contextlib.contextmanager
def no_leaks(patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Descriptors and children together: what most tests that start something want."""
    with no_leaked_children(patience_s), no_leaked_descriptors(patience_s):
        yield


def _expect_none(left_over: Callable[[], Sequence[object]], kind: str, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while left := left_over():
        if time.monotonic() >= deadline:
            raise LeakError(_sentence(kind, left, patience_s))
        time.sleep(POLL_S)


def _sentence(kind: str, left: Sequence[object], patience_s: float) -> str:
    named = "; ".join(str(thing) for thing in left[:10])
    return f"{len(left)} {kind}(s) still there {patience_s:g} s after the block: {named}"


def _descriptors() -> dict[int, str]:
    """Open descriptors and what each is open on, without the one that lists them."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if sys.platform == "linux":
                found[int(name)] = os.readlink(f"{folder}/{name}")
            else:
                status = os.fstat(int(name))
                found[int(name)] = f"{status.st_dev}:{status.st_ino}"
    return found


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _describe(child: psutil.Process) -> str:
    status, command = "unreadable", ""
    with contextlib.suppress(psutil.Error):
        status = child.status()
        command = " ".join(child.cmdline()) or child.name()
    return f"pid {child.pid} ({status}): {command}"


def _tasks() -> dict[object, str]:
    """Every unfinished task of the running loop and its name, whichever library runs it."""
    try:
        return {task: repr(task) for task in asyncio.all_tasks()}
    except RuntimeError:
        import trio  # only where trio runs

        root = trio.lowlevel.current_root_task()
        found: dict[object, str] = {}
        waiting = [root] if root is not None else []
        while waiting:
            task = waiting.pop()
            found[task] = task.name
            waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        return found
