"""Which data folder a client looks into, and how long it waits there (C-42)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.discovery import Place
from stoker.errors import CapacityError, ErrorCode, UsageError
from stoker.journal.owner import Owner, OwnerLock


def place(home: Path, **environ: str) -> Place:
    return Place({"STOKER_HOME": str(home), **environ})


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_the_home_folder_decides_when_nothing_else_does(tmp_path: Path) -> None:
    assert place(tmp_path).data_dir() == str(tmp_path / "data")


def test_the_configuration_moves_the_data_folder(tmp_path: Path) -> None:
    written(tmp_path / "config" / "config.toml", f'[daemon]\ndata_dir = "{tmp_path}/a"\n')
    assert place(tmp_path).data_dir() == str(tmp_path / "a")


def test_the_last_file_of_conf_d_wins_and_hidden_ones_do_not_count(tmp_path: Path) -> None:
    written(tmp_path / "config" / "config.toml", f'\ufeff[daemon]\ndata_dir = "{tmp_path}/a"\n')
    written(tmp_path / "config" / "conf.d" / "10.toml", f'[daemon]\ndata_dir = "{tmp_path}/b"\n')
    written(tmp_path / "config" / "conf.d" / "20.toml", f'[daemon]\ndata_dir = "{tmp_path}/c"\n')
    written(tmp_path / "config" / "conf.d" / ".30.toml", f'[daemon]\ndata_dir = "{tmp_path}/d"\n')
    assert place(tmp_path).data_dir() == str(tmp_path / "c")


def test_the_environment_wins_over_files(tmp_path: Path) -> None:
    written(tmp_path / "config" / "config.toml", f'[daemon]\ndata_dir = "{tmp_path}/a"\n')
    assert place(tmp_path, STOKER_DAEMON__DATA_DIR=f"{tmp_path}/e").data_dir() == str(tmp_path / "e")


def test_a_named_file_is_read_instead_of_the_default_one(tmp_path: Path) -> None:
    written(tmp_path / "config" / "config.toml", f'[daemon]\ndata_dir = "{tmp_path}/a"\n')
    named = written(tmp_path / "other.toml", f'[daemon]\ndata_dir = "{tmp_path}/n"\n')
    assert Place({"STOKER_HOME": str(tmp_path)}, named).data_dir() == str(tmp_path / "n")


@pytest.mark.parametrize("text", [None, "[daemon", "\x00"])
def test_a_named_file_that_cannot_be_read_is_an_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "named.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as raised:
        Place({"STOKER_HOME": str(tmp_path)}, str(path)).data_dir()
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_a_default_file_in_the_middle_of_an_edit_does_not_hide_the_daemon(tmp_path: Path) -> None:
    written(tmp_path / "config" / "config.toml", "[daemon")
    assert place(tmp_path).data_dir() == str(tmp_path / "data")


def test_c_42_waiting_for_a_start_ends_after_its_bound(tmp_path: Path) -> None:
    clock = [0.0]
    lock = OwnerLock.acquire(str(tmp_path / "data"), Owner("i", 12, "1", "/s", "", "starting"))
    with pytest.raises(CapacityError, match="after 15 s") as raised:
        place(tmp_path).ready_owner(now=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s))
    lock.release()
    assert raised.value.code is ErrorCode.DAEMON_STARTING
    assert clock[0] == pytest.approx(15, abs=0.1)


def test_a_lock_without_its_text_yet_reads_as_starting(tmp_path: Path) -> None:
    lock = OwnerLock.acquire(str(tmp_path / "data"), Owner("i", 12, "1", "/s", ""))
    (tmp_path / "data" / "owner.lock").write_text("")
    owner = place(tmp_path).owner()
    lock.release()
    assert owner is not None
    assert owner.state == "starting"
