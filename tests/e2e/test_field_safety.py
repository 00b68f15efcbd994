"""Field cases of safety: web pages that reach the daemon, secrets, arguments that undo rules (BR-1001, 1003, 1005)."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from field import MESSAGES, FieldDaemon, Later, model, serving
from running import until

from stoker.hosts.process.procfs import marked

# -- BR-1001


def raw(address: str, *lines: str, body: bytes = b"") -> tuple[int, bytes]:
    """One request exactly as written, to the end of the connection; the status and everything that came."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as peer:
        head = [*lines, *([f"Content-Length: {len(body)}"] if body else []), "Connection: close", "", ""]
        peer.sendall("\r\n".join(head).encode("latin-1") + body)
        got = b"".join(iter(lambda: peer.recv(65536), b""))
    return int(got.split(b" ", 2)[1]), got


def body_of(got: bytes) -> Any:
    return json.loads(got.partition(b"\r\n\r\n")[2])


def code_of(got: bytes) -> str:
    found = body_of(got)
    return str(found["code"] if "code" in found else found["error"]["code"])


def state_of(daemon: FieldDaemon) -> Any:
    deployments = daemon.view("/v1/deployments")["items"]
    return [(each["name"], each["revision"], each["state"], each["sessions"]) for each in deployments]


FOREIGN_HOSTS = ["evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:{port}", "10.0.0.1", "evil"]
BAD_HOSTS = ["localhost@evil.example", "localhost:port", ""]
OWN_HOSTS = ["localhost", "LOCALHOST:{port}", "localhost.", "127.0.0.1", "[::1]:{port}", "127.0.0.1:1"]
ROUTES = {
    "gateway": ["GET /", "GET /livez", "GET /v1/models", "POST /v1/chat/completions", "GET /nowhere", "GET /metrics"],
    "control": ["GET /livez", "GET /v1/status", "GET /v1/events", "POST /v1/deployments/ash/-/load", "GET /nowhere"],
}


@pytest.fixture
def listening(home: Path, tiny_models: dict[str, Path]) -> Iterator[tuple[FieldDaemon, dict[str, str], list[str]]]:
    """A daemon with one loaded model, the addresses of both its listeners, and the control token as a header."""
    with serving(home, model("ash", tiny_models["ash"]), control_tcp=True) as daemon:
        assert daemon.chat("ash").status == 200
        found = daemon.view("/v1/status")["addresses"]
        token = (home / "run" / "control.token").read_text().strip()
        addresses = {"gateway": found["gateway"], "control": found["control_tcp"]}
        yield daemon, addresses, [f"Authorization: Bearer {token}"]


Listening = tuple[FieldDaemon, dict[str, str], list[str]]


@pytest.mark.parametrize("which", ROUTES)
def test_br_1001_a_foreign_host_is_refused_before_routing_on_every_route(which: str, listening: Listening) -> None:
    """R-103: 403 in JSON that names the setting; a malformed, doubled or missing Host is 400; own names pass."""
    daemon, addresses, token = listening
    address, port = addresses[which], addresses[which].rsplit(":", 1)[1]
    before = state_of(daemon)
    for route in ROUTES[which]:
        for host in FOREIGN_HOSTS:
            status, got = raw(address, f"{route} HTTP/1.1", f"Host: {host.format(port=port)}", *token)
            assert (status, code_of(got)) == (403, "host-not-allowed" if which == "control" else "host_not_allowed")
            assert b"trusted_hosts" in got
        for host in BAD_HOSTS:
            assert raw(address, f"{route} HTTP/1.1", f"Host: {host}", *token)[0] == 400, (route, host)
        assert raw(address, f"{route} HTTP/1.1", *token)[0] == 400
        assert raw(address, f"{route} HTTP/1.1", "Host: localhost", "Host: localhost", *token)[0] == 400
    for host in OWN_HOSTS:
        assert raw(address, "GET /livez HTTP/1.1", f"Host: {host.format(port=port)}")[0] == 200, host
    absolute, _ = raw(address, "GET http://evil.example/livez HTTP/1.1", "Host: localhost")
    assert absolute in {400, 403, 404}
    assert state_of(daemon) == before


ORIGINS = ["http://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:1", "https://localhost"]
ACTS = [
    "POST /v1/deployments/ash/-/load", "POST /v1/deployments/ash/-/unload", "DELETE /v1/deployments/ash",
    "PUT /v1/deployments/other", "POST /v1/sessions/1/stop",
]  # fmt: skip


def test_br_1001_a_page_of_another_origin_causes_nothing_and_may_read_nothing(listening: Listening) -> None:
    """R-105: on both listeners, every method, answers of errors included; a text body is no way around it."""
    daemon, addresses, token = listening
    before, chats = state_of(daemon), len(daemon.raw_requests("ash"))
    text = "Content-Type: text/plain"
    chat = json.dumps({"model": "ash", "messages": MESSAGES}).encode()
    for origin in ORIGINS:
        told = ["Host: localhost", f"Origin: {origin}"]
        for which, routes in ROUTES.items():
            for route in routes:
                status, got = raw(addresses[which], f"{route} HTTP/1.1", *told, *token)
                assert status == 403, (route, origin, got)
                assert b"access-control-allow" not in got.lower()
            asked, got = raw(
                addresses[which], "OPTIONS /v1/models HTTP/1.1", *told, "Access-Control-Request-Method: POST"
            )
            assert asked in {403, 405}
            assert b"access-control-allow" not in got.lower()
        for act in ACTS:
            assert raw(addresses["control"], f"{act} HTTP/1.1", *told, *token, text, body=b"{}")[0] == 403
        line = "POST /v1/chat/completions HTTP/1.1"
        assert raw(addresses["gateway"], line, *told, text, body=chat)[0] == 403
    assert (
        raw(addresses["gateway"], "GET /v1/models HTTP/1.1", "Host: localhost", "Sec-Fetch-Site: cross-site")[0] == 403
    )
    assert raw(addresses["gateway"], "GET /v1/models HTTP/1.1", "Host: localhost")[0] == 200
    assert state_of(daemon) == before
    assert len(daemon.raw_requests("ash")) == chats


def test_br_1001_an_allowed_origin_is_matched_whole(home: Path, tiny_models: dict[str, Path]) -> None:
    further = {"gateway": 'cors_origins = ["http://ui.example:3000"]'}
    with serving(home, model("ash", tiny_models["ash"]), further=further) as daemon:
        address = daemon.running.address
        line = "GET /v1/models HTTP/1.1"
        status, got = raw(address, line, "Host: localhost", "Origin: http://ui.example:3000")
        assert status == 200
        assert b"access-control-allow-origin: http://ui.example:3000" in got.lower()
        for origin in (
            "http://evil-ui.example:3000",
            "http://ui.example:3000.evil",
            "http://ui.example",
            "https://ui.example:3000",
        ):
            status, got = raw(address, line, "Host: localhost", f"Origin: {origin}")
            assert status == 403
            assert b"access-control-allow" not in got.lower()


# -- BR-1003

MARKS = {
    "client": "mark-client-3f9a7c51", "environment": "mark-environment-b82e40d7", "argument": "mark-argument-55d1e90c",
    "hub": "mark-hub-0c7715ae", "prompt": "mark-prompt-9917ab3e", "address": "mark-address-6b2f8d04",
}  # fmt: skip
TELLING = """
echo "key $LLAMA_API_KEY secret $MY_SECRET all $*"
echo "key $LLAMA_API_KEY secret $MY_SECRET" >&2
printf %s "$LLAMA_API_KEY" > token
"""
SURFACES = [
    "/v1/status", "/v1/health", "/v1/snapshot", "/v1/deployments", "/v1/deployments/ash", "/v1/sessions", "/v1/config",
    "/v1/models", "/v1/engines", "/v1/pools", "/v1/queue", "/v1/operations", "/v1/deployments/ash/-/attempts",
    "/v1/deployments/ash/-/logs", "/v1/logs", "/v1/openapi.json", "/metrics",
]  # fmt: skip


def follow_events(daemon: FieldDaemon) -> bytes:
    """Everything the event stream says until the daemon closes it."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(str(daemon.home / "run" / "control.sock"))
        peer.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return b"".join(iter(lambda: peer.recv(65536), b""))


def test_br_1003_planted_secrets_are_found_nowhere_but_in_their_own_places(
    home: Path, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-46 to S-48, C-46: after a start, a load, a chat, a failed load, a crash and refusals, at the most talkative level."""
    monkeypatch.setenv("HF_TOKEN", MARKS["hub"])
    secret = {"MY_SECRET": MARKS["environment"]}
    text = model("ash", tiny_models["ash"], fake={"crash_on": "poison"}, env=secret)
    text += model("birch", tiny_models["birch"], fake={"crash_load": 0}, env=secret)
    more = f'[log]\nlevel = "debug"\n[store]\nendpoint = "http://user:{MARKS["address"]}@hub.example"\noffline = true\n'
    with serving(home, text, room=400, prelude=TELLING, more=more) as daemon:
        events = Later(lambda: follow_events(daemon))
        header = {"authorization": f"Bearer {MARKS['client']}", "x-api-key": MARKS["client"]}
        body = {"model": "ash", "messages": [{"role": "user", "content": MARKS["prompt"]}]}
        assert (
            daemon.ask("POST", "/v1/chat/completions", body, {"authorization": header["authorization"]}).status == 200
        )
        assert daemon.chat("birch").status in {502, 503}
        assert daemon.say("ash", "poison").status == 502
        until(lambda: not daemon.sessions("ash"), 5, "the crash is noticed")
        spec = {"reference": f"file:{tiny_models['ash']}", "engine_args": ["--api-key", MARKS["argument"]]}
        daemon.control("PUT", "/v1/deployments/cedar", spec)
        daemon.chat("cedar")
        wrong = daemon.control("GET", "/v1/nowhere", None, header)
        assert wrong.status in {401, 404}
        assert daemon.chat("ash").status == 200
        engine_token = (daemon.records / "token").read_text()
        assert len(engine_token) >= 32
        control_token = (home / "run" / "control.token").read_text().strip()
        answers = {path: daemon.control("GET", path) for path in SURFACES}
        assert [path for path, got in answers.items() if got.status != 200] == []
        lines = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes())
        secrets = [*MARKS.values(), engine_token]
        for found in [engine_token, *MARKS.values(), control_token]:
            assert found.encode() not in lines, "in a process's arguments"
            for path, got in answers.items():
                assert found.encode() not in got.body, (path, found)
        for one in daemon.record("ash", "request"):
            assert MARKS["client"] not in one["raw"]
        for pid in {identity.pid for identity, _ in marked(daemon.running.scope())}:
            assert MARKS["hub"].encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        check_modes(home)
        assert check_files(home, [*secrets, control_token]) > 5
    said = events.result(10)
    assert b"session.crashed" in said
    for found in (*secrets, control_token):
        assert found.encode() not in said
    check_files(home, [*secrets, control_token])


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and os.path.exists(f"/proc/{name}/cmdline")]


def own_files(home: Path) -> Iterator[Path]:
    """What the product wrote: not its configuration, not the engines' records."""
    for folder in ("data", "run", "machine"):
        yield from (path for path in (home / folder).rglob("*") if path.is_file() and not path.is_symlink())


def check_files(home: Path, secrets: list[str]) -> int:
    """No secret in any file; the control token alone stands in its own. How many files there are."""
    count = 0
    for path in own_files(home):
        content = path.read_bytes()
        count += 1
        for found in secrets:
            if path.name != "control.token":
                assert found.encode() not in content, (path, found)
    return count


def check_modes(home: Path) -> None:
    """Files 0600 and folders 0700, whoever wrote them."""
    for folder in ("data", "run", "machine"):
        for path in [home / folder, *(home / folder).rglob("*")]:
            if not path.is_symlink():
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# -- BR-1005

UNDOING = [
    ["--host", "0.0.0.0"], ["--host=0.0.0.0"], ["--hos", "0.0.0.0"], ["--port", "1"], ["--port=1"],
    ["--api-key", "x"], ["--api_key", "x"], ["--api-key-file", "/x"], ["-m", "/etc/passwd"], ["--model", "/x"],
    ["--alias", "x"], ["-a", "x"], ["--path", "/"], ["--log-file", "/tmp/x"], ["--rpc", "10.0.0.1:1"],
    ["--hf-repo", "x/y"], ["-hf", "x/y"], ["--ctx-size", "1"], ["-c", "1"], ["--slot-save-path", "/tmp"],
    ["--props"], ["--tools", "all"], ["--seed", "1", "--host", "0.0.0.0"], ["0.0.0.0"], ["--temp"],
]  # fmt: skip
UNDOING_VARIABLES = ["LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "llama_arg_host", "LLAMA_API_KEY", "LD_PRELOAD", "STOKER_UNIT"]


def test_br_1005_arguments_and_variables_that_undo_the_rules_are_refused_by_name(
    home: Path, tiny_models: dict[str, Path]
) -> None:
    """E-27, E-28, S-46: in every spelling, through the operator's own call; nothing is started."""
    with serving(home, model("birch", tiny_models["birch"])) as daemon:
        base = {"reference": f"file:{tiny_models['ash']}", "slots": 1, "context_tokens": 1024, "stop_grace_s": 1}
        base |= {"declared_bytes": 100 << 20}
        for number, arguments in enumerate(UNDOING):
            refused = refusal(daemon, f"a{number}", {**base, "engine_args": arguments})
            named = next((word for word in reversed(arguments) if word.startswith("-")), arguments[0]).partition("=")[0]
            assert named in refused, (arguments, refused)
        for number, variable in enumerate(UNDOING_VARIABLES):
            refused = refusal(daemon, f"v{number}", {**base, "env": {variable: "0.0.0.0"}})
            assert variable in refused, refused
        assert [file.name for file in daemon.records.glob("*.pids")] == []
        allowed = {**base, "engine_args": ["--seed", "7", "--top-k=3"]}
        assert daemon.control("PUT", "/v1/deployments/ash", allowed).status == 200
        assert daemon.chat("ash").status == 200
        assert daemon.record("ash", "start")[0]["argv"][-3:] == ["--seed", "7", "--top-k=3"]


def refusal(daemon: FieldDaemon, name: str, spec: dict[str, Any]) -> str:
    """The sentence with which a deployment is refused: when it is put, or when it is first asked for."""
    put = daemon.control("PUT", f"/v1/deployments/{name}", spec)
    if put.status != 200:
        assert put.status == 400, put.body
        return str(put.json()["message"])
    asked = daemon.chat(name)
    assert 400 <= asked.status < 600, asked.body
    assert asked.error["code"] in {"bad_setting", "invalid_parameter"}, asked.body
    return str(asked.error["message"])


ODD_NAMES = ["$(touch x)", "; touch x", "a b", "it's", 'say "x"', "`touch x`", "a,b"]


def test_br_1005_odd_names_and_paths_reach_the_engine_as_one_argument_each_and_no_shell_reads_them(
    home: Path, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E-29, E-56: also a variable of the engine that is inherited by chance changes nothing."""
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_PORT", "9")
    folder = home / "it's $(touch x) a folder"
    folder.mkdir()
    odd = folder / '"quoted" & spaced; touch x.gguf'
    shutil.copy(tiny_models["ash"], odd)
    text = "".join(model(name, odd, fake={"text": "well"}) for name in ODD_NAMES)
    with serving(home, text, room=900) as daemon:
        for name in ODD_NAMES:
            got = daemon.chat(name)
            assert got.status == 200, got.body
            assert got.text == "well"
            live = daemon.sessions(name)[0]
            argv = live["launch"]["argv_shown"]
            served = f"m-{live['generation']}" if "," in name else name
            start = daemon.record(served, "start")[-1]
            assert start["argv"][start["argv"].index("--alias") + 1] == served
            assert start["argv"][start["argv"].index("--model") + 1] == str(odd)
            assert argv[argv.index("--host") + 1].endswith("/e.sock")
            assert not [name for name in start["env"] if name.startswith("LLAMA_ARG_")]
        assert listening_ports(daemon) == []
        for refused in ("--help", "-m", "line\nfeed"):
            spec = {"reference": f"file:{odd}"}
            put = daemon.control("PUT", f"/v1/deployments/{refused.replace(chr(10), '%0A')}", spec)
            assert put.status == 400, put.body
            assert put.json()["code"] in {"invalid-name", "malformed-request"}
    assert [path for path in (*home.rglob("x"), Path.cwd() / "x") if path.exists()] == []


def listening_ports(daemon: FieldDaemon) -> list[str]:
    """Addresses on which a process of any life listens: none, where engines use sockets."""
    inodes = set()
    for pid in daemon.engines_alive():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()]
    return [row[1] for row in rows if len(row) > 9 and row[3] == "0A" and row[9] in inodes]
