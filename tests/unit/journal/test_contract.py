"""Both journals keep the one contract, under both event loops."""

from __future__ import annotations

import pytest

from stoker.journal.sqlite import SqliteJournal
from stoker.testing.fake_journal import FakeJournal
from stoker.testing.journal_contract import CHECKS


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_sqlite_journal_keeps_the_contract(check, tmp_path):
    await check(lambda: SqliteJournal(str(tmp_path / "data" / "journal.sqlite")))


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_fake_journal_keeps_the_contract(check):
    journal = FakeJournal()
    await check(lambda: journal)
