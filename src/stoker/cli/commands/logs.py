"""``logs``: an engine's own words, or the daemon's (S-24)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.cli.names import complete_name
from stoker.client.records import LogLine


@click.command("logs", cls=Command)
@click.argument("name", required=False, metavar="[NAME|GENERATION]", shell_complete=complete_name)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines as they come.")
@click.option("--tail", type=click.IntRange(0), default=200, show_default=True, metavar="N", help="The last N lines.")
@click.option("--attempt", type=click.IntRange(1), metavar="GENERATION", help="Of this life instead of the latest.")
@pass_invocation
def logs(invocation: Invocation, *, name: str | None, follow: bool, tail: int, attempt: int | None) -> None:
    """What an engine said, or without a name the daemon."""
    with invocation.client() as client:
        if name is not None and name.isdecimal() and attempt is None:
            known = {one.generation: one.deployment for one in client.sessions()}
            if int(name) in known:
                attempt, name = int(name), known[int(name)]
        stream = client.logs(name, generation=attempt, tail=tail, follow=follow)
        said: Mapping[str, Any] = {}
        for line in stream:
            if stream.source is not said:
                said = stream.source
                invocation.say(_whose(said))
            _give(invocation, line)
        if stream.source is not said:
            invocation.say(_whose(stream.source))


def _give(invocation: Invocation, line: LogLine) -> None:
    """One line as it is; with --json one object a line, so that a stream can be read while it grows."""
    if line.dropped:
        invocation.say(f"({line.dropped} lines were lost here)")
    invocation.give(json.dumps(line.raw, ensure_ascii=False) if invocation.as_json else line.text)


def _whose(source: Mapping[str, Any]) -> str:
    if source.get("generation") is None:
        return "The daemon's log:"
    life = f"generation {source['generation']}"
    of = f"{source['deployment']}, {life}" if source.get("deployment") else life
    if source.get("live"):
        return f"{of}, running:"
    outcome = source.get("message") or source.get("outcome")
    return f"{of}, ended{f': {outcome}' if outcome else ''}"
