"""Setting the parameters of the wheel (E-67), on an object that stands for it."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace

import pytest

from stoker.engines.llama_cpp.launcher import BadParameterError, assign


class Kind(IntEnum):
    GGML_TYPE_F16 = 1
    GGML_TYPE_Q8_0 = 8


def params():
    return SimpleNamespace(
        n_ctx=0,
        kind=Kind.GGML_TYPE_F16,
        kinds=[Kind.GGML_TYPE_F16],
        names=set(),
        hosts=["127.0.0.1"],
        shares=[0.0] * 4,
        inner=SimpleNamespace(n_threads=-1),
    )


@pytest.mark.parametrize(
    ("name", "given", "stands"),
    [
        ("n_ctx", 4096, 4096),
        ("inner.n_threads", 2, 2),
        ("kind", "GGML_TYPE_Q8_0", Kind.GGML_TYPE_Q8_0),
        ("kind", "Q8_0", Kind.GGML_TYPE_Q8_0),
        ("kinds", ["Q8_0"], [Kind.GGML_TYPE_Q8_0]),
        ("names", ["a b"], {"a b"}),
        ("hosts", ["/run/e.sock"], ["/run/e.sock"]),
        ("shares", [3.0, 1.0], [3.0, 1.0, 0.0, 0.0]),
    ],
)
def test_a_value_takes_the_type_that_stands_there(name, given, stands) -> None:
    target = params()
    assign(target, name, given)
    for step in name.split("."):
        target = getattr(target, step)
    assert target == stands


@pytest.mark.parametrize(
    ("name", "given"), [("n_batch", 1), ("inner.none", 1), ("none.n_threads", 1), ("kind", "Q9_9"), ("kinds", ["X"])]
)
def test_a_parameter_or_value_the_wheel_lacks_is_refused_by_name(name, given) -> None:
    with pytest.raises(BadParameterError) as caught:
        assign(params(), name, given)
    assert caught.value.name == name


def test_a_value_of_the_wrong_type_is_refused_by_name() -> None:
    class Strict:
        @property
        def n_ctx(self) -> int:
            return 0

        @n_ctx.setter
        def n_ctx(self, value: int) -> None:
            raise TypeError("an integer is required")

    with pytest.raises(BadParameterError, match="n_ctx: 'x' is not taken"):
        assign(Strict(), "n_ctx", "x")
