"""Completion in shells: scripts, and names from the daemon or none (C-17)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from cli_driver import Cli
from stand_in_daemon import StandIn, deployment


def completed(stoker: Cli, *words: str) -> list[str]:
    """What the shell is offered for the last of ``words``."""
    environ = {
        "_STOKER_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("stoker", *words)),
        "COMP_CWORD": str(len(words)),
    }
    output, errors = stoker.process(env=environ).communicate(timeout=20)
    assert errors == ""
    return [line.partition(",")[2] for line in output.splitlines() if line]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(stoker: Cli, shell: str) -> None:
    said = stoker("completion", shell)
    assert said.exit_code == 0
    assert "_STOKER_COMPLETE" in said.stdout


def test_another_shell_is_wrong_usage(stoker: Cli) -> None:
    assert stoker("completion", "tcsh").exit_code == 2


def test_the_bash_script_is_one_that_bash_reads(stoker: Cli) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = stoker("completion", "bash").stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, capture_output=True)


def test_commands_complete(stoker: Cli) -> None:
    assert completed(stoker, "un") == ["unload", "unpin"]


def test_names_and_aliases_come_from_the_daemon(stoker: Cli, daemon: StandIn) -> None:
    daemon.list("/v1/deployments", deployment(names=["tiny", "tall"]), deployment("org/big", names=["org/big"]))
    assert completed(stoker, "load", "t") == ["tall", "tiny"]
    assert completed(stoker, "run", "org") == ["org/big"]


def test_without_a_daemon_there_are_no_names_and_no_words(stoker: Cli) -> None:
    assert completed(stoker, "load", "t") == []


def test_a_daemon_that_is_slow_or_starting_offers_no_names(stoker: Cli, folder: Path) -> None:
    stand_in = StandIn(folder)

    def slow(_):
        stand_in.may_go_on.wait(10)
        return 200, {"items": [deployment()]}

    stand_in.routes["GET /v1/deployments"] = slow
    with stand_in.serving():
        with stand_in.owning(folder / "data"):
            assert completed(stoker, "load", "t") == []
        with stand_in.owning(folder / "data", "starting"):
            assert completed(stoker, "load", "t") == []
