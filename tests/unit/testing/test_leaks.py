"""The leak checks see what was left behind, name it, and are silent when nothing was."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import anyio
import pytest

from stoker.testing.leaks import LeakError, no_leaked_children, no_leaked_descriptors, no_leaked_tasks, no_leaks

SLEEPER = (sys.executable, "-c", "import time; time.sleep(60)")


def test_an_open_descriptor_is_a_leak_and_is_named() -> None:
    opened: list[int] = []
    with pytest.raises(LeakError, match=r"1 descriptor\(s\) .*null"), no_leaked_descriptors(0.0):
        opened.append(os.open("/dev/null", os.O_RDONLY))
    os.close(opened[0])


def test_a_closed_descriptor_is_no_leak() -> None:
    with no_leaked_descriptors(0.0):
        os.close(os.open("/dev/null", os.O_RDONLY))


def test_a_descriptor_reopened_on_something_else_is_a_leak() -> None:
    first = os.open("/dev/null", os.O_RDONLY)

    def reopen() -> int:
        os.close(first)
        return os.open("/dev/zero", os.O_RDONLY)

    with pytest.raises(LeakError, match="zero"), no_leaked_descriptors(0.0):
        assert reopen() == first
    os.close(first)


def test_a_running_child_is_a_leak_and_its_command_is_named() -> None:
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(LeakError, match=r"1 child process\(s\) .*time.sleep\(60\)"), no_leaked_children(0.1):
        children.append(subprocess.Popen(SLEEPER))
    children[0].kill()
    children[0].wait()


def test_a_dead_child_that_nobody_reaped_is_a_leak() -> None:
    children: list[subprocess.Popen[bytes]] = []

    def start_and_kill() -> None:
        children.append(subprocess.Popen(SLEEPER))
        children[0].kill()

    with pytest.raises(LeakError, match="zombie"), no_leaked_children(0.5):
        start_and_kill()
    children[0].wait()


def test_a_child_that_was_there_before_is_no_leak() -> None:
    before = subprocess.Popen(SLEEPER)
    with no_leaked_children(0.0):
        pass
    before.kill()
    before.wait()


def test_an_end_that_needs_a_moment_is_waited_for() -> None:
    began = time.monotonic()
    with no_leaks(10.0):
        process = subprocess.Popen((sys.executable, "-c", "pass"))
        process.wait()
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.anyio
async def test_a_task_left_running_is_a_leak_in_both_libraries(anyio_backend: str) -> None:
    async with anyio.create_task_group() as group:
        with pytest.raises(LeakError, match=r"1 task\(s\) .*sleep_forever"):
            async with no_leaked_tasks(0.05):
                group.start_soon(anyio.sleep_forever)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.anyio
async def test_tasks_that_end_are_no_leak_in_both_libraries(anyio_backend: str) -> None:
    async with no_leaked_tasks(1.0), anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(anyio.sleep, 0.01)


@pytest.mark.anyio
async def test_a_task_that_only_finishes_its_cancellation_is_waited_for() -> None:
    async with no_leaked_tasks(5.0):
        task = asyncio.ensure_future(asyncio.sleep(30))
        await asyncio.sleep(0)
        task.cancel()
