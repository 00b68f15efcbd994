"""`ProcessUnits` keeps the contract of `Units` (S-25)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from process_programs import PROGRAMS, make_plan, missing_program

from stoker.hosts.process.units import ProcessUnits
from stoker.ports.units import UnitPlan
from stoker.testing.units_contract import CHECKS, Behaviour, Check

pytestmark = pytest.mark.anyio


@dataclass
class Rig:
    units: ProcessUnits
    folder: Path

    def plan(self, generation: int, behaviour: Behaviour) -> UnitPlan:
        if behaviour is Behaviour.MISSING:
            return missing_program(self.folder, generation)
        return make_plan(self.folder, generation, PROGRAMS[behaviour])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_process_units_keep_the_contract(check: Check, units: ProcessUnits, tmp_path: Path) -> None:
    await check(Rig(units, tmp_path))
