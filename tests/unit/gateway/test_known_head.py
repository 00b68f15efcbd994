"""A head that is known again means exactly what the parser says of it, or it is the parser's (R-55)."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gateway.knownhead import KnownHead, read_known_head

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nX-A: 1\r\n\r\n"
BODY = b'{"model":"m"}'


def message(body: bytes) -> bytes:
    return HEAD % len(body) + body


def known() -> KnownHead:
    found = read_known_head(message(BODY), len(BODY))
    assert found is not None
    return found


class _Judge:
    """What an HTTP parser makes of the same bytes."""

    def __init__(self, data: bytes) -> None:
        self.bodies: list[bytes] = []
        self.is_complete = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        assert not self.is_complete, "a second message"

    def on_body(self, body: bytes) -> None:
        self.bodies.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


@given(st.binary(max_size=200))
def test_a_known_message_is_read_as_the_parser_reads_it(body: bytes) -> None:
    data = message(body)
    start = known().body_start(data)
    judge = _Judge(data)
    assert data[start:] == b"".join(judge.bodies) == body
    assert judge.is_complete


@given(st.binary(max_size=40), st.integers(0, 150), st.binary(max_size=3))
def test_what_is_changed_in_any_place_is_taken_only_if_the_parser_agrees(body: bytes, at: int, put: bytes) -> None:
    data = message(body)
    changed = data[:at] + put + data[at + len(put) :]
    start = known().body_start(changed)
    if start:
        judge = _Judge(changed)
        assert judge.is_complete
        assert b"".join(judge.bodies) == changed[start:]


@pytest.mark.parametrize(
    "data",
    [
        message(BODY)[:-1],
        message(BODY) + b"G",
        message(BODY) + message(BODY),
        message(BODY).replace(b"/v1", b"/v2"),
        message(BODY).replace(b"X-A: 1", b"X-A: 2"),
        message(BODY).replace(b"X-A: 1", b"X-A: 1\r\nX-B: 2"),
        message(BODY).replace(b"13", b"+13"),
        message(BODY).replace(b"13", b"1 3"),
        message(BODY).replace(b"13", b""),
        message(BODY).replace(b"13", b"\xb2"),
        message(BODY).replace(b"13", b"13, 13"),
        message(BODY).replace(b"13", b"13\r\nContent-Length: 13"),
        message(BODY).replace(b"13", b"13\r\nTransfer-Encoding: chunked"),
        message(BODY).replace(b"13", b"9" * 30),
        HEAD % 14 + BODY,
        HEAD % 12 + BODY,
        b"",
    ],
)
def test_anything_else_is_the_parsers(data: bytes) -> None:
    assert known().body_start(data) == 0


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (message(BODY), len(BODY) - 1),
        (message(BODY).replace(b"\r\nContent-Length: 13", b""), len(BODY)),
        (message(BODY).replace(b"X-A: 1", b"Content-Length: 13"), len(BODY)),
        (message(BODY).replace(b"13", b"12"), len(BODY)),
        (b"", 0),
    ],
)
def test_a_head_that_is_not_plain_is_not_learned(data: bytes, size: int) -> None:
    assert read_known_head(data, size) is None


def test_a_body_that_looks_like_a_head_is_a_body() -> None:
    body = b"\r\nContent-Length: 3\r\nX-A: 1\r\n\r\nabc"
    found = read_known_head(message(body), len(body))
    assert found is not None
    assert found.body_start(message(BODY)) == len(message(BODY)) - len(BODY)
