"""Where things lie, whose they are, and how long a path may be: C-44."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest

from stoker.config.paths import SOCKET_PATH_BYTES, find_paths
from stoker.errors import ErrorCode, UsageError


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def runtime(tmp_path_factory):
    """A short private folder as an account's folder in memory is."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        yield folder


def test_one_variable_puts_everything_below_one_folder(runtime):
    paths = find_paths({"STOKER_HOME": runtime})
    assert paths.config_file == f"{runtime}/config/config.toml"
    assert paths.journal == f"{runtime}/data/journal.sqlite"
    assert paths.control_socket == f"{runtime}/run/control.sock"
    assert paths.life_dir(7) == f"{runtime}/run/lives/7"
    assert paths.machine_dir == f"{runtime}/machine"


def test_given_folders_win_and_the_home_of_the_account_is_understood(runtime, monkeypatch):
    monkeypatch.setenv("HOME", runtime)
    paths = find_paths({"STOKER_HOME": "~/s"}, data_dir="~/d", volatile_dir="/tmp/v", config_dir="~/c")
    assert (paths.data_dir, paths.volatile_dir, paths.config_dir) == (f"{runtime}/d", "/tmp/v", f"{runtime}/c")
    assert paths.machine_dir == f"{runtime}/s/machine"


def test_the_platform_decides_without_any_of_them(runtime, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", runtime)
    paths = find_paths({"XDG_RUNTIME_DIR": runtime})
    assert paths.config_dir.startswith(runtime)
    assert paths.data_dir.endswith("/stoker")
    assert paths.volatile_dir.startswith(f"{runtime}/stoker-")
    assert paths.machine_dir == f"{runtime}/stoker-machine"


def test_two_data_folders_have_two_volatile_folders_and_a_link_has_its_targets(runtime):
    environ = {"XDG_RUNTIME_DIR": runtime}
    os.mkdir(f"{runtime}/a")
    os.symlink(f"{runtime}/a", f"{runtime}/link")
    first, second, link = (find_paths(environ, data_dir=f"{runtime}/{name}") for name in ("a", "b", "link"))
    assert first.volatile_dir != second.volatile_dir
    assert link == replace(first, config_dir=link.config_dir)


def test_sockets_of_a_long_home_lie_in_a_short_folder(tmp_path):
    paths = find_paths({"STOKER_HOME": str(tmp_path / ("x" * 120))})
    assert paths.volatile_dir.startswith(f"/tmp/stoker-{os.geteuid()}/")
    assert len(paths.life_dir(9_999_999_999)) + len("/engine.sock") <= SOCKET_PATH_BYTES


def test_a_volatile_folder_that_is_too_long_is_refused_with_both_numbers():
    with pytest.raises(UsageError, match="at most 74") as caught:
        find_paths({}, volatile_dir="/run/" + "x" * 200)
    assert caught.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("kind", ["missing", "open to all", "relative", "too long"])
def test_a_folder_in_memory_that_is_not_private_is_not_used(runtime, kind):
    folder = {"missing": f"{runtime}/no", "relative": "x", "too long": f"{runtime}/" + "x" * 70}.get(kind, runtime)
    if kind == "open to all":
        os.chmod(runtime, 0o755)
    if kind == "too long":
        os.mkdir(folder, 0o700)
    found = find_paths({"XDG_RUNTIME_DIR": folder}).volatile_dir
    assert not found.startswith(folder)


def test_folders_are_made_private_wider_ones_are_tightened_and_the_spool_is_emptied(runtime):
    paths = find_paths({"STOKER_HOME": runtime})
    os.makedirs(f"{paths.spool}/part")
    for path, text in ((f"{paths.spool}/body", "x"), (paths.overrides, ""), (f"{paths.spool}/part/y", "z")):
        with open(path, "w") as file:
            file.write(text)
    os.symlink("/etc", f"{paths.spool}/link")
    os.makedirs(paths.config_dir)
    with open(paths.config_file, "w"):
        pass
    for path in (paths.data_dir, paths.config_dir):
        os.chmod(path, 0o755)
    for path in (paths.overrides, paths.config_file):
        os.chmod(path, 0o644)
    paths.prepare()
    folders = (
        paths.data_dir, paths.volatile_dir, paths.machine_dir, paths.store, paths.installations, paths.prompts,
        paths.unit_logs, paths.spool, paths.lives, paths.config_dir,
    )  # fmt: skip
    assert {mode(folder) for folder in folders} == {0o700}
    assert (mode(paths.overrides), mode(paths.config_file)) == (0o600, 0o600)
    assert os.listdir(paths.spool) == []
    assert os.listdir("/etc")


@pytest.mark.parametrize("which", ["data", "config"])
def test_folders_of_another_account_are_refused(runtime, monkeypatch, which):
    paths = find_paths({"STOKER_HOME": runtime})
    os.makedirs(getattr(paths, f"{which}_dir"))
    real, other = os.stat, getattr(paths, f"{which}_dir")

    def stat_of(path, *args, **kwargs):
        found = real(path, *args, **kwargs)
        if path != other:
            return found
        fields = list(found)
        fields[stat.ST_UID] = os.geteuid() + 5
        return os.stat_result(fields)

    monkeypatch.setattr(os, "stat", stat_of)
    with pytest.raises(UsageError, match=f"belongs to uid {os.geteuid() + 5}"):
        paths.prepare()


def test_something_that_is_no_folder_is_refused(runtime):
    paths = find_paths({"STOKER_HOME": runtime})
    os.makedirs(paths.data_dir)
    with open(paths.store, "w"):
        pass
    with pytest.raises(UsageError):
        paths.prepare()
