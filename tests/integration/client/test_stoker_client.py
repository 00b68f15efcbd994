"""The client against a server that answers like a daemon."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from pathlib import Path

import pytest
from stand_in_daemon import StandIn, deployment, operation, piece, session, snapshot, told

from stoker.client import StokerClient, connect
from stoker.client.chat import Gateway
from stoker.errors import (
    CapacityError,
    EngineError,
    ErrorCode,
    HostError,
    InternalError,
    StokerError,
    StopUnconfirmedError,
    UsageError,
    error_for,
)


def test_answers_are_typed_and_keep_what_this_release_does_not_know(client: StokerClient, daemon: StandIn) -> None:
    daemon.item("/v1/deployments/tiny", deployment(colour="blue"))
    found = client.deployment("tiny")
    assert (found.name, found.size_bytes, found.sessions) == ("tiny", 98_362_432, (7,))
    assert found.raw["colour"] == "blue"


def test_times_are_seconds_however_they_are_written(client: StokerClient, daemon: StandIn) -> None:
    daemon.item("/v1/sessions/7", session(since="1970-01-01T00:10:00.250Z", last_used=12.5))
    found = client.session(7)
    assert (found.since, found.last_used) == (600.25, 12.5)


def test_members_an_older_daemon_lacks_claim_nothing(client: StokerClient, daemon: StandIn) -> None:
    daemon.item("/v1/sessions/7", {"generation": 7})
    found = client.session(7)
    assert (found.context_tokens, found.reservation, found.idle_deadline) == (None, {}, None)


def test_an_answer_of_another_shape_is_an_error_and_no_crash(client: StokerClient, daemon: StandIn) -> None:
    daemon.item("/v1/sessions/7", {"generation": "seven"})
    with pytest.raises(InternalError, match="no session"):
        client.session(7)


def test_lists_are_read_to_their_last_page(client: StokerClient, daemon: StandIn) -> None:
    pages = {None: ([deployment("a")], "c1"), "c1": ([deployment("b")], None)}

    def page(asked):
        items, following = pages[asked.query.get("cursor")]
        return 200, {"items": items, "next": following}

    daemon.routes["GET /v1/deployments"] = page
    found = client.deployments()
    assert [one.name for one in found] == ["a", "b"]
    assert found.raw == {"items": [deployment("a"), deployment("b")], "next": None}


@pytest.mark.parametrize("name", ["org/model:q4", "with space", "50%", "ünïcode", "a?b#c"])
def test_c_3_odd_names_reach_their_route(client: StokerClient, daemon: StandIn, name: str) -> None:
    daemon.item(f"/v1/deployments/{name}/-/load", operation(subject=name), method="POST", code=202)
    assert client.load(name).subject == name


def test_an_empty_name_is_refused_before_anything_is_sent(client: StokerClient, daemon: StandIn) -> None:
    with pytest.raises(UsageError, match="empty"):
        client.load("")
    assert daemon.asked == []


def test_c_11_a_problem_becomes_the_error_the_daemon_raised(client: StokerClient, daemon: StandIn) -> None:
    daemon.fail(
        "/v1/deployments/tiny/-/load",
        error_for(
            ErrorCode.ROOM_DENIED, "tiny needs 4 GiB; 1 GiB is free.", remedy="Unload something.",
            details={"pool": "ram"}, retry_after_s=30,
        ),
        method="POST",
    )  # fmt: skip
    with pytest.raises(CapacityError) as raised:
        client.load("tiny")
    error = raised.value
    assert (error.code, error.message, error.remedy) == (
        ErrorCode.ROOM_DENIED, "tiny needs 4 GiB; 1 GiB is free.", "Unload something.",
    )  # fmt: skip
    assert (error.details, error.retry_after_s) == ({"pool": "ram"}, 30)


@pytest.mark.parametrize(("status", "family"), [(409, UsageError), (503, InternalError)])
def test_a_code_of_a_newer_daemon_keeps_its_words(
    client: StokerClient, daemon: StandIn, status: int, family: type[StokerError]
) -> None:
    daemon.item("/v1/status", {"status": status, "code": "moon-phase", "message": "The moon is full."}, code=status)
    with pytest.raises(family, match=r"The moon is full\.") as raised:
        client.status()
    assert raised.value.details == {"code": "moon-phase"}


def test_an_error_that_is_no_problem_names_its_status(client: StokerClient, daemon: StandIn) -> None:
    daemon.item("/v1/status", ["bad gateway"], code=502)
    with pytest.raises(HostError, match="502"):
        client.status()


def test_every_write_sends_what_its_route_takes(client: StokerClient, daemon: StandIn) -> None:
    for path in ("load", "unload"):
        daemon.item(f"/v1/deployments/tiny/-/{path}", operation(), method="POST", code=202)
    for path in ("pin", "unpin", "scale", "release"):
        daemon.item(f"/v1/deployments/tiny/-/{path}", deployment(), method="POST")
    daemon.item("/v1/sessions/7/stop", operation(kind="stop"), method="POST", code=202)
    daemon.item("/v1/sessions/7/force-release", session(), method="POST")
    daemon.item("/v1/deployments/tiny", {"created": False}, method="PUT")
    daemon.item("/v1/deployments/tiny", operation(kind="remove"), method="DELETE", code=202)
    client.load("tiny", replica=1, settings={"threads": 2}, load_timeout_s=9)
    client.unload("tiny", mode="drain", drain_s=3)
    client.pin("tiny")
    client.pin("tiny", pinned=False)
    client.scale("tiny", 2)
    client.release("tiny")
    client.stop(7, mode="kill")
    client.force_release(7)
    client.put("tiny", {"reference": "file:/m.gguf"}, dry_run=True)
    client.delete("tiny")
    assert [(one.method, one.path.removeprefix("/v1/"), one.query, one.body) for one in daemon.asked] == [
        ("POST", "deployments/tiny/-/load", {}, {"replica": 1, "settings": {"threads": 2}, "load_timeout_s": 9}),
        ("POST", "deployments/tiny/-/unload", {}, {"mode": "drain", "drain_s": 3}),
        ("POST", "deployments/tiny/-/pin", {}, {}),
        ("POST", "deployments/tiny/-/unpin", {}, {}),
        ("POST", "deployments/tiny/-/scale", {}, {"replicas": 2}),
        ("POST", "deployments/tiny/-/release", {}, {}),
        ("POST", "sessions/7/stop", {}, {"mode": "kill"}),
        ("POST", "sessions/7/force-release", {}, {"confirm": 7}),
        ("PUT", "deployments/tiny", {"dry_run": "true"}, {"reference": "file:/m.gguf"}),
        ("DELETE", "deployments/tiny", {}, None),
    ]


def test_a_change_keeps_the_other_keys_and_names_the_revision_it_is_meant_for(
    client: StokerClient, daemon: StandIn
) -> None:
    daemon.item("/v1/deployments/tiny", {"created": False}, method="PUT")
    client.change("tiny", context_tokens=4096)
    (sent,) = daemon.requests("PUT", "/v1/deployments/tiny")
    assert sent.body == {"reference": "file:/models/tiny.gguf", "keep_alive_s": 300.0, "context_tokens": 4096}
    assert sent.headers["if-match"] == '"3"'


def test_a_token_goes_as_bearer_over_tcp(daemon: StandIn) -> None:
    with StokerClient(f"http://{daemon.gateway}", token="secret") as client:
        client.status()
    assert daemon.asked[0].headers["authorization"] == "Bearer secret"


# -- waiting and events --------------------------------------------------------------------------------------------


def test_waiting_follows_events_to_the_end(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [
        [
            snapshot(operation()),
            told("progressed", 2, stage="loading-weights", progress={"done": 40, "total": 100, "unit": "percent"}),
            ": still here\n\n",
            told("finished", 3, operation_id="op_other", state="succeeded"),
            told("finished", 4, state="succeeded", ended_at=104.0),
        ]
    ]
    seen = []
    ended = client.wait(client_operation(client, daemon), on_progress=lambda one: seen.append((one.stage, one.percent)))
    assert (ended.state, ended.elapsed_s) == ("succeeded", 4.0)
    assert seen == [(None, None), (None, None), ("loading-weights", 40.0), (None, None)]


def client_operation(client: StokerClient, daemon: StandIn, **members):
    daemon.item("/v1/deployments/tiny/-/load", operation(**members), method="POST", code=202)
    return client.load("tiny")


def test_one_that_ended_between_two_looks_is_found_in_the_snapshot(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [[snapshot(operation(state="succeeded"))]]
    assert client.wait(client_operation(client, daemon)).state == "succeeded"


def test_one_that_no_snapshot_holds_any_more_is_asked_for(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [[snapshot()]]
    daemon.item("/v1/operations/op_1", operation(state="succeeded"))
    assert client.wait(client_operation(client, daemon)).state == "succeeded"


def test_one_that_is_over_needs_no_events(client: StokerClient, daemon: StandIn) -> None:
    assert client.wait(client_operation(client, daemon, state="succeeded")).is_over
    assert daemon.requests("GET", "/v1/events") == []


def test_a_failed_operation_raises_its_own_error(client: StokerClient, daemon: StandIn) -> None:
    error = {"code": "stop-unconfirmed", "status": 409, "message": "pid 12 is still there.", "remedy": "Look at it."}
    daemon.streams = [[snapshot(), told("finished", 2, state="failed", error=error)]]
    daemon.item("/v1/operations/op_1", operation())
    ended = client.wait(client_operation(client, daemon))
    with pytest.raises(StopUnconfirmedError, match="pid 12"):
        ended.raise_if_failed()


def test_waiting_ends_with_the_time_allowed(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [[snapshot(operation())]]
    with pytest.raises(HostError) as raised:
        client.wait(client_operation(client, daemon), timeout_s=0.2)
    assert raised.value.code is ErrorCode.NO_ANSWER


def test_c_14_a_broken_stream_goes_on_after_the_last_id(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [
        [snapshot(), told("created", 2)],
        [told("progressed", 3), 'id: i1:4\nevent: operation.progressed\ndata: {"cut"' ],
        [told("progressed", 4), told("finished", 5)],
    ]  # fmt: skip
    seen = [event.id for event in itertools.islice(client.events(topics=("operation",)), 5)]
    assert seen == ["i1:1", "i1:2", "i1:3", "i1:4", "i1:5"]
    streams = daemon.requests("GET", "/v1/events")
    assert [one.headers.get("last-event-id") for one in streams] == [None, "i1:2", "i1:3"]
    assert streams[0].query == {"topics": "operation"}


def test_events_can_begin_after_a_known_one(client: StokerClient, daemon: StandIn) -> None:
    daemon.streams = [[told("finished", 9)]]
    assert next(client.events(after="i1:8")).id == "i1:9"
    assert daemon.asked[0].headers["last-event-id"] == "i1:8"


def test_a_daemon_that_stays_away_ends_the_stream(folder: Path) -> None:
    stand_in = StandIn(folder)
    stand_in.streams = [[snapshot()], []]
    with StokerClient(stand_in.socket) as client:
        with stand_in.serving():
            events = client.events(patience_s=0.2)
            assert next(events).event == "stream.snapshot-taken"
        with pytest.raises(HostError) as raised:
            next(events)
    assert raised.value.code is ErrorCode.DAEMON_UNREACHABLE


def test_an_error_instead_of_lines_is_raised(client: StokerClient) -> None:
    with pytest.raises(UsageError):
        list(client.logs("nobody"))


# -- logs ----------------------------------------------------------------------------------------------------------


def test_s_24_log_lines_come_with_the_life_they_are_of(client: StokerClient, daemon: StandIn) -> None:
    lines = [{"wall": None, "stream": "err", "text": "hello"}, {"wall": 3.0, "stream": "out", "text": "there"}]
    daemon.item(
        "/v1/deployments/tiny/-/logs", {"subject": "session", "generation": 7, "live": True, "lines": lines}
    )  # fmt: skip
    stream = client.logs("tiny", tail=2)
    assert [(line.stream, line.text) for line in stream] == [("err", "hello"), ("out", "there")]
    assert stream.source == {"subject": "session", "generation": 7, "live": True}
    assert daemon.asked[0].query == {"tail": "2"}


def test_a_followed_log_is_read_line_by_line(client: StokerClient, daemon: StandIn) -> None:
    body = b'data: {"subject": "daemon"}\n\n: alive\n\ndata: {"text": "one", "stream": "out"}\n\n'
    daemon.item("/v1/logs", body)
    assert [line.text for line in client.logs(follow=True)] == ["one"]
    assert daemon.asked[0].query == {"follow": "true"}


# -- asking a model ------------------------------------------------------------------------------------------------


def test_an_answer_comes_in_pieces(daemon: StandIn) -> None:
    daemon.chat = [b": wait\n\n", b'data: {"choices": []}\n\n', piece("Hel"), piece("lo"), b"data: [DONE]\n\n"]
    gateway = Gateway(daemon.gateway)
    messages = [{"role": "user", "content": "Hi"}]
    assert list(gateway.stream_chat("tiny", messages, keep_alive="5m")) == ["Hel", "lo"]
    gateway.close()
    (asked,) = daemon.asked
    assert asked.body == {"model": "tiny", "messages": messages, "stream": True}
    assert asked.headers["stoker-keep-alive"] == "5m"


def test_an_answer_that_breaks_off_is_an_error(daemon: StandIn) -> None:
    daemon.chat = [piece("Hel")]
    gateway = Gateway(daemon.gateway)
    answer = gateway.stream_chat("tiny", [])
    assert next(answer) == "Hel"
    with pytest.raises(EngineError, match="broke off"):
        next(answer)
    gateway.close()


def test_an_error_in_the_middle_of_an_answer_is_the_gateways(daemon: StandIn) -> None:
    error = b'{"message": "It died.", "code": "engine_exited", "stoker": {"code": "engine-exited", "remedy": "Look."}}'
    daemon.chat = [piece("Hel"), b'data: {"error": ' + error + b"}\n\n"]
    gateway = Gateway(daemon.gateway)
    with pytest.raises(EngineError, match=r"It died\.") as raised:
        list(gateway.stream_chat("tiny", []))
    assert (raised.value.code, raised.value.remedy) == (ErrorCode.ENGINE_EXITED, "Look.")
    gateway.close()


def test_a_refusal_of_the_gateway_is_its_error(daemon: StandIn) -> None:
    refusal = {"error": {"message": "It is full.", "code": "queue_full", "stoker": {"code": "queue-full"}}}
    daemon.item("/v1/chat/completions", refusal, method="POST", code=429)
    gateway = Gateway(daemon.gateway)
    with pytest.raises(CapacityError, match=r"It is full\."):
        list(gateway.stream_chat("tiny", []))
    gateway.close()


# -- finding the daemon --------------------------------------------------------------------------------------------


def test_c_42_the_daemon_is_found_by_its_owner_lock(daemon: StandIn, folder: Path) -> None:
    with daemon.owning(folder / "data"), connect(environ={"STOKER_HOME": str(folder)}) as client:
        assert client.status().version == "9.9.9"


def test_no_daemon_names_the_command_that_starts_one(folder: Path) -> None:
    with pytest.raises(HostError) as raised:
        connect(environ={"STOKER_HOME": str(folder)})
    assert raised.value.code is ErrorCode.DAEMON_UNREACHABLE
    assert "stoker serve" in raised.value.remedy


def test_the_text_of_a_dead_daemon_does_not_count(daemon: StandIn, folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "owner.lock").write_text(
        '{"instance": "i1", "pid": 1, "version": "1", "control_socket": "/x", "gateway_address": "", "state": "ready"}'
    )
    with pytest.raises(HostError):
        connect(environ={"STOKER_HOME": str(folder)})


def test_c_42_a_client_waits_for_a_daemon_that_starts(daemon: StandIn, folder: Path) -> None:
    with daemon.owning(folder / "data", "starting") as lock:
        found: list[str] = []
        asking = threading.Thread(
            target=lambda: found.append(connect(environ={"STOKER_HOME": str(folder)}).transport.address)
        )
        asking.start()
        lock.update(state="ready")
        asking.join(10)
    assert found == [daemon.socket]


def test_a_socket_nobody_listens_on_is_unreachable(folder: Path) -> None:
    path = str(folder / "dead.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    with connect(socket=path) as client, pytest.raises(HostError, match="Nothing answers") as raised:
        client.status()
    assert raised.value.code is ErrorCode.DAEMON_UNREACHABLE
    os.unlink(path)
