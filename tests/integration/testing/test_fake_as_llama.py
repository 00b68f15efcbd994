"""The real adapter takes the fake llama.cpp for a llama.cpp: its build, its log and its failures (E-107)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stoker.engines.llama_cpp.adapter import ADAPTER
from stoker.ports.engines import Build, Captured, ExitSeen, InstallationSite, Seen, Stage
from stoker.ports.units import Exit
from stoker.testing.fake_engine.install import install

BOUND_S = 15.0


def probe(program: Path) -> Build:
    """The build as the daemon would read it: run each probe command, hand the outputs to the adapter."""
    at = InstallationSite("binary", str(program))
    outputs = {}
    for command in ADAPTER.probe_commands(at):
        ran = subprocess.run(command.argv, capture_output=True, timeout=BOUND_S, check=False)
        outputs[command.name] = Captured(ran.returncode, ran.stdout, ran.stderr, 1.0)
    build = ADAPTER.read_build(at, outputs)
    assert isinstance(build, Build), build
    return build


def read_log(program: Path, *arguments: str) -> tuple[list[str], int]:
    """Every log line and the status of one run that ends by itself."""
    ran = subprocess.run((str(program), *arguments), capture_output=True, timeout=BOUND_S, check=False)
    return ran.stderr.decode().splitlines(), ran.returncode


def test_the_build_probe_finds_its_release_and_features(tmp_path: Path) -> None:
    build = probe(install(tmp_path / "llama-server"))
    assert build.release == "9999"
    assert {"unix-socket", "cache-ram", "fit", "metrics", "slot-save", "no-ui", "kv-unified"} <= build.features
    assert "q8_0" in build.values["cache_type_k"]


def test_its_log_walks_the_stages_up_to_verifying_and_never_back(tmp_path: Path) -> None:
    program = install(tmp_path / "llama-server", "--crash-after", "10ms", "--load", "50ms@steps=2")
    lines, _ = read_log(program, "--model", "x.gguf", "--ctx-size", "4096", "--parallel", "2")
    seen, stages = Seen(), []
    for line in lines:
        seen = ADAPTER.read_line(line, seen)
        stages.append(list(Stage).index(seen.stage))
    assert seen.stage is Stage.VERIFYING
    assert stages == sorted(stages)
    assert seen.listening
    assert seen.fatal is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--fail", "argument"), "bad-setting"),
        (("--fail", "port"), "port-in-use"),
        (("--fail", "library"), "installation-broken"),
        (("--fail", "driver"), "installation-broken"),
        (("--fail", "architecture"), "model-unsupported"),
        (("--fail", "file"), "model-file-corrupt"),
        (("--oom", "load"), "device-out-of-memory"),
        (("--oom", "kv"), "device-out-of-memory"),
    ],
)
def test_its_failures_are_explained_as_the_real_ones_among_decoys(
    tmp_path: Path, options: tuple[str, ...], kind: str
) -> None:
    lines, status = read_log(install(tmp_path / "llama-server", *options))
    verdict = ADAPTER.explain(ExitSeen(Exit(status, None, False, 0.0, "engine"), "initializing", lines))
    assert verdict.kind == kind


def test_options_of_the_fake_and_arguments_of_the_engine_live_in_one_command_line(tmp_path: Path) -> None:
    program = install(tmp_path / "llama-server", "--text", "two words")
    ran = subprocess.run((str(program), "--no-ui", "--help"), capture_output=True, timeout=BOUND_S, check=True)
    assert b"--ctx-size N" in ran.stdout
