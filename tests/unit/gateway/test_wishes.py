"""What Stoker's own request fields may say (R-4, R-48)."""

from __future__ import annotations

import pytest

from stoker.errors import ErrorCode, StokerError
from stoker.gateway.heads import Fields, read_head
from stoker.gateway.wishes import Wishes, read_seconds, read_wishes


def wishes(*fields: tuple[bytes, bytes]) -> Wishes:
    block: Fields = list(fields)
    return read_wishes(read_head(block, http10=False))


def test_no_field_is_no_wish() -> None:
    assert wishes() == wishes((b"x", b"y")) == Wishes()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("5", 5.0), ("0.5", 0.5), ("-1", -1.0), ("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("250ms", 0.25),
        ("1h1m1s1ms", 3661.001), ("-5m", -300.0), ("1.5h", 5400.0),
        ("", None), ("x", None), ("5y", None), ("s", None), ("-", None), ("1m1h", None), ("5 m", None), ("nan", None),
        ("inf", None), ("1e3", None), ("+5", None), ("--5", None), ("9" * 400, None), ("\u0665", None),
    ],
)  # fmt: skip
def test_seconds_are_a_number_or_a_duration(text: str, seconds: float | None) -> None:
    found = read_seconds(text)
    assert found == (pytest.approx(seconds) if seconds is not None else None)


def test_every_wish_is_read() -> None:
    found = wishes(
        (b"stoker-wait", b" 2.5 "), (b"stoker-keep-alive", b"-1"), (b"stoker-load", b"never"), (b"stoker-client", b"me")
    )
    assert found == Wishes(2.5, -1.0, may_load=False, label="me")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"stoker-wait", b""), (b"stoker-wait", b"-1"), (b"stoker-wait", b"soon"), (b"stoker-keep-alive", b"forever"),
        (b"stoker-keep-alive", b""), (b"stoker-load", b"always"), (b"stoker-load", b""), (b"stoker-client", b"x" * 65),
        (b"stoker-client", b"a\tb"), (b"stoker-client", b"a\x9bb"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_and_named(name: bytes, value: bytes) -> None:
    with pytest.raises(StokerError) as caught:
        wishes((name, value))
    assert caught.value.code is ErrorCode.INVALID_PARAMETER
    assert str(caught.value.param).lower() == name.decode()


@pytest.mark.parametrize("name", [b"stoker-wait", b"stoker-keep-alive", b"stoker-load", b"stoker-client"])
def test_a_wish_that_is_said_twice_is_refused(name: bytes) -> None:
    with pytest.raises(StokerError, match="one value"):
        wishes((name, b"1"), (name, b"1"))
