"""Log lines from the daemon: whole or followed, and whose they are (S-24)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stoker.client.events import parse
from stoker.client.records import LogLine, read
from stoker.client.transport import Transport

_SILENCE_S = 45.0


class LogStream:
    """Iterate once to get lines. ``source``: which life they are of, known from the first line on."""

    def __init__(self, transport: Transport, path: str, query: Mapping[str, Any], *, follow: bool) -> None:
        self._transport = transport
        self._path = path
        self._query = query
        self._follow = follow
        self.source: Mapping[str, Any] = {}

    def __iter__(self) -> Iterator[LogLine]:
        headers = {"accept": "text/event-stream" if self._follow else "application/json"}
        with self._transport.stream("GET", self._path, query=self._query, headers=headers, silence_s=_SILENCE_S) as (
            content_type,
            lines,
        ):
            if content_type == "text/event-stream":
                trees: Iterable[Any] = (json.loads(message.data) for message in parse(lines) if not message.comment)
            else:
                trees = self._whole(json.loads("\n".join(lines)))
            for tree in trees:
                if "text" in tree:
                    yield read(LogLine, tree)
                else:
                    self.source = tree

    def _whole(self, answer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The life's own members first, then the lines."""
        yield {name: value for name, value in answer.items() if name not in {"items", "lines", "next"}}
        for line in answer.get("items", answer.get("lines", ())):
            yield {"text": line} if isinstance(line, str) else line
