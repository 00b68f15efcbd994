"""Starts a real llama.cpp exactly as the adapter says, and talks to it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.domain.context import LaunchPlan
from stoker.domain.footprint import Footprint
from stoker.domain.models import LayerGroup, LayerKind
from stoker.engines.llama_cpp.adapter import ADAPTER
from stoker.engines.llama_cpp.facts import ID
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.ids import Generation
from stoker.ports.engines import Accepted, Build, ExitSeen, ReadySeen, Seen, Site, Verdict
from stoker.ports.units import Endpoint, Exit
from stoker.testing.model_zoo import facts

TOKEN = "planted-token-0123456789abcdef-tail"
FACTS = facts(LayerGroup(1, LayerKind.FULL, 1, 64, 64), context_native=8192, vocab_size=288, has_chat_template=True)
USER = [{"role": "user", "content": "hi"}]


def plan(**members: object) -> LaunchPlan:
    values: dict[str, object] = {
        "engine": ID, "deployment": "tiny", "model_path": "", "facts": FACTS, "settings": LlamaCppSettings(),
        "context_tokens": 1024, "slots": 2, "kv_type_k": "f16", "kv_type_v": "f16", "flash_attention": True,
        "batch_tokens": 512, "micro_batch_tokens": 256, "gpu_layers": 0, "threads": 1, "use_mmap": True,
        "cache_ram_bytes": 0, "checkpoints": 0, "footprint": Footprint(()),
    }  # fmt: skip
    return LaunchPlan(**{**values, **members})


def until(condition: Callable[[], object], what: str, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {limit_s} s"
        time.sleep(0.01)


class Engine:
    """One life. ``lines`` reads its log: what the launcher prints, then what llama.cpp prints."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: Endpoint, folder: Path, plan_: LaunchPlan) -> None:
        self.process, self.endpoint, self.folder, self.plan = process, endpoint, folder, plan_

    def lines(self) -> tuple[str, ...]:
        return tuple((self.folder / "log").read_text("utf-8", "replace").splitlines())

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=10)
        if self.endpoint.socket:
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            line.settimeout(10)
            try:
                line.connect(self.endpoint.socket)
            except OSError:
                line.close()
                raise
            connection.sock = line
        else:
            connection.sock = socket.create_connection((self.endpoint.host, self.endpoint.port), 10)
        return connection

    def ask(self, connection: http.client.HTTPConnection, path: str, body: object = None, token: str = TOKEN) -> None:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, headers)

    def call(self, path: str, body: object = None, token: str = TOKEN) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            self.ask(connection, path, body, token)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        assert self.process.poll() is None, "\n".join(self.lines()[-12:])
        probe = ADAPTER.startup(self.plan, None).probe
        try:
            status, body = self.call(probe.path)
        except OSError:
            return False
        return status == probe.status and probe.body_has in body

    def wait_ready(self) -> Accepted:
        until(self.is_healthy, "ready")
        seen = self.seen()
        bodies = {path: self.call(path)[1] for path in ADAPTER.startup(self.plan, None).also}
        accepted = ADAPTER.judge_ready(ReadySeen(bodies, seen, self.plan))
        assert isinstance(accepted, Accepted), accepted
        return accepted

    def seen(self) -> Seen:
        seen = Seen()
        for line in self.lines():
            seen = ADAPTER.read_line(line, seen)
        return seen

    def busy(self) -> int:
        return sum(slot["is_processing"] for slot in json.loads(self.call("/slots")[1]))

    def term(self) -> float:
        """Send TERM and wait; seconds until it was gone."""
        started = time.monotonic()
        self.process.terminate()
        self.process.wait(30)
        return time.monotonic() - started

    def verdict(self) -> Verdict:
        """Why it ended by itself."""
        status = self.process.wait(20)
        end = Exit(status if status >= 0 else None, -status if status < 0 else None, False, 0.0, "engine")
        return ADAPTER.explain(ExitSeen(end, "starting", self.lines(), self.plan))


@contextmanager
def started(
    model: Path | str,
    plan_: LaunchPlan | None = None,
    *,
    program: str | None = None,
    build: Build | None = None,
    tcp: bool = False,
    port: int = 0,
) -> Iterator[Engine]:
    """An engine on ``model``; ended at the end, whatever happened. ``program``: a ``llama-server``, else the wheel."""
    plan_ = plan_ or plan()
    folder = Path(tempfile.mkdtemp(prefix="st-"))
    (folder / "slots").mkdir()
    site = Site(
        unit_kind="process",
        executable=program or sys.executable,
        site_kind="binary" if program else "embedded",
        model_path=str(model),
        served_name="tiny",
        generation=Generation(7),
        life_dir=str(folder),
        cache_dir=str(folder),
        slots_dir=str(folder / "slots"),
        endpoint=Endpoint(port=(port or free_port()) if tcp else 0),
        token=TOKEN,
        build=build,
    )
    launch = ADAPTER.launch(plan_, site)
    for name, (text, _) in launch.files.items():
        (folder / name).write_text(text)
    argv = [item.replace("{port}", str(launch.endpoint.port)) for item in launch.argv]
    environment = {"PATH": os.defpath, "HOME": str(folder), "LANG": "C.UTF-8", **launch.env}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Engine(process, launch.endpoint, folder, plan_)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
