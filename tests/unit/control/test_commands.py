"""Writes answer what the kernel decided: operations, settings, refusals (C-4, C-6, C-8)."""

from __future__ import annotations

import anyio
import pytest
from control_rig import problem, running

from stoker.ports.units import UnitPlan
from stoker.testing.fake_units import Script

pytestmark = pytest.mark.anyio


async def test_a_load_answers_at_once_with_an_operation_and_where_to_look() -> None:
    """C-8."""
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        answer = await client.post("/v1/deployments/a/-/load", json={})
        operation = answer.json()
        assert answer.status_code == 202
        assert operation["state"] == "running"
        assert answer.headers["location"] == f"/v1/operations/{operation['operation_id']}"
        rig.probes.holds = False
        await rig.until(lambda: rig.phase("a") == "ready")
        assert (await client.get(answer.headers["location"])).json()["state"] == "succeeded"


async def test_prefer_wait_holds_the_answer_until_the_operation_ends() -> None:
    """C-8."""
    async with running(a=100) as rig, rig.client() as client:
        answer = await client.post("/v1/deployments/a/-/load", json={}, headers={"prefer": "respond-async, wait=60"})
        assert answer.status_code == 202
        assert answer.headers["preference-applied"] == "wait=60"
        assert answer.json()["state"] == "succeeded"
        assert rig.phase("a") == "ready"


async def test_prefer_wait_gives_up_after_its_seconds_and_the_operation_goes_on() -> None:
    """C-8: leaving a wait cancels nothing."""
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        answer = await client.post("/v1/deployments/a/-/load", headers={"prefer": "wait=1"})
        assert answer.json()["state"] == "running"
        assert rig.runtime.bus.subscribers == 0
        rig.probes.holds = False
        await rig.until(lambda: rig.phase("a") == "ready")


@pytest.mark.parametrize("prefer", ["wait=301", "wait=-1", "wait=x", "wait=", "wait=1.5", "wait=99999999999999999999"])
async def test_a_wait_out_of_range_is_refused(prefer: str) -> None:
    async with running(a=100) as rig, rig.client() as client:
        answer = await client.post("/v1/operations/op_none/cancel", headers={"prefer": prefer})
        problem(answer, 404, "operation-not-found")
        answer = await client.post("/v1/deployments/a/-/load", headers={"prefer": prefer})
        problem(answer, 400, "invalid-parameter")


async def test_a_second_load_joins_the_first() -> None:
    """S-12."""
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        await client.post("/v1/deployments/a/-/load")
        await rig.until(lambda: rig.phase("a") == "initializing")
        second = (await client.post("/v1/deployments/a/-/load")).json()
        assert second["result"]["was"] == "loading"
        rig.probes.holds = False
        await rig.until(lambda: rig.phase("a") == "ready")
        assert len(rig.host.units) == 1


async def test_a_load_that_is_cancelled_ends_its_life_and_says_so() -> None:
    """C-9."""
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        operation = (await client.post("/v1/deployments/a/-/load")).json()
        await rig.until(lambda: rig.phase("a") == "initializing")
        path = f"/v1/operations/{operation['operation_id']}/cancel"
        ended = (await client.post(path, headers={"prefer": "wait=30"})).json()
        assert ended["state"] == "cancelled"
        again = (await client.post(path)).json()
        assert again["state"] == "cancelled"
        assert again["revision"] == ended["revision"]


async def test_unload_idle_only_is_refused_on_a_busy_one_and_never_delayed() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        rig.ask("a")
        answer = await client.post("/v1/deployments/a/-/unload", json={"mode": "idle-only"})
        problem(answer, 409, "session-busy")
        assert rig.phase("a") == "ready"


async def test_unload_ends_every_life_and_the_operation_says_so() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        answer = await client.post("/v1/deployments/a/-/unload", json={"mode": "now"}, headers={"prefer": "wait=30"})
        assert answer.json()["state"] == "succeeded"
        assert answer.json()["result"] == {"generations": [1]}
        assert not rig.host.alive()


async def test_a_session_is_stopped_by_its_generation_alone() -> None:
    """The late stop of one life cannot touch the next."""
    async with running(a=100) as rig, rig.client() as client:
        first = await rig.load("a")
        answer = await client.post(f"/v1/sessions/{first}/stop", json={"mode": "kill"}, headers={"prefer": "wait=30"})
        assert answer.json()["state"] == "succeeded"
        second = await rig.load("a")
        assert second != first
        problem(await client.post(f"/v1/sessions/{first}/stop", json={"mode": "kill"}), 404, "session-not-found")
        assert rig.phase("a") == "ready"


async def test_force_release_needs_the_generation_twice_and_only_after_an_unconfirmed_stop() -> None:
    """S-32."""

    def script(_: UnitPlan) -> Script:
        return Script(listens_after_s=0.0, unconfirmed_stops=100)

    async with running(script=script, a=100) as rig, rig.client(uid=0) as client:
        generation = await rig.load("a")
        path = f"/v1/sessions/{generation}/force-release"
        problem(await client.post(path, json={"confirm": generation + 1}), 400, "invalid-parameter")
        problem(await client.post(path, json={}), 400, "invalid-parameter")
        problem(await client.post(path, json={"confirm": generation}), 409, "not-legal-now")
        stop = (
            await client.post(f"/v1/sessions/{generation}/stop", json={"mode": "now"}, headers={"prefer": "wait=60"})
        ).json()
        assert stop["error"]["code"] == "stop-unconfirmed"
        shown = (await client.get(f"/v1/sessions/{generation}")).json()
        assert shown["phase"] == "stop-unconfirmed"
        assert shown["unconfirmed"]["cause"]
        problem(await client.post(path, json={"confirm": generation}), 409, "not-legal-now")
        await client.post(f"/v1/sessions/{generation}/stop", json={"mode": "kill"})  # on such a one: a retry
        await rig.until(lambda: (rig.runtime.sessions()[0].unconfirmed or {}).get("attempts", 0) > 1)
        assert (await client.post(path, json={"confirm": generation})).status_code == 200


async def test_pin_scale_and_release_answer_the_deployment() -> None:
    async with running(a=100) as rig, rig.client() as client:
        pinned = (await client.post("/v1/deployments/a/-/pin")).json()
        assert pinned["spec"]["pinned"] is True
        assert (await client.post("/v1/deployments/a/-/unpin", json={})).json()["spec"]["pinned"] is False
        scaled = (await client.post("/v1/deployments/a/-/scale", json={"replicas": 2})).json()
        assert scaled["spec"]["replicas"] == 2
        assert scaled["revision"] > pinned["revision"]
        assert (await client.post("/v1/deployments/a/-/release", json={})).json()["hold"] is None
        problem(await client.post("/v1/deployments/a/-/scale", json={"replicas": 65}), 400, "invalid-parameter")


async def test_a_dry_run_says_what_would_change_and_changes_nothing() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        before = rig.state()
        body = {"context_tokens": 2048, "declared_bytes": 100 << 20}
        dry = (await client.put("/v1/deployments/a", params={"dry_run": "true"}, json=body)).json()
        assert rig.state() == before
        assert dry["restarts"] == [1]
        assert 'models."a".context_tokens' in {change["key"] for change in dry["changes"]}
        new = (await client.put("/v1/deployments/new", params={"dry_run": "true"}, json={"reference": "a"})).json()
        assert (new["deployment"], new["created"]) == (None, True)
        assert rig.state() == before
        real = (await client.put("/v1/deployments/a", json=body)).json()
        assert real["changes"] == dry["changes"]
        assert real["restarts"] == dry["restarts"]


async def test_a_deployment_made_here_is_of_origin_control_and_can_be_removed() -> None:
    async with running(a=100) as rig, rig.client() as client:
        body = {"reference": "a", "keep_alive_s": "5m", "aliases": ["other"], "engine_args": ["--x"]}
        made = (await client.put("/v1/deployments/mine", json=body)).json()
        assert made["created"] is True
        assert made["deployment"]["origin"] == "control"
        assert made["deployment"]["spec"]["keep_alive_s"] == 300.0
        assert made["deployment"]["names"] == ["mine", "other"]
        again = (await client.put("/v1/deployments/mine", json=body)).json()
        assert (again["created"], again["changes"]) == (False, [])
        gone = await client.delete("/v1/deployments/other", headers={"prefer": "wait=10"})
        assert gone.json()["state"] == "succeeded"
        problem(await client.get("/v1/deployments/mine"), 404, "deployment-not-found")


async def test_one_that_stands_in_a_file_is_not_removed_here() -> None:
    async with running(a=100) as rig, rig.client() as client:
        problem(await client.delete("/v1/deployments/a"), 409, "deployment-from-file")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"context_token": 4096}, "unknown-field", "context_token"),
        ({"context_tokens": "many"}, "invalid-parameter", "context_tokens"),
        ({"context_tokens": 1}, "invalid-parameter", "context_tokens"),
        ({"replicas": True}, "invalid-parameter", "replicas"),
        ({"keep_alive_s": "soon"}, "invalid-parameter", "keep_alive_s"),
        ({"aliases": [".."]}, "invalid-name", "aliases"),
        ({"env": {"HF_TOKEN": "[set]"}}, "invalid-parameter", "env"),
        ({"name": "b"}, "unknown-field", "name"),
        ({"origin": "file"}, "unknown-field", "origin"),
    ],
)
async def test_a_wrong_key_of_a_deployment_is_named(body: dict[str, object], code: str, param: str) -> None:
    """C-2."""
    async with running(a=100) as rig, rig.client() as client:
        before = rig.state()
        members = problem(await client.put("/v1/deployments/a", json=body), 400, code)
        assert members["details"]["param"] == param
        assert rig.state() == before


async def test_a_misspelt_member_is_refused_with_the_nearest_valid_name() -> None:
    """C-2."""
    async with running(a=100) as rig, rig.client() as client:
        members = problem(await client.post("/v1/deployments/a/-/unload", json={"drains": 3}), 400, "unknown-field")
        assert members["details"]["nearest"] == "drain_s"
        members = problem(await client.get("/v1/sessions", params={"phases": "ready"}), 400, "unknown-field")
        assert members["details"]["nearest"] == "phase"
        members = problem(await client.get("/v1/status", params={"verbose": "1"}), 400, "unknown-field")
        assert "nearest" not in members["details"]


async def test_a_write_for_another_revision_changes_nothing() -> None:
    """C-4."""
    async with running(a=100) as rig, rig.client() as client:
        body = {"declared_bytes": 100 << 20, "keep_alive_s": 7}
        problem(await client.put("/v1/deployments/a", json=body, headers={"if-match": "9"}), 409, "revision-conflict")
        problem(await client.post("/v1/deployments/a/-/pin", headers={"if-match": '"2"'}), 409, "revision-conflict")
        problem(await client.put("/v1/deployments/new", json={}, headers={"if-match": "*"}), 409, "revision-conflict")
        assert (await client.get("/v1/deployments/a")).json()["revision"] == 1
        ok = await client.put("/v1/deployments/a", json=body, headers={"if-match": '"1"'})
        assert ok.json()["deployment"]["revision"] == 2


async def test_a_pool_s_budget_changes_what_may_start_and_stops_nothing() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        pool = (await client.patch("/v1/pools/ram", json={"budget_bytes": 50 << 20})).json()
        assert (pool["budget_bytes"], pool["budget_origin"]) == (50 << 20, "control")
        assert rig.phase("a") == "ready"
        back = (await client.patch("/v1/pools/ram", json={"budget_bytes": None, "persist": False})).json()
        assert back["budget_origin"] == "auto"
        problem(await client.patch("/v1/pools/ram", json={}), 400, "invalid-parameter")
        problem(
            await client.patch("/v1/pools/ram", json={"budget_bytes": 1, "persist": True}), 400, "invalid-parameter"
        )
        problem(await client.patch("/v1/pools/vram", json={"budget_bytes": 1}), 404, "pool-not-found")
        problem(await client.patch("/v1/pools/ram", json={"budget_bytes": 2**59}), 400, "invalid-parameter")


async def test_a_ticket_is_cancelled_by_its_own_id_or_its_request_s() -> None:
    """R-25."""
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        running_, first, second = rig.ask("a"), rig.ask("a"), rig.ask("a")
        answer = (await client.delete(f"/v1/queue/{first.ticket_id}")).json()
        assert answer == {"ticket_id": first.ticket_id, "state": "cancelled"}
        assert (await client.delete(f"/v1/queue/{second.ask.request_id}")).json()["state"] == "cancelled"
        assert first.error is not None
        cut = (await client.delete(f"/v1/queue/{running_.ticket_id}")).json()
        assert cut == {"ticket_id": running_.ticket_id, "state": "granted"}
        problem(await client.delete("/v1/queue/tkt_none"), 404, "ticket-not-found")


async def test_reads_answer_while_a_load_hangs_and_a_caller_waits_for_it() -> None:
    """C-5."""
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        answers: list[str] = []

        async def wait() -> None:
            answer = await client.post("/v1/deployments/a/-/load", headers={"prefer": "wait=60"})
            answers.append(answer.json()["state"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await rig.until(lambda: rig.phase("a") == "initializing")
            for path in ("/v1/status", "/v1/sessions/1", "/v1/snapshot"):
                with anyio.fail_after(1):
                    assert (await client.get(path)).status_code == 200
            assert answers == []
            rig.probes.holds = False
        assert answers == ["succeeded"]
