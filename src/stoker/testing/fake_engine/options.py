"""What the fake engine can be told to do: one table of options, read from arguments and ``FAKE_…`` variables (E-107).

Decides how options are spelled and which values they take. An argument wins over a variable. Arguments that belong
to the imitated engine are handed back untouched: its flavour reads them. It knows nothing of what an option does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

CHILD_MODES: Final = ("new-session", "rename", "close-fds", "hold-port", "ignore-term")
CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "stall": ("load", "health", "prefill", "decode", "answer-head"),
    "oom": ("load", "kv", "graphs", "serve"),
    "fail": ("argument", "port", "library", "driver", "architecture", "quantization", "file", "zero"),
    "port_busy": ("exit", "stay", "late"),
    "break_": ("cut", "half-event", "no-done", "error-event", "slow-loris"),
    "cached_tokens": ("true", "lie"),
    "restore": ("ok", "fail", "lie"),
}


class OptionError(ValueError):
    """An option or its value is not known; the message names it."""


class Load(NamedTuple):
    """How long loading takes and what is answered meanwhile: ``4s@health=503,models=200,refuse,steps=4``."""

    seconds: float = 0.0
    answers: Mapping[str, int] = {}
    refuse: bool = False
    steps: int = 0


class After(NamedTuple):
    """When to die: after seconds ready, finished work requests, or tokens; 0 is never."""

    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0


NO_LOAD: Final = Load()
NEVER: Final = After()


@dataclass(slots=True)
class Options:
    flavour: str = "bare"
    host: str = "127.0.0.1"
    port: int = 0
    model: str = "fake"
    token: str = ""
    seed: int = 0
    load: Load = NO_LOAD
    ttft: float = 0.0
    tps: float = 0.0
    prefill_tps: float = 0.0
    text: str = "The fake engine always gives this answer, one word at a time."
    ctx: int = 0
    slots: int = 0
    ram_mib: int = 0
    grow: int = 0
    ignore_term: bool = False
    term_delay: float = 0.0
    exit_code: int = -1
    die_by: str = ""
    crash_after: After = NEVER
    crash_on: str = ""
    crash_load: float = -1.0
    fork_child: list[str] = field(default_factory=list)
    stall: str = ""
    for_: float = 0.0
    oom: str = ""
    fail: str = ""
    port_busy: str = "exit"
    noise: dict[str, int] = field(default_factory=dict)
    long_line: Bytes = 0
    bad_utf8: bool = False
    bare_cr: bool = False
    break_: str = ""
    runs_on: bool = False
    keepalive: float = 0.0
    cached_tokens: str = "true"
    restore: str = "ok"
    record: str = ""


Bytes = int
SUFFIXES: Final = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
UNITS_S: Final = {"": 1.0, "s": 1.0, "ms": 0.001, "/s": 1.0}


def _number(text: str, units: Mapping[str, float], what: str) -> float:
    found = re.fullmatch(r"(-?[0-9.]+)([A-Za-z/]*)", text.strip())
    if found is None or found[2] not in units:
        raise OptionError(f"{text!r} is no {what}")
    return float(found[1]) * units[found[2]]


def seconds(text: str) -> float:
    return _number(text, UNITS_S, "time: write 4s, 250ms or a number of seconds")


def size(text: str) -> int:
    return int(_number(text, SUFFIXES, "size: write 200KiB, 1MiB or a number of bytes"))


def share(text: str) -> float:
    """``0.5`` or ``50%``."""
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def load(text: str) -> Load:
    took, _, rest = text.partition("@")
    words = [word for word in rest.split(",") if word]
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    steps = int(pairs.pop("steps", "0"))
    if unknown := [word for word in words if "=" not in word and word != "refuse"]:
        raise OptionError(f"{unknown[0]!r} is no part of --load: write route=status, refuse or steps=N")
    return Load(seconds(took), {route: int(status) for route, status in pairs.items()}, "refuse" in words, steps)


def after(text: str) -> After:
    for suffix, name in (("req", "requests"), ("tok", "tokens")):
        if text.endswith(suffix):
            return After(**{name: int(text.removesuffix(suffix))})
    return After(seconds=seconds(text))


def noise(text: str) -> dict[str, int]:
    pairs = dict(part.split("=", 1) for part in text.split(","))
    if unknown := set(pairs) - {"stdout", "stderr"}:
        raise OptionError(f"{unknown.pop()!r} is no stream: write stdout=1MiB,stderr=1MiB")
    return {stream: size(amount) for stream, amount in pairs.items()}


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "int": lambda text: int(_number(text, UNITS_S, "whole number")),
    "float": seconds,
    "Bytes": size,
    "bool": lambda text: text not in ("", "0", "false"),
    "Load": load,
    "After": after,
    "dict[str, int]": noise,
}
KINDS: Final = {option.name: str(option.type) for option in fields(Options)}
FLAGS: Final = {"--" + name.rstrip("_").replace("_", "-"): name for name in KINDS}
BARE: Final = {"fork_child": ""}  # what an option without a value means, where it is not "yes"
VARIABLES: Final = {"FAKE_" + name.rstrip("_").upper(): name for name in KINDS}


def _read(name: str, text: str) -> object:
    if name == "crash_load":
        return share(text)
    if name == "fork_child":
        return [_modes(part) for part in text.split(";")]
    value = READERS[KINDS[name]](text)
    if name in CHOICES and value not in CHOICES[name]:
        raise OptionError(f"{text!r} is no value of {name.rstrip('_')}: it takes {', '.join(CHOICES[name])}")
    return value


def _modes(text: str) -> str:
    if unknown := [mode for mode in text.split(",") if mode and mode not in CHILD_MODES]:
        raise OptionError(f"{unknown[0]!r} is no kind of child: it takes {', '.join(CHILD_MODES)}")
    return text


def _takes_next(name: str, following: str | None) -> bool:
    """Does this option own the argument behind it? ``--slots`` alone is also a switch of llama.cpp."""
    if KINDS[name] == "bool" or following is None:
        return False
    if name == "fork_child":
        return set(following.split(",")) <= set(CHILD_MODES)
    if name == "slots":
        return following.isdigit()
    return True


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Options, list[str]]:
    """The options, and the arguments that are not ours, in their order. Raises `OptionError`."""
    options, foreign = Options(), []
    for variable, name in VARIABLES.items():
        if environ.get(variable):
            setattr(options, name, _checked(variable, name, environ[variable]))
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        named = FLAGS.get(flag)
        if named is None:
            foreign.append(word)
            continue
        if not equals:
            owns = _takes_next(named, rest[0] if rest else None)
            if named == "slots" and not owns:
                foreign.append(word)
                continue
            value = rest.pop(0) if owns else BARE.get(named, "1")
        read = _checked(flag, named, value)
        setattr(options, named, [*options.fork_child, *_list(read)] if named == "fork_child" else read)
    return options, foreign


def _list(value: object) -> list[str]:
    return value if isinstance(value, list) else []


def _checked(spelled: str, name: str, text: str) -> object:
    try:
        return _read(name, text)
    except OptionError as error:
        raise OptionError(f"{spelled}: {error}") from None
    except ValueError as error:
        raise OptionError(f"{spelled}: {text!r} cannot be read: {error}") from error
