"""Server-sent events, taken apart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stoker.client.events import Message, parse
from stoker.client.problems import error_from, problem_of
from stoker.client.records import Operation, read
from stoker.errors import ROWS, CapacityError, ErrorCode, InternalError, error_for


def test_fields_of_a_message_are_put_together() -> None:
    assert list(parse(["id: a:1", "event: x.y", "data: one", "data:two", "", "data: 3", ""])) == [
        Message("a:1", "x.y", "one\ntwo"),
        Message("", "", "3"),
    ]


def test_a_message_that_was_cut_is_not_given_out() -> None:
    assert list(parse(["id: a:1", "data: whole", "", "id: a:2", "data: cut"])) == [Message("a:1", "", "whole")]


def test_a_comment_is_a_sign_of_life_and_no_message() -> None:
    assert list(parse([": alive", "", "id: a:1", ""])) == [Message(comment=True)]


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_code_survives_the_way_over_the_wire(code: ErrorCode) -> None:
    sent = error_for(code, "One sentence.", remedy="Do this.", details={"n": 1}, retry_after_s=2.0)
    got = error_from(problem_of(sent))
    assert type(got) is type(sent)
    assert problem_of(got) == problem_of(sent)
    assert got.row is ROWS[code]


def test_a_problem_without_words_still_says_something() -> None:
    assert error_from({}).message == "The daemon answered an error without a reason."
    assert error_from({"code": "room-denied"}).message == "The daemon answered room-denied without a reason."


def test_progress_nobody_knows_is_none() -> None:
    assert read(Operation, {"operation_id": "a"}).percent is None
    assert read(Operation, {"operation_id": "a", "progress": {"done": 5, "total": None}}).percent is None
    assert read(Operation, {"operation_id": "a", "progress": {"done": 5, "total": 20}}).percent == 25


def test_an_operation_that_failed_without_a_reason_is_still_a_failure() -> None:
    with pytest.raises(InternalError, match="without a stated reason"):
        read(Operation, {"operation_id": "a", "kind": "load", "state": "failed"}).raise_if_failed()
    with pytest.raises(CapacityError):
        read(Operation, {"operation_id": "a", "error": {"code": "room-denied"}}).raise_if_failed()


def test_importing_the_client_loads_no_http_library_and_no_pydantic() -> None:
    program = "import sys, stoker.client; print({'httpx2', 'pydantic', 'rich'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
