"""How long the daemon takes to be ready, and how much memory it holds when idle.

``ready_s``: from exec to a 200 of ``/readyz``, median. ``idle_rss_mb``: resident memory of the daemon process, in units
of 10⁶ bytes, ten seconds after that. What its helper processes hold is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import time

import psutil

from harness import median, print_table, running

SETTLE_S = 10.0


def measure(settle_s: float) -> tuple[float, float, float, int]:
    with running() as daemon:
        time.sleep(settle_s)
        process = psutil.Process(daemon.process.pid)
        helpers = process.children(recursive=True)
        held = sum(helper.memory_full_info().uss for helper in helpers)
        return daemon.ready_s, process.memory_info().rss / 1e6, held / 1e6, len(helpers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds idle before memory is read")
    args = parser.parse_args()
    rows = [measure(args.settle) for _ in range(args.runs)]
    print_table(("ready s", "daemon RSS MB", "helpers' own MB", "helpers"), rows)
    figures = {
        "bench": "startup",
        "ready_s": round(median([row[0] for row in rows]), 3),
        "idle_rss_mb": round(median([row[1] for row in rows]), 1),
        "helpers_mb": round(median([row[2] for row in rows]), 1),
        "runs": args.runs,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
