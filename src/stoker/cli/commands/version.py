"""``version``: of this program, and of the daemon if one runs."""

from __future__ import annotations

import click

from stoker import __version__
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.errors import StokerError


@click.command("version", cls=Command)
@pass_invocation
def version(invocation: Invocation) -> None:
    """This program's release, and the running daemon's."""
    try:
        owner = invocation.place().owner()
    except StokerError:  # a broken file of configuration is no reason to hide the release
        owner = None
    daemon = {"version": owner.version, "instance": owner.instance, "pid": owner.pid} if owner and owner.pid else None
    if invocation.as_json:
        invocation.give_json({"version": __version__, "daemon": daemon})
        return
    invocation.give(f"stoker {__version__}")
    if daemon is not None:
        invocation.give(f"daemon {daemon['version']} (pid {daemon['pid']}, instance {daemon['instance']})")
