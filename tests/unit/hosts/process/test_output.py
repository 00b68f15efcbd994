"""Lines, files and the log channel of a guardian (S-48 to S-51)."""

from __future__ import annotations

import itertools
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.hosts.process import output
from stoker.hosts.process.output import CHANNEL_BYTES, LINE_BYTES, Channel, Log, Stream


class Pump:
    """A stream fed by hand, and what came out of its log's channel."""

    def __init__(self, folder: Path, secrets: tuple[str, ...] = ()) -> None:
        self.reader, writer = socket.socketpair()
        self.reader.setblocking(False)
        self.pipe = os.pipe()
        self.log = Log(writer, str(folder / "engine.log"))
        self.stream = Stream("out", self.pipe[0], self.log, secrets)

    def lines(self) -> list[tuple[str, bool]]:
        return [(text, repaint) for _, _, text, repaint, _ in self.records()]

    def records(self) -> list[list]:
        data = b""
        while True:
            self.log.flush()
            try:
                data += self.reader.recv(1 << 20)
            except BlockingIOError:
                return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        self.reader.close()
        self.log.out.sock.close()
        for fd in self.pipe:
            os.close(fd)


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    opened = Pump(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def scrubbing(tmp_path: Path) -> Iterator[Pump]:
    opened = Pump(tmp_path, ("s3cret-value", "s3cret-value-longer"))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a\nb\n"], [("a", False), ("b", False)]),
        ([b"a\r\nb\r\n"], [("a", False), ("b", False)]),
        ([b"a\r", b"\nb\n"], [("a", False), ("b", False)]),
        ([b"1%\r2%\r3%\n"], [("1%", True), ("2%", True), ("3%", False)]),
        ([b"\r1%\r"], []),
        ([b"\n\n"], [("", False), ("", False)]),
        ([b"a", b"b", b"c\n"], [("abc", False)]),
        ([b"\xe5\x8c", b"\x97\n"], [("北", False)]),
        ([b"\xff\n"], [("\ufffd", False)]),
        ([b"\x1b[1;31mred\x1b[0m\x00\x07\n"], [("red", False)]),
        ([b"\x1b]0;title\x07text\x1b(B\n"], [("text", False)]),
        ([b"tab\tstays\n"], [("tab\tstays", False)]),
    ],
)
def test_each_end_of_line_ends_one_line(pump: Pump, pieces: list[bytes], expected: list) -> None:
    for piece in pieces:
        pump.stream.feed(piece)
    assert pump.lines() == expected


def test_a_partial_line_has_a_due_time_that_dribbling_does_not_push_back(pump: Pump) -> None:
    assert pump.stream.due == float("inf")
    pump.stream.feed(b"load")
    due = pump.stream.due
    assert 0 < due - time.monotonic() <= output.PARTIAL_S
    pump.stream.feed(b"ing")
    assert pump.stream.due == due
    pump.stream.partial()
    assert pump.lines() == [("loading", False)]
    assert pump.stream.due == float("inf")


def test_a_slow_crlf_is_one_end(pump: Pump) -> None:
    pump.stream.feed(b"50%\r")
    pump.stream.partial()
    pump.stream.feed(b"\nnext\n")
    assert pump.lines() == [("50%", True), ("next", False)]


def test_half_a_character_waits_until_the_very_end(pump: Pump) -> None:
    pump.stream.feed(b"x\xf0\x9f\x9a")
    pump.stream.partial()
    assert pump.lines() == [("x", False)]
    pump.stream.feed(b"\x80")
    pump.stream.partial()
    assert pump.lines() == [("\U0001f680", False)]
    pump.stream.feed(b"\xe5")
    pump.stream.partial(final=True)
    assert pump.lines() == [("\ufffd", False)]


def test_a_long_line_is_cut_and_marked_without_losing_a_byte(pump: Pump) -> None:
    text = "é" * 100_000
    for at in range(0, 200_000, 5000):
        pump.stream.feed(text.encode()[at : at + 5000])
    pump.stream.feed(b"\n")
    texts = [text for text, _ in pump.lines()]
    assert all(len(one.encode()) <= LINE_BYTES + len(output.CUT_MARK) for one in texts)
    assert "".join(one.removesuffix(output.CUT_MARK) for one in texts) == text
    assert [one.endswith(output.CUT_MARK) for one in texts] == [True] * (len(texts) - 1) + [False]


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_no_cut_of_the_bytes_lets_a_secret_through(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    pump = Pump(tmp_path_factory.mktemp("scrub"), ("s3cret-value", "s3cret-value-longer"))
    data = b"a s3cret-value b s3cret-value-longer c\n"
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        if data[start:end]:
            pump.stream.feed(data[start:end])
            pump.stream.partial()
    told = "".join(text for text, _ in pump.lines())
    pump.close()
    assert "s3cret" not in told
    assert told.count(output.SECRET_MARK) == 2


def test_a_secret_across_the_cut_of_a_long_line_is_scrubbed(scrubbing: Pump) -> None:
    for offset in range(14):
        scrubbing.stream.feed(b"z" * (LINE_BYTES - offset) + b"s3cret-value!\n")
        told = "".join(text.removesuffix(output.CUT_MARK) for text, _ in scrubbing.lines())
        assert told == "z" * (LINE_BYTES - offset) + output.SECRET_MARK + "!"


def test_the_file_has_time_and_stream_per_line_and_is_private(pump: Pump, tmp_path: Path) -> None:
    pump.stream.feed(b"hello\n")
    pump.log.flush()
    path = tmp_path / "engine.log"
    stamp, stream, text = path.read_text().split()
    assert stamp.endswith("Z")
    assert len(stamp) == len("2026-12-01T02:14:08.123Z")
    assert (stream, text) == ("out", "hello")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_repaints_reach_the_channel_always_and_the_file_once_a_second(
    pump: Pump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    for percent in range(40):
        pump.stream.feed(b"%d%%\rx" % percent)
        now[0] += 0.1
    assert len(pump.lines()) == 40
    assert len((tmp_path / "engine.log").read_text().splitlines()) == 4


def test_the_files_are_a_head_and_two_tails(pump: Pump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "HEAD_BYTES", 1000)
    monkeypatch.setattr(output, "TAIL_BYTES", 2000)
    for number in range(400):
        pump.stream.feed(b"%04d\n" % number)
        pump.log.flush()

    def numbers(name: str) -> list[int]:
        return [int(line.split()[2]) for line in (tmp_path / name).read_text().splitlines()]

    head, older, newer = numbers("engine.log"), numbers("engine.log.tail.1"), numbers("engine.log.tail")
    assert head == list(range(len(head)))
    assert older + newer == list(range(older[0], 400))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1000 + 2 * 2000 + 3 * 40


def test_a_link_in_the_place_of_the_log_is_not_followed(pump: Pump, tmp_path: Path) -> None:
    (tmp_path / "engine.log").symlink_to(tmp_path / "elsewhere")
    pump.stream.feed(b"hello\n")
    pump.log.flush()
    assert not (tmp_path / "elsewhere").exists()


def test_lines_a_full_disk_lost_are_counted_in_the_file(
    pump: Pump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = output._append
    monkeypatch.setattr(output, "_append", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    pump.stream.feed(b"one\ntwo\n")
    pump.log.flush()
    monkeypatch.setattr(output, "_append", real)
    pump.stream.feed(b"three\n")
    pump.log.flush()
    kept = [line for line in (tmp_path / "engine.log").read_text().splitlines() if line]
    assert kept[0] == "- gap 2 lines"
    assert kept[1].endswith("out three")


def test_a_channel_that_nobody_reads_drops_the_oldest_and_counts_them(pump: Pump) -> None:
    for number in range(60_000):
        pump.log.add("out", f"{number:05d}" + "y" * 95, repaint=False, stored=False)
        if number % 100 == 0:
            pump.log.flush()
    assert pump.log._queued_bytes <= CHANNEL_BYTES
    records = pump.records()
    assert sum(record[4] + 1 for record in records) == 60_000
    assert int(records[-1][2][:5]) == 59_999
    position = -1
    for record in records:
        position += record[4] + 1
        assert int(record[2][:5]) == position


def test_a_reader_that_is_gone_costs_nothing(pump: Pump) -> None:
    pump.reader.close()
    pump.stream.feed(b"a\nb\n")
    pump.log.flush()
    assert pump.log.out.closed
    assert pump.log.out.pending == b""
    pump.reader = socket.socket()


def test_messages_arrive_whole_however_they_are_cut() -> None:
    left, right = socket.socketpair()
    speaker, listener = Channel(left), Channel(right)
    with left, right:
        speaker.say("launch", argv=["x" * 100_000])
        speaker.say("stop", id=1)
        heard: list[dict] = []
        while len(heard) < 2:
            speaker.flush()
            heard += listener.receive() or []
        assert [message["word"] for message in heard] == ["launch", "stop"]
        assert listener.receive() == []
        speaker.half_close()
        speaker.say("never")
        assert speaker.pending == b""
        assert listener.receive() is None
