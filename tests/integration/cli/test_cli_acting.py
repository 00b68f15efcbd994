"""Commands that change something: what they send, how they wait, and how they end (C-18)."""

from __future__ import annotations

import json
import signal

import pytest
from cli_driver import Cli
from stand_in_daemon import StandIn, deployment, operation, session, snapshot, told

from stoker.errors import ROWS, ErrorCode, Family, StokerError, error_for


def load_of(daemon: StandIn, name: str, **members) -> None:
    daemon.item(
        f"/v1/deployments/{name}/-/load", operation(f"op_{name}", subject=name, **members), method="POST", code=202
    )
    daemon.item(f"/v1/deployments/{name}", deployment(name))


def unload_of(daemon: StandIn, name: str, **members) -> None:
    made = operation(f"op_{name}", kind="unload", subject=name, result={"generations": [7]}, **members)
    daemon.item(f"/v1/deployments/{name}/-/unload", made, method="POST", code=202)


UNCONFIRMED = {
    "code": "stop-unconfirmed", "status": 409, "message": "stoker-s1-7 still has pid 12 after 3 tries.",
    "remedy": "Look at pid 12; the stop is tried again every minute.", "details": {"unit_id": "stoker-s1-7"},
}  # fmt: skip


@pytest.mark.parametrize("family", list(Family))
def test_c_18_each_family_of_errors_has_its_exit_code(stoker: Cli, daemon: StandIn, family: Family) -> None:
    code = next(code for code in ErrorCode if ROWS[code].family is family)
    daemon.fail("/v1/status", error_for(code, "It is so.", remedy="Do that."))
    said = stoker("status")
    assert said.exit_code == ROWS[code].exit_code
    assert (said.stdout, said.stderr) == ("", "Error: It is so.\nDo that.\n")


def test_c_18_with_json_an_error_is_a_problem_on_stderr(stoker: Cli, daemon: StandIn) -> None:
    daemon.fail("/v1/status", error_for(ErrorCode.ROOM_DENIED, "It is full.", remedy="Wait.", retry_after_s=3))
    said = stoker("status", "--json")
    assert (said.exit_code, said.stdout) == (3, "")
    assert json.loads(said.stderr) == {
        "type": "errors#room-denied", "status": 503, "code": "room-denied", "message": "It is full.", "remedy": "Wait.",
        "details": {}, "retry_after_s": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [["nonsense"], ["load"], ["ps", "--what"], ["--timeout", "0", "ps"]])
def test_wrong_usage_is_a_sentence_and_exit_2(stoker: Cli, arguments: list[str]) -> None:
    said = stoker(*arguments)
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr.startswith("Error: ")
    assert "Usage: stoker" in said.stderr


def test_wrong_usage_with_json_is_a_problem(stoker: Cli) -> None:
    assert json.loads(stoker("--json", "ps", "--what").stderr)["code"] == "invalid-parameter"


def test_c_19_other_commands_start_no_daemon(stoker: Cli) -> None:
    for arguments in (["ps"], ["load", "tiny"], ["stop", "--all"], ["logs"], ["events"]):
        said = stoker(*arguments)
        assert said.exit_code == 5
        assert said.stderr.endswith("Start one with `stoker serve`.\n")
    assert not (stoker.folder / "data").exists()


def test_a_defect_is_a_sentence_and_exit_70(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/sessions", {"nothing": 1})
    said = stoker("ps")
    assert said.exit_code == 70
    assert "Traceback" not in said.stderr
    assert "Traceback" in stoker("-v", "ps").stderr


def test_load_waits_until_it_is_ready(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny")
    progress = {"done": 40, "total": 100, "unit": "percent"}
    daemon.streams = [
        [
            snapshot(operation("op_tiny")),
            told("progressed", 2, operation_id="op_tiny", stage="loading-weights", progress=progress),
            told("progressed", 3, operation_id="op_tiny", stage="loading-weights", progress={**progress, "done": 60}),
            told("finished", 4, operation_id="op_tiny", state="succeeded", ended_at=102.5),
        ]
    ]
    said = stoker("load", "tiny")
    assert said.exit_code == 0
    assert said.stdout == "GENERATION  PHASE  ELAPSED\n         7  ready  2.5 s\n"
    assert said.stderr == "Loading tiny: waiting for memory or a place\nLoading tiny: loading-weights\n"


def test_quiet_says_nothing_and_json_gives_the_operation(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny", state="succeeded")
    assert stoker("load", "tiny", "-q").stderr == ""
    said = stoker("load", "tiny", "--json")
    assert json.loads(said.stdout) == operation("op_tiny", subject="tiny", state="succeeded")


def test_load_without_waiting_returns_at_once(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny")
    assert stoker("load", "tiny", "--no-wait").exit_code == 0
    assert daemon.requests("GET", "/v1/events") == []


def test_a_context_is_given_to_the_deployment_before_it_loads(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny", state="succeeded")
    daemon.item("/v1/deployments/tiny", {"created": False}, method="PUT")
    assert stoker("load", "tiny", "--context", "4096").exit_code == 0
    (changed,) = daemon.requests("PUT", "/v1/deployments/tiny")
    assert changed.body["context_tokens"] == 4096


def test_a_load_that_fails_ends_with_its_reason(stoker: Cli, daemon: StandIn) -> None:
    error = {"code": "engine-exited", "message": "The engine ended with 1.", "remedy": "See `stoker logs tiny`."}
    load_of(daemon, "tiny", state="failed", error=error)
    said = stoker("load", "tiny")
    assert (said.exit_code, said.stdout) == (4, "")
    assert said.stderr == "Error: The engine ended with 1.\nSee `stoker logs tiny`.\n"


def test_c_18_some_of_several_that_failed_are_exit_1(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny", state="succeeded")
    said = stoker("load", "tiny", "absent")
    assert said.exit_code == 1
    assert "There is no" in said.stderr
    assert "ready" in said.stdout


def test_several_that_all_failed_are_exit_of_the_family(stoker: Cli, daemon: StandIn) -> None:
    assert stoker("load", "absent", "also-absent").exit_code == 2


def test_waiting_ends_with_timeout_and_the_load_goes_on(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny")
    daemon.streams = [[snapshot(operation("op_tiny"))]]
    said = stoker("--timeout", "0.3", "load", "tiny")
    assert said.exit_code == 5
    assert "stoker ps" in said.stderr


@pytest.mark.parametrize(
    ("flags", "sent"),
    [([], {"mode": "drain"}), (["--drain", "3"], {"mode": "drain", "drain_s": 3.0}), (["--now"], {"mode": "now"}),
     (["--idle-only"], {"mode": "idle-only"}), (["--replica", "1"], {"mode": "drain", "replica": 1})],
)  # fmt: skip
def test_unload_says_how(stoker: Cli, daemon: StandIn, flags: list[str], sent: dict[str, object]) -> None:
    unload_of(daemon, "tiny", state="succeeded", ended_at=101.0)
    said = stoker("unload", "tiny", *flags)
    assert said.stdout == "GENERATION  PHASE  ELAPSED\n         7  gone   1.0 s\n"
    assert daemon.requests("POST", "/v1/deployments/tiny/-/unload")[0].body == sent


def test_two_ways_of_stopping_at_once_are_refused(stoker: Cli) -> None:
    assert "--now and --kill" in stoker("stop", "tiny", "--now", "--kill").stderr


def test_stop_of_a_name_ends_its_deployment(stoker: Cli, daemon: StandIn) -> None:
    unload_of(daemon, "tiny", state="succeeded")
    assert stoker("stop", "tiny", "--kill").exit_code == 0
    assert daemon.requests("POST", "/v1/deployments/tiny/-/unload")[0].body == {"mode": "kill"}


def test_stop_of_a_generation_ends_that_life(stoker: Cli, daemon: StandIn) -> None:
    ended = operation(kind="stop", subject="7", state="succeeded", result={"generations": [7]})
    daemon.item("/v1/sessions/7/stop", ended, method="POST", code=202)
    assert stoker("stop", "7").exit_code == 0
    assert daemon.requests("POST", "/v1/sessions/7/stop")[0].body == {"mode": "drain"}


def test_stop_all_ends_every_deployment_that_has_a_session(stoker: Cli, daemon: StandIn) -> None:
    daemon.list("/v1/sessions", session(), session(8), session(9, deployment="other"), session(10, phase="gone"))
    unload_of(daemon, "tiny", state="succeeded")
    unload_of(daemon, "other", state="succeeded")
    assert stoker("stop", "--all").exit_code == 0
    assert len([one for one in daemon.asked if one.method == "POST"]) == 2
    daemon.list("/v1/sessions")
    assert "nothing to stop" in stoker("stop", "--all").stderr


@pytest.mark.parametrize("arguments", [[], ["tiny", "--all"], ["tiny", "--force-release", "7"]])
def test_stop_needs_one_thing_to_stop(stoker: Cli, arguments: list[str]) -> None:
    assert stoker("stop", *arguments).exit_code == 2


def test_stop_unconfirmed_is_exit_7_with_unit_cause_and_remedy(stoker: Cli, daemon: StandIn) -> None:
    unload_of(daemon, "tiny", state="failed", error=UNCONFIRMED)
    said = stoker("stop", "tiny")
    assert said.exit_code == 7
    assert said.stderr == (
        "Error: stoker-s1-7 still has pid 12 after 3 tries.\nLook at pid 12; the stop is tried again every minute.\n"
    )


def test_one_unconfirmed_of_several_is_still_exit_7(stoker: Cli, daemon: StandIn) -> None:
    unload_of(daemon, "tiny", state="failed", error=UNCONFIRMED)
    unload_of(daemon, "other", state="succeeded")
    assert stoker("stop", "tiny", "other").exit_code == 7


WARNING = "This does not stop anything. Memory still held by stoker-s1-7 (1.0 GiB on ram) will be promised to others.\n"


def test_s_32_force_release_warns_before_it_asks(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/sessions/7/force-release", session(phase="gone"), method="POST")
    said = stoker("stop", "--force-release", "7", typed="7\n")
    assert said.exit_code == 0
    assert said.stderr.startswith(WARNING + "Type the generation (7)")
    assert daemon.requests("POST", "/v1/sessions/7/force-release")[0].body == {"confirm": 7}


@pytest.mark.parametrize("typed", ["8\n", "yes\n", "\n"])
def test_s_32_another_answer_releases_nothing(stoker: Cli, daemon: StandIn, typed: str) -> None:
    said = stoker("stop", "--force-release", "7", typed=typed)
    assert said.exit_code == 2
    assert [one for one in daemon.asked if one.method == "POST"] == []


def test_s_32_yes_warns_and_does_not_ask(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/sessions/7/force-release", session(phase="gone"), method="POST")
    said = stoker("stop", "--force-release", "7", "--yes")
    assert said.exit_code == 0
    assert said.stderr.startswith(WARNING)
    assert "Type" not in said.stderr


@pytest.mark.parametrize("command", ["pin", "unpin"])
def test_pin_and_unpin_are_their_routes(stoker: Cli, daemon: StandIn, command: str) -> None:
    daemon.item(f"/v1/deployments/tiny/-/{command}", deployment(pinned=True), method="POST")
    assert stoker(command, "tiny").exit_code == 0
    assert json.loads(stoker(command, "tiny", "--json").stdout)["name"] == "tiny"


def test_an_interrupt_leaves_the_load_running_and_says_how_to_look(stoker: Cli, daemon: StandIn) -> None:
    load_of(daemon, "tiny")
    daemon.streams = [[snapshot(operation("op_tiny")), told("progressed", 2, operation_id="op_tiny", stage="warming")]]
    process = stoker.process("load", "tiny")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("Loading tiny")
    assert "warming" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "tiny goes on. Look again with `stoker ps`." in words
    assert "Traceback" not in words
    assert [one for one in daemon.asked if "cancel" in one.path] == []


def test_a_reader_that_leaves_early_is_no_error(stoker: Cli, daemon: StandIn) -> None:
    lines = [{"wall": None, "stream": "out", "text": "x" * 1000} for _ in range(500)]
    daemon.item("/v1/logs", {"subject": "daemon", "lines": lines})
    process = stoker.process("logs", "--tail", "500")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    words = process.stderr.read()
    process.stderr.close()
    assert process.wait(20) == 0
    assert "Traceback" not in words


def test_the_error_type_of_a_code_is_stable() -> None:
    assert issubclass(type(error_for(ErrorCode.STOP_UNCONFIRMED, "x")), StokerError)
