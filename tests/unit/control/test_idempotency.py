"""A write that is sent again is done once (C-10; acceptance 6)."""

from __future__ import annotations

import anyio
import pytest
from control_rig import problem, running
from starlette.responses import Response

from stoker.control.idempotency import Answers, digest_of
from stoker.errors import UsageError

pytestmark = pytest.mark.anyio


class Act:
    """An act that counts itself and answers with its number; it waits for ``go`` if there is one."""

    def __init__(self, status: int = 200, go: anyio.Event | None = None) -> None:
        self.times = 0
        self._status = status
        self._go = go

    async def __call__(self) -> Response:
        self.times += 1
        if self._go is not None:
            await self._go.wait()
        return Response(str(self.times).encode(), self._status, {"x-mark": str(self.times)})


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


async def test_a_repeat_gets_the_first_answer_with_its_status_and_headers() -> None:
    answers, act = Answers(Now()), Act(202)
    for _ in range(3):
        answer = await answers.once("c", "POST /x", "k", "d", act)
        assert (answer.status_code, answer.body, answer.headers["x-mark"]) == (202, b"1", "1")
    assert act.times == 1


async def test_caller_route_and_key_each_make_another_request() -> None:
    answers, act = Answers(Now()), Act()
    for place in (("c", "r", "k"), ("c2", "r", "k"), ("c", "r2", "k"), ("c", "r", "k2")):
        await answers.once(*place, "d", act)
    assert act.times == 4


async def test_another_body_under_the_same_key_is_refused() -> None:
    answers, act = Answers(Now()), Act()
    await answers.once("c", "r", "k", "d", act)
    with pytest.raises(UsageError, match="another body"):
        await answers.once("c", "r", "k", "d2", act)
    assert act.times == 1


async def test_answers_5xx_are_not_kept() -> None:
    answers, act = Answers(Now()), Act(503)
    await answers.once("c", "r", "k", "d", act)
    await answers.once("c", "r", "k", "d", act)
    assert act.times == 2
    assert len(answers) == 0


async def test_an_act_that_fails_leaves_nothing_behind_and_the_waiting_repeat_tries_itself() -> None:
    answers = Answers(Now())
    begun, go, act = anyio.Event(), anyio.Event(), Act()

    async def fails() -> Response:
        begun.set()
        await go.wait()
        raise RuntimeError("no answer")

    async def first() -> None:
        with pytest.raises(RuntimeError):
            await answers.once("c", "r", "k", "d", fails)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await begun.wait()
        tasks.start_soon(answers.once, "c", "r", "k", "d", act)
        go.set()
    assert act.times == 1
    assert len(answers) == 1


async def test_a_concurrent_repeat_waits_for_the_same_answer() -> None:
    go = anyio.Event()
    answers, act = Answers(Now()), Act(go=go)
    got: list[bytes] = []

    async def call() -> None:
        got.append(bytes((await answers.once("c", "r", "k", "d", act)).body))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert act.times == 1
        go.set()
    assert got == [b"1"] * 5


async def test_answers_are_kept_a_day_and_the_oldest_go_first() -> None:
    now = Now()
    answers, act = Answers(now, most=3), Act()
    for key in "abcd":
        await answers.once("c", "r", key, "d", act)
    assert len(answers) == 3
    await answers.once("c", "r", "d", "d", act)
    assert act.times == 4
    await answers.once("c", "r", "a", "d", act)
    assert act.times == 5
    now.seconds += 86_401
    await answers.once("c", "r", "d", "d", act)
    assert act.times == 6
    assert len(answers) == 1


async def test_one_that_still_runs_is_never_forgotten() -> None:
    go = anyio.Event()
    answers, slow = Answers(Now(), most=2), Act(go=go)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers.once, "c", "r", "slow", "d", slow)
        await anyio.wait_all_tasks_blocked()
        for key in "abcd":
            await answers.once("c", "r", key, "d", Act())
        tasks.start_soon(answers.once, "c", "r", "slow", "d", slow)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert slow.times == 1


@pytest.mark.parametrize("key", ["", " ", "a b", "ä", "x" * 129, "a\tb"])
async def test_a_key_of_another_form_is_refused(key: str) -> None:
    with pytest.raises(UsageError):
        await Answers(Now()).once("c", "r", key, "d", Act())


def test_the_order_of_members_does_not_count() -> None:
    assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


# -- over the API ------------------------------------------------------------------------------------------------------


async def test_a_repeated_unload_is_one_operation() -> None:
    async with running(a=100) as rig, rig.client() as client:
        await rig.load("a")
        headers = {"idempotency-key": "one"}
        first = await client.post("/v1/deployments/a/-/unload", json={"mode": "now"}, headers=headers)
        second = await client.post("/v1/deployments/a/-/unload", json={"mode": "now"}, headers=headers)
        assert second.json() == first.json()
        assert (second.status_code, second.headers["location"]) == (202, first.headers["location"])
        assert len((await client.get("/v1/operations", params={"kind": "unload"})).json()["items"]) == 1


async def test_defaults_given_or_omitted_are_one_body() -> None:
    async with running(a=100) as rig, rig.client() as client:
        headers = {"idempotency-key": "one"}
        bodies = (None, {}, {"mode": "drain"}, {"drain_s": None, "replica": None})
        answers = [await client.post("/v1/deployments/a/-/unload", json=body, headers=headers) for body in bodies]
        assert len({answer.json()["operation_id"] for answer in answers}) == 1
        spec = {"reference": "a", "keep_alive_s": "5m"}
        first = await client.put("/v1/deployments/n", json=spec, headers={"idempotency-key": "two"})
        second = await client.put(
            "/v1/deployments/n", json={"slots": None, "keep_alive_s": 300, "reference": "a"},
            headers={"idempotency-key": "two"},
        )  # fmt: skip
        assert first.json()["created"] is True
        assert second.json() == first.json()


async def test_another_body_or_a_refusal_is_answered_as_it_was() -> None:
    async with running(a=100) as rig, rig.client() as client:
        headers = {"idempotency-key": "one"}
        await client.post("/v1/deployments/a/-/unload", json={"mode": "now"}, headers=headers)
        answer = await client.post("/v1/deployments/a/-/unload", json={"mode": "kill"}, headers=headers)
        problem(answer, 409, "idempotency-conflict")
        elsewhere = await client.post("/v1/deployments/a/-/load", json={}, headers=headers)
        assert elsewhere.status_code == 202
        refused = [await client.delete("/v1/queue/tkt_1", headers={"idempotency-key": "gone"}) for _ in range(2)]
        assert refused[0].json()["code"] == "ticket-not-found"
        assert refused[0].content == refused[1].content
        bad = await client.post("/v1/deployments/a/-/load", headers={"idempotency-key": "a b"})
        problem(bad, 400, "invalid-parameter")


async def test_repeats_at_once_are_one_load_and_one_answer() -> None:
    async with running(a=100) as rig, rig.client() as client:
        rig.probes.holds = True
        got: list[bytes] = []

        async def call() -> None:
            headers = {"idempotency-key": "one", "prefer": "wait=60"}
            got.append((await client.post("/v1/deployments/a/-/load", json={}, headers=headers)).content)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(call)
            await rig.until(lambda: rig.phase("a") == "initializing")
            rig.probes.holds = False
        assert len(set(got)) == 1
        assert b'"succeeded"' in got[0]
        assert len(rig.runtime.operations()) == 1


async def test_two_callers_with_one_key_are_two_requests() -> None:
    async with running(a=100) as rig, rig.client() as one, rig.client(uid=0) as other:
        headers = {"idempotency-key": "same"}
        first = await one.post("/v1/deployments/a/-/unload", headers=headers)
        second = await other.post("/v1/deployments/a/-/unload", headers=headers)
        assert first.json()["operation_id"] != second.json()["operation_id"]
