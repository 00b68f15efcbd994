"""Clients that ask and do not read: what is held for one of them has a bound (R-55, R-68; acceptance 31)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sized
from typing import Any

import pytest
from gateway_rig import STREAM_HEAD, Bench, Seen, chat, chunk, event, plain, until

from stoker.errors import CapacityError, ErrorCode
from stoker.runtime.tickets import End

pytestmark = pytest.mark.anyio
HELD_BYTES = 256 << 10
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


def never_reading(at: Bench) -> socket.socket:
    """A connected client whose own buffer is as small as it gets."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", at.port))
    raw.setblocking(False)
    return raw


def held_bytes(at: Bench) -> int:
    lines: Any = at.listener._server.server_state.connections
    return max(line.transport.get_write_buffer_size() for line in lines)


async def settled(count: Sized) -> int:
    """How many requests were taken when no more are."""
    last = -1
    while last != len(count) or not count:
        last = len(count)
        await asyncio.sleep(0.2)
    return last


async def test_pipelined_requests_are_not_served_into_a_full_buffer(at: Bench) -> None:
    at.engine.script = plain(b" " * 60_000)
    raw = never_reading(at)
    sent = chat() * 1000
    pushing = asyncio.create_task(asyncio.get_running_loop().sock_sendall(raw, sent))
    served = await settled(at.engine.seen)
    assert served < 200
    assert held_bytes(at) <= HELD_BYTES
    pushing.cancel()
    raw.close()
    await until(lambda: len(at.uses.left) == len(at.uses.asked))


async def test_free_answers_are_not_written_into_a_full_buffer(at: Bench) -> None:
    raw = never_reading(at)
    pushing = asyncio.create_task(asyncio.get_running_loop().sock_sendall(raw, GET * 100_000))
    await asyncio.sleep(0.5)
    assert not pushing.done()
    assert held_bytes(at) <= HELD_BYTES
    pushing.cancel()
    raw.close()


async def test_after_a_full_buffer_everything_is_answered_in_order(at: Bench) -> None:
    at.engine.script = plain(b"z" * 60_000)
    client = await at.client()
    requests = 120
    client.send((chat() + GET) * requests)
    await asyncio.sleep(0.3)
    for _ in range(requests):
        assert (await client.reply()).body == b"z" * 60_000
        assert (await client.reply()).json["object"] == "list"
    assert at.uses.ends == [End.COMPLETE] * requests


async def test_a_stream_behind_an_unread_answer_is_not_read_from_its_engine(at: Bench) -> None:
    sent = 0

    async def script(seen: Seen, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if len(at.engine.seen) <= 100:
            await plain(b" " * 60_000)(seen, writer)
            return
        writer.write(STREAM_HEAD)
        while sent < 64 << 20 and not seen.closed.is_set():
            writer.write(chunk(event("y" * 4000)))
            await writer.drain()
            sent += 4000

    at.engine.script = script
    raw = never_reading(at)
    pushing = asyncio.create_task(asyncio.get_running_loop().sock_sendall(raw, chat() * 100 + chat(stream=True)))
    await settled(at.engine.seen)
    assert held_bytes(at) <= HELD_BYTES
    assert sent < 16 << 20
    pushing.cancel()
    raw.close()
    await until(lambda: len(at.uses.left) == len(at.uses.asked))


async def test_a_pipeline_of_refusals_is_longer_than_any_stack(at: Bench) -> None:
    assert (await at.ask(chat())).status == 200
    at.uses.refusal = CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=1)
    client = await at.client()
    requests = 1500
    client.send(chat() * requests)
    statuses = {(await client.reply()).status for _ in range(requests)}
    assert statuses == {429}


async def test_bodies_behind_a_request_that_is_left_give_their_room_back(at: Bench) -> None:
    at.uses.hold = True
    client = await at.client()
    client.send(chat() + chat(x="y" * 50_000) * 3)
    await until(lambda: at.gateway.room.memory_bytes > 50_000)
    client.abort()
    await until(lambda: at.gateway.room.memory_bytes == 0)
    await until(lambda: at.uses.ends == [End.CLIENT_GONE])
    assert len(at.uses.asked) == 1


async def test_a_client_that_pipelines_and_leaves_is_noticed_at_once(at: Bench) -> None:
    async def silent(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await seen.closed.wait()

    at.engine.script = silent
    client = await at.client()
    client.send(chat() * 3)
    await until(lambda: at.engine.seen)
    client.abort()
    left_at = asyncio.get_running_loop().time()
    await until(at.engine.seen[0].closed.is_set)
    assert at.engine.seen[0].closed_at - left_at < 0.1
    assert len(at.engine.seen) == 1
