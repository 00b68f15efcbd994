"""Which port: random offset, ours skipped, test binds on every address that could be somebody else's (S-44).

The test sockets never listen and are closed before the answer, so they cannot be met by anybody. A port the user fixed
is tested and never changed.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Container

_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, ""), (socket.AF_INET6, ""))
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def is_free(port: int, *, lingering_is_free: bool = False) -> bool:
    """Can ``port`` be bound on 127.0.0.1, ::1 and both wildcards? Addresses this machine lacks do not count.

    ``lingering_is_free``: connections of an engine that ended linger for a minute; for a fixed port they hold nothing.
    """
    for family, host in _ADDRESSES:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if lingering_is_free:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as refused:
            if refused.errno not in _NO_SUCH_ADDRESS:
                return False
    return True


def choose_port(port_range: tuple[int, int], held: Container[int]) -> int | None:
    """A free port of the range, both ends included; None if there is none."""
    first, last = port_range
    count = last - first + 1
    offset = random.randrange(count)  # noqa: S311 - spreads attempts, hides nothing
    for step in range(count):
        port = first + (offset + step) % count
        if port not in held and is_free(port):
            return port
    return None
