"""``completion``: click's own scripts for the shells (C-17)."""

from __future__ import annotations

import click

from stoker.cli.invocation import Command, Invocation, pass_invocation


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@pass_invocation
def completion(invocation: Invocation, *, shell: str) -> None:
    """Print a script that completes commands, options and names.

    For bash: eval "$(stoker completion bash)"
    """
    from click.shell_completion import get_completion_class

    from stoker.cli.main import cli  # this module is imported from there

    made = get_completion_class(shell)
    assert made is not None, f"click completes {shell}"
    invocation.give(made(cli, {}, "stoker", "_STOKER_COMPLETE").source())
