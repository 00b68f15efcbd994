"""Reading the event stream: server-sent events to `Event`, and going on after a broken connection (C-13 to C-15).

A stream goes on where it broke by the last id seen; the daemon replays what was missed, or says that there is a gap and
sends a snapshot. Nothing is dropped or repeated here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from stoker.client.records import Event, read
from stoker.client.transport import Transport
from stoker.errors import ErrorCode, StokerError, error_for

# The daemon sends a comment every 15 s: three of them missing is a dead connection.
_SILENCE_S = 45.0
_PAUSES_S = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event; ``comment`` is True for a line that only shows that the other side lives."""

    id: str = ""
    event: str = ""
    data: str = ""
    comment: bool = False


def parse(lines: Iterable[str]) -> Iterator[Message]:
    """Whole messages; one that the connection cut is not given out."""
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield Message(fields.get("id", ""), fields.get("event", ""), "\n".join(data))
            fields, data = {}, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            yield Message(comment=True)
        elif name == "data":
            data.append(value)
        else:
            fields[name] = value


@dataclass
class EventStream:
    """Iterate to get events. ``patience_s``: how long a lost daemon may be away before the stream gives up.

    Raises from the iteration: `HostError` ``daemon-unreachable`` when it gives up, ``no-answer`` at ``deadline``
    (monotonic, seconds), checked whenever the stream shows a sign of life and at the latest one heartbeat later.
    """

    transport: Transport
    last_id: str | None = None
    topics: tuple[str, ...] = ()
    patience_s: float = 15.0
    deadline: float | None = None
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failures: int = field(default=0, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                for message in self._connected():
                    self._failures, self._lost_at = 0, None
                    self._check_deadline()
                    if not message.comment:
                        yield self._event(message)
            except StokerError as exc:
                self._check_deadline()
                if exc.code not in {ErrorCode.DAEMON_UNREACHABLE, ErrorCode.NO_ANSWER, ErrorCode.DAEMON_STARTING}:
                    raise
                self._pause(exc)
            else:  # the daemon closed it: it leaves, or has taken our key
                self._pause(None)

    def _connected(self) -> Iterator[Message]:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": self.last_id} if self.last_id else {})
        silence_s = _SILENCE_S if self.deadline is None else max(0.05, min(_SILENCE_S, self.deadline - self.now()))
        query = {"topics": self.topics or None}
        with self.transport.stream("GET", "/v1/events", query=query, headers=headers, silence_s=silence_s) as (
            _,
            lines,
        ):
            yield from parse(lines)

    def _event(self, message: Message) -> Event:
        tree = json.loads(message.data)
        tree.setdefault("event", message.event)
        tree.setdefault("id", message.id)
        self.last_id = message.id or tree["id"] or self.last_id
        return read(Event, tree)

    def _pause(self, error: StokerError | None) -> None:
        """Wait a little longer each time; give up when the daemon was away too long."""
        if self._lost_at is None:
            self._lost_at = self.now()
        if self.now() - self._lost_at >= self.patience_s:
            raise error or error_for(
                ErrorCode.DAEMON_UNREACHABLE,
                f"The daemon at {self.transport.address} ended the event stream.",
                remedy="Start one with `stoker serve`.",
            )
        self.sleep(_PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)])
        self._failures += 1

    def _check_deadline(self) -> None:
        if self.deadline is not None and self.now() >= self.deadline:
            raise error_for(
                ErrorCode.NO_ANSWER,
                "What was waited for had not ended when the time allowed was over.",
                remedy="It goes on; look again with `stoker ps`, or allow more with --timeout.",
            )
