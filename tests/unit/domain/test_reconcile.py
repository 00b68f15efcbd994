"""R1 to R14 as a table: every combination has exactly one verdict, and none acts on labels alone (acceptance 46)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.domain.reconcile import RULES, Action, Finding, IdentityVerdict, RowVerdict, judge

SAME, OTHER, GONE, UNREADABLE = IdentityVerdict
BOTH = (False, True)
ACTS = {Action.REAP, Action.ADOPT}
MEMBERS = ((), (SAME,), (OTHER,), (GONE,), (UNREADABLE,), (GONE, OTHER), (UNREADABLE, SAME), (GONE, UNREADABLE))


def processes() -> Iterator[Finding]:
    for boot, guardian, members, cgroup, identity, age_s, looked in product(
        BOTH, (None, *IdentityVerdict), MEMBERS, BOTH, BOTH, (None, 1.0, 5.0), (0, 1)
    ):
        yield Finding(
            "process",
            same_boot=boot,
            guardian=guardian,
            members=members,
            in_our_cgroup=cgroup,
            has_identity=identity,
            intent_age_s=age_s,
            looked_again=looked,
        )


def containers() -> Iterator[Finding]:
    for scope, boot, identity, reached, state, name, labels, intent, adoptable, looked in product(
        BOTH,
        BOTH,
        BOTH,
        BOTH,
        (None, "running", "exited", "absent", "unknown"),
        BOTH,
        BOTH,
        BOTH,
        BOTH,
        (0, 1, 2),
    ):
        yield Finding(
            "container",
            scope_is_ours=scope,
            same_boot=boot,
            has_identity=identity,
            runtime_reachable=reached,
            container_state=state,
            found_by_name=name,
            labels_ours=labels,
            start_intent_open=intent,
            adoptable=adoptable,
            looked_again=looked,
        )


EVERY = [*processes(), *containers()]
EVERY += [replace(finding, has_row=False) for finding in EVERY]

FINDINGS = st.builds(
    Finding,
    st.sampled_from(["process", "container"]),
    has_row=st.booleans(),
    scope_is_ours=st.booleans(),
    same_boot=st.booleans(),
    guardian=st.none() | st.sampled_from(list(IdentityVerdict)),
    members=st.lists(st.sampled_from(list(IdentityVerdict)), max_size=3).map(tuple),
    in_our_cgroup=st.booleans(),
    has_identity=st.booleans(),
    intent_age_s=st.none() | st.floats(0, 100),
    runtime_reachable=st.booleans(),
    container_state=st.sampled_from([None, "running", "exited", "absent", "unknown", "removing"]),
    found_by_name=st.booleans(),
    labels_ours=st.booleans(),
    start_intent_open=st.booleans(),
    adoptable=st.booleans(),
    looked_again=st.integers(0, 3),
)


def test_every_combination_has_exactly_one_verdict_and_every_line_decides_something():
    first = [next(n for n, rule in enumerate(RULES) if rule.holds(finding)) for finding in EVERY]
    assert [judge(finding).rule for finding in EVERY] == [RULES[n].rule for n in first]
    assert set(first) == set(range(len(RULES)))


def test_the_lines_stand_in_the_order_of_their_numbers_and_none_is_missing():
    numbers = [int(rule.rule.removeprefix("R")) for rule in RULES]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, 15))


def test_nothing_without_a_row_is_ever_touched():
    for finding in EVERY:
        if not finding.has_row:
            assert judge(finding).action in {Action.REPORT, Action.IGNORE}
            assert not judge(finding).also_forget_row


@given(FINDINGS)
def test_labels_and_scope_alone_never_make_an_act(finding):
    """What is stopped, removed or adopted has a row, and its identity, cgroup, id or recorded name speaks for it."""
    verdict = judge(finding)
    if verdict.action not in ACTS:
        return
    assert finding.has_row
    if finding.kind == "process":
        assert finding.in_our_cgroup or SAME in (finding.guardian, *finding.members)
        relabelled = replace(finding, labels_ours=not finding.labels_ours, scope_is_ours=not finding.scope_is_ours)
        assert judge(relabelled) == verdict
    else:
        assert not finding.found_by_name or (finding.labels_ours and finding.scope_is_ours)
        assert finding.container_state in {"running", "exited"}


@given(FINDINGS)
def test_a_row_is_forgotten_only_when_nothing_may_be_left_of_it(finding):
    verdict = judge(finding)
    if verdict.action is not Action.FORGET or not finding.same_boot:
        return
    if finding.kind == "process":
        assert not finding.in_our_cgroup
        assert not {SAME, UNREADABLE} & {finding.guardian, *finding.members}
    else:
        assert finding.runtime_reachable
        assert finding.container_state == "absent"
        assert not finding.found_by_name


@given(FINDINGS)
def test_processes_are_never_adopted_and_containers_only_when_adoptable(finding):
    if judge(finding).action is Action.ADOPT:
        assert finding.kind == "container"
        assert finding.adoptable
        assert finding.same_boot


PROCESS = Finding("process", members=(GONE,))
CONTAINER = Finding("container", container_state="running")


@pytest.mark.parametrize(
    ("finding", "rule", "action"),
    [
        (replace(PROCESS, same_boot=False, members=(SAME,)), "R1", Action.FORGET),
        (replace(PROCESS, guardian=SAME), "R2", Action.WAIT),
        (replace(PROCESS, guardian=SAME, looked_again=1), "R3", Action.REAP),
        (replace(PROCESS, guardian=GONE, members=(OTHER, SAME)), "R3", Action.REAP),
        (replace(PROCESS, in_our_cgroup=True), "R3", Action.REAP),
        (replace(PROCESS, members=(UNREADABLE, SAME)), "R3", Action.REAP),
        (replace(PROCESS, members=(UNREADABLE, GONE)), "R4", Action.REPORT),
        (replace(PROCESS, members=()), "R4", Action.REPORT),
        (replace(PROCESS, members=(GONE, OTHER)), "R5", Action.FORGET),
        (replace(PROCESS, members=(), has_identity=False, intent_age_s=4.9), "R5", Action.WAIT),
        (replace(PROCESS, members=(), has_identity=False, intent_age_s=5.0), "R5", Action.FORGET),
        (replace(PROCESS, members=(), has_identity=False), "R5", Action.FORGET),
        (replace(CONTAINER, runtime_reachable=False), "R6", Action.REPORT),
        (replace(CONTAINER, container_state="unknown"), "R6", Action.REPORT),
        (replace(CONTAINER, container_state="absent"), "R7", Action.FORGET),
        (replace(CONTAINER, container_state="absent", start_intent_open=True), "R7", Action.FORGET),
        (replace(CONTAINER, found_by_name=True, labels_ours=False), "R8", Action.REPORT),
        (replace(CONTAINER, container_state="exited"), "R9", Action.REAP),
        (replace(CONTAINER, adoptable=True), "R10", Action.ADOPT),
        (CONTAINER, "R11", Action.REAP),
        (
            replace(CONTAINER, container_state="absent", start_intent_open=True, has_identity=False, looked_again=1),
            "R12",
            Action.HOLD,
        ),
        (
            replace(CONTAINER, container_state="absent", start_intent_open=True, has_identity=False, looked_again=2),
            "R12",
            Action.FORGET,
        ),
        (replace(CONTAINER, has_row=False), "R13", Action.REPORT),
        (replace(PROCESS, has_row=False, members=(SAME,)), "R13", Action.REPORT),
        (replace(CONTAINER, has_row=False, scope_is_ours=False), "R14", Action.IGNORE),
    ],
)
def test_each_line_of_s_91(finding, rule, action):
    assert (judge(finding).rule, judge(finding).action) == (rule, action)


def test_a_stranger_of_our_name_is_reported_and_only_the_row_is_forgotten():
    stranger = replace(CONTAINER, found_by_name=True, labels_ours=False)
    assert judge(stranger) == RowVerdict("R8", Action.REPORT, also_forget_row=True)


def test_the_same_verdicts_come_again_when_reconcile_is_interrupted():
    assert [judge(finding) for finding in EVERY] == [judge(finding) for finding in EVERY]
