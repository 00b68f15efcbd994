"""The order of a fake engine's life: options, port, helpers, load, ready, end (E-107).

With ``--flavour llama-cpp`` it accepts that engine's arguments, prints its log lines and has its routes, so adapters,
units and gateway can be tested against it unchanged; ``bare`` (the default) imitates nobody. Standard library only,
one thread, deterministic for its arguments, ready in well under 150 ms. This module knows nothing of what an answer
looks like.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Never

from stoker.testing.fake_engine.flavours import FLAVOURS, SWITCHES, Flavour
from stoker.testing.fake_engine.life import Life
from stoker.testing.fake_engine.loop import Wait
from stoker.testing.fake_engine.options import OptionError, parse
from stoker.testing.fake_engine.server import Server

RETRY_BIND_S = 0.05
RELEASED_BY_SECOND_TERM = 1  # the status of an engine that is told twice


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> Never:
    arguments = list(sys.argv[1:] if argv is None else argv)
    variables = os.environ if environ is None else environ
    try:
        options, foreign = parse(arguments, variables)
        flavour = FLAVOURS[options.flavour]
    except OptionError as error:
        sys.exit(f"fake engine: {error}")
    except KeyError as error:
        sys.exit(f"fake engine: {error} is no flavour: there are {', '.join(FLAVOURS)}")
    for word in foreign:
        if word in flavour.printed:
            stream, lines = flavour.printed[word]
            print("\n".join(lines), file=sys.stderr if stream == "stderr" else sys.stdout)
            sys.exit(0)
    settings = read_settings(flavour, foreign)
    if flavour.token_env and variables.get(flavour.token_env):
        settings.setdefault("token", variables[flavour.token_env])
    life = Life(options, flavour, settings)
    life.note("start", argv=arguments, env=sorted(variables))
    Process(life).run()


def read_settings(flavour: Flavour, words: Sequence[str]) -> dict[str, str]:
    """The engine's own arguments that matter, by setting; what is not known is passed over in silence."""
    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        setting = flavour.arguments.get(flag)
        if setting in SWITCHES:
            settings[setting] = "1"
        elif setting is not None:
            settings[setting] = value if equals else rest.pop(0) if rest else ""
    return settings


class Process:
    """One life from the first signal handler to the last line of the record."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.server = Server(life)
        self.terms = 0

    def run(self) -> Never:
        life = self.life
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        life.loop.spawn(self._signals(reader))
        life.loop.spawn(self._live())
        life.loop.run()
        life.leave(0, "nothing left to do")

    async def _live(self) -> None:
        life, options = self.life, self.life.options
        if options.fail:
            life.say(*(life.flavour.before_load if options.fail not in {"argument", "library"} else ()))
            life.fail(options.fail)
        if not options.load.refuse:
            await self._listen()
        life.fork_helpers()
        life.phase = "loading"
        life.say(*life.flavour.before_load)
        life.print_noise()
        await self._load()
        if options.load.refuse:
            await self._listen()
        life.phase = "ready"
        life.note("ready", address=life.address)
        life.say(*life.flavour.after_load)
        if options.grow:
            life.loop.spawn(life.grow())
        if options.crash_after.seconds:
            await Wait(until=time.monotonic() + options.crash_after.seconds)
            life.crash("seconds")

    async def _load(self) -> None:
        life, options = self.life, self.life.options
        if options.oom in {"load", "kv", "graphs"}:
            life.fail(options.oom)
        life.touch(options.ram_mib)
        began, seconds = time.monotonic(), options.load.seconds
        await Wait(until=life.stall_until("load"))
        steps = max(1, options.load.steps)
        marks = [(step / steps, round(100 * step / steps)) for step in range(1, steps + 1)]
        for share, percent in marks:
            if options.crash_load >= 0 and share > options.crash_load:
                await Wait(until=began + seconds * options.crash_load)
                life.crash("load")
            await Wait(until=began + seconds * share)
            if options.load.steps:
                life.say(*life.flavour.during_load, percent=percent)
        if options.crash_load >= 0:
            life.crash("load")

    async def _listen(self) -> None:
        """Take the port, or do with a taken one as ``--port-busy`` says."""
        life, said = self.life, False
        while True:
            try:
                life.listener, life.address = bind(life.options.host, life.options.port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                break
            if life.options.port_busy == "exit":
                life.fail("port")
            if not said:
                life.say(*life.flavour.failures["port"].lines)
                life.note("port-busy")
                said = True
            await Wait(until=time.monotonic() + RETRY_BIND_S)
            while life.options.port_busy == "stay":
                await Wait(until=time.monotonic() + 3600)
        life.note("listening", address=life.address)
        life.loop.spawn(self.server.accept(life.listener))

    async def _signals(self, reader: socket.socket) -> None:
        while True:
            await Wait(sock=reader)
            for number in reader.recv(64):
                self.life.note("signal", name=signal.Signals(number).name)
                if not self.life.options.ignore_term:
                    self.terms += 1
                    self.life.loop.spawn(self._end())

    async def _end(self) -> None:
        """The asked end. A second word ends at once; an engine that drains waits for its open requests (E-80)."""
        life = self.life
        if self.terms > 1:
            life.leave(RELEASED_BY_SECOND_TERM, "second signal")
        life.phase = "closing"
        if life.options.term_delay:
            await Wait(until=time.monotonic() + life.options.term_delay)
        while life.flavour.drains_on_term and self.server.open:
            await Wait(bell=self.server.drained)
        if life.listener is not None and life.options.host.startswith("/"):
            os.unlink(life.options.host)
        life.leave(0, "asked")


def bind(host: str, port: int) -> tuple[socket.socket, str]:
    """A listening socket and its address; a host with a slash is the path of a Unix socket."""
    if "/" in host:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        address = f"unix://{host}"
        target: str | tuple[str, int] = host
    else:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        target = (host, port)
        address = ""
    try:
        listener.bind(target)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener, address or f"http://{host}:{listener.getsockname()[1]}"
