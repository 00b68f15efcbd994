"""What a dialect is: the shapes one public API gives to errors, streams and their ends.

The rest of the gateway speaks through this and knows no dialect. A dialect is one frozen object in one file; it
holds no state, and everything about a single answer lives in the reading it hands out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.errors import StokerError
from stoker.gateway.peek import Peeked


@dataclass(slots=True)
class Reading:
    """What a stream has told so far (R-77): the choices that finished, the end marker, the engine's own error."""

    choices: int = 1
    wants_usage: bool = False
    finished: int = 0
    marked: bool = False
    failed: bool = False

    @property
    def is_finished(self) -> bool:
        return self.finished.bit_count() >= self.choices

    @property
    def is_whole(self) -> bool:
        return not self.failed and (self.marked or self.is_finished)


class Dialect(Protocol):
    """One public API's shapes."""

    @property
    def name(self) -> str: ...
    @property
    def end_mark(self) -> bytes:
        """Bytes that close a stream, or nothing where the dialect has no marker."""
        ...

    def error_body(self, error: StokerError, request_id: str) -> bytes: ...
    def error_event(self, error: StokerError, request_id: str) -> bytes:
        """The error as one complete event of a stream (R-78)."""
        ...

    def keepalive(self, waiting_for: str, elapsed_s: int) -> bytes: ...
    def is_error(self, body: bytes) -> bool:
        """Has this body the dialect's own error shape (R-75)?"""
        ...

    def reading(self, peeked: Peeked) -> Reading: ...
    def is_dull(self, data: bytes) -> bool:
        """True if no line in ``data`` can change a reading or has to be taken out. May err towards False."""
        ...

    def read_line(self, line: bytes, reading: Reading) -> bool:
        """Take one complete line into account; False if the event it belongs to must not reach the client."""
        ...

    def check(self, path: str, peeked: Peeked) -> None:
        """Refuse a body whose members have the wrong form for this route; raises `StokerError`."""
        ...

    def asks(self, path: str, peeked: Peeked) -> Mapping[str, str]:
        """What a body asks of an engine beyond plain work: ask name to the member that shows it (R-88)."""
        ...

    def model_entry(self, view: Any, capabilities: tuple[str, ...] | None) -> Mapping[str, Any]: ...
