"""The daemon's log: shape, bounds, rotation and secrets (C-47)."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
import threading

import pytest

from stoker.observability import logs
from stoker.observability.logs import DaemonLog, LogPlan, RotatingFile
from stoker.observability.scrub import Scrubber

LOG = logging.getLogger("stoker.test")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "daemon.log")


@pytest.fixture
def start():
    running = []

    def begin(plan, *secrets):
        running.append(DaemonLog.start(plan, Scrubber(secrets)))
        return running[-1]

    yield begin
    for log in running:
        log.close()


def lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def test_a_record_is_one_json_line_with_its_fields_in_order(path, start):
    log = start(LogPlan(path=path))
    LOG.info("It took %d ms.", 5, extra={"event": "session.ended", "generation": 7, "deployment": "tiny", "n": 1})
    LOG.debug("not at this level")
    log.close()
    with open(path) as file:
        (line,) = file.readlines()
    assert list(json.loads(line)) == ["at", "level", "event", "message", "deployment", "generation", "n"]
    record = json.loads(line)
    assert (record["level"], record["event"], record["message"], record["generation"], record["n"]) == (
        "info", "session.ended", "It took 5 ms.", 7, 1,
    )  # fmt: skip
    assert record["at"].endswith("Z")
    assert len(record["at"]) == len("2026-01-01T00:00:00.000Z")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_the_event_of_others_is_their_name_and_access_lines_are_left_out(path, start):
    log = start(LogPlan(path=path))
    logging.getLogger("uvicorn.error").info("Started")
    logging.getLogger("uvicorn.error").warning("It broke")
    logging.getLogger("uvicorn.access").info("GET /")
    log.close()
    assert [(line["event"], line["message"]) for line in lines(path)] == [("uvicorn.error", "It broke")]


def test_a_trace_and_bad_arguments_are_kept_and_never_fail_the_caller(path, start):
    log = start(LogPlan(path=path), "hidden-mark")
    try:
        int("it was hidden-mark")
    except ValueError:
        LOG.exception("It failed")
    LOG.info("%d", "no number")
    LOG.info("broken \udcff text", extra={"what": object(), "list": [1, 2]})
    log.close()
    first, second, third = lines(path)
    assert "it was [set]" in first["trace"]
    assert second["message"] == "%d"
    assert third["list"] == [1, 2]
    assert third["what"].startswith("<object")


def test_br_1003_planted_secrets_are_in_no_line_at_the_most_talkative_level(path, start):
    log = start(LogPlan(path=path, level="debug"), "gateway-key-mark")
    LOG.debug("argv: serve --api-key engine-key-mark")
    LOG.info("Authorization: Bearer header-mark-123", extra={"env": {"HF_TOKEN": "hub-mark"}, "api_key": "field-mark"})
    LOG.warning("key %s was refused", "gateway-key-mark", extra={"problem": {"key": "gateway.port"}})
    log.close()
    with open(path) as file:
        text = file.read()
    assert "mark" not in text
    assert text.count("[set]") >= 5
    assert "gateway.port" in text


def test_long_values_and_many_fields_are_cut(path, start):
    log = start(LogPlan(path=path))
    LOG.info("x" * 10_000, extra={f"f{n}": n for n in range(100)} | {"big": list(range(10_000))})
    log.close()
    (line,) = lines(path)
    assert len(line["message"]) < 2200
    assert "10000 characters" in line["message"]
    assert len(line) <= 4 + logs.FIELDS


def test_a_full_queue_drops_the_oldest_and_says_how_many(path, start, monkeypatch):
    monkeypatch.setattr(logs, "QUEUE_RECORDS", 10)
    gate, at_gate = threading.Event(), threading.Event()
    write = RotatingFile.write

    def slow(self, text):
        at_gate.set()
        assert gate.wait(10)
        return write(self, text)

    monkeypatch.setattr(RotatingFile, "write", slow)
    log = start(LogPlan(path=path))
    LOG.info("first")
    assert at_gate.wait(10)
    for number in range(25):
        LOG.info("n%d", number)
    gate.set()
    log.close()
    assert log.dropped == 15
    found = [line["message"] for line in lines(path)]
    assert found == [
        "first",
        "15 records were dropped because the log could not keep up",
        *(f"n{n}" for n in range(15, 25)),
    ]


def test_a_disk_that_cannot_be_written_ends_neither_the_log_nor_its_callers(path, start, monkeypatch):
    write = RotatingFile.write
    monkeypatch.setattr(RotatingFile, "write", lambda self, text: (_ for _ in ()).throw(OSError(28, "full")))
    log = start(LogPlan(path=path))
    LOG.info("lost")
    deadline = threading.Event()
    for _ in range(1000):
        if log.dropped:
            break
        deadline.wait(0.01)
    assert log.dropped == 1
    monkeypatch.setattr(RotatingFile, "write", write)
    LOG.info("kept")
    log.close()
    assert [line["message"] for line in lines(path)] == ["kept"]


def test_the_root_logger_is_given_back(path, start):
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    log = start(LogPlan(path=path, level="error"))
    assert root.level == logging.ERROR
    log.set_level("debug")
    assert root.level == logging.DEBUG
    log.close()
    log.close()
    assert (root.handlers, root.level) == before


@pytest.mark.parametrize(("form", "terminal", "is_json"), [
    ("auto", False, True), ("auto", True, False), ("console", False, False), ("json", True, True),
])  # fmt: skip
def test_the_stream_is_for_people_on_a_terminal_and_json_otherwise(start, form, terminal, is_json):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    log = start(LogPlan(format=form, stream=stream))
    LOG.warning("Something happened", extra={"generation": 3})
    log.close()
    text = stream.getvalue()
    assert "Something happened" in text
    assert text.startswith("{") is is_json


def test_files_are_rotated_by_size_and_the_oldest_goes(path):
    file = RotatingFile(path, 100, 3)
    for number in range(10):
        file.write(f"{number}" * 59 + "\n")
    file.close()
    names = sorted(os.listdir(os.path.dirname(path)))
    assert names == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    found = []
    for name in names:
        with open(os.path.join(os.path.dirname(path), name)) as each:
            found.append(each.read()[0])
    assert found == ["9", "8", "7"]
    again = RotatingFile(path, 100, 3)
    again.write("x" * 60)
    again.close()
    assert os.path.getsize(path) == 60
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_one_file_in_all_begins_anew(path):
    file = RotatingFile(path, 10, 1)
    for text in ("aaaaaaaa", "bbbbbbbb"):
        file.write(text)
    file.close()
    assert os.listdir(os.path.dirname(path)) == ["daemon.log"]
    with open(path) as each:
        assert each.read() == "bbbbbbbb"
