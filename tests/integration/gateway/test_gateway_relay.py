"""The byte path on real sockets: what reaches the engine, what comes back, and what becomes of either's failures."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import socket
from typing import Any

import pytest
from gateway_rig import (
    DONE,
    NAMES,
    STREAM_HEAD,
    Bench,
    Seen,
    chat,
    chunk,
    event,
    plain,
    post,
    streamed,
    until,
)

from stoker.errors import CapacityError, ErrorCode
from stoker.ports.engines import Abort, ConnectionFacts, Edits, Problem
from stoker.runtime.tickets import End

pytestmark = pytest.mark.anyio
WHOLE = (event("北"), event("京🚀é"), event("", "stop"), DONE)


# -- what the engine gets ------------------------------------------------------------------------------------------
async def test_the_engine_gets_the_same_bytes_its_own_token_and_no_credentials(at: Bench) -> None:
    body = b' {"messages" :[ ],"model":"m","seed": 4634343214213523454, "t":1e-7,"u":"\\u003c\xf0\x9f\x9a\x80"} '
    secret = (
        "Authorization: Bearer mine\r\nX-Api-Key: mine\r\nCookie: a=b\r\nOrigin: http://localhost\r\nReferer: x\r\n"
        "Forwarded: for=1\r\nX-Forwarded-For: 1\r\nX-Real-IP: 1\r\nStoker-Client: me\r\nAccept-Encoding: br\r\n"
        "X-Request-Id: theirs\r\nTE: trailers\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nX-Kept: yes\r\n"
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n"
    )
    got = await at.ask(post(body, extra=secret))
    assert got.status == 200
    (seen,) = at.engine.seen
    assert seen.body == body
    assert seen.header("authorization") == "Bearer engine-token"
    assert seen.header("accept-encoding") == "identity"
    assert seen.header("host") == "localhost"
    assert seen.header("x-request-id") == got.headers["x-request-id"]
    assert seen.header("x-kept") == "yes"
    gone = "x-api-key cookie origin referer forwarded x-forwarded-for x-real-ip stoker-client te connection x-hop"
    assert [name for name in gone.split() if seen.header(name) is not None] == []
    assert b"mine" not in seen.head


async def test_br_605_an_alias_changes_only_its_own_bytes_every_time(at: Bench) -> None:
    body = (
        b'{"z":1e-7,  "model" : "nick" ,\n"seed":4634343214213523454,"a":1.10,"s":"\\u003c\\ud83d\\ude80\xf0\x9f\x9a\x80",'
        b'"tools":[{"b":{"a":[[]]}}]}'
    )
    for _ in range(20):
        assert (await at.ask(post(body))).status == 200
    assert {seen.body for seen in at.engine.seen} == {body.replace(b'"nick"', b'"m"')}
    assert (await at.ask(post(body.replace(b"nick", b"m")))).status == 200
    assert at.engine.seen[-1].body == body.replace(b"nick", b"m")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b'{"model":"m","mod\\u0065l":"nick"}', "duplicate_field", "model"),
        (b'{"model":"m","model":"m"}', "duplicate_field", "model"),
        (b'{"model":"m","stream":true,"stream":false}', "duplicate_field", "stream"),
        (b'\xef\xbb\xbf{"model":"m"}', "invalid_json", None),
        (b'{"model":"m"} x', "invalid_json", None),
        (b'["m"]', "invalid_json", None),
        (b"", "invalid_json", None),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", None),
        (b'{"model":"m","x":"\\ud800"}', "invalid_json", None),
        (b"{}", "invalid_parameter", "model"),
        (b'{"model":3}', "invalid_parameter", "model"),
        (b'{"model":""}', "invalid_parameter", "model"),
        (b'{"model":"' + b"m" * 513 + b'"}', "invalid_parameter", "model"),
        (b'{"model":"m","stream":"yes"}', "invalid_parameter", "stream"),
        (b'{"model":"m","n":0}', "invalid_parameter", "n"),
        (b'{"model":"m","stream":true,"stream_options":{"include_usage":1}}', "invalid_parameter", "stream_options"),
        (b'{"model":"m","id_slot":1}', "unsupported_capability", "id_slot"),
        (b'{"model":"m","n":5}', "unsupported_capability", "n"),
        (b'{"model":"m","lora":[1]}', "unsupported_capability", "lora"),
        (b'{"model":"m","response_format":{"type":"odd"}}', "unsupported_capability", "response_format"),
        (
            b'{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"http://a/b"}}]}]}',
            "remote_media_refused",
            "messages[0].content[0].image_url",
        ),
        (
            b'{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:x"}}]}]}',
            "unsupported_capability",
            "messages[0].content[0].image_url",
        ),
    ],
)
async def test_a_body_that_cannot_be_right_is_400_and_reaches_no_engine(
    at: Bench, body: bytes, code: str, param: str | None
) -> None:
    got = await at.ask(post(body))
    assert (got.status, got.code) == (400, code)
    assert got.json["error"]["param"] == param
    assert got.json["error"]["type"] == "invalid_request_error"
    assert at.engine.seen == []
    assert len(at.uses.left) == len(at.uses.asked)


async def test_a_tool_choice_given_as_an_object_passes(at: Bench) -> None:
    got = await at.ask(chat(tools=[{"type": "function"}], tool_choice={"type": "function"}))
    assert got.status == 200


async def test_an_adapters_edits_and_refusals_are_carried_out(at: Bench) -> None:
    at.wire.edits = Edits({"max_tokens": b"7", "stream": None})
    assert (await at.ask(post(b'{"model":"m","stream":false,"a":1}'))).status == 200
    assert at.engine.seen[-1].body == b'{"model":"m","a":1,"max_tokens":7}'
    at.wire.edits = Problem(ErrorCode.UNSUPPORTED_PARAMETER, "No.", param="a")
    got = await at.ask(chat())
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "unsupported_parameter", "a")
    assert at.uses.ends[-1] is End.REFUSED


async def test_a_route_the_session_does_not_declare_is_refused(at: Bench) -> None:
    at.wire.policy = type(at.wire.policy)(frozenset())
    at.reopen()
    got = await at.ask(chat())
    assert (got.status, got.code) == (400, "unsupported_endpoint")
    assert at.engine.connections == 0


# -- names ---------------------------------------------------------------------------------------------------------
async def test_br_601_every_listed_name_can_be_fetched_and_used_plain_and_encoded(at: Bench) -> None:
    listed = (await at.get("/v1/models")).json
    assert [entry["id"] for entry in listed["data"]] == list(NAMES)
    for entry in listed["data"]:
        assert (entry["object"], type(entry["created"]), entry["owned_by"]) == ("model", int, "stoker")
        name = entry["id"]
        encoded = "".join(f"%{byte:02X}" for byte in name.encode())
        spellings = [encoded] if " " in name else [name, encoded]
        for spelling in spellings:
            got = await at.get(f"/v1/models/{spelling}")
            assert (got.status, got.json) == (200, entry)
        got = await at.ask(post({"model": name, "messages": []}))
        assert got.status == 200
        assert at.engine.seen[-1].json["model"] == name
    for spelling in ("aaa/llava:13b", "aaa%2Fllava:13b", "aaa%2fllava%3A13b"):
        assert (await at.get(f"/v1/models/{spelling}")).json["id"] == "aaa/llava:13b"


async def test_br_601_unknown_models_and_unknown_addresses_are_different_404s(at: Bench) -> None:
    for got in (await at.get("/v1/models/aaa/other"), await at.ask(post({"model": "M", "messages": []}))):
        assert (got.status, got.code) == (404, "model_not_found")
        assert got.json["error"]["stoker"]["details"]["near"] == ["m"]
    assert (await at.get("/v1/elsewhere")).code == "route_not_found"
    assert at.uses.looked_up == ["aaa/other", "M"]
    assert at.uses.asked == []


# -- streams -------------------------------------------------------------------------------------------------------
async def test_br_501_a_stream_is_the_same_bytes_at_every_cut(at: Bench) -> None:
    whole = b"".join(WHOLE)
    cuts = range(1, len(WHOLE[0]) + 8)
    for cut in cuts:
        at.engine.script = streamed(whole[:cut], whole[cut:], gap_s=0.001)
        got = await at.ask(chat(stream=True))
        assert hashlib.sha256(got.body).digest() == hashlib.sha256(whole).digest(), cut
    assert set(at.uses.ends) == {End.COMPLETE}


async def test_br_501_bytes_that_are_no_utf_8_pass(at: Bench) -> None:
    pieces = (b'data: {"x":"\xff"}\n\n', *WHOLE[2:])
    at.engine.script = streamed(*pieces)
    assert (await at.ask(chat(stream=True))).body == b"".join(pieces)


async def test_chunks_pass_as_they_come(at: Bench) -> None:
    go = asyncio.Event()

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(WHOLE[0]))
        await go.wait()
        writer.write(b"".join(map(chunk, WHOLE[1:])) + b"0\r\n\r\n")

    at.engine.script = script
    client = await at.client()
    client.send(chat(stream=True))
    await client.head()
    pieces = client.chunks()
    assert await anext(pieces) == WHOLE[0]
    go.set()
    assert b"".join([piece async for piece in pieces]) == b"".join(WHOLE[1:])


async def test_usage_events_reach_only_those_who_asked(at: Bench) -> None:
    usage = b'data: {"choices": [], "usage":{"prompt_tokens":1}}\n\n'
    at.engine.script = streamed(*WHOLE[:3], usage, DONE)
    assert usage not in (await at.ask(chat(stream=True))).body
    asked = await at.ask(chat(stream=True, stream_options={"include_usage": True}))
    assert asked.body.count(usage) == 1


# -- an engine that breaks -----------------------------------------------------------------------------------------
def told(body: bytes) -> list[dict[str, object]]:
    """Every error object of a stream."""
    events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line)["error"] for line in events if b'"error"' in line]


@pytest.mark.parametrize("how", ["clean end", "no last chunk", "reset"])
async def test_br_504_a_stream_that_breaks_at_any_byte_never_looks_whole(at: Bench, how: str) -> None:
    whole = b"".join(WHOLE[:2])
    for cut in range(0, len(whole) + 1, 3):

        async def script(seen: Seen, writer: asyncio.StreamWriter, cut: int = cut) -> None:
            writer.write(STREAM_HEAD + (chunk(whole[:cut]) if cut else b""))
            await writer.drain()
            await asyncio.sleep(0.002)
            if how == "clean end":
                writer.write(b"0\r\n\r\n")
            elif how == "no last chunk":
                writer.close()
            else:
                writer.transport.abort()

        at.engine.script = script
        got = await at.ask(chat(stream=True))
        assert got.status == 200
        (error,) = told(got.body)
        assert error["code"] in {"stream_incomplete", "engine_connection_lost"}
        assert got.body.endswith(b"}\n\n" + DONE)
        arrived = got.body[: got.body.index(b'data: {"error"')]
        assert whole.startswith(arrived.removesuffix(b"\n\n").rstrip(b"\n"))
        assert b'"finish_reason":"' not in got.body
        for line in got.body.split(b"\n"):
            if line.startswith(b"data: {"):
                json.loads(line[6:])
    assert set(at.uses.ends) == {End.ENGINE_BROKE}


async def test_br_504_after_a_finish_reason_a_lost_end_mark_is_supplied_without_an_error(at: Bench) -> None:
    at.engine.script = streamed(*WHOLE[:3], end=b"")
    got = await at.ask(chat(stream=True))
    assert got.body == b"".join(WHOLE)
    assert at.uses.ends == [End.COMPLETE]


async def test_with_two_choices_one_finish_is_not_the_end(at: Bench) -> None:
    at.engine.script = streamed(event("a"), event("b", None, 1), event("", "stop"))
    assert told((await at.ask(chat(stream=True, n=2))).body)
    at.engine.script = streamed(event("a"), event("", "stop", 1), event("", "stop"))
    assert not told((await at.ask(chat(stream=True, n=2))).body)


async def test_br_504_an_engines_own_error_event_passes_and_nothing_is_added(at: Bench) -> None:
    own = b'data: {"error":{"message":"x"}}\n\n'
    at.engine.script = streamed(WHOLE[0], own, DONE)
    assert (await at.ask(chat(stream=True))).body == WHOLE[0] + own + DONE
    assert at.uses.ends == [End.ENGINE_BROKE]


@pytest.mark.parametrize("stream", [True, False])
async def test_br_504_an_engine_that_dies_before_its_answer_is_a_json_502(at: Bench, stream: bool) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if not stream:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{")
            await writer.drain()
        writer.transport.close() if not stream else writer.transport.abort()

    at.engine.script = script
    got = await at.ask(chat(stream=stream))
    assert (got.status, got.code) == (502, "engine_connection_lost")
    assert got.headers["stoker-speaker"] == "gateway"
    assert at.uses.ends == [End.ENGINE_BROKE]


async def test_a_long_plain_answer_that_breaks_is_cut_and_not_ended(at: Bench) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n" + b" " * 150_000
        )
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()

    at.engine.script = script
    client = await at.client()
    client.send(chat())
    got = await client.head()
    assert got.headers["content-length"] == "200000"
    try:
        assert len(await client.rest()) < 200_000
    except ConnectionResetError:
        pass


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://a/\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_an_answer_that_is_no_answer_is_502(at: Bench, answer: bytes) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    at.engine.script = script
    got = await at.ask(chat())
    assert got.status == 502
    assert got.code in {"engine_bad_answer", "engine_failed"}


async def test_interim_answers_of_an_engine_are_swallowed(at: Bench) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    at.engine.script = script
    got = await at.ask(chat())
    assert (got.status, got.body) == (200, b"{}")


@pytest.mark.parametrize(
    ("status", "body", "shown", "code"),
    [
        ("400 Bad Request", b'{"error": {"message":"no", "code":1}}', 400, 1),
        ("400 Bad Request", b"<html>/home/x</html>", 502, "engine_failed"),
        ("401 Unauthorized", b'{"error":{"message":"no"}}', 502, "engine_failed"),
        ("500 Oops", b'{"error":{"message":"/secret/path"}}', 502, "engine_failed"),
    ],
)
async def test_an_engines_errors_pass_in_the_dialects_shape_or_not_at_all(
    at: Bench, status: str, body: bytes, shown: int, code: object
) -> None:
    at.engine.script = plain(body, status, b"server: llama\r\nset-cookie: a=b\r\naccess-control-allow-origin: *\r\n")
    got = await at.ask(chat())
    assert got.status == shown
    assert got.json["error"]["code"] == code
    if shown == 502:
        assert b"secret" not in got.body
    else:
        assert got.body == body
    assert [name for name in ("server", "set-cookie", "access-control-allow-origin") if name in got.headers] == []


async def test_an_error_the_adapter_knows_is_told_in_its_public_form(at: Bench) -> None:
    at.wire.problem = Problem(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED, "Too long.", param="messages", details={"limit_tokens": 9}
    )
    at.engine.script = plain(b"x", "400 Bad Request")
    got = await at.ask(chat())
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "context_length_exceeded", "messages")
    assert got.json["error"]["stoker"]["details"] == {"limit_tokens": 9}


async def test_br_205_the_engines_own_loading_answer_is_never_seen(at: Bench) -> None:
    loading = plain(b'{"error":{"message":"Loading model","code":503}}', "503 Service Unavailable")
    answers = iter([loading, plain(b"{}")])

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await next(answers)(seen, writer)

    at.engine.script = script
    assert (await at.ask(chat())).body == b"{}"
    assert len(at.uses.asked) == len(at.uses.requeued) == len(at.uses.left) == 1
    at.engine.script = loading
    got = await at.ask(chat())
    assert (got.status, got.code) == (502, "engine_failed")
    assert len(at.uses.asked) == len(at.uses.requeued) == len(at.uses.left) == 2


# -- time limits ---------------------------------------------------------------------------------------------------
async def test_br_703_the_first_token_limit_names_its_setting_and_cancels_the_work(at: Bench) -> None:
    async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await seen.closed.wait()

    at.engine.script = silent
    at.reopen(first_token_timeout_s=0.1)
    got = await at.ask(chat())
    assert (got.status, got.code) == (504, "first_token_timeout")
    assert got.json["error"]["stoker"]["details"] == {"setting": "first_token_timeout_s", "limit_s": 0.1}
    await until(at.engine.seen[-1].closed.is_set)
    await until(lambda: at.uses.ends == [End.TIMEOUT])


async def test_br_703_zero_means_no_limit_and_waiting_does_not_count(at: Bench) -> None:
    async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)
        await plain(b"{}")(seen, writer)

    at.engine.script = late
    at.reopen(first_token_timeout_s=0.0)
    assert (await at.ask(chat())).status == 200
    at.reopen(first_token_timeout_s=0.4)
    at.uses.hold = True
    asking = asyncio.create_task(at.ask(chat()))
    await until(lambda: len(at.uses.asked) == 2)
    await asyncio.sleep(0.45)
    at.uses.grant(at.uses.asked[-1])
    got = await asking
    assert got.status == 200
    assert int(got.headers["stoker-load-ms"]) >= 400
    assert got.headers["stoker-replica"] == "0"


async def test_br_504_a_stream_that_stalls_ends_with_the_limit_as_its_error(at: Bench) -> None:
    async def stalls(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(WHOLE[0] + b'data: {"half'))
        await seen.closed.wait()

    at.engine.script = stalls
    at.reopen(stream_idle_timeout_s=0.1)
    got = await at.ask(chat(stream=True))
    assert got.body.startswith(WHOLE[0] + b'data: {"error"')
    (error,) = told(got.body)
    assert error["code"] == "stream_idle_timeout"
    assert at.uses.ends == [End.TIMEOUT]


# -- a client that leaves ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stage", ["waiting", "before the head", "in the stream"])
@pytest.mark.parametrize("abrupt", [True, False])
@pytest.mark.parametrize("unix", [True, False])
async def test_the_engine_sees_a_clients_leaving_within_100_ms(at: Bench, stage: str, abrupt: bool, unix: bool) -> None:
    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if stage == "in the stream":
            writer.write(STREAM_HEAD)
            while not seen.closed.is_set():
                writer.write(chunk(event("x")))
                await asyncio.sleep(0.02)
        await seen.closed.wait()

    at.engine.script = script
    at.uses.hold = stage == "waiting"
    client = await (at.unix_client() if unix else at.client())
    client.send(chat(stream=stage == "in the stream"))
    await until(lambda: at.uses.asked if stage == "waiting" else at.engine.seen)
    if stage == "in the stream":
        await client.head()
    began = asyncio.get_running_loop().time()
    if abrupt:
        client.abort()
    else:
        client.close()
    await until(lambda: at.uses.left)
    assert asyncio.get_running_loop().time() - began < 0.1
    assert at.uses.ends == [End.CLIENT_GONE]
    if stage != "waiting":
        await until(at.engine.seen[0].closed.is_set)
        assert at.engine.seen[0].closed_at - began < 0.1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_only_closed_its_sending_half_is_served(at: Bench, stream: bool) -> None:
    async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.15)
        await (streamed(*WHOLE) if stream else plain(b"{}"))(seen, writer)

    at.engine.script = late
    client = await at.client()
    client.send(chat(stream=stream))
    client.writer.write_eof()
    got = await client.reply()
    assert got.body == (b"".join(WHOLE) if stream else b"{}")
    assert await client.rest() == b""
    assert at.uses.ends == [End.COMPLETE]


async def test_after_an_abort_the_place_is_kept_for_the_settle_time(at: Bench) -> None:
    async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await seen.closed.wait()

    at.engine.script = silent
    at.wire.abort = Abort(plain="runs-on", settle_s=0.2)
    client = await at.client()
    client.send(chat())
    await until(lambda: at.engine.seen)
    client.abort()
    await until(at.engine.seen[0].closed.is_set)
    assert at.uses.left == []
    await until(lambda: at.uses.ends == [End.CLIENT_GONE])


# -- waiting -------------------------------------------------------------------------------------------------------
async def test_a_refusal_at_the_door_has_its_status_and_retry_advice(at: Bench) -> None:
    at.uses.refusal = CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=0.2)
    got = await at.ask(chat())
    assert (got.status, got.code, got.headers["retry-after"]) == (429, "queue_full", "1")
    assert got.headers["x-should-retry"] == "true"
    at.uses.refusal = CapacityError(ErrorCode.NEVER_FITS, "Never.")
    got = await at.ask(chat())
    assert (got.status, got.headers["x-should-retry"]) == (503, "false")
    assert "retry-after" not in got.headers


async def test_a_stream_that_waits_gets_comments_and_then_its_bytes(at: Bench) -> None:
    at.settings(keepalive_after_s=0.05)
    at.uses.hold = True
    at.engine.script = streamed(*WHOLE)
    client = await at.client()
    client.send(chat(stream=True))
    got = await client.head()
    assert got.headers["content-type"] == "text/event-stream"
    pieces = client.chunks()
    comment = await anext(pieces)
    assert comment == b": stoker waiting=load elapsed_s=0\n"
    at.uses.grant(at.uses.asked[0])
    rest = b"".join([piece async for piece in pieces])
    assert rest.replace(comment, b"") == b"".join(WHOLE)


async def test_a_refusal_after_the_head_is_an_error_event_and_the_end_mark(at: Bench) -> None:
    at.settings(keepalive_after_s=0.05)
    at.uses.hold = True
    client = await at.client()
    client.send(chat(stream=True))
    await client.head()
    at.uses.refuse(at.uses.asked[0], CapacityError(ErrorCode.QUEUE_TIMEOUT, "Too long.", retry_after_s=1))
    body = b"".join([piece async for piece in client.chunks()])
    (error,) = told(body)
    assert error["code"] == "queue_timeout"
    assert body.endswith(DONE)
    await until(lambda: len(at.uses.left) == 1)


async def test_a_plain_request_that_waits_sees_nothing_and_a_true_status(at: Bench) -> None:
    at.settings(keepalive_after_s=0.02)
    at.uses.hold = True
    asking = asyncio.create_task(at.ask(chat()))
    await until(lambda: at.uses.asked)
    await asyncio.sleep(0.1)
    at.uses.refuse(at.uses.asked[0], CapacityError(ErrorCode.CRASH_LOOP_HELD, "Held.", retry_after_s=2.5))
    got = await asking
    assert (got.status, got.headers["retry-after"]) == (503, "3")


# -- connections ---------------------------------------------------------------------------------------------------
async def test_connections_are_reused_within_a_life_and_never_across_lives(at: Bench) -> None:
    for _ in range(5):
        await at.ask(chat())
    assert at.engine.connections == 1
    first = at.door.generation
    at.reopen()
    await at.pools.close(first, "session-stopped")
    await at.ask(chat())
    assert at.engine.connections == 2


@pytest.mark.parametrize(
    ("facts", "connections"),
    [(ConnectionFacts(http="1.0"), 3), (ConnectionFacts(max_requests=1), 3), (ConnectionFacts(max_requests=2), 2)],
)
async def test_connection_facts_are_kept(at: Bench, facts: ConnectionFacts, connections: int) -> None:
    at.wire.connection = facts
    at.reopen()
    for _ in range(3):
        assert (await at.ask(chat())).status == 200
    assert at.engine.connections == connections


async def test_a_connection_that_was_closed_while_idle_costs_no_request(at: Bench) -> None:
    async def once(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await plain(b"{}")(seen, writer)
        writer.close()

    at.engine.script = once
    for _ in range(100):
        assert (await at.ask(chat())).status == 200
    assert len(at.engine.seen) == 100


async def test_a_request_is_repeated_once_on_a_fresh_connection_and_only_before_any_answer_byte(at: Bench) -> None:
    await at.ask(chat())

    async def dies_on_the_first(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.connection == 1:
            writer.transport.abort()
        else:
            await plain(b"{}")(seen, writer)

    at.engine.script = dies_on_the_first
    assert (await at.ask(chat())).status == 200
    assert [seen.connection for seen in at.engine.seen] == [1, 1, 2]

    async def dies_with_a_byte(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"H")
        await writer.drain()
        writer.close()

    at.engine.script = dies_with_a_byte
    assert (await at.ask(chat())).status == 502
    assert len(at.engine.seen) == 4


async def test_a_session_that_ends_ends_its_streams_before_its_connections(at: Bench) -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunk(WHOLE[0]))
        await seen.closed.wait()

    at.engine.script = endless
    client = await at.client()
    client.send(chat(stream=True))
    await client.head()
    pieces = client.chunks()
    assert await anext(pieces) == WHOLE[0]
    await at.pools.close(at.door.generation, "session-stopped")
    body = b"".join([piece async for piece in pieces])
    assert told(body)[0]["code"] == "session_stopped"
    assert body.endswith(DONE)
    await until(at.engine.seen[0].closed.is_set)
    assert at.uses.ends == [End.CANCELLED]
    got = await at.ask(chat())
    assert (got.status, got.code) == (503, "session_stopped")


async def test_an_engine_that_takes_no_connection_is_502(at: Bench) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        at.reopen(endpoint=type(at.door.endpoint)(port=taken.getsockname()[1]))
        got = await at.ask(chat())
    assert (got.status, got.code) == (502, "engine_connection_lost")


async def test_an_engine_on_a_unix_socket_is_reached(at: Bench) -> None:
    path = f"{at.gateway.settings.spool_dir}/engine.sock"
    server = await asyncio.start_unix_server(at.engine.serve, path)
    at.reopen(endpoint=type(at.door.endpoint)(socket=path))
    assert (await at.ask(chat())).status == 200
    server.close()


async def test_a_slow_reader_stops_the_reading_of_the_engine(at: Bench) -> None:
    sent = 0

    async def flood(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        piece = event("y" * 4000)
        while sent < 64 << 20 and not seen.closed.is_set():
            writer.write(chunk(piece))
            await writer.drain()
            sent += len(piece)

    at.engine.script = flood
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", at.port))
    raw.sendall(chat(stream=True))
    last = -1
    while last != sent or not sent:
        last = sent
        await asyncio.sleep(0.3)
    transports = [state.transport for state in _connections(at)]
    assert max(transport.get_write_buffer_size() for transport in transports) <= 256 << 10
    assert sent < 16 << 20
    raw.close()
    await until(lambda: at.uses.ends == [End.CLIENT_GONE])


def _connections(at: Bench) -> list[Any]:
    return [one for one in at.listener._server.server_state.connections if one.active]


async def test_a_client_that_takes_nothing_for_the_limit_is_gone(at: Bench) -> None:
    at.settings(client_stall_s=0.2)

    async def flood(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not seen.closed.is_set():
            writer.write(chunk(event("y" * 60_000)))
            await writer.drain()

    at.engine.script = flood
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", at.port))
    raw.sendall(chat(stream=True))
    await until(lambda: at.uses.ends == [End.CLIENT_GONE])
    raw.close()


# -- encodings, free routes, shutdown ------------------------------------------------------------------------------
async def test_a_compressed_answer_passes_if_wanted_and_is_decoded_if_not(at: Bench) -> None:
    body = b'{"a":"' + b"x" * 500 + b'"}'
    packed = gzip.compress(body)
    at.engine.script = plain(packed, extra=b"content-encoding: gzip\r\n")
    wanted = await at.ask(post({"model": "m", "messages": []}, extra="Accept-Encoding: gzip\r\n"))
    assert (wanted.headers["content-encoding"], wanted.body) == ("gzip", packed)
    plainly = await at.ask(chat())
    assert "content-encoding" not in plainly.headers
    assert plainly.body == body
    assert plainly.headers["content-length"] == str(len(body))
    at.engine.script = plain(gzip.compress(b"0" * (8 << 20)), extra=b"content-encoding: gzip\r\n")
    assert (await at.ask(chat())).status == 502


async def test_free_routes_answer_while_every_place_is_taken(at: Bench) -> None:
    at.uses.refusal = CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=1)
    for path in ("/", "/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/nick"):
        assert (await at.get(path)).status == 200
    at.uses.ready = False
    got = await at.get("/readyz")
    assert (got.status, got.code) == (503, "daemon_starting")
    assert at.uses.asked == []


async def test_what_stoker_headers_ask_reaches_the_ticket_and_bad_ones_are_400(at: Bench) -> None:
    extra = "Stoker-Wait: 5\r\nStoker-Keep-Alive: 1h30m\r\nStoker-Load: never\r\nStoker-Client: me\r\n"
    await at.ask(post({"model": "m", "messages": []}, extra=extra))
    ask = at.uses.asked[0].ask
    assert (ask.max_wait_s, ask.keep_alive_s, ask.may_load, ask.client) == (5.0, 5400.0, False, "127.0.0.1/me")
    for bad in ("Stoker-Wait: -1", "Stoker-Wait: x", "Stoker-Keep-Alive: 5y", "Stoker-Load: ever"):
        got = await at.ask(post({"model": "m"}, extra=bad + "\r\n"))
        assert (got.status, got.json["error"]["param"]) == (400, bad.split(":")[0])


async def test_a_defect_is_a_500_with_an_id_and_the_place_is_given_back(at: Bench) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    at.wire.edit = broken  # type: ignore[method-assign,assignment]
    got = await at.ask(chat())
    assert (got.status, got.code) == (500, "internal")
    assert got.json["error"]["stoker"]["details"]["error_id"].startswith("err_")
    assert at.uses.ends == [End.REFUSED]


async def test_a_stopped_listener_lets_a_request_end(at: Bench) -> None:
    async def late(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await plain(b"{}")(seen, writer)

    at.engine.script = late
    asking = asyncio.create_task(at.ask(chat()))
    await until(lambda: at.engine.seen)
    at.listener.stop()
    got = await asking
    assert (got.status, got.headers["connection"]) == (200, "close")
    assert at.uses.ends == [End.COMPLETE]
