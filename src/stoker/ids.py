"""Identities: what each string or number in Stoker names.

A generation names one life of one replica and never repeats in a scope; everything that belongs to a life
(unit, folder, log, token, journal rows) is keyed by it, so the late end of one life cannot touch the next.
"""

from __future__ import annotations

from typing import NewType

DeploymentName = NewType("DeploymentName", str)
EngineId = NewType("EngineId", str)
Generation = NewType("Generation", int)
InstallationId = NewType("InstallationId", str)
Instance = NewType("Instance", str)
ModelId = NewType("ModelId", str)
OperationId = NewType("OperationId", str)
PoolId = NewType("PoolId", str)
RequestId = NewType("RequestId", str)
Scope = NewType("Scope", str)
TicketId = NewType("TicketId", str)
UnitName = NewType("UnitName", str)

RAM = PoolId("ram")


def unit_name(scope: Scope, generation: Generation) -> UnitName:
    """The host's name for the unit of one life (S-3)."""
    return UnitName(f"stoker-{scope}-{generation}")


def marker(scope: Scope, generation: Generation) -> str:
    """Value of ``STOKER_UNIT`` in a unit's environment (S-43)."""
    return f"{scope}:{generation}"
