"""What the kernel hands out: complete instructions for the shell, in the order they must be carried out.

Effects of one life go to its supervisor; the rest are short and carried at once. None of them decides anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.events import Event
from stoker.domain.session import Effect
from stoker.ids import DeploymentName, Generation, PoolId
from stoker.ports.journal import Hold, OperationRow
from stoker.ports.units import UnitIdentity
from stoker.runtime.state import Prospect
from stoker.runtime.tickets import Door, Ticket


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that a supervisor needs to know of its life. ``prospect`` and ``plan`` are None for a leftover."""

    generation: Generation
    deployment: DeploymentName
    replica: int
    reservation: Mapping[PoolId, int]
    load_key: str
    spec: DeploymentSpec | None = None
    prospect: Prospect | None = None
    plan: object | None = None
    load_timeout_s: float | None = None
    leftover: UnitIdentity | None = None
    life_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Spawn:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Carry:
    """One effect of a life, with the reason its life ends for, once it does."""

    generation: Generation
    effect: Effect
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """A session is ready: its connections may be opened, and its liveness watched, before the first grant."""

    door: Door


@dataclass(frozen=True, slots=True)
class Wake:
    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Announce:
    event: Event


@dataclass(frozen=True, slots=True)
class Resolve:
    spec: DeploymentSpec


@dataclass(frozen=True, slots=True)
class FetchGenerations:
    pass


@dataclass(frozen=True, slots=True)
class WriteHold:
    """``hold`` None: the hold of that replica is over."""

    deployment: DeploymentName
    replica: int
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class WriteOperation:
    row: OperationRow
    ended: bool = field(default=False)


Instruction = Spawn | Carry | OpenDoor | Wake | Announce | Resolve | FetchGenerations | WriteHold | WriteOperation
