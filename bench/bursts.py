"""Bursts over more models than fit: is every request answered, how often is a model swapped, how long does it take?

Requests for 3 or 10 tiny models come all at once and in mixed order while there is room for one model. A burst is 12,
60 or 300 requests over 3 and over 10 models; all of them run again and again against one daemon, so each meets what the
last one left. An answer counts when it has status 200 and says the sentence that only its model says. The last line is
JSON; ``lost`` must be 0.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from harness import Daemon, ask, median, print_table, running
from stoker.testing.tiny_model import write_tiny_gguf

WORDS = ("ash", "birch", "cedar", "dogwood", "elm", "fir", "gum", "hazel", "ironwood", "juniper")
BURSTS = ((12, 3), (12, 10), (60, 3), (60, 10), (300, 3), (300, 10))
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def config(folder: Path) -> str:
    """Each model is declared at 100 MiB and the budget is 120."""
    text = (
        f'[store]\nfile_roots = ["{folder}"]\n[pools.ram]\nbudget_bytes = "120MiB"\n'
        "[queue]\nswap_bound_s = 2\nmax_waiting_total = 1000\n"
    )
    for word in WORDS:
        write_tiny_gguf(folder / f"{word}.gguf", text=f"This kettle burns {word} tonight.")
        text += (
            f'[models.{word}]\nreference = "file:{folder}/{word}.gguf"\nslots = 4\ncontext_tokens = 512\n'
            f'declared_bytes = "100MiB"\nmax_queued = 400\n[models.{word}.settings]\nthreads = 1\n'
        )
    return text


def chat(port: int, word: str) -> str:
    """Empty when it was answered as it should be, else what went wrong."""
    try:
        status, body = ask(port, "POST", "/v1/chat/completions", {**CHAT, "model": word})
    except OSError as failed:
        return repr(failed)
    if status == 200 and f"burns {word} " in json.loads(body)["choices"][0]["message"]["content"]:
        return ""
    return f"{status}: {body[:300].decode(errors='replace')}"


def burst(port: int, words: list[str]) -> tuple[float, list[str]]:
    """Seconds from the first request to the last answer, and one result a request."""
    results = ["never ended"] * len(words)
    gate = threading.Barrier(len(words) + 1)

    def one(index: int) -> None:
        gate.wait()
        results[index] = chat(port, words[index])

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(words))]
    for thread in threads:
        thread.start()
    gate.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    return time.monotonic() - began, results


def lives(daemon: Daemon) -> int:
    """How many lives the daemon has begun so far, from its journal."""
    (path,) = daemon.home.rglob("journal.sqlite")
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
        return int(journal.execute("select count(*) from sessions").fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="2 repeats")
    parser.add_argument("--seed", type=int, default=1, help="of the order of requests")
    args = parser.parse_args()
    repeats = 2 if args.quick else args.repeats
    order = random.Random(args.seed)
    seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in BURSTS}
    starts: Counter[tuple[int, int]] = Counter()
    answered: Counter[tuple[int, int]] = Counter()
    lost: Counter[tuple[int, int]] = Counter()
    with tempfile.TemporaryDirectory(prefix="stoker-bursts-") as folder, running(config(Path(folder))) as daemon:
        for _ in range(repeats):
            for shape in BURSTS:
                requests, models = shape
                words = [WORDS[index % models] for index in range(requests)]
                order.shuffle(words)
                before = lives(daemon)
                took_s, results = burst(daemon.port, words)
                seconds[shape].append(took_s)
                starts[shape] += lives(daemon) - before
                answered[shape] += results.count("")
                for result in filter(None, results):
                    lost[shape] += 1
                    sys.stderr.write(f"{shape}: {result}\n")
    print_table(
        ("requests", "models", "answered", "lost", "starts each", "median s", "worst s"),
        [
            (*shape, answered[shape], lost[shape], starts[shape] / repeats, median(seconds[shape]), max(seconds[shape]))
            for shape in BURSTS
        ],
    )
    figures = {
        "bench": "bursts",
        "answered": answered.total(),
        "lost": lost.total(),
        "repeats": repeats,
        "starts": starts.total(),
        "wall_s": round(sum(map(sum, seconds.values())), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
