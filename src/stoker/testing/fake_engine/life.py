"""The life of one fake engine process: its log, its record, its memory, its helpers, and how it ends (E-107).

Decides what the process does to the host. Invariants: whatever ends the process goes through `Life.leave` or
`Life.kill`, so that the record always has a last line; the record is written line by line, unbuffered. It knows
nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Never

from stoker.testing.fake_engine.flavours import Failure, Flavour
from stoker.testing.fake_engine.loop import FOREVER, Loop, Wait
from stoker.testing.fake_engine.options import Options

PAGE = 4096
HELPER_LIFE_S = 600  # a helper that a test forgot ends by its alarm


class Slot:
    """One sequence: whether it works, and the words of the prompt it has in its cache."""

    __slots__ = ("busy", "number", "prompt")

    def __init__(self, number: int) -> None:
        self.number, self.busy, self.prompt = number, False, tuple[str, ...]()


class Life:
    def __init__(self, options: Options, flavour: Flavour, settings: Mapping[str, str]) -> None:
        self.options, self.flavour, self.settings = options, flavour, settings
        self.loop = Loop()
        self.began = time.monotonic()
        self.phase = "starting"
        self.listener: socket.socket | None = None
        self.address = ""
        slots = options.slots or int(settings.get("parallel", flavour.slots))
        self.slots = [Slot(number) for number in range(slots)]
        self.context = options.ctx or int(settings.get("ctx_size", "0")) // slots or flavour.context
        self.name = settings.get("alias", options.model)
        self.model = settings.get("model", options.model)
        self.token = options.token or settings.get("token", "")
        self.tokens_made = self.requests_done = self.prompt_tokens = 0
        self._memory: list[mmap.mmap] = []
        self._record = -1
        if options.record:
            self._record = os.open(options.record, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    # what is written down

    def note(self, event: str, **fields: object) -> None:
        """One line of the record; ``at`` is the machine's monotonic clock, so records of several engines compare."""
        if self._record >= 0:
            line = json.dumps({"at": round(time.monotonic(), 6), "event": event, "pid": os.getpid(), **fields})
            os.write(self._record, line.encode() + b"\n")

    def say(self, *lines: str, **values: object) -> None:
        """Log lines in the flavour's manner; names in braces are filled in."""
        known = {
            "model": self.model,
            "address": self.address,
            "host": self.options.host,
            "port": self.options.port,
            "slots": len(self.slots),
            "context": self.context,
            "ram_mib": self.options.ram_mib,
            **values,
        }
        for line in lines:
            text = line.format_map(known) if "{" in line else line
            stamped = self.flavour.stamped and line[1:2] == " "
            self.write((self._stamp() + text if stamped else text).encode() + b"\n")

    def write(self, data: bytes, stream: str = "") -> None:
        """Raw bytes to ``stdout`` or ``stderr`` (the flavour's log). A reader that is gone is no error."""
        with contextlib.suppress(OSError):
            target = 2 if (stream or self.flavour.log) == "stderr" else 1
            while data:
                data = data[os.write(target, data) :]

    def _stamp(self) -> str:
        us = int((time.monotonic() - self.began) * 1e6)
        return f"{us // 60_000_000}.{us // 1_000_000 % 60:02}.{us // 1000 % 1000:03}.{us % 1000:03} "

    def print_noise(self) -> None:
        """The log traffic asked for: so many bytes a stream, one long line, bad bytes, repaints without a line feed."""
        line = b"noise " * 20 + b"\n"
        for stream, amount in self.options.noise.items():
            self.write((line * (amount // len(line) + 1))[: max(0, amount - 1)] + b"\n", stream)
        if self.options.long_line:
            self.write(b"x" * self.options.long_line + b"\n")
        if self.options.bad_utf8:
            self.write(b"bad \xff\xfe bytes \x00 and \x1b[31mcolour\x1b[0m\n")
        if self.options.bare_cr:
            self.write(b"".join(b"progress %d%%\r" % percent for percent in range(0, 101, 10)))

    # memory

    def touch(self, mib: int) -> None:
        """Hold ``mib`` MiB more, every page written, so that the host really has to give them."""
        if mib > 0:
            block = mmap.mmap(-1, mib << 20)
            block[::PAGE] = b"\x01" * ((mib << 20) // PAGE)
            self._memory.append(block)

    async def grow(self) -> None:
        """``--grow N/s``: N MiB more each second, in tenths."""
        began, held = time.monotonic(), 0
        while True:
            await Wait(until=time.monotonic() + 0.1)
            wanted = int((time.monotonic() - began) * self.options.grow)
            self.touch(wanted - held)
            held = max(held, wanted)

    # helpers

    def fork_helpers(self) -> None:
        for modes in self.options.fork_child:
            child = os.fork()
            if child == 0:
                self._be_helper(frozenset(modes.split(",")))
            self.note("child", child=child, modes=modes)

    def _be_helper(self, modes: frozenset[str]) -> Never:
        """In the child: do as told, then live until somebody ends it or its alarm rings."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if "ignore-term" in modes else signal.SIG_DFL)
        signal.alarm(HELPER_LIFE_S)
        if "new-session" in modes:
            os.setsid()
        holds = "hold-port" in modes and self.listener is not None
        kept = self.listener.fileno() if holds and self.listener is not None else -1
        for fd in _open_fds():
            if fd != kept and ("close-fds" in modes or fd > 2):
                with contextlib.suppress(OSError):
                    os.close(fd)
        if "rename" in modes:
            if kept >= 0:
                os.set_inheritable(kept, True)
            os.execve("/bin/sleep", ["renamed-helper", str(HELPER_LIFE_S)], {})
        while True:
            signal.pause()

    # the end

    def fail(self, kind: str) -> Never:
        """Die the flavour's way for ``kind``: its decoys, its real text, its status."""
        failure = self.flavour.failures[kind]
        self.say(*self.flavour.decoys[:1], *failure.lines, *self.flavour.decoys[1:])
        self.crash(kind, failure)

    def crash(self, cause: str, failure: Failure | None = None) -> Never:
        how = failure or Failure(())
        if self.options.die_by or how.signal:
            self.kill(self.options.die_by or how.signal, cause)
        self.leave(how.status, cause)

    def leave(self, status: int, cause: str) -> Never:
        code = self.options.exit_code if self.options.exit_code >= 0 else status
        self.note("exit", code=code, cause=cause)
        os._exit(code)

    def kill(self, name: str, cause: str) -> Never:
        """End by a signal, as a real crash does, without a core file."""
        number = signal.Signals["SIG" + name.upper().removeprefix("SIG")]
        self.note("exit", signal=number.name, cause=cause)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
        raise SystemExit(1)

    # countdowns

    def count_token(self) -> None:
        self.tokens_made += 1
        if self.tokens_made == self.options.crash_after.tokens:
            self.crash("tokens")

    def count_request(self) -> None:
        self.requests_done += 1
        if self.requests_done == self.options.crash_after.requests:
            self.crash("requests")

    def stall_until(self, place: str) -> float:
        """When a stall at ``place`` is over: now if none is asked for there, never if it has no ``--for``."""
        now = time.monotonic()
        if self.options.stall != place:
            return now
        self.note("stall", place=place)
        return now + self.options.for_ if self.options.for_ else FOREVER


def _open_fds() -> list[int]:
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    return [int(name) for name in os.listdir(folder)]
