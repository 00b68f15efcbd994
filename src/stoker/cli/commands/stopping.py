"""``stop``: ends sessions and waits for the confirmed exit; and the way out when there is none (S-32)."""

from __future__ import annotations

import click

from stoker.cli import render
from stoker.cli.commands.loading import carry_out, one_mode, seconds
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.cli.names import complete_name
from stoker.client import StokerClient
from stoker.client.records import Operation
from stoker.errors import ErrorCode, UsageError


@click.command("stop", cls=Command)
@click.argument("subjects", nargs=-1, metavar="[NAME|GENERATION]…", shell_complete=complete_name)
@click.option("--all", "stop_all", is_flag=True, help="Every session.")
@click.option("--drain", "drain_s", type=seconds, metavar="S", help="Let running requests finish for up to S seconds.")
@click.option("--now", is_flag=True, help="Cut running requests.")
@click.option("--kill", is_flag=True, help="End it without asking it first.")
@click.option(
    "--force-release", "release", type=click.IntRange(1), metavar="GENERATION", help="Promise its memory away."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def stop(
    invocation: Invocation,
    *,
    subjects: tuple[str, ...],
    stop_all: bool,
    drain_s: float | None,
    now: bool,
    kill: bool,
    release: int | None,
    yes: bool,
) -> int:
    """End sessions and wait until the host confirms that they are gone.

    Exits with 7 if an end is not confirmed; the session then keeps its memory reserved.
    """
    mode = one_mode({"drain": drain_s is not None, "now": now, "kill": kill})
    if bool(subjects) + stop_all + (release is not None) != 1:
        raise click.UsageError("Name what to stop, or give --all or --force-release GENERATION, and one of them only.")
    with invocation.client() as client:
        if release is not None:
            return _force_release(invocation, client, release, is_sure=yes)
        if stop_all:
            subjects = tuple(dict.fromkeys(one.deployment for one in client.sessions() if one.phase != "gone"))
            if not subjects:
                invocation.say("There is nothing to stop.")
                return 0
        generations = {str(one.generation) for one in client.sessions()} if not stop_all else set()

        def begin(subject: str) -> Operation:
            if subject in generations:
                return client.stop(int(subject), mode=mode, drain_s=drain_s)
            return client.unload(subject, mode=mode, drain_s=drain_s)

        return carry_out(invocation, client, subjects, begin)


def _force_release(invocation: Invocation, client: StokerClient, generation: int, *, is_sure: bool) -> int:
    session = client.session(generation)
    unit = session.unit.get("id") or f"the unit of generation {generation}"
    held = ", ".join(f"{render.size(amount)} on {pool}" for pool, amount in session.reservation.items())
    click.echo(
        f"This does not stop anything. Memory still held by {unit} ({held or 'nothing'}) will be promised to others.",
        err=True,
    )
    if not is_sure:
        typed = click.prompt(f"Type the generation ({generation}) to go on", err=True, default="", show_default=False)
        if typed.strip() != str(generation):
            raise UsageError(
                ErrorCode.INVALID_PARAMETER,
                "That is not the generation, so nothing was released.",
                remedy=f"Type {generation}, or give --yes.",
            )
    released = client.force_release(generation)
    if invocation.as_json:
        invocation.give_json(released.raw)
    invocation.say(f"The reservation of generation {generation} is released; its unit is still tried every minute.")
    return 0
