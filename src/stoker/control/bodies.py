"""Request bodies as bytes: bounded, and JSON that means one thing only (C-2).

Two members of one name, numbers that are none and broken text are refused here, so that nothing behind has to ask
what was meant. What the members are called is not known here.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import anyio
from starlette.types import Message, Receive

from stoker.errors import ErrorCode, UsageError

MOST_BYTES = 8 << 20
_PATIENCE_S = 30.0
_DEEPEST = 64


class GoneError(Exception):
    """The caller left before its request was whole."""


async def read(receive: Receive, declared: str | None) -> bytes:
    """The whole body.

    Raises:
        UsageError: ``request-too-large``, ``body-timeout``.
        GoneError: nobody is there any more.
    """
    if declared is not None and declared.isdecimal() and int(declared) > MOST_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(_PATIENCE_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise GoneError
                part = message.get("body", b"")
                size += len(part)
                if size > MOST_BYTES:
                    raise _too_large()
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise UsageError(
            ErrorCode.BODY_TIMEOUT, f"The body was not whole after {_PATIENCE_S:.0f} s.", remedy="Send it at once."
        ) from None


def again(body: bytes, receive: Receive) -> Receive:
    """A receive that gives ``body`` first, then whatever follows: the caller's leaving."""
    left = [body]

    async def replay() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replay


def check(body: bytes, content_type: str | None) -> None:
    """Refuse what is not one plain JSON object. Raises `UsageError`."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UsageError(
            ErrorCode.MALFORMED_REQUEST,
            "A body must be sent as application/json.",
            remedy="Set Content-Type: application/json.",
        )
    try:
        tree = json.loads(body, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number)
        json.dumps(tree, ensure_ascii=False).encode()
    except RecursionError:
        raise _not_json(f"it nests deeper than {_DEEPEST}") from None
    except UnicodeError:
        raise _not_json("its text is not valid UTF-8") from None
    except ValueError:
        raise _not_json("it does not parse") from None
    if not isinstance(tree, dict):
        raise _not_json("it is no object")
    _check_depth(tree)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(
            ErrorCode.DUPLICATE_FIELD,
            f"The body names {twice[:80]!r} twice.",
            remedy="Send each member once.",
            param=twice,
        )
    return members


def _number(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        _no_number(text)
    return number


def _no_number(_: str) -> NoReturn:
    raise _not_json("it holds a number that is not finite")


def _check_depth(tree: Any) -> None:
    level = [tree]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise _not_json(f"it nests deeper than {_DEEPEST}")


def _not_json(why: str) -> UsageError:
    return UsageError(ErrorCode.INVALID_JSON, f"The body is not usable JSON: {why}.", remedy="Send one JSON object.")


def _too_large() -> UsageError:
    return UsageError(
        ErrorCode.REQUEST_TOO_LARGE, f"The body is larger than {MOST_BYTES} bytes.", remedy="Send less at once."
    )
