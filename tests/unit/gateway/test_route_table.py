"""Which targets mean a route (R-51, R-92; BR-601)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.gateway.routes import RouteKind, find_route

KINDS = {
    b"/": RouteKind.ROOT,
    b"/livez": RouteKind.LIVE,
    b"/readyz": RouteKind.READY,
    b"/metrics": RouteKind.METRICS,
    b"/v1/models": RouteKind.MODELS,
    b"/v1/chat/completions": RouteKind.WORK,
    b"/v1/completions": RouteKind.WORK,
    b"/v1/embeddings": RouteKind.WORK,
}


@pytest.mark.parametrize("path", KINDS)
def test_a_path_is_found_plain_encoded_with_a_query_and_absolute(path: bytes) -> None:
    encoded = b"/" + b"".join(b"%%%02x" % byte for byte in path[1:])
    for target in (
        path,
        encoded,
        path + b"?a=b",
        path + b"?",
        b"http://localhost:1" + path,
        b"HTTPS://h" + path + b"?x",
    ):
        found = find_route(target)
        assert found is not None, target
        assert (found.kind, found.path) == (KINDS[path], path.decode())


def test_work_takes_post_and_everything_else_is_only_read() -> None:
    for path, kind in KINDS.items():
        found = find_route(path)
        assert found is not None
        assert found.methods == (("POST",) if kind is RouteKind.WORK else ("GET", "HEAD"))


@pytest.mark.parametrize(
    "target",
    [
        b"", b"*", b"livez", b"//livez", b"/livez/", b"/LIVEZ", b"/./livez", b"/x/../livez", b"/livez%2f", b"/livez%00",
        b"/livez%0a", b"/livez%", b"/livez%2", b"/livez%zz", b"/%6cive%7", b"/livez;x", b"/livez#", b"/v1/models%2F",
        b"/v1/models/", b"/v1//models", b"/v1/models/..", b"/v1/models/a//b", b"/v1/models/%2e%2e/x", b"/v1/models/a/.",
        b"/v1/models%ff", b"/v2/models", b"/v1", b"ftp://localhost/livez", b"localhost:80", b"/v1/chat/completions/x",
        b"/%2Flivez", b"/%252Flivez", b"/v1/models/a%00b",
    ],
)  # fmt: skip
def test_what_is_spelled_otherwise_means_nothing(target: bytes) -> None:
    found = find_route(target)
    assert found is None or (found.kind is RouteKind.MODEL and b"%" in target)


def test_an_absolute_target_without_a_path_is_the_root() -> None:
    found = find_route(b"http://localhost")
    assert found is not None
    assert found.kind is RouteKind.ROOT


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        (b"m", "m"),
        (b"aaa/llava:13b", "aaa/llava:13b"),
        (b"aaa%2Fllava:13b", "aaa/llava:13b"),
        (b"aaa%2fllava%3A13b", "aaa/llava:13b"),
        (b"a%20b", "a b"),
        (b"a%252Fb", "a%2Fb"),
        (b"100%25", "100%"),
        (b"%E5%8C%97", "北"),
        (b"a+b", "a+b"),
        (b"a?x=/y", "a"),
    ],
)
def test_br_601_a_name_is_decoded_once(spelling: bytes, name: str) -> None:
    found = find_route(b"/v1/models/" + spelling)
    assert found is not None
    assert found.names[0] == name


def test_br_601_a_name_with_a_percent_may_stand_as_it_is() -> None:
    for spelling in (b"a%2Fb", b"100%"):
        found = find_route(b"/v1/models/" + spelling)
        assert found is not None
        assert spelling.decode() in found.names


@given(st.binary(max_size=40))
def test_any_target_ends_in_a_route_or_in_none(target: bytes) -> None:
    for prefix in (b"", b"/", b"/v1/models/", b"http://"):
        found = find_route(prefix + target)
        assert found is None or found.kind in RouteKind


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20))
def test_br_601_every_name_without_odd_segments_is_found_encoded(name: str) -> None:
    encoded = b"".join(b"%%%02X" % byte for byte in name.encode())
    found = find_route(b"/v1/models/" + encoded)
    if any(segment in {"", ".", ".."} for segment in name.split("/")):
        assert found is None or name not in found.names
    else:
        assert found is not None
        assert found.names[0] == name
