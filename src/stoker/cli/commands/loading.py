"""``load``, ``unload``, ``pin`` and ``unpin``: what should hold memory (S-12, C-8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from stoker.cli import render
from stoker.cli.failures import exit_code_of_several, report
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.cli.names import complete_name
from stoker.cli.progress import watching
from stoker.client import StokerClient
from stoker.client.records import Operation
from stoker.errors import StokerError

_ENDED = ("GENERATION", "PHASE", "ELAPSED")

names = click.argument("names", nargs=-1, required=True, metavar="NAME…", shell_complete=complete_name)
seconds = click.FloatRange(0)


@click.command("load", cls=Command)
@names
@click.option("--replica", type=click.IntRange(0), help="This replica alone.")
@click.option("--context", "context_tokens", type=click.IntRange(1), metavar="TOKENS", help="Change its context.")
@click.option("--load-timeout", "load_timeout_s", type=click.FloatRange(0, min_open=True), metavar="S")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@pass_invocation
def load(
    invocation: Invocation,
    *,
    names: tuple[str, ...],
    replica: int | None,
    context_tokens: int | None,
    load_timeout_s: float | None,
    no_wait: bool,
) -> int:
    """Make deployments ready, and wait until they are. An interrupt leaves the load running."""
    with invocation.client() as client:

        def begin(name: str) -> Operation:
            if context_tokens is not None:
                with_context(client, name, context_tokens)
            return client.load(name, replica=replica, load_timeout_s=load_timeout_s)

        return carry_out(invocation, client, names, begin, is_waiting=not no_wait)


def with_context(client: StokerClient, name: str, context_tokens: int) -> None:
    """Let the deployment have this context from now on; one that has it is left alone."""
    if client.deployment(name).spec.get("context_tokens") != context_tokens:
        client.change(name, context_tokens=context_tokens)


@click.command("unload", cls=Command)
@names
@click.option("--replica", type=click.IntRange(0), help="This replica alone.")
@click.option("--idle-only", is_flag=True, help="Only if nothing runs; never a delayed unload.")
@click.option("--drain", "drain_s", type=seconds, metavar="S", help="Let running requests finish for up to S seconds.")
@click.option("--now", is_flag=True, help="Cut running requests.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the confirmed end.")
@pass_invocation
def unload(
    invocation: Invocation,
    *,
    names: tuple[str, ...],
    replica: int | None,
    idle_only: bool,
    drain_s: float | None,
    now: bool,
    no_wait: bool,
) -> int:
    """Let deployments go. Running requests finish first, unless --now."""
    given = {"idle-only": idle_only, "drain": drain_s is not None, "now": now}
    mode = one_mode(given)
    with invocation.client() as client:
        return carry_out(
            invocation,
            client,
            names,
            lambda name: client.unload(name, mode=mode, drain_s=drain_s, replica=replica),
            is_waiting=not no_wait,
        )


def one_mode(given: dict[str, bool]) -> str:
    """The mode that was asked for; ``drain`` by default, and never two."""
    chosen = [mode for mode, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} cannot both be meant.")
    return chosen[0] if chosen else "drain"


@click.command("pin", cls=Command)
@names
@pass_invocation
def pin(invocation: Invocation, *, names: tuple[str, ...]) -> None:
    """Load deployments and keep them loaded."""
    _pin(invocation, names, pinned=True)


@click.command("unpin", cls=Command)
@names
@pass_invocation
def unpin(invocation: Invocation, *, names: tuple[str, ...]) -> None:
    """Let pinned deployments go once they idle."""
    _pin(invocation, names, pinned=False)


def _pin(invocation: Invocation, names: Sequence[str], *, pinned: bool) -> None:
    with invocation.client() as client:
        found = [client.pin(name, pinned=pinned) for name in names]
    if invocation.as_json:
        invocation.give_json(one_or_all([one.raw for one in found]))
    for one in found:
        invocation.say(f"{one.name} is {'pinned' if pinned else 'no longer pinned'}.")


def carry_out(
    invocation: Invocation,
    client: StokerClient,
    subjects: Sequence[str],
    begin: Callable[[str], Operation],
    *,
    is_waiting: bool = True,
) -> int:
    """Begin an operation for each subject, wait for all, and say how each ended; the exit code for all of them.

    All are begun before the first is waited for: they end side by side. A subject alone raises its error.
    """
    begun: list[Operation | StokerError] = []
    for subject in dict.fromkeys(subjects):
        try:
            begun.append(begin(subject))
        except StokerError as exc:
            begun.append(exc)
    ended = _ended(invocation, client, begun) if is_waiting else begun
    errors = [_error(one) for one in ended]
    if len(ended) == 1 and errors[0] is not None:
        raise errors[0]
    for error in errors:
        if error is not None:
            report(error, as_json=invocation.as_json)
    done = [one for one in ended if isinstance(one, Operation)]
    if invocation.as_json:
        invocation.give_json(one_or_all([one.raw for one in done]))
    elif rows := [row for one in done if not one.error for row in _rows(client, one)]:
        invocation.give(render.table(_ENDED, rows, right=frozenset({"GENERATION"})))
    return exit_code_of_several(errors)


def _ended(
    invocation: Invocation, client: StokerClient, begun: Sequence[Operation | StokerError]
) -> list[Operation | StokerError]:
    waiting = [one.subject for one in begun if isinstance(one, Operation) and not one.is_over]
    try:
        with watching(invocation) as progress:
            return [
                client.wait(one, timeout_s=invocation.timeout_s, on_progress=progress.show)
                if isinstance(one, Operation)
                else one
                for one in begun
            ]
    except KeyboardInterrupt:
        invocation.say(f"Not waiting any longer; {', '.join(waiting)} goes on. Look again with `stoker ps`.")
        raise


def _error(one: Operation | StokerError) -> StokerError | None:
    if isinstance(one, StokerError):
        return one
    try:
        if one.is_over:
            one.raise_if_failed()
    except StokerError as exc:
        return exc
    return None


def _rows(client: StokerClient, one: Operation) -> list[tuple[str, ...]]:
    """A row for each life the operation was about; their phase as it is now, or gone."""
    ended = one.is_over and one.kind != "load"
    generations = [int(number) for number in one.result.get("generations", ())]
    if one.kind == "load":
        generations = list(client.deployment(one.subject).sessions)
    phases = {} if ended else {session.generation: session.phase for session in client.sessions()}
    elapsed = render.duration(one.elapsed_s)
    return [(str(number), render.state(phases.get(number, "gone")), elapsed) for number in generations]


def one_or_all(trees: list[Any]) -> Any:
    """What one name answers is the object itself; several are a list of the API's shape."""
    return trees[0] if len(trees) == 1 else {"items": trees, "next": None}
