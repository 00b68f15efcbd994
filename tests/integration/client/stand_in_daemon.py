"""A small HTTP server that answers like a daemon: control routes on a Unix socket, a gateway on TCP.

What it answers is set by the test; what it was asked is kept in ``asked``.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stoker.errors import StokerError
from stoker.journal.owner import Owner, OwnerLock

# An answer: status and JSON tree, or a raiser of StokerError.
Route = Callable[["Asked"], tuple[int, Any]]


class Asked:
    def __init__(self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: Any) -> None:
        self.method, self.path, self.query, self.headers, self.body = method, path, query, headers, body

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


def problem(error: StokerError) -> tuple[int, dict[str, Any]]:
    return error.row.http_status, {
        "type": f"errors#{error.code}",
        "status": error.row.http_status,
        "code": str(error.code),
        "message": error.message,
        "remedy": error.remedy,
        "details": error.details,
        "request_id": "req_1",
    } | ({"retry_after_s": error.retry_after_s} if error.retry_after_s else {})


def operation(operation_id: str = "op_1", **members: Any) -> dict[str, Any]:
    made = {
        "operation_id": operation_id, "kind": "load", "subject": "tiny", "state": "running", "stage": None,
        "progress": None, "cancellable": True, "requested_by": "test", "created_at": 100.0, "started_at": 100.0,
        "ended_at": None, "error": None, "result": {}, "revision": 1,
    }  # fmt: skip
    return made | members


def deployment(name: str = "tiny", **members: Any) -> dict[str, Any]:
    made = {
        "name": name, "names": [name], "spec": {"reference": "file:/models/tiny.gguf", "keep_alive_s": 300.0},
        "origin": "file", "revision": 3, "state": "ready", "sessions": [7], "places": 1, "in_flight": 0, "waiting": 0,
        "estimate": {"ram": 1 << 30}, "hold": None, "last_error": None, "model": "tiny.gguf", "engine": "llama_cpp",
        "size_bytes": 98_362_432, "context_tokens": 8192, "last_used": 760.0,
    }  # fmt: skip
    return made | members


def session(generation: int = 7, **members: Any) -> dict[str, Any]:
    made = {
        "generation": generation, "deployment": "tiny", "replica": 0, "phase": "ready", "reason": None, "also": [],
        "since": 700.0, "engine": "llama_cpp", "installation": "llama_cpp-1",
        "unit": {"kind": "process", "id": f"stoker-s1-{generation}"}, "reservation": {"ram": 1 << 30}, "measured": {},
        "slots": 1, "width": 1, "in_flight": 0, "earmarked_for": None, "liveness": "alive", "context_tokens": 8192,
        "capabilities": ["chat"], "startup": None, "last_used": 760.0, "idle_deadline": 1240.0, "pinned": False,
        "upstream_auth": "token", "hardening_missing": [], "exit": None, "launch": {"argv_shown": [], "env_names": []},
        "confirmed_by": None, "unconfirmed": None,
    }  # fmt: skip
    return made | members


def status(**members: Any) -> dict[str, Any]:
    made = {
        "instance": "i1", "version": "9.9.9", "scope": "s1", "state": "ready", "started_at": "1970-01-01T00:00:00.000Z",
        "addresses": {"control": "/run/control.sock"}, "open": 2, "waiting": 1, "in_flight": 1,
        "sessions": {"ready": 1, "gone": 0},
        "pools": [
            {
                "pool_id": "ram", "kind": "ram", "device": None, "capacity_bytes": 24 << 30, "budget_bytes": 16 << 30,
                "budget_origin": "auto", "reserved_bytes": 4 << 30, "headroom_bytes": 12 << 30, "measured_bytes": None,
                "outside_bytes": 1 << 30, "overdraft_bytes": 0, "unconfirmed_bytes": 0, "reservations": [],
            }
        ],
        "config": {"revision": 1}, "warnings": [],
    }  # fmt: skip
    return made | members


class StandIn:
    """``routes`` by ``"METHOD /v1/path"``; ``streams`` are the lists of events that one connection each gets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = str(folder / "control.sock")
        self.asked: list[Asked] = []
        self.routes: dict[str, Route] = {}
        self.streams: list[list[dict[str, Any] | str]] = []
        self.chat: list[bytes] = []
        self.gateway = ""
        self.may_go_on = threading.Event()
        self.list("/v1/deployments", deployment())
        self.list("/v1/sessions", session())
        self.item("/v1/deployments/tiny", deployment())
        self.item("/v1/sessions/7", session())
        self.routes["GET /v1/status"] = lambda _: (200, status(addresses={"gateway": self.gateway}))

    def list(self, path: str, *items: dict[str, Any]) -> None:
        self.routes[f"GET {path}"] = lambda _: (200, {"items": list(items), "next": None})

    def item(self, path: str, tree: Any, *, method: str = "GET", code: int = 200) -> None:
        self.routes[f"{method} {path}"] = lambda _: (code, tree)

    def fail(self, path: str, error: StokerError, *, method: str = "GET") -> None:
        self.routes[f"{method} {path}"] = lambda _: problem(error)

    def requests(self, method: str, path: str) -> list[Asked]:
        return [one for one in self.asked if (one.method, one.path) == (method, path)]

    @contextmanager
    def serving(self) -> Iterator[StandIn]:
        control = _UnixServer(self.socket, _handler(self))
        gateway = _TcpServer(("127.0.0.1", 0), _handler(self))
        gateway.daemon_threads = False
        self.gateway = f"127.0.0.1:{gateway.server_address[1]}"
        servers = (control, gateway)
        threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.may_go_on.set()
            for server in servers:
                server.shutdown()
                server.server_close()
            for thread in threads:
                thread.join()

    @contextmanager
    def owning(self, data_dir: Path, state: str = "ready") -> Iterator[OwnerLock]:
        lock = OwnerLock.acquire(str(data_dir), Owner("i1", os.getpid(), "9.9.9", self.socket, self.gateway, state))
        try:
            yield lock
        finally:
            lock.release()


class _Quiet:
    """A client that leaves before its answer is no error of the server."""

    def handle_error(self, *arguments: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*arguments)


class _UnixServer(_Quiet, socketserver.ThreadingUnixStreamServer):
    pass


class _TcpServer(_Quiet, ThreadingHTTPServer):
    pass


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 2  # of an idle connection that a client forgot

        def log_message(self, *_: object) -> None:
            pass

        def address_string(self) -> str:
            return "local"

        def answer(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            asked = Asked(
                self.command, unquote(url.path), {name: values[-1] for name, values in parse_qs(url.query).items()},
                {name.lower(): value for name, value in self.headers.items()}, json.loads(body) if body else None,
            )  # fmt: skip
            stand_in.asked.append(asked)
            if asked.path == "/v1/events":
                self.stream()
            elif asked.path == "/v1/chat/completions" and stand_in.chat:
                self.begin(200, "text/event-stream")
                self.wfile.write(b"".join(stand_in.chat))
            else:
                route = stand_in.routes.get(f"{asked.method} {asked.path}")
                self.whole(*(route(asked) if route else _missing(asked)))

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815 - the names that http.server looks for

        def whole(self, code: int, tree: Any) -> None:
            content_type = "application/json" if code < 400 else "application/problem+json"
            if isinstance(tree, bytes):
                content_type, data = "text/event-stream", tree
            else:
                data = json.dumps(tree).encode()
            self.send_response(code)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def begin(self, code: int, content_type: str) -> None:
            self.send_response(code)
            self.send_header("content-type", content_type)
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True

        def stream(self) -> None:
            """One list of events, then the end; the last list stays open until the test is over."""
            self.begin(200, "text/event-stream")
            events = stand_in.streams.pop(0) if stand_in.streams else []
            for event in events:
                text = event if isinstance(event, str) else sse(event)
                self.wfile.write(text.encode())
                self.wfile.flush()
            if not stand_in.streams:
                stand_in.may_go_on.wait(10)

    return Handler


def sse(event: dict[str, Any]) -> str:
    return f"id: {event['id']}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"


def _missing(asked: Asked) -> tuple[int, dict[str, Any]]:
    code = "deployment-not-found" if asked.path.startswith("/v1/deployments/") else "route-not-found"
    if asked.path.startswith("/v1/operations/"):
        code = "operation-not-found"
    return 404, {"status": 404, "code": code, "message": f"There is no {asked.path}.", "remedy": "Look elsewhere."}


def snapshot(*operations: dict[str, Any], at: int = 1) -> dict[str, Any]:
    return {
        "id": f"i1:{at}", "event": "stream.snapshot-taken", "deployments": [], "sessions": [], "queue": [],
        "operations": list(operations),
    }  # fmt: skip


def told(kind: str, seq: int, **members: Any) -> dict[str, Any]:
    return {"id": f"i1:{seq}", "event": f"operation.{kind}", "at": 100.0 + seq, **operation(**members)}


def piece(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode()
