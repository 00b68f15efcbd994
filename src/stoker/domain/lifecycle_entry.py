"""How a life enters the session machine: a load, a unit of an earlier run that goes on, or one nobody has proven gone.

Decides where a life begins and what its first effects are; from there on `stoker.domain.lifecycle` alone changes its
phase. ``more`` are further fields of the state: unit kind and name, grace, substituted card.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.domain import lifecycle_events as say
from stoker.domain.session import ArmTimer, ClaimRoom, Phase, Reason, SessionState, Step, WatchLoad, WatchUnit
from stoker.ids import DeploymentName, Generation, PoolId


def reserved(
    *,
    generation: Generation,
    deployment: DeploymentName,
    replica: int,
    reservation: Mapping[PoolId, int],
    now: float,
    claim_wait_s: float,
    cause: str,
    ticket: str | None = None,
    cards: tuple[str, ...] = (),
    **more: Any,
) -> Step:
    """A load begins; ``claim_wait_s`` bounds its wait for the machine's room (S-5)."""
    state = SessionState(
        generation, deployment, replica, Phase.RESERVED, reservation, since=now, started_at=now, **more
    )  # fmt: skip
    announced = say.reserved(state, cards=cards, ticket=ticket, cause=cause)
    return Step(state, (announced, ClaimRoom(generation), ArmTimer(generation, "reserved", claim_wait_s)))


def adopted(
    *,
    generation: Generation,
    deployment: DeploymentName,
    replica: int,
    reservation: Mapping[PoolId, int],
    now: float,
    **more: Any,
) -> Step:
    """A unit of an earlier run goes on under its generation, once it has passed readiness again (S-93)."""
    state = SessionState(
        generation, deployment, replica, Phase.INITIALIZING, reservation, since=now, started_at=now, stage="verifying",
        adopted=True, has_start_intent=True, load_reported=True, **more,
    )  # fmt: skip
    return Step(state, (WatchUnit(generation), WatchLoad(generation)))


def leftover(
    *,
    generation: Generation,
    deployment: DeploymentName,
    replica: int,
    reservation: Mapping[PoolId, int],
    now: float,
    cause: str = "unknown-state",
    **more: Any,
) -> Step:
    """A life of an earlier run: it holds what its row says until its unit is proven gone (S-94).

    Nothing is published yet: the first stop that is not confirmed says so.
    """
    state = SessionState(
        generation, deployment, replica, Phase.STOP_UNCONFIRMED, reservation, since=now, started_at=now,
        reason=Reason.ORPHANED, has_start_intent=True, load_reported=True, unconfirmed_cause=cause,
        next_retry_at=now + say.retry_stop_s(0), **more,
    )  # fmt: skip
    return Step(state, (ArmTimer(generation, "retry-stop"),))
