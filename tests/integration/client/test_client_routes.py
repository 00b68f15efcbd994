"""The client and the control API have the same routes: nothing is asked that is not served, nothing served is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI

from stoker.client import StokerClient
from stoker.control.app import _ROUTERS
from stoker.control.table import Table

ANSWER = {
    "items": [], "next": None, "operation_id": "o", "generation": 7, "name": "tiny", "pool_id": "ram", "spec": {},
}  # fmt: skip

CALLS: tuple[Callable[[StokerClient], object], ...] = (
    StokerClient.status,
    StokerClient.health,
    StokerClient.snapshot,
    StokerClient.deployments,
    lambda client: client.deployment("tiny"),
    lambda client: client.sessions(deployment="tiny", phase="ready"),
    lambda client: client.session(7),
    lambda client: client.attempts("tiny"),
    StokerClient.pools,
    StokerClient.queue,
    StokerClient.models,
    lambda client: client.model("tiny"),
    StokerClient.engines,
    lambda client: client.engine("llama-cpp"),
    StokerClient.config,
    lambda client: client.put("tiny", {}, dry_run=True),
    lambda client: client.change("tiny", slots=2),
    lambda client: client.delete("tiny"),
    lambda client: client.load("tiny"),
    lambda client: client.unload("tiny"),
    lambda client: client.pin("tiny"),
    lambda client: client.pin("tiny", pinned=False),
    lambda client: client.scale("tiny", 2),
    lambda client: client.release("tiny"),
    lambda client: client.stop(7),
    lambda client: client.force_release(7),
    lambda client: client.set_budget("ram", None),
    lambda client: client.cancel_ticket("t1"),
    lambda client: client.operations(kind="load", state="running"),
    lambda client: client.operation("o"),
    lambda client: client.cancel("o"),
    lambda client: list(client.logs(tail=3, follow=True)),
    lambda client: list(client.logs("tiny", generation=7, tail=3)),
    lambda client: next(client.events(topics=("queue",))),
)
# Asked by monitors and tools, not through a client.
OTHERS = {"/livez", "/readyz", "/metrics", "/v1/openapi.json"}


class Recording:
    """A transport that keeps what is asked and answers anything."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, set[str]]] = []

    def call(self, method: str, path: str, *, query: dict[str, Any] | None = None, **_: Any) -> Any:
        self.asked.append((method, path, {name for name, value in (query or {}).items() if value is not None}))
        return ANSWER

    def stream(self, method: str, path: str, *, query: dict[str, Any], **_: Any) -> Any:
        self.call(method, path, query=query)
        return self

    def __enter__(self) -> tuple[str, list[str]]:
        return "text/event-stream", ['data: {"id": "a:1", "event": "x.y"}', ""]

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    app = FastAPI()
    for each in _ROUTERS:
        app.include_router(each.router)
    return app.openapi()


@pytest.fixture
def asked() -> list[tuple[str, str, set[str]]]:
    recording = Recording()
    client = StokerClient("/nowhere")
    client.transport = recording  # type: ignore[assignment]
    for call in CALLS:
        call(client)
    return recording.asked


def test_every_route_and_query_the_client_uses_is_served(
    asked: list[tuple[str, str, set[str]]], description: dict[str, Any]
) -> None:
    table = Table.of(description)
    for method, path, queries in asked:
        assert queries <= table.find(method, path).queries


def test_every_route_that_is_served_has_its_method(
    asked: list[tuple[str, str, set[str]]], description: dict[str, Any]
) -> None:
    used = {(method, path) for method, path, _ in asked}
    for path, methods in description["paths"].items():
        if path in OTHERS:
            continue
        row = Table.of({"paths": {path: methods}}).rows[0][0]
        for method in methods:
            assert any(one == method.upper() and row.fullmatch(at) for one, at in used), f"{method} {path}"
