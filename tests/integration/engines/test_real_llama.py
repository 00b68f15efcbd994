"""llama.cpp itself, started as the adapter says: the wheel always, ``llama-server`` where there is one (E-108, 18)."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_llama import ADAPTER, TOKEN, USER, plan, started, until

from stoker.engines.finder import find_installations, run_probe
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.engines.registry import load_registry
from stoker.errors import ErrorCode
from stoker.ports.engines import Build, InstallationSite, Route, Stage
from stoker.testing.tiny_model import DEFAULT_TEXT, write_tiny_gguf

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.engine

SERVER = os.environ.get("STOKER_TEST_LLAMA_SERVER") or shutil.which("llama-server")
PROGRAMS = [
    pytest.param(None, id="wheel"),
    pytest.param(SERVER, id="llama-server", marks=pytest.mark.skipif(SERVER is None, reason="no llama-server here")),
]
CHAT = Route("POST", "/v1/chat/completions")
ENDLESS = {"messages": USER, "ignore_eos": True, "max_tokens": 100_000, "n_predict": -1}
LONG = plan(context_tokens=131_072, slots=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture(scope="module")
def long_model(tmp_path_factory) -> Path:
    """One whose window an endless answer does not fill within a test."""
    path = tmp_path_factory.mktemp("models") / "long.gguf"
    write_tiny_gguf(path, context=LONG.context_tokens)
    return path


@pytest.fixture(params=PROGRAMS)
def program(request) -> str | None:
    return request.param


@pytest.mark.parametrize("tcp", [False, True], ids=["socket", "tcp"])
def test_it_chats_and_streams_over_both_kinds_of_endpoint(model, program, tcp) -> None:
    with started(model, program=program, tcp=tcp) as engine:
        accepted = engine.wait_ready()
        assert (accepted.width, accepted.context_tokens) == (2, 1024)
        assert bool(engine.endpoint.socket) is not tcp
        status, body = engine.call(CHAT.path, {"messages": USER})
        told = json.loads(body)
        assert (status, told["choices"][0]["message"]["content"], told["model"]) == (200, DEFAULT_TEXT, "tiny")
        _, stream = engine.call(CHAT.path, {"messages": USER, "stream": True})
        assert stream.rstrip().endswith(b"data: [DONE]")
        assert str(model).encode() not in body + stream


def test_its_start_goes_through_the_stages_and_ends_listening(model, program) -> None:
    with started(model, program=program) as engine:
        engine.wait_ready()
        seen = engine.seen()
        assert seen.stage is Stage.VERIFYING
        assert seen.listening
        assert {term for _, term in seen.memory} >= {"weights", "kv", "compute"}


def test_br_205_nothing_is_answered_as_ready_before_the_model_is_in_memory(model, program) -> None:
    wire_ = ADAPTER.startup(plan(), None).probe
    with started(model, program=program) as engine:
        while True:
            try:
                status, body = engine.call(wire_.path)
            except OSError:
                continue
            if status == 200:
                break
            assert status == 503
            assert b"unavailable_error" in body
        assert engine.call(CHAT.path, {"messages": USER})[0] == 200


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("context", [256, 1024, 4096])
def test_the_engine_grants_window_and_slots_as_planned(model, context, slots, kv) -> None:
    with started(model, plan(context_tokens=context, slots=slots, kv_type_k=kv, kv_type_v=kv)) as engine:
        accepted = engine.wait_ready()
        assert (accepted.context_tokens, accepted.width, accepted.warnings) == (context, slots, ())


def test_br_1003_the_token_is_required_and_shown_nowhere(model, program) -> None:
    with started(model, program=program) as engine:
        accepted = engine.wait_ready()
        for wrong in ("", "other", TOKEN.upper()):
            status, body = engine.call(CHAT.path, {"messages": USER}, token=wrong)
            assert status == 401
            problem = ADAPTER.wire(engine.plan, accepted).map_error(CHAT, status, body)
            assert problem is not None
            assert problem.code is ErrorCode.ENGINE_FAILED
        assert engine.call("/slots", token="other")[0] == 401
        assert engine.call(CHAT.path, {"messages": USER})[0] == 200
        assert TOKEN not in "\n".join(engine.lines())
        for path in engine.folder.rglob("*"):
            assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
        if sys.platform == "linux":
            assert TOKEN.encode() not in Path(f"/proc/{engine.process.pid}/cmdline").read_bytes()


def test_its_log_holds_nothing_that_a_request_says(model, program) -> None:
    word = "zibberwock"
    with started(model, program=program) as engine:
        engine.wait_ready()
        marked = [{"role": "system", "content": word}, {"role": "user", "content": f"{word} {word}"}]
        tool = {"type": "function", "function": {"name": word, "parameters": {"type": "object"}}}
        schema = {"type": "json_schema", "json_schema": {"name": word, "schema": {"type": "object", "title": word}}}
        for body in (
            {"messages": marked},
            {"messages": marked, "stream": True},
            {"messages": marked, "tools": [tool]},
            {"messages": marked, "response_format": schema, "max_tokens": 20},
            {"messages": [{"role": "user", "content": f"{word} " * 2000}]},
            {"messages": marked, "stop": [word]},
            {"messages": marked, "user": word},
        ):
            engine.call(CHAT.path, body)
        engine.call("/v1/completions", {"prompt": word, "max_tokens": 3})
        engine.call("/tokenize", {"content": word})
        assert not [line for line in engine.lines() if word in line]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "word " * 2000}], "stream": True},
            "messages",
        ),
        ("/v1/completions", {"prompt": "word " * 2000}, "prompt"),
        ("/v1/responses", {"input": "word " * 2000}, "input"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "word " * 2000}], "max_tokens": 5}, "messages"),
    ],
)
def test_a_prompt_beyond_the_window_is_answered_with_both_numbers(model, path, body, param) -> None:
    with started(model) as engine:
        accepted = engine.wait_ready()
        problem = ADAPTER.wire(engine.plan, accepted).map_error(Route("POST", path), *engine.call(path, body))
        assert problem is not None
        assert (problem.code, problem.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, param)
        assert problem.details["limit_tokens"] == 1024
        assert problem.details["requested_tokens"] > 2000


def test_a_limit_beyond_the_window_is_clamped_and_no_error(model) -> None:
    with started(model) as engine:
        engine.wait_ready()
        assert engine.call(CHAT.path, {"messages": USER, "max_tokens": 999_999})[0] == 200


def test_an_embedding_session_embeds_and_its_overflow_has_numbers(model, program) -> None:
    wanted = plan(task="embed", slots=1, settings=LlamaCppSettings(pooling="mean"), batch_tokens=256)
    route = Route("POST", "/v1/embeddings")
    with started(model, wanted, program=program) as engine:
        wire = ADAPTER.wire(wanted, engine.wait_ready())
        status, body = engine.call(route.path, {"input": ["one", "two"]})
        assert (status, len(json.loads(body)["data"])) == (200, 2)
        assert {item.path for item in wire.policy.routes} == {"/v1/embeddings", "/tokenize", "/detokenize"}
        problem = wire.map_error(route, *engine.call(route.path, {"input": "word " * 200}))
        assert problem is not None
        assert (problem.code, problem.details["limit_tokens"]) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, 256)


def test_its_metrics_are_counted(model) -> None:
    with started(model) as engine:
        engine.wait_ready()
        used = json.loads(engine.call(CHAT.path, {"messages": USER})[1])["usage"]
        sample = ADAPTER.read_metrics(engine.call("/metrics")[1].decode())
        assert sample.completion_tokens_total == used["completion_tokens"]
        assert (sample.running, sample.waiting) == (0, 0)


def damaged(model: Path, folder: Path, how: str) -> Path:
    data = model.read_bytes()
    path = folder / f"{how}.gguf"
    name = b"\x05\0\0\0\0\0\0\0"
    contents = {
        "missing": None,
        "truncated": data[: len(data) * 2 // 3],
        "cut-header": data[:3000],
        "empty": b"",
        "bad-magic": b"ABCD" + data[4:],
        "architecture": data.replace(name + b"llama", name + b"blimp"),
    }[how]
    if contents is not None:
        path.write_bytes(contents)
    return path


@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ("missing", "model-file-missing", "The model file is not there."),
        ("truncated", "model-file-corrupt", "The model file ends too early; part of it is missing."),
        ("cut-header", "model-file-corrupt", "The model file ends too early; part of it is missing."),
        ("empty", "model-file-corrupt", "The file is no GGUF model: its first bytes are wrong."),
        ("bad-magic", "model-file-corrupt", "The file is no GGUF model: its first bytes are wrong."),
        ("architecture", "model-unsupported", "This build of llama.cpp does not know the architecture blimp."),
    ],
)
def test_a_failed_load_is_explained_by_its_cause(model, program, tmp_path, how, kind, sentence) -> None:
    with started(damaged(model, tmp_path, how), program=program) as engine:
        verdict = engine.verdict()
        assert (verdict.kind, verdict.message) == (kind, sentence)
        assert verdict.decisive_line


def test_br_405_a_taken_port_is_named_as_that(model, program) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with started(model, program=program, tcp=True, port=holder.getsockname()[1]) as engine:
            assert engine.verdict().kind == "port-in-use"


def test_a_parameter_the_wheel_lacks_is_a_bad_setting_before_anything_is_opened(model) -> None:
    with started(model) as engine:
        engine.process.kill()
        engine.process.wait()
        (engine.folder / "launch.json").write_text(json.dumps({"parameters": {"no_such_thing": 1}}))
        argv = [sys.executable, "-I", "-m", "stoker.engines.llama_cpp.launcher", str(engine.folder / "launch.json")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 64
        assert "opening" not in done.stdout
        (engine.folder / "log").write_text(done.stdout + done.stderr)
        verdict = engine.verdict()
        assert (verdict.kind, verdict.cause) == ("bad-setting", "parameter")
        assert "no_such_thing" in verdict.message


def test_an_idle_engine_ends_at_once_by_term(model, program) -> None:
    with started(model, program=program) as engine:
        engine.wait_ready()
        assert engine.term() < 1.0


def test_term_ends_the_wheel_at_once_with_an_open_stream(long_model) -> None:
    with started(long_model, LONG) as engine:
        engine.wait_ready()
        stream = engine.connect()
        engine.ask(stream, CHAT.path, {**ENDLESS, "stream": True})
        with stream.getresponse() as answer:
            assert answer.read1(100)
            assert engine.term() < 1.0
        stream.close()


def test_term_ends_the_wheel_at_once_with_an_open_plain_request(long_model) -> None:
    with started(long_model, LONG) as engine:
        engine.wait_ready()
        plain = engine.connect()
        engine.ask(plain, CHAT.path, ENDLESS)
        until(engine.busy, "a busy slot")
        assert engine.term() < 1.0
        plain.close()


def test_term_ends_the_wheel_while_it_starts(model) -> None:
    with started(model) as engine:
        until(lambda: any("opening" in line for line in engine.lines()), "the first stage")
        assert engine.term() < 1.0


def test_a_left_over_socket_of_an_older_life_is_told_as_a_taken_endpoint(model) -> None:
    with started(model) as first:
        first.wait_ready()
        with started(model) as second:
            second.wait_ready()
            assert first.endpoint != second.endpoint


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_a_client_that_leaves_frees_its_slot_and_the_log_says_so(long_model, stream) -> None:
    with started(long_model, LONG) as engine:
        accepted = engine.wait_ready()
        abort = ADAPTER.wire(LONG, accepted).abort
        line = engine.connect()
        engine.ask(line, CHAT.path, {**ENDLESS, "stream": stream})
        until(engine.busy, "a busy slot")
        line.close()
        gone = time.monotonic()
        free = re.compile(abort.free_line or "")
        until(lambda: any(free.search(text) for text in engine.lines()), "the line of a free slot", 10)
        assert time.monotonic() - gone < 3.0
        assert engine.busy() == 0


def test_it_is_found_asked_and_remembered(tmp_path) -> None:
    registry, cache = load_registry(foreign=()), tmp_path / "probes.json"
    found = find_installations(registry, "", run_probe, cache=cache)
    (wheel,) = [item for item in found if item.site == InstallationSite("embedded", sys.executable, "environment")]
    assert wheel.state == "ready"
    assert isinstance(wheel.build, Build)
    assert {"unix-socket", "slot-save", "cache-ram"} <= wheel.build.features
    asked = []
    assert find_installations(registry, "", asked.append, cache=cache) == found
    assert asked == []
