"""How long the daemon takes to be ready, and how much memory it holds when idle.

``ready_s``: from exec to a 200 of ``/readyz``, in a new home, median. ``idle_rss_mb``: resident memory of the daemon
process, in units of 10⁶ bytes, a while after that; nobody has called the control API yet. ``idle_pss_mb`` counts pages
shared with other processes by share. ``control_rss_mb``: resident memory once the control API has been asked. The first
start compiles bytecode and does not count.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import time
from contextlib import closing

import psutil

from harness import Daemon, median, print_table, running

SETTLE_S = 10.0


def ask_control(daemon: Daemon) -> None:
    """One question on the control socket, as the command line asks it."""
    (path,) = (str(found) for found in daemon.home.rglob("*.sock") if found.is_socket())
    with closing(http.client.HTTPConnection("localhost", timeout=30)) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(path)
        connection.request("GET", "/v1/status")
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"the control API answered {answer.status}: {answer.read()[:500]!r}")
        answer.read()


def measure(settle_s: float) -> tuple[float, ...]:
    with running() as daemon:
        process = psutil.Process(daemon.process.pid)
        spent = process.cpu_times()
        time.sleep(settle_s)
        held = process.memory_full_info()
        helpers = process.children(recursive=True)
        beside = sum(helper.memory_full_info().uss for helper in helpers)
        began = time.monotonic()
        ask_control(daemon)
        first_s = time.monotonic() - began
        after = process.memory_info().rss
        cpu_s = spent.user + spent.system
        return daemon.ready_s, cpu_s, held.rss / 1e6, held.pss / 1e6, beside / 1e6, first_s, after / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds idle before memory is read")
    parser.add_argument("--quick", action="store_true", help="5 runs, 2 s idle")
    args = parser.parse_args()
    runs, settle_s = (5, 2.0) if args.quick else (args.runs, args.settle)
    measure(0.0)
    rows = [measure(settle_s) for _ in range(runs)]
    print_table(
        ("ready s", "its CPU s", "RSS MB", "PSS MB", "helper's own MB", "first control s", "RSS after it MB"), rows
    )
    middle = [median(column) for column in zip(*rows, strict=True)]
    figures = {
        "bench": "startup",
        "ready_s": round(middle[0], 3),
        "ready_best_s": round(min(row[0] for row in rows), 3),
        "ready_cpu_s": round(middle[1], 2),
        "idle_rss_mb": round(middle[2], 1),
        "idle_pss_mb": round(middle[3], 1),
        "helpers_mb": round(middle[4], 1),
        "first_control_s": round(middle[5], 3),
        "control_rss_mb": round(middle[6], 1),
        "runs": runs,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
