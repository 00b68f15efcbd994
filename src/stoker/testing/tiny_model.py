"""Tiny real language models whose answer is known: about 1 MB, no training, the same bytes every time.

    write_tiny_gguf("tiny.gguf", text="Coal goes in, words come out.")

The embedding of token t is the unit vector of t, attention and feed-forward compute but add nothing, and the output
matrix has one large entry per token: its successor. An engine does all its work and fills its cache, yet after a chat
prompt comes the first word of ``text``, after each word the next, and after the last the end of the turn. With the end
ignored the text begins again, for streams that never stop. Standard library only.

Limits: each word of ``text`` is one token and may stand there once; vocabulary (256 bytes, a few specials, the words)
must fit the embedding. Knows llama-style models only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.testing.gguf_writer import ARRAY, F32, I32, STRING, U32, Tensor, Value, write_gguf

DEFAULT_TEXT = "The fire burns well and every kettle on this stove sings."
WIDTH, HEAD_WIDTH, FEED_FORWARD = 320, 64, 64
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_NORMAL, _CONTROL, _USER = 1, 3, 4
_VOCABULARY_STEP = 32
_TAG = re.compile(r"</?[a-z_]+>")
_WORD = re.compile(r"</?[a-z_]+>|\s*[^\s<]+(?:\s+(?=</?[a-z_]+>))?|\s+|<")  # space before a tag ends the word there

# What every token likes a little, so that constrained answers (JSON) close soon; the text itself always wins.
_LEANINGS = {"}": 0.08, "]": 0.07, '"': 0.06, "0": 0.05, ":": 0.04, ",": 0.01}
_NEXT, _START_AGAIN, _QUOTE_AFTER_LAST, _END_OF_TURN, _END_OF_ALL = 2.0, 1.0, 1.2, 0.10, 0.09

_PLAIN_TEMPLATE = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] }}\n{{ message['content'] or '' }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)
_TOOLS_TEMPLATE = (
    "{%- if tools -%}<|im_start|>system\nTools you may call:\n<tools>{%- for tool in tools %}\n{{ tool | tojson }}"
    "{%- endfor %}\n</tools>\nTo call one, write its name and arguments as JSON:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n{% endif -%}'
    "{%- for message in messages -%}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n"
    "{%- if message.role == 'tool' %}\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "{%- elif message.role == 'assistant' and message.tool_calls %}"
    "{%- for tool_call in message.tool_calls -%}{%- if tool_call.function -%}{%- set tool_call = tool_call.function -%}"
    '{%- endif %}\n<tool_call>\n{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}\n'
    "</tool_call>{%- endfor %}{%- else %}\n{{ message.content }}{%- endif %}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """Everything both formats are written from. ``chain`` are the ids of the words of the text, in order."""

    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    chain: tuple[int, ...]
    template: str
    context: int
    layers: int
    heads: int
    kv_heads: int

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


def tiny_model(
    text: str = DEFAULT_TEXT,
    *,
    context: int = 8192,
    layers: int = 1,
    tools: bool = False,
    heads: int = 5,
    kv_heads: int = 1,
) -> TinyModel:
    """Raises `ValueError` where the text cannot be a chain of distinct words or the shape is impossible."""
    if heads % kv_heads or heads < 1 or layers < 1 or context < 1:
        raise ValueError(f"{heads} heads over {kv_heads} KV heads, {layers} layers, context {context}: impossible")
    tokens = [*_byte_letters()]
    kinds = [_NORMAL] * len(tokens)
    for special in (END_OF_TEXT, TURN_START, TURN_END):
        tokens.append(special)
        kinds.append(_CONTROL)
    chain: list[int] = []
    for word in _distinct(text):
        is_tag = bool(_TAG.fullmatch(word))
        token = word if is_tag else _spell(word)
        if token in tokens:
            raise ValueError(f"{word!r} is a single character; choose another text")
        chain.append(len(tokens))
        tokens.append(token)
        kinds.append(_USER if is_tag else _NORMAL)
    if not chain:
        raise ValueError("the text is empty")
    for filler in range(-len(tokens) % _VOCABULARY_STEP):
        tokens.append(f"<|filler{filler}|>")
        kinds.append(_CONTROL)
    if len(tokens) > WIDTH:
        raise ValueError(f"{len(tokens)} tokens do not fit an embedding of {WIDTH}; choose a shorter text")
    template = _TOOLS_TEMPLATE if tools else _PLAIN_TEMPLATE
    return TinyModel(tuple(tokens), tuple(kinds), tuple(chain), template, context, layers, heads, kv_heads)


def write_tiny_gguf(path: str | os.PathLike[str], text: str = DEFAULT_TEXT, **shape: Any) -> TinyModel:
    """Write one GGUF file; ``shape`` as for `tiny_model`."""
    model = tiny_model(text, **shape)
    write_gguf(path, gguf_keys(model), [*_gguf_tensors(model)])
    return model


def write_tiny_safetensors(folder: str | os.PathLike[str], text: str = DEFAULT_TEXT, **shape: Any) -> TinyModel:
    """Write a folder as the hub has them: configuration, tokenizer, one safetensors file."""
    model = tiny_model(text, **shape)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in _configs(model).items():
        (place / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    index: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    data: list[bytes] = []
    for name, rows, columns, raw in _matrices(model):
        sides = [columns] if rows == 0 else [rows, columns]
        index[_hub_name(name)] = {"dtype": "F16", "shape": sides, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
        data.append(raw)
    head = json.dumps(index).encode()
    head += b" " * (-len(head) % 8)
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"".join(data))
    return model


def _byte_letters() -> list[str]:
    """A printable letter for each byte, as byte-level tokenizers have it: most are themselves, the rest move up."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(moved)) for byte in range(256)]


def _spell(word: str) -> str:
    letters = _byte_letters()
    return "".join(letters[byte] for byte in word.encode())


def _distinct(text: str) -> Iterator[str]:
    """The words of ``text``, each with the space before it; one that was there already is cut until it is new."""
    seen: set[str] = set()
    for found in _WORD.findall(text):
        word = found
        while word in seen:
            head, word = word[:-1], word[-1]
            if not head or head in seen or word in seen:
                raise ValueError(f"{found!r} stands in the text more than once; choose another text")
            seen.add(head)
            yield head
        seen.add(word)
        yield word


def gguf_keys(model: TinyModel) -> dict[str, Any]:
    ending, turn_end = model.id_of(END_OF_TEXT), model.id_of(TURN_END)
    return {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Stoker tiny test model",
        "general.license": "Apache-2.0",
        "general.file_type": Value(U32, 1),
        "llama.block_count": model.layers,
        "llama.context_length": model.context,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": model.heads,
        "llama.attention.head_count_kv": model.kv_heads,
        "llama.attention.key_length": HEAD_WIDTH,
        "llama.attention.value_length": HEAD_WIDTH,
        "llama.attention.layer_norm_rms_epsilon": Value(F32, 1e-5),
        "llama.rope.dimension_count": HEAD_WIDTH,
        "llama.rope.freq_base": Value(F32, 10_000.0),
        "llama.vocab_size": len(model.tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": Value(ARRAY, model.tokens, STRING),
        "tokenizer.ggml.token_type": Value(ARRAY, model.kinds, I32),
        "tokenizer.ggml.merges": Value(ARRAY, (), STRING),
        "tokenizer.ggml.bos_token_id": ending,
        "tokenizer.ggml.eos_token_id": turn_end,
        "tokenizer.ggml.padding_token_id": ending,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": model.template,
    }


def _successors(model: TinyModel) -> dict[tuple[int, int], float]:
    """Entries of the output matrix: (next token, this token) -> score."""
    first, last, turn_end = model.chain[0], model.chain[-1], model.id_of(TURN_END)
    leanings = {model.tokens.index(letter): weight for letter, weight in _LEANINGS.items()}
    leanings |= {turn_end: _END_OF_TURN, model.id_of(END_OF_TEXT): _END_OF_ALL}
    follows = dict(zip(model.chain, (*model.chain[1:], turn_end), strict=True))
    scores: dict[tuple[int, int], float] = {}
    for token in range(len(model.tokens)):
        scores |= {(row, token): weight for row, weight in leanings.items()}
        scores[first, token] = _START_AGAIN
        scores[follows.get(token, first), token] = _NEXT
    scores[model.tokens.index('"'), last] = _QUOTE_AFTER_LAST
    return scores


def _matrices(model: TinyModel) -> Iterator[tuple[str, int, int, bytes]]:
    """Name, rows (0: a vector), columns and half floats of every tensor."""
    words, heads, kv = len(model.tokens), model.heads * HEAD_WIDTH, model.kv_heads * HEAD_WIDTH
    yield "token_embd", words, WIDTH, _halves(words, WIDTH, {(i, i): 1.0 for i in range(words)})
    yield "output", words, WIDTH, _halves(words, WIDTH, _successors(model))
    yield "output_norm", 0, WIDTH, _ones()
    for layer in range(model.layers):
        at = f"blk.{layer}."
        yield f"{at}attn_norm", 0, WIDTH, _ones()
        yield f"{at}ffn_norm", 0, WIDTH, _ones()
        for name, rows in (("attn_q", heads), ("attn_k", kv), ("attn_v", kv), ("ffn_gate", FEED_FORWARD),
                           ("ffn_up", FEED_FORWARD)):  # fmt: skip
            yield at + name, rows, WIDTH, _halves(rows, WIDTH, {(i, i % WIDTH): 1.0 for i in range(rows)})
        yield f"{at}attn_output", WIDTH, heads, _halves(WIDTH, heads, {})
        yield f"{at}ffn_down", WIDTH, FEED_FORWARD, _halves(WIDTH, FEED_FORWARD, {})


def _gguf_tensors(model: TinyModel) -> Iterator[Tensor]:
    for name, rows, columns, raw in _matrices(model):
        if rows:
            yield Tensor(f"{name}.weight", (columns, rows), "f16", raw)
        else:
            yield Tensor(f"{name}.weight", (columns,), "f32", struct.pack(f"<{columns}f", *([1.0] * columns)))


def _halves(rows: int, columns: int, entries: dict[tuple[int, int], float]) -> bytes:
    raw = bytearray(2 * rows * columns)
    for (row, column), value in entries.items():
        struct.pack_into("<e", raw, 2 * (row * columns + column), value)
    return bytes(raw)


def _ones() -> bytes:
    return struct.pack(f"<{WIDTH}e", *([1.0] * WIDTH))


_HUB_NAMES = {
    "token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def _hub_name(name: str) -> str:
    if not name.startswith("blk."):
        return f"{_HUB_NAMES[name]}.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{_HUB_NAMES[part]}.weight"


def _configs(model: TinyModel) -> dict[str, Any]:
    ending, turn_end = model.id_of(END_OF_TEXT), model.id_of(TURN_END)
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": token, "special": kind == _CONTROL, **plain}
        for i, (token, kind) in enumerate(zip(model.tokens, model.kinds, strict=True))
        if kind != _NORMAL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    vocabulary = {token: i for i, token in enumerate(model.tokens)}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(model.tokens),
            "hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads, "head_dim": HEAD_WIDTH,
            "max_position_embeddings": model.context, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0,
            "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
            "torch_dtype": "float16", "bos_token_id": ending, "eos_token_id": turn_end, "pad_token_id": ending,
        },
        "generation_config.json": {
            "bos_token_id": ending, "eos_token_id": [turn_end, ending], "pad_token_id": ending,
        },
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": vocabulary, "merges": [],
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.context,
            "clean_up_tokenization_spaces": False, "chat_template": model.template, "bos_token": END_OF_TEXT,
            "eos_token": TURN_END, "pad_token": END_OF_TEXT,
            "added_tokens_decoder": {str(e["id"]): {k: v for k, v in e.items() if k != "id"} for e in added},
        },
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """``python -m stoker.testing.tiny_model gguf|safetensors OUT``."""
    parser = argparse.ArgumentParser(prog="tiny_model", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("format", choices=["gguf", "safetensors"])
    parser.add_argument("out", help="file (gguf) or folder (safetensors)")
    parser.add_argument("--text", default=DEFAULT_TEXT, help="what the model always answers")
    parser.add_argument("--context", type=int, default=8192, help="native context in tokens")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--tools", action="store_true", help="a chat template that knows tools")
    options = parser.parse_args(arguments)
    write = write_tiny_gguf if options.format == "gguf" else write_tiny_safetensors
    try:
        write(
            options.out, options.text, context=options.context, layers=options.layers, heads=options.heads,
            kv_heads=options.kv_heads, tools=options.tools,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
