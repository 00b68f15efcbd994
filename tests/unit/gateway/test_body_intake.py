"""A body on its way in: its bounds, where it lies, and that its room comes back (R-57, R-58)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stoker.errors import ErrorCode, StokerError, UsageError
from stoker.gateway.bodies import KEPT_BYTES, KEPT_BYTES_WHEN_FULL, READ_AHEAD_BYTES, BodyRoom, Intake
from stoker.gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


class Client:
    """Feeds an intake, and stops when told to."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.is_paused = False
        intake.pause, intake.resume = self._pause, self._resume
        self._may = asyncio.Event()
        self._may.set()

    def _pause(self) -> None:
        self.is_paused = True
        self._may.clear()

    def _resume(self) -> None:
        self.is_paused = False
        self._may.set()

    async def send(self, body: bytes, size: int = 16 << 10) -> None:
        for at in range(0, len(body), size):
            await self._may.wait()
            self.intake.feed(body[at : at + size])
            await asyncio.sleep(0)
        self.intake.end()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def settings(tmp_path: Path) -> GatewaySettings:
    return GatewaySettings(spool_dir=str(tmp_path), max_body_bytes=8 << 20, spool_bytes=8 << 20)


async def received(intake: Intake, body: bytes) -> bytes:
    client = Client(intake)
    sending = asyncio.create_task(client.send(body))
    try:
        return bytes(await intake.whole())
    finally:
        sending.cancel()


@pytest.mark.parametrize("size", [0, 1, READ_AHEAD_BYTES, KEPT_BYTES, KEPT_BYTES + 1, 3 << 20])
async def test_a_body_of_any_size_is_whole_and_gives_its_room_back(settings: GatewaySettings, size: int) -> None:
    room, body, files = BodyRoom(), os.urandom(size), open_files()
    intake = Intake(room, settings, size)
    assert await received(intake, body) == body
    assert (room.disk_bytes > 0) == (size > KEPT_BYTES + READ_AHEAD_BYTES) or size == KEPT_BYTES + 1
    assert room.memory_bytes + room.disk_bytes == size
    assert os.listdir(str(settings.spool_dir)) == []
    intake.close()
    intake.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)
    assert open_files() == files


async def test_memory_of_a_large_body_is_bounded_while_it_comes(settings: GatewaySettings) -> None:
    room, most = BodyRoom(), 0
    intake = Intake(room, settings, None)
    client = Client(intake)

    async def sending() -> None:
        nonlocal most
        for _ in range(400):
            await client._may.wait()
            intake.feed(b"x" * 16_000)
            most = max(most, room.memory_bytes)
        intake.end()

    task = asyncio.create_task(sending())
    assert len(await intake.whole()) == 400 * 16_000
    await task
    assert most <= KEPT_BYTES + 2 * READ_AHEAD_BYTES
    intake.close()


async def test_without_room_in_memory_smaller_bodies_go_to_disk(settings: GatewaySettings) -> None:
    room = BodyRoom()
    room.memory_bytes = settings.body_memory_bytes + 1
    intake = Intake(room, settings, None)
    body = os.urandom(KEPT_BYTES_WHEN_FULL + 20_000)
    assert await received(intake, body) == body
    assert room.disk_bytes == len(body)
    intake.close()


async def test_nothing_is_spooled_without_a_folder() -> None:
    room = BodyRoom()
    intake = Intake(room, GatewaySettings(spool_dir=None), None)
    assert await received(intake, b"x" * (3 << 20)) == b"x" * (3 << 20)
    assert room.disk_bytes == 0


async def test_the_first_byte_over_the_bound_is_413_with_the_setting(settings: GatewaySettings) -> None:
    exact = Intake(BodyRoom(), settings, None)
    assert len(await received(exact, b"x" * settings.max_body_bytes)) == settings.max_body_bytes
    room = BodyRoom()
    over = Intake(room, settings, None)
    with pytest.raises(StokerError) as caught:
        await received(over, b"x" * (settings.max_body_bytes + 1))
    assert caught.value.code is ErrorCode.REQUEST_TOO_LARGE
    assert caught.value.details["setting"] == "gateway.max_body_bytes"
    over.close()
    exact.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)


def test_a_declared_length_over_the_bound_is_refused_before_a_byte(settings: GatewaySettings) -> None:
    Intake(BodyRoom(), settings, settings.max_body_bytes).refuse_length()
    Intake(BodyRoom(), settings, None).refuse_length()
    with pytest.raises(StokerError, match="8388609 bytes"):
        Intake(BodyRoom(), settings, settings.max_body_bytes + 1).refuse_length()


async def test_a_full_disk_bound_is_503_and_gives_back_what_it_took(settings: GatewaySettings) -> None:
    room = BodyRoom()
    room.disk_bytes = settings.spool_bytes - 1000
    intake = Intake(room, settings, None)
    with pytest.raises(StokerError) as caught:
        await received(intake, b"x" * (2 << 20))
    assert caught.value.code is ErrorCode.GATEWAY_BUSY
    assert (caught.value.retry_after_s or 0) >= 1
    intake.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, settings.spool_bytes - 1000)


async def test_a_folder_that_cannot_be_written_is_503(tmp_path: Path) -> None:
    room = BodyRoom()
    intake = Intake(room, GatewaySettings(spool_dir=str(tmp_path / "gone")), None)
    with pytest.raises(StokerError, match="spool"):
        await received(intake, b"x" * (2 << 20))
    intake.close()
    assert (room.memory_bytes, room.disk_bytes) == (0, 0)


async def test_a_failure_reaches_whoever_waits_and_whoever_asks_later(settings: GatewaySettings) -> None:
    intake = Intake(BodyRoom(), settings, 10)
    waiting = asyncio.create_task(intake.whole())
    await asyncio.sleep(0)
    intake.fail(UsageError(ErrorCode.BODY_TIMEOUT, "Silent."))
    intake.fail(UsageError(ErrorCode.MALFORMED_REQUEST, "Later."))
    for attempt in (waiting, asyncio.create_task(intake.whole())):
        with pytest.raises(StokerError, match="Silent"):
            await attempt


def test_before_it_is_wanted_only_a_read_ahead_is_taken(settings: GatewaySettings) -> None:
    intake = Intake(BodyRoom(), settings, None)
    paused: list[bool] = []
    intake.pause = lambda: paused.append(True)
    intake.feed(b"x" * READ_AHEAD_BYTES)
    assert paused == []
    intake.feed(b"x")
    assert paused == [True]


def test_at_hand_is_a_small_body_in_one_piece_and_no_other(settings: GatewaySettings) -> None:
    intake = Intake(BodyRoom(), settings, None)
    assert intake.at_hand() is None
    intake.feed(b"{}")
    assert intake.at_hand() is None
    intake.end()
    assert intake.at_hand() == b"{}"
    two = Intake(BodyRoom(), settings, None)
    two.feed(b"{")
    two.feed(b"}")
    two.end()
    assert two.at_hand() is None


def test_what_comes_after_the_close_takes_no_room(settings: GatewaySettings) -> None:
    room = BodyRoom()
    intake = Intake(room, settings, None)
    intake.feed(b"x" * 100)
    intake.close()
    intake.feed(b"x" * 100)
    assert room.memory_bytes == 0
    assert intake.received_bytes == 200
