"""A request's body, received whole before anything is asked of the kernel (R-57 to R-59).

Up to 1 MiB it stays in memory, above that in an unlinked file; all bodies together have a bound in memory and one on
disk. What is read later is one flat buffer either way. Limits are tested as bytes come, not after.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import tempfile
from collections.abc import Callable

from stoker.errors import CapacityError, ErrorCode, StokerError, UsageError
from stoker.gateway.peek import Buffer
from stoker.gateway.settings import GatewaySettings

KEPT_BYTES = 1 << 20
KEPT_BYTES_WHEN_FULL = 64 << 10
READ_AHEAD_BYTES = 64 << 10


class BodyRoom:
    """What all bodies together hold now, in memory and on disk."""

    __slots__ = ("disk_bytes", "memory_bytes")

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.disk_bytes = 0


class Intake:
    """One body on its way in. The connection feeds it; `whole` waits for its end.

    Before `whole` is called only a read-ahead is taken, so a request that is refused by its head costs no more.
    """

    __slots__ = (
        "_closed", "_error", "_file", "_held", "_on_disk", "_pieces", "_room", "_settings", "_unseen", "_waiter",
        "declared_bytes", "is_ended", "pause", "received_bytes", "resume",
    )  # fmt: skip

    def __init__(self, room: BodyRoom, settings: GatewaySettings, declared_bytes: int | None) -> None:
        self._room = room
        self._settings = settings
        self.declared_bytes = declared_bytes
        self.received_bytes = 0
        self.is_ended = False
        self.pause: Callable[[], None] | None = None
        self.resume: Callable[[], None] | None = None
        self._pieces: list[bytes] = []
        self._held = 0  # bytes of ours counted in the room's memory
        self._on_disk = 0
        self._unseen = 0  # bytes that came since `whole` last looked
        self._file: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: StokerError | None = None
        self._closed = False

    def feed(self, piece: bytes) -> None:
        """Called by the connection for each piece, in order."""
        self.received_bytes += len(piece)
        if self._closed or self._error is not None:
            return
        if self.received_bytes > self._settings.max_body_bytes:
            self.fail(_too_large(self.received_bytes, self._settings.max_body_bytes))
            return
        self._pieces.append(piece)
        self._held += len(piece)
        self._room.memory_bytes += len(piece)
        self._unseen += len(piece)
        if self._unseen > READ_AHEAD_BYTES and self.pause is not None:
            self.pause()  # one wake-up of the loop can bring many reads: the bounds below must be looked at in between
        self._wake()

    def end(self) -> None:
        """The last byte came. A body that broke a bound has no end: its connection is closed."""
        self.is_ended = self._error is None
        self._wake()

    def fail(self, error: StokerError) -> None:
        """The body will never be whole; `whole` raises ``error``."""
        if self._error is None and not self.is_ended:
            self._error = error
            self._wake()

    def refuse_length(self) -> None:
        """413 for a declared length above the bound, before anything is read (R-57)."""
        if self.declared_bytes is not None and self.declared_bytes > self._settings.max_body_bytes:
            raise _too_large(self.declared_bytes, self._settings.max_body_bytes)

    async def whole(self) -> Buffer:
        """The whole body as one buffer; raises `StokerError` if it breaks a bound."""
        while not self.is_ended:
            if self._error is not None:
                raise self._error
            if self._pieces and (self._file is not None or self._held > self._bound()):
                await self._spool()
            else:
                await self._more()
        if self._file is not None:
            await self._spool()
            return memoryview(mmap.mmap(self._file, self.received_bytes, prot=mmap.PROT_READ))
        if len(self._pieces) == 1:
            return self._pieces[0]
        self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def at_hand(self) -> bytes | None:
        """The whole body if it came in one piece that may stay in memory; None if `whole` has to be asked."""
        if not self.is_ended or self._error is not None or len(self._pieces) != 1 or self._held > self._bound():
            return None
        return self._pieces[0]

    def close(self) -> None:
        """Give everything back. Idempotent."""
        self._closed = True
        self._pieces = []
        self._room.memory_bytes -= self._held
        self._room.disk_bytes -= self._on_disk
        self._held = self._on_disk = 0
        if self._file is not None:
            os.close(self._file)
            self._file = None

    async def _more(self) -> None:
        self._unseen = 0
        if self.resume is not None:
            self.resume()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _bound(self) -> int:
        if self._settings.spool_dir is None:
            return self._settings.max_body_bytes
        if self._room.memory_bytes > self._settings.body_memory_bytes:
            return KEPT_BYTES_WHEN_FULL
        return KEPT_BYTES

    async def _spool(self) -> None:
        """Move what is held into the file, in a thread; the client is not read from meanwhile."""
        if not self._pieces:
            return
        if self.pause is not None:
            self.pause()
        pieces, self._pieces = self._pieces, []
        size = sum(map(len, pieces))
        if self._room.disk_bytes + size > self._settings.spool_bytes:
            raise _no_room(f"bodies on disk would exceed {self._settings.spool_bytes} bytes", "gateway.spool_bytes")
        self._room.disk_bytes += size
        self._on_disk += size
        try:
            if self._file is None:
                self._file = await asyncio.to_thread(_unlinked_file, self._settings.spool_dir)
            await asyncio.to_thread(_write_all, self._file, pieces)
        except OSError as exc:
            raise _no_room(f"a large body could not be written to the spool folder ({exc.strerror})", "spool") from exc
        self._held -= size
        self._room.memory_bytes -= size

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _unlinked_file(folder: str | None) -> int:
    number, path = tempfile.mkstemp(dir=folder, prefix="body-")
    os.unlink(path)
    return number


def _write_all(number: int, pieces: list[bytes]) -> None:
    for piece in pieces:
        view = memoryview(piece)
        while view:
            view = view[os.write(number, view) :]


def _too_large(size: int, bound: int) -> StokerError:
    return UsageError(
        ErrorCode.REQUEST_TOO_LARGE,
        f"The body has {size} bytes or more; {bound} are allowed.",
        remedy="Send less, or raise gateway.max_body_bytes.",
        details={"setting": "gateway.max_body_bytes", "limit_bytes": bound},
    )


def _no_room(why: str, setting: str) -> StokerError:
    return CapacityError(
        ErrorCode.GATEWAY_BUSY,
        f"There is no room for this body: {why}.",
        remedy="Send it again later.",
        details={"setting": setting},
        retry_after_s=5,
    )
