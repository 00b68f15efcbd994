"""The published description and the behaviour agree, asked by a generator of requests (acceptance 1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from control_rig import TOKEN
from control_sockets import serving
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
_ENDLESS = {"/v1/events"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A served runtime in a thread of its own; the generator is not asynchronous."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "daemon.log").write_text("a line\n")
    told: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        end = asyncio.Event()
        async with serving(Path(folder), a=10, b=10, folders=str(folder)) as (rig, surface):
            await rig.load("a")
            told.extend([surface.addresses["control_tcp"], asyncio.get_running_loop(), end])
            ready.set()
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    url, loop, end = told
    yield url
    loop.call_soon_threadsafe(end.set)
    thread.join(30)
    assert not thread.is_alive()


def _headers() -> dict[str, str]:
    return {"authorization": f"Bearer {TOKEN}"}


def test_every_route_answers_as_it_is_described(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.runtime.wiring import Runtime

    monkeypatch.setattr(Runtime, "metrics", lambda _: "stoker_up 1\n")
    described = httpx2.get(f"{address}/v1/openapi.json", headers=_headers()).json()
    schema = schemathesis.openapi.from_dict(described)
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path in _ENDLESS:
            continue

        @settings(
            max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            nonlocal asked
            asked += 1
            if case.headers:
                case.headers.pop("prefer", None)  # would hold the answer for minutes
                case.headers.pop("Prefer", None)
            if case.query and case.query.get("follow"):
                case.query.pop("follow")
            case.call_and_validate(base_url=address, headers=_headers(), checks=_CHECKS, timeout=20)

        ask()
    assert asked > 200


def test_every_error_is_described_as_a_problem(address: str) -> None:
    described = httpx2.get(f"{address}/v1/openapi.json", headers=_headers()).json()
    for path, methods in described["paths"].items():
        for method, act in methods.items():
            for status in ("4XX", "5XX"):
                content = act["responses"][status]["content"]
                assert list(content) == ["application/problem+json"], (path, method)
            assert "422" not in act["responses"]
    problem = described["components"]["schemas"]["Problem"]["properties"]
    assert {"type", "status", "code", "message", "remedy", "details", "request_id"} <= set(problem)
