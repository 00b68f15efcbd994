"""Who may speak, judged on header blocks alone (R-103 to R-105; BR-1001). The routes are driven over sockets elsewhere."""

from __future__ import annotations

import pytest

from stoker.errors import ErrorCode
from stoker.gateway.gate import Passed, Stopped, Verdict, judge, preflight_block
from stoker.gateway.heads import Fields, read_head
from stoker.gateway.settings import GatewaySettings

SETTINGS = GatewaySettings(
    trusted_hosts=("box.example", "Pinned.example:5151", "dotted.example."),
    cors_origins=("https://app.example", "http://localhost:3000", "null"),
)


def judged(
    *fields: tuple[bytes, bytes], target: bytes = b"/livez", http10: bool = False, local: str | None = None
) -> Verdict:
    block: Fields = list(fields)
    return judge(read_head(block, http10=http10), target, local, SETTINGS)


def code(verdict: Verdict) -> ErrorCode | None:
    return verdict.error.code if isinstance(verdict, Stopped) else None


@pytest.mark.parametrize(
    "host",
    [
        b"localhost", b"LOCALHOST:1", b"localhost.", b"LocalHost.:65535", b"127.0.0.1", b"127.0.0.1:80", b"[::1]", b"[::1]:5151",
        b"[0:0:0:0:0:0:0:1]", b"box.example", b"BOX.EXAMPLE.:9", b"pinned.example:5151", b"dotted.example", b" localhost ",
    ],
)  # fmt: skip
def test_br_1001_own_and_trusted_hosts_pass(host: bytes) -> None:
    assert code(judged((b"host", host))) is None


@pytest.mark.parametrize(
    "host",
    [
        b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example", b"evil-localhost", b"127.0.0.2", b"127.1",
        b"2130706433", b"0.0.0.0", b"[::]", b"[::ffff:127.0.0.1]", b"box.example.evil", b"xbox.example", b"pinned.example",
        b"pinned.example:5152", b"localhost..", b"192.168.0.9",
    ],
)  # fmt: skip
def test_br_1001_other_hosts_are_403(host: bytes) -> None:
    assert code(judged((b"host", host))) is ErrorCode.HOST_NOT_ALLOWED


@pytest.mark.parametrize(
    "host",
    [
        b"", b"localhost@evil.example", b"user:pw@localhost", b"localhost:", b"localhost:x", b"localhost:99999",
        b"localhost:-1", b"localhost:80:80", b"local host", b"localhost/x", b"localhost, localhost", b"[::1", b"\xff",
    ],
)  # fmt: skip
def test_br_1001_a_host_that_is_none_is_400(host: bytes) -> None:
    assert code(judged((b"host", host))) is ErrorCode.MALFORMED_REQUEST


def test_br_1001_the_number_of_hosts_is_right_for_the_version() -> None:
    one = (b"host", b"localhost")
    assert code(judged()) is ErrorCode.MALFORMED_REQUEST
    assert code(judged(one, one)) is ErrorCode.MALFORMED_REQUEST
    assert code(judged(http10=True)) is None
    assert code(judged(one, http10=True)) is None
    assert code(judged(one, one, http10=True)) is ErrorCode.MALFORMED_REQUEST


def test_the_address_a_connection_came_in_on_is_allowed() -> None:
    assert code(judged((b"host", b"192.168.0.9:5151"), local="192.168.0.9")) is None
    assert code(judged((b"host", b"[fe80::0:1]"), local="fe80::1")) is None
    assert code(judged((b"host", b"192.168.0.10"), local="192.168.0.9")) is ErrorCode.HOST_NOT_ALLOWED


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"http://localhost/livez", None),
        (b"HTTP://BOX.example:80/x?y", None),
        (b"https://127.0.0.1", None),
        (b"http://evil.example/livez", ErrorCode.HOST_NOT_ALLOWED),
        (b"http://evil.example?@localhost/", ErrorCode.HOST_NOT_ALLOWED),
        (b"http://evil.example#localhost", ErrorCode.HOST_NOT_ALLOWED),
        (b"http://localhost@evil.example/", ErrorCode.MALFORMED_REQUEST),
        (b"http:///livez", ErrorCode.MALFORMED_REQUEST),
    ],
)
def test_br_1001_an_absolute_target_names_an_allowed_host_too(target: bytes, expected: ErrorCode | None) -> None:
    assert code(judged((b"host", b"localhost"), target=target)) is expected
    assert code(judged((b"host", b"evil.example"), target=target)) is not None


HOST = (b"host", b"localhost:5151")


@pytest.mark.parametrize("origin", [b"https://app.example", b"http://localhost:3000"])
@pytest.mark.parametrize("site", [None, b"cross-site", b"same-site", b"same-origin", b"none"])
def test_an_allowed_origin_is_echoed_exactly(origin: bytes, site: bytes | None) -> None:
    fields = [HOST, (b"origin", origin)] + ([(b"sec-fetch-site", site)] if site else [])
    verdict = judged(*fields)
    assert isinstance(verdict, Passed)
    assert verdict.origin == origin
    assert b"access-control-allow-origin: %b\r\n" % origin in verdict.cors
    assert b"vary: Origin\r\n" in verdict.cors
    assert b"credentials" not in verdict.cors
    for name in (b"Retry-After", b"X-Request-Id", b"Stoker-Queue-Ms"):
        assert name in verdict.cors


@pytest.mark.parametrize(
    "origin",
    [
        b"null", b"*", b"", b"https://app.example:444", b"http://app.example", b"https://evil.app.example",
        b"https://app.example.evil", b"https://app.example/", b"HTTPS://APP.EXAMPLE", b"http://localhost:3001",
        b"https://localhost:5151", b"http://localhost", b"http://127.0.0.1:5151",
    ],
)  # fmt: skip
def test_br_1001_origins_are_compared_whole_and_null_is_foreign(origin: bytes) -> None:
    verdict = judged(HOST, (b"origin", origin))
    assert code(verdict) is ErrorCode.ORIGIN_NOT_ALLOWED
    assert isinstance(verdict, Stopped)
    assert verdict.cors == b""


def test_the_listeners_own_pages_and_tools_without_an_origin_pass_without_allowance() -> None:
    for fields in ([HOST], [HOST, (b"origin", b"http://localhost:5151")], [HOST, (b"sec-fetch-site", b"same-origin")]):
        assert judged(*fields) == Passed()


def test_br_1001_a_cross_site_request_without_an_allowed_origin_is_stopped() -> None:
    for site in (b"cross-site", b"same-site", b"CROSS-SITE"):
        assert code(judged(HOST, (b"sec-fetch-site", site))) is ErrorCode.ORIGIN_NOT_ALLOWED
        own = (b"origin", b"http://localhost:5151")
        assert code(judged(HOST, own, (b"sec-fetch-site", site))) is ErrorCode.ORIGIN_NOT_ALLOWED
    two = (b"origin", b"https://app.example")
    assert code(judged(HOST, two, two)) is ErrorCode.ORIGIN_NOT_ALLOWED


def test_a_preflight_repeats_only_names_that_are_names() -> None:
    asked = [HOST, (b"origin", b"https://app.example"), (b"access-control-request-headers", b"authorization, x-a")]
    head = read_head(asked, http10=False)
    verdict = judge(head, b"/", None, SETTINGS)
    assert isinstance(verdict, Passed)
    block = preflight_block(head, verdict, ("GET", "HEAD"))
    assert b"access-control-allow-methods: GET, HEAD\r\n" in block
    assert b"access-control-allow-headers: authorization, x-a\r\n" in block
    head.preflight_headers = b"a, b: c"
    assert b"allow-headers" not in preflight_block(head, verdict, ("GET",))


def test_nothing_is_a_wildcard() -> None:
    open_wide = GatewaySettings(trusted_hosts=("*",), cors_origins=("*",))
    for fields in (
        [(b"host", b"evil.example")],
        [HOST, (b"origin", b"*")],
        [HOST, (b"origin", b"http://evil.example")],
    ):
        assert isinstance(judge(read_head(fields, http10=False), b"/", None, open_wide), Stopped)
