"""The one scrubber: what leaves the process holds no secret (C-46).

Two ways, both always on. Registered secrets are found wherever they stand, plain, percent- or base64-encoded. Places
that hold secrets are emptied whatever stands in them: authorization headers, ``user:password@`` in addresses, and
values whose name says so. It does not know where secrets come from.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, quote_plus

SET = "[set]"

# A shorter string stands in too many innocent places, and guards nothing.
SHORTEST = 6

_WORDS = r"(?:key|token|secret|password|passwd|credential)"
_SECRET_NAME = re.compile(_WORDS)
# Names with such a word that count something, name a place or identify: max_tokens, token_file, key_id.
_INNOCENT_NAME = re.compile(
    r"(?!.*(?:auth|access|api|bearer|refresh|hub|hf)_?tokens)(?:.*_)?tokens(?:_(?:total|count|per_\w+|ids?|s))?"
    r"|(?:.*_)?(?:key|token)_(?:ids?|file|count|type|timeout_s)"
    r"|(?:.*_)?(?:keyboard|keyword|monkey|tokeniz)\w*"
    r"|keys|(?:idempotency|prompt_cache|load|cache)_key"
)
# Members that hold a command line: an option there may have its value in the next element.
_ARGUMENTS = frozenset({"engine_args", "args", "argv", "argv_shown"})
# Tables whose names others chose: there a plain `key` is a secret; in records of ours it names a setting.
_FOREIGN = frozenset({"env", "environment", "settings", "headers", "args", "sampling"})
_HEADERS = frozenset({"authorization", "proxy_authorization", "cookie", "set_cookie"})

_IN_TEXT = (
    # user:password@ in an address
    (re.compile(r"(?<=://)[^/\s:@'\"]*:[^/\s@'\"]+(?=@)"), SET),
    # a header, in a dump or a command line
    (
        re.compile(
            r"\b((?:proxy-)?authorization|x-api-key|api-key|cookie|set-cookie)"
            r"(['\"]?\s*[:=]\s*['\"]?)(?:(?:Bearer|Basic|Digest|Token)\s+)?[^\s'\",;]+(?:;\s*[^\s'\",;=]+=[^\s'\",;]+)*",
            re.IGNORECASE,
        ),
        rf"\1\2{SET}",
    ),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {SET}"),
)
_VALUE = r"(?P<value>\[set\]|'[^']*'|\"[^\"]*\"|[^\s,;&'\"\])}]+)"
# NAME=value and "name": "value", found by the word in the name; --name value, found by its dashes
_ASSIGNED = re.compile(rf"{_WORDS}[\w.-]{{0,60}}['\"]?\s{{0,8}}[=:]\s{{0,8}}{_VALUE}", re.IGNORECASE)
_OPTION = re.compile(rf"(?<![\w.-])--?[A-Za-z][\w.-]{{0,80}}\s{{1,8}}(?!-){_VALUE}")
_NAME_BEFORE = re.compile(r"[\w.-]{0,120}")


class Scrubber:
    """Registered secrets change with keys and generations; `add` and `remove` say which exist now.

    Scrubbing is cheap while nothing matches: one pass of one pattern over the text.
    """

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._counts: dict[str, int] = {}
        self._pattern: re.Pattern[str] | None = None
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Register ``secret``; it may be registered several times and then must be removed as often."""
        if len(secret) < SHORTEST:
            return
        self._counts[secret] = self._counts.get(secret, 0) + 1
        self._pattern = _pattern_of(self._counts)

    def remove(self, secret: str) -> None:
        left = self._counts.get(secret, 0) - 1
        if left > 0:
            self._counts[secret] = left
        elif self._counts.pop(secret, None) is not None:
            self._pattern = _pattern_of(self._counts)

    def text(self, text: str) -> str:
        """``text`` with every secret replaced by ``[set]``."""
        if self._pattern is not None:
            text = self._pattern.sub(SET, text)
        for pattern, instead in _IN_TEXT:
            text = pattern.sub(instead, text)
        return _without_values(_OPTION, _without_values(_ASSIGNED, text))

    def setting(self, name: str, value: Any) -> Any:
        """The value of a setting, header or variable called ``name``, fit to be shown."""
        return self._named(name, value, foreign=True)

    def member(self, name: str, value: Any) -> Any:
        """The value of a member of one of our records. A member called just ``key`` names a setting and stays."""
        return self._named(name, value, foreign=False)

    def _named(self, name: str, value: Any, *, foreign: bool) -> Any:
        hidden = is_secret_name(name) and (foreign or name != "key")
        if hidden and not isinstance(value, bool | Mapping):
            return SET if value not in (None, "", (), []) else value
        if name in _ARGUMENTS and isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
            return list(self.argv(value))
        return self.value(value, foreign=foreign or name in _FOREIGN)

    def value(self, value: Any, *, foreign: bool = False) -> Any:
        """Any structure of mappings, lists and scalars, scrubbed through and through."""
        match value:
            case str():
                return self.text(value)
            case bytes():
                return self.text(value.decode(errors="replace"))
            case Mapping():
                return {
                    self.text(str(name)): self._named(str(name), inner, foreign=foreign)
                    for name, inner in value.items()
                }
            case list() | tuple() | set() | frozenset():
                return [self.value(inner, foreign=foreign) for inner in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self.text(str(value))

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command line for people: values of options with a secret's name hidden, ``--name value`` included."""
        shown: list[str] = []
        hide = False
        for argument in argv:
            name, equals, value = argument.partition("=")
            is_option = argument.startswith("-")
            if hide and not is_option:
                shown.append(SET)
                hide = False
                continue
            hide = is_option and not equals and is_secret_name(name)
            secret = bool(equals) and is_secret_name(name) and value != ""
            shown.append(f"{self.text(name)}={SET}" if secret else self.text(argument))
        return tuple(shown)


def is_secret_name(name: str) -> bool:
    """Does a thing called ``name`` hold a secret? Counts of tokens, ids of keys and files of tokens do not."""
    last = name.strip("-").lower().rsplit(".", 1)[-1].replace("-", "_")
    if last in _HEADERS:
        return True
    return _SECRET_NAME.search(last) is not None and _INNOCENT_NAME.fullmatch(last) is None


def _without_values(pattern: re.Pattern[str], text: str) -> str:
    """``text`` without the values of names that hold secrets. A value whose name is innocent is looked into again."""
    parts: list[str] = []
    done = at = 0
    while match := pattern.search(text, at):
        start, end = match.span("value")
        value = match["value"]
        if is_secret_name(_name_at(text, match.start())) and value.strip("'\"") not in {"", SET}:
            quote_mark = value[0] if value[0] in "'\"" else ""
            parts += [text[done:start], quote_mark, SET, quote_mark]
            done = at = end
        else:
            at = start
    return "".join(parts) + text[done:] if parts else text


def _name_at(text: str, at: int) -> str:
    """The whole name that ``at`` lies in: the word found may stand in its middle."""
    start = at
    while start > 0 and at - start < 60 and (text[start - 1].isalnum() or text[start - 1] in "_.-"):
        start -= 1
    match = _NAME_BEFORE.match(text, start)
    assert match is not None
    return match[0]


def _pattern_of(secrets: Mapping[str, int]) -> re.Pattern[str] | None:
    forms = {form for secret in secrets for form in _forms(secret)}
    if not forms:
        return None
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=lambda form: (-len(form), form))))


def _forms(secret: str) -> set[str]:
    """How a secret may be spelt: itself, percent-encoded, and in base64 at each of the three offsets it can have."""
    raw = secret.encode(errors="surrogatepass")
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret)}
    forms |= {form.replace("%", "%25") for form in forms} if "%" in quote(secret, safe="") else set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):
            coded = encode(b"\0" * offset + raw).decode()
            # The ends also depend on what stands beside the secret; the middle does not.
            middle = coded.rstrip("=")[(0, 2, 3)[offset] :]
            if (len(raw) + offset) % 3:
                middle = middle[:-1]
            if len(middle) >= SHORTEST:
                forms.add(middle)
    return {form for form in forms if len(form) >= SHORTEST}
