"""Which Host and Origin may speak to the TCP listener, judged before anything is routed or read (R-103, R-105).

A web page can reach a loopback address under a name of its own, or send requests from a foreign origin; both are
stopped here, on every route and method. Pure: header fields in, a `UsageError` or nothing out.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from stoker.errors import ErrorCode, UsageError

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_OURS = frozenset({"localhost", "127.0.0.1", "::1"})
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})


def check(headers: Iterable[tuple[bytes, bytes]], *, http10: bool = False) -> None:
    """Raise for a request that a browser may have been talked into, or that names another host.

    Raises:
        UsageError: ``malformed-request``, ``host-not-allowed``, ``origin-not-allowed``.
    """
    fields: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), []).append(value.strip())
    hosts = fields.get(b"host", [])
    if len(hosts) > 1 or (not hosts and not http10):
        raise _malformed(f"The request has {len(hosts)} Host fields; exactly one is needed.")
    for host in hosts:
        _check_host(host)
    _check_origin(fields.get(b"origin", []), fields.get(b"sec-fetch-site", []), hosts)


def _check_host(value: bytes) -> None:
    found = _HOST.fullmatch(value)
    if found is None or (found[2] and int(found[2]) > 65535):
        raise _malformed("The Host field is not a name or address with an optional port.")
    if _plain(found[1]) not in _OURS:
        raise UsageError(
            ErrorCode.HOST_NOT_ALLOWED,
            f"The host {_plain(found[1])[:80]!r} is not one this listener answers to.",
            remedy="Use localhost or 127.0.0.1; gateway.trusted_hosts opens the gateway alone.",
        )


def _plain(host: bytes) -> str:
    """A host without brackets, capitals and one dot at its end; addresses in their shortest spelling."""
    text = host.decode("ascii").lower().removesuffix(".").strip("[]")
    if ":" not in text:
        return text
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        return text


def _check_origin(origins: list[bytes], sites: list[bytes], hosts: list[bytes]) -> None:
    """An origin is ours only if it names this very listener; ``null`` never is."""
    if not origins:
        if any(site.lower() in _FOREIGN_SITES for site in sites):
            raise _foreign("comes from another site and names no origin of ours")
        return
    own = b"http://" + hosts[0].lower() if hosts else None
    is_own = len(origins) == 1 and own is not None and origins[0].lower() == own
    if not is_own or any(site.lower() in _FOREIGN_SITES for site in sites):
        raise _foreign("comes from a foreign origin")


def _foreign(what: str) -> UsageError:
    return UsageError(
        ErrorCode.ORIGIN_NOT_ALLOWED,
        f"The request {what} and was not carried out.",
        remedy="Only pages of this listener itself may call it from a browser.",
    )


def _malformed(message: str) -> UsageError:
    return UsageError(ErrorCode.MALFORMED_REQUEST, message, remedy="Send one Host field with a plain name.")
