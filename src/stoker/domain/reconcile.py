"""What to do with what an earlier run left: row + finding -> verdict (S-90 to S-95)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class IdentityVerdict(StrEnum):
    SAME = "same"
    OTHER = "other"
    GONE = "gone"
    UNREADABLE = "unreadable"


class Action(StrEnum):
    FORGET = "forget"
    WAIT = "wait"
    REAP = "reap"
    REPORT = "report"
    HOLD = "hold"
    ADOPT = "adopt"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the host says about one journal row, or about one stranger when ``has_row`` is false."""

    kind: str  # process | container
    has_row: bool = True
    scope_is_ours: bool = True
    same_boot: bool = True
    guardian: IdentityVerdict | None = None
    members: tuple[IdentityVerdict, ...] = ()
    in_our_cgroup: bool = False
    has_identity: bool = True
    intent_age_s: float | None = None
    runtime_reachable: bool = True
    container_state: str | None = None  # running | exited | absent | unknown | None
    found_by_name: bool = False
    labels_ours: bool = True
    start_intent_open: bool = False
    adoptable: bool = False
    looked_again: int = 0


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """``rule``: R1 to R14 of S-91, the first that matched."""

    rule: str
    action: Action
    also_forget_row: bool = False


def judge(finding: Finding) -> RowVerdict:
    """First match of S-91 decides; every combination has exactly one verdict, and none acts on labels alone."""
    raise NotImplementedError
