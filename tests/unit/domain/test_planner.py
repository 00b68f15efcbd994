"""One planner: explicit parts exactly, automatic parts down a ladder, never below the minimum (M-55 to M-60)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.domain.context import EngineWishes, LaunchPlan, PlanRequest, Shortfall, plan_launch
from stoker.domain.models import LayerGroup, LayerKind
from stoker.ids import RAM
from stoker.testing.model_zoo import GIB, LLAMA_CPU, MIB, declared, facts, gemma3_270m, request, smollm2


def planned(wanted: PlanRequest, room: int) -> LaunchPlan:
    plan = plan_launch(wanted, {RAM: room})
    assert isinstance(plan, LaunchPlan), plan
    return plan


def short(wanted: PlanRequest, room: int) -> Shortfall:
    got = plan_launch(wanted, {RAM: room})
    assert isinstance(got, Shortfall), got
    return got


def test_smollm2_at_4096_by_1_costs_what_v34_says() -> None:
    plan = planned(request(context_tokens=4_096, slots=1), 300 * MIB)
    assert plan.footprint.charge == {RAM: 264_751_232}
    assert (plan.kv_type_k, plan.kv_type_v, plan.flash_attention) == ("f16", "f16", True)
    assert (plan.batch_tokens, plan.micro_batch_tokens, plan.gpu_layers) == (2_048, 512, 0)


def test_an_explicit_plan_fits_exactly_or_is_refused_with_its_numbers() -> None:
    exact = request(context_tokens=4_096, slots=1)
    assert planned(exact, 264_751_232).context_tokens == 4_096
    got = short(request(context_tokens=4_096, slots=1, wishes=EngineWishes("f16", "f16")), 264_751_231)
    assert (got.pool, got.needed_bytes, got.room_bytes) == (RAM, 264_751_232, 264_751_231)
    assert got.largest_context_tokens == 3_072
    assert got.would_fit_if[0] == "context_tokens = 3072"


def test_the_automatic_window_is_native_up_to_64k() -> None:
    assert planned(request(), 8 * GIB).context_tokens == 8_192
    long = smollm2(context_native=1_000_000)
    assert planned(request(long), 100 * GIB).context_tokens == 65_536


def test_a_model_that_tells_no_native_window_gets_the_floor() -> None:
    assert planned(request(smollm2(context_native=0)), 8 * GIB).context_tokens == 8_192


@pytest.mark.parametrize(("room", "slots"), [(11, 1), (12, 2), (23, 2), (24, 3), (47, 3), (48, 4), (400, 4)])
def test_automatic_slots_follow_the_tier_of_the_room(room: int, slots: int) -> None:
    assert planned(request(), room * GIB).slots == slots


def test_explicit_slots_are_taken_verbatim_and_embedding_gets_one() -> None:
    assert planned(request(slots=7), 8 * GIB).slots == 7
    assert planned(request(task="embed"), 400 * GIB).slots == 1


def test_an_embedding_input_fits_one_micro_batch() -> None:
    plan = planned(request(task="embed", context_tokens=2_048), 8 * GIB)
    assert plan.batch_tokens == plan.micro_batch_tokens == 2_048
    assert plan.cache_ram_bytes == 0


def test_the_ladder_gives_up_slots_then_cache_precision_then_window() -> None:
    """M-60: (a) slots downwards at f16, (c) q8_0, (d) the largest multiple of 1,024 above the minimum."""
    wanted = request(smollm2(context_native=65_536), context_floor_tokens=8_192)
    seen: list[tuple[str, int]] = []
    for room in range(3_200 * MIB, 240 * MIB, -4 * MIB):
        plan = plan_launch(wanted, {RAM: room})
        if isinstance(plan, LaunchPlan):
            seen.append((plan.kv_type_k, plan.context_tokens))
    assert seen[0] == ("f16", 65_536)
    assert ("q8_0", 65_536) in seen
    assert [kind for kind, _ in seen] == sorted((kind for kind, _ in seen), key=["f16", "q8_0"].index)
    windows = [window for _, window in seen]
    assert windows == sorted(windows, reverse=True)
    assert windows[-1] == 8_192
    assert all(window % 1_024 == 0 for window in windows)


def test_a_small_automatic_window_is_flagged_and_the_rung_is_explained() -> None:
    plan = planned(request(smollm2(context_native=65_536)), 500 * MIB)
    assert plan.context_tokens < 32_768
    assert "window-small" in plan.reasons
    assert any("q8_0" in reason for reason in plan.reasons)


def test_never_below_the_minimum() -> None:
    got = short(request(smollm2(context_native=65_536)), 250 * MIB)
    assert got.largest_context_tokens is not None
    assert got.largest_context_tokens < 8_192


def test_q8_0_is_not_offered_without_flash_attention_or_whole_blocks() -> None:
    eager = request(wishes=EngineWishes(flash_attention=False, cache_ram_bytes=0))
    assert isinstance(plan_launch(eager, {RAM: 300 * MIB}), Shortfall)
    odd = facts(LayerGroup(30, LayerKind.FULL, 1, 80, 80), context_native=8_192)
    plan = plan_launch(request(odd), {RAM: 80 * MIB})
    assert isinstance(plan, Shortfall)


def test_models_that_lose_by_a_quantised_cache_get_it_only_for_a_second_slot() -> None:
    sensitive = replace(LLAMA_CPU, kv_quant_sensitive=frozenset({"gemma3"}))
    for room in range(380 * MIB, 700 * MIB, 4 * MIB):
        plan = plan_launch(request(gemma3_270m(), profile=sensitive), {RAM: room})
        if isinstance(plan, LaunchPlan):
            assert plan.kv_type_k == "f16"
            assert plan.slots == 1


def test_an_explicit_window_beyond_the_native_one_is_granted_and_flagged() -> None:
    plan = planned(request(context_tokens=16_384), 8 * GIB)
    assert plan.context_tokens == 16_384
    assert "window-beyond-native" in plan.reasons


def test_the_prompt_cache_is_always_a_number() -> None:
    auto = request(wishes=EngineWishes(), ram_total_bytes=10 * GIB)
    assert planned(auto, 8 * GIB).cache_ram_bytes == 512 * MIB
    assert planned(replace(auto, ram_total_bytes=900 * GIB), 8 * GIB).cache_ram_bytes == 2 * GIB
    assert planned(replace(auto, wishes=EngineWishes(cache_ram_bytes=7)), 8 * GIB).cache_ram_bytes == 7


def test_checkpoints_fit_the_same_cap_and_are_none_without_sliding_layers() -> None:
    wishes = EngineWishes(cache_ram_bytes=20 * MIB)
    assert planned(request(gemma3_270m(), wishes=wishes), 8 * GIB).checkpoints == 2
    assert planned(request(wishes=wishes), 8 * GIB).checkpoints == 0
    fixed = EngineWishes(cache_ram_bytes=0, checkpoints=5)
    assert planned(request(gemma3_270m(), wishes=fixed), 8 * GIB).checkpoints == 5


def test_threads_are_wished_or_physical_or_half_of_what_there_is() -> None:
    assert planned(request(cores=8), GIB).threads == 4
    assert planned(request(cores=8, physical_cores=6), GIB).threads == 6
    assert planned(request(cores=8, wishes=EngineWishes(threads=3)), GIB).threads == 3
    assert planned(request(cores=1), GIB).threads == 1


def test_declared_bytes_are_the_whole_price() -> None:
    plan = planned(replace(declared("m", 5), ram_total_bytes=8 * GIB), 5)
    assert plan.footprint.charge == {RAM: 5}
    assert plan.context_tokens == 8_192
    assert short(declared("m", 5), 4).needed_bytes == 5


def test_equal_plans_have_equal_digests_whatever_the_order_of_their_settings() -> None:
    one = planned(request(settings={"a": 1, "b": frozenset({"x", "y"})}), GIB)
    two = planned(request(settings={"b": frozenset({"y", "x"}), "a": 1}), GIB)
    other = planned(request(settings={"a": 2, "b": frozenset()}), GIB)
    assert one.digest == two.digest != other.digest
    assert len(one.digest) == 64


def test_a_room_without_system_memory_is_short_of_everything() -> None:
    got = plan_launch(request(), {})
    assert isinstance(got, Shortfall)
    assert got.room_bytes == 0


requests = st.builds(
    lambda context, slots, native, floor, cache, total, flash: request(
        smollm2(context_native=native),
        context_tokens=context,
        slots=slots,
        context_floor_tokens=floor,
        ram_total_bytes=total,
        wishes=EngineWishes(cache_ram_bytes=cache, flash_attention=flash),
    ),
    st.none() | st.integers(256, 200_000),
    st.none() | st.integers(1, 8),
    st.sampled_from([0, 512, 5_000, 8_192, 131_072]),
    st.sampled_from([256, 8_192, 65_536]),
    st.none() | st.integers(0, GIB),
    st.integers(0, 64 * GIB),
    st.sampled_from([None, True, False]),
)
rooms = st.integers(-GIB, 60 * GIB) | st.integers(0, GIB)


@settings(max_examples=150, deadline=None)
@given(requests, rooms)
def test_every_input_ends_in_a_plan_that_fits_or_a_shortfall_that_is_true(wanted: PlanRequest, room: int) -> None:
    got = plan_launch(wanted, {RAM: room})
    if isinstance(got, Shortfall):
        assert got.needed_bytes > got.room_bytes
        assert isinstance(plan_launch(wanted, {RAM: got.needed_bytes}), LaunchPlan)
        return
    assert got.footprint.charge[RAM] <= room
    assert wanted.context_tokens in {None, got.context_tokens}
    assert wanted.slots in {None, got.slots}
    native = wanted.facts.context_native or wanted.context_floor_tokens
    if wanted.context_tokens is None:
        assert min(native, wanted.context_floor_tokens) <= got.context_tokens <= max(native, 256)


@settings(max_examples=100, deadline=None)
@given(requests, rooms, st.integers(0, 20 * GIB))
def test_more_memory_never_takes_away_a_plan_or_window(wanted: PlanRequest, room: int, more: int) -> None:
    low, high = plan_launch(wanted, {RAM: room}), plan_launch(wanted, {RAM: room + more})
    if isinstance(low, LaunchPlan):
        assert isinstance(high, LaunchPlan)
        if wanted.slots is not None and low.kv_type_k == high.kv_type_k:
            assert low.context_tokens <= high.context_tokens
