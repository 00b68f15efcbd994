"""A change touches its own bytes and no others, over generated JSON (R-61; BR-605; acceptance 28)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ErrorCode, StokerError
from stoker.gateway.peek import peek, splice, walk

_space = st.text(alphabet=" \t\r\n", max_size=3)
_plain_text = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=12)
_numbers = st.sampled_from(
    ["0", "-0", "1.10", "1e-7", "1E+30", "-12.50e2", "4634343214213523454", "123456789012345678901234567890", "0.0"]
)
_words = st.sampled_from(["true", "false", "null"])


def _spelled(text: str, how: int) -> str:
    """A JSON string in one of many spellings."""
    if how == 0:
        return json.dumps(text, ensure_ascii=False)
    if how == 1:
        return json.dumps(text)
    if how == 2:
        return '"' + "".join(json.dumps(c)[1:-1] if ord(c) > 0xFFFF else f"\\u{ord(c):04X}" for c in text) + '"'
    return json.dumps(text, ensure_ascii=False).replace("/", "\\/")


_strings = st.builds(_spelled, _plain_text, st.integers(0, 3)) | st.sampled_from(
    ['"\\"}"', '"]"', '",\\"model\\":"', '"\\\\"', '"{[:,"', '"\\ud83d\\ude80🚀"', '"\\u003c"']
)


def _list(items: list[str], space: str) -> str:
    return "[" + space + f"{space},".join(items) + space + "]"


def _object(items: list[tuple[str, str]], space: str) -> str:
    return "{" + space + f",{space}".join(f"{key}{space}:{space}{value}" for key, value in items) + space + "}"


_values = st.recursive(
    _strings | _numbers | _words,
    lambda inner: (
        st.builds(_list, st.lists(inner, max_size=4), _space)
        | st.builds(_object, st.lists(st.tuples(_strings, inner), max_size=4), _space)
    ),
    max_leaves=12,
)


@st.composite
def _members(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Members of an object: decoded key, spelled key, value; keys may come again, but for the ones we change."""
    names = draw(
        st.lists(_plain_text.filter(lambda t: t not in {"model", "stream", "n", "stream_options"}), max_size=6)
    )
    members = [(name, draw(st.just(_spelled(name, draw(st.integers(0, 3))))), draw(_values)) for name in names]
    model = ("model", _spelled("model", draw(st.sampled_from([0, 2]))), _spelled(draw(_plain_text) or "m", 1))
    members.insert(draw(st.integers(0, len(members))), model)
    return members


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, int, int, int]]]:
    """A body and, by construction, where each of its members lies."""
    out = draw(_space).encode() + b"{"
    places: list[tuple[str, int, int, int]] = []
    for number, (name, key, value) in enumerate(draw(_members())):
        out += (b"," if number else b"") + draw(_space).encode()
        key_start = len(out)
        out += key.encode() + draw(_space).encode() + b":" + draw(_space).encode()
        start = len(out)
        out += value.encode()
        places.append((name, key_start, start, len(out)))
        out += draw(_space).encode()
    return out + b"}" + draw(_space).encode(), places


def _joined(body: bytes, changes: dict[str, bytes | None], *, as_view: bool = False) -> bytes:
    buffer = memoryview(body) if as_view else body
    return b"".join(splice(buffer, peek(buffer).members, changes))


@given(_bodies(), st.booleans())
def test_every_byte_outside_of_a_change_stays_where_it_was(
    made: tuple[bytes, list[tuple[str, int, int, int]]], as_view: bool
) -> None:
    body, places = made
    assert [tuple(member) for member in walk(body, peek(body).members)] == places
    ((_, _, start, end),) = [place for place in places if place[0] == "model"]
    renamed = body[:start] + b'"other"' + body[end:]
    for _ in range(2):
        assert _joined(body, {"model": b'"other"'}, as_view=as_view) == renamed
    brace = body.rindex(b"}")
    assert _joined(body, {"n": b"2"}, as_view=as_view) == body[:brace] + b',"n":2' + body[brace:]


def _pairs(body: bytes) -> list[tuple[str, Any]]:
    got: Any = json.loads(body, object_pairs_hook=list)
    return list(got)


@given(_bodies(), st.data())
def test_members_taken_out_leave_valid_json_with_the_rest_in_its_order(
    made: tuple[bytes, list[tuple[str, int, int, int]]], data: st.DataObject
) -> None:
    body, places = made
    names = [place[0] for place in places]
    once = [name for name in names if names.count(name) == 1]
    gone = data.draw(st.sets(st.sampled_from(once)))
    changes: dict[str, bytes | None] = dict.fromkeys(gone)
    if data.draw(st.booleans()):
        changes["stream"] = b"true"
    left = [pair for pair in _pairs(body) if pair[0] not in gone]
    got = _joined(body, changes)
    assert _pairs(got) == left + ([("stream", True)] if "stream" in changes else [])
    for name, _, start, end in places:
        if name not in gone:
            assert body[start:end] in got


@pytest.mark.parametrize(
    ("body", "changes", "wanted"),
    [
        (b'{"model":"m"}', {"model": None}, b"{}"),
        (b'{ "model":"m" }', {"model": None}, b"{  }"),
        (b'{"model":"m"}', {"model": None, "a": b"1"}, b'{"a":1}'),
        (b'{"model":"m", "b":2}', {"model": None}, b'{"b":2}'),
        (b'{"b":2 , "model":"m"}', {"model": None}, b'{"b":2}'),
        (b'{"a":1,"model":"m","b":2}', {"a": None, "b": None}, b'{"model":"m"}'),
        (b'{"a":1,"b":2,"model":"m"}', {"a": None, "b": None}, b'{"model":"m"}'),
        (b'{"model":"m"}', {"a": b"1", "b": b"[]"}, b'{"model":"m","a":1,"b":[]}'),
        (b'{"model":"m"}', {"a": None}, b'{"model":"m"}'),
        (b'{"model":"m"} \n', {'\xe9"': b"1"}, '{"model":"m","é\\"":1} \n'.encode()),
    ],
)
def test_edges_of_taking_out_and_putting_in(body: bytes, changes: dict[str, bytes | None], wanted: bytes) -> None:
    assert _joined(body, changes) == wanted
    assert msgspec.json.decode(wanted) is not None


@pytest.mark.parametrize("second", [b'"a"', b'"\\u0061"'])
def test_a_member_that_is_changed_may_stand_once(second: bytes) -> None:
    body = b'{"model":"m","a":{"x":[1,"}"]},%b:2}' % second
    with pytest.raises(StokerError) as caught:
        splice(body, peek(body).members, {"a": b"3"})
    assert caught.value.code is ErrorCode.DUPLICATE_FIELD


def test_repeated_members_of_every_kind_are_walked_past() -> None:
    firsts = (b'"x]"', b"12", b"-1.5e3", b"true", b"null", b'{"a":[{"}":"\\""}]}', b"[]", b"{}", b'[[],["]"],{"k":1}]')
    for first in firsts:
        body = b'{"k": %b ,"k":1, "model":"m"}' % first
        assert _joined(body, {"model": b'"n"'}) == body.replace(b'"m"', b'"n"'), first
