"""What a changed deployment means for the lives that run on its old settings (S-11, S-12, C-26).

Nothing that runs is touched before the changed settings have been resolved and are known to be right. Then a life of
the same load key takes them over for its next request, and one of another key makes way for a new life.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.session import AdoptSettings, Cancel, Phase, Reason, Stop
from stoker.engines.settings import read_settings, restart_values
from stoker.errors import UsageError
from stoker.observability.scrub import SET, Scrubber
from stoker.runtime.machine import Machine
from stoker.runtime.state import LIVE, LOADING, Deployment, Prospect, Session

# Keys whose change needs a new life (effect D of control section 7); the rest count at once. Of ``settings`` only
# those that the engine takes at its start do.
RESTART_KEYS = frozenset(
    {"reference", "engine", "context_tokens", "slots", "settings", "engine_args", "env", "declared_bytes", "fixed_port"}
)


def spec_changes(old: DeploymentSpec | None, new: DeploymentSpec, *, settings_restart: bool = True) -> list[Any]:
    """What differs, key by key, with the effect of each change (C-26)."""
    live = frozenset() if settings_restart else frozenset({"settings"})
    changes = []
    for entry in fields(DeploymentSpec):
        before = getattr(old, entry.name) if old is not None else None
        after = getattr(new, entry.name)
        if entry.name in {"name", "origin"} or before == after or (old is None and after == entry.default):
            continue
        changes.append(
            {
                "key": f'models."{new.name}".{entry.name}',
                "old": _shown(entry.name, before),
                "new": _shown(entry.name, after),
                "origin": new.origin,
                "effect": "D" if entry.name in RESTART_KEYS - live else "L",
                "subjects": [new.name],
            }
        )
    return changes


def _shown(key: str, value: Any) -> Any:
    """Values as JSON; environment values may be secrets and show as set (C-46)."""
    if key == "env" and isinstance(value, Mapping):
        return dict.fromkeys(value, SET)
    if key == "engine_args" and value:
        return list(Scrubber().argv(value))
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def settings_restart(deployment: Deployment | None, spec: DeploymentSpec) -> bool:
    """Would the settings of ``spec`` need a new life? Not if only the next request needs them, or if they are wrong."""
    if deployment is None or deployment.prospect is None:
        return True
    prospect = deployment.prospect
    try:
        settings = read_settings(prospect.adapter.settings, spec.settings)
    except UsageError:
        return False
    return restart_values(settings) != restart_values(prospect.settings)


def take_over(machine: Machine, deployment: Deployment) -> None:
    """Settings that are known to be right reach the lives that run (S-12)."""
    prospect = deployment.prospect
    assert prospect is not None
    for session in machine.state.of(deployment):
        if session.phase not in LIVE or session.prospect is None:
            continue
        if session.load_key == prospect.load_key:
            _adopt(machine, session, prospect)
        elif session.phase in LOADING:
            machine.feed(session, Cancel(session.generation, Reason.SUPERSEDED, by="superseded"))
        else:
            drain_s = machine.limits.drain_change_s
            machine.feed(session, Stop(session.generation, Reason.CONFIG_CHANGED, drain_s=drain_s))


def _adopt(machine: Machine, session: Session, prospect: Prospect) -> None:
    assert session.prospect is not None
    before, after = session.prospect.settings, prospect.settings
    session.prospect = prospect
    names = type(after).model_fields
    changed = tuple(sorted(name for name in names if getattr(before, name) != getattr(after, name)))
    if not changed:
        return
    if session.plan is not None:
        session.plan = replace(session.plan, settings=after)
    if session.phase is not Phase.READY:
        return
    if session.door is not None and session.plan is not None and session.accepted is not None:
        session.door = replace(session.door, wire=prospect.adapter.wire(session.plan, session.accepted))
    machine.feed(session, AdoptSettings(session.generation, changed))
