"""S-23, acceptance 57: which engine logs stay."""

from __future__ import annotations

from stoker.domain.log_retention import KEPT_BYTES, KEPT_S, LogFiles, expired

NOW = 10_000_000.0


def logs(count: int, size: int = 100, age: float = 0.0) -> list[LogFiles]:
    return [LogFiles(n, size, NOW - age) for n in range(1, count + 1)]  # type: ignore[arg-type]


def test_the_last_five_lives_of_a_replica_stay() -> None:
    owner = dict.fromkeys(range(1, 51), ("a", 0))
    assert expired(logs(50), replica_of=owner, protected=(), wall=NOW) == tuple(range(1, 46))


def test_each_replica_has_its_own_five() -> None:
    owner = {n: ("a", n % 2) for n in range(1, 11)}
    assert expired(logs(10), replica_of=owner, protected=(), wall=NOW) == ()


def test_old_logs_go_and_a_live_or_last_failed_one_never() -> None:
    old = logs(3, age=KEPT_S + 1)
    assert expired(old, replica_of={}, protected={2}, wall=NOW) == (1, 3)


def test_the_total_size_is_bounded_oldest_first() -> None:
    assert expired(logs(4, size=KEPT_BYTES // 2), replica_of={}, protected=(), wall=NOW) == (1, 2)
