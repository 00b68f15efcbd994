"""Reads the header of a GGUF file: its keys and its tensor table, nothing else (M-3 to M-6, M-13).

Every count is checked against the bytes that could hold it before a loop or an allocation, so any bytes end quickly in
a header or in `StoreError`. Arrays that no rule needs are walked, not kept. It does not know what the keys mean.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import ErrorCode, StoreError
from stoker.store.byte_source import ByteSource, Cursor
from stoker.store.gguf_types import (
    ARRAY,
    SCALARS,
    SMALLEST_ARRAY_BYTES,
    SMALLEST_STRING_BYTES,
    STRING,
    TENSOR_TYPES,
)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_BYTES = 512 << 20
KEY_BYTES, TENSOR_NAME_BYTES, STRING_BYTES = 65_535, 1_024, 16 << 20
KEPT_STRING_BYTES = 4_096
NESTING = 4
MAX_KEYS = 65_536
MAX_TENSORS = 1_000_000
KEPT_ELEMENTS = 65_536
KEPT_ARRAY_BYTES = 4 << 20
MAX_ALIGNMENT = 1 << 20
MAX_DIMENSIONS = 4
SMALLEST_KEY_BYTES, SMALLEST_TENSOR_BYTES = 13, 32
BLOCKS = 65_536

# Keys that belong to no architecture: their arrays are walked, never kept (M-5).
_PLAIN = re.compile(r"(general|split|tokenizer|clip)\.")
_TEMPLATE = "tokenizer.chat_template"
_BLOCK = re.compile(rb"blk\.(\d{1,6})\.(.*)", re.DOTALL)
_EXPERTS = re.compile(rb"ffn_(up|gate|down|gate_up)_exps\b")
_DENSE = re.compile(rb"ffn_(up|gate|down|gate_up)(_shexp)?\.")


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array that was walked: what it holds and how many."""

    type: int
    count: int


@dataclass(frozen=True, slots=True)
class Text:
    """A long text that was walked: its bytes and digest."""

    bytes: int
    digest: str


@dataclass(slots=True)
class TensorSums:
    """Tensor bytes by place and type. ``blocks``: block number -> rest, dense feed-forward, experts."""

    count: int = 0
    input_embedding: int = 0
    output: int = 0
    other: int = 0
    has_output: bool = False
    blocks: dict[int, list[int]] = field(default_factory=dict)
    by_type: dict[str, int] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)

    def add(self, other: TensorSums) -> None:
        """Take in the tensors of another part of a set."""
        self.count += other.count
        self.input_embedding += other.input_embedding
        self.output += other.output
        self.other += other.other
        self.has_output |= other.has_output
        self.uncertain |= other.uncertain
        for block, sums in other.blocks.items():
            mine = self.blocks.setdefault(block, [0, 0, 0])
            self.blocks[block] = [a + b for a, b in zip(mine, sums, strict=True)]
        for name, amount in other.by_type.items():
            self.by_type[name] = self.by_type.get(name, 0) + amount


@dataclass(frozen=True, slots=True)
class Header:
    """Keys with their values (numbers, texts, lists of numbers, `ArrayOf`, `Text`) and the sums of the tensor table."""

    version: int
    keys: Mapping[str, Any]
    tensors: TensorSums
    header_bytes: int
    file_bytes: int
    name: str


def read_header(source: ByteSource) -> Header:
    """The header of one file. Raises `StoreError`: corrupt, big-endian, unsupported version, not a model."""
    cursor = Cursor(source, HEADER_BYTES)
    version = _version(cursor)
    tensor_count = cursor.uint(8, "tensor count")
    key_count = cursor.uint(8, "key count")
    _bound(cursor, "key count", key_count, min(cursor.remaining // SMALLEST_KEY_BYTES, MAX_KEYS))
    most = min(cursor.remaining // SMALLEST_TENSOR_BYTES, MAX_TENSORS)
    _bound(cursor, "tensor count", tensor_count, most)
    keys = _Keys(cursor)
    for _ in range(key_count):
        keys.read()
    alignment = _alignment(cursor, keys.found.get("general.alignment", 32))
    sums = _Table(cursor, tensor_count, alignment).read()
    return Header(version, keys.found, sums, cursor.position, source.size, source.name)


def _version(cursor: Cursor) -> int:
    if cursor.source.size == 0:
        raise cursor.corrupt("file", "is empty", "truncated")
    magic = cursor.take(min(4, cursor.remaining), "magic")
    if magic != MAGIC:
        if magic and MAGIC.startswith(magic):
            raise cursor.corrupt("magic", "ends early", "truncated")
        raise StoreError(
            ErrorCode.CONTENT_NOT_A_MODEL,
            f"{cursor.source.name} does not begin like a GGUF file.",
            remedy="Name a GGUF file.",
        )
    version = cursor.uint(4, "version")
    if version in VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        raise StoreError(
            ErrorCode.BIG_ENDIAN,
            f"{cursor.source.name} is a big-endian GGUF file; only little-endian ones can be loaded.",
            remedy="Get the little-endian file of this model.",
        )
    raise StoreError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"{cursor.source.name} is GGUF version {version}; versions 2 and 3 can be read.",
        remedy="Convert the file with a current tool, or get a newer one.",
    )


def _bound(cursor: Cursor, name: str, value: int, most: int) -> None:
    if value > most:
        raise cursor.corrupt(name, f"says {value}, where at most {most} are possible")


def _alignment(cursor: Cursor, value: Any) -> int:
    is_power = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_ALIGNMENT
    if not is_power or value & (value - 1):
        raise cursor.corrupt("general.alignment", f"is {value!r}, not a power of two up to {MAX_ALIGNMENT}")
    return int(value)


class _Keys:
    """Reads key after key; remembers what was seen and how much was kept."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.found: dict[str, Any] = {}
        self._kept_bytes = 0

    def read(self) -> None:
        cursor = self.cursor
        length = cursor.uint(8, "key length")
        if length > KEY_BYTES:
            raise cursor.corrupt("key length", f"is {length}, at most {KEY_BYTES}")
        key = cursor.take(length, "key").decode("utf-8", "replace")
        if key in self.found:
            raise cursor.corrupt(key[:200], "stands there twice", "duplicate-key")
        self._kept_bytes += length
        if self._kept_bytes > KEPT_ARRAY_BYTES:
            raise cursor.corrupt("keys", f"hold more than {KEPT_ARRAY_BYTES} bytes")
        self.found[key] = self._value(key, cursor.uint(4, key))

    def _value(self, key: str, kind: int) -> Any:
        if kind in SCALARS:
            width, code = SCALARS[kind]
            return struct.unpack(f"<{code}", self.cursor.take(width, key))[0]
        if kind == STRING:
            return self._text(key)
        if kind == ARRAY:
            return self._array(key)
        raise self.cursor.corrupt(key, f"has the unknown value type {kind}")

    def _text(self, key: str) -> Any:
        cursor = self.cursor
        length = cursor.uint(8, key)
        if length > STRING_BYTES:
            raise cursor.corrupt(key, f"is a text of {length} bytes, at most {STRING_BYTES}")
        if key == _TEMPLATE:
            return Text(length, cursor.digest(length, key))
        if length > KEPT_STRING_BYTES or self._kept_bytes + length > KEPT_ARRAY_BYTES:
            cursor.skip(length, key)
            return Text(length, "")
        self._kept_bytes += length
        return cursor.take(length, key).decode("utf-8", "replace")

    def _array(self, key: str) -> Any:
        cursor = self.cursor
        kind, count = cursor.uint(4, key), cursor.uint(8, key)
        if kind in SCALARS and count <= KEPT_ELEMENTS and not _PLAIN.match(key):
            width, code = SCALARS[kind]
            raw = cursor.take(count * width, key)
            self._kept_bytes += 8 * count
            if self._kept_bytes > KEPT_ARRAY_BYTES:
                raise cursor.corrupt(key, f"and other lists hold more than {KEPT_ARRAY_BYTES} bytes")
            return struct.unpack(f"<{count}{code}", raw)
        self._skip_array(key, kind, count, 1)
        return ArrayOf(kind, count)

    def _skip_array(self, key: str, kind: int, count: int, depth: int) -> None:
        cursor = self.cursor
        if kind in SCALARS:
            cursor.skip(count * SCALARS[kind][0], key)
        elif kind == STRING:
            _bound(cursor, key, count, cursor.remaining // SMALLEST_STRING_BYTES)
            cursor.skip_strings(count, STRING_BYTES, key)
        elif kind == ARRAY:
            _bound(cursor, key, count, cursor.remaining // SMALLEST_ARRAY_BYTES)
            if depth >= NESTING:
                raise cursor.corrupt(key, f"nests arrays deeper than {NESTING}")
            for _ in range(count):
                self._skip_array(key, cursor.uint(4, key), cursor.uint(8, key), depth + 1)
        else:
            raise cursor.corrupt(key, f"holds the unknown value type {kind}")


class _Table:
    """The tensor table: bytes by type and dimensions must agree with the offsets (M-13)."""

    def __init__(self, cursor: Cursor, count: int, alignment: int) -> None:
        self.cursor = cursor
        self.count = count
        self.alignment = alignment
        self.sums = TensorSums(count)
        self.offsets = array("Q")
        self.sizes = array("q")  # -1: the type is unknown, the offsets decide
        self.places = array("q")

    def read(self) -> TensorSums:
        for _ in range(self.count):
            self._one()
        if self.count:
            self._check(-(-self.cursor.position // self.alignment) * self.alignment)
        return self.sums

    def _one(self) -> None:
        cursor = self.cursor
        length = cursor.uint(8, "tensor name length")
        if length > TENSOR_NAME_BYTES:
            raise cursor.corrupt("tensor name length", f"is {length}, at most {TENSOR_NAME_BYTES}")
        name = cursor.take(length, "tensor name")
        shown = name.decode("utf-8", "replace")[:200]
        dimensions = cursor.uint(4, shown)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise cursor.corrupt(shown, f"has {dimensions} dimensions, 1 to {MAX_DIMENSIONS} are possible")
        sides = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, shown))
        kind, offset = struct.unpack("<IQ", cursor.take(12, shown))
        size = self._size(shown, sides, kind)
        if offset % self.alignment or offset + max(size, 0) > cursor.source.size:
            raise cursor.corrupt(shown, f"lies at {offset} with {size} bytes, in a file of {cursor.source.size}")
        self.offsets.append(offset)
        self.sizes.append(size)
        self.places.append(_place(name, self.sums))
        if size > 0 and self.places[-1] >= 0:
            type_name = TENSOR_TYPES[kind][0]
            self.sums.by_type[type_name] = self.sums.by_type.get(type_name, 0) + size

    def _size(self, shown: str, sides: tuple[int, ...], kind: int) -> int:
        if kind not in TENSOR_TYPES:
            self.sums.uncertain.add("tensor-type-unknown")
            return -1
        _, block, block_bytes = TENSOR_TYPES[kind]
        elements = 1
        for side in sides:
            elements *= side
        if sides[0] % block or elements > 8 * self.cursor.source.size:
            raise self.cursor.corrupt(shown, f"has {elements} elements in rows of {sides[0]}, blocks of {block}")
        return elements // block * block_bytes

    def _check(self, data_start: int) -> None:
        room = self.cursor.source.size - data_start
        order = sorted(range(len(self.offsets)), key=self.offsets.__getitem__)
        for index, following in zip(order, [*order[1:], -1], strict=True):
            offset, size = self.offsets[index], self.sizes[index]
            is_last = following < 0
            after = room if is_last else self.offsets[following]
            if size < 0:
                size = max(0, after - offset)
            if offset + size > after:
                reason = "truncated" if is_last else "overlap"
                beyond = f"would end at {offset + size} of the data, {after} is its end"
                raise self.cursor.corrupt("tensor table", f"is wrong: a tensor {beyond}", reason)
            if not is_last and after - offset - size >= self.alignment:
                raise self.cursor.corrupt("tensor table", f"leaves {after - offset - size} bytes between tensors")
            _count(self.sums, self.places[index], size)


_INPUT, _OUTPUT, _OTHER = -1, -2, -3


def _place(name: bytes, sums: TensorSums) -> int:
    """Where a tensor counts: negative numbers outside the blocks, else 3 * block + part."""
    match = _BLOCK.match(name)
    if match and int(match[1]) < BLOCKS:
        part = 2 if _EXPERTS.match(match[2]) else 1 if _DENSE.match(match[2]) else 0
        return 3 * int(match[1]) + part
    if name.startswith(b"token_embd."):
        return _INPUT
    if name.startswith(b"output."):
        sums.has_output = True
        return _OUTPUT
    return _OTHER


def _count(sums: TensorSums, place: int, size: int) -> None:
    if place >= 0:
        sums.blocks.setdefault(place // 3, [0, 0, 0])[place % 3] += size
    elif place == _INPUT:
        sums.input_embedding += size
    elif place == _OUTPUT:
        sums.output += size
    else:
        sums.other += size
