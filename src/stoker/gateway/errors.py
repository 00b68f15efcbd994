"""From a `StokerError` to an answer: status, header fields and body, the same in every dialect (R-34, R-35, R-74).

The dialect gives the body its shape; status, retry advice and request id are decided here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from stoker.errors import ErrorCode, StokerError
from stoker.gateway.dialect import Dialect

_CHALLENGE = b"www-authenticate: Bearer\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of our own. ``block`` are header lines without the length, each with its line end."""

    status: int
    block: bytes
    body: bytes


def retry_after_s(error: StokerError) -> int | None:
    """The honest wait as a whole number of at least 1 (R-35), None where waiting is no cure."""
    return None if error.retry_after_s is None else max(1, math.ceil(error.retry_after_s))


def stoker_member(error: StokerError, request_id: str) -> dict[str, Any]:
    """The ``stoker`` member of every dialect's error object (R-74)."""
    member: dict[str, Any] = {
        "code": str(error.code),
        "remedy": error.remedy,
        "details": error.details,
        "request_id": request_id,
    }
    wait_s = retry_after_s(error)
    if wait_s is not None:
        member["retry_after_s"] = wait_s
    return member


def error_answer(error: StokerError, request_id: str, dialect: Dialect) -> Answer:
    lines = [b"content-type: application/json\r\nstoker-speaker: gateway\r\n", id_line(request_id)]
    wait_s = retry_after_s(error)
    if wait_s is not None:
        lines.append(b"retry-after: %d\r\n" % wait_s)
    if error.row.retry is not None:
        lines.append(b"x-should-retry: %b\r\n" % (b"true" if error.row.retry else b"false"))
    if error.code is ErrorCode.METHOD_NOT_ALLOWED:
        lines.append(b"allow: %b\r\n" % ", ".join(error.details.get("allow", ())).encode())
    if error.code is ErrorCode.INVALID_KEY:
        lines.append(_CHALLENGE)
    return Answer(error.row.http_status, b"".join(lines), dialect.error_body(error, request_id))


def json_answer(status: int, body: bytes, request_id: str, content_type: bytes = b"application/json") -> Answer:
    block = b"content-type: %b\r\nstoker-speaker: gateway\r\n%b" % (content_type, id_line(request_id))
    return Answer(status, block, body)


def id_line(request_id: str) -> bytes:
    return b"x-request-id: %b\r\n" % request_id.encode()
