"""What passes between client and engine, and what belongs to one hop or one secret alone (R-71, R-72)."""

from __future__ import annotations

import pytest

from stoker.gateway.heads import Fields, read_head, returned_block

CREDENTIALS = b"authorization x-api-key cookie proxy-authorization".split()
HOP = b"connection keep-alive proxy-authenticate proxy-connection te trailer transfer-encoding upgrade".split()
OURS = b"host content-length expect accept-encoding x-request-id http2-settings".split()
TRACES = b"origin referer forwarded x-forwarded-for x-forwarded-proto x-forwarded-host x-real-ip".split()
STEERING = b"stoker-wait stoker-anything sec-fetch-site access-control-request-method".split()


def names(block: bytes) -> list[bytes]:
    return [line.split(b":")[0] for line in block.split(b"\r\n") if line]


@pytest.mark.parametrize("name", [*CREDENTIALS, *HOP, *OURS, *TRACES, *STEERING])
def test_an_engine_never_gets(name: bytes) -> None:
    head = read_head([(name, b"secret-value"), (b"x-kept", b"1")], http10=False)
    assert head.forwarded == b"x-kept: 1\r\n"


def test_fields_named_in_connection_stop_here_in_any_spelling() -> None:
    fields = [
        (b"connection", b"close, X-Hop"),
        (b"connection", b" x-other ,,"),
        (b"x-hop", b"1"),
        (b"x-other", b"2"),
        (b"x-kept", b"3"),
    ]
    assert read_head(fields, http10=False).forwarded == b"x-kept: 3\r\n"
    assert returned_block(fields, keep_encoding=True) == b"x-kept: 3\r\n"


def test_everything_else_passes_in_order_with_its_bytes() -> None:
    fields: Fields = [
        (b"x-a", b"\xe9 \xff"),
        (b"content-type", b"application/json"),
        (b"x-a", b"again"),
        (b"accept", b"*/*"),
    ]
    assert read_head(fields, http10=False).forwarded == (
        b"x-a: \xe9 \xff\r\ncontent-type: application/json\r\nx-a: again\r\naccept: */*\r\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        *HOP,
        *b"server date set-cookie content-length x-request-id stoker-speaker stoker-generation "
        b"access-control-allow-origin access-control-allow-credentials access-control-expose-headers".split(),
    ],
)
def test_a_client_never_gets_from_an_engine(name: bytes) -> None:
    assert returned_block([(name, b"v"), (b"x-kept", b"1")], keep_encoding=True) == b"x-kept: 1\r\n"


def test_the_encoding_goes_when_we_decode() -> None:
    fields = [(b"content-encoding", b"gzip"), (b"content-type", b"a/b")]
    assert names(returned_block(fields, keep_encoding=True)) == [b"content-encoding", b"content-type"]
    assert names(returned_block(fields, keep_encoding=False)) == [b"content-type"]


def test_the_facts_of_a_block() -> None:
    head = read_head(
        [
            (b"host", b"a"),
            (b"host", b"b"),
            (b"origin", b"http://x"),
            (b"sec-fetch-site", b" Cross-Site "),
            (b"expect", b"100-Continue"),
            (b"accept-encoding", b"GZIP, br"),
            (b"transfer-encoding", b"chunked"),
            (b"stoker-wait", b"5"),
            (b"stoker-wait", b"6"),
        ],
        http10=True,
    )
    assert head.hosts == (b"a", b"b")
    assert head.origins == (b"http://x",)
    assert head.fetch_site == b"cross-site"
    assert head.expect == b"100-continue"
    assert head.accept_encoding == b"gzip, br"
    assert head.transfer == (b"chunked",)
    assert head.stoker == {b"stoker-wait": [b"5", b"6"]}
    assert head.http10


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ([b"abc-1"], "abc-1"),
        ([], None),
        ([b"a", b"b"], None),
        ([b""], None),
        ([b"a" * 129], None),
        ([b"a b"], None),
        ([b"\xe9"], None),
    ],
)
def test_a_clients_request_id_is_short_plain_text_or_nothing(values: list[bytes], known: str | None) -> None:
    assert read_head([(b"x-request-id", value) for value in values], http10=False).client_request_id == known
