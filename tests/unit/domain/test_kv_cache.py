"""Caches and states of every layer kind, exactly (M-37, M-38, M-42; V-1 to V-5, V-11, V-12, V-14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.domain.footprint import NEUTRAL, MemoryProfile
from stoker.domain.kv_cache import BLOCK_BYTES, cache_bytes, can_quantise, checkpoint_bytes, row_bytes, state_bytes
from stoker.domain.models import LayerGroup, LayerKind, ModelFacts
from stoker.testing.model_zoo import LLAMA_CPU, facts, smollm2

V4 = facts(
    LayerGroup(40, LayerKind.SLIDING, 8, 256, 256, 512),
    LayerGroup(8, LayerKind.FULL, 8, 256, 256),
)
LATENT = facts(LayerGroup(61, LayerKind.LATENT, 1, 576, 0, rank=512, nope=128))
CONV = facts(
    LayerGroup(6, LayerKind.FULL, 8, 64, 64),
    LayerGroup(10, LayerKind.CONV, state_elements=2 * 2048),
)


@pytest.mark.parametrize(("context", "expected"), [(32_768, 402_653_184), (4_096, 50_331_648)])
def test_v1_br_101_only_layers_with_heads_have_a_cache(context: int, expected: int) -> None:
    assert cache_bytes(CONV, LLAMA_CPU, context_tokens=context) == expected


def test_v2_convolution_state_of_one_slot() -> None:
    assert state_bytes(CONV) == 163_840


def test_v3_br_105_latent_cache_with_and_without_a_value_copy() -> None:
    keys_only = cache_bytes(LATENT, LLAMA_CPU, context_tokens=163_840)
    both = cache_bytes(LATENT, MemoryProfile(cell_step=256, value_copy=True), context_tokens=163_840)
    assert keys_only == 11_513_364_480
    assert both / (1 << 30) == pytest.approx(20.25, abs=0.005)
    assert 274.5 * (1 << 20) <= cache_bytes(LATENT, LLAMA_CPU, context_tokens=4_096) <= 519 * (1 << 20)


def test_br_105_the_expanded_form_really_is_the_big_number() -> None:
    expanded = facts(LayerGroup(61, LayerKind.FULL, 128, 192, 128))
    assert cache_bytes(expanded, LLAMA_CPU, context_tokens=163_840) == 61 * 163_840 * 128 * 320 * 2


def test_v4_slope_of_the_full_layers_beyond_the_window() -> None:
    step = cache_bytes(V4, LLAMA_CPU, context_tokens=66_560) - cache_bytes(V4, LLAMA_CPU, context_tokens=65_536)
    assert step == 1_024 * 65_536


def test_v5_state_and_slope_of_linear_attention() -> None:
    inner, conv, state, groups = 4_096, 4, 128, 16
    elements = (conv - 1) * (inner + 2 * groups * state) + inner * state
    model = facts(
        LayerGroup(12, LayerKind.FULL, 2, 256, 256),
        LayerGroup(36, LayerKind.RECURRENT, state_elements=elements, inner=inner),
    )
    assert state_bytes(model) == 79_036_416
    assert cache_bytes(model, LLAMA_CPU, context_tokens=256) == 256 * 24_576


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"context_tokens": 65_536}, 4_294_967_296 + 335_544_320),
        ({"context_tokens": 65_536, "micro_batch_tokens": 2_048}, 5_133_828_096),
        ({"context_tokens": 65_536, "slots": 4}, 18_522_046_464),
        ({"context_tokens": 65_536, "slots": 4, "is_unified": True}, 18_018_729_984),
        ({"context_tokens": 256}, 100_663_296),
        ({"context_tokens": 65_536, "is_full_size": True}, 25_769_803_776),
    ],
)
def test_v11_sliding_layers_keep_a_window_and_a_micro_batch(members: dict[str, int], expected: int) -> None:
    assert cache_bytes(V4, LLAMA_CPU, **members) == expected  # type: ignore[arg-type]


def test_v11_the_neutral_profile_counts_single_tokens() -> None:
    assert cache_bytes(V4, NEUTRAL, context_tokens=1) == 393_216


@pytest.mark.parametrize(("kv_type", "expected"), [("f16", 188_743_680), ("q8_0", 100_270_080), ("q4_0", 53_084_160)])
def test_v12_cache_types(kv_type: str, expected: int) -> None:
    got = cache_bytes(smollm2(), LLAMA_CPU, context_tokens=8_192, kv_type_k=kv_type, kv_type_v=kv_type)
    assert got == expected


def test_v12_a_shared_window_is_rounded_for_each_slot() -> None:
    assert cache_bytes(smollm2(), LLAMA_CPU, context_tokens=8_192 // 3 + 1, slots=3) == 194_641_920


def test_v14_checkpoints_hold_the_window_only() -> None:
    assert 8 * checkpoint_bytes(V4, LLAMA_CPU, "f16", "f16") == 1_342_177_280
    assert checkpoint_bytes(smollm2(), LLAMA_CPU, "f16", "f16") == 0


def test_shared_layers_have_no_cache_and_loops_multiply() -> None:
    shared = facts(LayerGroup(4, LayerKind.SHARED, 8, 128, 128))
    looped = facts(LayerGroup(4, LayerKind.FULL, 8, 128, 128, loops=2))
    once = facts(LayerGroup(4, LayerKind.FULL, 8, 128, 128))
    assert cache_bytes(shared, LLAMA_CPU, context_tokens=1_024) == 0
    assert cache_bytes(looped, LLAMA_CPU, context_tokens=1_024) == 2 * cache_bytes(
        once, LLAMA_CPU, context_tokens=1_024
    )


def test_rows_of_quantised_types_are_whole_blocks() -> None:
    assert row_bytes(33, "q8_0") == 2 * 34
    assert row_bytes(33, "f16") == 66
    assert not can_quantise(facts(LayerGroup(1, LayerKind.FULL, 1, 80, 80)))
    assert can_quantise(facts(LayerGroup(1, LayerKind.FULL, 2, 80, 80)))


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    def group() -> LayerGroup:
        kind = draw(st.sampled_from(list(LayerKind)))
        return LayerGroup(
            count=draw(st.integers(1, 99)),
            kind=kind,
            kv_heads=draw(st.integers(0, 64)),
            k_dim=draw(st.integers(0, 512)),
            v_dim=draw(st.integers(0, 512)),
            window=draw(st.sampled_from([0, 128, 512, 4_096])),
            state_elements=draw(st.integers(0, 100_000)),
        )

    return facts(*(group() for _ in range(draw(st.integers(0, 4)))))


@given(models(), st.integers(1, 200_000), st.integers(0, 5_000), st.sampled_from(sorted(BLOCK_BYTES)))
def test_a_longer_window_never_costs_less(model: ModelFacts, context: int, more: int, kv_type: str) -> None:
    def price(tokens: int) -> int:
        return cache_bytes(model, LLAMA_CPU, context_tokens=tokens, kv_type_k=kv_type, kv_type_v=kv_type)

    assert price(context) <= price(context + more)
