"""Writes small GGUF files for tests: any key, any value type, any tensor list. Standard library only.

    write_gguf(path, {"general.architecture": "llama"}, [Tensor("token_embd.weight", (32, 8))])

Plain Python values are written as their usual type: str, bool, int (u32, or i64 where it does not fit), float (f32),
and lists of one of those. `Value` pins a type. Big files are sparse. Nothing is checked: tests want broken files too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
ALIGNMENT = 32

# Tensor type -> number, elements of a block, bytes of a block.
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q8_0": (8, 32, 34),
         "q4_K": (12, 256, 144), "q6_K": (14, 256, 210), "bf16": (30, 1, 2)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a stated type; for `ARRAY`, ``of`` is the type of its elements."""

    type: int
    value: Any
    of: int = U32


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by its sides (fastest first). Without ``data`` its bytes are zero; ``offset`` pins its place."""

    name: str
    sides: tuple[int, ...]
    type: str | int = "f32"
    data: bytes | None = None
    offset: int | None = None

    @property
    def bytes(self) -> int:
        if self.data is not None:
            return len(self.data)
        elements = 1
        for side in self.sides:
            elements *= side
        if isinstance(self.type, int):
            return 0
        _, block, size = TYPES[self.type]
        return elements // block * size


def text(value: str | bytes) -> bytes:
    """A length-prefixed text."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def body(kind: int, value: Any, of: int = U32) -> bytes:
    """The bytes of one value, without its type."""
    if kind == STRING:
        return text(value)
    if kind != ARRAY:
        return struct.pack(f"<{_CODES[kind]}", value)
    head = struct.pack("<IQ", of, len(value))
    if of in _CODES:
        return head + struct.pack(f"<{len(value)}{_CODES[of]}", *value)
    return head + b"".join(
        body(of, item.value, item.of) if isinstance(item, Value) else body(of, item) for item in value
    )


def typed(value: Any) -> Value:
    """The usual type of a plain Python value."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool):
        return Value(BOOL, value)
    if isinstance(value, int):
        return Value(U32 if 0 <= value < 1 << 32 else I64, value)
    if isinstance(value, float):
        return Value(F32, value)
    if isinstance(value, (str, bytes)):
        return Value(STRING, value)
    kinds = {typed(item).type for item in value}
    return Value(ARRAY, value, kinds.pop() if len(kinds) == 1 else I64 if kinds else U32)


def pair(key: str | bytes, value: Any) -> bytes:
    """One key with its value."""
    full = typed(value)
    return text(key) + struct.pack("<I", full.type) + body(full.type, full.value, full.of)


def header(
    keys: Mapping[str, Any] | Sequence[tuple[str, Any]], tensors: Sequence[Tensor] = (), *, version: int = 3
) -> bytes:
    """Everything before the tensor data, padded to the alignment the keys state."""
    pairs = list(keys.items()) if isinstance(keys, Mapping) else list(keys)
    alignment = _alignment(pairs)
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(pairs)), *(pair(key, value) for key, value in pairs)]
    for tensor, offset in zip(tensors, offsets(tensors, alignment), strict=True):
        number = tensor.type if isinstance(tensor.type, int) else TYPES[tensor.type][0]
        out.append(text(tensor.name) + struct.pack(f"<I{len(tensor.sides)}Q", len(tensor.sides), *tensor.sides))
        out.append(struct.pack("<IQ", number, offset))
    raw = b"".join(out)
    return raw + b"\0" * (-len(raw) % alignment)


def offsets(tensors: Sequence[Tensor], alignment: int = ALIGNMENT) -> list[int]:
    """Where each tensor lies in the data: one after another, aligned."""
    found: list[int] = []
    end = 0
    for tensor in tensors:
        offset = -(-end // alignment) * alignment if tensor.offset is None else tensor.offset
        found.append(offset)
        end = offset + tensor.bytes
    return found


def write_gguf(
    path: str | os.PathLike[str],
    keys: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    size: int | None = None,
) -> int:
    """Write one file, sparse where tensors have no data; ``size`` pads or cuts it. Gives its bytes."""
    alignment = _alignment(list(keys.items()) if isinstance(keys, Mapping) else list(keys))
    head = header(keys, tensors, version=version)
    places = offsets(tensors, alignment)
    end = len(head) + max((at + tensor.bytes for at, tensor in zip(places, tensors, strict=True)), default=0)
    with open(path, "wb") as file:
        file.write(head)
        for at, tensor in zip(places, tensors, strict=True):
            if tensor.data is not None:
                file.seek(len(head) + at)
                file.write(tensor.data)
        file.truncate(end if size is None else size)
    return end if size is None else size


def _alignment(pairs: Sequence[tuple[str, Any]]) -> int:
    value = dict(pairs).get("general.alignment", ALIGNMENT)
    number = value.value if isinstance(value, Value) else value
    return number if isinstance(number, int) and 0 < number <= 1 << 20 else ALIGNMENT


def llama_keys(*, layers: int = 2, context: int = 4096, **more: Any) -> dict[str, Any]:
    """Keys of a small ordinary model; ``more`` (as ``**{"llama.vocab_size": 3}``) replaces or adds."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "small",
        "general.type": "model",
        "general.file_type": 0,
        "llama.block_count": layers,
        "llama.context_length": context,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 128,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    return {**keys, **more}


def llama_tensors(*, layers: int = 2, kind: str = "f32") -> list[Tensor]:
    """A few tensors of each place: embedding, output, attention and feed-forward of every block."""
    found = [Tensor("token_embd.weight", (256, 4), kind), Tensor("output.weight", (256, 4), kind)]
    for block in range(layers):
        found += [Tensor(f"blk.{block}.{part}.weight", (256, 2), kind) for part in ("attn_q", "ffn_up", "ffn_down")]
    return [*found, Tensor("output_norm.weight", (64,))]
