"""A compression that was not asked for is undone within bounds or refused (R-73)."""

from __future__ import annotations

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import EngineError
from stoker.gateway.encodings import Decoder, is_wanted

PACK = {b"gzip": gzip.compress, b"x-gzip": gzip.compress, b"deflate": zlib.compress}


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2100), max_size=6), st.sampled_from(sorted(PACK)))
def test_a_body_comes_back_whole_at_any_cuts(body: bytes, cuts: list[int], encoding: bytes) -> None:
    packed = PACK[encoding](body)
    borders = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    decoder = Decoder(encoding)
    assert b"".join(decoder.feed(packed[a:b]) for a, b in itertools.pairwise(borders)) == body
    decoder.check_end()


def test_a_small_answer_cannot_become_a_huge_one() -> None:
    packed = gzip.compress(b"0" * (64 << 20))
    decoder = Decoder(b"gzip")
    sizes: list[int] = []

    def unpack() -> None:
        for at in range(0, len(packed), 1024):
            sizes.append(len(decoder.feed(packed[at : at + 1024])))  # noqa: PERF401 - those before the end count

    with pytest.raises(EngineError, match="64 times"):
        unpack()
    assert sum(sizes) <= 1 << 20


def test_a_small_answer_may_be_well_compressed() -> None:
    body = b"0" * (60 << 10)
    assert Decoder(b"gzip").feed(gzip.compress(body)) == body


def test_damage_and_an_early_end_are_told() -> None:
    packed = gzip.compress(b"body" * 50)
    with pytest.raises(EngineError, match="damaged"):
        Decoder(b"gzip").feed(b"not gzip at all")
    with pytest.raises(EngineError, match="damaged"):
        Decoder(b"gzip").feed(packed[:-8] + b"\0" * 8)
    short = Decoder(b"gzip")
    short.feed(packed[:-1])
    with pytest.raises(EngineError, match="too early"):
        short.check_end()


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"", b"\xff" * 99])
def test_an_encoding_that_is_not_known_is_refused_shortly(encoding: bytes) -> None:
    with pytest.raises(EngineError) as caught:
        Decoder(encoding)
    assert len(caught.value.message) < 160


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"gzip", True), (b"br, gzip;q=0.5", True), (b"*", True), (b"x,*;q=0.1", True), (b"", False), (b"br", False),
        (b"gzip;q=0", False), (b"gzip; q=0.0", False), (b"gzip ;q = 0.000", False), (b"xgzip", False), (b"*;q=0", False),
        (b"*, gzip;q=0", False), (b"gzip;q=0, *", False),
    ],
)  # fmt: skip
def test_a_client_takes_the_label_it_named_and_no_other(accept: bytes, wanted: bool) -> None:
    assert is_wanted(b"gzip", accept) is wanted
