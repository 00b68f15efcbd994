"""What every request passes: callers, Host and Origin, methods, bodies, defects (C-1, C-2, C-11; BR-1001)."""

from __future__ import annotations

import json
import logging
import os

import httpx2
import pytest
from control_rig import TOKEN, problem, running

from stoker.control import bodies
from stoker.control.routes.streams import _event
from stoker.runtime.effects import KernelFault

pytestmark = pytest.mark.anyio


async def test_a_tcp_caller_needs_the_control_token_for_everything_but_two_routes() -> None:
    """C-1, R-106, against the route table itself: acceptance 4."""
    async with running(a=10) as rig:
        paths = rig.app.openapi()["paths"]
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=rig.app), base_url="http://127.0.0.1:5152"
        ) as client:
            for path, described in paths.items():
                spelled = path.replace("{name}", "a").replace("{ref}", "a").replace("{generation}", "1")
                for method in described:
                    answer = await client.request(method.upper(), spelled)
                    if path in {"/livez", "/readyz"}:
                        assert answer.status_code == 200
                    else:
                        problem(answer, 401, "invalid-key")
                        assert answer.headers["www-authenticate"] == "Bearer"
            problem(await client.get("/v1/no-such-route"), 401, "invalid-key")


@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN} x", "Bearer ä",
     "Bearer " + "x" * 60_000],
)  # fmt: skip
async def test_everything_that_is_not_the_token_gets_one_answer(value: str) -> None:
    async with running() as rig, rig.client() as client:
        answer = await client.get("/v1/status", headers={"authorization": value.encode()})
        members = problem(answer, 401, "invalid-key")
        assert members["message"] == "This address needs the control token of the running daemon."


async def test_two_tokens_are_no_token() -> None:
    async with running() as rig, rig.client() as client:
        fields = [("authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {TOKEN}")]
        request = httpx2.Request("GET", "http://localhost:5152/v1/status", headers=fields)
        problem(await client.send(request), 401, "invalid-key")


async def test_without_a_token_of_its_own_the_daemon_lets_nobody_in() -> None:
    async with running() as rig, rig.client() as client:
        rig.app.state.desk.token = ""
        problem(await client.get("/v1/status", headers={"authorization": "Bearer "}), 401, "invalid-key")


async def test_our_own_account_and_root_need_no_token_on_the_unix_socket() -> None:
    async with running() as rig:
        for uid in {0, os.getuid()}:
            async with rig.client(uid=uid) as client:
                assert (await client.get("/v1/status", headers={"host": "anything"})).status_code == 200
        for uid in (65534, -1):
            async with rig.client(uid=uid) as client:
                problem(await client.get("/v1/status"), 403, "scope-missing")
                answer = await client.get("/v1/status", headers={"authorization": f"Bearer {TOKEN}"})
                problem(answer, 403, "scope-missing")


HOSTS = (
    ("localhost", 200), ("LOCALHOST:5152", 200), ("localhost.", 200), ("127.0.0.1", 200), ("127.0.0.1:1", 200),
    ("[::1]", 200), ("[::1]:5152", 200), ("[0:0:0:0:0:0:0:1]:5152", 200), ("localhost.:80", 200),
    ("evil.example", 403), ("evil.example:5152", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil", 403),
    ("127.0.0.2", 403), ("0.0.0.0", 403), ("[::2]", 403), ("localhost..", 403), ("xn--localhost-", 403),
    ("localhost@evil.example", 400), ("evil.example@localhost", 400), ("localhost:x", 400), ("localhost:99999", 400),
    ("", 400), ("local host", 400), ("localhost/", 400), ("[::1", 400), ("localhost:", 400),
)  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS)
async def test_br_1001_only_loopback_names_are_hosts(host: str, status: int) -> None:
    """R-103."""
    async with running(a=10) as rig, rig.client() as client:
        before = rig.state()
        for method, path in (("GET", "/livez"), ("GET", "/v1/events"), ("POST", "/v1/deployments/a/-/load")):
            if (status, path) == (200, "/v1/events") or (status == 200 and method == "POST"):
                continue
            answer = await client.request(method, path, headers={"host": host})
            if status == 200:
                assert answer.status_code == 200
            else:
                problem(answer, status, {403: "host-not-allowed", 400: "malformed-request"}[status])
        assert rig.state() == before


async def test_br_1001_two_hosts_or_none_are_refused() -> None:
    async with running() as rig:
        for fields in (
            [],
            [(b"host", b"localhost"), (b"host", b"localhost")],
            [(b"host", b"localhost"), (b"Host", b"x")],
        ):
            problem(await _raw(rig.app, "GET", "/livez", fields), 400, "malformed-request")
        assert (await _raw(rig.app, "GET", "/livez", [], http_version="1.0")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 202),
        ({"origin": "http://localhost:5152"}, 202),
        ({"origin": "http://localhost:5152", "sec-fetch-site": "same-origin"}, 202),
        ({"sec-fetch-site": "none"}, 202),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "*"}, 403),
        ({"origin": "https://localhost:5152"}, 403),
        ({"origin": "http://localhost:5153"}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "http://localhost:5152.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "Cross-Site"}, 403),
        ({"origin": "http://localhost:5152", "sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_br_1001_a_foreign_page_causes_nothing(fields: dict[str, str], status: int) -> None:
    """R-105: for every method, with and without the token, before the path is looked at."""
    async with running(a=10) as rig, rig.client() as client:
        before = rig.state()
        if status == 202:
            assert (await client.post("/v1/deployments/a/-/load", headers=fields)).status_code == 202
            return
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for path in ("/v1/deployments/a/-/load", "/v1/status", "/livez", "/v1/none"):
                answer = await client.request(method, path, headers={**fields, "content-type": "text/plain"})
                problem(answer, 403, "origin-not-allowed")
                assert not [name for name in answer.headers if name.startswith("access-control")]
        assert rig.state() == before


async def test_br_1001_no_answer_lets_a_foreign_page_read_it() -> None:
    async with running(a=10) as rig, rig.client() as client:
        for method, path in (("GET", "/v1/status"), ("OPTIONS", "/v1/status"), ("GET", "/v1/none")):
            answer = await client.request(method, path)
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/status", "GET"),
        ("HEAD", "/v1/status", "GET"),
        ("OPTIONS", "/v1/pools/ram", "PATCH"),
        ("POST", "/v1/deployments/a", "DELETE, GET, PUT"),
        ("GET", "/v1/deployments/a/b/-/load", "POST"),
        ("PROPFIND", "/v1/operations", "GET"),
    ],
)
async def test_a_wrong_method_names_the_right_ones(method: str, path: str, allow: str) -> None:
    """C-2."""
    async with running(a=10) as rig, rig.client() as client:
        answer = await client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allow
        if method != "HEAD":
            problem(answer, 405, "method-not-allowed")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid-json"),
        (b"[]", "invalid-json"),
        (b"null", "invalid-json"),
        (b'"drain"', "invalid-json"),
        (b'{"drain_s": NaN}', "invalid-json"),
        (b'{"drain_s": Infinity}', "invalid-json"),
        (b'{"drain_s": 1e999}', "invalid-json"),
        (b'{"mode": "now", "mode": "kill"}', "duplicate-field"),
        (b'{"mode": "\\ud800"}', "invalid-json"),
        (b'{"mode": "\xff"}', "invalid-json"),
        (b'{"drain_s": ' + b"9" * 5000 + b"}", "invalid-json"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "invalid-json"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "invalid-json"),
        (b'{"mode": "later"}', "invalid-parameter"),
        (b'{"mode": null}', "invalid-parameter"),
        (b'{"drain_s": "3"}', "invalid-parameter"),
        (b'{"drain_s": -1}', "invalid-parameter"),
        (b'{"drain_s": true}', "invalid-parameter"),
        (b'{"replica": 1.5}', "invalid-parameter"),
    ],
)
async def test_a_body_that_means_nothing_or_two_things_is_refused(body: bytes, code: str) -> None:
    async with running(a=10) as rig, rig.client() as client:
        before = rig.state()
        answer = await client.post(
            "/v1/deployments/a/-/unload", content=body, headers={"content-type": "application/json"}
        )
        problem(answer, 400, code)
        assert rig.state() == before


async def test_a_body_must_say_that_it_is_json() -> None:
    async with running(a=10) as rig, rig.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            answer = await client.post(
                "/v1/deployments/a/-/load", content=b"{}", headers={"content-type": kind} if kind else {}
            )
            problem(answer, 400, "malformed-request")
        answer = await client.post(
            "/v1/deployments/a/-/unload", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}
        )
        assert answer.status_code == 202


async def test_a_route_without_a_body_takes_none() -> None:
    async with running(a=10) as rig, rig.client() as client:
        problem(await client.post("/v1/deployments/a/-/pin", json={"pinned": True}), 400, "unknown-field")
        assert (await client.post("/v1/deployments/a/-/pin", json={})).status_code == 200


async def test_a_body_of_more_than_8_mib_is_refused_whether_or_not_it_says_so() -> None:
    """C-2."""
    async with running(a=10) as rig, rig.client() as client:
        big = b'{"settings": {"x": "' + b"x" * bodies.MOST_BYTES + b'"}}'
        headers = {"content-type": "application/json"}
        problem(await client.post("/v1/deployments/a/-/load", content=big, headers=headers), 413, "request-too-large")

        async def parts() -> object:
            for start in range(0, len(big), 1 << 20):
                yield big[start : start + (1 << 20)]

        answer = await client.post("/v1/deployments/a/-/load", content=parts(), headers=headers)
        problem(answer, 413, "request-too-large")


async def test_a_defect_is_told_without_its_trace_which_the_log_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C-11."""
    async with running() as rig, rig.client() as client:

        def fails(_: object) -> None:
            raise RuntimeError("the inside of Stoker")

        monkeypatch.setattr(type(rig.runtime), "pools", fails)
        with caplog.at_level(logging.ERROR):
            answer = await client.get("/v1/pools")
        members = problem(answer, 500, "internal")
        assert "inside" not in answer.text
        record = next(record for record in caplog.records if record.exc_info)
        assert members["details"]["error_id"] == vars(record)["error_id"]


async def test_a_fault_of_the_kernel_is_nobody_s_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the daemon; no boundary in between may swallow it."""
    async with running() as rig, rig.client() as client:
        met: list[BaseException] = []
        rig.app.state.desk.on_fault = met.append

        def breaks(_: object) -> None:
            raise KernelFault("broken")

        monkeypatch.setattr(type(rig.runtime), "pools", breaks)
        with pytest.raises(KernelFault):
            await client.get("/v1/pools")
        assert len(met) == 1


async def test_br_1003_planted_secrets_appear_in_no_answer() -> None:
    """C-46."""
    marks = {"env": "mark-env-4711", "args": "mark-args-4712", "settings": "mark-settings-4713", "url": "mark-url-4714"}
    async with running(m=10) as rig, rig.client() as client:
        body = {
            "reference": "m",
            "env": {"SOME_VALUE": marks["env"], "HF_TOKEN": marks["env"]},
            "engine_args": ["--api-key", marks["args"], f"--token={marks['args']}", f"http://me:{marks['url']}@host/"],
            "settings": {"api_key": marks["settings"]},
        }
        seen = [(await client.put("/v1/deployments/a", json=body)).text]
        seen.append((await client.put("/v1/deployments/a", json={**body, "slots": 2})).text)
        answer = await client.post(f"/v1/deployments/{TOKEN}/-/load", json={TOKEN: "x"})
        seen.append(answer.text)
        paths = ("deployments", "deployments/a", "snapshot", "status", "operations", "queue")
        seen += [(await client.get(f"/v1/{path}")).text for path in paths]
        desk = rig.app.state.desk
        seen += [_event(desk, "s", event.flat()).decode() for event in rig.runtime.bus._kept]
        for text in seen:
            for mark in (*marks.values(), TOKEN):
                assert mark not in text


async def _raw(
    app: object, method: str, path: str, headers: list[tuple[bytes, bytes]], *, http_version: str = "1.1"
) -> httpx2.Response:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.lower(), value) for name, value in headers], "http_version": http_version, "state": {},
    }  # fmt: skip
    await app(scope, receive, send)  # type: ignore[operator]
    body = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")  # type: ignore[misc]
    response = httpx2.Response(sent[0]["status"], headers=sent[0]["headers"], content=body)  # type: ignore[arg-type]
    json.loads(body)
    return response
