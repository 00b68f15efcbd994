"""Field cases of loading: engines that die, two waiters and one victim, readiness and logs (BR-201, 202, 205)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from field import FieldDaemon, Later, at_once, kill, model, serving
from running import until

DIES = {"crash_load": 0, "exit_code": 1}


# -- BR-201


def test_br_201_an_engine_killed_while_it_loads_fails_the_load_and_the_next_request_starts_afresh(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """S-105, S-117: within 2 s of the exit, with the signal and the last lines; the reservation is gone."""
    mood = home / "mood"
    mood.write_text("export FAKE_LOAD=30s\n")
    with serving(home, model("ash", tiny_models["ash"]), prelude=f". {mood}") as daemon:
        waiting = Later(lambda: daemon.chat("ash"))
        until(lambda: daemon.record("ash", "listening"), 10, "the engine loads")
        assert not waiting.is_over()
        mood.write_text("")
        killed = time.monotonic()
        kill(daemon.pids("ash")[0])
        answer = waiting.result()
        assert time.monotonic() - killed < 2
        assert answer.status in {502, 503}, answer.body
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.error["code"] == "killed", answer.body
        (story,) = until(lambda: daemon.view("/v1/deployments/ash/-/attempts")["items"], 5, "the attempt is recorded")
        assert story["outcome"] == "failed"
        assert story["exit"]["signal"] == 9
        assert story["lines"]
        until(lambda: daemon.reserved() == 0 and daemon.sessions() == [], 5, "the end is confirmed")
        assert daemon.chat("ash").status == 200
        assert len(daemon.pids("ash")) == 2


def test_br_201_an_engine_that_dies_every_time_is_started_three_times_for_five_requests(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """S-113: then every request fails at once with the last cause; other models stay up; an explicit load tries again."""
    text = model("ash", tiny_models["ash"], fake=DIES) + model("birch", tiny_models["birch"])
    with serving(home, text, room=400) as daemon:
        assert daemon.chat("birch").status == 200
        answers = [daemon.chat("ash") for _ in range(5)]
        assert len(daemon.pids("ash")) <= 3
        for answer in answers:
            assert answer.status in {502, 503}, answer.body
        for answer in answers[3:]:
            assert answer.took_s < 0.5
            assert answer.error["code"] == "crash_loop_held"
            assert int(answer.headers["retry-after"]) >= 1
            assert "exit" in answer.error["message"] or "status 1" in answer.error["message"], answer.body
        until(lambda: daemon.view("/v1/deployments/ash")["state"] == "held", 5, "its last life is gone")
        before = len(daemon.pids("ash"))
        assert daemon.order("ash", "load")["state"] == "failed"
        assert len(daemon.pids("ash")) > before
        assert daemon.pids("birch")[1:] == []
        assert daemon.chat("birch").status == 200


def test_br_201_a_changed_configuration_gives_the_budget_of_starts_back(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("birch", tiny_models["birch"])) as daemon:
        spec = {"reference": f"file:{tiny_models['ash']}", "context_tokens": 1024, "slots": 1, "stop_grace_s": 1}
        spec |= {"declared_bytes": 100 << 20}
        dying = {f"FAKE_{name.upper()}": str(value) for name, value in DIES.items()}
        assert daemon.control("PUT", "/v1/deployments/ash", {**spec, "env": dying}).status == 200
        for _ in range(4):
            assert daemon.chat("ash").status in {502, 503}
        assert len(daemon.pids("ash")) <= 3
        assert daemon.control("PUT", "/v1/deployments/ash", spec).status == 200
        assert daemon.chat("ash").status == 200


def test_br_201_a_poisoned_request_costs_a_bounded_number_of_starts(home: Path, tiny_models: dict[str, Path]) -> None:
    """The request is never repeated by the gateway, and a held model says why; another model keeps its process."""
    text = model("ash", tiny_models["ash"], fake={"crash_on": "poison"}) + model("birch", tiny_models["birch"])
    with serving(home, text, room=400) as daemon:
        assert daemon.chat("birch").status == 200
        answers = [daemon.say("ash", "a poison pill") for _ in range(5)]
        for answer in answers:
            assert answer.status in {502, 503}, answer.body
        assert len(daemon.pids("ash")) <= 3

        def held() -> object:
            answer = daemon.say("ash", "a poison pill")
            return answer if answer.error["code"] == "crash_loop_held" else None

        # A request that meets the engine before its exit is seen shares its fate and costs no start.
        assert "retry-after" in until(held, 15, "held").headers
        assert len(daemon.pids("ash")) <= 3
        posts = [raw for raw in daemon.raw_requests("ash") if "poison" in raw]
        assert len(posts) <= len(daemon.pids("ash"))
        assert daemon.chat("birch").status == 200
        assert len(daemon.pids("birch")) == 1


def test_br_201_an_answer_between_two_crashes_gives_the_budget_back(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"crash_on": "poison"})) as daemon:
        for _ in range(4):
            assert daemon.say("ash", "poison").status in {502, 503}
            # A request that meets the engine before its exit is seen shares its fate; the next life answers.
            until(lambda: daemon.chat("ash").status == 200, 15, "served by the next life")
        assert len(daemon.pids("ash")) == 5


# -- BR-202


def trio(models: dict[str, Path], **fake: object) -> str:
    """Three models with room for one; each engine looks whether any of the others is alive."""
    return "".join(
        model(name, models[name], fake=fake, env={"ONE_AT_A_TIME": "1"}) for name in ("ash", "birch", "cedar")
    )


def swap_round(daemon: FieldDaemon) -> float:
    """A is idle and resident; B and C at the same instant. The time both took."""
    assert daemon.chat("ash").status == 200
    until(daemon.is_quiet, 10, "idle")
    began = time.monotonic()
    answers = at_once(lambda: daemon.chat("birch"), lambda: daemon.chat("cedar"))
    took_s = time.monotonic() - began
    assert [answer.status for answer in answers] == [200, 200], [answer.body for answer in answers]
    assert daemon.view("/v1/status")["waiting"] == 0
    return took_s


def cold_round(daemon: FieldDaemon) -> float:
    for name in ("ash", "birch", "cedar"):
        daemon.order(name, "unload", {"mode": "now"})
    began = time.monotonic()
    answers = at_once(*(lambda name=name: daemon.chat(name) for name in ("ash", "birch", "cedar")))
    took_s = time.monotonic() - began
    assert [answer.status for answer in answers] == [200, 200, 200], [answer.body for answer in answers]
    assert daemon.view("/v1/status")["waiting"] == 0
    return took_s


def test_br_202_two_waiters_for_the_place_of_one_idle_model_are_both_served(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """The field's own times: a load of 1 s, an answer of 0.2 s, both within 6 s; the idle model is stopped once."""
    with serving(home, trio(tiny_models, load="1s", ttft="0.2s")) as daemon:
        assert swap_round(daemon) < 6
        assert [len(daemon.pids(name)) for name in ("ash", "birch", "cedar")] == [1, 1, 1]
        assert len(daemon.record("ash", "signal")) == 1


@pytest.mark.parametrize(("rounds", "one"), [(8, swap_round), (8, cold_round)])
def test_br_202_waiters_that_choose_one_victim_are_served_again_and_again(
    rounds: int, one: object, home: Path, tiny_models: dict[str, Path]
) -> None:
    """Real processes; fifty repetitions of each on virtual time stand in the simulation's tests."""
    assert callable(one)
    with serving(home, trio(tiny_models, ttft="0.02s")) as daemon:
        for _ in range(rounds):
            assert one(daemon) < 6
        assert daemon.overlaps() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("one", [swap_round, cold_round])
def test_br_202_fifty_repetitions_with_real_processes(one: object, home: Path, tiny_models: dict[str, Path]) -> None:
    assert callable(one)
    with serving(home, trio(tiny_models, ttft="0.02s")) as daemon:
        for _ in range(50):
            assert one(daemon) < 6


# -- BR-205


def test_br_205_a_model_list_that_answers_is_not_readiness(home: Path, tiny_models: dict[str, Path]) -> None:
    """S-108, E-57: the engine's own "loading" answer reaches nobody; no work reaches an engine before it is ready."""
    fake = {"load": "2s@health=503,models=200"}
    with serving(home, model("ash", tiny_models["ash"], fake=fake)) as daemon:
        answers = at_once(*[lambda: daemon.chat("ash")] * 3)
        assert [answer.status for answer in answers] == [200] * 3
        assert all(b"oading" not in answer.body for answer in answers)
        ready_at = daemon.record("ash", "ready")[0]["at"]
        works = [line for line in daemon.record("ash", "request") if line["raw"].startswith("POST")]
        assert len(works) == 3
        assert all(line["at"] > ready_at for line in works)
        assert 2 <= answers[0].took_s < 6


NOISE = {
    "a megabyte on both streams": {"noise": "stdout=1MiB,stderr=1MiB"},
    "a line of 200 KB without an end": {"long_line": "200KiB"},
    "bytes that are not UTF-8": {"bad_utf8": 1},
    "repaints without a line feed": {"bare_cr": 1},
}


@pytest.mark.parametrize("kind", NOISE)
def test_br_205_a_noisy_engine_becomes_ready_with_nobody_reading_and_its_lines_can_be_read_afterwards(
    kind: str, home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={**NOISE[kind], "text": "still here"})) as daemon:
        answer = daemon.chat("ash")
        assert answer.status == 200, answer.body
        assert answer.text == "still here"

        def tail() -> list[str]:
            return [line["text"] for line in daemon.view("/v1/deployments/ash/-/logs?tail=50")["lines"]]

        until(lambda: any("listening" in line for line in tail()), 10, "the last lines are in the file")
        assert all(len(line) <= 17_000 for line in tail())
