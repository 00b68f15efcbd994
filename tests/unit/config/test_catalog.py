"""The table of keys says of every key what the specification's table says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from stoker.config import catalog
from stoker.config.schema import Settings


def test_every_key_has_one_effect_and_a_default_of_its_own_kind():
    kinds = {"flag": bool, "whole": int, "number": float, "list": tuple, "table": dict}
    for key in catalog.keys().values():
        assert key.effect.value in "LNDR"
        if key.default is not None and key.kind in kinds:
            assert isinstance(key.default, kinds[key.kind]), key.path


@pytest.mark.parametrize(
    ("path", "default", "effect"),
    [
        ("gateway.port", 5151, "R"),
        ("gateway.max_body_bytes", 64 * 2**20, "L"),
        ("control.tcp", "127.0.0.1:5152", "R"),
        ("queue.max_waiting_total", 512, "L"),
        ("models.*.engine_args", (), "D"),
        ("models.*.stop_grace_s", None, "N"),
        ("models.*.keep_alive_s", 300.0, "L"),
        ("sessions.drain_s.change", 600.0, "L"),
        ("sessions.port_range", "23100-23999", "N"),
        ("pools.*.use", True, "R"),
        ("memory.yield", True, "L"),
        ("memory.growth_tokens", 131072, "N"),
        ("engines.*.args", (), "D"),
        ("store.quota", "refuse", "L"),
        ("cache.max_age_s", 14 * 86400.0, "L"),
        ("events.buffer_bytes", 4 * 2**20, "L"),
        ("tracing.otlp_endpoint", "", "R"),
        ("log.files", 5, "L"),
        ("containers.registries", {}, "N"),
        ("ray.namespace", "stoker", "R"),
    ],
)
def test_defaults_and_effects_are_those_of_the_table(path, default, effect):
    key = catalog.keys()[tuple(path.split("."))]
    assert (key.default, key.effect.value) == (default, effect)


def test_settings_are_frozen_and_ranges_hold_for_defaults():
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.gateway.port = 1
    assert Settings.model_validate(settings.model_dump(by_alias=True)) == settings
    assert settings.sessions.ports == (23100, 23999)


def test_free_tables_are_found_and_unknown_keys_are_not():
    assert catalog.find(("models", "x", "env", "A")).path == ("models", "*", "env")
    assert catalog.find(("gateway", "port")).kind == "whole"
    assert catalog.find(("gateway", "port", "x")) is None
    assert catalog.find(("nope",)) is None
    assert catalog.find(("models", "x")) is None


def test_loading_a_configuration_imports_no_editor_of_files_and_no_server():
    code = (
        "import sys, stoker.config.load, stoker.config.deployments; "
        "print([m for m in ('tomlkit', 'fastapi', 'uvicorn', 'structlog', 'platformdirs') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "[]\n"
