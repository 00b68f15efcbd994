"""``config show``: what counts and where it comes from, from the daemon or as a daemon would load it (C-24)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from stoker.cli import render
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.errors import ErrorCode, StokerError

Path = tuple[str, ...]


@click.group("config")
def config() -> None:
    """The configuration in force."""


@config.command("show", cls=Command)
@click.option("--origin", "with_origin", is_flag=True, help="Say where each value comes from.")
@pass_invocation
def show(invocation: Invocation, *, with_origin: bool) -> None:
    """Every key with its value: the running daemon's, else what a daemon started now would use."""
    view = _view(invocation)
    if invocation.as_json:
        invocation.give_json(view)
        return
    origins = view.get("origins", {})
    rows = [
        (_key(path), _shown(value), *([_origin(path, origins)] if with_origin else []))
        for path, value in flatten(view.get("values", {}))
    ]
    invocation.give(render.table(("KEY", "VALUE", *(["ORIGIN"] if with_origin else [])), rows))
    for one in view.get("pending", ()):
        invocation.say(f"Pending: {json.dumps(one, ensure_ascii=False)}")


def _view(invocation: Invocation) -> Mapping[str, Any]:
    try:
        with invocation.client() as client:
            return client.config()
    except StokerError as exc:
        if exc.code is not ErrorCode.DAEMON_UNREACHABLE or invocation.socket is not None:
            raise
    from stoker.cli.composition import config_view  # as heavy as a daemon, and only needed when none runs
    from stoker.config.load import Sources, load

    invocation.say("No daemon runs; this is what one would start with.")
    return config_view(load(Sources(invocation.environ, invocation.config_file)))


def flatten(values: Mapping[str, Any], here: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, (*here, name))
        else:
            yield (*here, name), value


def _key(path: Path) -> str:
    """As it would stand in a file: names with other characters in quotes."""
    return ".".join(part if part.replace("_", "").replace("-", "").isalnum() else f'"{part}"' for part in path)


def _shown(value: Any) -> str:
    return render.NOTHING if value is None else json.dumps(value, ensure_ascii=False)


def _origin(path: Path, origins: Mapping[str, str]) -> str:
    """Of the key itself or the table around it; of a model's key also that of the same default."""
    for end in range(len(path), 0, -1):
        for spelled in (".".join(path[:end]), _key(path[:end])):
            if spelled in origins:
                return origins[spelled]
    if path[0] == "models" and len(path) > 2:
        return _origin(("defaults", *path[2:]), origins)
    return "default"
