"""Proof before a start: the memory that was promised is really free (M-76).

One object for the whole daemon, because a start must also leave alone what other starts were promised and have not
yet taken. It never assumes: a pool that cannot be read denies after the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from stoker.domain.footprint import Footprint
from stoker.domain.hardware import Hardware, PoolState
from stoker.domain.session import Failure
from stoker.ids import Generation, PoolId
from stoker.ports.devices import Devices
from stoker.ports.threads import Threads
from stoker.runtime.inputs import HardwareRead

_POLL_S = 0.25
_OWN_EXIT_BOUND_S = 10.0
_OUTSIDE_BOUND_S = 20.0
_GIB = 2**30


@dataclass(slots=True)
class Rooms:
    """Claims of starts that have not allocated yet. ``post`` hands fresh readings to the kernel."""

    devices: Devices
    threads: Threads
    post: Callable[[Any], None]
    now: Callable[[], float]
    _loading: dict[Generation, Mapping[PoolId, int]] = field(default_factory=dict)
    _last_exit: float = float("-inf")

    async def claim(self, generation: Generation, footprint: Footprint) -> Failure | None:
        """None once every pool has ``start_need`` beside what other starts still have to take; else why not.

        Already enough: at once. Else looked at every 0.25 s, for 10 s after an exit of ours, 20 s otherwise.
        """
        need = footprint.start_need or footprint.charge
        started = self.now()
        bound_s = _OWN_EXIT_BOUND_S if started - self._last_exit < _OWN_EXIT_BOUND_S else _OUTSIDE_BOUND_S
        while True:
            hardware = await self._read()
            short = self._short(generation, need, hardware)
            if short is None:
                self._loading[generation] = dict(need)
                return None
            if self.now() - started >= bound_s:
                return self._denied(*short, after_our_exit=bound_s == _OWN_EXIT_BOUND_S)
            await anyio.sleep(_POLL_S)

    async def _read(self) -> Hardware:
        hardware = await self.threads(self.devices.read)
        self.post(HardwareRead(hardware))
        return hardware

    def _short(
        self, generation: Generation, need: Mapping[PoolId, int], hardware: Hardware
    ) -> tuple[PoolId, int, int] | None:
        for pool_id, amount in need.items():
            pool = hardware.pools.get(pool_id)
            if pool is None or pool.state is not PoolState.OK:
                return pool_id, amount, 0
            others = sum(n.get(pool_id, 0) for g, n in self._loading.items() if g != generation)
            if pool.free_bytes < amount + others:
                return pool_id, amount, max(0, pool.free_bytes - others)
        return None

    @staticmethod
    def _denied(pool: PoolId, need: int, free: int, *, after_our_exit: bool) -> Failure:
        code = "memory-not-returned" if after_our_exit else "outside-memory"
        who = "memory of ended engines has not come back" if after_our_exit else "other programs hold the rest"
        return Failure(
            code,
            f"The start needs {need / _GIB:.2f} GiB free on {pool} and {free / _GIB:.2f} GiB are; {who}.",
            kind=code,
            remedy="End other programs that use memory, or load a smaller model.",
            numbers={"needed_bytes": need, "available_bytes": free},
            retry_after_s=15,
        )

    def allocated(self, generation: Generation) -> None:
        """The engine is ready: what it needed is taken and shows in what is free."""
        self._loading.pop(generation, None)

    def release(self, generation: Generation) -> None:
        """The life is over; idempotent."""
        self._loading.pop(generation, None)
        self._last_exit = self.now()
