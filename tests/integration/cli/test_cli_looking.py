"""What the commands that only look print: golden outputs, and the API's shape with --json (C-17)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from cli_driver import Cli
from stand_in_daemon import StandIn, deployment, session, snapshot, status


def golden(text: str) -> str:
    """An output as it stands in a test, indented and between lines of its own."""
    lines = f"    {text.strip()}".splitlines()
    return "\n".join(line[4:] for line in lines) + "\n"


def test_list_is_a_table(stoker: Cli, daemon: StandIn) -> None:
    daemon.list(
        "/v1/deployments",
        deployment(),
        deployment("org/big:q4", state="cold", size_bytes=5 << 30, context_tokens=131072, last_used=None, engine=None),
    )
    assert stoker("list").stdout == golden("""
    NAME        MODEL      ENGINE         SIZE  STATE  CONTEXT  LAST-USED
    tiny        tiny.gguf  llama_cpp  93.8 MiB  ready    8 192  4 min ago
    org/big:q4  tiny.gguf  -           5.0 GiB  cold   131 072  -
    """)
    assert stoker("ls").stdout == stoker("list").stdout


def test_an_empty_list_says_what_to_do_on_stderr(stoker: Cli, daemon: StandIn) -> None:
    daemon.list("/v1/deployments")
    said = stoker("list")
    assert said.stdout == "NAME  MODEL  ENGINE  SIZE  STATE  CONTEXT  LAST-USED\n"
    assert "stoker run" in said.stderr


def test_ps_shows_every_life_that_holds_memory(stoker: Cli, daemon: StandIn) -> None:
    daemon.list("/v1/deployments", deployment(waiting=2))
    daemon.list(
        "/v1/sessions",
        session(),
        session(8, phase="initializing", in_flight=0, idle_deadline=None, context_tokens=None,
                startup={"stage": "loading-weights", "percent": 42.4}),
        session(9, phase="stop-unconfirmed", pinned=True, reservation={"gpu-0": 3 << 29, "ram": 10 << 20}),
        session(10, phase="gone"),
    )  # fmt: skip
    assert stoker("ps").stdout == golden("""
    GENERATION  DEPLOYMENT  REPLICA  ENGINE     PHASE                                MEMORY                        CONTEXT  IN-FLIGHT  WAITING  UNTIL
             7  tiny              0  llama_cpp  ready                                1.0 GiB ram                     8 192          0        2  in 4 min
             8  tiny              0  llama_cpp  initializing (loading-weights 42 %)  1.0 GiB ram                         -          0        2  -
             9  tiny              0  llama_cpp  stop-unconfirmed                     1.5 GiB gpu-0 + 10.0 MiB ram    8 192          0        2  pinned
    """)
    assert "gone" in stoker("ps", "--all").stdout


def test_show_of_a_name_tells_all_of_it(stoker: Cli, daemon: StandIn) -> None:
    daemon.item(
        "/v1/deployments/tiny",
        deployment(names=["tiny", "t"], spec={"reference": "file:/m.gguf", "slots": 2, "pinned": True, "env": {}}),
    )
    said = stoker("show", "tiny").stdout
    assert said.startswith(
        golden("""
    Name       tiny, t
    State      ready
    Model      tiny.gguf
    Reference  file:/m.gguf
    Engine     llama_cpp
    Size       93.8 MiB
    Context    8 192 tokens
    Estimate   1.0 GiB ram
    Requests   0 in flight, 0 waiting, 1 places
    Last used  4 min ago
    Origin     file, revision 3
    Settings
      slots   2
      pinned  yes

    GENERATION
    """).rstrip("\n")
    )


def test_show_of_a_generation_is_the_session(stoker: Cli, daemon: StandIn) -> None:
    said = stoker("show", "7")
    assert said.exit_code == 0
    assert "Unit        process stoker-s1-7" in said.stdout
    assert json.loads(stoker("show", "7", "--json").stdout) == session()


def test_a_deployment_may_be_called_like_a_number(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/deployments/7", deployment("7"))
    assert json.loads(stoker("show", "7", "--json").stdout) == deployment("7")


def test_a_name_that_begins_like_a_flag_needs_two_dashes(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/deployments/-x", deployment("-x"))
    assert stoker("show", "-x").exit_code == 2
    assert stoker("show", "--json", "--", "-x").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "path"),
    [(["list"], "/v1/deployments"), (["ps"], "/v1/sessions"), (["show", "tiny"], "/v1/deployments/tiny"),
     (["status"], "/v1/status"), (["config", "show"], "/v1/config")],
)  # fmt: skip
def test_c_17_json_is_what_the_api_answered(stoker: Cli, daemon: StandIn, arguments: list[str], path: str) -> None:
    trees = {
        "/v1/deployments": {"items": [deployment(more=1)], "next": None},
        "/v1/sessions": {"items": [session(more=1)], "next": None},
        "/v1/deployments/tiny": deployment(more=1),
        "/v1/status": status(more=1),
        "/v1/config": {"revision": 1, "values": {"gateway": {"port": 1}}, "origins": {}, "pending": [], "more": 1},
    }
    daemon.item(path, trees[path])
    for order in ([*arguments, "--json"], ["--json", *arguments]):
        said = stoker(*order)
        assert json.loads(said.stdout) == trees[path]
        assert said.stderr == ""


def test_status_is_one_page(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/status", status(addresses={"gateway": "127.0.0.1:5151"}, warnings=["Something is odd."]))
    assert stoker("status").stdout == golden("""
    Stoker    9.9.9, ready, up 17 min
    Gateway   127.0.0.1:5151
    Requests  1 in flight, 1 waiting, 2 open
    Sessions  1 ready

    POOL  KIND  USE                       RESERVED    BUDGET  HEADROOM  MEASURED  OUTSIDE
    ram   ram   ██████░░░░░░░░░░░░░░░░░░   4.0 GiB  16.0 GiB  12.0 GiB         -  1.0 GiB

    Warning: Something is odd.
    """)


def test_status_names_memory_that_is_not_proven_free(stoker: Cli, daemon: StandIn) -> None:
    pool = status()["pools"][0] | {"unconfirmed_bytes": 2 << 30, "overdraft_bytes": 1 << 30}
    daemon.item("/v1/status", status(pools=[pool]))
    said = stoker("status").stdout
    assert "ram is overdrawn by 1.0 GiB." in said
    assert "2.0 GiB on ram are held by stops that are not confirmed." in said


def test_config_show_says_where_each_value_comes_from(stoker: Cli, daemon: StandIn) -> None:
    daemon.item(
        "/v1/config",
        {
            "revision": 1,
            "values": {
                "gateway": {"host": "127.0.0.1", "port": 6000},
                "models": {"org/a.b": {"reference": "x", "slots": 2}},
            },
            "origins": {"gateway.port": "flag:--port", "models.org/a.b.reference": "c.toml:3", "defaults.slots": "c:1"},
            "pending": [],
        },
    )
    assert stoker("config", "show", "--origin").stdout == golden("""
    KEY                         VALUE        ORIGIN
    gateway.host                "127.0.0.1"  default
    gateway.port                6000         flag:--port
    models."org/a.b".reference  "x"          c.toml:3
    models."org/a.b".slots      2            c:1
    """)
    assert "ORIGIN" not in stoker("config", "show").stdout


def test_config_show_without_a_daemon_is_what_one_would_start_with(stoker: Cli, folder: Path) -> None:
    (folder / "config").mkdir()
    file = folder / "config" / "config.toml"
    file.write_text("[gateway]\nport = 6001\n")
    stoker.environ["STOKER_LOG__LEVEL"] = "debug"
    said = stoker("config", "show", "--origin")
    assert said.stderr == "No daemon runs; this is what one would start with.\n"
    origins = {line.split()[0]: line.split()[1:] for line in said.stdout.splitlines()}
    assert origins["gateway.port"] == ["6001", f"{file}:2"]
    assert origins["log.level"] == ['"debug"', "env:STOKER_LOG__LEVEL"]
    assert origins["log.files"] == ["5", "default"]


def test_logs_are_the_lines_and_whose_they_are_is_said_beside(stoker: Cli, daemon: StandIn) -> None:
    lines = [{"wall": None, "stream": "out", "text": "one"}, {"wall": None, "stream": "err", "text": "two"}]
    answer = {"subject": "session", "deployment": "tiny", "generation": 7, "live": True, "lines": lines}
    daemon.item("/v1/deployments/tiny/-/logs", answer)
    said = stoker("logs", "tiny", "--tail", "2")
    assert (said.stdout, said.stderr) == ("one\ntwo\n", "tiny, generation 7, running:\n")
    assert [json.loads(line) for line in stoker("logs", "tiny", "--json").stdout.splitlines()] == lines


def test_logs_of_a_generation_ask_for_that_life(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/deployments/tiny/-/logs", {"subject": "attempt", "generation": 7, "live": False, "lines": []})
    said = stoker("logs", "7")
    assert said.stderr == "generation 7, ended\n"
    assert daemon.requests("GET", "/v1/deployments/tiny/-/logs")[0].query == {"generation": "7", "tail": "200"}


def test_logs_without_a_name_are_the_daemons(stoker: Cli, daemon: StandIn) -> None:
    daemon.item("/v1/logs", b'data: {"subject": "daemon", "path": "/x"}\n\ndata: {"text": "hello", "dropped": 3}\n\n')
    said = stoker("logs", "-f")
    assert (said.stdout, said.stderr) == ("hello\n", "The daemon's log:\n(3 lines were lost here)\n")


def test_events_are_one_line_each(stoker: Cli, daemon: StandIn) -> None:
    events = [
        {"id": "i1:1", "at": None, "event": "session.reserved", "deployment": "tiny", "generation": 7, "cause": "load",
         "reservation": {"ram": 1024}, "ticket": None},
        {"id": "i1:2", "at": None, "event": "pool.changed", "pool_id": "ram", "reserved_bytes": 1 << 30, "cause": "x" * 99},
    ]  # fmt: skip
    daemon.streams = [events]
    process = stoker.process("events", "--topics", "session,pool")
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == golden(f"""
    -  session.reserved            tiny #7                   cause=load reservation={{"ram":1024}}
    -  pool.changed                ram                       reserved_bytes=1.0GiB cause={"x" * 59}…
    """)
    interrupt(process)
    assert daemon.asked[0].query == {"topics": "session,pool"}


def test_events_with_json_are_an_object_a_line(stoker: Cli, daemon: StandIn) -> None:
    daemon.streams = [[snapshot()]]
    process = stoker.process("events", "--json", "--after", "i1:0")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == snapshot()
    interrupt(process)
    assert daemon.asked[0].headers["last-event-id"] == "i1:0"


def interrupt(process) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130


def test_version_tells_of_both_sides(stoker: Cli, folder: Path) -> None:
    assert stoker("version").stdout == "stoker 0.1.0\n"
    stand_in = StandIn(folder)
    with stand_in.owning(folder / "data"):
        assert stoker("version").stdout.splitlines()[1].startswith("daemon 9.9.9 (pid ")
        assert json.loads(stoker("version", "--json").stdout)["daemon"]["instance"] == "i1"
