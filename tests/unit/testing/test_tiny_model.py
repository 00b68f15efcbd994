"""The tiny model answers its text, is the same every time, and reads as what it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.domain.models import LayerGroup, LayerKind, ModelKind
from stoker.store.byte_source import FileBytes
from stoker.store.gguf_facts import read_facts
from stoker.testing.tiny_model import DEFAULT_TEXT, main, tiny_model, write_tiny_gguf, write_tiny_safetensors

TOOL_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'

# Loads the model in a process of its own, asks once, prints the answer; leaves without waiting for anything.
_ASK = """
import json, os, sys, time, urllib.error, urllib.request
import xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.port = 0
settings.n_ctx = 1024
settings.n_parallel = 1
settings.cache_ram_mib = 0
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(settings)
asked = {"messages": [{"role": "user", "content": "Good morning"}], **json.loads(sys.argv[2])}
request = urllib.request.Request(server.listening_address + "/v1/chat/completions", json.dumps(asked).encode(),
                                 {"content-type": "application/json"})
for _ in range(400):
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=20))
        break
    except urllib.error.HTTPError:
        time.sleep(0.05)
print(json.dumps(answer["choices"][0]))
sys.stdout.flush()
os._exit(0)
"""


def ask(path: Path, **asked: object) -> dict[str, object]:
    pytest.importorskip("xllamacpp")
    done = subprocess.run(
        [sys.executable, "-c", _ASK, str(path), json.dumps(asked)], capture_output=True, timeout=60, check=True
    )
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.engine
def test_a_real_engine_answers_the_text(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", text="Coal goes in, words come out.", layers=2, heads=4, kv_heads=2)
    answer = ask(tmp_path / "m.gguf")
    assert answer["finish_reason"] == "stop"
    assert answer["message"] == {"role": "assistant", "content": "Coal goes in, words come out."}


@pytest.mark.engine
def test_a_real_engine_parses_the_tool_call(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", text=TOOL_CALL, tools=True)
    takes = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": takes}}
    answer: Any = ask(tmp_path / "m.gguf", tools=[tool])
    assert answer["finish_reason"] == "tool_calls"
    (call,) = answer["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("get_weather", {"city": "Paris"})


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "a.gguf")
    write_tiny_gguf(tmp_path / "b.gguf")
    write_tiny_gguf(tmp_path / "c.gguf", text="Another text.")
    a, b, c = ((tmp_path / f"{name}.gguf").read_bytes() for name in "abc")
    assert a == b != c
    assert len(a) < 1 << 20


def test_its_header_tells_its_shape(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", context=512, layers=3, heads=4, kv_heads=2)
    with FileBytes(str(tmp_path / "m.gguf")) as source:
        facts = read_facts(source)
    assert (facts.kind, facts.context_native, facts.heads) == (ModelKind.TEXT, 512, 4)
    assert facts.layer_groups == (LayerGroup(3, LayerKind.FULL, 2, 64, 64),)
    assert facts.has_chat_template


def test_the_folder_form_holds_the_same_model(tmp_path: Path) -> None:
    model = write_tiny_safetensors(tmp_path / "m", layers=2)
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["num_hidden_layers"], config["vocab_size"]) == (2, len(model.tokens))
    raw = (tmp_path / "m/model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    index = json.loads(raw[8 : 8 + length])
    assert len(raw) == 8 + length + max(entry["data_offsets"][1] for entry in index.values() if "dtype" in entry)
    vocabulary = json.loads((tmp_path / "m/tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(model.tokens)))


@pytest.mark.parametrize("text", ["", "a", "the the the", " ".join(f"word{i}" for i in range(99))])
def test_a_text_that_cannot_be_a_chain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text"):
        tiny_model(text)


def test_an_impossible_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="impossible"):
        tiny_model(DEFAULT_TEXT, heads=5, kv_heads=2)


def test_the_command_writes_either_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["gguf", str(tmp_path / "m.gguf"), "--text", "Good day to all."])
    main(["safetensors", str(tmp_path / "m"), "--tools"])
    assert (tmp_path / "m.gguf").exists()
    assert (tmp_path / "m/model.safetensors").exists()
    with pytest.raises(SystemExit):
        main(["gguf", str(tmp_path / "m.gguf"), "--text", "no no no"])
    assert "choose another text" in capsys.readouterr().err
