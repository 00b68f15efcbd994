"""Each option of the fake engine does what it says (E-107): every test starts the real program."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.enable_socket

BOUND_S = 15.0
CHAT = {"messages": [{"role": "user", "content": "say something please"}]}
TEXT = "The fake engine always gives this answer, one word at a time."


class Running:
    """One started fake engine, its log as it comes, and its record."""

    def __init__(self, process: subprocess.Popen[bytes], record: Path, log: str) -> None:
        self.process, self.record_path, self.log_stream = process, record, log
        self.log = b""
        self.address = ""

    def read_log_until(self, wanted: bytes) -> str:
        """The log line that holds ``wanted``; fails when it does not come."""
        pipe = self.process.stderr if self.log_stream == "stderr" else self.process.stdout
        assert pipe is not None
        deadline = time.monotonic() + BOUND_S
        while wanted not in self.log or not self.log[self.log.index(wanted) :].count(b"\n"):
            ready, _, _ = select.select([pipe], [], [], deadline - time.monotonic())
            data = os.read(pipe.fileno(), 1 << 16) if ready else b""
            assert data, f"the log never said {wanted!r}, but: {self.log[-2000:]!r}"
            self.log += data
        return next(line for line in self.log.decode(errors="replace").splitlines() if wanted.decode() in line)

    def wait_listening(self) -> Running:
        """Listening is known from the record, which is the same in every flavour, also while loading."""
        self.address = self.wait_record("listening")["address"]
        return self

    def wait_ready(self) -> Running:
        self.address = self.wait_record("ready")["address"]
        return self

    def record(self, event: str = "") -> list[dict[str, Any]]:
        text = self.record_path.read_text() if self.record_path.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if event in ("", line["event"])]

    def wait_record(self, event: str, times: int = 1) -> dict[str, Any]:
        eventually(lambda: len(self.record(event)) >= times)
        return self.record(event)[times - 1]

    def connect(self) -> http.client.HTTPConnection:
        kind, _, rest = self.address.partition("://")
        connection = http.client.HTTPConnection("localhost" if kind == "unix" else rest, timeout=BOUND_S)
        if kind == "unix":
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(BOUND_S)
            connection.sock.connect(rest)
        return connection

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            data = answer.read()
        return answer.status, json.loads(data) if "json" in answer.headers["Content-Type"] else data.decode()

    def chat(self, **more: Any) -> tuple[int, Any]:
        return self.ask("POST", "/v1/chat/completions", {**CHAT, **more})

    def raw_chat(self, **more: Any) -> socket.socket:
        """A stream request on a socket of its own, so that a test can hang up in the middle."""
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=BOUND_S)
        body = json.dumps({**CHAT, "stream": True, **more}).encode()
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        return sock

    def stream(self, **more: Any) -> bytes:
        """Every byte of a streamed answer, until the engine closes or ends it."""
        data = b""
        with self.raw_chat(**more) as sock:
            while not data.endswith(b"\r\n0\r\n\r\n"):
                piece = sock.recv(1 << 16)
                if not piece:
                    break
                data += piece
        return data

    def end(self) -> int:
        return self.process.wait(BOUND_S)


def eventually(condition: Callable[[], object], bound_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts fake engines, and ends them and every helper of theirs afterwards."""
    started: list[Running] = []

    def run(*options: str, log: str = "stdout", env: dict[str, str] | None = None) -> Running:
        record = tmp_path / f"record-{len(started)}.jsonl"
        argv = [sys.executable, "-m", "stoker.testing.fake_engine", "--record", str(record), *options]
        variables = {"PATH": os.environ["PATH"], **(env or {})}
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)
        started.append(Running(process, record, log))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        running.process.wait(BOUND_S)
        for child in running.record("child"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child["child"], signal.SIGKILL)
        for pipe in (running.process.stdout, running.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def llama(start: Start) -> Start:
    def run(*options: str, **more: Any) -> Running:
        return start("--flavour", "llama-cpp", *options, log="stderr", **more)

    return run


# the start


def test_it_says_when_it_is_ready_and_then_is(start: Start) -> None:
    running = start().wait_ready()
    (record,) = running.record("ready")
    assert record["at"] > 0
    assert running.chat()[0] == 200


def test_every_option_is_also_a_variable_and_the_argument_wins(start: Start) -> None:
    running = start("--text", "from the argument", env={"FAKE_TEXT": "from the variable", "FAKE_CTX": "777"})
    running.wait_ready()
    assert running.chat()[1]["choices"][0]["message"]["content"] == "from the argument"
    assert running.ask("GET", "/props")[1]["default_generation_settings"]["n_ctx"] == 777


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--stall", "nowhere"), "nowhere"),
        (("--load", "soon"), "soon"),
        (("--fork-child=odd",), "odd"),
        (("--flavour", "none"), "none"),
    ],
)
def test_an_unknown_value_is_refused_by_name(start: Start, options: tuple[str, ...], named: str) -> None:
    running = start(*options)
    _, err = running.process.communicate(timeout=BOUND_S)
    assert running.process.returncode == 1
    assert named in err.decode()


def test_load_answers_per_route_until_the_time_is_over(start: Start) -> None:
    running = start("--load", "1s@health=503,models=200,chat=500").wait_listening()
    assert running.ask("GET", "/health")[0] == 503
    assert running.ask("GET", "/v1/models")[0] == 200
    assert running.chat()[0] == 500
    assert not running.record("ready")
    ready = running.wait_record("ready")
    assert ready["at"] - running.record("start")[0]["at"] >= 1.0
    assert running.ask("GET", "/health") == (200, {"status": "ok"})


def test_load_with_refuse_keeps_the_port_closed_and_steps_print_percents(llama: Start) -> None:
    running = llama("--load", "0.4s@refuse,steps=4")
    running.wait_ready()
    listening, ready = running.record("listening")[0]["at"], running.record("ready")[0]["at"]
    assert listening - running.record("start")[0]["at"] >= 0.4
    assert ready >= listening
    running.read_log_until(b"100% of the weights")
    assert [f"{percent}% of" in running.log.decode() for percent in (25, 50, 75, 100)] == [True] * 4


def test_crash_load_dies_at_its_share_of_the_load(start: Start) -> None:
    running = start("--load", "0.4s", "--crash-load", "50%", "--exit-code", "3")
    assert running.end() == 3
    took = running.record("exit")[0]["at"] - running.record("listening")[0]["at"]
    assert took >= 0.2
    assert not running.record("ready")


@pytest.mark.parametrize("kind", ["argument", "port", "library", "driver", "architecture", "quantization", "file"])
def test_fail_prints_the_real_text_among_decoys_and_leaves_with_its_status(llama: Start, kind: str) -> None:
    texts = {
        "argument": "invalid argument: --nonsense",
        "port": "couldn't bind HTTP server socket",
        "library": "error while loading shared libraries: libggml-base.so.0:",
        "driver": "CUDA driver version is insufficient",
        "architecture": "unknown model architecture: 'fake'",
        "quantization": "has invalid ggml type",
        "file": "data is not within the file bounds",
    }
    running = llama("--fail", kind)
    _, err = running.process.communicate(timeout=BOUND_S)
    assert texts[kind] in err.decode()
    assert "common_fit_params:" in err.decode()
    assert running.process.returncode == (127 if kind == "library" else 1)


def test_fail_zero_leaves_with_status_0_although_nobody_asked(llama: Start) -> None:
    assert llama("--fail", "zero").end() == 0


@pytest.mark.parametrize(
    ("where", "text"),
    [("load", "unable to allocate CUDA0 buffer"), ("kv", "buffer for kv cache"), ("graphs", "compute pp buffers")],
)
def test_oom_while_loading_names_the_allocation(llama: Start, where: str, text: str) -> None:
    running = llama("--oom", where)
    _, err = running.process.communicate(timeout=BOUND_S)
    assert running.process.returncode == 1
    assert text in err.decode()
    assert "cudaMalloc failed: out of memory" in err.decode()


def test_oom_while_serving_ends_by_abort_at_the_first_work(llama: Start) -> None:
    running = llama("--oom", "serve").wait_ready()
    assert running.ask("GET", "/health")[0] == 200
    with pytest.raises(OSError):
        running.chat()
    assert running.end() == -signal.SIGABRT
    running.read_log_until(b"CUDA error: out of memory")


@pytest.mark.parametrize("mode", ["exit", "stay", "late"])
def test_a_taken_port_ends_the_engine_or_leaves_it_deaf_or_waiting(llama: Start, mode: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        running = llama("--port", str(holder.getsockname()[1]), "--port-busy", mode)
        running.read_log_until(b"couldn't bind HTTP server socket")
        if mode == "exit":
            assert running.end() == 1
            return
        running.wait_record("port-busy")
        assert running.process.poll() is None
    if mode == "late":
        assert running.wait_ready().ask("GET", "/health")[0] == 200
    else:
        assert not running.record("listening")


# answers


def test_the_answer_its_speed_and_the_first_token_are_as_told(start: Start) -> None:
    running = start("--ttft", "0.2", "--tps", "20", "--text", "one two three four five").wait_ready()
    began = time.monotonic()
    status, answer = running.chat()
    took = time.monotonic() - began
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "one two three four five"
    assert answer["usage"]["completion_tokens"] == 5
    assert took >= 0.2 + 4 / 20


def test_prefill_takes_its_time_per_prompt_token(start: Start) -> None:
    running = start("--prefill-tps", "100").wait_ready()
    began = time.monotonic()
    running.ask("POST", "/v1/completions", {"prompt": "word " * 40})
    assert time.monotonic() - began >= 0.4


def test_the_same_request_and_seed_give_the_same_bytes(start: Start) -> None:
    one, two = start("--seed", "5").wait_ready(), start("--seed", "5").wait_ready()
    assert one.stream() == two.stream()
    assert one.ask("POST", "/v1/embeddings", {"input": "x"}) == two.ask("POST", "/v1/embeddings", {"input": "x"})


def test_a_stream_has_role_words_finish_usage_and_end_mark(start: Start) -> None:
    body = start().wait_ready().stream(stream_options={"include_usage": True})
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    chunks = [json.loads(event) for event in events[:-1]]
    assert events[-1].strip() == b"[DONE]"
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1]) == TEXT
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 12


def test_a_limit_cuts_and_ignore_eos_goes_on_to_the_window(start: Start) -> None:
    running = start("--ctx", "50").wait_ready()
    cut = running.chat(max_tokens=3)[1]
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 3)
    assert running.chat(ignore_eos=True)[1]["usage"]["total_tokens"] == 50


def test_a_prompt_beyond_the_window_is_refused_in_the_flavours_words(llama: Start) -> None:
    running = llama("--ctx-size", "200", "--parallel", "2").wait_ready()
    status, answer = running.ask("POST", "/v1/completions", {"prompt": "word " * 150})
    assert status == 400
    assert answer["error"]["type"] == "exceed_context_size_error"
    assert (answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (150, 100)


def test_slots_bound_what_runs_at_once_and_the_others_wait(start: Start) -> None:
    running = start("--slots", "2", "--tps", "10", "--text", "a b c d").wait_ready()
    sockets = [running.raw_chat() for _ in range(3)]
    eventually(lambda: sum(slot["is_processing"] for slot in running.ask("GET", "/slots")[1]) == 2)
    text = running.ask("GET", "/metrics")[1]
    assert "llamacpp:requests_processing 2" in text
    assert "llamacpp:requests_deferred 1" in text
    for sock in sockets:
        eventually(lambda sock=sock: b"[DONE]" in sock.recv(1 << 16))
        sock.close()


def test_the_record_holds_arguments_variable_names_and_raw_request_bytes(start: Start) -> None:
    running = start("--text", "x", env={"FAKE_SEED": "3", "SECRET": "hidden"}).wait_ready()
    running.ask("POST", "/tokenize", {"content": "a b"}, **{"X-Odd": "yes"})
    began = running.record("start")[0]
    assert "--text" in began["argv"]
    assert {"FAKE_SEED", "SECRET"} <= set(began["env"])
    assert "hidden" not in running.record_path.read_text()
    raw = running.record("request")[0]["raw"]
    assert raw.startswith("POST /tokenize HTTP/1.1\r\n")
    assert raw.endswith('\r\n\r\n{"content": "a b"}')


# memory and helpers


def test_ram_is_really_touched_and_grows_as_told(start: Start) -> None:
    running = start("--ram-mib", "64", "--grow", "40/s").wait_ready()
    process = psutil.Process(running.process.pid)
    first = process.memory_info().rss
    assert first >= 64 << 20
    eventually(lambda: process.memory_info().rss >= first + (10 << 20))


def test_plain_helpers_are_children_in_the_same_group(start: Start) -> None:
    running = start("--fork-child", "--fork-child").wait_ready()
    children = [child["child"] for child in running.record("child")]
    assert len(children) == 2
    assert all(os.getpgid(child) == os.getpgid(running.process.pid) for child in children)


def test_a_helper_can_leave_the_session_change_its_name_and_lose_its_variables(start: Start) -> None:
    running = start("--fork-child", "new-session,rename", env={"STOKER_UNIT": "x:1"}).wait_ready()
    child = psutil.Process(running.record("child")[0]["child"])
    eventually(lambda: child.cmdline()[:1] == ["renamed-helper"])
    assert os.getsid(child.pid) == child.pid
    assert child.environ() == {}


def test_a_helper_can_close_every_descriptor(start: Start) -> None:
    running = start("--fork-child", "close-fds").wait_ready()
    child = psutil.Process(running.record("child")[0]["child"])
    eventually(lambda: child.num_fds() == 0)


def test_a_helper_can_hold_the_port_after_the_engine_is_dead(start: Start) -> None:
    running = start("--fork-child", "hold-port").wait_ready()
    port = int(running.address.rpartition(":")[2])
    running.process.kill()
    running.end()
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port), reuse_port=False)


def test_without_hold_port_the_port_is_free_after_the_end(start: Start) -> None:
    running = start("--fork-child").wait_ready()
    port = int(running.address.rpartition(":")[2])
    child = psutil.Process(running.record("child")[0]["child"])
    eventually(lambda: child.num_fds() <= 3)
    running.process.kill()
    running.end()
    socket.create_server(("127.0.0.1", port)).close()


def test_a_helper_can_ignore_term(start: Start) -> None:
    running = start("--fork-child", "ignore-term", "--fork-child", "").wait_ready()
    stubborn, meek = (psutil.Process(child["child"]) for child in running.record("child"))
    eventually(lambda: all(child.num_fds() <= 3 for child in (stubborn, meek)))
    stubborn.terminate()
    meek.terminate()
    eventually(lambda: meek.status() == psutil.STATUS_ZOMBIE)
    assert stubborn.is_running()
    assert stubborn.status() != psutil.STATUS_ZOMBIE


# the end


def test_term_ends_it_with_status_0_and_is_recorded(start: Start) -> None:
    running = start().wait_ready()
    running.process.terminate()
    assert running.end() == 0
    assert running.record("signal")[0]["name"] == "SIGTERM"
    assert running.record("exit")[0]["code"] == 0


def test_exit_code_and_term_delay_shape_the_asked_end(start: Start) -> None:
    running = start("--exit-code", "9", "--term-delay", "0.3").wait_ready()
    running.process.terminate()
    assert running.end() == 9
    assert running.record("exit")[0]["at"] - running.record("signal")[0]["at"] >= 0.3


def test_ignored_term_leaves_it_running(start: Start) -> None:
    running = start("--ignore-term").wait_ready()
    running.process.terminate()
    running.wait_record("signal")
    assert running.ask("GET", "/health")[0] == 200


def test_llama_waits_for_an_open_stream_and_a_second_term_ends_it_with_1(llama: Start) -> None:
    running = llama("--tps", "2").wait_ready()
    with running.raw_chat() as sock:
        assert sock.recv(1 << 16)
        running.process.terminate()
        running.wait_record("signal")
        assert running.process.poll() is None
        running.process.terminate()
        assert running.end() == 1


def test_llama_ends_as_soon_as_the_last_stream_is_closed(llama: Start) -> None:
    running = llama("--tps", "2").wait_ready()
    with running.raw_chat() as sock:
        assert sock.recv(1 << 16)
        running.process.terminate()
        running.wait_record("signal")
    assert running.end() == 0


def test_crash_after_seconds_with_a_signal(start: Start) -> None:
    running = start("--crash-after", "100ms", "--die-by", "SEGV")
    assert running.end() == -signal.SIGSEGV
    assert running.record("exit")[0]["signal"] == "SIGSEGV"


def test_crash_after_requests_dies_when_that_many_are_answered(start: Start) -> None:
    running = start("--crash-after", "2req").wait_ready()
    assert running.chat()[0] == 200
    assert running.chat()[0] == 200
    assert running.end() == 1
    assert running.record("exit")[0]["cause"] == "requests"


def test_crash_after_tokens_dies_in_the_middle_of_a_stream(start: Start) -> None:
    running = start("--crash-after", "5tok", "--exit-code", "4").wait_ready()
    body = running.stream()
    assert body.count(b"content") == 5
    assert b"[DONE]" not in body
    assert running.end() == 4


def test_crash_on_a_word_spares_the_requests_without_it(start: Start) -> None:
    running = start("--crash-on", "POISON", "--die-by", "KILL").wait_ready()
    assert running.chat()[0] == 200
    with pytest.raises(OSError):
        running.chat(note="POISON")
    assert running.end() == -signal.SIGKILL


# stalls


def test_stalled_load_keeps_loading_until_its_time_is_over(start: Start) -> None:
    running = start("--stall", "load", "--for", "0.4").wait_listening()
    assert running.ask("GET", "/health")[0] == 503
    ready = running.wait_record("ready")
    assert ready["at"] - running.record("stall")[0]["at"] >= 0.4


@pytest.mark.parametrize("place", ["health", "prefill", "answer-head"])
def test_a_stall_without_end_gives_no_answer_while_the_process_lives(start: Start, place: str) -> None:
    running = start("--stall", place).wait_ready()
    connection = running.connect()
    if place == "health":
        connection.request("GET", "/health")
    else:
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT))
    running.wait_record("stall")
    assert not select.select([connection.sock], [], [], 0.2)[0]
    assert running.process.poll() is None
    if place != "health":
        assert running.ask("GET", "/health")[0] == 200
    connection.close()


def test_a_stalled_decode_sends_half_and_then_nothing(start: Start) -> None:
    running = start("--stall", "decode").wait_ready()
    with running.raw_chat() as sock:
        running.wait_record("stall")
        sock.settimeout(0.3)
        data = b""
        with contextlib.suppress(TimeoutError):
            while piece := sock.recv(1 << 16):
                data += piece
        assert data.count(b'"content":"') == 6
        assert b"[DONE]" not in data


# logs


def test_noise_fills_each_stream_with_exactly_so_many_bytes(start: Start) -> None:
    running = start("--noise", "stdout=200KiB,stderr=100KiB", "--crash-after", "10ms")
    out, err = running.process.communicate(timeout=BOUND_S)
    assert len(err) == 100 << 10
    assert (
        len(out) - out.index(b"noise") - len(b"listening on \n") - len(running.record("ready")[0]["address"])
        == 200 << 10
    )


def test_long_bad_and_repainted_lines_are_printed_as_told(start: Start) -> None:
    running = start("--long-line", "200KiB", "--bad-utf8", "--bare-cr", "--crash-after", "10ms")
    out, _ = running.process.communicate(timeout=BOUND_S)
    assert b"x" * (200 << 10) + b"\n" in out
    assert b"\xff\xfe" in out
    assert b"progress 50%\rprogress 60%\r" in out


# streams that break, clients that leave


@pytest.mark.parametrize("style", ["cut", "half-event"])
def test_a_cut_stream_ends_without_its_last_chunk(start: Start, style: str) -> None:
    body = start("--break", style).wait_ready().stream()
    assert b"[DONE]" not in body
    assert not body.endswith(b"\r\n0\r\n\r\n")
    last = body.rstrip(b"\r\n").rpartition(b"\r\n")[2]
    assert (style == "half-event") == (last.startswith(b"data: ") and not last.endswith(b"}"))


def test_a_plain_answer_that_is_cut_is_shorter_than_its_length(start: Start) -> None:
    running = start("--break", "cut").wait_ready()
    with pytest.raises(http.client.IncompleteRead):
        running.chat()


def test_no_done_ends_well_formed_without_the_mark(start: Start) -> None:
    body = start("--break", "no-done").wait_ready().stream()
    assert b'"finish_reason":"stop"' in body
    assert b"[DONE]" not in body
    assert body.endswith(b"\r\n0\r\n\r\n")


def test_error_event_stands_inside_a_200_and_is_followed_by_the_end_mark(start: Start) -> None:
    body = start("--break", "error-event").wait_ready().stream()
    assert body.startswith(b"HTTP/1.1 200")
    assert b'data: {"error":' in body
    assert b"[DONE]" in body
    assert b'"finish_reason":"stop"' not in body


def test_slow_loris_sends_byte_by_byte(start: Start) -> None:
    running = start("--break", "slow-loris", "--text", "a").wait_ready()
    with running.raw_chat() as sock:
        data = b""
        while data.count(b"\r\n1\r\n") < 4:
            data += sock.recv(1 << 16)
    running.wait_record("abort")


def test_a_client_that_leaves_is_recorded_and_frees_the_slot(start: Start) -> None:
    running = start("--tps", "5").wait_ready()
    with running.raw_chat() as sock:
        assert sock.recv(1 << 16)
    running.wait_record("abort")
    eventually(lambda: not any(slot["is_processing"] for slot in running.ask("GET", "/slots")[1]), 0.5)


def test_an_engine_that_runs_on_keeps_the_slot_to_the_end(start: Start) -> None:
    running = start("--tps", "20", "--runs-on").wait_ready()
    with running.raw_chat() as sock:
        assert sock.recv(1 << 16)
    running.wait_record("abort")
    assert running.ask("GET", "/slots")[1][0]["is_processing"]
    assert running.wait_record("ran-on")["tokens"] == 12


def test_keepalive_closes_an_idle_connection_after_its_time(start: Start) -> None:
    running = start("--keepalive", "0.2").wait_ready()
    connection = running.connect()
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    assert "timeout=0.2" in answer.headers["Keep-Alive"]
    assert connection.sock.recv(1) == b""
    connection.close()


def test_one_connection_serves_several_requests_and_http_1_0_gets_one(start: Start) -> None:
    running = start().wait_ready()
    connection = running.connect()
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
    connection.close()
    host, _, port = running.address.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert answer.endswith(b'{"status":"ok"}')
    assert b"chunked" not in answer


# the flavour of llama.cpp


def test_llama_takes_the_adapters_arguments_and_passes_over_unknown_ones(llama: Start, tmp_path: Path) -> None:
    socket_path = tmp_path / "e.sock"
    running = llama(
        "--model", "/models/x.gguf", "--alias", "my-model", "--host", str(socket_path), "--port", "0", "--no-ui",
        "--offline", "--ctx-size", "8192", "--parallel", "4", "--no-kv-unified", "--fit", "off", "--metrics", "--slots",
        "--cache-type-k", "q8_0", "--load-mode", "mmap", "--log-verbosity", "4", "--anything-new", "7",
        env={"LLAMA_API_KEY": "s3cret"},
    )  # fmt: skip
    line = running.read_log_until(b"listening on")
    assert line.endswith(f"listening on unix://{socket_path}")
    assert "n_slots = 4, n_ctx_slot = 2048" in running.log.decode()
    running.wait_ready()
    key = {"Authorization": "Bearer s3cret"}
    assert running.ask("GET", "/health")[0] == 200
    assert running.ask("GET", "/slots")[0] == 401
    assert running.ask("GET", "/slots", Authorization="bearer s3cret")[0] == 401
    assert len(running.ask("GET", "/slots", **key)[1]) == 4
    props = running.ask("GET", "/props", **key)[1]
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (4, 2048)
    assert props["model_alias"] == "my-model"
    assert "llamacpp:prompt_tokens_total 0" in running.ask("GET", "/metrics", **key)[1]


def test_llama_logs_when_a_slot_works_and_when_it_is_free(llama: Start) -> None:
    running = llama().wait_ready()
    running.chat()
    assert "slot launch_slot_: id  0 | task 1 |" in running.read_log_until(b"launch_slot_")
    assert "slot      release: id  0 | task 1 |" in running.read_log_until(b"release:")


def test_llama_without_its_switches_has_no_metrics_embeddings_or_slot_files(llama: Start) -> None:
    running = llama().wait_ready()
    assert running.ask("GET", "/metrics")[0] == 501
    assert running.ask("POST", "/v1/embeddings", {"input": "x"})[0] == 501
    assert running.ask("POST", "/slots/0?action=save", {"filename": "a"})[0] == 501
    assert running.ask("GET", "/nothing")[0] == 404


@pytest.mark.parametrize(
    ("word", "text"),
    [("--version", "version: 9999"), ("--help", "--ctx-size N"), ("--list-devices", "Available devices:")],
)
def test_llama_prints_what_a_build_probe_asks_and_leaves(llama: Start, word: str, text: str) -> None:
    out, err = (process := llama(word).process).communicate(timeout=BOUND_S)
    assert text in (out + err).decode()
    assert process.returncode == 0


@pytest.mark.parametrize("restore", ["ok", "lie", "fail"])
def test_a_restore_works_lies_or_fails(llama: Start, tmp_path: Path, restore: str) -> None:
    running = llama("--slot-save-path", f"{tmp_path}/", "--parallel", "1", "--restore", restore).wait_ready()
    prompt = {"prompt": "one two three four five"}
    assert running.ask("POST", "/v1/completions", prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert running.ask("POST", "/slots/0?action=save", {"filename": "a.bin"})[1]["n_saved"] == 5
    assert running.ask("POST", "/slots/0?action=erase", {})[1]["n_erased"] == 5
    status, _ = running.ask("POST", "/slots/0?action=restore", {"filename": "a.bin"})
    assert status == (400 if restore == "fail" else 200)
    cached = running.ask("POST", "/v1/completions", prompt)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == (4 if restore == "ok" else 0)


def test_cached_tokens_can_lie(start: Start) -> None:
    running = start("--cached-tokens", "lie").wait_ready()
    usage = running.chat()[1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] == 3
