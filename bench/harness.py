"""What the benchmarks share: a Stoker daemon in a folder of its own, plain HTTP, and how figures are printed.

The daemon is started from the same environment, with ``STOKER_HOME`` in a temporary folder and its own configuration,
and talks only through its public addresses. The last line a benchmark prints is one JSON object.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

BOUND_S = 60.0
POLL_S = 0.005
STOKER = Path(sys.executable).with_name("stoker")
BYTECODE = os.path.join(tempfile.gettempdir(), f"stoker-bench-bytecode-{os.getuid()}")


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """One request on a connection of its own; (0, b"") while nobody listens."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_S)) as connection:
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (ConnectionError, http.client.BadStatusLine):
            return 0, b""


def wait_for(port: int, path: str, process: subprocess.Popen[bytes]) -> float:
    """Seconds until ``path`` answers 200."""
    began = time.monotonic()
    while ask(port, "GET", path)[0] != 200:
        if process.poll() is not None or time.monotonic() - began > BOUND_S:
            raise SystemExit(f"{path} on port {port} never answered 200 (process status {process.poll()})")
        time.sleep(POLL_S)
    return time.monotonic() - began


def end(process: subprocess.Popen[bytes]) -> float:
    """Seconds from TERM to the end of the process."""
    began = time.monotonic()
    process.terminate()
    try:
        process.wait(BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    return time.monotonic() - began


class Daemon:
    """One running daemon. ``ready_s``: from exec to a 200 of ``/readyz``."""

    def __init__(self, home: Path, config: str) -> None:
        self.home, self.port = home, free_port()
        (home / "config").mkdir(exist_ok=True)
        (home / "config" / "config.toml").write_text(f'[gateway]\nport = {self.port}\n[control]\ntcp = ""\n{config}')
        self._log = open(home / "serve.log", "ab")  # noqa: SIM115 - closed in `stop`
        environ = {**os.environ, "STOKER_HOME": str(home), "PYTHONPYCACHEPREFIX": BYTECODE}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once, not at every start
        began = time.monotonic()
        self.process = subprocess.Popen((STOKER, "serve"), stdout=self._log, stderr=self._log, env=environ)
        wait_for(self.port, "/readyz", self.process)
        self.ready_s = time.monotonic() - began

    def stop(self) -> None:
        end(self.process)
        self._log.close()


@contextmanager
def running(config: str = "") -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", ignore_cleanup_errors=True) as folder:
        daemon = Daemon(Path(folder), config)
        try:
            yield daemon
        except BaseException:
            sys.stderr.write((Path(folder) / "serve.log").read_text(errors="replace")[-3000:])
            raise
        finally:
            daemon.stop()


def p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [header, *[[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]]
    widths = [max(len(str(row[column])) for row in cells) for column in range(len(header))]
    for row in cells:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
