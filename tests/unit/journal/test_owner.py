"""One daemon per folder, whatever the text says: S-89, S-97, C-42; acceptance 50 of the sessions, 30 of control."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import asdict

import pytest

from stoker.errors import ErrorCode, HostError, UsageError
from stoker.journal.owner import Owner, OwnerLock, ScopeLock, is_owned, read_owner

ONE = Owner("one", 4242, "1.0", "/run/control.sock", "127.0.0.1:5151")
TWO = Owner("two", 4343, "1.0", "/run/control.sock", "127.0.0.1:5151")

_HOLDER = """
import sys
from stoker.journal.owner import Owner, OwnerLock
lock = OwnerLock.acquire(sys.argv[1], Owner("child", 1, "1.0", "/s", "a"))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "data")


def holder(folder):
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    return child


def end(child):
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def test_the_text_says_who_owns_the_folder(folder):
    lock = OwnerLock.acquire(folder, ONE)
    assert read_owner(folder) == ONE
    assert is_owned(folder)
    lock.update(state="ready", gateway_address="127.0.0.1:6000")
    assert read_owner(folder).state == "ready"
    with open(lock.path) as file:
        assert json.load(file)["gateway_address"] == "127.0.0.1:6000"
    assert stat.S_IMODE(os.stat(lock.path).st_mode) == 0o600
    lock.release()
    lock.release()
    assert read_owner(folder) is None
    assert not is_owned(folder)


def test_a_second_daemon_is_refused_naming_both_and_changes_nothing(folder):
    lock = OwnerLock.acquire(folder, ONE)
    before = os.stat(lock.path)
    with pytest.raises(UsageError) as caught:
        OwnerLock.acquire(folder, TWO)
    assert caught.value.code == ErrorCode.DAEMON_ALREADY_RUNNING
    assert all(word in caught.value.message for word in ("one", "4242", "two", "4343", folder))
    assert caught.value.details["holder"] == asdict(ONE)
    assert os.stat(lock.path).st_mtime_ns == before.st_mtime_ns
    assert read_owner(folder) == ONE
    lock.release()


def test_a_second_process_is_refused_through_a_link_too(folder, tmp_path):
    child = holder(folder)
    os.symlink(folder, tmp_path / "link")
    try:
        with pytest.raises(UsageError, match="child"):
            OwnerLock.acquire(str(tmp_path / "link"), TWO)
    finally:
        end(child)


def test_a_killed_owner_leaves_the_folder_free_at_once(folder):
    end(holder(folder))
    assert read_owner(folder).instance == "child"
    assert not is_owned(folder)
    lock = OwnerLock.acquire(folder, TWO)
    assert read_owner(folder) == TWO
    lock.release()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        '{"instance": "x"}',
        json.dumps(asdict(ONE) | {"pid": os.getpid()}),  # a pid that lives and is somebody else's
        json.dumps(asdict(ONE) | {"pid": 2**22 + 1}),
    ],
)
def test_the_text_never_decides(folder, text):
    os.makedirs(folder)
    with open(os.path.join(folder, "owner.lock"), "w") as file:
        file.write(text)
    assert not is_owned(folder)
    lock = OwnerLock.acquire(folder, TWO)
    assert read_owner(folder) == TWO
    with open(lock.path, "w") as file:  # somebody empties or forges the text of a held lock
        file.write(text)
    with pytest.raises(UsageError):
        OwnerLock.acquire(folder, ONE)
    lock.release()


def test_a_copied_lock_text_holds_nothing(folder, tmp_path):
    lock = OwnerLock.acquire(folder, ONE)
    shutil.copytree(folder, tmp_path / "copy")
    copy = OwnerLock.acquire(str(tmp_path / "copy"), TWO)
    copy.release()
    lock.release()


def test_children_do_not_keep_the_lock(folder):
    """Neither one that was executed nor one that was only forked."""
    lock = OwnerLock.acquire(folder, ONE)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    ready, told = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.write(told, b"x")
        os.read(os.pipe()[0], 1)  # stays until killed
    assert os.read(ready, 1) == b"x"
    try:
        lock._forget()  # as death does: closed without an unlock
        assert not is_owned(folder)
    finally:
        child.kill()
        child.wait()
        os.kill(forked, 9)
        os.waitpid(forked, 0)
        os.close(ready)
        os.close(told)


def test_a_lock_file_that_was_replaced_guards_the_new_one(folder):
    lock = OwnerLock.acquire(folder, ONE)
    os.unlink(lock.path)
    second = OwnerLock.acquire(folder, TWO)  # the old lock is on a file nobody can find any more
    assert read_owner(folder) == TWO
    lock._forget()
    second.release()


def test_a_link_in_the_place_of_the_lock_is_refused(folder, tmp_path):
    os.makedirs(folder)
    (tmp_path / "other").write_text("mine")
    os.symlink(tmp_path / "other", os.path.join(folder, "owner.lock"))
    with pytest.raises(HostError):
        OwnerLock.acquire(folder, ONE)
    assert (tmp_path / "other").read_text() == "mine"


def test_a_copied_folder_is_refused_and_told_how_to_get_a_new_id_and_a_moved_one_is_not(tmp_path):
    machine = str(tmp_path / "machine")
    first = ScopeLock.acquire(machine, "0a1b2c3d", str(tmp_path / "original"))
    with pytest.raises(UsageError) as caught:
        ScopeLock.acquire(machine, "0a1b2c3d", str(tmp_path / "copy"))
    assert caught.value.code == ErrorCode.SCOPE_DUPLICATE
    assert str(tmp_path / "original") in caught.value.message
    assert "delete journal.sqlite and scope" in caught.value.remedy
    other = ScopeLock.acquire(machine, "ffffffff", str(tmp_path / "another"))
    first.release()
    moved = ScopeLock.acquire(machine, "0a1b2c3d", str(tmp_path / "moved"))
    for lock in (other, moved):
        lock.release()
