"""Built-in and foreign adapters (E-8 to E-11)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from stoker.engines.llama_cpp.adapter import ADAPTER
from stoker.engines.registry import built_in, check_adapter, load_registry
from stoker.engines.settings import EngineSettings
from stoker.errors import ErrorCode, UsageError
from stoker.ids import EngineId


@dataclass(frozen=True)
class Distribution:
    name: str


@dataclass(frozen=True)
class Point:
    """An entry point as the registry uses it."""

    name: str
    make: Any
    dist: Distribution | None = Distribution("other-engines")

    def load(self):
        return self.make


def other(**members):
    return replace(ADAPTER, id=EngineId("other"), **members)


def explode():
    raise RuntimeError("no such card")


def leave():
    raise SystemExit(3)


def test_the_built_in_adapters_keep_the_rules_in_their_order() -> None:
    registry = load_registry(foreign=())
    assert [adapter.id for adapter in registry] == ["llama-cpp"]
    assert registry.broken == ()
    assert registry.sources == {"llama-cpp": "built-in"}


def test_foreign_adapters_follow_by_distribution_and_name() -> None:
    points = (
        Point("b", lambda: replace(other(), id=EngineId("three")), Distribution("zeta")),
        Point("z", lambda: replace(other(), id=EngineId("two")), Distribution("alpha")),
        Point("a", lambda: replace(other(), id=EngineId("one")), Distribution("alpha")),
    )
    registry = load_registry(foreign=points)
    assert [adapter.id for adapter in registry] == ["llama-cpp", "one", "two", "three"]
    assert registry.sources[EngineId("three")] == "zeta"


def test_a_built_in_id_cannot_be_taken_over() -> None:
    registry = load_registry(foreign=(Point("x", lambda: ADAPTER),))
    assert registry.adapters == built_in()
    assert "is a built-in engine" in registry.broken[0].reason


def test_of_two_foreign_adapters_with_one_id_neither_is_used() -> None:
    registry = load_registry(foreign=(Point("a", other), Point("b", other)))
    assert registry.adapters == built_in()
    assert [broken.name for broken in registry.broken] == ["a", "b"]


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: other(contract=99), "contract 99"),
        (explode, "no such card"),
        (leave, "SystemExit"),
        (object, "its id None"),
        (lambda: other(settings=dict), "do not derive"),
        (lambda: replace(ADAPTER, id=EngineId("Bad Id")), "its id 'Bad Id'"),
        (lambda: other(traits=replace(ADAPTER.traits, formats=frozenset())), "no format"),
    ],
)
def test_a_broken_foreign_adapter_is_listed_and_hurts_nobody(make, word) -> None:
    registry = load_registry(foreign=(Point("bad", make), Point("good", other)))
    assert [adapter.id for adapter in registry] == ["llama-cpp", "other"]
    assert registry.broken[0].source == "other-engines"
    assert word in registry.broken[0].reason


def test_an_adapter_that_lacks_a_method_is_broken() -> None:
    class Half:
        id, contract = "half", 1

    assert "read_metrics" in check_adapter(Half())[0]


def test_an_unmarked_setting_breaks_its_adapter() -> None:
    class Loose(EngineSettings):
        depth: int = 3

    assert check_adapter(other(settings=Loose)) == ["setting depth is not marked", "setting depth has no text"]


def test_a_built_in_adapter_that_breaks_a_rule_fails_the_start() -> None:
    with pytest.raises(AssertionError, match="contract"):
        load_registry(own=(other(contract=0),), foreign=())
    with pytest.raises(AssertionError, match="one id"):
        load_registry(own=(other(), other()), foreign=())


def test_an_unknown_engine_is_answered_with_the_known_ones() -> None:
    registry = load_registry(foreign=())
    assert registry.get("llama-cpp") is ADAPTER
    with pytest.raises(UsageError, match="known are: llama-cpp") as caught:
        registry.get("gguf-o-matic")
    assert caught.value.code is ErrorCode.ENGINE_NOT_FOUND
