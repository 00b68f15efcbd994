"""A real daemon for tests, in a home of its own: started, spoken to over HTTP, killed, and looked for survivors."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.hosts.process.procfs import identify, marked
from stoker.ids import Scope
from stoker.journal.owner import read_owner

DRIVER = str(Path(__file__).with_name("killpoints.py"))


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of ``condition`` within a bound; polling, because the other side is another process."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


def is_zombie(pid: int) -> bool:
    """A dead process that only waits to be reaped counts as exited (S-41)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Running:
    def __init__(self, home: Path, config: str) -> None:
        self.home = home
        (home / "config").mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
        base = '[gateway]\nport = 0\n[control]\ntcp = ""\n[defaults.settings]\nthreads = 1\n'
        (home / "config" / "config.toml").write_text(base + config)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "out.log"

    @property
    def data(self) -> Path:
        return self.home / "data"

    def start(self, point: int = 0, *, wait: bool = True) -> None:
        environment = {**os.environ, "STOKER_HOME": str(self.home)}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, DRIVER, str(point)], env=environment, stdout=out, stderr=out, start_new_session=True
            )
        if wait:
            until(self.is_ready, 30, f"ready; {self.log.read_text()[-2000:]}")

    def is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon left with {self.process.returncode}: {self.log.read_text()[-3000:]}")
        owner = read_owner(str(self.data))
        return owner is not None and owner.pid == self.process.pid and owner.state == "ready"

    @property
    def address(self) -> str:
        owner = read_owner(str(self.data))
        assert owner is not None
        return owner.gateway_address

    def call(self, path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def chat(self, model: str, **more: Any) -> tuple[int, Any]:
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
        return self.call("/v1/chat/completions", body)

    def scope(self) -> Scope:
        with sqlite3.connect(f"file:{self.data}/journal.sqlite?mode=ro", uri=True) as journal:
            return Scope(journal.execute("select value from meta where name = 'scope'").fetchone()[0])

    def open_lives(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.data}/journal.sqlite?mode=ro", uri=True) as journal:
            return journal.execute("select generation, phase from sessions where phase != 'gone'").fetchall()

    def survivors(self) -> list[int]:
        """Processes that carry this scope's marker, and recorded guardians and mains that are still themselves."""
        found = [identity.pid for identity, _ in marked(self.scope())]
        for record in self.home.glob("run/lives/*/unit.json"):
            told = json.loads(record.read_text())
            for key in ("guardian", "main"):
                pid, start_time = told[key]
                known = identify(pid)
                if known is not None and known.start_time == start_time and not is_zombie(pid):
                    found.append(known.pid)
        return sorted(set(found))

    def wait_dead(self, seconds: float = 30) -> None:
        assert self.process is not None
        self.process.wait(timeout=seconds)

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=5)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=70)
