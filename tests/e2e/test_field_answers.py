"""Field cases of answers: cut characters, broken streams, names in paths, limits and slow tokens (BR-501 to BR-703)."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from field import MESSAGES, Answer, FieldDaemon, Later, at_once, kill, model, serving
from running import Running, until
from scripted_engine import END, answer, event

SCRIPTED = (str(Path(__file__).with_name("scripted_engine.py")),)
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def stream(daemon: FieldDaemon, kind: str, prompt: str, name: str = "ash", **more: Any) -> Answer:
    asked = {"messages": [{"role": "user", "content": prompt}]} if kind == "chat" else {"prompt": prompt}
    return daemon.ask("POST", PATHS[kind], {"model": name, "stream": True, **asked, **more})


# -- BR-501


def test_br_501_a_character_cut_anywhere_arrives_byte_for_byte(home: Path, tiny_models: dict[str, Path]) -> None:
    """R-70: every cut of the event in turn, two writes 20 ms apart, in every dialect's stream."""
    with serving(home, model("ash", tiny_models["ash"], slots=4), program=SCRIPTED) as daemon:
        assert daemon.chat("ash").status == 200
        for kind in PATHS:
            whole = answer(kind, "cut=0")
            length = len(whole) - len(END)
            for first in range(0, length, 4):
                cuts = range(first, min(first + 4, length))
                for got in at_once(*(partial(stream, daemon, kind, f"cut={cut}") for cut in cuts)):
                    assert got.status == 200
                    assert got.body == whole
                    assert "\ufffd" not in got.body.decode()


def test_br_501_a_byte_that_is_no_utf_8_passes_and_ends_nothing(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"]), program=SCRIPTED) as daemon:
        for kind in PATHS:
            got = stream(daemon, kind, "odd")
            assert got.status == 200
            assert got.body == event(kind, b"\xff") + END


def test_br_501_a_dialect_that_is_not_offered_is_refused_cleanly(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"])) as daemon:
        for path in ("/v1/messages", "/v1/responses", "/api/chat", "/api/generate"):
            refused = daemon.ask("POST", path, {"model": "ash", "messages": MESSAGES, "max_tokens": 5})
            assert refused.status in {400, 404, 405}, refused.body
            assert refused.error["code"]
        assert daemon.pids("ash") == []


# -- BR-504

WORDS = "one two three four five six seven eight nine ten"
BREAKS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "dies by KILL after five tokens": ({"crash_after": "5tok", "die_by": "KILL"}, {}),
    "closes without the last chunk": ({"break": "cut"}, {}),
    "closes in the middle of an event": ({"break": "half-event"}, {}),
    "stalls past the limit": ({"stall": "decode"}, {"stream_idle_timeout_s": 1, "first_token_timeout_s": 2}),
}
CODES = {"engine_exited", "engine_connection_lost", "killed", "stream_idle_timeout", "stream_incomplete"}


def check_told(got: Answer, daemon: FieldDaemon, complete: int) -> None:
    """The client can tell: what arrived is whole, then an error event, the end mark, and no made-up finish."""
    assert got.status == 200
    events = got.events()
    assert events[-1] == "[DONE]"
    error = events[-2]["error"]
    assert error["code"] in CODES, error
    words = [event["choices"][0] for event in events[:-2]]
    said = "".join((choice.get("delta") or {}).get("content") or choice.get("text") or "" for choice in words)
    assert WORDS.startswith(said)
    assert len(said.split()) >= complete
    assert all(choice["finish_reason"] is None for choice in words)
    assert got.body.endswith(b"data: [DONE]\n\n")
    for private in (str(daemon.home), "--model", "llama-server"):
        assert private not in json.dumps(error)


@pytest.mark.parametrize("how", BREAKS)
def test_br_504_an_answer_that_breaks_ends_in_an_error_the_client_can_tell(
    how: str, home: Path, tiny_models: dict[str, Path]
) -> None:
    """R-76 to R-79 for streams. Plain: 502, or 504 where a limit struck; after the engine's head, an abort (R-69)."""
    fake, keys = BREAKS[how]
    text = model("ash", tiny_models["ash"], fake={"text": WORDS, "tps": 50, **fake}, **keys)
    with serving(home, text) as daemon:
        for kind in PATHS:
            check_told(stream(daemon, kind, "hello"), daemon, complete=4)
            daemon.order("ash", "load")
        got = daemon.chat("ash")
        if got.status == 200:
            assert len(got.body) < int(got.headers["content-length"])
        else:
            assert got.status == (504 if "stall" in fake else 502), got.body
            assert got.error["code"] in CODES | {"first_token_timeout"}, got.body


def test_br_504_an_answer_that_ends_properly_in_the_middle_of_an_event_is_incomplete(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """No client parses half a line: the kept part is dropped."""
    with serving(home, model("ash", tiny_models["ash"]), program=SCRIPTED) as daemon:
        for kind in PATHS:
            got = stream(daemon, kind, "half")
            events = got.events()
            assert got.body.startswith(event(kind, b"one"))
            assert b"two" not in got.body
            assert events[-2]["error"]["code"] == "stream_incomplete"
            assert events[-1] == "[DONE]"


def test_br_504_an_error_that_the_engine_sends_as_an_event_passes_once(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """The specification's R-79 wins over the case: what the engine itself said is not said again."""
    text = model("ash", tiny_models["ash"], fake={"text": WORDS, "break": "error-event"})
    with serving(home, text) as daemon:
        events = stream(daemon, "chat", "hello").events()
        errors = [event for event in events if event != "[DONE]" and "error" in event]
        assert len(errors) == 1
        assert events[-1] == "[DONE]"
        plain = daemon.chat("ash")
        assert plain.status == 502
        assert plain.error["code"] == "engine_failed"
        assert b"Compute error" not in plain.body


def test_br_504_an_end_mark_lost_after_the_finish_reason_is_no_error(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"text": WORDS, "break": "no-done"})) as daemon:
        events = stream(daemon, "chat", "hello").events()
        assert events[-1] == "[DONE]"
        assert events[-2]["choices"][0]["finish_reason"] == "stop"


def test_br_504_the_public_client_raises_when_the_engine_dies(home: Path, tiny_models: dict[str, Path]) -> None:
    text = model("ash", tiny_models["ash"], fake={"text": WORDS, "crash_after": "5tok", "die_by": "KILL"})
    with serving(home, text) as daemon:
        client = openai.OpenAI(base_url=daemon.running.address + "/v1", api_key="none", max_retries=0)
        messages: Any = MESSAGES
        parts = client.chat.completions.create(model="ash", messages=messages, stream=True)
        with pytest.raises(openai.APIError):
            list(parts)
        client.close()


@pytest.mark.engine
def test_br_504_a_real_engine_killed_in_mid_stream(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    text = f'[models.ash]\nreference = "file:{tiny_models["ash"]}"\nslots = 1\ncontext_tokens = 4096\n'
    daemon = Running(home, text + 'declared_bytes = "100MiB"\n[pools.ram]\nbudget_bytes = "120MiB"\n')
    daemons.append(daemon)
    daemon.start()
    assert daemon.chat("ash")[0] == 200
    host, port = daemon.address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    body = {"model": "ash", "messages": MESSAGES, "stream": True, "max_tokens": 4000, "ignore_eos": True}
    connection.request("POST", PATHS["chat"], json.dumps(body), {"content-type": "application/json"})
    coming = connection.getresponse()
    begun = coming.read1()
    (record,) = [json.loads(file.read_text()) for file in home.glob("run/lives/*/unit.json")]
    kill(record["main"][0])
    got = Answer(200, {}, begun + coming.read(), 0.0)
    connection.close()
    events = got.events()
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] in CODES
    assert all(part["choices"][0]["finish_reason"] is None for part in events[:-2] if part["choices"])
    until(lambda: not daemon.open_lives(), 5, "its death is noticed")
    assert daemon.chat("ash")[0] == 200
    assert daemon.stop() == 0
    assert not daemon.survivors()


# -- BR-601

NAMES = ["aaa/llava:13b", "Org/Repo-GGUF:Q4_K_M", "a b", "a%2Fb"]


def spellings(name: str) -> list[str]:
    """Plain where a request line can hold it, the slash encoded, and everything encoded."""
    once = name.replace("%", "%25").replace(" ", "%20")
    forms = [once, once.replace("/", "%2F"), once.replace("/", "%2F").replace(":", "%3A")]
    return [*forms, name] if " " not in name else forms


def test_br_601_a_name_with_slash_colon_space_or_percent_works_in_every_route_and_spelling(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    text = "".join(model(name, tiny_models["ash"], fake={"text": name}) for name in NAMES)
    with serving(home, text, room=600) as daemon:
        listed = daemon.ask("GET", "/v1/models").json()["data"]
        assert [entry["id"] for entry in listed][: len(NAMES)] == NAMES
        for entry in listed:
            assert entry["object"] == "model"
            assert type(entry["created"]) is int
            assert entry["owned_by"]
        for name in NAMES:
            for spelled in spellings(name):
                got = daemon.ask("GET", f"/v1/models/{spelled}")
                assert got.status == 200, (spelled, got.body)
                assert got.json()["id"] == name
            answered = daemon.chat(name)
            assert answered.text == name
            assert answered.json()["model"] == name
        for name in NAMES:
            for spelled in spellings(name):
                assert daemon.control("GET", f"/v1/deployments/{spelled}").json()["name"] == name
                assert daemon.order(spelled, "unload", {"mode": "now"})["state"] == "succeeded"
            assert daemon.sessions(name) == []


def test_br_601_a_name_made_by_a_call_can_be_deleted_under_every_spelling(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """A name that stands in a file is refused with 409 by its own code; one made by a call goes."""
    name = NAMES[0]
    spec = {"reference": f"file:{tiny_models['birch']}", "declared_bytes": 100 << 20}
    with serving(home, model("Org/fixed:1", tiny_models["ash"])) as daemon:
        refused = daemon.control("DELETE", "/v1/deployments/Org%2Ffixed:1")
        assert refused.status == 409, refused.body
        assert refused.json()["code"] == "deployment-from-file"
        for spelled in spellings(name):
            assert daemon.control("PUT", f"/v1/deployments/{spelled}", spec).status == 200
            gone = daemon.control("DELETE", f"/v1/deployments/{spelled}", None, {"prefer": "wait=10"})
            assert gone.json()["state"] == "succeeded", gone.body
            assert daemon.ask("GET", f"/v1/models/{spelled}").status == 404


def test_br_601_an_unknown_model_and_an_unknown_address_are_told_apart(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("aaa/llava:13b", tiny_models["ash"])) as daemon:
        for path in ("/v1/models/aaa/llava", "/v1/models/nobody", "/v1/models/AAA/llava:13b"):
            unknown = daemon.ask("GET", path)
            assert unknown.status == 404
            assert unknown.error["code"] == "model_not_found"
        asked = daemon.chat("nobody/here:1")
        assert (asked.status, asked.error["code"]) == (404, "model_not_found")
        for path in (
            "/v1/modelz",
            "/v2/models",
            "//v1/models",
            "/v1//models",
            "/v1/models//aaa/llava:13b",
            "/V1/models",
        ):
            nowhere = daemon.ask("GET", path)
            assert nowhere.status == 404, (path, nowhere.body)
            assert nowhere.error["code"] in {"route_not_found", "model_not_found"}
        assert daemon.ask("GET", "/v1/modelz").error["code"] == "route_not_found"
        assert daemon.pids("aaa/llava:13b") == []


BAD_NAMES = ["..", "a/../b", "-m", "--help", "/x", "a//b", " a", "line\nfeed"]


def test_br_601_names_that_no_path_could_hold_are_refused_at_configuration(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """Each is named. Also BR-1005: names that begin with a dash, and one with a line feed."""
    FieldDaemon(home, "".join(model(name, tiny_models["ash"]) for name in BAD_NAMES))
    environment = {**os.environ, "STOKER_HOME": str(home)}
    command = [sys.executable, "-m", "stoker", "serve"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    for name in BAD_NAMES:
        assert f"{name!r} cannot be a model's name" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(home.glob("run/lives/*"))


# -- BR-701

SIX = 6


def burst(daemon: FieldDaemon, name: str, count: int = SIX) -> list[Answer]:
    return sorted(at_once(*[lambda: daemon.chat(name)] * count), key=lambda got: got.took_s)


def check_one_runs_one_waits(answers: list[Answer], waiters: int = 1) -> None:
    refused = [got for got in answers if got.status != 200]
    assert len(refused) == len(answers) - 1 - waiters
    for got in refused:
        assert got.status == 429, got.body
        assert got.error["code"] == "queue_full"
        assert got.took_s < 0.2
        assert int(got.headers["retry-after"]) >= 1


@pytest.mark.parametrize("state", ["cold", "loading", "resident", "on its way out"])
def test_br_701_one_runs_one_waits_and_four_are_refused_whatever_the_model_is_doing(
    state: str, home: Path, tiny_models: dict[str, Path]
) -> None:
    """R-9, R-10, R-34."""
    fake = {"ttft": "0.7s", "load": "0.7s", "term_delay": "1s"}
    text = model("ash", tiny_models["ash"], fake=fake, max_queued=1, stop_grace_s=5)
    with serving(home, text) as daemon:
        if state == "resident":
            assert daemon.chat("ash").status == 200
        if state == "on its way out":
            assert daemon.chat("ash").status == 200
            daemon.control("POST", "/v1/deployments/ash/-/unload", {"mode": "now"})
            until(lambda: daemon.record("ash", "signal"), 5, "it stops")
        waiting: list[Later] = []
        if state == "loading":
            waiting = [Later(lambda: daemon.chat("ash")), Later(lambda: daemon.chat("ash"))]
            until(lambda: daemon.record("ash", "listening"), 10, "it loads")
            answers = burst(daemon, "ash", 4) + [one.result() for one in waiting]
        else:
            answers = burst(daemon, "ash")
        check_one_runs_one_waits(answers)
        assert len(daemon.raw_requests("ash")) == 2 + (state in {"resident", "on its way out"})


def test_br_701_a_queue_limit_of_zero_refuses_the_second_at_once(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"ttft": "1s"}, max_queued=0)) as daemon:
        check_one_runs_one_waits(burst(daemon, "ash", 2), waiters=0)
        check_one_runs_one_waits(burst(daemon, "ash", 3), waiters=0)


def test_br_701_a_waiting_limit_ends_the_wait_and_says_how_long_it_was(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"ttft": "2.5s"}, max_wait_s=1)) as daemon:
        first = Later(lambda: daemon.chat("ash"))
        until(lambda: daemon.raw_requests("ash"), 10, "the first runs")
        late = daemon.chat("ash")
        assert late.status == 429, late.body
        assert late.error["code"] == "queue_timeout"
        assert 0.9 < late.took_s < 1.5
        assert "waited 1.0 s" in late.error["message"]
        assert "max_wait_s" in late.error["message"]
        assert late.error["stoker"]["details"]["blocked_by"] == "place"
        assert first.result().status == 200


# -- BR-703


def test_br_703_a_first_token_limit_strikes_with_its_name_and_value_and_ends_the_work(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """R-82: 504 in JSON, and in a stream too while nothing of it was sent; the engine's work is cancelled."""
    text = model("ash", tiny_models["ash"], fake={"ttft": "4s"}, first_token_timeout_s=1)
    with serving(home, text) as daemon:
        for more in ({}, {"stream": True}):
            got = daemon.chat("ash", **more)
            assert got.took_s < 3
            told = got.error if got.status != 200 else got.events()[-2]["error"]
            assert told["code"] == "first_token_timeout"
            assert "first_token_timeout_s" in told["message"]
            assert "1 s" in told["message"] or "1.0 s" in told["message"]
        assert got.status in {200, 504}
        until(lambda: len(daemon.record("ash", "abort")) == 2, 5, "the engine's work is cancelled")
        assert len(daemon.pids("ash")) == 1


@pytest.mark.parametrize("limit", [60, 0])
def test_br_703_a_slow_first_token_within_the_limit_or_without_one_is_an_answer(
    limit: int, home: Path, tiny_models: dict[str, Path]
) -> None:
    text = model("ash", tiny_models["ash"], fake={"ttft": "2.5s"}, first_token_timeout_s=limit)
    with serving(home, text) as daemon:
        assert daemon.chat("ash").status == 200


def test_br_703_time_in_the_queue_and_in_loading_does_not_count(home: Path, tiny_models: dict[str, Path]) -> None:
    text = model("ash", tiny_models["ash"], fake={"load": "2.5s", "ttft": "1.2s"}, first_token_timeout_s=2)
    with serving(home, text) as daemon:
        answers = at_once(*[lambda: daemon.chat("ash")] * 3)
        assert [got.status for got in answers] == [200, 200, 200], [got.body for got in answers]


def test_br_703_a_dead_engine_is_noticed_at_once_and_the_limit_is_ten_minutes_at_least(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"ttft": "60s"})) as daemon:
        assert daemon.view("/v1/deployments/ash")["spec"]["first_token_timeout_s"] >= 600
        waiting = Later(lambda: daemon.chat("ash"))
        until(lambda: daemon.raw_requests("ash"), 10, "it works on it")
        killed = time.monotonic()
        kill(daemon.pids("ash")[0])
        got = waiting.result()
        assert time.monotonic() - killed < 2
        assert got.status == 502, got.body
        assert got.error["code"] in CODES


def test_br_703_a_streaming_client_gets_keep_alive_comments_while_it_waits_for_the_load(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """R-46: comments that no client parses as data; then the answer."""
    text = model("ash", tiny_models["ash"], fake={"load": "3s", "text": WORDS})
    with serving(home, text, further={"gateway": "keepalive_after_s = 1"}) as daemon:
        got = daemon.chat("ash", stream=True)
        comments = [line for line in got.body.decode().split("\n") if line.startswith(":")]
        assert comments
        assert all(line.startswith(": stoker waiting=load") for line in comments)
        assert got.events()[-1] == "[DONE]"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_br_703_a_first_token_after_310_seconds_with_the_defaults(home: Path, tiny_models: dict[str, Path]) -> None:
    with serving(home, model("ash", tiny_models["ash"], fake={"ttft": "310s"})) as daemon:
        body = {"model": "ash", "messages": MESSAGES}
        assert daemon.ask("POST", PATHS["chat"], body, wait_s=390).status == 200
