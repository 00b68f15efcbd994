"""Asking a model through the gateway and getting the answer piece by piece, as it is made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.client.events import parse
from stoker.client.problems import error_from
from stoker.client.transport import Transport, gateway_problem
from stoker.errors import ErrorCode, error_for

Message = Mapping[str, str]


class Gateway:
    """``address``: ``host:port`` or a whole ``http://`` address."""

    def __init__(self, address: str, *, key: str | None = None) -> None:
        self._transport = Transport(address if "://" in address else f"http://{address}", key)

    def close(self) -> None:
        self._transport.close()

    def stream_chat(self, model: str, messages: Sequence[Message], *, keep_alive: str | None = None) -> Iterator[str]:
        """Pieces of the answer. Closing the iterator closes the connection, which cancels the request.

        Raises the `StokerError` that the gateway answered, also in the middle, and `EngineError`
        ``stream-incomplete`` for an answer that ends without its end mark.
        """
        headers = {"accept": "text/event-stream", "stoker-client": "stoker run"}
        if keep_alive is not None:
            headers["stoker-keep-alive"] = keep_alive
        body = {"model": model, "messages": list(messages), "stream": True}
        with self._transport.stream("POST", "/v1/chat/completions", body=body, headers=headers, silence_s=None) as (
            _,
            lines,
        ):
            for message in parse(lines):
                if message.data == "[DONE]":
                    return
                if not message.comment:
                    yield from _pieces(json.loads(message.data))
        raise error_for(
            ErrorCode.STREAM_INCOMPLETE,
            f"The answer of {model} broke off before its end.",
            remedy=f"Ask again; `stoker logs {model}` may say why.",
        )


def _pieces(chunk: Mapping[str, Any]) -> Iterator[str]:
    error = chunk.get("error")
    if isinstance(error, Mapping):
        raise error_from(gateway_problem(error))
    for choice in chunk.get("choices", ()):
        text = (choice.get("delta") or {}).get("content")
        if text:
            yield text
