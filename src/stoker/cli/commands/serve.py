"""``stoker serve``: flags become configuration, and the rest is the composition's (C-19)."""

from __future__ import annotations

import gc
from typing import Any

import click

from stoker.cli.invocation import Command, Invocation, pass_invocation


@click.command("serve", cls=Command)
@click.option("--host", metavar="ADDRESS", help="Where the gateway listens.")
@click.option("--port", type=click.IntRange(0, 65535), help="The gateway's port.")
@click.option("--no-tcp", is_flag=True, help="The control API on its Unix socket only.")
@click.option("--check", is_flag=True, help="Check the configuration and do nothing else.")
@click.option("--auto", is_flag=True, hidden=True)
@pass_invocation
def serve(invocation: Invocation, *, host: str | None, port: int | None, no_tcp: bool, check: bool, auto: bool) -> int:
    """Run the daemon until it is told to stop.

    Exits with 2 for a bad configuration or when another daemon runs, 5 if an address is taken, 7 if something that was
    stopped is not proven gone.
    """
    overrides: dict[str, Any] = {}
    if host is not None:
        overrides["gateway.host"] = host
    if port is not None:
        overrides["gateway.port"] = port
    if no_tcp:
        overrides["control.tcp"] = ""
    if check:
        return _check(invocation, overrides)
    gc.disable()  # what is imported stays for life: looking through it again and again finds nothing
    from stoker.cli.composition import serve as run_daemon  # everything there is, for this command alone

    gc.freeze()  # nor is it looked through while requests run
    gc.enable()
    return run_daemon(overrides, config_file=invocation.config_file, echo=invocation.say, auto=auto)


def _check(invocation: Invocation, overrides: dict[str, Any]) -> int:
    from stoker.config.load import Flag, Sources, load

    flags = tuple(Flag(f"--{key.rpartition('.')[2]}", tuple(key.split(".")), value) for key, value in overrides.items())
    loaded = load(Sources(invocation.environ, invocation.config_file, flags))
    invocation.say(f"The configuration is valid: {', '.join(loaded.files) or 'defaults, no file'}.")
    return 0
