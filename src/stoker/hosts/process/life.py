"""The life directory: private folder of one generation, and `unit.json` in it (S-3, S-37).

Written before a unit can exist, deleted only when it is proven gone. What is read back decides who may be signalled,
so anything that is not exactly what a guardian writes counts as nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.ids import Generation
from stoker.ports.units import Absent, Kept, ProcessIdentity, RemoveAnswer, Removed, UnitPlan

_FOLDER_VARIABLES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
_LONGEST_SOCKET_BYTES = 107


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """What a guardian put on the disk before its engine's first instruction."""

    generation: Generation
    scope: str
    guardian: ProcessIdentity
    main: ProcessIdentity
    log_path: str


def check(plan: UnitPlan) -> None:
    """ValueError for a plan that no host could run: a wrong argument is never an outcome (S-26)."""
    words = (*plan.argv, *plan.env, *plan.env.values())
    if not plan.argv or not plan.argv[0]:
        raise ValueError("the plan has no program")
    if any("\0" in word for word in words) or any("=" in name or not name for name in plan.env):
        raise ValueError("the plan's argv or environment holds a character that no program can be given")
    for name in plan.files:
        if not name or name in {".", "..", "unit.json"} or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a bare file name")
    for path in (plan.life_dir, plan.log_path):
        if not os.path.isabs(path):
            raise ValueError(f"{path!r} is not an absolute path")


def socket_too_long(plan: UnitPlan) -> bool:
    path = plan.endpoint.socket
    return path is not None and len(os.fsencode(path)) > _LONGEST_SOCKET_BYTES


def write(plan: UnitPlan) -> None:
    """Make the folder (0700), its files (0600) and the folders its environment names. Twice is the same as once."""
    os.makedirs(os.path.dirname(plan.log_path), 0o700, exist_ok=True)
    os.makedirs(plan.life_dir, 0o700, exist_ok=True)
    found = os.lstat(plan.life_dir)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise NotADirectoryError(f"{plan.life_dir} is not a folder of ours")
    os.chmod(plan.life_dir, 0o700)
    for name, (text, _) in plan.files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(os.path.join(plan.life_dir, name), flags, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, 0o600)
            file.write(text)
    for folder in _folders(plan.env, plan.life_dir):
        os.makedirs(folder, 0o700, exist_ok=True)


def _folders(env: Mapping[str, str], life_dir: str) -> list[str]:
    inside = os.path.join(life_dir, "")
    return [os.path.normpath(env[name]) for name in _FOLDER_VARIABLES if env.get(name, "").startswith(inside)]


def read_record(life_dir: str) -> UnitRecord | None:
    try:
        fd = os.open(os.path.join(life_dir, "unit.json"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, encoding="utf-8") as file:
            found = json.load(file)
        boot = str(found["boot_id"])
        (guardian, guardian_start), (main, main_start) = found["guardian"], found["main"]
        generation = Generation(int(found["generation"]))
        return UnitRecord(
            generation,
            str(found["scope"]),
            ProcessIdentity(int(guardian), int(guardian_start), boot),
            ProcessIdentity(int(main), int(main_start), boot),
            str(found["log_path"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def delete(life_dir: str | None, generation: Generation) -> RemoveAnswer:
    """Remove the folder of ``generation``; one that another generation wrote stays."""
    if life_dir is None or not os.path.lexists(life_dir):
        return Absent()
    record = read_record(life_dir)
    if record is not None and record.generation != generation:
        return Kept(f"the folder belongs to generation {record.generation}")
    try:
        shutil.rmtree(life_dir)
    except OSError as problem:
        return Kept(f"the folder could not be deleted: {problem.strerror}")
    return Removed()
