"""Descriptors: the facts of an engine that are data, read once with the adapter's module (E-7, E-9)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from stoker.ports.engines import OptionRules


def load_descriptor(package: str) -> dict[str, Any]:
    """``descriptor.toml`` of an adapter's package."""
    return tomllib.loads(files(package).joinpath("descriptor.toml").read_text(encoding="utf-8"))


def option_rules(descriptor: dict[str, Any], env_prefixes: tuple[str, ...]) -> OptionRules:
    table = descriptor["arguments"]
    return OptionRules(free=dict(table["free"]), reserved=dict(table["reserved"]), env_prefixes=env_prefixes)
