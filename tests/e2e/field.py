"""A daemon for the field cases: models on the fake engine, records of every engine's life, and the common check.

Every case ends in `FieldDaemon.check`: the daemon answers, nothing is left that its state does not show, and no
traceback reached a client. Engines write what happened to them into records beside the home; each engine's start also
looks for older engines of the same model, so that an overlap of two lives is seen by the engines themselves.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running import Running, is_zombie, until

from stoker.hosts.process.procfs import marked

ENGINE = "stoker.testing.fake_engine"
MESSAGES = [{"role": "user", "content": "hello"}]
MOVING = {"reserved", "preparing", "starting", "initializing", "draining", "stopping"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes
    took_s: float

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json()["error"]
        assert isinstance(found, dict)
        return found

    @property
    def text(self) -> str:
        """What a plain chat answer says."""
        return str(self.json()["choices"][0]["message"]["content"])

    def events(self) -> list[Any]:
        """The data of a stream's events, in order; the end marker stays text."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def model(
    name: str,
    path: Path,
    *,
    fake: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    **keys: object,
) -> str:
    """The configuration of one model on the fake engine; ``fake`` are its options, ``env`` further variables."""
    text = _toml
    rows = {"reference": f"file:{path}", "slots": 1, "context_tokens": 1024, "declared_bytes": "100MiB"}
    rows |= {"stop_grace_s": 1, **keys}
    lines = [f"[models.{text(name)}]", *(f"{key} = {text(value)}" for key, value in rows.items())]
    options = {**(env or {}), **{f"FAKE_{option.upper()}": str(value) for option, value in (fake or {}).items()}}
    lines += [f"[models.{text(name)}.env]", *(f"{key} = {text(value)}" for key, value in options.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass
class FieldDaemon:
    """``room`` is the budget in MiB: 120 fits one model, 400 fits three.

    ``on_ports``: the engine's help names no Unix sockets, as that of older builds, so its lives listen on ports.
    ``further``: keys for the sections that every daemon of these tests has.
    """

    home: Path
    models: str
    room: int = 120
    more: str = ""
    program: Sequence[str] = ("-m", ENGINE)
    prelude: str = ""
    own_engine: bool = True
    on_ports: bool = False
    control_tcp: bool = False
    further: Mapping[str, str] = field(default_factory=dict)
    seen: list[bytes] = field(default_factory=list)
    running: Running = field(init=False)

    def __post_init__(self) -> None:
        self.records = self.home / "records"
        self.records.mkdir(mode=0o700)
        engine = f'[engines.llama-cpp]\npath = "{self.install()}"\n' if self.own_engine else ""
        config = f'{self.more}\n[pools.ram]\nbudget_bytes = "{self.room}MiB"\n{engine}'
        self.running = Running(self.home, config + self.models)
        file = self.home / "config" / "config.toml"
        for section, keys in self.further.items():
            file.write_text(file.read_text().replace(f"[{section}]\n", f"[{section}]\n{keys}\n", 1))
        if self.control_tcp:
            file.write_text(file.read_text().replace('tcp = ""', 'tcp = "127.0.0.1:0"', 1))

    def install(self) -> Path:
        """An executable that knows its own pid, notes older ones of its name that are alive, and becomes the engine."""
        path = self.home / "llama-server"
        words = shlex.join([sys.executable, "-I", *self.program, "--flavour", "llama-cpp"])
        shown = "2>&1 | grep -vi 'unix *socket'" if self.on_ports else ""
        path.write_text(
            "#!/bin/sh\n"
            'name=; for word in "$@"; do [ "$last" = --alias ] && name=$word; last=$word; done\n'
            f'if [ -z "$name" ]; then {words} "$@" {shown}; exit; fi\n'
            f"cd {shlex.quote(str(self.records))} && file=$(printf %s \"$name\" | tr -c 'a-zA-Z0-9\\n' _)\n"
            'for old in $(cat "$file.pids" all.pids 2>/dev/null); do '
            'kill -0 "$old" 2>/dev/null && echo "$old $$ $file" >> overlaps; done\n'
            'echo $$ >> "$file.pids"; [ -n "$ONE_AT_A_TIME" ] && echo $$ >> all.pids\n'
            f"{self.prelude}\n"
            f'exec {words} --record "{self.records}/$file.jsonl" "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o755)
        return path

    # what engines noted

    def record(self, name: str, *events: str) -> list[dict[str, Any]]:
        file = self.records / f"{plain(name)}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if not events or line["event"] in events]

    def pids(self, name: str) -> list[int]:
        file = self.records / f"{plain(name)}.pids"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def helpers(self, name: str) -> list[int]:
        return [line["child"] for line in self.record(name, "child")]

    def overlaps(self) -> list[str]:
        file = self.records / "overlaps"
        return file.read_text().splitlines() if file.exists() else []

    def raw_requests(self, name: str, method: str = "POST") -> list[str]:
        return [line["raw"] for line in self.record(name, "request") if line["raw"].startswith(method)]

    # speaking to it

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None, wait_s: float = 60
    ) -> Answer:
        host, port = self.running.address.removeprefix("http://").split(":")
        return self._exchange(http.client.HTTPConnection(host, int(port), timeout=wait_s), method, path, body, headers)

    def control(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        connection = _UnixConnection(str(self.home / "run" / "control.sock"))
        return self._exchange(connection, method, path, body, headers)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None,
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"content-type": "application/json"} if data is not None else {}
        began = time.monotonic()
        try:
            connection.request(method, path, data, {**given, **(headers or {})})
            answer = connection.getresponse()
            try:
                got = answer.read()
            except http.client.IncompleteRead as broken:
                got = broken.partial
        finally:
            connection.close()
        self.seen.append(got)
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, got, time.monotonic() - began)

    def chat(self, name: str, **more: Any) -> Answer:
        return self.ask("POST", "/v1/chat/completions", {"model": name, "messages": MESSAGES, **more})

    def say(self, name: str, text: str, **more: Any) -> Answer:
        return self.chat(name, messages=[{"role": "user", "content": text}], **more)

    def view(self, path: str) -> Any:
        answer = self.control("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()

    def sessions(self, name: str | None = None) -> list[dict[str, Any]]:
        items = self.view("/v1/sessions")["items"]
        return [each for each in items if each["phase"] != "gone" and name in {None, each["deployment"]}]

    def reserved(self) -> int:
        return sum(int(pool["reserved_bytes"]) for pool in self.view("/v1/pools")["items"])

    def order(self, name: str, verb: str, body: object = None, wait_s: int = 30) -> dict[str, Any]:
        """A command that makes an operation, to its end."""
        path = f"/v1/deployments/{name}/-/{verb}"
        answer = self.control("POST", path, body, {"prefer": f"wait={wait_s}"})
        assert answer.status in {200, 202}, answer.body
        found: dict[str, Any] = answer.json()
        return found

    # the end of every case

    def is_quiet(self) -> bool:
        status = self.view("/v1/status")
        return not (status["waiting"] or status["in_flight"] or MOVING & set(status["sessions"]))

    def engines_alive(self) -> set[int]:
        pids = {int(pid) for file in self.records.glob("*.pids") for pid in file.read_text().split()}
        children = {line["child"] for file in self.records.glob("*.jsonl") for line in self.record(file.stem, "child")}
        return {pid for pid in pids | children if not is_zombie(pid)}

    def is_shown_truly(self) -> bool:
        """A death is noticed by push, which takes its milliseconds; after them each life has its engine."""
        lives, alive = len(self.sessions()), len(self.engines_alive())
        return alive >= lives if lives else not alive

    def check(self) -> None:
        """Alive and answering; nothing runs, listens or is reserved that the state does not show; no traceback."""
        assert self.running.is_ready()
        until(self.is_quiet, 30, f"a quiet daemon; {self.view('/v1/status')}")
        assert self.view("/v1/status")["state"] == "ready"
        until(self.is_shown_truly, 5, f"as many engines as lives: {self.engines_alive()}, {self.sessions()}")
        lives = {each["generation"]: each for each in self.sessions()}
        shown = {int(generation) for _, generation in marked(self.running.scope())}
        assert shown <= set(lives), f"processes of lives that are not shown: {shown - set(lives)}"
        assert self.reserved() == sum(sum(each["reservation"].values()) for each in lives.values())
        assert self.overlaps() == []
        assert self.running.stop() == 0
        assert not self.running.survivors()
        assert not self.running.open_lives()
        assert not list(self.home.glob("run/lives/*"))
        assert not self.engines_alive()
        self._check_listeners()
        for text in [*self.seen, self.running.log.read_bytes(), *map(_bytes, self.home.glob("data/logs/daemon*"))]:
            assert b"Traceback" not in text, text[-4000:].decode(errors="replace")

    def _check_listeners(self) -> None:
        for file in self.records.glob("*.jsonl"):
            for line in self.record(file.stem, "listening"):
                kind, _, where = line["address"].partition("://")
                if kind == "unix":
                    assert not Path(where).exists()
                else:
                    host, port = where.rsplit(":", 1)
                    with socket.socket() as probe:
                        assert probe.connect_ex((host, int(port))) != 0, f"somebody still listens on {where}"


def plain(name: str) -> str:
    """How the engine's program spells a model's name in the names of its files: byte by byte."""
    return "".join(chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else "_" for byte in name.encode())


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


@contextmanager
def serving(home: Path, models: str, **more: Any) -> Iterator[FieldDaemon]:
    """A started daemon; at the end of the block the common check, and in any case its death."""
    daemon = FieldDaemon(home, models, **more)
    daemon.running.start()
    try:
        daemon.view("/v1/status")  # the control API is built for its first caller
        yield daemon
        daemon.check()
    finally:
        process = daemon.running.process
        if process is not None and process.poll() is None:
            daemon.running.kill()
        until(lambda: not daemon.running.survivors(), 10, "the guardians clear up behind a killed daemon")


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Run every act in a thread of its own from one barrier; results in order, failures raised here."""
    results: list[Any] = [None] * len(acts)
    barrier = threading.Barrier(len(acts))

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = acts[index]()
        except Exception as failed:
            results[index] = failed

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@dataclass
class Later:
    """Something that runs beside the test; ``result`` waits for it."""

    act: Callable[[], Any]
    found: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.found.append(self.act())
        except Exception as failed:
            self.found.append(failed)

    def is_over(self) -> bool:
        return not self.thread.is_alive()

    def result(self, seconds: float = 60) -> Any:
        self.thread.join(seconds)
        assert self.is_over(), "it did not end"
        if isinstance(self.found[0], Exception):
            raise self.found[0]
        return self.found[0]


def kill(pid: int) -> None:
    os.kill(pid, 9)
