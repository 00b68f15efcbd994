"""Each route answers its shape, from the runtime's own views, and changes nothing (C-4, C-5, C-7)."""

from __future__ import annotations

import re

import pytest
from control_rig import CONFIG, problem, running

pytestmark = pytest.mark.anyio
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

READS = (
    "/livez", "/readyz", "/v1/status", "/v1/health", "/v1/snapshot", "/v1/deployments", "/v1/deployments/a",
    "/v1/deployments/a/-/attempts", "/v1/sessions", "/v1/sessions/1", "/v1/models", "/v1/models/a", "/v1/engines",
    "/v1/engines/fake", "/v1/pools", "/v1/queue", "/v1/operations", "/v1/logs", "/v1/config", "/v1/openapi.json",
)  # fmt: skip


async def test_every_read_answers_and_changes_nothing() -> None:
    """C-5, acceptance 2."""
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        rig.ask("a")
        rig.ask("a")
        before, calls = rig.state(), len(rig.host.calls)
        last_event = rig.runtime.bus.last_id
        for path in READS:
            answer = await client.get(path)
            assert answer.status_code == 200, (path, answer.text)
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["cache-control"] == "no-store"
        assert rig.state() == before
        assert rig.runtime.bus.last_id == last_event
        assert [call.name for call in rig.host.calls[calls:] if call.name not in {"usage", "inspect"}] == []


async def test_a_session_shows_all_its_members_with_times_as_text() -> None:
    async with running(a=100) as rig, rig.client() as client:
        generation = await rig.load("a")
        seen = (await client.get(f"/v1/sessions/{generation}")).json()
        assert seen["phase"] == "ready"
        assert seen["reservation"] == {"ram": 100 << 20}
        assert _TIME.fullmatch(seen["since"])
        assert seen["confirmed_by"] is None
        assert seen["launch"]["argv_shown"][0] == "fake-engine"
        assert set(seen) >= {
            "generation", "deployment", "replica", "reason", "also", "engine", "installation", "unit", "measured",
            "slots", "width", "in_flight", "liveness", "context_tokens", "capabilities", "idle_deadline", "pinned",
            "upstream_auth", "hardening_missing", "exit",
        }  # fmt: skip


async def test_a_deployment_shows_the_keys_a_file_may_hold() -> None:
    """C-7: ``spec`` can be sent back as it came."""
    async with running(a=100) as rig, rig.client() as client:
        seen = (await client.get("/v1/deployments/a")).json()
        assert seen["origin"] == "file"
        assert {"name", "origin"}.isdisjoint(seen["spec"])
        answer = await client.put("/v1/deployments/a?dry_run=true", json=seen["spec"])
        assert answer.status_code == 200, answer.text
        assert answer.json()["restarts"] == []
        assert answer.json()["changes"] == []


async def test_operations_show_their_times_as_text_and_their_error_as_a_problem() -> None:
    """C-8."""
    async with running(big=2000) as rig, rig.client() as client:
        answer = await client.post("/v1/deployments/big/-/load", json={}, headers={"prefer": "wait=10"})
        operation = answer.json()
        assert answer.status_code == 202
        assert operation["state"] == "failed"
        assert operation["error"]["code"] == "never-fits"
        assert _TIME.fullmatch(operation["created_at"])
        assert _TIME.fullmatch(operation["ended_at"])


async def test_status_counts_what_waits_and_runs() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        rig.ask("a")
        rig.ask("a")
        seen = (await client.get("/v1/status")).json()
        assert (seen["state"], seen["in_flight"], seen["waiting"], seen["open"]) == ("ready", 1, 1, 2)
        assert seen["sessions"] == {"ready": 1}
        assert seen["pools"][0]["pool_id"] == "ram"


async def test_a_snapshot_holds_what_the_single_routes_answer() -> None:
    async with running(a=100) as rig, rig.client() as client:
        generation = await rig.load("a")
        seen = (await client.get("/v1/snapshot")).json()
        assert seen["deployments"] == (await client.get("/v1/deployments")).json()["items"]
        assert seen["sessions"] == [(await client.get(f"/v1/sessions/{generation}")).json()]
        assert seen["operations"] == (await client.get("/v1/operations")).json()["items"]
        assert seen["status"] == (await client.get("/v1/status")).json()
        assert seen["last_event_id"] == rig.runtime.bus.last_id


async def test_config_is_what_the_daemon_was_given() -> None:
    async with running() as rig, rig.client() as client:
        assert (await client.get("/v1/config")).json() == CONFIG


async def test_metrics_are_the_text_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-28."""
    async with running() as rig, rig.client() as client:
        monkeypatch.setattr(type(rig.runtime), "metrics", lambda _: "stoker_up 1\n")
        answer = await client.get("/metrics")
        assert answer.text == "stoker_up 1\n"
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_lists_come_in_pages_and_in_one_order() -> None:
    """C-4."""
    models = {f"m{n:02}": 10 for n in range(7)}
    async with running(**models) as rig, rig.client() as client:
        names: list[str] = []
        cursor: dict[str, str] = {}
        sizes = []
        while True:
            part = (await client.get("/v1/deployments", params={"limit": "3", **cursor})).json()
            names += [each["name"] for each in part["items"]]
            sizes.append(len(part["items"]))
            if part["next"] is None:
                break
            cursor = {"cursor": part["next"]}
        assert names == sorted(models)
        assert sizes == [3, 3, 1]


@pytest.mark.parametrize("cursor", ["x", "!!!", "bnVsbA", "W10", "e30", "ä"])
async def test_a_cursor_of_somebody_else_is_refused(cursor: str) -> None:
    async with running(a=10) as rig, rig.client() as client:
        problem(await client.get("/v1/deployments", params={"cursor": cursor}), 400, "invalid-parameter")


async def test_sessions_and_operations_can_be_narrowed() -> None:
    async with running(a=100, b=100) as rig, rig.client() as client:
        await rig.load("a")
        await rig.load("b")
        one = (await client.get("/v1/sessions", params={"deployment": "b"})).json()["items"]
        assert [each["deployment"] for each in one] == ["b"]
        assert (await client.get("/v1/sessions", params={"phase": "draining"})).json()["items"] == []
        loads = (await client.get("/v1/operations", params={"kind": "load", "state": "succeeded"})).json()["items"]
        assert [each["subject"] for each in loads] == ["a", "b"]
        assert (await client.get("/v1/operations", params={"kind": "pull"})).json()["items"] == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/deployments/nobody", "deployment-not-found"),
        ("/v1/deployments/nobody/-/attempts", "deployment-not-found"),
        ("/v1/deployments/nobody/-/logs", "deployment-not-found"),
        ("/v1/sessions/99", "session-not-found"),
        ("/v1/operations/op_x", "operation-not-found"),
        ("/v1/engines/none", "engine-not-found"),
        ("/v1/models/none", "model-not-found"),
    ],
)
async def test_what_is_not_there_is_named(path: str, code: str) -> None:
    async with running(a=10) as rig, rig.client() as client:
        problem(await client.get(path), 404, code)


async def test_the_queue_shows_each_deployment_with_its_tickets_in_order() -> None:
    async with running(a=100, b=100, specs={"a": {"max_queued": 5}}) as rig, rig.client() as client:
        await rig.load("a")
        tickets = [rig.ask("a") for _ in range(3)]
        rows = {row["name"]: row for row in (await client.get("/v1/queue")).json()["deployments"]}
        assert [each["ticket_id"] for each in rows["a"]["tickets"]] == [t.ticket_id for t in tickets[1:]]
        assert rows["a"]["limits"] == {"max_queued": 5, "max_in_flight": None, "max_wait_s": 600.0}
        assert rows["a"]["in_flight"] == 1
        assert rows["b"]["tickets"] == []


async def test_readiness_follows_the_daemon_and_writes_wait_for_it() -> None:
    """C-43: 503 with ``Retry-After`` until reconcile is done; reads answer meanwhile."""
    async with running(opened=False, a=100) as rig, rig.client() as client:
        assert (await client.get("/livez")).status_code == 200
        answer = await client.get("/readyz")
        problem(answer, 503, "daemon-starting")
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/v1/status")).json()["state"] == "starting"
        problem(await client.post("/v1/deployments/a/-/load"), 503, "daemon-starting")
        assert (await client.get("/v1/operations")).json()["items"] == []
