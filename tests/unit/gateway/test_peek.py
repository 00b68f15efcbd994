"""Reading a body without taking it apart (R-60, R-62; BR-605)."""

from __future__ import annotations

import msgspec
import pytest

from stoker.errors import ErrorCode, StokerError
from stoker.gateway.peek import MODEL_NAME_BYTES, DecodedMembers, peek


def refused(body: bytes | memoryview) -> StokerError:
    with pytest.raises(StokerError) as caught:
        peek(body)
    return caught.value


def test_what_the_gateway_needs_is_read_and_nothing_else_is_decoded() -> None:
    got = peek(b'{"messages": [1.10, "\\u003c"], "model": "a/b:c", "stream": true, "n": 2}')
    assert (got.model, got.stream, got.choices, got.include_usage) == ("a/b:c", True, 2, False)
    assert bytes(got.members["messages"]) == b'[1.10, "\\u003c"]'


def test_an_escaped_name_means_what_it_says() -> None:
    assert peek(b'{"model":"\\u0061\\/\xe5\x8c\x97 %"}').model == "a/北 %"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [(b'{"include_usage":true}', True), (b'{"include_usage":false}', False), (b"{}", False), (b"null", False)],
)
def test_usage_is_wanted_only_in_a_stream_that_says_so(options: bytes, wanted: bool) -> None:
    assert peek(b'{"model":"m","stream":true,"stream_options":%b}' % options).include_usage is wanted
    assert peek(b'{"model":"m","stream":false,"stream_options":%b}' % options).include_usage is False


@pytest.mark.parametrize("value", [b"null", b"1"])
def test_absent_and_null_are_the_default(value: bytes) -> None:
    assert peek(b'{"model":"m","stream":null,"n":%b}' % value).choices == 1


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b'{"model":"m",}', 13),
        (b'{"model":"m"} x', 15),
        (b'{"model":"m"', 12),
        (b"\xef\xbb\xbf{}", 0),
        (b"", 0),
        (b"[]", 0),
        (b'"m"', 0),
    ],
)
def test_br_605_what_is_no_json_object_is_refused_with_its_place(body: bytes, offset: int) -> None:
    error = refused(body)
    assert error.code is ErrorCode.INVALID_JSON
    assert error.details["offset"] == offset
    assert f"byte {offset}" in error.message


def test_br_605_depth_that_no_decoder_takes_is_refused_and_crashes_nothing() -> None:
    deep = b'{"model":"m","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert refused(deep).code is ErrorCode.INVALID_JSON
    mixed = b'{"model":"m","x":' + b'{"a":[' * 100_000 + b"]}" * 100_000 + b"}"
    assert refused(mixed).code is ErrorCode.INVALID_JSON


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "model"),
        (b'{"model":null}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":"\xff"}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"m","stream":1}', "stream"),
        (b'{"model":"m","stream":"true"}', "stream"),
        (b'{"model":"m","n":true}', "n"),
        (b'{"model":"m","n":1.5}', "n"),
        (b'{"model":"m","n":-1}', "n"),
        (b'{"model":"m","stream":true,"stream_options":true}', None),
        (b'{"model":"m","stream":true,"stream_options":3}', "stream_options"),
        (b'{"model":"m","stream":true,"stream_options":{"include_usage":"x"}}', "stream_options"),
    ],
)
def test_a_member_of_the_wrong_form_is_named(body: bytes, param: str | None) -> None:
    if param is None:
        assert peek(body).include_usage is True
        return
    error = refused(body)
    assert error.param == param
    assert error.code in {ErrorCode.INVALID_PARAMETER, ErrorCode.INVALID_JSON}


def test_br_605_a_lone_surrogate_is_a_clean_400() -> None:
    for body in (b'{"model":"\\ud800"}', b'{"model":"m","x":"\\udc00 "}', b'{"model":"m","x":"\\ud800\\u0041"}'):
        assert refused(body).code in {ErrorCode.INVALID_JSON, ErrorCode.INVALID_PARAMETER}


def test_a_name_has_at_most_512_bytes_not_characters() -> None:
    fits = "é" * (MODEL_NAME_BYTES // 2)
    assert peek(b'{"model":"%b"}' % fits.encode()).model == fits
    assert refused(b'{"model":"%b"}' % (fits + "x").encode()).param == "model"


@pytest.mark.parametrize("name", ["model", "stream", "stream_options", "n"])
@pytest.mark.parametrize("as_view", [False, True])
def test_br_605_a_member_that_is_read_may_stand_once_in_any_escaping(name: str, as_view: bool) -> None:
    for spelling in (name, f"\\u{ord(name[0]):04x}{name[1:]}", "".join(f"\\u{ord(c):04X}" for c in name)):
        body = b'{"model":"m","a":1,"%b":null ,"%b": {"include_usage":true}}' % (name.encode(), spelling.encode())
        error = refused(memoryview(body) if as_view else body)
        assert error.code is ErrorCode.DUPLICATE_FIELD
        assert error.param == name


def test_a_name_inside_values_and_deeper_objects_is_no_repetition() -> None:
    body = b'{"model":"m","x":"\\"model\\":1","y":{"model":1,"stream":2},"z":["model","stream"]}'
    assert peek(body).model == "m"
    assert peek(memoryview(body)).model == "m"


def test_a_repeated_member_that_nobody_reads_passes_until_it_is_read() -> None:
    got = peek(b'{"model":"m","tools":[1],"tools":[]}')
    with pytest.raises(StokerError, match="occurs twice"):
        got.value("tools")


def test_members_are_decoded_when_looked_at_and_seen_without() -> None:
    got = peek(b'{"model":"m","seed":4634343214213523454,"bad":1e999}')
    members = DecodedMembers(got)
    assert list(members) == ["model", "seed", "bad"]
    assert len(members) == 3
    assert "bad" in members
    assert members["seed"] == 4634343214213523454
    assert members.get("absent") is None
    with pytest.raises(KeyError):
        members["absent"]


def test_a_body_on_disk_reads_like_one_in_memory() -> None:
    body = b'{"stream":true,"model":"m","messages":[{"content":"\xf0\x9f\x9a\x80"}]}'
    plain, viewed = peek(body), peek(memoryview(body))
    assert (plain.model, plain.stream) == (viewed.model, viewed.stream)
    assert plain.value("messages") == viewed.value("messages")
    assert plain.members.keys() == viewed.members.keys()
    assert msgspec.json.decode(viewed.members["messages"]) == [{"content": "🚀"}]
