"""Field cases of memory and of what outlives an engine: evictions, swaps, helpers (BR-301, 401, 402)."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import running
from field import FieldDaemon, Later, kill, model, serving
from running import Running, is_zombie, until

from stoker.hosts.process.procfs import marked
from stoker.ids import Generation

WORDS = "one two three four five six seven eight nine ten"


def pair(models: dict[str, Path], ash: dict[str, object], **keys: object) -> str:
    """Two models with room for one; each engine looks whether the other is alive."""
    alone = {"ONE_AT_A_TIME": "1"}
    return model("ash", models["ash"], fake=ash, env=alone, **keys) + model("birch", models["birch"], env=alone)


def spec_of(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "reference": f"file:{path}", "slots": 1, "context_tokens": 1024, "declared_bytes": 100 << 20,
        "stop_grace_s": 1, **more,
    }  # fmt: skip


# -- BR-301


def test_br_301_a_model_that_answers_is_not_evicted_and_its_stream_arrives_whole(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """R-30: B waits, A's ten events arrive, then A goes and B loads; the clocks of the engines agree on it."""
    with serving(home, pair(tiny_models, {"text": WORDS, "tps": 8}), more="[queue]\nswap_bound_s = 0\n") as daemon:
        assert daemon.chat("ash", max_tokens=1).status == 200
        streaming = Later(lambda: daemon.chat("ash", stream=True))
        until(lambda: daemon.view("/v1/status")["in_flight"], 10, "A answers")
        other = daemon.chat("birch")
        assert other.status == 200, other.body
        answer = streaming.result()
        events = answer.events()
        assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1]) == WORDS
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
        assert events[-1] == "[DONE]"
        assert answer.took_s > 1
        told_to_stop = daemon.record("ash", "signal")[0]["at"]
        assert daemon.record("birch", "start")[0]["at"] > told_to_stop


def test_br_301_a_model_that_loads_is_no_victim_and_serves_the_request_it_was_loaded_for(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, pair(tiny_models, {"load": "1.5s"}), more="[queue]\nswap_bound_s = 0\n") as daemon:
        first = Later(lambda: daemon.chat("ash"))
        until(lambda: daemon.record("ash", "listening"), 10, "A loads")
        second = daemon.chat("birch")
        assert second.status == 200, second.body
        assert first.result().status == 200
        assert [len(daemon.pids(name)) for name in ("ash", "birch")] == [1, 1]
        assert len(daemon.raw_requests("ash")) == 1
        assert daemon.record("ash", "ready")


def test_br_301_idle_time_begins_when_the_answer_ends(home: Path, tiny_models: dict[str, Path]) -> None:
    """R-48: an answer that takes longer than the idle time, a follow-up within it: the same process."""
    text = model("ash", tiny_models["ash"], fake={"ttft": "2.5s"}, keep_alive_s=1.5)
    with serving(home, text) as daemon:
        assert daemon.chat("ash").status == 200
        ended = time.monotonic()
        until(lambda: time.monotonic() - ended > 0.7, 5, "a pause shorter than the idle time")
        assert daemon.chat("ash").status == 200
        assert len(daemon.pids("ash")) == 1
        ended = time.monotonic()
        until(lambda: not daemon.sessions(), 10, "the model leaves")
        assert time.monotonic() - ended > 1.4
        assert not daemon.engines_alive()


# -- BR-401


STUBBORN: dict[str, dict[str, object]] = {
    "drains for two seconds": {"term_delay": "2s"},
    "ignores the asking": {"ignore_term": 1},
    "has a helper that ignores it": {"fork_child": "new-session,ignore-term"},
}


def acts(daemon: FieldDaemon) -> list[tuple[int, str, float, str, float]]:
    with sqlite3.connect(f"file:{daemon.running.data}/journal.sqlite?mode=ro", uri=True) as journal:
        rows = "select generation, verb, intended_at, outcome, outcome_at from acts order by intended_at"
        return journal.execute(rows).fetchall()


@pytest.mark.parametrize("kind", STUBBORN)
def test_br_401_a_model_with_changed_settings_starts_only_after_its_old_life_is_confirmed_gone(
    kind: str, home: Path, tiny_models: dict[str, Path]
) -> None:
    """S-12, S-27: by the engine's own look for older processes, by the journal, and by the answer."""
    fake = {f"FAKE_{name.upper()}": str(value) for name, value in STUBBORN[kind].items()}
    env = {**fake, "FAKE_TEXT": "the first life"}
    with serving(home, model("birch", tiny_models["birch"])) as daemon:
        path = "/v1/deployments/ash"
        assert daemon.control("PUT", path, spec_of(tiny_models["ash"], stop_grace_s=3, env=env)).status == 200
        assert daemon.chat("ash").text == "the first life"
        old = daemon.sessions("ash")[0]["generation"]
        changed = spec_of(
            tiny_models["ash"], stop_grace_s=3, context_tokens=512, env={**env, "FAKE_TEXT": "the second life"}
        )
        put = daemon.control("PUT", path, changed)
        assert put.status == 200, put.body
        assert put.json()["restarts"] == [old]
        assert daemon.chat("ash").text == "the second life"
        (live,) = daemon.sessions("ash")
        assert live["generation"] > old
        assert live["context_tokens"] == 512
        assert {generation for _, generation in marked(daemon.running.scope())} == {Generation(live["generation"])}
        assert len(daemon.pids("ash")) == 2
        assert is_zombie(daemon.pids("ash")[0])
        assert all(is_zombie(pid) for pid in daemon.helpers("ash")[:-1])
        ends = {row[0]: row for row in acts(daemon) if row[1] == "stop"}
        starts = {row[0]: row for row in acts(daemon) if row[1] == "start"}
        assert ends[old][3] == "confirmed"
        assert starts[live["generation"]][2] >= ends[old][4]


@pytest.mark.engine
def test_br_401_a_real_engine_with_changed_settings_answers_from_its_one_new_life(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    text = f'[models.ash]\nreference = "file:{tiny_models["ash"]}"\nslots = 1\ncontext_tokens = 1024\n'
    text += 'declared_bytes = "100MiB"\n'
    daemon = Running(home, text + '[pools.ram]\nbudget_bytes = "120MiB"\n')
    daemons.append(daemon)
    daemon.start()
    assert daemon.chat("ash")[0] == 200
    looking = FieldDaemon.__new__(FieldDaemon)
    looking.home, looking.seen, looking.running = daemon.home, [], daemon
    put = looking.control("PUT", "/v1/deployments/ash", {**spec_of(tiny_models["ash"]), "context_tokens": 512})
    assert put.status == 200, put.body
    status, answer = daemon.chat("ash")
    assert status == 200, answer
    assert "burns ash" in answer["choices"][0]["message"]["content"]
    until(lambda: len(daemon.open_lives()) == 1, 10, "one life")
    assert looking.sessions("ash")[0]["context_tokens"] == 512
    assert daemon.stop() == 0
    assert not daemon.survivors()


def test_br_401_an_engine_that_is_to_run_in_a_container_is_refused_while_containers_are_not_offered(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """The container form of the case: nothing is started, and the refusal says why."""
    text = model("ash", tiny_models["ash"])
    with serving(home, text + '[engines.llama-cpp]\nhost = "container"\n', own_engine=False) as daemon:
        answer = daemon.chat("ash")
        assert 400 <= answer.status < 600
        assert answer.error["code"] in {"engine_not_installed", "runtime_unavailable", "bad_setting"}
        assert daemon.pids("ash") == []


# -- BR-402

HELPER = {"fork_child": "new-session,rename,close-fds"}


def memory_is_free_only_without(daemon: FieldDaemon, helper: int, seconds: float) -> None:
    """Poll until the reservation is gone; while it is looked at, no look may find it gone and the helper alive."""

    def is_free() -> bool:
        free = daemon.reserved() == 0
        assert not free or is_zombie(helper), "the memory counts as free and the helper is alive"
        return free

    until(is_free, seconds, "the memory is free")


@pytest.mark.parametrize("end", ["unload", "kill"])
def test_br_402_a_helper_of_another_session_name_and_without_descriptors_does_not_outlive_its_engine(
    end: str, home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake=HELPER)) as daemon:
        assert daemon.chat("ash").status == 200
        (helper,) = daemon.helpers("ash")
        assert not is_zombie(helper)
        assert daemon.reserved() == 100 << 20
        if end == "unload":
            asked = daemon.control("POST", "/v1/deployments/ash/-/unload", {"mode": "now"})
            assert asked.status == 202, asked.body
        else:
            kill(daemon.pids("ash")[0])
        memory_is_free_only_without(daemon, helper, 10)
        assert is_zombie(helper)
        assert daemon.chat("ash").status == 200
        assert len(daemon.pids("ash")) == 2


def test_br_402_a_helper_does_not_outlive_a_killed_daemon_and_the_next_one_knows(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """S-38: gone 5 s after the daemon's death; the next start reconciles and serves."""
    with serving(home, model("ash", tiny_models["ash"], fake=HELPER)) as daemon:
        assert daemon.chat("ash").status == 200
        (helper,) = daemon.helpers("ash")
        daemon.running.kill()
        until(lambda: is_zombie(helper) and not daemon.running.survivors(), 5, "no survivor")
        daemon.running.start()
        assert daemon.sessions() == []
        assert daemon.reserved() == 0
        assert daemon.chat("ash").status == 200


def test_br_402_a_helper_that_cannot_be_ended_keeps_the_memory_reserved_and_is_named(
    home: Path, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-30, S-31: ``stop-unconfirmed`` in every view; a load of the same model is told pid and bytes, another one waits for the
    memory; a late end frees it all.
    """
    monkeypatch.setattr(running, "DRIVER", str(Path(__file__).with_name("unconfirmed.py")))
    held = home / "held"
    with serving(home, pair(tiny_models, {})) as daemon:
        assert daemon.chat("ash").status == 200
        held.touch()
        asked = daemon.control("POST", "/v1/deployments/ash/-/unload", {"mode": "now"}, {"prefer": "wait=20"})
        assert asked.json()["state"] == "failed", asked.body
        assert asked.json()["error"]["code"] == "stop-unconfirmed"
        (left,) = daemon.sessions("ash")
        assert left["phase"] == "stop-unconfirmed"
        assert daemon.reserved() == 100 << 20
        assert daemon.view("/v1/pools")["items"][0]["unconfirmed_bytes"] == 100 << 20
        assert left["unconfirmed"]["survivors"][0]["pid"] == 4242
        refused = daemon.ask("POST", "/v1/chat/completions", {"model": "birch", "messages": []}, {"stoker-wait": "1"})
        assert refused.status == 429, refused.body
        assert refused.error["stoker"]["details"]["blocked_by"] == "memory"
        again = daemon.chat("ash")
        assert again.error["code"] == "stop_unconfirmed"
        assert "stuck-helper (pid 4242)" in again.error["message"]
        assert "0.10 GiB stay reserved" in again.error["message"]
        assert again.error["stoker"]["details"]["survivors"][0]["bytes"] == 20 << 20
        assert daemon.pids("birch") == []
        held.unlink()
        until(lambda: daemon.reserved() == 0, 30, "a retry finds it gone")
        assert daemon.chat("birch").status == 200
