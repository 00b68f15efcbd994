"""The program that runs llama.cpp's own server from the wheel, in a process of its own (E-66, E-67).

    python -I -m stoker.engines.llama_cpp.launcher LAUNCH.JSON [PORT]
    python -I -m stoker.engines.llama_cpp.launcher --probe

It sets parameters, constructs the server and waits; one JSON line a stage on standard output. Nothing else happens
here, on purpose. TERM and INT keep their default action: the server's constructor and destructor hold the interpreter
lock, and the destructor waits for open requests without bound, so a handler would run too late or never. The token
comes by environment and leaves it before the model is opened. It imports nothing of Stoker.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn

TOKEN_VARIABLE = "LLAMA_API_KEY"  # noqa: S105 - a name, not a secret
BAD_PARAMETER, LOAD_FAILED, NO_MODULE = 64, 1, 65


class BadParameterError(Exception):
    """A parameter of the plan that this wheel does not have, or a value it does not take."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name, self.why = name, why


def main(argv: list[str]) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if argv[1:] == ["--probe"]:
        _tell(**probe())
        sys.exit(0)
    token = os.environ.pop(TOKEN_VARIABLE, None)
    with open(argv[1], encoding="utf-8") as file:
        parameters: dict[str, Any] = json.load(file)["parameters"]
    if len(argv) > 2:
        parameters["port"] = int(argv[2])
    run(parameters, token)


def run(parameters: Mapping[str, Any], token: str | None) -> NoReturn:
    try:
        import xllamacpp  # late: a missing wheel is told as a stage, not as a traceback
    except ImportError as exc:
        _tell(stage="failed", cause="module", detail=str(exc))
        sys.exit(NO_MODULE)
    params = xllamacpp.CommonParams()
    try:
        for name, value in parameters.items():
            assign(params, name, value)
    except BadParameterError as exc:
        _tell(stage="failed", cause="parameter", parameter=exc.name, detail=exc.why)
        sys.exit(BAD_PARAMETER)
    if token:
        params.api_keys = [token]
    _tell(stage="opening")
    started = time.monotonic()
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as exc:
        _tell(stage="failed", cause="load", detail=str(exc))
        sys.exit(LOAD_FAILED)  # an orderly end: the engine's log is written by a thread, and the cause stands in it
    _tell(stage="ready", address=server.listening_address, seconds=round(time.monotonic() - started, 3))
    while True:
        signal.pause()


def assign(target: Any, name: str, value: Any) -> None:
    """Set ``name`` (with dots for inner objects) to ``value``, in the type that stands there now.

    Enumerations are given by member name, or the end of one: ``Q8_0`` for ``GGML_TYPE_Q8_0``.
    """
    *path, last = name.split(".")
    for step in path:
        target = _member(target, step, name)
    current = _member(target, last, name)
    if isinstance(current, list) and current and isinstance(current[0], Enum):
        converted: Any = [_choice(type(current[0]), item, name) for item in value]
    elif isinstance(current, Enum):
        converted = _choice(type(current), value, name)
    elif isinstance(current, set):
        converted = set(value)
    elif isinstance(current, list) and current and isinstance(value, list) and len(value) < len(current):
        converted = [*value, *current[len(value) :]]
    else:
        converted = value
    try:
        setattr(target, last, converted)
    except (TypeError, ValueError, OverflowError, AttributeError) as exc:
        raise BadParameterError(name, f"{value!r} is not taken: {exc}") from exc


def _member(target: Any, step: str, name: str) -> Any:
    try:
        return getattr(target, step)
    except AttributeError:
        raise BadParameterError(name, "this build has no such parameter") from None


def _choice(kind: type[Enum], word: str, name: str) -> Enum:
    for member in kind:
        if member.name == word or member.name.endswith(f"_{word}"):
            return member
    raise BadParameterError(name, f"{word!r} is not one of this build's values")


def probe() -> dict[str, Any]:
    """What the wheel says of itself: names of parameters, allowed values, devices. Opens no model."""
    try:
        import xllamacpp
    except ImportError as exc:
        return {"missing": str(exc)}
    params = xllamacpp.CommonParams()
    devices = [
        {"name": str(device["name"]), "description": str(device["description"]), "bytes": int(device["memory_total"])}
        for device in xllamacpp.get_device_info()
    ]
    return {
        "release": str(getattr(xllamacpp, "__version__", "")),
        "commit": str(getattr(xllamacpp, "BUILD_INFO", {}).get("commit", "")),
        "parameters": _names(params),
        "types": [member.name for member in xllamacpp.ggml_type],
        "pooling": [member.name for member in xllamacpp.llama_pooling_type],
        "split": [member.name for member in xllamacpp.llama_split_mode],
        "devices": devices,
        "system": str(xllamacpp.get_system_info()),
    }


def _names(params: Any) -> list[str]:
    inner = ("model", "cpuparams", "cpuparams_batch", "speculative", "sampling")
    found = [name for name in dir(params) if not name.startswith("_")]
    for outer in inner:
        if outer in found:
            found += [f"{outer}.{name}" for name in dir(getattr(params, outer)) if not name.startswith("_")]
    return sorted(found)


def _tell(**members: Any) -> None:
    print(json.dumps(members), flush=True)


if __name__ == "__main__":
    main(sys.argv)
