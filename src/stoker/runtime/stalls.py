"""Waits that outlast their bound and that no running work explains (R-29, R-33).

A stall is told once when it begins and once when it is over; the gauge shows it meanwhile, and one that lasts a minute
makes the daemon report itself not ready. It mends nothing: whatever is stuck here is a defect, or a unit that does
not end.
"""

from __future__ import annotations

from stoker.ids import DeploymentName
from stoker.runtime.machine import Machine
from stoker.runtime.room import Room
from stoker.runtime.state import LIVE, LOADING, Deployment

UNREADY_AFTER_S = 60.0


class Stalls:
    def __init__(self, machine: Machine, room: Room) -> None:
        self._machine, self._state, self._room = machine, machine.state, room

    def look(self) -> None:
        """Compare every waiting head with its bound; called each second while a ticket waits or a stall stands."""
        state = self._state
        ahead = 0
        heads = [(head.queued_at, d) for d in state.deployments.values() if (head := d.queue.head()) is not None]
        for queued_at, deployment in sorted(heads, key=lambda entry: (entry[0], entry[1].name)):
            starts_by = queued_at + (ahead + 1) * self._room.swap_bound_s(deployment)
            if state.now > starts_by and self._is_unexplained(deployment):
                self._stall(deployment, queued_at)
            else:
                self._recover(deployment.name)
            ahead += not any(session.phase in LIVE for session in state.of(deployment))
        waiting = {deployment.name for _, deployment in heads}
        for name in [name for name in state.stalled if name not in waiting]:
            self._recover(name)

    def _is_unexplained(self, deployment: Deployment) -> bool:
        """Work in flight ends in its own time, and a start has a bound of its own (S-102)."""
        match self._state.blocked_by(deployment):
            case "memory":
                return True
            case "load":
                return not any(session.phase in LOADING for session in self._state.sessions.values())
            case _:
                return False

    def _stall(self, deployment: Deployment, queued_at: float) -> None:
        state, name = self._state, deployment.name
        if name in state.stalled:
            return
        state.stalled[name] = state.now
        self._machine.announce(
            "queue.stalled", deployment=name, ticket_id=next(iter(deployment.queue)),
            blocked_by=state.blocked_by(deployment), waited_ms=round((state.now - queued_at) * 1000),
        )  # fmt: skip

    def _recover(self, name: DeploymentName) -> None:
        began = self._state.stalled.pop(name, None)
        if began is not None:
            stalled_ms = round((self._state.now - began) * 1000)
            self._machine.announce("queue.recovered", deployment=name, stalled_ms=stalled_ms)
