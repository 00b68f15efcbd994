"""The control API's two addresses: a Unix socket for this account alone, and loopback TCP (C-1, C-44)."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat

from stoker.errors import ErrorCode, StokerError, error_for

_BACKLOG = 128


def bind_unix(path: str) -> socket.socket:
    """A listening socket at ``path``, 0600 in a 0700 folder; a socket that nobody answers any more is replaced.

    Raises:
        HostError: ``bind-failed``.
    """
    try:
        _prepare_folder(os.path.dirname(path) or ".")
        _clear(path)
    except OSError as exc:
        raise _failed(path, exc.strerror or str(exc)) from exc
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.bind(path)
        os.chmod(path, 0o600)
        line.listen(_BACKLOG)
    except OSError as exc:
        line.close()
        raise _failed(path, exc.strerror or str(exc)) from exc
    line.setblocking(False)
    return line


def bind_tcp(address: str) -> socket.socket:
    """A listening socket at a loopback ``host:port``; port 0 takes a free one.

    Raises:
        UsageError: ``invalid-config`` for an address others can reach.
        HostError: ``bind-failed``.
    """
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback or not port.isdecimal():
        raise error_for(
            ErrorCode.INVALID_CONFIG,
            f"control.tcp is {address!r}; the control API listens on loopback addresses only.",
            remedy='Use an address such as "127.0.0.1:5152", or "" for none.',
            param="control.tcp",
        )
    line = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((host, int(port)))
        line.listen(_BACKLOG)
    except OSError as exc:
        line.close()
        raise _failed(address, exc.strerror or str(exc)) from exc
    line.setblocking(False)
    return line


def url_of(line: socket.socket) -> str:
    host, port, *_ = line.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def remove(path: str, inode: int) -> None:
    """Take our socket file away; one that another daemon has put there since stays."""
    try:
        if os.lstat(path).st_ino == inode:
            os.unlink(path)
    except FileNotFoundError:
        return


def _prepare_folder(folder: str) -> None:
    """Ours, and 0700: wider ones of ours are tightened, shared ones refused."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & stat.S_ISVTX:
        raise PermissionError(0, f"{folder} is not a folder of this account alone")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(folder, 0o700)


def _clear(path: str) -> None:
    """Make way for a socket: only a dead socket of ours is removed."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise FileExistsError(0, "something that is no socket of this account is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            os.unlink(path)
            return
    raise FileExistsError(0, "another daemon answers there")


def _failed(where: str, why: str) -> StokerError:
    return error_for(
        ErrorCode.BIND_FAILED,
        f"The control API cannot listen on {where}: {why}.",
        remedy="Choose another address, or stop the program that uses this one.",
    )
