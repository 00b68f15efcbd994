"""Errors as problem documents: one sentence, what to do, and nothing that should stay inside (C-11, C-46).

Knows how each kind of failure is told; never repeats a value that a caller sent, and shows no traceback.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from stoker.config.problems import nearest
from stoker.errors import ErrorCode, StokerError, UsageError, error_for
from stoker.observability.scrub import Scrubber

MEDIA_TYPE = "application/problem+json"
_DETAILS_BYTES = 8192

# What a validator calls a mistake, and what we call it; other words are `invalid-parameter`.
_CODES = {"extra_forbidden": ErrorCode.UNKNOWN_FIELD, "json_invalid": ErrorCode.INVALID_JSON}
_NEEDED = {
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "finite_number": "a finite number",
    "bool_type": "true or false", "bool_parsing": "true or false",
    "string_type": "text", "dict_type": "an object", "list_type": "a list", "tuple_type": "a list",
    "model_type": "an object", "model_attributes_type": "an object",
}  # fmt: skip


def problem(error: StokerError, request_id: str, scrubber: Scrubber) -> dict[str, Any]:
    """The members of one problem document."""
    details = scrubber.value(error.details)
    if len(json.dumps(details, default=str)) > _DETAILS_BYTES:
        details = {"omitted": f"The details are longer than {_DETAILS_BYTES} bytes."}
    members: dict[str, Any] = {
        "type": f"errors#{error.code}",
        "status": error.row.http_status,
        "code": str(error.code),
        "message": scrubber.text(error.message),
        "remedy": scrubber.text(error.remedy),
        "details": details | ({"param": scrubber.text(error.param)} if error.param is not None else {}),
        "request_id": request_id,
    }
    if error.retry_after_s is not None:
        members["retry_after_s"] = error.retry_after_s
    return members


def respond(
    error: StokerError, request_id: str, scrubber: Scrubber, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer for an error, with the header fields its status asks for."""
    more = dict(headers or {})
    if error.retry_after_s is not None:
        more["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.row.http_status == 401:
        more["www-authenticate"] = "Bearer"
    body = json.dumps(problem(error, request_id, scrubber), default=str, ensure_ascii=True).encode()
    return Response(body, error.row.http_status, more, MEDIA_TYPE)


def from_validation(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> UsageError:
    """What a validator found, as the first mistake in words; ``known`` are the members that the body may have."""
    found = errors[0]
    where, *path = [str(part) for part in found["loc"]]
    name = ".".join(path)
    code = _CODES.get(found["type"], ErrorCode.INVALID_PARAMETER)
    if found["type"] == "json_invalid" or not path:
        return UsageError(
            ErrorCode.INVALID_JSON if found["type"] == "json_invalid" else ErrorCode.MALFORMED_REQUEST,
            "The body is not the JSON object that this route takes.",
            remedy="Send one JSON object as application/json.",
        )
    if code is ErrorCode.UNKNOWN_FIELD:
        return unknown(path[-1], known if len(path) == 1 else (), "a member that this route takes", name)
    return UsageError(code, f"{_place(where)}{name} {_wrong(found)}.", remedy="Correct the value.", param=name)


def unknown(name: str, known: Sequence[str], what: str, param: str | None = None) -> UsageError:
    """An unknown member or query parameter, with the nearest valid name (C-2)."""
    near = nearest(name, sorted(known))
    shown = name if len(name) <= 80 else name[:77] + "..."
    return UsageError(
        ErrorCode.UNKNOWN_FIELD,
        f"{shown} is not {what}" + (f"; did you mean {near}?" if near else "."),
        remedy=f"Use one of: {', '.join(sorted(known))}." if known else "Leave it out.",
        details={"nearest": near} if near else None,
        param=param or shown,
    )


def internal(error_id: str) -> StokerError:
    """A defect of ours; ``error_id`` finds the trace in the log."""
    return error_for(
        ErrorCode.INTERNAL,
        f"Stoker failed on this request; the log has the trace under {error_id}.",
        remedy="Look for the id in the daemon's log, and report it.",
        details={"error_id": error_id},
    )


def _place(where: str) -> str:
    return "" if where == "body" else f"The {where} parameter "


def _wrong(found: Mapping[str, Any]) -> str:
    kind, context = found["type"], found.get("ctx") or {}
    if kind == "missing":
        return "is missing"
    if kind in _NEEDED:
        return f"must be {_NEEDED[kind]}"
    match kind:
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "greater_than":
            return f"must be above {context['gt']}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "string_too_short":
            return "must not be empty"
        case _:
            return "is not a value this member can have"
