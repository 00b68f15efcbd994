"""Field cases of ports: somebody else answers where an engine should listen (BR-405)."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from field import FieldDaemon, Later, model, serving
from running import until

from stoker.hosts.process.ports import is_free


@pytest.fixture
def first() -> int:
    """The first of four ports that nobody holds and no closed connection lingers on; below those given to clients."""
    start = 11_000 + os.getpid() * 7 % 9_000
    for port in range(start, 32_000, 4):
        if all(map(is_free, range(port, port + 4))):
            return port
    raise AssertionError("no four free ports")


def limited(first: int) -> str:
    return f'[sessions]\nport_range = "{first}-{first + 3}"\n'


@dataclass
class Foreigner:
    """A server that answers everything with 200 and the model "other", and remembers what it was asked."""

    listener: socket.socket
    asked: list[bytes] = field(default_factory=list)

    def serve(self) -> None:
        body = json.dumps({"status": "ok", "model": "other", "data": [{"id": "other"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                try:
                    self.asked.append(peer.recv(65536))
                    peer.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                except OSError:
                    continue


@contextmanager
def foreigner(port: int, address: str = "127.0.0.1") -> Iterator[Foreigner]:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in address:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind((address, port))
    listener.listen(16)
    found = Foreigner(listener)
    thread = threading.Thread(target=found.serve)
    thread.start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


NOTE_PORT = """
port=; last=; for word in "$@"; do [ "$last" = --port ] && port=$word; last=$word; done
echo $port >> "$file.ports"
"""


def ports_of(daemon: FieldDaemon, name: str) -> list[int]:
    """The ports that the engine's lives were told, in order."""
    return [int(port) for port in (daemon.records / f"{name}.ports").read_text().split()]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_br_405_a_port_that_somebody_holds_on_any_address_is_passed_over(
    address: str, home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    """S-44: three of four ports are taken, on one address each; the engine gets the fourth, and nobody else is asked."""
    with (
        foreigner(first, address) as one,
        foreigner(first + 1, address) as two,
        foreigner(first + 3, address) as three,
        serving(
            home,
            model("ash", tiny_models["ash"], fake={"text": "ours"}),
            more=limited(first),
            on_ports=True,
            prelude=NOTE_PORT,
        ) as daemon,
    ):
        answer = daemon.chat("ash")
        assert answer.status == 200, answer.body
        assert answer.text == "ours"
        assert set(ports_of(daemon, "ash")) == {first + 2}
        assert one.asked == two.asked == three.asked == []


MEETING = (
    NOTE_PORT
    + """
case "$file" in ash)
  n=$(cat ash.pids | wc -l)
  if [ "$n" -le "$(cat races)" ]; then
    echo $port > port.tmp && mv port.tmp "port.$n"
    while [ ! -e "taken.$n" ]; do sleep 0.02; done
  fi;;
esac
"""
)


@contextmanager
def thief(records: Path, races: int, *, listens: bool = True) -> Iterator[list[Foreigner]]:
    """Takes each chosen port between the daemon's test of it and the engine's bind, so many times."""
    (records / "races").write_text(str(races))
    taken: list[Foreigner] = []
    with _Holders() as holders:

        def steal() -> None:
            for number in range(1, races + 1):
                told = records / f"port.{number}"
                until(told.exists, 30, f"port {number} is chosen")
                one = holders.take(int(told.read_text()))
                taken.append(one)  # first: a listener is seen, and the case may be over, at once
                if listens:
                    holders.listen(one)
                (records / f"taken.{number}").touch()

        stealing = Later(steal)
        yield taken
        stealing.result(35)


class _Holders:
    def __enter__(self) -> Self:
        self._held: list[Foreigner] = []
        self._serving: list[tuple[Foreigner, threading.Thread]] = []
        return self

    def take(self, port: int) -> Foreigner:
        listener = socket.socket()
        self._held.append(Foreigner(listener))
        listener.bind(("127.0.0.1", port))
        return self._held[-1]

    def listen(self, one: Foreigner) -> None:
        one.listener.listen(16)
        thread = threading.Thread(target=one.serve)
        thread.start()
        self._serving.append((one, thread))

    def __exit__(self, *_: object) -> None:
        for one, thread in self._serving:
            one.listener.shutdown(socket.SHUT_RDWR)
            thread.join()
        for one in self._held:
            one.listener.close()


@pytest.mark.parametrize(("behaviour", "listens"), [("exit", True), ("exit", False), ("stay", True), ("late", True)])
def test_br_405_a_lost_race_for_a_port_is_run_again_on_another(
    behaviour: str, listens: bool, home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    """S-44, S-45: whether the engine leaves, stays without a port or tries on; the stranger is never asked anything."""
    text = model("ash", tiny_models["ash"], fake={"port_busy": behaviour, "text": "ours"})
    with (
        serving(home, text, more=limited(first), on_ports=True, prelude=MEETING) as daemon,
        thief(daemon.records, 2, listens=listens) as taken,
    ):
        answer = daemon.chat("ash")
        assert answer.status == 200, answer.body
        assert answer.text == "ours"
        ports = ports_of(daemon, "ash")
        assert len(ports) == 3
        assert len(set(ports)) == 3
        assert [one.asked for one in taken] == [[], []]
        assert len(daemon.sessions("ash")) == 1


def test_br_405_three_lost_races_are_a_clear_failure(home: Path, first: int, tiny_models: dict[str, Path]) -> None:
    text = model("ash", tiny_models["ash"], fake={"port_busy": "stay"}, load_timeout_s=20)
    with (
        serving(home, text, more=limited(first), on_ports=True, prelude=MEETING) as daemon,
        thief(daemon.records, 3) as taken,
    ):
        answer = daemon.chat("ash")
        assert answer.status == 503, answer.body
        assert answer.error["code"] == "port_in_use"
        assert str(taken[-1].listener.getsockname()[1]) in answer.error["message"], answer.body
        assert len(daemon.pids("ash")) == 3
        assert [one.asked for one in taken] == [[], [], []]
        until(lambda: daemon.reserved() == 0, 10, "the last try is cleared away")


def test_br_405_an_engine_that_binds_late_is_waited_for(home: Path, first: int, tiny_models: dict[str, Path]) -> None:
    text = model("ash", tiny_models["ash"], fake={"load": "2s@refuse", "text": "ours"})
    with serving(home, text, more=limited(first), on_ports=True, prelude=NOTE_PORT) as daemon:
        assert daemon.chat("ash").text == "ours"
        assert len(daemon.pids("ash")) == 1


def fixed(path: Path, port: int, **env: str) -> dict[str, object]:
    return {
        "reference": f"file:{path}", "slots": 1, "context_tokens": 1024, "declared_bytes": 100 << 20,
        "stop_grace_s": 1, "fixed_port": port, "env": env,
    }  # fmt: skip


def test_br_405_a_port_that_the_user_fixed_is_never_changed_and_its_holder_is_named(
    home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    """S-44: a clear error while it is held; the same port once it is free."""
    with serving(home, model("birch", tiny_models["birch"]), prelude=NOTE_PORT) as daemon:
        assert daemon.control("PUT", "/v1/deployments/ash", fixed(tiny_models["ash"], first)).status == 200
        with foreigner(first) as stranger:
            answer = daemon.chat("ash")
            assert answer.status == 503, answer.body
            assert answer.error["code"] == "port_in_use"
            assert str(first) in answer.error["message"]
            assert re.search(r"pytest|python|pid \d+", answer.error["message"]), answer.body
            assert daemon.pids("ash") == []
            assert stranger.asked == []
        assert daemon.order("ash", "load")["state"] == "succeeded"
        assert daemon.chat("ash").status == 200
        assert ports_of(daemon, "ash") == [first]


@pytest.mark.parametrize("behaviour", ["exit", "stay"])
def test_br_405_a_fixed_port_that_is_lost_at_the_last_moment_fails_without_another_try(
    behaviour: str, home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    with (
        serving(home, model("birch", tiny_models["birch"]), prelude=MEETING) as daemon,
        thief(daemon.records, 1) as taken,
    ):
        spec = fixed(tiny_models["ash"], first, FAKE_PORT_BUSY=behaviour)
        assert daemon.control("PUT", "/v1/deployments/ash", spec).status == 200
        answer = daemon.chat("ash")
        assert answer.status == 503, answer.body
        assert answer.error["code"] == "port_in_use"
        assert set(ports_of(daemon, "ash")) == {first}
        assert taken[0].asked == []


def test_br_405_a_fixed_port_is_used_again_by_the_next_life_at_once(
    home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    """Closed connections linger on the port for a minute; that is no other holder."""
    with serving(home, model("birch", tiny_models["birch"]), prelude=NOTE_PORT) as daemon:
        for words in ("first", "second"):
            spec = fixed(tiny_models["ash"], first, FAKE_TEXT=words)
            assert daemon.control("PUT", "/v1/deployments/ash", spec).status == 200
            answer = daemon.chat("ash")
            assert answer.status == 200, answer.body
            assert answer.text == words
        assert ports_of(daemon, "ash") == [first, first]


def test_br_405_an_engine_on_a_port_listens_on_the_loopback_alone(
    home: Path, first: int, tiny_models: dict[str, Path]
) -> None:
    with serving(
        home, model("ash", tiny_models["ash"]), more=limited(first), on_ports=True, prelude=NOTE_PORT
    ) as daemon:
        assert daemon.chat("ash").status == 200
        (port,) = ports_of(daemon, "ash")
        rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
        listening = [row[1] for row in rows if len(row) > 3 and row[3] == "0A" and row[1].endswith(f":{port:04X}")]
        assert listening == [f"0100007F:{port:04X}"]
