"""One thread that owns the database connection: calls land in order, and those that queue up share one commit.

A call is a function of the connection. Its caller is woken only after the commit that holds it is on disk (S-85).
A call that fails is undone alone; the others of its commit stay (S-86). A caller who is cancelled stops waiting;
its call still lands, because one after it may build on it. Knows nothing of tables.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

from stoker.errors import ErrorCode, HostError, StokerError

T = TypeVar("T")

COMMIT_LIMIT = 256

# What a call can run into; anything else is a bug of ours and ends the thread with every caller told.
_FAILURES = (sqlite3.Error, StokerError, OSError, ValueError, OverflowError)


class _Call:
    __slots__ = ("act", "done", "error", "token", "value")

    def __init__(self, act: Callable[[sqlite3.Connection], Any]) -> None:
        self.act = act
        self.done = anyio.Event()
        self.token: EventLoopToken = current_token()
        self.value: Any = None
        self.error: Exception | None = None


class Writer:
    """``connect`` runs in the thread and makes the connection that only the thread uses."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: str) -> None:
        self._connect = connect
        self._path = path
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stoker-journal", daemon=True)
        self._door = threading.Lock()  # nobody enters the queue while it is being emptied for good
        self._ended = False
        self._why: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    async def call(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``act`` in a transaction and return its value once that is durable."""
        call = _Call(act)
        with self._door:
            if self._ended:
                raise self._worded(self._why) if self._why else self._failure("it is closed")
            self._queue.put(call)
        await call.done.wait()
        if call.error is not None:
            raise self._worded(call.error) from call.error
        return cast("T", call.value)

    def end(self) -> None:
        """Take no more calls; those queued before are carried out, then the connection is closed."""
        with self._door:
            self._ended = True
            self._queue.put(None)

    async def join(self) -> None:
        await anyio.to_thread.run_sync(self._thread.join)

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        batch: list[_Call] = []
        try:
            connection = self._connect()
        except _FAILURES as exc:
            self._refuse_rest(exc)
            return
        try:
            more = True
            while more:
                batch, more = self._next_batch()
                self._carry_out(connection, batch)
                _hand_back(batch)
                batch = []
        finally:
            connection.close()
            for call in batch:
                call.error = call.error or RuntimeError("the writer thread ended")
            _hand_back(batch)
            self._refuse_rest(RuntimeError("the writer thread ended"))

    def _next_batch(self) -> tuple[list[_Call], bool]:
        batch: list[_Call] = []
        call = self._queue.get()
        while call is not None:
            batch.append(call)
            if len(batch) == COMMIT_LIMIT:
                return batch, True
            try:
                call = self._queue.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _refuse_rest(self, why: Exception) -> None:
        """Nobody may wait for ever: whoever is or comes into the queue is refused."""
        rest: list[_Call] = []
        with self._door:
            self._why = None if self._ended else why
            self._ended = True
            while not self._queue.empty():
                call = self._queue.get()
                if call is not None:
                    call.error = why
                    rest.append(call)
        _hand_back(rest)

    def _carry_out(self, connection: sqlite3.Connection, batch: list[_Call]) -> None:
        if len(batch) > 1 and _together(connection, batch):
            return
        for call in batch:
            _alone(connection, call)

    def _worded(self, error: Exception) -> Exception:
        if isinstance(error, StokerError):
            return error
        return self._failure(str(error) or type(error).__name__, getattr(error, "sqlite_errorname", None))

    def _failure(self, why: str, name: str | None = None) -> HostError:
        return HostError(
            ErrorCode.JOURNAL_UNWRITABLE,
            f"The journal {self._path} cannot be used: {why}.",
            remedy="Check that its disk has free space and that the folder can be written. Sessions that run go on.",
            details={"cause": name} if name else {},
        )


def _alone(connection: sqlite3.Connection, call: _Call) -> None:
    call.value = call.error = None
    try:
        connection.execute("BEGIN IMMEDIATE")
        call.value = call.act(connection)
        connection.execute("COMMIT")
    except _FAILURES as exc:
        call.error = exc
        _undo(connection)


def _together(connection: sqlite3.Connection, batch: list[_Call]) -> bool:
    """All in one transaction; False if it was lost as a whole, and then nothing of it has happened."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for call in batch:
            connection.execute("SAVEPOINT one")
            try:
                call.value = call.act(connection)
            except _FAILURES as exc:
                if not connection.in_transaction:  # a full disk takes the whole transaction with it
                    return False
                call.error = exc
                connection.execute("ROLLBACK TO one")
            connection.execute("RELEASE one")
        connection.execute("COMMIT")
    except sqlite3.Error:
        _undo(connection)
        return False
    return True


def _undo(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _hand_back(batch: list[_Call]) -> None:
    """Wake the callers: one visit to their event loop for all of a commit."""
    rest = batch
    while rest:
        token = rest[0].token
        mine = [call for call in rest if call.token is token]
        rest = [call for call in rest if call.token is not token]
        try:
            from_thread.run_sync(_wake, mine, token=token)
        except anyio.RunFinishedError:
            pass  # their event loop has ended; nobody waits any more


def _wake(batch: list[_Call]) -> None:
    for call in batch:
        call.done.set()
