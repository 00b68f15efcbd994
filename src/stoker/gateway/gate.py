"""Who may speak at all: Host and Origin, before anything is routed or read (R-103 to R-105).

A page in a browser can reach a loopback address under a name of its own or send requests from a foreign origin; both
are stopped here, on every route and method. Judged per header block; a verdict holds while the same settings do.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stoker.errors import ErrorCode, StokerError, UsageError
from stoker.gateway.heads import Head
from stoker.gateway.settings import GatewaySettings

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_TOKENS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:\s*,\s*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})
_EXPOSED = (
    b"access-control-expose-headers: Retry-After, X-Request-Id, Stoker-Queue-Ms, Stoker-Load-Ms, "
    b"Stoker-Generation, Stoker-Replica, Stoker-Speaker\r\n"
)


@dataclass(frozen=True, slots=True)
class Passed:
    """``cors`` are the header lines an allowed origin gets on every answer; ``origin`` is set only then."""

    cors: bytes = b""
    origin: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """A refusal. An allowed origin can still read it."""

    error: StokerError
    cors: bytes = b""


Verdict = Passed | Stopped


def judge(head: Head, target: bytes, local_address: str | None, settings: GatewaySettings) -> Verdict:
    """R-103, then R-105. An absolute ``target`` must name an allowed host as well (R-51)."""
    try:
        _check_hosts(head, target, local_address, settings)
        origin = _allowed_origin(head, settings)
    except UsageError as error:
        return Stopped(error)
    if origin is None:
        return Passed()
    cors = b"access-control-allow-origin: %b\r\nvary: Origin\r\n%b" % (origin, _EXPOSED)
    return Passed(cors, origin)


def preflight_block(head: Head, passed: Passed, methods: tuple[str, ...]) -> bytes:
    """Header lines that answer an allowed origin's preflight."""
    lines = [passed.cors, b"access-control-allow-methods: %b\r\n" % ", ".join(methods).encode()]
    if _TOKENS.fullmatch(head.preflight_headers):
        lines.append(b"access-control-allow-headers: %b\r\n" % head.preflight_headers)
    lines.append(b"access-control-max-age: 600\r\n")
    return b"".join(lines)


def _check_hosts(head: Head, target: bytes, local_address: str | None, settings: GatewaySettings) -> None:
    hosts = head.hosts
    if len(hosts) > 1 or (not hosts and not head.http10):
        raise _malformed(f"The request has {len(hosts)} Host fields; exactly one is needed.")
    names = list(hosts)
    if not target.startswith(b"/"):
        scheme, _, rest = target.partition(b"://")
        if scheme.lower() in {b"http", b"https"}:
            names.append(re.split(rb"[/?#]", rest, maxsplit=1)[0])
    for value in names:
        _check_host(value, local_address, settings)


def _check_host(value: bytes, local_address: str | None, settings: GatewaySettings) -> None:
    found = _HOST.fullmatch(value.strip())
    if found is None or (found.group(2) and int(found.group(2)) > 65535):
        raise _malformed("The Host field is not a name or address with an optional port.")
    name, port = _plain_name(found.group(1)), found.group(2)
    if name in _LOOPBACK or (local_address and name == _plain_name(local_address.encode())):
        return
    with_port = f"{name}:{port.decode()}" if port else name
    trusted = {host.lower().removesuffix(".") for host in settings.trusted_hosts}
    if name in trusted or with_port in trusted:
        return
    raise UsageError(
        ErrorCode.HOST_NOT_ALLOWED,
        f"The host {name!r} is not one this gateway answers to.",
        remedy="Use localhost, or add the name to gateway.trusted_hosts.",
        details={"setting": "gateway.trusted_hosts"},
    )


def _plain_name(value: bytes) -> str:
    text = value.decode("ascii", "replace").lower().removesuffix(".")
    bare = text.removeprefix("[").removesuffix("]")
    if ":" in bare:
        try:
            return str(ipaddress.IPv6Address(bare))
        except ValueError:
            return bare
    return bare


def _allowed_origin(head: Head, settings: GatewaySettings) -> bytes | None:
    """The one allowed foreign origin, None for none or the listener's own; raises for any other."""
    if not head.origins:
        if head.fetch_site in _FOREIGN_SITES:
            raise _foreign(f"a {head.fetch_site.decode()} request without an allowed origin")
        return None
    if len(head.origins) > 1:
        raise _foreign(f"{len(head.origins)} Origin fields")
    origin = head.origins[0]
    if origin.decode("latin-1") in settings.cors_origins and origin not in {b"null", b"*"}:
        return origin
    own = bool(head.hosts) and origin.lower() == b"http://" + head.hosts[0].strip().lower()
    if own and head.fetch_site not in _FOREIGN_SITES:
        return None
    raise _foreign("a foreign origin")


def _foreign(what: str) -> UsageError:
    return UsageError(
        ErrorCode.ORIGIN_NOT_ALLOWED,
        f"The request comes with {what} and was not carried out.",
        remedy="Add the page's origin (scheme, host and port) to gateway.cors_origins.",
        details={"setting": "gateway.cors_origins"},
    )


def _malformed(message: str) -> UsageError:
    return UsageError(ErrorCode.MALFORMED_REQUEST, message, remedy="Send one Host field with a plain name.")
