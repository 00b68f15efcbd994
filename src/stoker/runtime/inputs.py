"""What the shell may tell the kernel beside the session machine's own inputs, and what surfaces may ask of it.

Commands carry what the caller said, checked for form; whether it is possible is the kernel's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.domain.deployments import DeploymentSpec
from stoker.domain.hardware import Hardware
from stoker.errors import StokerError
from stoker.ids import DeploymentName, Generation, OperationId, PoolId
from stoker.ports.journal import Hold, OpenLife, OperationRow
from stoker.runtime.state import Prospect
from stoker.runtime.tickets import End, Ticket

# -- observations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimePassed:
    """An alarm went off. ``net``: the safety pass of R-33, which should find nothing to do."""

    net: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    deployment: DeploymentName
    spec: DeploymentSpec
    prospect: Prospect


@dataclass(frozen=True, slots=True)
class Unresolved:
    deployment: DeploymentName
    spec: DeploymentSpec
    error: StokerError


@dataclass(frozen=True, slots=True)
class HardwareRead:
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class GenerationsStored:
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LeftoverFound:
    """A journal row that is not gone: a resident with its recorded reservation until proven otherwise (S-90)."""

    life: OpenLife


@dataclass(frozen=True, slots=True)
class LeftoverJudged:
    """What reconcile decided of a leftover (S-91): published, and acted on through the one teardown."""

    generation: Generation
    rule: str
    action: str
    found: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HoldsRead:
    holds: tuple[Hold, ...]
    wall: float


@dataclass(frozen=True, slots=True)
class OperationsRead:
    """Operations of earlier runs; one that had a runner then has none now (C-9)."""

    rows: tuple[OperationRow, ...]


@dataclass(frozen=True, slots=True)
class ModelsListed:
    """Specs of deployments that exist because a stored model does; they come and go with it."""

    specs: tuple[DeploymentSpec, ...]


@dataclass(frozen=True, slots=True)
class UnitUsed:
    """A session's measured memory, bytes per pool (M-75)."""

    generation: Generation
    measured: Mapping[PoolId, int]


@dataclass(frozen=True, slots=True)
class Launched:
    """How a life is launched: what views may show, and the token its door needs (S-47), which no view shows."""

    generation: Generation
    argv_shown: tuple[str, ...]
    env_names: tuple[str, ...]
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Opened:
    """Reconcile is done: admission opens (S-90, step 5). ``reconciled`` counts its verdicts."""

    reconciled: Mapping[str, int] = field(default_factory=dict)


# -- commands ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leave:
    ticket: Ticket
    end: End


@dataclass(frozen=True, slots=True)
class Requeue:
    """The engine said it was still loading before any byte was relayed: the old rank again, once (R-45)."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class CancelTicket:
    ticket_or_request: str


@dataclass(frozen=True, slots=True)
class LoadDeployment:
    name: DeploymentName
    by: str
    replica: int | None = None
    settings: Mapping[str, Any] | None = None
    load_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class UnloadDeployment:
    name: DeploymentName
    by: str
    replica: int | None = None
    mode: str = "drain"
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class StopSession:
    generation: Generation
    by: str
    mode: str = "drain"
    drain_s: float | None = None


@dataclass(frozen=True, slots=True)
class ForceReleaseSession:
    generation: Generation
    by: str


@dataclass(frozen=True, slots=True)
class PinDeployment:
    name: DeploymentName
    pinned: bool


@dataclass(frozen=True, slots=True)
class ScaleDeployment:
    name: DeploymentName
    replicas: int


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    name: DeploymentName
    replica: int | None


@dataclass(frozen=True, slots=True)
class PutDeployment:
    spec: DeploymentSpec
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DeleteDeployment:
    name: DeploymentName
    by: str


@dataclass(frozen=True, slots=True)
class SetBudget:
    """``budget_bytes`` None: automatic again."""

    pool: PoolId
    budget_bytes: int | None
    origin: str = "control"


@dataclass(frozen=True, slots=True)
class CancelOperation:
    operation_id: OperationId


@dataclass(frozen=True, slots=True)
class BeginShutdown:
    """Refuse new work, fail what waits, drain everything in parallel (S-18). ``skip_drain`` on the second signal."""

    skip_drain: bool = False
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Live numbers of the configuration that the kernel decides by."""

    max_waiting_total: int = 512
    swap_bound_s: float = 15.0
    swap_bound_factor: float = 4.0
    claim_wait_s: float = 120.0
    abandoned_load: str = "finish"
    drain_operator_s: float = 30.0
    drain_change_s: float = 600.0
    hang_s: float = 300.0
    defaults: Mapping[str, Any] = field(default_factory=dict)
