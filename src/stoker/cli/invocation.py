"""What one call of the command line was told globally, and the client it speaks through (C-17).

The global options may stand before or after the subcommand; the last one wins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stoker.client import StokerClient
    from stoker.client.discovery import Place

DEFAULT_TIMEOUT_S = 30.0


@dataclass
class Invocation:
    """``timeout_s`` None: 30 s for an answer, no bound for what is waited for."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    now: Callable[[], float] = time.time
    config_file: str | None = None
    socket: str | None = None
    as_json: bool = False
    timeout_s: float | None = None
    quiet: bool = False
    verbose: int = 0

    def place(self) -> Place:
        from stoker.client.discovery import Place

        return Place(self.environ, self.config_file)

    @contextmanager
    def client(self) -> Iterator[StokerClient]:
        """A client of the running daemon; raises `HostError` ``daemon-unreachable`` when there is none."""
        from stoker.client import connect

        with connect(
            socket=self.socket,
            config_file=self.config_file,
            environ=self.environ,
            timeout_s=self.timeout_s or DEFAULT_TIMEOUT_S,
        ) as client:
            yield client

    def say(self, words: str) -> None:
        """Words go to stderr, and nowhere with -q."""
        if not self.quiet:
            click.echo(words, err=True, color=self.colour(sys.stderr))

    def give(self, text: str) -> None:
        """Data goes to stdout."""
        click.echo(text, color=self.colour(sys.stdout))

    def give_json(self, tree: Any) -> None:
        import json

        click.echo(json.dumps(tree, indent=2, ensure_ascii=False))

    def colour(self, stream: Any) -> bool:
        """Colour only for a terminal that was not asked to do without (NO_COLOR); a closed stream is none."""
        return (
            not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb" and bool(stream and stream.isatty())
        )


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep a global option that was given; the absence of one says nothing."""
    invocation = ctx.ensure_object(Invocation)
    if value and param.name is not None:
        setattr(invocation, param.name, value)


def global_options(*, hidden: bool = False) -> Iterator[click.Option]:
    """Fresh options for one command; below a subcommand they work and are shown once, at the top."""

    def option(*names: str, **how: Any) -> click.Option:
        return click.Option(names, expose_value=False, callback=_note, **how)

    yield option("--config", "config_file", type=click.Path(), metavar="FILE", help="The configuration.", hidden=hidden)
    yield option("--socket", "socket", type=click.Path(), metavar="PATH", help="The daemon's socket.", hidden=hidden)
    yield option("--json", "as_json", is_flag=True, help="Answer in the shape of the API.")
    yield option(
        "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), metavar="S",
        help="Wait at most S seconds.", hidden=hidden,
    )  # fmt: skip
    yield option("-q", "--quiet", "quiet", is_flag=True, help="No words beside the data.", hidden=hidden)
    yield option("-v", "--verbose", "verbose", count=True, help="More words.", hidden=hidden)


class Command(click.Command):
    """A subcommand that takes the global options too."""

    def __init__(self, name: str | None, params: Iterable[click.Parameter] | None = None, **how: Any) -> None:
        super().__init__(name, params=[*(params or ()), *global_options(hidden=True)], **how)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
