"""What simulations ask of the fake: failures, hangs, order, and a daemon killed in the middle of a write."""

from __future__ import annotations

import anyio
import pytest

from stoker.errors import ErrorCode, HostError
from stoker.ids import Generation
from stoker.testing.fake_journal import FakeJournal
from stoker.testing.journal_contract import WALL, opened, session_row


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


pytestmark = pytest.mark.anyio


async def test_only_the_chosen_write_fails_and_reads_do_not_count():
    journal = await opened(FakeJournal)
    journal.fail(2)
    await journal.write_session(session_row(1))
    await journal.open_lives()
    with pytest.raises(HostError) as caught:
        await journal.intend(Generation(1), "start", WALL)
    assert caught.value.code == ErrorCode.JOURNAL_UNWRITABLE
    await journal.intend(Generation(1), "stop", WALL)
    assert journal.verbs(1) == [("stop", None)]
    assert [call[0] for call in journal.calls] == ["open", "write_session", "intend"]


async def test_a_broken_disk_refuses_every_write_and_still_reads():
    journal = await opened(FakeJournal)
    await journal.write_session(session_row(1))
    journal.broken = True
    with pytest.raises(HostError):
        await journal.write_phase(Generation(1), "preparing")
    assert len(await journal.open_lives()) == 1


async def test_a_hang_holds_everybody_until_it_ends_and_keeps_the_order():
    journal = await opened(FakeJournal)
    journal.hang()
    async with anyio.create_task_group() as group:
        for generation in (3, 1, 2):
            group.start_soon(journal.write_session, session_row(generation))
            await anyio.wait_all_tasks_blocked()
        assert len(journal.calls) == 1
        journal.resume()
    assert [call[1].generation for call in journal.calls[1:]] == [3, 1, 2]


async def test_a_kill_while_the_disk_works_leaves_a_write_nobody_was_told_of():
    journal = await opened(FakeJournal)
    journal.delay_s = 60
    with anyio.move_on_after(0.01) as killed:
        await journal.write_session(session_row(1))
    assert killed.cancelled_caught
    journal.delay_s = 0
    await opened(lambda: journal, "two")
    assert [life.session.generation for life in await journal.open_lives()] == [1]


async def test_a_kill_before_the_turn_leaves_nothing():
    journal = await opened(FakeJournal)
    journal.hang()
    with anyio.move_on_after(0.01):
        await journal.write_session(session_row(1))
    await opened(lambda: journal, "two")
    assert await journal.open_lives() == ()


async def test_a_damaged_row_is_told():
    journal = await opened(FakeJournal)
    await journal.write_session(session_row(1))
    journal.damage(1)
    assert [life.damaged for life in await journal.open_lives()] == [True]
