"""Finding installations and asking programs about themselves (E-12, E-15)."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

import pytest

from stoker.engines.finder import Configured, find_installations, run_probe
from stoker.engines.llama_cpp.adapter import ADAPTER
from stoker.ports.engines import Build, BuildRefused, Captured, InstallationSite, ProbeCommand, Search

BINARY_ONLY = replace(ADAPTER, searches=(Search("binary", "llama-server"),))


class Asked:
    """Runs no program: records the commands and answers with a help text."""

    HELP = "--model FNAME  x\n--ctx-size N  x\n--parallel N  x\n--host HOST  UNIX socket\n"

    def __init__(self, status: int = 0) -> None:
        self.commands: list[ProbeCommand] = []
        self.status = status

    def __call__(self, command: ProbeCommand) -> Captured:
        self.commands.append(command)
        return Captured(self.status, self.HELP.encode(), b"", 1.0)


def program(folder, name="llama-server", text="#!/bin/sh\n") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_programs_are_found_along_the_path_once_and_in_order(tmp_path) -> None:
    first, second = program(tmp_path / "a"), program(tmp_path / "b")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    path = f"{tmp_path}/a:{tmp_path}/c:{tmp_path}/none:{tmp_path}/b"
    found = find_installations((BINARY_ONLY,), path, Asked())
    assert [item.site.executable for item in found] == [first, second]
    assert all(isinstance(item.build, Build) for item in found)


def test_relative_parts_of_the_path_and_files_that_are_not_programs_are_skipped(tmp_path, monkeypatch) -> None:
    program(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "llama-server").write_text("x")
    assert find_installations((BINARY_ONLY,), f"a:.::{tmp_path}/b", Asked()) == ()


def test_a_program_that_cannot_be_asked_is_listed_as_broken(tmp_path) -> None:
    program(tmp_path)
    (found,) = find_installations((BINARY_ONLY,), str(tmp_path), Asked(status=1))
    assert (found.state, found.build) == ("broken", None)
    assert "ended with status 1" in found.detail
    (found,) = find_installations((BINARY_ONLY,), str(tmp_path), Asked(status=-4))
    assert found.detail.startswith("illegal-instruction: ")


def test_what_the_operator_names_comes_first_and_once(tmp_path) -> None:
    here, there = program(tmp_path / "a"), program(tmp_path / "b")
    named = Configured("llama-cpp", InstallationSite("binary", there, "configured"))
    found = find_installations((BINARY_ONLY,), f"{tmp_path}/a:{tmp_path}/b", Asked(), configured=(named,))
    assert [(item.site.executable, item.site.origin) for item in found] == [(there, "configured"), (here, "host")]


def test_a_kept_answer_asks_nobody_until_the_program_changes(tmp_path) -> None:
    path, cache = program(tmp_path / "a"), tmp_path / "probes.json"
    first, again, changed = Asked(), Asked(), Asked()
    before = find_installations((BINARY_ONLY,), f"{tmp_path}/a", first, cache=cache)
    assert find_installations((BINARY_ONLY,), f"{tmp_path}/a", again, cache=cache) == before
    assert (len(first.commands), len(again.commands)) == (3, 0)
    assert cache.stat().st_mode & 0o777 == 0o600
    os.utime(path, ns=(1, 1))
    find_installations((BINARY_ONLY,), f"{tmp_path}/a", changed, cache=cache)
    assert len(changed.commands) == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "entries": []}', '{"format": 1, "entries": {"x": 3}}']
)
def test_a_damaged_cache_costs_only_time(tmp_path, text) -> None:
    program(tmp_path / "a")
    cache = tmp_path / "probes.json"
    cache.write_text(text)
    asked = Asked()
    (found,) = find_installations((BINARY_ONLY,), f"{tmp_path}/a", asked, cache=cache)
    assert found.state == "ready"
    assert len(asked.commands) == 3
    assert json.loads(cache.read_text())["format"] == 1


def test_an_answer_that_came_too_late_is_not_kept(tmp_path) -> None:
    program(tmp_path / "a")
    cache = tmp_path / "probes.json"

    def late(command: ProbeCommand) -> Captured:
        return Captured(None, b"", b"", 10_000.0, "timeout")

    (found,) = find_installations((BINARY_ONLY,), f"{tmp_path}/a", late, cache=cache)
    assert "did not answer in 10 s" in found.detail
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path) -> None:
    program(tmp_path / "a")
    (found,) = find_installations((BINARY_ONLY,), f"{tmp_path}/a", Asked(), cache=tmp_path / "none" / "probes.json")
    assert found.state == "ready"


def python(code: str, **members) -> ProbeCommand:
    return ProbeCommand("x", (sys.executable, "-I", "-c", code), **members)


def test_both_streams_and_the_status_are_captured() -> None:
    captured = run_probe(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (captured.status, captured.stdout, captured.stderr, captured.ended) == (3, b"out\n", b"err\n", "exit")


def test_output_beyond_the_limit_is_dropped_and_the_program_still_ends() -> None:
    captured = run_probe(python("print('x' * 3_000_000)", max_bytes=1000))
    assert (captured.ended, len(captured.stdout)) == ("exit", 1000)


def test_a_program_that_does_not_end_is_ended_with_its_helpers() -> None:
    started = time.monotonic()
    code = "import subprocess, time; print('up', flush=True); subprocess.Popen(['sleep', '60']); time.sleep(60)"
    captured = run_probe(python(code, timeout_s=0.5))
    assert (captured.ended, captured.stdout) == ("timeout", b"up\n")
    assert time.monotonic() - started < 10


def test_a_program_that_is_not_there_is_missing() -> None:
    assert run_probe(ProbeCommand("x", ("/no/such/program",))).ended == "missing"
    refused = ADAPTER.read_build(InstallationSite("binary", "/no"), {"help": run_probe(ProbeCommand("x", ("/no/x",)))})
    assert isinstance(refused, BuildRefused)
    assert refused.cause == "missing"


def test_nothing_of_our_environment_reaches_a_probe(monkeypatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    monkeypatch.setenv("PLANTED_SECRET", "x")
    told = run_probe(python("import os; print(sorted(os.environ), os.getcwd() == os.environ['HOME'], os.listdir())"))
    assert b"PLANTED" not in told.stdout
    assert b"LLAMA" not in told.stdout
    assert b"True []" in told.stdout
