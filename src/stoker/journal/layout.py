"""The journal's file: private, on a disk where it is safe, of a schema we know, or set aside (S-83, S-87).

A damaged file is renamed, never deleted. The scope and the next generation also stand in a small file beside it,
because a new journal must neither take another name for the same folder nor use a generation twice (S-2).
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ErrorCode, HostError, StoreError
from stoker.journal.private import ForeignPathError, private_file, private_folder, write_whole
from stoker.journal.records import text_or_bytes

# File systems where the memory a write-ahead log shares, or its locks, are not one for all who open it.
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p", "afs", "afpfs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.davfs2", "fuse.gcsfuse",
        "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
        "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "webdav",
    }
)  # fmt: skip

_SCHEMA = Path(__file__).with_name("schema")
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a folder is called and which generation it may use next, as far as the small file tells."""

    scope: str
    next_generation: int


def open_database(path: str, wall: float) -> tuple[sqlite3.Connection, str | None]:
    """The connection, and the path of a damaged file that was set aside. Raises `HostError`, `StoreError`."""
    folder = os.path.dirname(path)
    try:
        private_folder(folder)
        refuse_network(folder)
        private_file(path)
        for beside in (f"{path}-wal", f"{path}-shm"):
            if os.path.lexists(beside):
                private_file(beside)
    except OSError as exc:
        raise _unusable(path, str(exc)) from exc
    connection = _connect(path)
    set_aside = None
    try:
        if not _is_sound(connection):
            connection.close()
            set_aside = _set_aside(path, wall)
            connection = _connect(path)
        _prepare(connection)
        migrate(connection)
    except sqlite3.Error as exc:
        connection.close()
        raise _unusable(path, str(exc)) from exc
    except StoreError:
        connection.close()
        raise
    return connection, set_aside


def newest_schema() -> int:
    return max(number for number, _ in _files())


def migrate(connection: sqlite3.Connection) -> None:
    """Apply the schema files this journal has not seen, all in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        known = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]
        found = 0
        if known:
            row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
            found = int(row[0]) if row else 0
        newest = newest_schema()
        if found > newest:
            raise StoreError(
                ErrorCode.STORE_TOO_NEW,
                f"The journal has schema {found}; this Stoker knows schemas up to {newest}.",
                remedy="Start the newer Stoker that wrote it, or point daemon.data_dir at another folder.",
                details={"found": found, "known": newest},
            )
        for number, script in _files():
            if number > found:
                for statement in _statements(script):
                    connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (str(newest),))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _files() -> list[tuple[int, str]]:
    found = sorted(entry for entry in os.listdir(_SCHEMA) if entry.endswith(".sql"))
    return [(int(name.split("_")[0]), (_SCHEMA / name).read_text(encoding="utf-8")) for name in found]


def _statements(script: str) -> list[str]:
    statements, pending = [], ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


def _connect(path: str) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=True)
    except sqlite3.Error as exc:
        raise _unusable(path, str(exc)) from exc
    connection.row_factory = sqlite3.Row
    connection.text_factory = text_or_bytes
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"its file system allows journal mode {mode} only, not a write-ahead log")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")


def _is_sound(connection: sqlite3.Connection) -> bool:
    try:
        return [row[0] for row in connection.execute("PRAGMA quick_check(1)")] == ["ok"]
    except sqlite3.DatabaseError as exc:
        if (getattr(exc, "sqlite_errorcode", 0) & 0xFF) in _CORRUPT:
            return False
        raise


def _set_aside(path: str, wall: float) -> str:
    kept = f"{path}.damaged-{int(wall)}"
    number = 1
    while os.path.lexists(kept):
        number += 1
        kept = f"{path}.damaged-{int(wall)}-{number}"
    for suffix in ("-wal", "-shm", ""):
        if os.path.lexists(path + suffix):
            os.rename(path + suffix, kept + suffix)
    private_file(path)
    return kept


# -- identity ------------------------------------------------------------------------------------------------------


def read_identity(folder: str) -> Identity | None:
    """The small file's word; None when it is missing or says nothing."""
    try:
        with open(os.path.join(folder, "scope"), encoding="utf-8") as file:
            body = json.load(file)
        scope, next_generation = body["scope"], body["next_generation"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not is_scope(scope) or not isinstance(next_generation, int):
        return None
    return Identity(scope, next_generation)


def write_identity(folder: str, identity: Identity) -> None:
    body = json.dumps({"scope": identity.scope, "next_generation": identity.next_generation})
    write_whole(os.path.join(folder, "scope"), body + "\n")


def is_scope(text: object) -> bool:
    return isinstance(text, str) and len(text) == 8 and set(text) <= set("0123456789abcdef")


def new_scope() -> str:
    return secrets.token_hex(4)


# -- where it lies -------------------------------------------------------------------------------------------------


def refuse_network(folder: str) -> None:
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise ForeignPathError(f"{folder} lies on the network file system {kind}, where a write-ahead log is not safe")


def file_system_of(folder: str) -> str:
    """The kind of file system ``folder`` lies on; empty if the machine does not tell."""
    real = os.path.realpath(folder)
    found, kind = "", ""
    for place, its_kind in _mounts():
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        # Of several mounts on one place the last one listed covers the others.
        if inside and len(place) >= len(found):
            found, kind = place, its_kind
    return kind.lower()


def _mounts() -> list[tuple[str, str]]:
    if sys.platform != "linux":
        import psutil  # only here: Linux answers without it

        return [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [parse_mount(line) for line in file]


def parse_mount(line: str) -> tuple[str, str]:
    """Mount point and kind of one line of mountinfo; characters like a space stand there as octal codes."""
    head, _, tail = line.partition(" - ")
    place = head.split(" ")[4]
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(code, character)
    return place, tail.split(" ")[0]


def _unusable(path: str, why: str) -> HostError:
    return HostError(
        ErrorCode.JOURNAL_UNWRITABLE,
        f"The journal {path} cannot be opened: {why}.",
        remedy="Set daemon.data_dir to a private folder on a local disk with free space.",
    )
