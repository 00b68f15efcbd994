"""Names of deployments for the shell's completion: from the daemon within 200 ms, or none (C-17)."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from stoker.errors import StokerError

WITHIN_S = 0.2


def complete_name(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names and aliases that begin so. Whatever goes wrong is silence: nobody asked for words."""
    from stoker.cli.invocation import Invocation
    from stoker.client import connect

    invocation = ctx.ensure_object(Invocation)
    try:
        with connect(
            socket=invocation.socket,
            config_file=invocation.config_file,
            environ=invocation.environ,
            timeout_s=WITHIN_S,
            starting_wait_s=0,
        ) as client:
            found = client.deployments()
    except StokerError:
        return []
    names = {name for deployment in found for name in (deployment.name, *deployment.names)}
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
