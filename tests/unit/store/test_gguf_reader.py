"""The header reader agrees with the `gguf` package on good files, and ends quickly on everything else (M-3 to M-6)."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import ErrorCode, StoreError
from stoker.store.byte_source import FileBytes, MemoryBytes
from stoker.store.gguf import ArrayOf, Header, Text, read_header
from stoker.store.gguf_types import TENSOR_TYPES
from stoker.testing import gguf_writer as w


def parse(data: bytes) -> Header:
    return read_header(MemoryBytes(data))


def code_of(data: bytes) -> ErrorCode:
    with pytest.raises(StoreError) as caught:
        parse(data)
    return caught.value.code


def good(**keys: Any) -> bytes:
    return w.header({**w.llama_keys(), **keys}, ())


@pytest.mark.parametrize("number", sorted(TENSOR_TYPES))
def test_tensor_sizes_are_those_of_the_format(number: int) -> None:
    name, block, size = TENSOR_TYPES[number]
    kind = gguf.GGMLQuantizationType(number)
    assert gguf.GGML_QUANT_SIZES[kind] == (block, size)
    assert kind.name.lower() == name.lower()


SCALARS = {
    w.U8: st.integers(0, 255), w.I8: st.integers(-128, 127), w.U16: st.integers(0, 65_535),
    w.I16: st.integers(-32_768, 32_767), w.U32: st.integers(0, 2**32 - 1), w.I32: st.integers(-(2**31), 2**31 - 1),
    w.F32: st.floats(width=32, allow_nan=False), w.BOOL: st.booleans(), w.U64: st.integers(0, 2**64 - 1),
    w.I64: st.integers(-(2**63), 2**63 - 1), w.F64: st.floats(allow_nan=False),
}  # fmt: skip


@st.composite
def values(draw: st.DrawFn) -> w.Value:
    kind = draw(st.sampled_from([*SCALARS, w.STRING, w.ARRAY]))
    if kind in SCALARS:
        return w.Value(kind, draw(SCALARS[kind]))
    if kind == w.STRING:
        return w.Value(kind, draw(st.text(max_size=20)))
    of = draw(st.sampled_from([*SCALARS, w.STRING]))
    return w.Value(w.ARRAY, draw(st.lists(SCALARS.get(of, st.text(max_size=8)), min_size=1, max_size=9)), of)


names = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=8)
tensors = st.lists(
    st.builds(
        w.Tensor,
        names,
        st.tuples(st.sampled_from([256, 512])) | st.tuples(st.just(256), st.integers(1, 4), st.integers(1, 3)),
        st.sampled_from(sorted(w.TYPES)),
    ),
    max_size=5,
    unique_by=lambda tensor: tensor.name,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names.map("x.".__add__), values(), max_size=8), tensors, st.sampled_from([8, 32, 64]))
def test_keys_and_tensors_equal_the_oracle(
    tmp_path: Path, keys: dict[str, w.Value], table: list[w.Tensor], alignment: int
) -> None:
    path = tmp_path / "m.gguf"
    full = {**keys, "general.alignment": alignment, "general.architecture": "x"}
    w.write_gguf(path, full, table)
    oracle = gguf.GGUFReader(str(path))
    with FileBytes(str(path)) as source:
        header = read_header(source)
    for key in full:
        field = oracle.fields[key]
        got = header.keys[key]
        if isinstance(got, ArrayOf):
            assert got == ArrayOf(int(field.types[-1]), len(field.data))
        else:
            expected = field.contents()
            assert got == (tuple(expected) if isinstance(expected, list) else expected)
    assert header.tensors.count == len(oracle.tensors)
    total = header.tensors.input_embedding + header.tensors.output + header.tensors.other
    assert total + sum(map(sum, header.tensors.blocks.values())) == sum(int(t.n_bytes) for t in oracle.tensors)


def test_version_2_reads_like_version_3() -> None:
    two, three = (parse(w.header(w.llama_keys(), w.llama_tensors(), version=v) + bytes(1 << 16)) for v in (2, 3))
    assert (two.keys, two.tensors) == (three.keys, three.tensors)


def test_the_architecture_may_come_last_and_lists_are_kept_whole() -> None:
    keys = {"x.attention.head_count_kv": list(range(1024)), "general.architecture": "x"}
    assert parse(w.header(keys)).keys["x.attention.head_count_kv"] == tuple(range(1024))


def test_texts_and_vocabularies_are_walked_not_kept() -> None:
    keys = parse(good(**{"tokenizer.ggml.token_type": w.Value(w.ARRAY, [1] * 9, w.I32), "x.long": "y" * 10_000})).keys
    assert keys["tokenizer.ggml.tokens"] == ArrayOf(w.STRING, 3)
    assert keys["tokenizer.ggml.token_type"] == ArrayOf(w.I32, 9)
    assert keys["x.long"] == Text(10_000, "")
    assert keys["tokenizer.chat_template"].bytes == len("{{ messages }}")


def test_text_that_is_not_utf_8_is_replaced() -> None:
    assert parse(good(**{"general.name": w.Value(w.STRING, b"\xff\xfe")})).keys["general.name"] == "��"


def test_tensor_bytes_are_summed_by_place_and_type() -> None:
    table = [
        w.Tensor("token_embd.weight", (256, 4), "q8_0"),
        w.Tensor("output.weight", (256, 4), "q6_K"),
        w.Tensor("blk.0.attn_q.weight", (256, 2), "q4_K"),
        w.Tensor("blk.0.ffn_up.weight", (256, 2), "q4_K"),
        w.Tensor("blk.1.ffn_gate_exps.weight", (256, 2, 3), "q4_0"),
        w.Tensor("blk.1.ffn_up_shexp.weight", (256,), "f32"),
        w.Tensor("output_norm.weight", (64,), "f32"),
    ]
    sums = parse(w.header(w.llama_keys(), table) + bytes(16_384)).tensors
    assert (sums.input_embedding, sums.output, sums.other) == (4 * 272, 4 * 210, 256)
    assert sums.blocks == {0: [288, 288, 0], 1: [0, 1_024, 6 * 144]}
    assert sums.by_type == {"q4_K": 576, "q4_0": 864, "f32": 1_024}
    assert sums.has_output


def test_an_unknown_tensor_type_is_sized_by_the_offsets_alone() -> None:
    table = [w.Tensor("blk.0.a.weight", (8,), 200, offset=0), w.Tensor("blk.0.b.weight", (8,), "f32", offset=96)]
    sums = parse(w.header(w.llama_keys(), table) + bytes(128)).tensors
    assert sums.blocks == {0: [96 + 32, 0, 0]}
    assert sums.uncertain == {"tensor-type-unknown"}


@pytest.mark.parametrize(
    ("second", "end"),
    [(0, 64), (32, 40), (96, 64), (1 << 40, 64), (33, 128)],
    ids=["overlap", "past the end", "far past the end", "absurd", "unaligned"],
)
def test_tensors_that_overlap_or_leave_the_file_are_corrupt(second: int, end: int) -> None:
    table = [w.Tensor("a", (8,), "f32", offset=0), w.Tensor("b", (8,), "f32", offset=second)]
    assert code_of(w.header(w.llama_keys(), table) + bytes(end)) is ErrorCode.MODEL_FILE_CORRUPT


def test_a_gap_between_tensors_is_corrupt() -> None:
    table = [w.Tensor("a", (8,), "f32", offset=0), w.Tensor("b", (8,), "f32", offset=96)]
    assert code_of(w.header(w.llama_keys(), table) + bytes(256)) is ErrorCode.MODEL_FILE_CORRUPT


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.MODEL_FILE_CORRUPT),
        (b"GG", ErrorCode.MODEL_FILE_CORRUPT),
        (b"<html>not a model</html>", ErrorCode.CONTENT_NOT_A_MODEL),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), ErrorCode.BIG_ENDIAN),
        (b"GGUF" + struct.pack("<I", 1) + bytes(16), ErrorCode.UNSUPPORTED_VERSION),
        (b"GGUF" + struct.pack("<I", 4) + bytes(16), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_what_is_no_readable_file_is_named(data: bytes, code: ErrorCode) -> None:
    assert code_of(data) is code


@pytest.mark.parametrize(
    "data",
    [
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60) + bytes(1_000),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(1_000),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(1_000),
        w.header([("x.a", w.Value(w.STRING, "s"))])[:-40] + struct.pack("<Q", 1 << 63) + bytes(64),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<IIQ", 9, 8, 1 << 59) + bytes(1_000),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<IIQ", 9, 4, 1 << 62) + bytes(1_000),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<IIQ", 9, 9, 1 << 50) + bytes(1_000),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<IIQQ", 9, 8, 1, 1 << 40) + bytes(99),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<I", 99) + bytes(99),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + w.text("a") + struct.pack("<IIQ", 9, 99, 1) + bytes(99),
        w.header([("general.alignment", 3)]),
        w.header([("general.alignment", w.Value(w.U32, 0))]),
        w.header([("general.alignment", w.Value(w.U32, 1 << 21))]),
        w.header([("a", 1), ("a", 2)]),
        w.header([("k" * 65_536, 1)]),
        w.header({}, [w.Tensor("n" * 1_025, (8,), "f32")]) + bytes(64),
        w.header({}, [w.Tensor("n", (), "f32", b"1234")]) + bytes(64),
        w.header({}, [w.Tensor("n", (1, 1, 1, 1, 1), "f32")]) + bytes(64),
        w.header({}, [w.Tensor("n", (1 << 40, 1 << 40), 0)]) + bytes(64),
        w.header({}, [w.Tensor("n", (33,), "q8_0", b"")]) + bytes(64),
    ],
)
def test_absurd_counts_are_refused_at_once_without_memory(data: bytes) -> None:
    tracemalloc.start()
    began = time.perf_counter()
    code = code_of(data)
    took = time.perf_counter() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert code is ErrorCode.MODEL_FILE_CORRUPT
    assert peak < 1 << 20
    assert took < 0.5


def test_nested_arrays_end_at_their_limit() -> None:
    def nest(depth: int) -> w.Value:
        return w.Value(w.ARRAY, [nest(depth - 1)], w.ARRAY) if depth > 1 else w.Value(w.ARRAY, [1], w.U8)

    assert parse(good(**{"x.deep": nest(4)})).keys["x.deep"] == ArrayOf(w.ARRAY, 1)
    assert code_of(good(**{"x.deep": nest(5)})) is ErrorCode.MODEL_FILE_CORRUPT


def test_an_error_names_field_offset_and_reason() -> None:
    with pytest.raises(StoreError) as caught:
        parse(good()[:300])
    assert caught.value.details["reason"] == "truncated"
    assert isinstance(caught.value.details["offset"], int)
    assert "offset" in caught.value.message


WHOLE = w.header(w.llama_keys(), w.llama_tensors()) + bytes(16_384)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 16_384))
def test_every_truncation_of_a_header_is_corrupt(length: int) -> None:
    assert code_of(WHOLE[:length]) is ErrorCode.MODEL_FILE_CORRUPT


@settings(max_examples=400, deadline=2_000)
@given(st.integers(0, len(WHOLE) - 16_385), st.integers(0, 7), st.binary(min_size=0, max_size=8))
def test_flipped_bits_and_random_counts_end_in_a_header_or_an_error(at: int, bit: int, replacement: bytes) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 1 << bit
    damaged[at + 1 : at + 1 + len(replacement)] = replacement
    try:
        parse(bytes(damaged))
        code = None
    except StoreError as error:
        code = error.code
    assert code in {
        None, ErrorCode.MODEL_FILE_CORRUPT, ErrorCode.CONTENT_NOT_A_MODEL, ErrorCode.BIG_ENDIAN,
        ErrorCode.UNSUPPORTED_VERSION,
    }  # fmt: skip


@settings(max_examples=200, deadline=2_000)
@given(st.binary(max_size=300))
def test_random_bytes_behind_the_magic_end_in_an_error(noise: bytes) -> None:
    with pytest.raises(StoreError):
        parse(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + noise)


def test_strings_across_the_edge_of_the_window_are_walked_right(tmp_path: Path) -> None:
    tokens = ["t" * (i % 700) for i in range(9_000)]
    path = tmp_path / "m.gguf"
    after = {"x.after": 7, "general.architecture": "x"}
    w.write_gguf(path, {"tokenizer.ggml.tokens": w.Value(w.ARRAY, tokens, w.STRING), **after})
    with FileBytes(str(path)) as source:
        keys = read_header(source).keys
    assert keys["tokenizer.ggml.tokens"].count == 9_000
    assert keys["x.after"] == 7


def test_one_string_longer_than_the_window_is_skipped_and_one_beyond_the_limit_refused() -> None:
    def with_token(length: int) -> bytes:
        return w.header({"tokenizer.ggml.tokens": w.Value(w.ARRAY, ["a", "b" * length], w.STRING), "x.after": 7})

    assert parse(with_token(3 << 20)).keys["x.after"] == 7
    assert code_of(with_token(18 << 20)) is ErrorCode.MODEL_FILE_CORRUPT
