"""The descriptor of llama.cpp, read once, as typed constants."""

from __future__ import annotations

from stoker.engines.descriptors import load_descriptor, option_rules
from stoker.ids import EngineId

DESCRIPTOR = load_descriptor(__package__)
ID = EngineId(DESCRIPTOR["engine"])
TITLE: str = DESCRIPTOR["title"]
ASSUMED: frozenset[str] = frozenset(DESCRIPTOR["assumed"])
OPTIONS = option_rules(DESCRIPTOR, ("LLAMA_", "GGML_"))
TOKEN_VARIABLE = "LLAMA_API_KEY"  # noqa: S105 - a name, not a secret
EMBEDDED, BINARY = "embedded", "binary"
