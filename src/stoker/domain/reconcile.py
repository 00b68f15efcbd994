"""What to do with what an earlier run left: row + finding -> verdict (S-90 to S-95).

One table, read from the top: the first rule whose condition holds decides. Labels, names and markers are grounds to
report; stopping, removing and adopting need a row of ours too (S-92). Not known here: hosts, and how to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class IdentityVerdict(StrEnum):
    SAME = "same"
    OTHER = "other"
    GONE = "gone"
    UNREADABLE = "unreadable"


class Action(StrEnum):
    """``report`` of something with a row: say so, hold its memory and try again, unless the row is forgotten too."""

    FORGET = "forget"
    WAIT = "wait"
    REAP = "reap"
    REPORT = "report"
    HOLD = "hold"
    ADOPT = "adopt"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Finding:
    """What the host says about one journal row, or about one stranger when ``has_row`` is false.

    ``has_row``: an open journal row, or a `unit.json` of that generation (S-92). ``has_identity``: pid and start time,
    or the runtime's id, are recorded. ``looked_again`` counts later looks at the same finding.
    """

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


# S-91: an intent whose guardian never wrote its identity is given this long; a create may complete twice as late.
IDENTITY_WAIT_S = 5.0
CREATE_LOOKS = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of S-91. ``finding`` says its condition in words, for the design page."""

    rule: str
    finding: str
    holds: Callable[[Finding], bool]
    action: Action
    also_forget_row: bool = False


def _is_process(f: Finding) -> bool:
    return f.has_row and f.kind == "process"


def _is_container(f: Finding) -> bool:
    return f.has_row and f.kind != "process"


def _alive(f: Finding) -> bool:
    return f.in_our_cgroup or IdentityVerdict.SAME in (f.guardian, *f.members)


def _unreadable(f: Finding) -> bool:
    """Something could not be read, or an identity is recorded and nothing was said about it: no proof of an end."""
    said = [verdict for verdict in (f.guardian, *f.members) if verdict is not None]
    return IdentityVerdict.UNREADABLE in said or (f.has_identity and not said)


def _identity_may_come(f: Finding) -> bool:
    return not f.has_identity and f.intent_age_s is not None and f.intent_age_s < IDENTITY_WAIT_S


def _runs(f: Finding) -> bool:
    return f.container_state == "running"


def _nothing_found(f: Finding) -> bool:
    return f.container_state == "absent" and not f.found_by_name


def _create_may_complete(f: Finding) -> bool:
    return f.start_intent_open and not f.has_identity


def _unknown(f: Finding) -> bool:
    known = f.container_state in {"running", "exited"} or _nothing_found(f)
    return not f.runtime_reachable or not known


def _is_stranger(f: Finding) -> bool:
    return f.found_by_name and not (f.labels_ours and f.scope_is_ours)


RULES: tuple[Rule, ...] = (
    Rule("R1", "process, other boot", lambda f: _is_process(f) and not f.same_boot, Action.FORGET),
    Rule(
        "R2",
        "process, guardian still at its orphan work, first look",
        lambda f: _is_process(f) and f.guardian is IdentityVerdict.SAME and not f.looked_again,
        Action.WAIT,
    ),
    Rule(
        "R3",
        "process, guardian or a member is the same, or something is in our cgroup",
        lambda f: _is_process(f) and _alive(f),
        Action.REAP,
    ),
    Rule(
        "R4",
        "process, guardian or a member unreadable, or an identity nobody could look at",
        lambda f: _is_process(f) and _unreadable(f),
        Action.REPORT,
    ),
    Rule(
        "R5",
        f"process, start intent younger than {IDENTITY_WAIT_S:.0f} s, no identity yet",
        lambda f: _is_process(f) and _identity_may_come(f),
        Action.WAIT,
    ),
    Rule("R5", "process, everything gone or another, or no identity", _is_process, Action.FORGET),
    Rule(
        "R6",
        "container, runtime unreachable or state unknown",
        lambda f: _is_container(f) and _unknown(f),
        Action.REPORT,
    ),
    Rule(
        "R7",
        "container, absent by id and by name, and no create can still complete",
        lambda f: _is_container(f) and _nothing_found(f) and not _create_may_complete(f),
        Action.FORGET,
    ),
    Rule(
        "R8",
        "container by name, but its id or labels are not ours",
        lambda f: _is_container(f) and _is_stranger(f),
        Action.REPORT,
        also_forget_row=True,
    ),
    Rule(
        "R9",
        "container exited or never started",
        lambda f: _is_container(f) and f.container_state == "exited",
        Action.REAP,
    ),
    Rule(
        "R10",
        "container running and adoptable",
        lambda f: _is_container(f) and _runs(f) and f.adoptable and f.same_boot,
        Action.ADOPT,
    ),
    Rule("R11", "container running, else", lambda f: _is_container(f) and _runs(f), Action.REAP),
    Rule(
        "R12",
        f"container, start intent without outcome, nothing found, looked fewer than {CREATE_LOOKS} times again",
        lambda f: _is_container(f) and f.looked_again < CREATE_LOOKS,
        Action.HOLD,
    ),
    Rule(
        "R12",
        "container, start intent without outcome, still nothing found",
        _is_container,
        Action.FORGET,
    ),
    Rule("R13", "no row, but our scope in label or marker", lambda f: f.scope_is_ours, Action.REPORT),
    Rule("R14", "no row, another scope's", lambda f: not f.scope_is_ours, Action.IGNORE),
)


def judge(finding: Finding) -> RowVerdict:
    """First match of S-91 decides; every combination has exactly one verdict, and none acts on labels alone."""
    rule = next(rule for rule in RULES if rule.holds(finding))
    return RowVerdict(rule.rule, rule.action, rule.also_forget_row)
