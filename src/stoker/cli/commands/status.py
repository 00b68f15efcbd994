"""``status``: the daemon and its memory on one page."""

from __future__ import annotations

import click

from stoker.cli import render
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.client.records import Pool, Status


@click.command("status", cls=Command)
@pass_invocation
def status(invocation: Invocation) -> None:
    """The daemon, its memory and its load on one page."""
    with invocation.client() as client:
        found = client.status()
    if invocation.as_json:
        invocation.give_json(found.raw)
    else:
        invocation.give(page(found, invocation.now()))


def page(found: Status, now: float) -> str:
    up = f", up {render.duration(now - found.started_at)}" if found.started_at is not None else ""
    counts = ", ".join(f"{number} {render.state(phase)}" for phase, number in found.sessions.items() if number)
    pairs = [
        ("Stoker", f"{found.version}, {render.state(found.state)}{up}"),
        *((name.replace("_", " ").capitalize(), address) for name, address in found.addresses.items()),
        ("Requests", f"{found.in_flight} in flight, {found.waiting} waiting, {found.open} open"),
        ("Sessions", counts or "none"),
    ]
    parts = [render.facts(pairs)]
    if found.pools:
        parts.append(_pools(found.pools))
    warnings = [f"Warning: {_text(one)}" for one in (*found.warnings, found.config.get("error")) if one]
    if warnings:
        parts.append("\n".join(click.style(one, fg="yellow") for one in warnings))
    return "\n\n".join(parts)


def _pools(pools: tuple[Pool, ...]) -> str:
    """Reserved of the budget, as a bar and in numbers, and what is left."""
    heads = ("POOL", "KIND", "USE", "RESERVED", "BUDGET", "HEADROOM", "MEASURED", "OUTSIDE")
    rows = [
        (
            pool.pool_id, pool.kind, render.bar(pool.reserved_bytes, pool.budget_bytes),
            render.size(pool.reserved_bytes), render.size(pool.budget_bytes), render.size(pool.headroom_bytes),
            render.size(pool.measured_bytes), render.size(pool.outside_bytes),
        )
        for pool in pools
    ]  # fmt: skip
    right = frozenset({"RESERVED", "BUDGET", "HEADROOM", "MEASURED", "OUTSIDE"})
    lines = [render.table(heads, rows, right=right)]
    for pool in pools:
        if pool.overdraft_bytes:
            lines.append(click.style(f"{pool.pool_id} is overdrawn by {render.size(pool.overdraft_bytes)}.", fg="red"))
        if pool.unconfirmed_bytes:
            held = render.size(pool.unconfirmed_bytes)
            lines.append(click.style(f"{held} on {pool.pool_id} are held by stops that are not confirmed.", fg="red"))
    return "\n".join(lines)


def _text(warning: object) -> str:
    if isinstance(warning, dict):
        return str(warning.get("message") or warning.get("code") or warning)
    return str(warning)
