"""What the gateway and the kernel say to each other about one request.

A ticket is owned by the kernel; others only read it. A grant is the right to use one replica now; it ends with
`Kernel.leave`, which is idempotent and works in every state of the ticket (R-11, R-12).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from stoker.errors import StokerError
from stoker.ids import DeploymentName, Generation, RequestId, TicketId
from stoker.ports.engines import Accepted, Wire
from stoker.ports.units import Endpoint


class TicketState(StrEnum):
    WAITING = "waiting"
    GRANTED = "granted"
    RELEASED = "released"
    REFUSED = "refused"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class End(StrEnum):
    """How a granted request ended; ``complete`` restores the restart budget and counts as a served answer."""

    COMPLETE = "complete"
    CLIENT_GONE = "client-gone"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ENGINE_BROKE = "engine-broke"
    REFUSED = "refused"


@dataclass(slots=True)
class Activity:
    """Loop time of the last byte of any answer of one session; written by the relay, read by the liveness watch."""

    last_byte_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class Door:
    """How to reach one ready session: fixed when it becomes ready."""

    generation: Generation
    deployment: DeploymentName
    replica: int
    endpoint: Endpoint
    token: str | None = field(repr=False)
    served_name: str
    accepted: Accepted
    wire: Wire
    first_token_timeout_s: float
    stream_idle_timeout_s: float
    activity: Activity = field(default_factory=Activity, compare=False)


@dataclass(frozen=True, slots=True)
class Ask:
    """One work request that wants a place. ``max_wait_s`` None: the deployment's own alone."""

    request_id: RequestId
    deployment: DeploymentName
    max_wait_s: float | None = None
    keep_alive_s: float | None = None
    may_load: bool = True
    client: str = ""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place in the order. ``wake`` is called synchronously each time the state leaves ``waiting``.

    ``error`` is set for refused, expired and cancelled tickets. Times are loop time.
    """

    ticket_id: TicketId
    ask: Ask
    deployment: DeploymentName
    queued_at: float
    wake: Callable[[Ticket], None]
    state: TicketState = TicketState.WAITING
    door: Door | None = None
    error: StokerError | None = None
    blocked_by: str = "load"
    granted_at: float | None = None
    ended_at: float | None = None
    requeued: bool = False

    @property
    def generation(self) -> Generation | None:
        return self.door.generation if self.door else None
