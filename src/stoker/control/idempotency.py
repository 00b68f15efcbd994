"""One answer for one key: a write that is sent again is not done again (C-10).

Answers are kept in memory, 24 h and 10,000 keys at most; those with a 5xx status are not. A repeat that comes while
the first still runs waits for its answer. Not known here: what a write does, and who may ask for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.responses import Response

from stoker.errors import ErrorCode, UsageError

_KEY = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer as it can be given again."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def response(self) -> Response:
        return Response(self.body, self.status, dict(self.headers))


@dataclass(slots=True, eq=False)
class _Entry:
    digest: str
    since: float
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Kept | None = None


def digest_of(body: Any) -> str:
    """A digest of a body whose defaults are filled in; the order of members does not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()


class Answers:
    """The answers of the last day. ``now`` is any clock in seconds that only rises."""

    def __init__(self, now: Callable[[], float], *, most: int = 10_000, keep_s: float = 86_400.0) -> None:
        self._now = now
        self._most = most
        self._keep_s = keep_s
        self._entries: OrderedDict[tuple[str, str, str], _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    async def once(
        self, caller: str, route: str, key: str, digest: str, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        """The first answer to ``key``; ``act`` makes it if there is none.

        Raises:
            UsageError: ``invalid-parameter`` for a key of another form, ``idempotency-conflict`` for another body.
        """
        if not _KEY.fullmatch(key):
            raise UsageError(
                ErrorCode.INVALID_PARAMETER,
                "Idempotency-Key must be 1 to 128 visible ASCII characters.",
                remedy="Send a random value, such as a UUID.",
                param="Idempotency-Key",
            )
        place = (caller, route, key)
        while (known := self._find(place)) is not None:
            if known.digest != digest:
                raise UsageError(
                    ErrorCode.IDEMPOTENCY_CONFLICT,
                    "This Idempotency-Key came with another body before.",
                    remedy="Use a new key for a new request.",
                )
            if known.answer is not None:
                return known.answer.response()
            await known.done.wait()
        return await self._first(place, digest, act)

    async def _first(
        self, place: tuple[str, str, str], digest: str, act: Callable[[], Awaitable[Response]]
    ) -> Response:
        entry = _Entry(digest, self._now())
        self._entries[place] = entry
        try:
            response = await act()
            if response.status_code < 500:
                entry.answer = Kept(response.status_code, _fields(response), bytes(response.body))
            return response
        finally:
            if entry.answer is None:
                del self._entries[place]
            entry.done.set()
            self._forget()

    def _find(self, place: tuple[str, str, str]) -> _Entry | None:
        self._forget()
        return self._entries.get(place)

    def _forget(self) -> None:
        """Drop what is too old or too much, oldest first; what still runs stays."""
        oldest = self._now() - self._keep_s
        for place, entry in list(self._entries.items()):
            if entry.since > oldest and len(self._entries) <= self._most:
                return
            if entry.answer is not None:
                del self._entries[place]


def _fields(response: Response) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in response.headers.items() if name != "content-length")
