"""Lines of keys, against the parser that gives the values."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config.positions import line_of, positions, twice

TEXT = '''a = 1
# c [x]
[gateway] # hi = 2
port = 3 # x
"tru sted" = [ "a]", # c
  'b', {q=1, r = [2]}, ]
s = """
[x]
k = 1
"""
t = \'\'\'
it''s # no
\'\'\'
[models."a.b"]
env = { A = "x", B.c = 2 }
port.x=1
when = 1979-05-27T07:32:00Z
[[list]]
one = 1
[[list]]
one = 1
[ models . "c \\u00e9" ]
x = "a # b"   # end'''


def test_lines_are_those_of_the_text():
    assert tomllib.loads(TEXT)
    assert positions(TEXT) == {
        ("a",): [1], ("gateway",): [3], ("gateway", "port"): [4], ("gateway", "tru sted"): [5], ("gateway", "s"): [7],
        ("gateway", "t"): [11], ("models", "a.b"): [14], ("models", "a.b", "env"): [15],
        ("models", "a.b", "env", "A"): [15], ("models", "a.b", "env", "B", "c"): [15],
        ("models", "a.b", "port", "x"): [16], ("models", "a.b", "when"): [17], ("list",): [18],
        ("list", "one"): [19, 21], ("models", "c \u00e9"): [22], ("models", "c \u00e9", "x"): [23],
    }  # fmt: skip


def test_the_line_of_a_path_is_that_of_the_nearest_thing_around_it():
    found = positions(TEXT)
    assert line_of(found, ("models", "a.b", "env", "A")) == 15
    assert line_of(found, ("models", "a.b", "env", "B")) == 15
    assert line_of(found, ("models", "a.b", "nope")) == 14
    assert line_of(found, ("models",)) == 14
    assert line_of(found, ("nope",)) is None


def test_doubles_are_found_with_both_lines():
    assert list(twice(positions("[a]\nx = 1\n[b]\n[a]\nx = 2\n"))) == [(("a",), 1, 4), (("a", "x"), 2, 5)]


@given(st.text(alphabet="a1=\"'[]{}.,#\n\\ é_-", max_size=60))
def test_a_broken_text_never_breaks_the_scan(text):
    positions(text)


_names = st.text(alphabet="abz_é .\"'\\#[]\n", min_size=1, max_size=4)
_values = st.recursive(
    st.one_of(st.integers(0, 99), st.booleans(), st.text(alphabet="ab\n\"'#=[]{}", max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_names, inner, max_size=3)),
    max_leaves=6,
)


def written(value):
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return quoted(value)
        case list():
            return "[" + ", ".join(map(written, value)) + "]"
        case _:
            return "{" + ", ".join(f"{quoted(k)} = {written(v)}" for k, v in value.items()) + "}"


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def paths_of(value, here):
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*here, name)
            yield from paths_of(inner, (*here, name))


@given(st.dictionaries(_names, st.dictionaries(_names, _values, max_size=3), max_size=3))
def test_every_key_of_a_valid_text_is_found_once_and_on_its_line(tables):
    lines, wanted = [], {}
    for table, body in tables.items():
        lines.append(f"[{quoted(table)}]  # [no] no = 1")
        wanted[table,] = len(lines)
        for name, value in body.items():
            lines.append(f"{quoted(name)} = {written(value)} # x")
            for path in paths_of({name: value}, (table,)):
                wanted[path] = len(lines)
    text = "\n".join(lines)
    assert tomllib.loads(text) == tables
    assert positions(text) == {path: [line] for path, line in wanted.items()}


@pytest.mark.parametrize("text", ["a = ", "[", "[a", "= 3", 'a = "', "a = [1, {", "a.b.", "]]"])
def test_half_a_text_is_read_as_far_as_it_goes(text):
    assert all(lines == [1] for lines in positions(text).values())
