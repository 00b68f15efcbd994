"""Event streams and logs: beginnings, replay, gaps, topics, ends (C-13 to C-15, S-24; acceptance 10, 11)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from control_rig import TOKEN, Rig, events_of, problem, running

from stoker.control import sse
from stoker.domain.events import Event
from stoker.errors import ErrorCode, error_for

pytestmark = pytest.mark.anyio


class Stream:
    """One caller of a stream, spoken to as a server speaks to an application."""

    def __init__(self, app: Any, path: str, query: str, headers: dict[str, str]) -> None:
        fields = {"host": "localhost", "authorization": f"Bearer {TOKEN}", **headers}
        self.scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()], "http_version": "1.1",
            "state": {},
        }  # fmt: skip
        self.app = app
        self.head: dict[str, Any] | None = None
        self.text = ""
        self.is_over = False
        self._left = anyio.Event()
        self._asked = False

    async def run(self) -> None:
        async def receive() -> dict[str, Any]:
            if not self._asked:
                self._asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.head = message
            else:
                self.text += message.get("body", b"").decode()

        await self.app(self.scope, receive, send)
        self.is_over = True

    def leave(self) -> None:
        self._left.set()

    @property
    def events(self) -> list[dict[str, Any]]:
        return events_of(self.text)

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


@asynccontextmanager
async def listening(rig: Rig, path: str = "/v1/events", query: str = "", **headers: str) -> AsyncIterator[Stream]:
    stream = Stream(rig.app, path, query, {name.replace("_", "-"): value for name, value in headers.items()})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await rig.until(lambda: stream.head is not None or stream.is_over, "the head of the stream")
        yield stream
        stream.leave()
        await rig.until(lambda: stream.is_over, "the end of the stream")


async def test_a_stream_begins_with_a_snapshot_and_goes_on_without_loss() -> None:
    """C-14."""
    async with running(a=100) as rig, rig.client() as client, listening(rig) as stream:
        await rig.until(lambda: len(stream.events) == 1)
        snapshot = stream.events[0]
        shown = (await client.get("/v1/snapshot")).json()
        assert snapshot["event"] == "stream.snapshot-taken"
        assert snapshot["id"] == shown["last_event_id"]
        assert {name: snapshot[name] for name in shown if name != "at"} == {
            name: value for name, value in shown.items() if name != "at"
        }
        await rig.load("a")
        await rig.until(lambda: "operation.finished" in stream.names())
        later = stream.events[1:]
        numbers = [int(event["id"].rpartition(":")[2]) for event in later]
        first = int(snapshot["id"].rpartition(":")[2]) + 1
        assert numbers == list(range(first, first + len(numbers)))
        assert all(event["at"].endswith("Z") for event in later)
        assert {event["scope"] for event in later} == {shown["status"]["scope"]}


async def test_the_missed_events_are_replayed_and_joined_to_the_live_ones() -> None:
    """C-14: without loss or doubles."""
    async with running(a=100) as rig:
        async with listening(rig) as stream:
            await rig.load("a")
            await rig.until(lambda: "operation.finished" in stream.names())
            whole = stream.events[1:]
        since = whole[2]["id"]
        async with listening(rig, last_event_id=since) as again:
            await rig.until(lambda: len(again.events) == len(whole) - 3)
            assert again.events == whole[3:]
            rig.runtime.pin("a", pinned=True)
            await rig.until(lambda: again.names()[-1] == "deployment.changed")
            assert len({event["id"] for event in again.events}) == len(again.events)


async def test_with_nothing_missed_the_stream_opens_quietly() -> None:
    async with running(a=100) as rig, listening(rig, last_event_id=rig.runtime.bus.last_id) as stream:
        assert stream.head is not None
        assert stream.text == ""
        rig.runtime.pin("a", pinned=True)
        await rig.until(lambda: stream.names()[:1] == ["deployment.changed"])


@pytest.mark.parametrize(
    ("since", "reason"), [("other:3", "instance"), ("i1:999", "buffer"), ("i1:1", "buffer"), ("x", "instance")]
)
async def test_an_old_or_foreign_id_is_a_gap_and_a_snapshot(since: str, reason: str) -> None:
    """C-14."""
    async with running(event_buffer=16, a=100) as rig:
        for n in range(20):
            rig.runtime.pin("a", pinned=n % 2 == 0)
        async with listening(rig, last_event_id=since) as stream:
            await rig.until(lambda: len(stream.events) == 2)
            gap, snapshot = stream.events
            assert (gap["event"], gap["reason"], gap["from"]) == ("stream.gapped", reason, since)
            assert gap["to"] == snapshot["id"]
            assert snapshot["event"] == "stream.snapshot-taken"


async def test_topics_leave_out_what_was_not_asked_for() -> None:
    async with running(a=100) as rig, listening(rig, query="topics=operation,deployment") as stream:
        await rig.load("a")
        await rig.until(lambda: "operation.finished" in stream.names())
        nouns = {name.partition(".")[0] for name in stream.names()[1:]}
        assert nouns == {"operation"}


async def test_an_unknown_topic_is_refused_with_those_there_are() -> None:
    async with running() as rig, rig.client() as client:
        members = problem(await client.get("/v1/events", params={"topics": "sessions"}), 400, "invalid-parameter")
        assert "session," in members["remedy"]
        assert rig.runtime.bus.subscribers == 0


async def test_a_caller_who_leaves_is_forgotten() -> None:
    async with running() as rig:
        async with listening(rig):
            assert rig.runtime.bus.subscribers == 1
        assert rig.runtime.bus.subscribers == 0


async def test_one_subscriber_too_many_is_told_before_any_stream_begins() -> None:
    """C-15."""
    async with running() as rig, rig.client() as client:
        rig.runtime.bus._most = 1
        async with listening(rig):
            answer = await client.get("/v1/events")
            problem(answer, 429, "too-many-open")
            assert answer.headers["retry-after"] == "5"


async def test_streams_end_when_the_bus_closes() -> None:
    """C-15."""
    async with running(a=100) as rig, listening(rig) as stream:
        rig.runtime.bus.close()
        await rig.until(lambda: stream.is_over)
        assert stream.names() == ["stream.snapshot-taken"]


async def test_streams_end_with_the_listener() -> None:
    async with running() as rig, listening(rig) as stream:
        rig.app.state.desk.closing.set()
        await rig.until(lambda: stream.is_over)


# -- the stream itself -------------------------------------------------------------------------------------------------


async def _items(*items: str, fail: Exception | None = None, wait: anyio.Event | None = None) -> AsyncIterator[str]:
    for item in items:
        yield item
    if wait is not None:
        await wait.wait()
    if fail is not None:
        raise fail


async def _gone() -> dict[str, Any]:
    await anyio.sleep_forever()
    return {}


async def test_a_quiet_stream_sends_comments() -> None:
    """C-15: a comment every 15 s; shortened here."""
    sent: list[bytes] = []
    closing = anyio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(b":\n\n") == 3:
            closing.set()

    source = _items("x", wait=anyio.Event())
    stream = sse.EventStream(source, str.encode, closing, waits_for_first=False, heartbeat_s=0.01)
    with anyio.fail_after(10):
        await stream({}, _gone, send)
    assert sent[:2] == [b"", b"x"]
    assert sse.HEARTBEAT_S == 15.0


@pytest.mark.parametrize("waits", [True, False])
async def test_a_refusal_before_the_first_item_is_raised_before_anything_is_sent(waits: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    error = error_for(ErrorCode.TOO_MANY_OPEN, "Too many.")
    stream = sse.EventStream(_items(fail=error), str.encode, anyio.Event(), waits_for_first=waits)
    with pytest.raises(type(error)):
        await stream({}, _gone, send)
    assert sent == []


async def test_a_source_that_ends_ends_the_answer() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    stream = sse.EventStream(_items("a", "b"), str.encode, anyio.Event(), waits_for_first=True)
    await stream({}, _gone, send)
    assert [message.get("body") for message in sent] == [None, b"a", b"b", b""]
    assert sent[-1]["more_body"] is False


async def test_a_caller_that_does_not_read_holds_up_its_own_source_only() -> None:
    """C-15; acceptance 12."""
    async with running(a=100) as rig, listening(rig) as other:
        blocked = anyio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                blocked.set()
                await anyio.sleep_forever()

        stuck = Stream(rig.app, "/v1/events", "", {})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stuck.app, stuck.scope, _gone, send)
            await blocked.wait()
            for n in range(1, 1101):
                fields = {"deployment": "a", "stalled_ms": n}
                rig.runtime.bus.publish(Event(f"i1:{1000 + n}", 1000 + n, 1.0, "queue.recovered", {}, fields))
                if n % 100 == 0:
                    await rig.until(lambda: other.text.count("event: queue.recovered") == n)  # noqa: B023
            assert sum(len(each.queue) for each in rig.runtime.bus._subscribers) == 0  # emptied, not kept
            tasks.cancel_scope.cancel()


def test_data_is_one_line_whatever_it_holds() -> None:
    block = sse.message({"text": "a\nb\r\n\n: data"}, event="line", id_="i:1").decode()
    assert block.count("\n") == 4
    assert json.loads(block.split("data: ", 1)[1]) == {"text": "a\nb\r\n\n: data"}


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_the_daemons_log_answers_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").write_text("".join(f"line {n}\n" for n in range(9)) + "Authorization: Bearer abcdefgh\n")
    async with running(folders=str(tmp_path)) as rig, rig.client() as client:
        seen = (await client.get("/v1/logs", params={"tail": 3})).json()
        assert seen["subject"] == "daemon"
        assert [line["text"] for line in seen["lines"]] == ["line 7", "line 8", "Authorization: [set]"]
        assert seen["lines"][0]["wall"] is None
        assert (await client.get("/v1/logs", params={"tail": 0})).json()["lines"] == []


async def test_the_daemons_log_is_followed_until_the_caller_leaves(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_text("before\n")
    async with running(folders=str(tmp_path)) as rig, listening(rig, "/v1/logs", "follow=true&tail=1") as stream:
        await rig.until(lambda: "before" in stream.text)
        assert dict(stream.head["headers"])[b"content-type"].startswith(b"text/event-stream")  # type: ignore[index]
        with log.open("a") as file:
            file.write("after\n")
        await rig.until(lambda: "after" in stream.text)
        assert stream.text.startswith('event: life\ndata: {"subject":"daemon"')


async def test_an_engines_log_says_which_life_answers(tmp_path: Path) -> None:
    """S-24."""
    async with running(folders=str(tmp_path), a=100, b=100) as rig, rig.client() as client:
        generation = await rig.load("a")
        os.makedirs(tmp_path / "logs")
        line = "2026-01-02T03:04:05.678Z err loading\n"
        (tmp_path / "logs" / f"{generation}.log").write_text(line)
        seen = (await client.get("/v1/deployments/a/-/logs")).json()
        assert (seen["subject"], seen["generation"], seen["live"]) == ("session", generation, True)
        assert seen["lines"] == [
            {"wall": "2026-01-02T03:04:05.678Z", "stream": "err", "text": "loading", "dropped": 0, "repaint": False}
        ]
        rig.runtime.unload("a", mode="now")
        await rig.until(lambda: rig.phase("a") is None)
        seen = (await client.get("/v1/deployments/a/-/logs", params={"generation": generation})).json()
        assert seen["live"] is False
        other = await client.get("/v1/deployments/b/-/logs", params={"generation": generation})
        problem(other, 404, "session-not-found")
        problem(await client.get("/v1/deployments/b/-/logs"), 404, "session-not-found")
        problem(await client.get("/v1/deployments/b/-/logs", params={"follow": "true"}), 404, "session-not-found")
