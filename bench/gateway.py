"""What the gateway costs beside nginx, as a plain reverse proxy to the same engine.

Processor time is that of the proxy's processes alone, user and system, from ``/proc``. *Per request*: small chat
requests on kept connections. *Per chunk*: hundreds of streams at once, each byte of them checked. *Added*: seconds of a
request through the proxy less those of one straight to the engine, one at a time. The three take turns within one run.
The engine costs next to nothing; kernel, runtime and gateway are the real ones. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from harness import end, free_port, median, print_table, wait_for
from traffic import call_many, listen_many, serve_engine

NO_NGINX = 3
CONNECTIONS = 16
WARM_REQUESTS = 300
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
NGINX_CONF = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 100000000;
    upstream engine {{ server 127.0.0.1:{engine}; keepalive 1024; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@dataclass
class Proxy:
    """One way to the engine and what it cost so far. ``pid`` None: no proxy at all."""

    name: str
    port: int
    pid: int | None = None
    requests: int = 0
    request_cpu_s: float = 0.0
    chunks: int = 0
    chunk_cpu_s: float = 0.0
    chunk_reads: int = 0
    lost_bytes: int = 0
    rates: list[float] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)

    def cpu_s(self) -> float:
        """User and system seconds of the process and its children."""
        return 0.0 if self.pid is None else sum(map(_cpu_s, _family(self.pid)))

    @property
    def per_request_us(self) -> float:
        return 1e6 * self.request_cpu_s / max(1, self.requests)

    @property
    def per_chunk_us(self) -> float:
        return 1e6 * self.chunk_cpu_s / max(1, self.chunks)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _family(int(child))


# -- processes -----------------------------------------------------------------------------------------------------


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        if process.poll() is None:
            end(process)


@contextmanager
def proxies() -> Iterator[tuple[Proxy, Proxy, Proxy]]:
    """The engine, and in front of it nginx and the gateway."""
    nginx_program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if nginx_program is None:
        print("nginx is not installed, so there is nothing to compare with (Debian: apt install nginx-light).")
        raise SystemExit(NO_NGINX)
    engine_port, nginx_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="stoker-gateway-") as name:
        conf = Path(name) / "nginx.conf"
        conf.write_text(NGINX_CONF.format(folder=name, engine=engine_port, port=nginx_port))
        here = Path(__file__)
        engine_argv = (sys.executable, str(here), "--engine", str(engine_port))
        gateway_argv = (sys.executable, str(here.with_name("gateway_daemon.py")), str(engine_port))
        with (
            _ended(subprocess.Popen(engine_argv)) as engine,
            _ended(subprocess.Popen((nginx_program, "-c", str(conf), "-p", name, "-e", f"{name}/error.log"))) as nginx,
            _ended(subprocess.Popen(gateway_argv, stdout=subprocess.PIPE)) as gateway,
        ):
            assert gateway.stdout is not None
            gateway_port = int(gateway.stdout.readline() or b"0")
            wait_for(engine_port, "/", engine)
            wait_for(nginx_port, "/", nginx)
            wait_for(gateway_port, "/readyz", gateway)
            yield (
                Proxy("straight", engine_port),
                Proxy("nginx", nginx_port, nginx.pid),
                Proxy("gateway", gateway_port, gateway.pid),
            )


# -- measuring -----------------------------------------------------------------------------------------------------


async def measure_requests(proxy: Proxy, requests: int) -> None:
    began, before = asyncio.get_running_loop().time(), proxy.cpu_s()
    await call_many(proxy.port, requests, CONNECTIONS)
    proxy.request_cpu_s += proxy.cpu_s() - before
    proxy.requests += requests
    proxy.rates.append(requests / (asyncio.get_running_loop().time() - began))


async def measure_streams(proxy: Proxy, streams: int, chunks: int) -> None:
    before = proxy.cpu_s()
    arrived = await listen_many(proxy.port, streams, chunks)
    proxy.chunk_cpu_s += proxy.cpu_s() - before
    proxy.chunks += streams * chunks
    proxy.chunk_reads += arrived.reads
    proxy.lost_bytes += arrived.lost_bytes
    for problem in arrived.broken[:5]:
        print(f"{proxy.name}: {problem}")


async def measure(three: tuple[Proxy, ...], args: argparse.Namespace) -> None:
    for proxy in three:
        await call_many(proxy.port, WARM_REQUESTS, CONNECTIONS)
    for turn in range(args.rounds):
        for proxy in three[turn % 3 :] + three[: turn % 3]:
            await measure_requests(proxy, args.requests)
        for _ in range(5):
            for proxy in three:
                proxy.took_ms += [1000 * s for s in await call_many(proxy.port, args.alone // 5, 1)]
    for turn in range(args.stream_rounds):
        for proxy in three[1:][:: 1 - 2 * (turn % 2)]:
            await measure_streams(proxy, args.streams, args.chunks)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def report(straight: Proxy, nginx: Proxy, gateway: Proxy, args: argparse.Namespace) -> dict[str, object]:
    def added(proxy: Proxy, share: float) -> float:
        return percentile(proxy.took_ms, share) - percentile(straight.took_ms, share)

    rows = [
        (
            proxy.name, proxy.per_request_us, median(proxy.rates), proxy.per_chunk_us,
            proxy.chunk_reads / max(1, proxy.chunks), median(proxy.took_ms), added(proxy, 0.5), added(proxy, 0.99),
            proxy.lost_bytes,
        )
        for proxy in (straight, nginx, gateway)
    ]  # fmt: skip
    print_table(
        (
            "way", "CPU µs/request", "requests/s", "CPU µs/chunk", "reads/chunk", "median ms", "added median ms",
            "added p99 ms", "lost bytes",
        ),
        rows,
    )  # fmt: skip
    return {
        "bench": "gateway",
        "cpu_per_request_ratio_nginx": round(gateway.per_request_us / nginx.per_request_us, 2),
        "cpu_per_chunk_ratio_nginx": round(gateway.per_chunk_us / nginx.per_chunk_us, 2),
        "added_median_ms": round(added(gateway, 0.5), 3),
        "added_p99_ms": round(added(gateway, 0.99), 3),
        "lost_bytes": gateway.lost_bytes,
        "cpu_us_per_request": round(gateway.per_request_us, 1),
        "cpu_us_per_chunk": round(gateway.per_chunk_us, 1),
        "nginx_added_median_ms": round(added(nginx, 0.5), 3),
        "streams": args.streams,
        "requests": gateway.requests,
        "chunks": gateway.chunks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="turns of small requests (%(default)s)")
    parser.add_argument("--requests", type=int, default=5000, help="small requests in one turn (%(default)s)")
    parser.add_argument("--alone", type=int, default=500, help="requests one at a time in one turn (%(default)s)")
    parser.add_argument("--stream-rounds", type=int, default=3, help="turns of streams (%(default)s)")
    parser.add_argument("--streams", type=int, default=500, help="streams at once (%(default)s)")
    parser.add_argument("--chunks", type=int, default=200, help="events of one stream (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer turns; under 50 s")
    parser.add_argument("--engine", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine is not None:
        uvloop.run(serve_engine(args.engine))
        return
    if args.quick:
        args.rounds, args.requests, args.stream_rounds, args.chunks = 4, 4000, 2, 100
    with proxies() as three:
        uvloop.run(measure(three, args))
        figures = report(*three, args)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
