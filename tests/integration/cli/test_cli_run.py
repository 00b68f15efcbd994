"""`run`: from a name or a file to an answer, and the daemon it may have to start (C-19)."""

from __future__ import annotations

import json
import os
import pty
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_driver import Cli
from stand_in_daemon import StandIn, deployment, operation, piece, snapshot, told

from stoker.cli.launching import ready_daemon, start_daemon
from stoker.client.discovery import Place
from stoker.errors import HostError
from stoker.journal.owner import is_owned, read_owner

# A daemon that takes the lock, says it is ready, and leaves when the file `leave` appears or its lock is another's.
FAKE_DAEMON = """
def serve(overrides, *, config_file, echo, auto):
    import os, time, json
    from stoker.errors import UsageError
    from stoker.journal.owner import Owner, OwnerLock
    home = os.environ["STOKER_HOME"]
    with open(os.path.join(home, "starts"), "a") as file:
        file.write(json.dumps({
            "pid": os.getpid(), "sid": os.getsid(0), "auto": auto, "overrides": dict(overrides), "config": config_file,
            "descriptors": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                                  if os.path.exists(f"/proc/self/fd/{n}")),
        }) + "\\\\n")
    echo("The fake daemon says hello.")
    lock = OwnerLock.acquire(os.path.join(home, "data"), Owner("fake", os.getpid(), "0", home + "/control.sock", ""))
    lock.update(state="ready")
    until = time.monotonic() + 30
    while os.path.isdir(home) and not os.path.exists(os.path.join(home, "leave")) and time.monotonic() < until:
        time.sleep(0.02)
    lock.release()
    return 0
"""


def until(condition: Callable[[], object], bound_s: float = 20) -> None:
    end = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.01)


def ready(daemon: StandIn, name: str = "tiny") -> None:
    daemon.item(f"/v1/deployments/{name}", deployment(name))
    ended = operation(subject=name, state="succeeded")
    daemon.item(f"/v1/deployments/{name}/-/load", ended, method="POST", code=202)
    daemon.chat = [piece("Hel"), piece("lo."), b"data: [DONE]\n\n"]


def test_an_answer_goes_to_stdout_and_nothing_else_does(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    said = stoker("run", "tiny", "Say hello", "--system", "Be brief.", "--keep-alive", "10m")
    assert (said.exit_code, said.stdout, said.stderr) == (0, "Hello.\n", "")
    (asked,) = daemon.requests("POST", "/v1/chat/completions")
    assert asked.body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello"},
    ]
    assert asked.headers["stoker-keep-alive"] == "10m"


def test_a_prompt_may_be_piped_in(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    assert stoker("run", "tiny", typed="What is this?\n").exit_code == 0
    assert stoker("run", "tiny", "-", typed="What is this?\n").exit_code == 0
    for asked in daemon.requests("POST", "/v1/chat/completions"):
        assert asked.body["messages"] == [{"role": "user", "content": "What is this?"}]


def test_no_prompt_at_all_is_wrong_usage(stoker: Cli, daemon: StandIn) -> None:
    assert stoker("run", "tiny", typed="").exit_code == 2


def test_load_progress_is_told_on_stderr(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    daemon.item("/v1/deployments/tiny/-/load", operation(), method="POST", code=202)
    daemon.streams = [
        [snapshot(operation()), told("progressed", 2, stage="warming"), told("finished", 3, state="succeeded")]
    ]
    said = stoker("run", "tiny", "hi")
    assert said.stdout == "Hello.\n"
    assert said.stderr.splitlines() == ["Loading tiny: waiting for memory or a place", "Loading tiny: warming"]


def test_an_alias_says_whose_it_is(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    daemon.item("/v1/deployments/t", deployment("tiny", names=["tiny", "t"]))
    said = stoker("run", "t", "hi")
    assert said.stderr == "t is the deployment tiny.\n"
    assert daemon.requests("POST", "/v1/chat/completions")[0].body["model"] == "tiny"


def test_a_bundled_model_is_asked_by_its_reference(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon, "bundled:smollm2-135m")
    assert stoker("run", "bundled:smollm2-135m", "hi").stdout == "Hello.\n"


def test_a_file_gets_a_deployment_named_by_its_stem(stoker: Cli, daemon: StandIn, folder: Path) -> None:
    ready(daemon, "My Model")
    known = daemon.routes.pop("GET /v1/deployments/My Model")

    def put(asked):
        daemon.routes["GET /v1/deployments/My Model"] = known
        return 200, {"created": True}

    daemon.routes["PUT /v1/deployments/My Model"] = put
    path = folder / "My Model.gguf"
    path.write_bytes(b"GGUF")
    assert stoker("run", str(path), "hi").stdout == "Hello.\n"
    (sent,) = daemon.requests("PUT", "/v1/deployments/My Model")
    assert sent.body == {"reference": f"file:{path}"}


def test_a_file_whose_stem_is_deployed_already_uses_that(stoker: Cli, daemon: StandIn, folder: Path) -> None:
    ready(daemon)
    path = folder / "tiny.gguf"
    path.write_bytes(b"GGUF")
    said = stoker("run", str(path), "hi")
    assert said.stdout == "Hello.\n"
    assert said.stderr == f"{path} is the deployment tiny.\n"
    assert [one for one in daemon.asked if one.method == "PUT"] == []


def test_a_file_that_is_not_there_is_exit_6(stoker: Cli, daemon: StandIn, folder: Path) -> None:
    said = stoker("run", str(folder / "absent.gguf"), "hi")
    assert said.exit_code == 6
    assert said.stderr.startswith(f"Error: There is no file {folder}/absent.gguf.")


def test_an_unknown_name_is_exit_2(stoker: Cli, daemon: StandIn) -> None:
    assert stoker("run", "absent", "hi").exit_code == 2


def test_an_answer_that_breaks_off_is_exit_4_after_what_there_was(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    daemon.chat = [piece("Hel")]
    said = stoker("run", "tiny", "hi")
    assert (said.exit_code, said.stdout) == (4, "Hel\n")
    assert "broke off" in said.stderr


def test_a_gateway_that_listens_nowhere_is_exit_5(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    daemon.item("/v1/status", {"addresses": {}})
    assert stoker("run", "tiny", "hi").exit_code == 5


# -- at a terminal -------------------------------------------------------------------------------------------------


class Terminal:
    """A process whose input and output are one terminal; ``seen`` is all it wrote so far."""

    def __init__(self, stoker: Cli, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environ = {"TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        self.process = stoker.process(*arguments, stdin=slave, stdout=slave, stderr=slave, env=environ)
        os.close(slave)
        self._seen = b""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def seen(self) -> str:
        return self._seen.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self) -> int:
        code = self.process.wait(20)
        self._reader.join(20)
        os.close(self.master)
        return code

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 4096):
                self._seen += data
        except OSError:  # the other side is closed
            pass


def test_a_conversation_keeps_what_was_said(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    terminal = Terminal(stoker, "run", "tiny")
    until(lambda: ">>> " in terminal.seen)
    terminal.type("One\n")
    until(lambda: terminal.seen.count(">>> ") == 2)
    terminal.type("\n")
    until(lambda: terminal.seen.count(">>> ") == 3)
    terminal.type("Two\n")
    until(lambda: terminal.seen.count("Hello.") == 2)
    terminal.type("/bye\n")
    assert terminal.wait() == 0
    last = daemon.requests("POST", "/v1/chat/completions")[-1]
    assert [one["content"] for one in last.body["messages"]] == ["One", "Hello.", "Two"]


def test_the_end_of_input_leaves_a_conversation(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    terminal = Terminal(stoker, "run", "tiny")
    until(lambda: ">>> " in terminal.seen)
    terminal.type("\x04")
    assert terminal.wait() == 0


def test_the_first_interrupt_cancels_the_answer_and_one_at_the_prompt_leaves(stoker: Cli, daemon: StandIn) -> None:
    ready(daemon)
    daemon.chat = []
    going = threading.Event()

    def slow(asked):
        going.set()
        daemon.may_go_on.wait(5)
        return 200, piece("late")

    daemon.routes["POST /v1/chat/completions"] = slow
    terminal = Terminal(stoker, "run", "tiny")
    until(lambda: ">>> " in terminal.seen)
    terminal.type("One\n")
    assert going.wait(20)
    terminal.process.send_signal(signal.SIGINT)
    until(lambda: "(cancelled)" in terminal.seen)
    until(lambda: terminal.seen.count(">>> ") == 2)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.wait() == 130
    assert "Traceback" not in terminal.seen


# -- starting a daemon ---------------------------------------------------------------------------------------------


@pytest.fixture
def fake_daemon(stoker: Cli, folder: Path):
    """Makes `run` start the fake daemon; all of them leave at the end."""
    stoker.with_composition(FAKE_DAEMON.replace("\\\\n", "\\n"))
    yield Place(stoker.environ)
    (folder / "leave").touch()
    until(lambda: not is_owned(str(folder / "data")))


def starts(folder: Path) -> list[dict]:
    path = folder / "starts"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_c_19_run_starts_a_daemon_detached_from_everything(stoker: Cli, fake_daemon: Place, folder: Path) -> None:
    config = folder / "my.toml"
    config.write_text("")
    words: list[str] = []
    owner = ready_daemon(Place(stoker.environ, str(config)), words.append)
    assert owner.instance == "fake"
    assert words == ["Starting the Stoker daemon…"]
    (start,) = starts(folder)
    assert start["sid"] == start["pid"] == owner.pid
    assert (start["auto"], start["overrides"], start["config"]) == (True, {}, str(config))
    output = str(folder / "data" / "logs" / "daemon.out")
    assert set(start["descriptors"]) <= {"/dev/null", output, str(folder / "starts")}
    assert "The fake daemon says hello." in Path(output).read_text()
    assert (os.stat(output).st_mode & 0o777, os.stat(os.path.dirname(output)).st_mode & 0o777) == (0o600, 0o700)


def test_a_daemon_that_runs_already_is_used(stoker: Cli, fake_daemon: Place, folder: Path) -> None:
    first = ready_daemon(fake_daemon, lambda _: None)
    assert ready_daemon(fake_daemon, lambda _: None) == first
    assert len(starts(folder)) == 1


def test_c_19_two_starts_at_once_are_settled_by_the_lock(stoker: Cli, fake_daemon: Place, folder: Path) -> None:
    found = []
    callers = [
        threading.Thread(target=lambda: found.append(ready_daemon(fake_daemon, lambda _: None))) for _ in range(3)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert len({owner.pid for owner in found}) == 1
    assert len(found) == 3


def test_c_19_a_daemon_that_cannot_start_is_exit_5_with_its_last_lines(stoker: Cli) -> None:
    stoker.with_composition("""
def serve(overrides, *, config_file, echo, auto):
    for number in range(30):
        echo(f"line {number}")
    raise SystemExit(2)
""")
    said = stoker("run", "tiny", "hi")
    assert said.exit_code == 5
    lines = said.stderr.splitlines()
    assert lines[1] == "Error: The daemon ended with exit code 2 before it was ready."
    assert lines[2:14] == [f"  | line {number}" for number in range(18, 30)]
    assert "daemon.out" in lines[14]


def test_c_19_a_daemon_that_is_slow_is_given_ten_seconds(stoker: Cli) -> None:
    stoker.with_composition("""
def serve(overrides, *, config_file, echo, auto):
    import os, time
    while os.path.isdir(os.environ["STOKER_HOME"]):
        time.sleep(0.02)
    return 0
""")
    clock = [0.0]
    with pytest.raises(HostError, match="not ready within 10 s"):
        ready_daemon(
            Place(stoker.environ),
            lambda _: None,
            now=lambda: clock[0],
            sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds),
        )
    assert clock[0] == pytest.approx(10, abs=0.1)


def test_what_an_earlier_start_said_is_not_shown_again(stoker: Cli, folder: Path) -> None:
    stoker.with_composition("""
def serve(overrides, *, config_file, echo, auto):
    echo("It failed.")
    return 5
""")
    place = Place(stoker.environ)
    for _ in range(2):
        start = start_daemon(place)
        assert start.process.wait(20) == 5
        assert start.last_lines() == ["It failed."]


def test_serve_turns_flags_into_configuration(stoker: Cli, fake_daemon: Place, folder: Path) -> None:
    process = stoker.process("serve", "--host", "0.0.0.0", "--port", "6000", "--no-tcp")
    until(lambda: (owner := read_owner(str(folder / "data"))) is not None and owner.state == "ready")
    (folder / "leave").touch()
    output, words = process.communicate(timeout=20)
    assert (process.returncode, output, words) == (0, "", "The fake daemon says hello.\n")
    (start,) = starts(folder)
    assert start["overrides"] == {"gateway.host": "0.0.0.0", "gateway.port": 6000, "control.tcp": ""}
    assert start["auto"] is False


def test_a_second_serve_is_exit_2_and_names_the_first(stoker: Cli, fake_daemon: Place) -> None:
    first = ready_daemon(fake_daemon, lambda _: None)
    process = stoker.process("serve")
    _, words = process.communicate(timeout=20)
    assert process.returncode == 2
    assert f"pid {first.pid}" in words


def test_serve_check_names_every_problem_and_starts_nothing(stoker: Cli, folder: Path) -> None:
    assert "defaults, no file" in stoker("serve", "--check").stderr
    (folder / "config").mkdir()
    (folder / "config" / "config.toml").write_text("[gateway]\nprot = 1\n")
    said = stoker("serve", "--check")
    assert said.exit_code == 2
    assert "prot" in said.stderr
    assert not (folder / "data").exists()
