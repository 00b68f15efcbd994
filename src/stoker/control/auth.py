"""Who a caller is: the account behind the Unix socket, or whoever holds the control token (C-1, C-45).

Both are administrators; there is nothing below them here. What a caller may do with it is not decided here.
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Iterable

from stoker.errors import ErrorCode, UsageError

# Where the listener's protocol leaves the uid of a Unix peer in a connection's state; absent for TCP.
PEER_UID = "stoker_peer_uid"
OPEN_PATHS = frozenset({"/livez", "/readyz"})

_UNREADABLE = -1
_LOCAL_PEERCRED = (0, 1)  # level and option on BSD and macOS, which Python does not name


def peer_uid(line: socket.socket) -> int:
    """The account at the other end of a Unix connection; -1, nobody's, if the host does not say."""
    try:
        option = getattr(socket, "SO_PEERCRED", None)
        if option is not None:
            raw = line.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i"))
            return int(struct.unpack("3i", raw)[1])
        raw = line.getsockopt(*_LOCAL_PEERCRED, struct.calcsize("2I"))
        return int(struct.unpack("2I", raw)[1])
    except (OSError, struct.error):
        return _UNREADABLE


def check_peer(uid: int, own_uid: int) -> str:
    """The caller's name for a Unix peer. Raises `UsageError` ``scope-missing`` for a foreign account."""
    if uid not in {own_uid, 0}:
        raise UsageError(
            ErrorCode.SCOPE_MISSING,
            "This socket serves the account that runs the daemon, and root.",
            remedy="Call as that account.",
        )
    return f"unix:{uid}"


def check_token(headers: Iterable[tuple[bytes, bytes]], token: str) -> str:
    """The caller's name for a TCP caller. One answer for everything that is not the token (R-106).

    Raises:
        UsageError: ``invalid-key``.
    """
    given = [value for name, value in headers if name.lower() == b"authorization"]
    if len(given) == 1 and token:
        scheme, _, key = given[0].strip().partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), token.encode()):
            return "token"
    raise UsageError(
        ErrorCode.INVALID_KEY,
        "This address needs the control token of the running daemon.",
        remedy="Send it as Authorization: Bearer, or use the control socket.",
    )
