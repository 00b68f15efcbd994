"""llama.cpp on the request path (E-51 to E-62, E-76 to E-80)."""

from __future__ import annotations

import re
import time

import pytest
from llama_samples import ADAPTER, CHAT, LOADING, OVERFLOW, log, plan, ready

from stoker.errors import ErrorCode
from stoker.ports.engines import Peek, Problem, Route


def wire(plan_=None):
    plan_ = plan_ or plan()
    accepted = ADAPTER.judge_ready(ready(plan_))
    return ADAPTER.wire(plan_, accepted)


def paths(task: str) -> set[str]:
    return {route.path for route in wire(plan(task=task)).policy.routes}


def test_a_session_answers_for_its_task_alone() -> None:
    assert paths("generate") == {
        "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
        "/tokenize", "/detokenize",
    }  # fmt: skip
    assert paths("embed") == {"/v1/embeddings", "/tokenize", "/detokenize"}
    assert paths("rerank") == {"/v1/rerank", "/tokenize", "/detokenize"}


@pytest.mark.parametrize(
    "path", ["/props", "/slots", "/lora-adapters", "/completion", "/infill", "/metrics", "/models"]
)
def test_routes_of_the_engines_own_are_never_reachable(path) -> None:
    assert all(path not in paths(task) for task in ("generate", "embed", "rerank"))


def test_members_that_steer_the_engine_are_always_refused() -> None:
    assert wire().policy.control == {"id_slot", "slot_id", "n_keep", "lora"}


def test_choices_go_up_to_the_slots() -> None:
    assert wire(plan(slots=2)).policy.max_choices == 2


def test_what_an_engine_ignores_is_refused_and_not_dropped() -> None:
    asks = wire(plan(task="embed")).policy.asks
    assert (asks["dimensions"], asks["base64_embeddings"], asks["tools"]) == ("no", "yes", "no")


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_nothing_is_edited_where_nothing_is_generated(task) -> None:
    assert wire(plan(task=task)).edit(Route("POST", "/v1/embeddings"), Peek({"input": "x"})) is None


def test_loading_is_told_from_other_refusals() -> None:
    assert wire().is_loading(503, LOADING)
    assert not wire().is_loading(200, LOADING)
    assert not wire().is_loading(503, b"busy")


def test_an_overflow_names_the_public_member_of_its_route() -> None:
    for path, param in (
        ("/v1/chat/completions", "messages"),
        ("/v1/completions", "prompt"),
        ("/v1/responses", "input"),
    ):
        problem = wire().map_error(Route("POST", path), 400, OVERFLOW)
        assert isinstance(problem, Problem)
        assert (problem.param, problem.details["requested_tokens"]) == (param, 15019)
        assert "15019 tokens were sent and 2048 fit" in problem.message


def test_br_504_no_text_of_the_engine_becomes_a_message_of_ours() -> None:
    for body in (OVERFLOW, b'{"error":{"message":"secret /path image input is not supported","type":"x"}}'):
        problem = wire().map_error(CHAT, 500, body)
        assert problem is not None
        assert "try increasing" not in problem.message
        assert "/path" not in problem.message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("0.05.0 E ggml_cuda: cudaMalloc failed: out of memory", ErrorCode.DEVICE_OUT_OF_MEMORY),
        ("/src/ggml.c:99: GGML_ASSERT(x) failed", ErrorCode.ENGINE_FAULT),
        ("terminate called after throwing an instance of 'std::runtime_error'", ErrorCode.ENGINE_FAULT),
        ("0.05.995.717 I srv    operator(): operator(): cleaning up before exit...", ErrorCode.SESSION_STOPPED),
        ("0.00.1 E srv    send_error: task id = 3, error: Compute error.", ErrorCode.ENGINE_FAILED),
    ],
)
def test_br_504_a_broken_stream_is_described_by_the_last_lines(line, code) -> None:
    cause = wire().describe_break(("0.00.1 I srv  update_slots: all slots are idle", line))
    assert cause is not None
    assert cause.code is code


def test_lines_that_say_nothing_give_no_opinion() -> None:
    assert wire().describe_break(()) is None
    assert wire().describe_break(log("embedded-tiny-ready")) is None


def test_a_stream_ends_with_its_connection_and_a_plain_request_runs_on() -> None:
    abort = wire().abort
    assert (abort.streamed, abort.plain) == ("closes", "runs-on")
    assert abort.busy is not None
    assert abort.busy.path == "/slots"
    free = re.compile(abort.free_line or "")
    assert sum(bool(free.search(line)) for line in log("embedded-served")) >= 5
    assert not any(free.search(line) for line in log("embedded-tiny-ready"))


def test_a_connection_is_not_used_longer_than_the_server_keeps_it() -> None:
    assert wire().connection.idle_s < 5


def test_a_call_on_the_request_path_costs_microseconds() -> None:
    ours = wire(plan(settings=plan().settings.model_copy(update={"max_output_tokens": 100})))
    peek = Peek({"max_tokens": 500, "temperature": 0.5})
    rounds = 2000
    started = time.process_time()
    for _ in range(rounds):
        ours.edit(CHAT, peek)
    assert (time.process_time() - started) / rounds < 50e-6
