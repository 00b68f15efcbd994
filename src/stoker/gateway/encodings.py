"""Undoing a compression that an engine was asked not to use (R-73).

Bounded, so that a small answer cannot become a huge one.
"""

from __future__ import annotations

import zlib

from stoker.errors import EngineError, ErrorCode

MAX_RATIO = 64
MAX_BYTES = 512 << 20
_FREE_BYTES = 64 << 10
_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


class Decoder:
    """One answer's decoder; raises `EngineError` for an encoding or a body it cannot take."""

    __slots__ = ("_in_bytes", "_inflate", "_out_bytes")

    def __init__(self, encoding: bytes) -> None:
        bits = _WINDOW_BITS.get(encoding)
        if bits is None:
            raise _bad(f"it is encoded as {encoding.decode('latin-1')[:20]!r}, which was not asked for")
        self._inflate = zlib.decompressobj(bits)
        self._in_bytes = self._out_bytes = 0

    def feed(self, data: bytes) -> bytes:
        self._in_bytes += len(data)
        bound = min(MAX_BYTES, max(_FREE_BYTES, MAX_RATIO * self._in_bytes))
        try:
            out = self._inflate.decompress(data, bound - self._out_bytes + 1)
        except zlib.error as exc:
            raise _bad("its compressed body is damaged") from exc
        self._out_bytes += len(out)
        if self._out_bytes > bound:
            raise _bad(f"its body grows to more than {MAX_RATIO} times its compressed size")
        return out

    def check_end(self) -> None:
        if not self._inflate.eof:
            raise _bad("its compressed body ends too early")


def is_wanted(encoding: bytes, accept_encoding: bytes) -> bool:
    """Does the client take this label as it is?"""
    weights = {}
    for item in accept_encoding.split(b","):
        name, _, weight = item.partition(b";")
        weights[name.strip()] = weight.replace(b" ", b"")
    refused = {b"q=0", b"q=0.0", b"q=0.00", b"q=0.000"}
    return weights.get(encoding, weights.get(b"*", b"q=0")) not in refused


def _bad(why: str) -> EngineError:
    return EngineError(
        ErrorCode.ENGINE_BAD_ANSWER,
        f"The engine's answer cannot be used: {why}.",
        remedy="Send the request again; if it stays so, look at the session's log.",
    )
