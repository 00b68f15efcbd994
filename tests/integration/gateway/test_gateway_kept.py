"""Connections that stay open on both sides: nothing of one request is taken for another's (R-66, R-67, R-104)."""

from __future__ import annotations

import asyncio

import pytest
from gateway_rig import DONE, STREAM_HEAD, Bench, Seen, chat, chunk, event, plain, post, streamed, until

from stoker.gateway import relay
from stoker.runtime.tickets import End

pytestmark = pytest.mark.anyio


async def test_requests_alike_in_their_head_keep_their_own_bodies_and_answers(at: Bench) -> None:
    async def echo(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await plain(seen.body)(seen, writer)

    at.engine.script = echo
    client = await at.client()
    for number in (1, 22, 333, 4, 55_555, 6, 10**40, 7):
        body = b'{"model":"m","x":%d}' % number
        for _ in range(2):
            client.send(post(body))
            got = await client.reply()
            assert (got.status, got.body) == (200, body)
    assert len({seen.header("x-request-id") for seen in at.engine.seen}) == 16
    assert {seen.connection for seen in at.engine.seen} == {1}


async def test_a_known_head_in_pieces_or_with_more_behind_it_is_read_as_ever(at: Bench) -> None:
    client = await at.client()
    whole = chat()
    for _ in range(2):
        client.send(whole)
        assert (await client.reply()).status == 200
    for cut in (1, len(whole) // 2, len(whole) - 1):
        client.send(whole[:cut])
        await asyncio.sleep(0.01)
        client.send(whole[cut:])
        assert (await client.reply()).status == 200
    client.send(whole + whole + b"GARBAGE\r\n\r\n")
    assert [(await client.reply()).status for _ in range(3)] == [200, 200, 400]
    assert {seen.body for seen in at.engine.seen} == {at.engine.seen[0].body}
    assert len(at.engine.seen) == 7


async def test_a_changed_rule_counts_for_a_head_that_is_known(at: Bench) -> None:
    at.settings(trusted_hosts=("box.example",))
    request = chat().replace(b"Host: localhost", b"Host: box.example")
    client = await at.client()
    for _ in range(3):
        client.send(request)
        assert (await client.reply()).status == 200
    at.settings(trusted_hosts=())
    client.send(request)
    got = await client.reply()
    assert (got.status, got.code) == (403, "host_not_allowed")
    at.settings(trusted_hosts=("box.example",), max_body_bytes=10)
    client.send(request)
    assert (await client.reply()).status == 413


async def test_a_repeat_is_not_sent_after_its_time(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REPEAT_WITHIN_S", 0.02)
    await at.ask(chat())

    async def dies_late(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.1)
        writer.transport.abort()

    at.engine.script = dies_late
    got = await at.ask(chat())
    assert (got.status, got.code) == (502, "engine_connection_lost")
    assert len(at.engine.seen) == 2


async def test_a_fresh_connection_that_dies_is_no_reason_to_repeat(at: Bench) -> None:
    async def dies(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    at.engine.script = dies
    assert (await at.ask(chat())).status == 502
    assert len(at.engine.seen) == 1
    assert at.uses.ends == [End.ENGINE_BROKE]


async def test_a_repeat_is_not_sent_to_a_session_that_ended(at: Bench) -> None:
    await at.ask(chat())

    async def ends(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await at.pools.close(at.door.generation, "engine-exited")
        writer.transport.abort()

    at.engine.script = ends
    got = await at.ask(chat())
    assert (got.status, got.code) == (502, "engine_exited")
    assert len(at.engine.seen) == 2


async def test_a_first_death_and_a_second_one_is_told_and_not_tried_again(at: Bench) -> None:
    await at.ask(chat())

    async def dies(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    at.engine.script = dies
    got = await at.ask(chat())
    assert (got.status, got.code) == (502, "engine_connection_lost")
    assert [seen.connection for seen in at.engine.seen] == [1, 1, 2]
    assert len(at.uses.left) == 2


async def test_bytes_behind_an_answer_reach_nobody(at: Bench) -> None:
    async def two(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await plain(b"{}")(seen, writer)
        await plain(b'{"x":"for somebody else"}')(seen, writer)

    at.engine.script = two
    client = await at.client()
    for _ in range(20):
        client.send(chat())
        got = await client.reply()
        assert (got.status, got.body) == (200, b"{}")


async def test_chunks_that_look_like_framing_are_content(at: Bench) -> None:
    tricky = (b": 5\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"\r\n", b"\n", event("", "stop"), DONE)
    for gap_s in (0.0, 0.003):
        at.engine.script = streamed(*tricky, gap_s=gap_s)
        assert (await at.ask(chat(stream=True))).body == b"".join(tricky)


async def test_br_504_a_completion_of_two_prompts_is_not_whole_after_the_first(at: Bench) -> None:
    def part(index: int, finish: str) -> bytes:
        return b'data: {"choices":[{"index":%d,"text":"x","finish_reason":%b}]}\n\n' % (index, finish.encode())

    request = post({"model": "m", "prompt": ["a", "b"], "stream": True}, "/v1/completions")
    at.engine.script = streamed(part(0, '"stop"'), part(1, "null"), end=b"")
    broken = await at.ask(request)
    assert b'"error"' in broken.body
    at.engine.script = streamed(part(0, '"stop"'), part(1, '"length"'), end=b"")
    whole = await at.ask(request)
    assert whole.body == part(0, '"stop"') + part(1, '"length"') + DONE


async def test_a_line_of_megabytes_without_an_end_holds_up_nobody(at: Bench) -> None:
    go_on = asyncio.Event()

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for _ in range(64):
            writer.write(chunk(b"y" * 60_000))
            await writer.drain()
        await go_on.wait()

    at.engine.script = script
    client = await at.client()
    client.send(chat(stream=True))
    await client.head()
    pieces = client.chunks()
    got = 0
    while got < 60 * 60_000:
        got += len(await anext(pieces))
    assert (await asyncio.wait_for(at.get("/livez"), 1.0)).status == 200
    client.abort()
    go_on.set()
    await until(lambda: at.uses.ends == [End.CLIENT_GONE])
