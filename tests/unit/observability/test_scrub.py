"""No secret leaves: C-46; the scrubber's part of acceptance 32 and of BR-1003."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.observability.scrub import SET, Scrubber, is_secret_name

MARKS = {
    "gateway key": "sk-stk-9aX2+/mark-gateway",
    "engine key": "engine-0123456789abcdef",
    "hub token": "hf_MarkOfTheHub123",
    "authorization": "QmVhcmVyTWFyaw",
    "environment secret": "env mark with spaces",
    "argument secret": "arg-mark-%41-é",
}


def spellings(secret):
    raw = secret.encode()
    yield secret
    yield quote(secret, safe="")
    yield quote(secret)
    for before in (b"", b"a", b"ab", b"user:"):
        for after in (b"", b"x", b"yz"):
            yield base64.b64encode(before + raw + after).decode()
            yield base64.urlsafe_b64encode(before + raw + after).decode().rstrip("=")


@pytest.mark.parametrize("mark", MARKS)
def test_br_1003_a_registered_secret_is_found_in_every_spelling_wherever_it_stands(mark):
    scrubber = Scrubber(tuple(MARKS.values()))
    secret = MARKS[mark]
    for spelt in spellings(secret):
        for text in (f"x{spelt}y", f"starting with {spelt} now", f'{{"a": ["{spelt}"]}}', f"\n{spelt}\n"):
            shown = scrubber.text(text)
            assert SET in shown
            assert spelt not in shown
            assert secret not in shown


@given(st.text(min_size=9, max_size=40), st.binary(max_size=5), st.binary(max_size=5))
def test_base64_of_a_secret_between_other_bytes_is_found(secret, before, after):
    coded = base64.b64encode(before + secret.encode() + after).decode()
    assert SET in Scrubber((secret,)).text(coded)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Authorization: Bearer abc.def", "Authorization: [set]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: [set]"),
        ("-H 'X-Api-Key: abcdef'", "-H 'X-Api-Key: [set]'"),
        ("{'cookie': 'a=b; c=d', 'x': 1}", "{'cookie': '[set]', 'x': 1}"),
        ('"authorization":"Bearer abcdefgh"', '"authorization":"[set]"'),
        ("sent Bearer abcdefgh12 to", "sent Bearer [set] to"),
        ("https://me:pa55@host/x?a=1", "https://[set]@host/x?a=1"),
        ("socks5://:pa55@host", "socks5://[set]@host"),
        ("HF_TOKEN=abc DEBUG=1", "HF_TOKEN=[set] DEBUG=1"),
        ("serve --api-key abc --port 80", "serve --api-key [set] --port 80"),
        ("serve --api-key=abc --port=80", "serve --api-key=[set] --port=80"),
        ("-api_key 'a b' x", "-api_key '[set]' x"),
        ('{"db_password": "x y", "n": 1}', '{"db_password": "[set]", "n": 1}'),
        ("url?access_token=abc&page=2", "url?access_token=[set]&page=2"),
        ("set token=abc123", "set token=[set]"),
        ("credentials: none,x", "credentials: [set],x"),
    ],
)
def test_br_1003_places_of_secrets_are_emptied_whatever_stands_in_them(text, left):
    assert Scrubber().text(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "loaded 17 tokens in 3 s", "max_tokens=5", "n_tokens: 12", '{"prompt_tokens": 3, "total_tokens": 5}',
        "keep_alive_s = 300", "tokenizer=gpt2", "https://host:80/a@b", "key_id=k1", "token_file=/x", "a key is missing",
        "--api-key-file --port 80", "the token was refused", "monkey=1",
    ],
)  # fmt: skip
def test_innocent_texts_stay_as_they_are(text):
    assert Scrubber().text(text) == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("OPENAI_API_KEY", True), ("--api-key", True), ("db.password", True), ("credentials", True),
        ("clientSecret", True), ("Authorization", True), ("Set-Cookie", True), ("X-Api-Key", True), ("key", True),
        ("auth_tokens", True), ("token", True), ("max_tokens", False), ("context_floor_tokens", False),
        ("tokens_total", False), ("output_tokens_per_second", False), ("token_file", False), ("key_id", False),
        ("keys", False), ("keep_alive_s", False), ("tokenizer", False), ("Idempotency-Key", False), ("port", False),
        ("prompt_cache_key", False), ("load_key", False),
    ],
)  # fmt: skip
def test_which_names_hold_secrets(name, secret):
    assert is_secret_name(name) is secret


def test_structures_are_scrubbed_through_and_through():
    scrubber = Scrubber(("secret-mark",))
    shown = scrubber.value(
        {
            "message": "it said secret-mark",
            "env": {"HF_TOKEN": "abc", "PATH": "/bin", "key": "k"},
            "argv": ("a", b"secret-mark", None, 1.5),
            "secret-mark": {"password": 12345, "max_tokens": 7},
            "key": "gateway.port",
            "token": "",
            "is_secret": True,
        }
    )
    assert shown == {
        "message": "it said [set]",
        "env": {"HF_TOKEN": SET, "PATH": "/bin", "key": SET},
        "argv": ["a", SET, None, 1.5],
        SET: {"password": SET, "max_tokens": 7},
        "key": "gateway.port",
        "token": "",
        "is_secret": True,
    }
    assert scrubber.setting("key", "x") == SET
    assert scrubber.setting("port", 5151) == 5151


def test_a_command_line_hides_values_of_options_with_a_secrets_name():
    argv = ("serve", "--api-key", "abc", "--port", "80", "--hub-token=x", "--secret", "--verbose", "-p", "known-mark")
    assert Scrubber(("known-mark",)).argv(argv) == (
        "serve", "--api-key", SET, "--port", "80", "--hub-token=[set]", "--secret", "--verbose", "-p", SET,
    )  # fmt: skip


def test_a_secret_that_no_longer_exists_is_no_longer_looked_for():
    scrubber = Scrubber()
    scrubber.add("first-mark")
    scrubber.add("first-mark")
    scrubber.remove("first-mark")
    assert scrubber.text("first-mark") == SET
    scrubber.remove("first-mark")
    scrubber.remove("first-mark")
    assert scrubber.text("first-mark") == "first-mark"
    scrubber.add("short")
    assert scrubber.text("short") == "short"


@given(st.text(alphabet="ab.=:-_ '\"\nkeytokn@/", max_size=200))
def test_scrubbing_twice_changes_nothing_more_and_never_fails(text):
    scrubber = Scrubber(("ab-token-ab",))
    once = scrubber.text(text)
    assert scrubber.text(once) == once


@pytest.mark.parametrize("piece", ["a.b-", "key", "token ", "--key-", "://:", "Bearer ", "cookie;", "a=b;"])
def test_no_text_makes_it_slow(piece):
    text = piece * (65_536 // len(piece))
    scrubber = Scrubber(tuple(MARKS.values()))
    started = time.process_time()
    scrubber.text(text)
    assert time.process_time() - started < 2.0
