"""The ``stoker`` command: its subcommands by name, and the one place where failures become sentences and exit codes.

A subcommand's module is imported when it is called, so that ``stoker --version`` stays quick (C-17, C-18).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from stoker import __version__
from stoker.cli.invocation import Invocation, global_options

INTERRUPTED = 130

# name -> (module below commands, attribute, one line of help)
COMMANDS = {
    "serve": ("serve", "serve", "Run the daemon."),
    "run": ("run", "run", "Ask a model; starts a daemon if none runs."),
    "list": ("listing", "list_deployments", "Deployments and what they are doing."),
    "ls": ("listing", "list_deployments", "The same as list."),
    "ps": ("listing", "ps", "Sessions: what holds memory now."),
    "show": ("listing", "show", "One deployment, or one session by its generation."),
    "load": ("loading", "load", "Make deployments ready."),
    "unload": ("loading", "unload", "Let deployments go, with their memory."),
    "stop": ("stopping", "stop", "End sessions and wait until that is confirmed."),
    "pin": ("loading", "pin", "Keep deployments loaded."),
    "unpin": ("loading", "unpin", "Let pinned deployments go when they idle."),
    "logs": ("logs", "logs", "What an engine said, or the daemon."),
    "events": ("events", "events", "What happens, as it happens."),
    "status": ("status", "status", "The daemon and its memory on one page."),
    "config": ("config", "config", "The configuration in force."),
    "completion": ("completion", "completion", "A script that completes names in your shell."),
    "version": ("version", "version", "This program's release, and the daemon's."),
}
_HIDDEN = frozenset({"ls"})


class Commands(click.Group):
    """Subcommands that are imported by name, and errors that end as C-18 says."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name in COMMANDS if name not in _HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"stoker.cli.commands.{module}"), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has enough: what it left, it did not want
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - click's signature; how errors end is decided here
        **extra: Any,
    ) -> NoReturn:
        invocation = extra.setdefault("obj", Invocation())
        code = 0
        try:
            answer: Any = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            code = answer if isinstance(answer, int) else 0
        except (KeyboardInterrupt, click.Abort):
            click.echo("", err=True)
            code = INTERRUPTED
        except Exception as exc:  # noqa: BLE001 - the outermost edge: a person gets a sentence, never a traceback
            from stoker.cli.failures import report

            code = report(exc, as_json=invocation.as_json, verbose=invocation.verbose > 0)
        sys.exit(code)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"stoker {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[*global_options()],
    no_args_is_help=True,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="The release."
)
def cli() -> None:
    """Keep a machine's local LLM engines fed and in order, behind one OpenAI-compatible address."""


def main() -> NoReturn:
    cli.main(prog_name="stoker")
