"""``list``, ``ps`` and ``show``: what there is, and what holds memory."""

from __future__ import annotations

import click

from stoker.cli import render
from stoker.cli.invocation import Command, Invocation, pass_invocation
from stoker.cli.names import complete_name
from stoker.client.records import Deployment, Session
from stoker.errors import ErrorCode, StokerError

_LIST = ("NAME", "MODEL", "ENGINE", "SIZE", "STATE", "CONTEXT", "LAST-USED")
_PS = (
    "GENERATION", "DEPLOYMENT", "REPLICA", "ENGINE", "PHASE", "MEMORY", "CONTEXT", "IN-FLIGHT", "WAITING", "UNTIL",
)  # fmt: skip
_NUMBERS = frozenset({"GENERATION", "REPLICA", "SIZE", "CONTEXT", "IN-FLIGHT", "WAITING"})


@click.command("list", cls=Command)
@pass_invocation
def list_deployments(invocation: Invocation) -> None:
    """Deployments: the models that can be asked, and what each is doing."""
    with invocation.client() as client:
        found = client.deployments()
    if invocation.as_json:
        invocation.give_json(found.raw)
        return
    now = invocation.now()
    rows = [_list_row(one, now) for one in found]
    invocation.give(render.table(_LIST, rows, right=_NUMBERS))
    if not rows:
        invocation.say("No deployments yet. Try `stoker run bundled:smollm2-135m`, or name a .gguf file.")


def _list_row(one: Deployment, now: float) -> tuple[str, ...]:
    return (
        one.name, one.model or str(one.spec.get("reference") or render.NOTHING), one.engine or render.NOTHING,
        render.size(one.size_bytes), render.state(one.state), render.count(one.context_tokens),
        render.ago(one.last_used, now),
    )  # fmt: skip


@click.command("ps", cls=Command)
@click.option("--all", "show_all", is_flag=True, help="Also sessions that are gone.")
@pass_invocation
def ps(invocation: Invocation, *, show_all: bool) -> None:
    """Sessions: each life that holds memory, also one whose end is not confirmed."""
    with invocation.client() as client:
        found = client.sessions()
        waiting = {} if invocation.as_json else {one.name: one.waiting for one in client.deployments()}
    if invocation.as_json:
        invocation.give_json(found.raw)
        return
    now = invocation.now()
    rows = [_ps_row(one, waiting, now) for one in found if show_all or one.phase != "gone"]
    invocation.give(render.table(_PS, rows, right=_NUMBERS))


def _ps_row(one: Session, waiting: dict[str, int], now: float) -> tuple[str, ...]:
    return (
        str(one.generation), one.deployment, str(one.replica), one.engine or render.NOTHING, render.state(phase(one)),
        render.by_pool(one.measured or one.reservation), render.count(one.context_tokens), str(one.in_flight),
        str(waiting.get(one.deployment, 0)), _until(one, now),
    )  # fmt: skip


def phase(one: Session) -> str:
    """The phase, and how far a start has come: initializing (loading-weights 42 %)."""
    startup = one.startup or {}
    stage, percent = startup.get("stage"), startup.get("percent")
    if not stage:
        return f"{one.phase} (for {one.earmarked_for})" if one.earmarked_for else one.phase
    return f"{one.phase} ({stage}{f' {percent:.0f} %' if percent is not None else ''})"


def _until(one: Session, now: float) -> str:
    if one.pinned:
        return "pinned"
    if one.in_flight:
        return "busy"
    return render.until(one.idle_deadline, now)


@click.command("show", cls=Command)
@click.argument("name", metavar="NAME|GENERATION", shell_complete=complete_name)
@pass_invocation
def show(invocation: Invocation, *, name: str) -> None:
    """One deployment with its settings and sessions, or one session by its generation."""
    with invocation.client() as client:
        try:
            deployment = client.deployment(name)
        except StokerError as exc:
            if exc.code is not ErrorCode.DEPLOYMENT_NOT_FOUND or not name.isdecimal():
                raise
            session = client.session(int(name))
            invocation.give_json(session.raw) if invocation.as_json else invocation.give(_session(invocation, session))
            return
        if invocation.as_json:
            invocation.give_json(deployment.raw)
            return
        lives = [one for one in client.sessions(deployment=deployment.name) if one.generation in deployment.sessions]
    invocation.give(_deployment(invocation, deployment))
    now = invocation.now()
    if lives:
        rows = [_ps_row(one, {deployment.name: deployment.waiting}, now) for one in lives]
        invocation.give("\n" + render.table(_PS, rows, right=_NUMBERS))


def _deployment(invocation: Invocation, one: Deployment) -> str:
    pairs = [
        ("Name", ", ".join(dict.fromkeys((one.name, *one.names)))),
        ("State", render.state(one.state)),
        ("Model", one.model or render.NOTHING),
        ("Reference", str(one.spec.get("reference") or render.NOTHING)),
        ("Engine", one.engine or render.NOTHING),
        ("Size", render.size(one.size_bytes)),
        ("Context", f"{render.count(one.context_tokens)} tokens" if one.context_tokens else render.NOTHING),
        ("Estimate", render.by_pool(one.estimate)),
        ("Requests", f"{one.in_flight} in flight, {one.waiting} waiting, {one.places} places"),
        ("Last used", render.ago(one.last_used, invocation.now())),
        ("Origin", f"{one.origin}, revision {one.revision}"),
    ]
    if one.hold:
        pairs.append(("Held", f"{one.hold.get('cause')} ({one.hold.get('code')}), {one.hold.get('failures')} failures"))
    if one.last_error:
        pairs.append(("Last error", _error(one.last_error)))
    settings = [
        (f"  {key}", _value(value))
        for key, value in one.spec.items()
        if value not in (None, [], {}, "") and key not in {"name", "reference", "origin"}
    ]
    return render.facts([*pairs, ("Settings", "")]) + "\n" + render.facts(settings)


def _session(invocation: Invocation, one: Session) -> str:
    now = invocation.now()
    pairs = [
        ("Generation", str(one.generation)),
        ("Deployment", f"{one.deployment}, replica {one.replica}"),
        ("Phase", render.state(phase(one)) + (f", because {one.reason}" if one.reason else "")),
        ("Since", render.ago(one.since, now)),
        ("Engine", " ".join(filter(None, (one.engine, one.installation))) or render.NOTHING),
        ("Unit", " ".join(str(one.unit[key]) for key in ("kind", "id") if one.unit.get(key)) or render.NOTHING),
        ("Reserved", render.by_pool(one.reservation)),
        ("Measured", render.by_pool(one.measured)),
        ("Context", f"{render.count(one.context_tokens)} tokens, {render.count(one.slots)} slots"),
        ("Requests", f"{one.in_flight} in flight, width {render.count(one.width)}"),
        ("Until", _until(one, now)),
        ("Can", ", ".join(one.capabilities) or render.NOTHING),
    ]
    if one.unconfirmed:
        pairs.append(("Unconfirmed", str(one.unconfirmed.get("cause"))))
    if one.exit:
        pairs.append(("Exit", ", ".join(f"{key} {value}" for key, value in one.exit.items() if value is not None)))
    argv = one.launch.get("argv_shown")
    if argv:
        pairs.append(("Command", " ".join(argv)))
    return render.facts(pairs)


def _error(error: object) -> str:
    """A last error is a Problem, or what the journal kept of one."""
    return str(error.get("message") or error.get("code")) if isinstance(error, dict) else str(error)


def _value(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{name} = {inner}" for name, inner in value.items())
        case _:
            return str(value)
