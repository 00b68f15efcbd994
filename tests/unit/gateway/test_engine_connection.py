"""An engine's bytes are read the same however they are cut, and what cannot be read is said to be so (R-65 to R-69)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Self

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.gateway.connection import MAX_HEAD_BYTES, EngineConnection

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LENGTH_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


class FakeTransport:
    """Takes what is written and forgets nothing."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high or 0) > (low or 0)

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Told:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.status = 0
        self.fields: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        self.body = b""
        self.reads = 0
        self.ended = False
        self.broke: tuple[str, bool] | None = None

    def answer_head(self, status: int, fields: list[tuple[bytes, bytes]], length: int | None) -> None:
        assert not self.status
        self.status, self.fields, self.length = status, list(fields), length

    def answer_data(self, piece: bytes) -> None:
        assert self.status
        assert not self.ended
        assert self.broke is None
        self.body += bytes(piece)

    def read_done(self) -> None:
        self.reads += 1

    def answer_ended(self) -> None:
        assert not self.ended
        assert self.broke is None
        self.ended = True

    def answer_broke(self, cause: str, *, had_bytes: bool) -> None:
        assert not self.ended
        assert self.broke is None
        self.broke = (cause, had_bytes)


class Line:
    """A connection with a request under way."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.made = EngineConnection(self.loop)
        self.transport = FakeTransport()
        self.made.connection_made(self.transport)  # type: ignore[arg-type]
        self.sink = self.ask()

    def ask(self) -> Told:
        self.sink = Told()
        self.made.send(b"POST / HTTP/1.1\r\n\r\n", [b"{}"], self.sink)
        return self.sink

    def feed(self, *pieces: bytes) -> Told:
        for piece in pieces:
            if piece and not self.transport.is_aborted:
                self.made.data_received(piece)
        return self.sink

    def lose(self, exc: Exception | None = None) -> Told:
        self.made.connection_lost(exc)
        return self.sink

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


_payloads = st.lists(
    st.binary(min_size=1, max_size=30)
    | st.sampled_from(
        [b"5\r\nhello\r\n", b"0\r\n\r\n", b"\r\n", b"1\r\nx\r\n1\r\ny\r\n", b"a" * 300, b"\r\n5\r\nhello"]
    ),
    max_size=6,
)


@given(_payloads, st.lists(st.integers(0, 700), max_size=12), st.booleans())
def test_a_chunked_answer_is_read_the_same_at_any_cuts(
    payloads: list[bytes], places: list[int], extended: bool
) -> None:
    extension = b";a=b" if extended else b""
    body = b"".join(chunk(payload, extension) for payload in payloads)
    whole = HEAD + body + b"0\r\n\r\n"
    with Line() as line:
        for _ in range(2):
            told = line.feed(*cut(whole, places))
            assert (told.status, told.ended, told.broke) == (200, True, None)
            assert told.body == b"".join(payloads)
            assert line.made.is_reusable()
            line.ask()


@given(_payloads, st.data())
def test_each_chunk_in_a_read_of_its_own_and_its_inside_cut_up(payloads: list[bytes], data: st.DataObject) -> None:
    pieces = [HEAD]
    for payload in payloads:
        framed = chunk(payload)
        pieces += cut(framed, data.draw(st.lists(st.integers(0, len(framed)), max_size=2)))
    with Line() as line:
        told = line.feed(*pieces, b"0\r\n\r\n")
        assert told.body == b"".join(payloads)
        assert told.ended


@given(st.binary(max_size=60), st.lists(st.integers(0, 120), max_size=6))
def test_an_answer_with_a_length_is_read_the_same_at_any_cuts(payload: bytes, places: list[int]) -> None:
    whole = LENGTH_HEAD % len(payload) + payload
    with Line() as line:
        for _ in range(2):
            told = line.feed(*cut(whole, places))
            assert (told.body, told.length, told.ended) == (payload, len(payload), True)
            assert line.made.is_reusable()
            line.ask()


class _Judge:
    def __init__(self) -> None:
        self.body = b""
        self.is_complete = False
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise ValueError("a second answer")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = self.parser.get_status_code() >= 200

    def feed(self, data: bytes) -> bool:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return True


@settings(max_examples=300)
@given(_payloads, st.integers(0, 400), st.binary(max_size=4), st.lists(st.integers(0, 700), max_size=6))
def test_damaged_answers_are_read_as_another_parser_reads_them(
    payloads: list[bytes], at: int, put: bytes, places: list[int]
) -> None:
    """Acceptance 53, for the engine's side."""
    whole = HEAD + b"".join(map(chunk, payloads)) + b"0\r\n\r\n"
    damaged = whole[:at] + put + whole[at + len(put) :]
    with Line() as line:
        judge = _Judge()
        told = line.sink
        for piece in cut(damaged, places):
            if not piece or told.ended or told.broke is not None:
                break
            understood = judge.feed(piece)
            line.feed(piece)
            if not understood and not told.ended:
                assert told.broke is not None
            if understood:
                assert told.broke is None
                assert told.ended == judge.is_complete
                assert told.body == judge.body


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_what_cannot_be_read_with_certainty_is_unreadable(answer: bytes) -> None:
    for size in (len(answer), 7000):
        with Line() as line:
            told = line.feed(*(answer[at : at + size] for at in range(0, len(answer), size)))
            assert told.broke == ("unreadable", True)
            assert line.transport.is_aborted
            assert not line.made.is_reusable()


def test_interim_answers_are_swallowed_and_their_fields_too() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    for size in (1, 5, 1000):
        with Line() as line:
            whole = interim + LENGTH_HEAD % 2 + b"{}"
            told = line.feed(*(whole[at : at + size] for at in range(0, len(whole), size)))
            assert (told.status, told.body) == (200, b"{}")
            assert [name for name, _ in told.fields] == [b"content-length"]


def test_field_names_are_lowered_and_the_date_is_left_out() -> None:
    with Line() as line:
        told = line.feed(b"HTTP/1.1 200 OK\r\nDATE: now\r\nX-Up: Value\r\nContent-Length: 0\r\n\r\n")
        assert (b"x-up", b"Value") in told.fields
        assert b"date" not in dict(told.fields)


@pytest.mark.parametrize("exc", [None, ConnectionResetError()])
@pytest.mark.parametrize("had", [b"", b"H", HEAD, HEAD + chunk(b"x")])
def test_an_end_before_the_answers_end_is_lost(had: bytes, exc: Exception | None) -> None:
    with Line() as line:
        line.feed(had)
        assert line.lose(exc).broke == ("lost", bool(had))


def test_an_answer_without_a_length_ends_with_an_orderly_close_and_breaks_with_a_reset() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    with Line() as line:
        line.feed(head + b"abc")
        assert (line.lose().ended, line.sink.body) == (True, b"abc")
    with Line() as line:
        line.feed(head + b"abc")
        assert line.lose(ConnectionResetError()).broke == ("lost", True)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: Close, x\r\n",
    ],
)
def test_an_engine_that_wants_to_close_is_not_asked_again(head: bytes) -> None:
    with Line() as line:
        assert line.feed(head + b"Content-Length: 2\r\n\r\n{}").ended
        assert not line.made.is_reusable()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_answers_without_a_body_end_with_their_head(status: bytes) -> None:
    with Line() as line:
        assert line.feed(b"HTTP/1.1 " + status + b"\r\n\r\n").ended
        assert line.made.is_reusable()


def test_an_engine_that_speaks_unasked_is_not_trusted_again() -> None:
    with Line() as line:
        line.feed(LENGTH_HEAD % 2 + b"{}")
        assert line.made.is_reusable()
        line.made.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert line.transport.is_aborted
        assert not line.made.is_reusable()


def test_bytes_behind_an_answer_make_the_connection_useless() -> None:
    for behind in (b"x", LENGTH_HEAD % 0, b"\r\nHTTP/1.1"):
        with Line() as line:
            told = line.feed(LENGTH_HEAD % 2 + b"{}" + behind)
            assert told.body == b"{}"
            assert not line.made.is_reusable()


def test_a_large_body_is_sent_as_fast_as_the_engine_reads() -> None:
    with Line() as line:
        line.feed(LENGTH_HEAD % 2 + b"{}")
        line.transport.written.clear()
        line.made.pause_writing()
        big: list[Any] = [memoryview(b"x" * (1 << 20)), b"tail"]
        line.made.send(b"head", big, Told())
        assert line.transport.written == [b"head"]
        assert not line.made.is_reusable()
        line.made.resume_writing()
        assert b"".join(line.transport.written) == b"head" + b"x" * (1 << 20) + b"tail"
        assert max(map(len, line.transport.written)) <= 256 << 10
