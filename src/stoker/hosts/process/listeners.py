"""Whose listener is it: sockets that could accept for an endpoint, matched with the descriptors of members (S-45).

A wildcard and a dual-stack socket count as well as an exact one, and so does every socket of a shared port: the
kernel, not we, picks who gets the connection. Blocking reads of ``/proc``.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stoker.hosts.process.guardian import read_stat
from stoker.ports.units import Endpoint

_LISTEN = "0A"
_ACCEPTS = 0x10000


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket: its inode and, where the system tells, the user that opened it."""

    inode: int
    uid: int | None = None


def listeners(endpoint: Endpoint) -> tuple[Listener, ...]:
    """Every socket that could accept a connection to ``endpoint``."""
    if endpoint.socket is not None:
        return tuple(_unix(endpoint.socket))
    wanted = ipaddress.ip_address(endpoint.host)
    return tuple(
        listener
        for table in ("tcp", "tcp6")
        for address, listener in _tcp(table, endpoint.port)
        if _accepts(address, wanted)
    )


def owned(endpoint: Endpoint, pids: Iterable[int]) -> bool | None:
    """True: all are held by ``pids``; False: one is foreign; None: nobody listens.

    ``pids`` is read only once somebody listens, and only until every socket has been found.
    A member that hides its descriptors leaves sockets of its own user unattributed: then the token decides, not we.
    """
    found = listeners(endpoint)
    if not found:
        return None
    inodes: set[int] = set()
    hidden_uids: set[int] = set()
    for pid in pids:
        try:
            inodes.update(_sockets(pid))
        except PermissionError:
            hidden_uids.update(_uid(pid))
        if all(one.inode in inodes for one in found):
            return True
    return all(one.inode in inodes or one.uid in hidden_uids for one in found)


def holder(port: int) -> str:
    """Who listens on ``port``, for a person: ``pid 7 (nginx)``, or nothing where the system does not tell."""
    inodes = {listener.inode for table in ("tcp", "tcp6") for _, listener in _tcp(table, port)}
    if not inodes:
        return ""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            if inodes & set(_sockets(pid)):
                return f"pid {pid} ({read_stat(pid)[0]})"
        except OSError:
            continue
    return ""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _accepts(bound: Address, wanted: Address) -> bool:
    plain = bound.ipv4_mapped or bound if isinstance(bound, ipaddress.IPv6Address) else bound
    if plain == wanted:
        return True
    return plain.is_unspecified and (plain.version == wanted.version or bound.version == 6)


def _tcp(table: str, port: int) -> Iterator[tuple[Address, Listener]]:
    """Listeners on ``port``. The table also holds every connection of the machine: most rows are never taken apart."""
    mark = f":{port:04X}"
    try:
        with open(f"/proc/net/{table}") as file:
            rows = [line.split() for line in file if mark in line]
    except OSError:
        return
    for row in rows:
        if row[3] == _LISTEN and row[1].endswith(mark):
            yield _address(row[1].removesuffix(mark)), Listener(int(row[9]), int(row[7]))


def _address(text: str) -> Address:
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":  # the kernel prints words of 32 bits in its own byte order
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return ipaddress.ip_address(raw)


def _unix(path: str) -> Iterator[Listener]:
    try:
        with open("/proc/net/unix", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(maxsplit=7) for line in file.readlines()[1:]]
    except OSError:
        return
    for row in rows:
        if len(row) == 8 and row[7] == path and int(row[3], 16) & _ACCEPTS:
            yield Listener(int(row[6]))


def _sockets(pid: int) -> Iterator[int]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _uid(pid: int) -> Iterator[int]:
    try:
        with open(f"/proc/{pid}/status") as file:
            yield from (int(line.split()[1]) for line in file if line.startswith("Uid:"))
    except OSError:
        return
