"""What the listener makes of HTTP itself, in exact bytes (R-51 to R-56)."""

from __future__ import annotations

import asyncio

import pytest
from gateway_rig import DONE, Bench, chat, event, plain, post, streamed, until

pytestmark = pytest.mark.anyio


async def test_a_plain_answer_comes_back_byte_for_byte(at: Bench) -> None:
    at.engine.script = plain(b'{"a": [1.10,1e-7, "\\u003c\xf0\x9f\x9a\x80"] }')
    got = await at.ask(chat())
    assert got.status == 200
    assert got.body == b'{"a": [1.10,1e-7, "\\u003c\xf0\x9f\x9a\x80"] }'
    assert got.headers["content-length"] == str(len(got.body))
    assert got.headers["stoker-speaker"] == "engine"
    assert got.headers["x-request-id"].startswith("req_")
    assert "server" not in got.headers
    assert [str(end) for end in at.uses.ends] == ["complete"]


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/m"])
async def test_head_answers_like_get_without_a_body_and_the_connection_stays_usable(at: Bench, path: str) -> None:
    client = await at.client()
    client.send(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = await client.reply(method="HEAD")
    client.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    got = await client.reply()
    assert head.status == got.status == 200
    assert head.headers["content-length"] == str(len(got.body)) == got.headers["content-length"]


async def test_http_1_0_is_answered_without_chunking_and_closed(at: Bench) -> None:
    at.engine.script = streamed(event("a"), event("", "stop"), DONE)
    client = await at.client()
    client.send(chat(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
    got = await client.reply()
    assert "transfer-encoding" not in got.headers
    assert "content-length" not in got.headers
    assert got.body == event("a") + event("", "stop") + DONE


async def test_http_1_0_needs_no_host(at: Bench) -> None:
    got = await at.ask(b"GET /livez HTTP/1.0\r\n\r\n")
    assert got.status == 200
    assert got.headers["connection"] == "close"


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: a\rb\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: a\r\n folded\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
)  # fmt: skip
async def test_br_505_what_can_be_read_in_two_ways_is_400_and_closes(at: Bench, head: bytes) -> None:
    client = await at.client()
    client.send(head)
    got = await client.reply()
    assert got.status == 400
    assert got.json["error"]["code"] == "malformed_request"
    assert got.headers["content-type"] == "application/json"
    assert await client.rest() == b""
    assert at.engine.seen == []
    assert at.uses.asked == []


async def test_pipelined_requests_are_answered_in_order(at: Bench) -> None:
    client = await at.client()
    client.send(
        b"".join(f"GET /v1/models/{n} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for n in ("m", "zz", "nick"))
    )
    client.send(chat())
    statuses = [(await client.reply()).status for _ in range(4)]
    assert statuses == [200, 404, 200, 200]


async def test_a_pipelined_request_that_is_broken_is_refused_after_those_before_it(at: Bench) -> None:
    client = await at.client()
    client.send(chat() + b"BROKEN\r\n\r\n")
    assert (await client.reply()).status == 200
    assert (await client.reply()).status == 400
    assert await client.rest() == b""


async def test_nothing_after_connection_close_is_read(at: Bench) -> None:
    client = await at.client()
    client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" + chat())
    assert (await client.reply()).status == 200
    assert await client.rest() == b""
    assert at.uses.asked == []


async def test_br_505_a_body_in_one_byte_chunks_reaches_the_engine_whole_with_one_length(at: Bench) -> None:
    body = b'{"model":"m","messages":[],"x":"\xe5\x8c\x97"}'
    client = await at.client()
    client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n"
    )
    for byte in body:
        client.send(b"1;ext=1\r\n" + bytes([byte]) + b"\r\n")
        await client.writer.drain()
    client.send(b"0\r\nX-Trailer: 1\r\n\r\n")
    assert (await client.reply()).status == 200
    (seen,) = at.engine.seen
    assert seen.body == body
    assert seen.header("content-length") == str(len(body))
    assert seen.header("transfer-encoding") is None
    assert seen.header("x-trailer") is None


async def test_br_505_continue_is_sent_when_the_body_is_wanted(at: Bench) -> None:
    body = b'{"model":"m","messages":[]}'
    client = await at.client()
    client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    interim = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 1.0)
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert (await client.reply()).status == 200
    assert at.engine.seen[0].header("expect") is None


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 404),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n", 403),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 200-maybe\r\nContent-Length: 9\r\n\r\n", 417),
    ],
)  # fmt: skip
async def test_br_505_a_refusal_comes_without_the_body_being_read(at: Bench, head: bytes, status: int) -> None:
    client = await at.client()
    client.send(head)
    got = await asyncio.wait_for(client.reply(), 1.0)
    assert got.status == status
    assert b"100 Continue" not in got.head
    assert await client.rest() == b""


async def test_br_505_25_mib_pass_through_the_spool(at: Bench) -> None:
    body = b'{"model":"nick","messages":[{"role":"user","content":"' + b"x" * (25 << 20) + b'"}]}'
    got = await at.ask(post(body))
    assert got.status == 200
    assert at.engine.seen[0].body == body.replace(b'"nick"', b'"m"')
    await until(lambda: at.gateway.room.memory_bytes == at.gateway.room.disk_bytes == 0)


@pytest.mark.parametrize("chunked", [False, True])
async def test_br_505_one_byte_over_the_limit_is_413_and_readable(at: Bench, chunked: bool) -> None:
    at.settings(max_body_bytes=200_000)
    body = b"x" * 200_001
    head = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 200001"
    client = await at.client()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
    client.send(b"30d41\r\n" + body + b"\r\n0\r\n\r\n" if chunked else body)
    got = await client.reply()
    assert got.status == 413
    assert got.json["error"]["code"] == "request_too_large"
    assert await client.rest() == b""
    assert at.engine.seen == []


async def test_bodies_of_one_limit_pass(at: Bench) -> None:
    body = b'{"model":"m","x":"' + b"y" * 1000 + b'"}'
    at.settings(max_body_bytes=len(body))
    assert (await at.ask(post(body))).status == 200


async def test_a_full_spool_is_503_for_the_next_large_body(at: Bench) -> None:
    at.settings(spool_bytes=1 << 20)
    got = await at.ask(post(b'{"model":"m","x":"' + b"y" * (3 << 20) + b'"}'))
    assert got.status == 503
    assert got.json["error"]["code"] == "gateway_busy"
    assert int(got.headers["retry-after"]) >= 1
    await until(lambda: at.gateway.room.memory_bytes == at.gateway.room.disk_bytes == 0)


async def test_a_head_over_its_bounds_is_431(at: Bench) -> None:
    many = "".join(f"x-{n}: 1\r\n" for n in range(140))
    assert (await at.get("/livez", many)).status == 431
    assert (await at.get("/livez", f"x-long: {'a' * 66_000}\r\n")).status == 431
    assert (await at.get("/livez", "".join(f"x-{n}: {'a' * 600}\r\n" for n in range(100)))).status == 200


async def test_a_head_that_never_ends_is_bounded_in_time_and_size(at: Bench) -> None:
    at.settings(header_timeout_s=0.1)
    client = await at.client()
    client.send(b"GET /livez HTTP/1.1\r\nHost: loc")
    got = await client.reply()
    assert got.status == 408
    assert got.json["error"]["code"] == "body_timeout"
    endless = await at.client()
    endless.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 70_000)
    assert (await endless.reply()).status == 431


async def test_a_body_that_falls_silent_is_408(at: Bench) -> None:
    at.settings(body_idle_s=0.1)
    client = await at.client()
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    got = await client.reply()
    assert got.status == 408
    assert got.headers["x-should-retry"] == "false"
    assert await client.rest() == b""


async def test_idle_connections_close_and_busy_ones_do_not(at: Bench) -> None:
    at.settings(connection_idle_s=0.1)
    client = await at.client()
    client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await client.reply()
    assert await client.rest() == b""

    async def slow(seen: object, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.4)
        await plain(b"{}")(seen, writer)  # type: ignore[arg-type]

    at.engine.script = slow  # type: ignore[assignment]
    assert (await at.ask(chat())).status == 200


async def test_connections_beyond_the_bound_are_refused_with_a_reason(at: Bench) -> None:
    at.settings(max_connections=1)
    first = await at.client()
    first.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await first.reply()).status == 200
    second = await at.client()
    got = await second.reply()
    assert got.status == 503
    assert got.json["error"]["code"] == "gateway_busy"
    assert await second.rest() == b""


async def test_an_upgrade_is_not_taken_and_the_request_is_served(at: Bench) -> None:
    got = await at.get("/livez", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n")
    assert got.status == 200


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/v1/nothing", 404, "route_not_found"),
        ("//v1/models", 404, "route_not_found"),
        ("/v1//models", 404, "route_not_found"),
        ("/v1/./models", 404, "route_not_found"),
        ("/v1/../v1/models", 404, "route_not_found"),
        ("/V1/models", 404, "route_not_found"),
        ("/v1/models%00", 404, "route_not_found"),
        ("/livez%2", 404, "route_not_found"),
        ("/v1/models/", 404, "route_not_found"),
        ("*", 404, "route_not_found"),
        ("http://evil.example/livez", 403, "host_not_allowed"),
    ],
)
async def test_paths_that_are_spelled_differently_match_nothing(at: Bench, target: str, status: int, code: str) -> None:
    got = await at.get(target)
    assert (got.status, got.code) == (status, code)


async def test_an_absolute_target_with_an_allowed_host_and_an_encoded_path_are_served(at: Bench) -> None:
    assert (await at.get("http://localhost/livez")).status == 200
    assert (await at.get("/v1%2Fmodels")).status == 200
    assert (await at.get("/livez?probe=1")).status == 200


async def test_a_known_path_with_another_method_is_405_with_allow(at: Bench) -> None:
    got = await at.get("/v1/chat/completions")
    assert (got.status, got.headers["allow"]) == (405, "POST")
    got = await at.get("/livez", method="DELETE")
    assert (got.status, got.headers["allow"]) == (405, "GET, HEAD")
    got = await at.get("/livez", method="OPTIONS")
    assert got.status == 405


async def test_a_request_over_the_unix_socket_is_served(at: Bench) -> None:
    client = await at.unix_client()
    client.send(chat())
    assert (await client.reply()).status == 200
