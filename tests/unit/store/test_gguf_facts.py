"""What keys mean: geometry of every layer kind, kinds of files, what is left open is flagged (M-2, M-7 to M-13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.domain.kv_cache import cache_bytes, state_bytes
from stoker.domain.models import LayerGroup, LayerKind, ModelFacts, ModelKind
from stoker.errors import ErrorCode, StoreError
from stoker.store.byte_source import MemoryBytes
from stoker.store.gguf_facts import read_facts
from stoker.testing import gguf_writer as w
from stoker.testing.model_zoo import LLAMA_CPU

BR_101 = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]


def facts(keys: dict[str, Any], tensors: list[w.Tensor] | None = None) -> ModelFacts:
    table = w.llama_tensors() if tensors is None else tensors
    return read_facts(MemoryBytes(w.header(keys, table) + bytes(1 << 16), "m.gguf"))


def model(architecture: str, **keys: Any) -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        **{f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()},
    }


def hybrid(kind: int) -> dict[str, Any]:
    return model(
        "lfm2",
        block_count=16,
        embedding_length=2_048,
        attention__head_count=32,
        attention__head_count_kv=w.Value(w.ARRAY, BR_101, kind),
        shortconv__l_cache=3,
        context_length=32_768,
    )


@pytest.mark.parametrize("kind", [w.U32, w.I32, w.U64, w.I64, w.U8])
def test_br_101_a_per_layer_list_that_begins_with_zero_is_read_layer_by_layer(kind: int) -> None:
    """V-1 and V-2, whatever integer type the list uses."""
    got = facts(hybrid(kind))
    assert cache_bytes(got, LLAMA_CPU, context_tokens=32_768) == 402_653_184
    assert cache_bytes(got, LLAMA_CPU, context_tokens=4_096) == 50_331_648
    assert state_bytes(got) == 163_840
    assert got.layers == 16
    assert got.uncertain == ()


def test_br_101_without_state_keys_a_zero_is_a_layer_without_any_cache() -> None:
    keys = hybrid(w.U32)
    del keys["lfm2.shortconv.l_cache"]
    got = facts(keys)
    assert cache_bytes(got, LLAMA_CPU, context_tokens=4_096) == 50_331_648
    assert state_bytes(got) == 0


@pytest.mark.parametrize("layers", [88, 1_024])
def test_br_101_long_lists_and_lists_of_query_heads_are_read_whole(layers: int) -> None:
    keys = model(
        "llama",
        block_count=layers,
        embedding_length=2_048,
        attention__head_count=[32] * layers,
        attention__head_count_kv=[0] * (layers - 1) + [8],
    )
    got = facts(keys)
    assert got.heads == 32
    assert cache_bytes(got, LLAMA_CPU, context_tokens=256) == 256 * 8 * 128 * 2
    assert got.layers == layers


def test_a_list_shorter_than_the_model_is_inconsistent_and_a_longer_one_is_cut() -> None:
    with pytest.raises(StoreError) as caught:
        facts(model("llama", block_count=4, embedding_length=64, attention__head_count=[4, 4]))
    assert caught.value.code is ErrorCode.FACTS_INCONSISTENT
    long = facts(model("llama", block_count=2, embedding_length=64, attention__head_count=[4, 4, 8, 8]))
    assert (long.heads, long.layers) == (4, 2)


def latent(**more: Any) -> dict[str, Any]:
    keys = {
        "block_count": 61, "embedding_length": 7_168, "attention__head_count": 128, "attention__head_count_kv": 1,
        "attention__key_length": 576, "attention__value_length": 512, "attention__key_length_mla": 192,
        "attention__value_length_mla": 128, "attention__kv_lora_rank": 512, "rope__dimension_count": 64,
    }  # fmt: skip
    return model("deepseek2", **{**keys, **more})


def test_br_105_latent_attention_is_priced_by_its_rank() -> None:
    got = facts(latent())
    assert got.layer_groups == (LayerGroup(61, LayerKind.LATENT, 1, 576, 0, rank=512, nope=128),)
    assert cache_bytes(got, LLAMA_CPU, context_tokens=163_840) == 11_513_364_480
    copies = replace(LLAMA_CPU, value_copy=True)
    assert cache_bytes(got, copies, context_tokens=163_840) == 21_747_466_240


def test_br_105_the_expanded_form_is_the_big_number_and_flagged() -> None:
    keys = latent(attention__head_count_kv=128, attention__key_length=192, attention__value_length=128)
    with_rank = facts(keys)
    without = facts({k: v for k, v in keys.items() if "lora" not in k and "_mla" not in k})
    for got in (with_rank, without):
        assert "latent-expanded" in got.uncertain
        assert cache_bytes(got, LLAMA_CPU, context_tokens=163_840) == 61 * 163_840 * 128 * 320 * 2


def test_head_sizes_default_to_the_embedding_over_the_heads() -> None:
    got = facts(model("llama", block_count=1, embedding_length=512, attention__head_count=8))
    assert got.layer_groups == (LayerGroup(1, LayerKind.FULL, 8, 64, 64),)


@pytest.mark.parametrize(
    ("architecture", "pattern", "sliding", "flags"),
    [
        ("gemma3", None, 10, ("sliding-pattern-assumed",)),
        ("strange", None, 0, ("sliding-pattern-unknown",)),
        ("strange", 4, 9, ()),
        ("strange", [True, False] * 6, 6, ()),
    ],
)
def test_sliding_layers_follow_the_pattern_or_are_flagged(
    architecture: str, pattern: Any, sliding: int, flags: tuple[str, ...]
) -> None:
    keys = model(
        architecture,
        block_count=12,
        embedding_length=512,
        attention__head_count=8,
        attention__sliding_window=512,
        attention__key_length_swa=32,
    )
    if pattern is not None:
        keys[f"{architecture}.attention.sliding_window_pattern"] = pattern
    got = facts(keys)
    counted = {group.kind: group for group in got.layer_groups}
    assert sum(group.count for group in got.layer_groups if group.kind is LayerKind.SLIDING) == sliding
    assert got.uncertain == flags
    if sliding:
        assert (counted[LayerKind.SLIDING].window, counted[LayerKind.SLIDING].k_dim) == (512, 32)


def test_v5_linear_attention_keeps_a_state_between_full_layers() -> None:
    got = facts(
        model(
            "qwen3next",
            block_count=48,
            embedding_length=2_048,
            attention__head_count=16,
            attention__head_count_kv=2,
            attention__key_length=256,
            attention__value_length=256,
            full_attention_interval=4,
            ssm__inner_size=4_096,
            ssm__state_size=128,
            ssm__group_count=16,
            ssm__conv_kernel=4,
        )
    )
    assert state_bytes(got) == 79_036_416
    assert cache_bytes(got, LLAMA_CPU, context_tokens=1_024) == 1_024 * 24_576


def test_state_beside_attention_in_every_layer_is_counted_and_flagged() -> None:
    got = facts(
        model(
            "falcon-h1",
            block_count=2,
            embedding_length=64,
            attention__head_count=4,
            ssm__inner_size=128,
            ssm__state_size=16,
            ssm__conv_kernel=4,
        )
    )
    assert state_bytes(got) == 2 * 4 * (3 * 128 + 128 * 16)
    assert cache_bytes(got, LLAMA_CPU, context_tokens=256) > 0
    assert "state-beside-attention-assumed" in got.uncertain


def test_time_mix_models_have_only_state() -> None:
    got = facts(model("rwkv7", block_count=3, embedding_length=64, wkv__head_size=16, token_shift_count=2))
    assert state_bytes(got) == 3 * 4 * (2 * 64 + 64 * 16)
    assert cache_bytes(got, LLAMA_CPU, context_tokens=256) == 0


def test_shared_looped_and_indexed_layers() -> None:
    keys = {"block_count": 4, "embedding_length": 64, "attention__head_count": 4}
    shared = facts(model("x", **keys, attention__shared_kv_layers=3))
    assert [(g.count, g.kind) for g in shared.layer_groups] == [(1, LayerKind.FULL), (3, LayerKind.SHARED)]
    assert facts(model("x", **keys, num_loops=2)).layer_groups[0].loops == 2
    indexed = facts(model("x", **keys, attention__indexer__key_length=8))
    assert cache_bytes(indexed, LLAMA_CPU, context_tokens=256) == 256 * 4 * 2 * (64 + 8 + 64)


def test_next_token_layers_own_no_cache() -> None:
    keys = {"block_count": 5, "embedding_length": 64, "attention__head_count": 4}
    got = facts(model("glm4moe", **keys, nextn_predict_layers=1))
    assert (got.layers, got.draft_layers) == (4, 1)


def test_ordinary_facts_of_an_ordinary_model() -> None:
    got = facts(w.llama_keys(**{"llama.vocab_size": 9}))
    assert (got.kind, got.architecture, got.name, got.quant_label) == (ModelKind.TEXT, "llama", "small", "F32")
    assert (got.context_native, got.vocab_size, got.merges_count) == (4_096, 3, 1)
    assert (got.embed_dim, got.heads, got.ff_dim) == (64, 4, 128)
    assert got.has_chat_template
    assert got.template_digest is not None
    assert not got.tied_embedding
    assert got.weights.total == sum(tensor.bytes for tensor in w.llama_tensors())
    assert [block.dense_ffn for block in got.weights.blocks] == [4_096, 4_096]


def test_a_model_without_an_output_tensor_is_tied() -> None:
    assert facts(w.llama_keys(), [t for t in w.llama_tensors() if t.name != "output.weight"]).tied_embedding


def test_experts_are_counted_and_weighed() -> None:
    keys = w.llama_keys(
        **{"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_feed_forward_length": 32}
    )
    got = facts(keys, [*w.llama_tensors(), w.Tensor("blk.1.ffn_up_exps.weight", (256, 8), "q4_0")])
    assert (got.experts.count, got.experts.used, got.experts.ff) == (8, 2, 32)
    assert got.weights.blocks[1].experts == 8 * 144


def test_the_native_window_includes_rope_scaling() -> None:
    scaled = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    original = {"llama.rope.scaling.original_context_length": 4_096}
    assert facts(w.llama_keys(**scaled, **original)).context_native == 16_384
    assert facts(w.llama_keys(**scaled)).context_native == 4_096


@pytest.mark.parametrize(
    ("keys", "tensors", "kind"),
    [
        (w.llama_keys(), None, ModelKind.TEXT),
        (w.llama_keys(), [], ModelKind.VOCAB_ONLY),
        ({"general.architecture": "clip"}, None, ModelKind.PROJECTOR),
        (w.llama_keys(**{"general.type": "mmproj"}), None, ModelKind.PROJECTOR),
        (w.llama_keys(**{"general.type": "adapter"}), None, ModelKind.ADAPTER),
        ({"general.type": "imatrix"}, None, ModelKind.OTHER),
        ({"general.architecture": "unheard-of"}, None, ModelKind.OTHER),
        ({}, None, ModelKind.OTHER),
        (w.llama_keys(**{"llama.pooling_type": 4}), None, ModelKind.RERANK),
        (w.llama_keys(**{"llama.pooling_type": 1, "llama.attention.causal": False}), None, ModelKind.EMBEDDING),
        (w.llama_keys(**{"llama.nextn_predict_layers": 2}), None, ModelKind.DRAFT_ONLY),
        (
            {**model("bert", block_count=1, embedding_length=8, attention__head_count=1)},
            None,
            ModelKind.EMBEDDING,
        ),
    ],
)
def test_kinds_of_files(keys: dict[str, Any], tensors: list[w.Tensor] | None, kind: ModelKind) -> None:
    assert facts(keys, tensors).kind is kind


@pytest.mark.parametrize("value", [-1, 0.5, float("nan"), "8", True, 1 << 63])
def test_values_that_are_no_count_are_absent_not_fatal(value: Any) -> None:
    odd = w.Value(w.U64, value) if value == 1 << 63 else value
    got = facts(w.llama_keys(**{"llama.context_length": odd}))
    assert got.context_native == 0


def test_an_absurd_number_of_layers_is_refused() -> None:
    with pytest.raises(StoreError) as caught:
        facts(w.llama_keys(layers=4_000_000_000))
    assert caught.value.code is ErrorCode.MODEL_FILE_CORRUPT


ODD = w.header({**latent(), **w.llama_keys()}, w.llama_tensors()) + bytes(16_384)


@settings(max_examples=300, deadline=2_000)
@given(st.integers(0, len(ODD) - 16_385), st.binary(min_size=1, max_size=12))
def test_damaged_headers_end_in_facts_or_a_store_error(at: int, replacement: bytes) -> None:
    damaged = ODD[:at] + replacement + ODD[at + len(replacement) :]
    try:
        got: object = read_facts(MemoryBytes(damaged))
    except StoreError as error:
        got = error
    assert isinstance(got, (ModelFacts, StoreError))
