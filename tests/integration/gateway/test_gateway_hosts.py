"""Host and Origin on every route and method, before anything else is looked at (R-103 to R-105)."""

from __future__ import annotations

import asyncio

import pytest
from gateway_rig import Bench, Seen, chat, plain, until

pytestmark = pytest.mark.anyio

ROUTES = (
    ("GET", "/"), ("HEAD", "/"), ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/v1/models"),
    ("GET", "/v1/models/m"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/embeddings"),
    ("OPTIONS", "/v1/chat/completions"), ("DELETE", "/v1/models/m"), ("GET", "/nowhere"),
)  # fmt: skip
SERVED = ("localhost", "LOCALHOST.", "localhost:9999", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:5151", "[0:0::1]")
STOPPED = (
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:5151", "0.0.0.0", "127.0.0.2",
    "[::2]", "localhost..",
)  # fmt: skip
MALFORMED = (
    "localhost@evil.example",
    "user:pass@localhost",
    "localhost:port",
    "localhost:99999",
    "local host",
    "",
    "a/b",
)


def request(method: str, path: str, *lines: str, version: str = "1.1") -> bytes:
    body = '{"model":"m","messages":[]}' if method == "POST" else ""
    length = f"Content-Length: {len(body)}\r\nContent-Type: text/plain\r\n" if body else ""
    fields = "".join(line + "\r\n" for line in lines)
    return f"{method} {path} HTTP/{version}\r\n{fields}{length}\r\n{body}".encode()


@pytest.mark.parametrize("host", SERVED)
async def test_br_1001_own_names_are_served_whatever_port_capitals_or_dot(at: Bench, host: str) -> None:
    assert (await at.ask(request("GET", "/livez", f"Host: {host}"))).status == 200
    assert (await at.ask(request("POST", "/v1/chat/completions", f"Host: {host}"))).status == 200


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_br_1001_foreign_hosts_are_stopped_on_every_route(at: Bench, method: str, path: str) -> None:
    for host in STOPPED:
        got = await at.ask(request(method, path, f"Host: {host}"), method=method)
        assert got.status == 403, host
        if method != "HEAD":
            assert got.code == "host_not_allowed"
            assert got.json["error"]["stoker"]["details"] == {"setting": "gateway.trusted_hosts"}
    for host in MALFORMED:
        assert (await at.ask(request(method, path, f"Host: {host}"), method=method)).status == 400, host
    assert (await at.ask(request(method, path), method=method)).status == 400
    assert (await at.ask(request(method, path, "Host: localhost", "Host: localhost"), method=method)).status == 400
    two = request(method, path, "Host: localhost", "Host: evil.example", version="1.0")
    assert (await at.ask(two, method=method)).status == 400
    assert (at.uses.asked, at.engine.seen, at.uses.looked_up) == ([], [], [])


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_br_1001_foreign_origins_change_nothing_and_get_no_allowance(at: Bench, method: str, path: str) -> None:
    at.settings(cors_origins=("https://app.example:8443",))
    foreign = (
        ["Origin: https://evil.example"], ["Origin: null"], ["Origin: https://app.example"], ["Origin: *"],
        ["Origin: http://app.example:8443"], ["Origin: https://app.example:8443.evil.example"], ["Origin: "],
        ["Origin: https://x.app.example:8443"], ["Origin: http://localhost:81"], ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"], ["Origin: http://localhost", "Sec-Fetch-Site: cross-site"],
        ["Origin: https://app.example:8443", "Origin: https://evil.example"],
    )  # fmt: skip
    for lines in foreign:
        got = await at.ask(request(method, path, "Host: localhost", *lines), method=method)
        assert got.status == 403, lines
        assert [name for name in got.headers if name.startswith("access-control")] == []
        if method != "HEAD":
            assert got.code == "origin_not_allowed"
    assert (at.uses.asked, at.engine.seen) == ([], [])


async def test_br_1001_tools_and_own_pages_are_served_without_allowance(at: Bench) -> None:
    for lines in ([], ["Origin: http://localhost"], ["Sec-Fetch-Site: none"], ["Sec-Fetch-Site: same-origin"]):
        got = await at.ask(request("POST", "/v1/chat/completions", "Host: localhost", *lines))
        assert got.status == 200
        assert "access-control-allow-origin" not in got.headers


async def test_an_allowed_origin_is_echoed_on_answers_and_errors_without_credentials(at: Bench) -> None:
    origin = "https://app.example:8443"
    at.settings(cors_origins=(origin,))
    at.engine.script = plain(b"{}", extra=b"access-control-allow-origin: *\r\nvary: X\r\n")
    for method, path, status in (
        ("POST", "/v1/chat/completions", 200), ("GET", "/v1/models", 200), ("GET", "/nowhere", 404), ("PUT", "/livez", 405),
    ):  # fmt: skip
        got = await at.ask(request(method, path, "Host: localhost", f"Origin: {origin}", "Sec-Fetch-Site: cross-site"))
        assert got.status == status
        assert got.headers["access-control-allow-origin"] == origin
        assert got.head.count(b"access-control-allow-origin") == 1
        assert got.headers["vary"] == "Origin"
        assert "X-Request-Id" in got.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in got.headers


async def test_a_preflight_of_an_allowed_origin_is_answered_and_no_other(at: Bench) -> None:
    origin = "https://app.example:8443"
    at.settings(cors_origins=(origin,))
    asks = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type, authorization")
    preflight = request("OPTIONS", "/v1/chat/completions", "Host: localhost", f"Origin: {origin}", *asks)
    got = await at.ask(preflight)
    assert got.status == 204
    assert got.headers["access-control-allow-methods"] == "POST"
    assert got.headers["access-control-allow-headers"] == "content-type, authorization"
    assert (await at.ask(preflight.replace(b"app.example", b"evil.example"))).status == 403
    assert (await at.ask(request("OPTIONS", "/v1/chat/completions", "Host: localhost", *asks))).status == 405


async def test_a_changed_list_counts_from_the_next_request_and_hurts_no_stream(at: Bench) -> None:
    go = asyncio.Event()

    async def held(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        await plain(b"{}")(seen, writer)

    at.engine.script = held
    at.settings(trusted_hosts=("box.lan",))
    client = await at.client()
    client.send(chat().replace(b"Host: localhost", b"Host: Box.LAN."))
    await until(lambda: at.engine.seen)
    at.settings(trusted_hosts=())
    go.set()
    assert (await client.reply()).status == 200
    client.send(request("GET", "/livez", "Host: box.lan"))
    assert (await client.reply()).status == 403
    at.settings(trusted_hosts=("box.lan:81",))
    client.send(request("GET", "/livez", "Host: box.lan:81") + request("GET", "/livez", "Host: box.lan"))
    assert [(await client.reply()).status for _ in range(2)] == [200, 403]
