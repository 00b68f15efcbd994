"""A request's header block, read once: what the gateway needs from it and what an engine gets of it (R-71).

Clients on a kept connection send the same block again and again, so a connection keeps its last `Head` and reuses it
when the fields are equal; the length is held apart because it differs from body to body.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Fields = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_NOT_FORWARDED = _HOP_BY_HOP | frozenset(
    b"host content-length expect authorization x-api-key cookie accept-encoding origin referer forwarded x-real-ip "
    b"x-request-id http2-settings".split()
)
_NOT_FORWARDED_PREFIXES = (b"x-forwarded-", b"stoker-", b"sec-fetch-", b"access-control-")
_NOT_RETURNED = _HOP_BY_HOP | frozenset(
    b"server date set-cookie content-length x-request-id stoker-speaker vary".split()
)
_NOT_RETURNED_PREFIXES = (b"access-control-", b"stoker-")


@dataclass(slots=True, eq=False)
class Head:
    """Facts of one header block. ``forwarded`` is the block an engine gets, without the members the relay adds."""

    fields: Fields
    http10: bool
    hosts: tuple[bytes, ...] = ()
    origins: tuple[bytes, ...] = ()
    fetch_site: bytes = b""
    preflight_method: bytes = b""
    preflight_headers: bytes = b""
    transfer: tuple[bytes, ...] = ()
    expect: bytes = b""
    accept_encoding: bytes = b""
    client_request_id: str | None = None
    stoker: dict[bytes, list[bytes]] = field(default_factory=dict)
    forwarded: bytes = b""
    judged_by: object = None
    verdict: object = None


def read_head(fields: Fields, *, http10: bool) -> Head:
    """The facts of one block; names in ``fields`` are lower-cased already."""
    head = Head(fields, http10)
    several: dict[bytes, list[bytes]] = {}
    for name, value in fields:
        several.setdefault(name, []).append(value)
    head.hosts = tuple(several.get(b"host", ()))
    head.origins = tuple(several.get(b"origin", ()))
    head.transfer = tuple(several.get(b"transfer-encoding", ()))
    head.fetch_site = b",".join(several.get(b"sec-fetch-site", ())).strip().lower()
    head.preflight_method = b"".join(several.get(b"access-control-request-method", ()))
    head.preflight_headers = b", ".join(several.get(b"access-control-request-headers", ()))
    head.expect = b", ".join(several.get(b"expect", ())).strip().lower()
    head.accept_encoding = b",".join(several.get(b"accept-encoding", ())).lower()
    head.client_request_id = _client_id(several.get(b"x-request-id", []))
    head.stoker = {name: values for name, values in several.items() if name.startswith(b"stoker-")}
    named = connection_names(several.get(b"connection", []))
    head.forwarded = b"".join(
        b"%b: %b\r\n" % (name, value) for name, value in fields if name not in named and _is_forwarded(name)
    )
    return head


def connection_names(values: list[bytes]) -> frozenset[bytes]:
    """Fields that a ``Connection`` field declares to belong to this hop alone."""
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def returned_block(fields: Fields, *, keep_encoding: bool) -> bytes:
    """What a client gets of an engine's header fields (R-72); ours are added by the relay."""
    named = connection_names([value for name, value in fields if name == b"connection"])
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in fields
        if name not in named
        and name not in _NOT_RETURNED
        and not name.startswith(_NOT_RETURNED_PREFIXES)
        and (keep_encoding or name != b"content-encoding")
    )


def is_volatile(name: bytes) -> bool:
    """A field of an engine's answer that never reaches a client and changes from answer to answer."""
    return name == b"date"


def _is_forwarded(name: bytes) -> bool:
    return name not in _NOT_FORWARDED and not name.startswith(_NOT_FORWARDED_PREFIXES)


def _client_id(values: list[bytes]) -> str | None:
    if len(values) != 1 or not 1 <= len(values[0]) <= 128 or not all(0x21 <= byte <= 0x7E for byte in values[0]):
        return None
    return values[0].decode("ascii")
