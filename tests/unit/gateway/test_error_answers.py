"""From an error to an answer: status, advice and shape (R-34, R-35, R-74)."""

from __future__ import annotations

import json

import pytest

from stoker.errors import ROWS, CapacityError, ErrorCode, InternalError, UsageError, error_for, openai_code
from stoker.gateway.errors import error_answer
from stoker.gateway.openai import OPENAI


def lines(block: bytes) -> dict[str, str]:
    pairs = (line.partition(": ") for line in block.decode().split("\r\n") if line)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize("code", sorted(ErrorCode))
def test_every_code_has_its_status_its_advice_and_one_shape(code: ErrorCode) -> None:
    error = error_for(code, "One sentence with 7 in it.", remedy="Do this.", details={"x": 7}, param="p")
    answer = error_answer(error, "req_1", OPENAI)
    row, head = ROWS[code], lines(answer.block)
    assert answer.status == row.http_status
    assert head["content-type"] == "application/json"
    assert head["stoker-speaker"] == "gateway"
    assert head["x-request-id"] == "req_1"
    assert head.get("x-should-retry") == {None: None, True: "true", False: "false"}[row.retry]
    told = json.loads(answer.body)["error"]
    assert set(told) == {"message", "type", "param", "code", "stoker"}
    assert (told["message"], told["type"], told["param"]) == ("One sentence with 7 in it.", row.openai_type, "p")
    assert told["code"] == openai_code(code)
    assert told["stoker"]["code"] == str(code)
    assert (told["stoker"]["remedy"], told["stoker"]["details"]) == ("Do this.", {"x": 7})
    assert told["stoker"]["request_id"] == "req_1"


@pytest.mark.parametrize(("wait_s", "told"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (2.5, "3"), (60, "60")])
def test_retry_after_is_a_whole_number_of_at_least_one(wait_s: float, told: str) -> None:
    answer = error_answer(CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=wait_s), "r", OPENAI)
    assert lines(answer.block)["retry-after"] == told
    assert json.loads(answer.body)["error"]["stoker"]["retry_after_s"] == int(told)


def test_without_a_wait_there_is_no_retry_after() -> None:
    answer = error_answer(UsageError(ErrorCode.INVALID_JSON, "No."), "r", OPENAI)
    assert b"retry-after" not in answer.block
    assert b"retry_after_s" not in answer.body


def test_a_method_and_a_key_are_told_what_would_do() -> None:
    wrong = UsageError(ErrorCode.METHOD_NOT_ALLOWED, "No.", details={"allow": ["GET", "HEAD"]})
    assert lines(error_answer(wrong, "r", OPENAI).block)["allow"] == "GET, HEAD"
    assert (
        lines(error_answer(UsageError(ErrorCode.INVALID_KEY, "No."), "r", OPENAI).block)["www-authenticate"] == "Bearer"
    )


def test_an_error_event_is_the_same_object_on_one_line() -> None:
    error = InternalError(ErrorCode.INTERNAL, "Line\nbreak \u2028 and 北.", details={"a": "\r\n"})
    event = OPENAI.error_event(error, "r")
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event
    assert json.loads(event[6:]) == json.loads(OPENAI.error_body(error, "r"))
