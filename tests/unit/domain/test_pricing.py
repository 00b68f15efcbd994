"""Charges of real files equal the measured models to the byte (M-39 to M-42, M-45; V-13, V-16, V-34 to V-37)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.domain.footprint import NEUTRAL, Footprint
from stoker.domain.kv_cache import BLOCK_BYTES
from stoker.domain.models import LayerGroup, LayerKind, ModelFacts, ModelFile
from stoker.domain.pricing import (
    HOST_FIXED_CPU_BYTES,
    Shape,
    compute_bytes,
    fallback_token_bytes,
    fallback_weights_bytes,
    price_ram,
)
from stoker.ids import RAM
from stoker.testing.model_zoo import LLAMA_CPU, MIB, facts, gemma3_270m, smollm2


def parts(price: Footprint) -> dict[str, int]:
    return {term.name: term.bytes for term in price.terms}


@pytest.mark.parametrize(
    ("model", "shape", "expected", "charge"),
    [
        (smollm2(), Shape(4_096, 1), (96_576_768, 0, 94_371_840, 19_529_728, 196_608, 54_076_288), 264_751_232),
        (
            smollm2(), Shape(1_024, 4, "q8_0", "q8_0"),
            (96_576_768, 0, 50_135_040, 16_384_000, 786_432, 56_435_584), 220_317_824,
        ),
        (
            gemma3_270m(), Shape(8_192, 1),
            (246_587_904, 13_271_040, 40_894_464, 28_573_696, 1_048_576, 91_488_256), 421_863_936,
        ),
        (
            gemma3_270m(), Shape(2_048, 4, "q8_0", "q8_0"),
            (246_587_904, 13_271_040, 46_792_704, 22_282_240, 4_194_304, 104_071_168), 437_199_360,
        ),
    ],
    ids=["V-34", "V-35", "V-36", "V-37"],
)  # fmt: skip
def test_real_files_cost_exactly(model: ModelFacts, shape: Shape, expected: tuple[int, ...], charge: int) -> None:
    price = price_ram(model, LLAMA_CPU, shape)
    got = parts(price)
    names = ("weights", "repacked", "kv-cache", "compute", "output", "process")
    assert tuple(got.get(name, 0) for name in names) == expected
    assert price.charge == {RAM: charge}
    assert price.start_need == price.charge


@pytest.mark.parametrize(("flash", "expected"), [(True, 23_724_032), (False, 175_636_480)])
def test_v13_scratch_with_and_without_flash_attention(flash: bool, expected: int) -> None:
    assert compute_bytes(smollm2(), LLAMA_CPU, Shape(8_192, flash_attention=flash)) == expected


def test_v16_a_file_without_a_tensor_table_is_priced_by_its_size() -> None:
    assert fallback_weights_bytes(4 * 10**9) == 4_668_435_456
    assert fallback_token_bytes(4 * 10**9) == 163_840
    assert fallback_token_bytes(4 * 10**10) == 400_000
    assert fallback_token_bytes(4 * 10**10, "q8_0", "q8_0") == 212_500


def test_facts_without_geometry_are_flagged_and_never_priced_at_nothing() -> None:
    bare = replace(facts(), files=(ModelFile("m", 4 * 10**9),))
    price = price_ram(bare, LLAMA_CPU, Shape(1_024))
    assert price.uncertain == ("no-geometry", "no-tensor-table")
    assert parts(price)["kv-cache"] == 1_024 * 163_840
    assert parts(price)["weights"] == 4_668_435_456


def test_declared_bytes_stand_in_place_of_every_term() -> None:
    price = price_ram(smollm2(), LLAMA_CPU, Shape(4_096), declared_bytes=5 * MIB)
    assert price.charge == {RAM: 5 * MIB}
    assert price.source == "declared"


def test_weights_are_mapped_under_mmap_and_anonymous_without() -> None:
    mapped = price_ram(gemma3_270m(), LLAMA_CPU, Shape(1_024))
    held = price_ram(gemma3_270m(), LLAMA_CPU, Shape(1_024, use_mmap=False))
    assert [term.backing for term in mapped.terms if term.name in {"weights", "repacked"}] == ["mapped", "anonymous"]
    assert [term.backing for term in held.terms if term.name == "weights"] == ["anonymous"]
    assert mapped.charge[RAM] - held.charge[RAM] == 13_271_040


def test_host_caches_are_charged_and_lazy() -> None:
    price = price_ram(gemma3_270m(), LLAMA_CPU, Shape(1_024, 2, cache_ram_bytes=64 * MIB, checkpoints=3))
    lazy = {term.name: term.bytes for term in price.terms if term.when == "lazy"}
    assert lazy == {"prompt-cache": 64 * MIB, "checkpoints": 2 * 3 * 15 * 512 * 1_024}


def test_the_neutral_profile_has_no_compute_and_no_process() -> None:
    got = parts(price_ram(smollm2(), NEUTRAL, Shape(1_024)))
    assert set(got) == {"weights", "kv-cache"}
    assert HOST_FIXED_CPU_BYTES == 31_457_280


def test_state_layers_and_latent_attention_widen_the_scratch() -> None:
    plain = facts(LayerGroup(2, LayerKind.FULL, 1, 64, 64), embed_dim=64, heads=4, ff_dim=16)
    wide = facts(LayerGroup(2, LayerKind.RECURRENT, state_elements=8, inner=4_096), embed_dim=64, heads=4, ff_dim=16)
    latent = facts(LayerGroup(2, LayerKind.LATENT, 1, 576, 0, rank=512, nope=128), embed_dim=64, heads=4, ff_dim=16)
    n = 512
    assert compute_bytes(plain, LLAMA_CPU, Shape(n)) == 512 * (2 * n + 4 * (320 + (4 + 2) * 64))
    assert compute_bytes(wide, LLAMA_CPU, Shape(n)) == 512 * (2 * n + 4 * (320 + 5 * 4_096))
    assert compute_bytes(latent, LLAMA_CPU, Shape(n)) == 512 * (2 * n + 4 * (320 + 4 * (128 + 1_024 + 128)))


@pytest.mark.parametrize("kv_type", sorted(BLOCK_BYTES))
def test_every_cache_type_has_a_price(kv_type: str) -> None:
    assert parts(price_ram(smollm2(), LLAMA_CPU, Shape(256, kv_type_k=kv_type, kv_type_v="f16")))["kv-cache"] > 0
