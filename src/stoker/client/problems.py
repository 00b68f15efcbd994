"""From an error answer back to the `StokerError` that the daemon raised (C-11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.errors import ErrorCode, StokerError, error_for


def error_from(problem: Mapping[str, Any]) -> StokerError:
    """The error a Problem object tells of; one with a code of a newer release keeps its words and its side."""
    details = problem.get("details")
    details = dict(details) if isinstance(details, Mapping) else {}
    code, status = str(problem.get("code", "")), problem.get("status")
    try:
        known = ErrorCode(code)
    except ValueError:
        is_ours = isinstance(status, int) and 400 <= status < 500
        known = ErrorCode.MALFORMED_REQUEST if is_ours else ErrorCode.INTERNAL
        details["code"] = code
    wait_s = problem.get("retry_after_s")
    return error_for(
        known,
        str(problem.get("message") or f"The daemon answered {code or status or 'an error'} without a reason."),
        remedy=str(problem.get("remedy") or ""),
        details=details,
        retry_after_s=float(wait_s) if isinstance(wait_s, int | float) else None,
    )


def problem_of(error: StokerError) -> dict[str, Any]:
    """The Problem object for an error of our own, in the shape that the API uses."""
    problem: dict[str, Any] = {
        "type": f"errors#{error.code}",
        "status": error.row.http_status,
        "code": str(error.code),
        "message": error.message,
        "remedy": error.remedy,
        "details": error.details,
    }
    if error.retry_after_s is not None:
        problem["retry_after_s"] = error.retry_after_s
    return problem
