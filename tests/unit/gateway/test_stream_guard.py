"""A broken stream never looks whole, and a whole one is not touched (R-76 to R-81; BR-501, BR-504)."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gateway.dialect import Reading
from stoker.gateway.guard import MAX_KEPT_BYTES, StreamGuard
from stoker.gateway.openai import OPENAI

ERROR = b'data: {"error":{"code":"x"}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: str = "", finish: str | None = None, index: int = 0, *, spaced: bool = False) -> bytes:
    told = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}
    shape = json.dumps(told, ensure_ascii=False, separators=None if spaced else (",", ":"))
    return b"data: " + shape.encode() + b"\n\n"


def guard(choices: int = 1, *, usage: bool = False) -> StreamGuard:
    return StreamGuard(OPENAI, Reading(choices=choices, wants_usage=usage))


TEXT = event("北京🚀é") + event('"choices":[] "finish_reason":"stop" [DONE]', spaced=True)
WHOLE = TEXT + event("", "stop") + DONE
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
FORMS = {
    "lf": WHOLE,
    "crlf": WHOLE.replace(b"\n", b"\r\n"),
    "cr": WHOLE.replace(b"\n", b"\r"),
    "mixed": TEXT.replace(b"\n", b"\r\n") + event("", "stop").replace(b"\n", b"\r") + DONE,
    "bom": b"\xef\xbb\xbf" + WHOLE,
    "comments": b": ping\n\n" + TEXT + b":\n\n: x\nid: 7\nretry: 5\nodd\n" + event("", "stop") + DONE,
    "no space": WHOLE.replace(b"data: ", b"data:"),
    "not utf-8": b'data: {"x":"\xff\xfe\xe5"}\n\n' + WHOLE,
    "not json": b"data: {{{\n\n" + WHOLE,
}


def fed(watch: StreamGuard, *pieces: bytes) -> bytes:
    return b"".join(watch.feed(piece) for piece in pieces)


@pytest.mark.parametrize("form", FORMS)
def test_br_501_every_cut_of_every_form_gives_the_same_bytes_and_the_same_reading(form: str) -> None:
    whole = FORMS[form]
    for cut in range(len(whole) + 1):
        watch = guard()
        assert fed(watch, whole[:cut], whole[cut:]) + watch.take_last_line() == whole, cut
        assert (watch.reading.marked, watch.reading.is_finished) == (True, True), cut
        assert watch.closing(None) == b""


@pytest.mark.parametrize("form", FORMS)
def test_br_501_single_bytes_give_the_same_bytes_and_the_same_reading(form: str) -> None:
    watch = guard()
    assert fed(watch, *(bytes([byte]) for byte in FORMS[form])) == FORMS[form]
    assert watch.reading.is_whole


@given(st.sampled_from(sorted(FORMS)), st.lists(st.integers(0, len(FORMS["comments"])), max_size=8))
def test_any_cuts_give_the_same_bytes(form: str, cuts: list[int]) -> None:
    whole = FORMS[form]
    borders = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    watch = guard()
    pieces = [whole[a:b] for a, b in itertools.pairwise(borders)]
    assert fed(watch, *pieces) == whole


@pytest.mark.parametrize("form", ["lf", "crlf", "cr"])
def test_br_504_a_break_at_any_byte_leaves_whole_lines_an_error_and_the_end_mark(form: str) -> None:
    whole = FORMS[form]
    for cut in range(len(whole)):
        watch = guard()
        out = watch.feed(whole[:cut])
        assert whole.startswith(out)
        assert not out or out[-1:] in b"\r\n", cut
        out += watch.closing(ERROR)
        if watch.reading.marked:
            assert b"error" not in out
            continue
        assert out.endswith(DONE)
        finished = b'"finish_reason":"stop"}' in out
        assert (b'{"error"' in out) is not finished, cut
        seen = out.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events = [part for part in seen.split(b"\n\n") if part]
        assert events[-1] == b"data: [DONE]"
        for part in events[:-1]:
            (line,) = part.split(b"\n")
            json.loads(line.removeprefix(b"data: "))


def test_br_504_no_finish_reason_is_made_up_and_what_had_arrived_stays() -> None:
    watch = guard()
    out = watch.feed(TEXT + b'data: {"choices":[{"index":0,"finish_reason":"st') + watch.closing(ERROR)
    assert out == TEXT + ERROR + DONE


def test_an_open_event_is_closed_before_the_error() -> None:
    watch = guard()
    out = watch.feed(TEXT + b"event: x\nda")
    assert out + watch.closing(ERROR) == TEXT + b"event: x\n" + b"\n" + ERROR + DONE


def test_br_504_after_every_finish_reason_a_lost_end_mark_is_supplied_without_an_error() -> None:
    for error in (ERROR, None):
        watch = guard()
        out = watch.feed(TEXT + event("", "stop"))
        assert out + watch.closing(error) == WHOLE
        open_ended = guard()
        out = open_ended.feed((TEXT + event("", "length"))[:-1])
        assert out + open_ended.closing(error) == TEXT + event("", "length") + DONE


def test_every_choice_has_to_finish() -> None:
    watch = guard(choices=3)
    watch.feed(event("", "stop", 0) + event("", "stop", 0) + event("", "length", 2))
    assert not watch.reading.is_whole
    assert watch.closing(ERROR) == ERROR + DONE
    watch.feed(event("x", None, 1) + event("", "tool_calls", 1, spaced=True))
    assert watch.closing(ERROR) == DONE


@pytest.mark.parametrize("form", [b"data: [DONE]\n", b"data: [DONE]", b"data:[DONE]\r", b"data: [DONE] \r\n\r\n"])
def test_nothing_is_added_after_the_end_mark(form: bytes) -> None:
    watch = guard()
    out = watch.feed(TEXT + form) + watch.take_last_line()
    assert out.rstrip() == (TEXT + form).rstrip()
    assert watch.closing(ERROR) == b""


@pytest.mark.parametrize(
    "own", [b'data: {"error":{"message":"m"}}\n\n', b'data: {"id":1,"error": "m"}\n\n', b'data: {"error":3}\r\n\r\n']
)
def test_nothing_is_added_after_an_engines_own_error(own: bytes) -> None:
    watch = guard()
    assert watch.feed(TEXT + own) + watch.closing(ERROR) == TEXT + own
    assert watch.reading.failed


def test_a_null_error_is_no_error() -> None:
    watch = guard()
    watch.feed(b'data: {"error":null,"choices":[{"index":0,"finish_reason":"stop"}]}\n\n')
    assert watch.reading.is_whole


def test_a_last_line_counts_at_an_orderly_end_if_it_tells_something() -> None:
    watch = guard()
    last = event("", "stop").rstrip()
    assert watch.feed(TEXT + last) == TEXT
    assert watch.take_last_line() == last + b"\n\n"
    assert watch.closing(None) == DONE
    halved = guard()
    assert halved.feed(TEXT + last[:-2]) == TEXT
    assert halved.take_last_line() == b""
    assert halved.closing(ERROR) == ERROR + DONE


def test_an_empty_stream_is_not_whole() -> None:
    watch = guard()
    assert watch.feed(b"") == watch.take_last_line() == b""
    assert watch.closing(ERROR) == ERROR + DONE


# -- long lines ----------------------------------------------------------------------------------------------------
def test_a_line_is_kept_up_to_its_bound_and_then_passes_in_pieces() -> None:
    line = event("y" * 4 * MAX_KEPT_BYTES)
    for size in (1 << 10, 60_000, len(line)):
        watch = guard()
        out = b""
        for at in range(0, len(line), size):
            out += watch.feed(line[at : at + size])
            assert at + size - len(out) <= MAX_KEPT_BYTES + size
        assert out == line
        assert fed(watch, event("", "stop"), DONE) == event("", "stop") + DONE
        assert watch.closing(ERROR) == b""


def test_a_break_inside_a_long_line_ends_that_line_before_the_error() -> None:
    watch = guard()
    out = watch.feed(event("y" * 4 * MAX_KEPT_BYTES)[: 3 * MAX_KEPT_BYTES]) + watch.closing(ERROR)
    assert out.endswith(b"y\n\n" + ERROR + DONE)


def test_a_long_line_may_end_in_any_way() -> None:
    for end in (b"\r\n", b"\r", b"\n"):
        line = b": " + b"y" * 2 * MAX_KEPT_BYTES
        watch = guard()
        pieces = (line, *(bytes([byte]) for byte in end * 2 + WHOLE))
        assert fed(watch, *pieces) == line + end * 2 + WHOLE
        assert watch.reading.marked


# -- the usage event (R-93) ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("usage", [USAGE, USAGE.replace(b":[]", b" : [ ]"), b"id: 5\n" + USAGE, b": x\n" + USAGE])
def test_an_event_without_choices_reaches_only_those_who_asked_for_it(end: bytes, usage: bytes) -> None:
    before, after = ((TEXT + event("", "stop")).replace(b"\n", end), DONE.replace(b"\n", end))
    whole = before + usage.replace(b"\n", end) + after
    for cut in range(len(before) - 2, len(whole) + 1):
        asked = guard(usage=True)
        assert fed(asked, whole[:cut], whole[cut:]) == whole
        unasked = guard()
        out = fed(unasked, whole[:cut], whole[cut:])
        assert b'"usage"' not in out, cut
        assert out.startswith(before)
        assert out.endswith(after)
        assert unasked.closing(ERROR) == b""


def test_a_usage_event_that_is_cut_off_is_not_in_the_way_of_the_end() -> None:
    watch = guard()
    out = watch.feed(TEXT + event("", "stop") + USAGE[:-1])
    assert out + watch.closing(ERROR) == WHOLE
