"""Reading what an installed llama.cpp can do (E-12, E-13, E-68), and rendering only that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from llama_samples import ADAPTER, TINY, at, build, captured, golden, help_text, launch_inputs, outputs, plan, site

from stoker.engines.llama_cpp.build import FEATURES, options_of
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.errors import ErrorCode
from stoker.ports.engines import Build, BuildDevice, BuildRefused, Captured

# An older program: another spelling for some things, nothing at all for others.
OLD_HELP = """
-m,    --model FNAME                    model path
-c,    --ctx-size N                     window
-np,   --parallel N                     slots
-fa,   --flash-attn                     fast attention
-ctk,  --cache-type-k TYPE              keys
                                        allowed values: f32, f16, q8_0
--no-mmap                               do not map
--no-webui                              no page
--slots                                 slots route
"""


def old_build() -> Build:
    told = {"help": captured(OLD_HELP), "version": captured("build 0, commit unknown\n"), "devices": captured("")}
    read = ADAPTER.read_build(at("binary"), told)
    assert isinstance(read, Build)
    return read


def test_the_executable_tells_its_features_and_values() -> None:
    read = build("binary")
    assert (read.release, read.commit) == ("0.1.0-dev-b1", "7e4c0a9")
    assert FEATURES.keys() - read.features == {"jsonl"}
    assert read.values["cache_type_k"] >= {"f16", "q8_0", "iq4_nl"}
    assert read.values["pooling"] == {"none", "mean", "cls", "last", "rank"}
    assert read.devices == ()


def test_the_wheel_tells_its_features_and_values() -> None:
    read = build("embedded")
    assert (read.release, read.commit) == ("2026.10.11549", None)
    assert FEATURES.keys() - read.features == {"device-list", "n-cpu-moe"}
    assert "engine-args" not in read.features
    assert read.values["cache_type_v"] == build("binary").values["cache_type_v"]
    assert read.devices == ()


def test_a_build_without_a_usable_version_still_tells_its_features() -> None:
    read = old_build()
    assert (read.release, read.commit) == ("unknown", None)
    assert read.features == {"slots", "flash-attn-bare", "mmap-flags", "no-webui", "engine-args"}


def test_a_flag_that_a_build_lacks_is_never_rendered() -> None:
    options = options_of(OLD_HELP) | {"--alias", "--host", "--port", "--log-verbosity", "--batch-size", "--threads-batch",
                                      "--ubatch-size", "--cache-type-v", "--gpu-layers", "--threads", "--jinja"}  # fmt: skip
    made = ADAPTER.launch(plan(use_mmap=False), site("binary", build=old_build()))
    rendered = {item for item in made.argv if item.startswith("--")}
    assert rendered <= options
    assert {"--flash-attn", "--no-mmap", "--no-webui"} <= rendered
    assert made.endpoint.socket is None


def test_every_flag_rendered_for_a_real_build_stands_in_its_help() -> None:
    options = options_of(help_text())
    for name, (plan_, site_) in launch_inputs().items():
        if name.startswith("binary"):
            flags = {item for item in ADAPTER.launch(plan_, site_).argv[1:] if item.startswith("--")}
            assert flags <= options, name


def test_every_parameter_rendered_for_the_wheel_is_one_it_has() -> None:
    import json

    known = set(json.loads(outputs("embedded")["module"].stdout)["parameters"])
    for row in golden().values():
        assert set(row.get("parameters", ())) <= known


def test_the_stored_parameters_are_what_is_written_for_the_wheel() -> None:
    import json

    for name, (plan_, site_) in launch_inputs().items():
        made = ADAPTER.launch(plan_, site_)
        assert ("launch.json" in made.files) == name.startswith("embedded")
        if made.files:
            text, is_secret = made.files["launch.json"]
            assert json.loads(text) == {"parameters": golden()[name]["parameters"]}
            assert not is_secret


@pytest.mark.parametrize(
    ("kind", "told", "cause"),
    [
        ("binary", {"help": captured("usage: ls [OPTION]\n")}, "not-llama-server"),
        ("binary", {"help": captured("", status=127)}, "failed"),
        ("binary", {"help": captured("", status=-4)}, "illegal-instruction"),
        ("binary", {"help": captured("", None, "timeout")}, "timeout"),
        ("embedded", {"module": captured("Segfault")}, "failed"),
        ("embedded", {"module": captured("[]")}, "failed"),
        ("embedded", {"module": captured('{"missing": "No module named x"}')}, "missing-module"),
        ("embedded", {"module": captured('{"parameters": ["n_ctx"]}')}, "not-llama-server"),
        ("embedded", {}, "failed"),
    ],
)
def test_what_is_no_llama_cpp_is_refused_with_a_cause(kind, told, cause) -> None:
    refused = ADAPTER.read_build(at(kind), told)
    assert isinstance(refused, BuildRefused)
    assert refused.cause == cause
    assert refused.message


def test_cards_of_the_listing_are_devices_and_free_memory_is_no_part_of_the_digest() -> None:
    listing = "Available devices:\n  CUDA0: NVIDIA H200 (143771 MiB, {} MiB free)\n  RPC0: x (1 MiB, 1 MiB free)\n"
    reads = [
        ADAPTER.read_build(at("binary"), {**outputs("binary"), "devices": captured(listing.format(free))})
        for free in (100, 99)
    ]
    assert all(isinstance(read, Build) for read in reads)
    assert reads[0].devices == (BuildDevice("CUDA0", "NVIDIA H200", 143771 << 20),)
    assert reads[0].digest == reads[1].digest != build("binary").digest


def test_probes_are_bounded_and_the_wheel_is_asked_in_its_own_process() -> None:
    assert [(c.name, c.timeout_s) for c in ADAPTER.probe_commands(at("binary"))] == [
        ("version", 10.0),
        ("help", 10.0),
        ("devices", 20.0),
    ]
    (probe,) = ADAPTER.probe_commands(at("embedded"))
    assert probe.argv[1:] == ("-I", "-m", "stoker.engines.llama_cpp.launcher", "--probe")


def test_settings_that_a_build_cannot_take_are_refused_by_name() -> None:
    settings = LlamaCppSettings(cache_type_k="iq4_nl", swa_full=True, speculation="ngram", gpu_layers=3, warmup=False)
    reasons = ADAPTER.refuse_model(TINY, settings, old_build())
    assert {reason.param for reason in reasons} == {
        "settings.swa_full", "settings.speculation", "settings.cache_type_k", "settings.gpu_layers", "settings.warmup",
    }  # fmt: skip
    assert all(reason.code is ErrorCode.BAD_SETTING and "unknown" in reason.message for reason in reasons)
    assert ADAPTER.refuse_model(TINY, LlamaCppSettings(), old_build()) == ()
    assert ADAPTER.refuse_model(TINY, settings, None) == ()


def test_models_that_are_no_gguf_or_serve_nothing_alone_are_refused() -> None:
    (reason,) = ADAPTER.refuse_model(replace(TINY, format="safetensors"), LlamaCppSettings(), None)
    assert reason.code is ErrorCode.MODEL_UNSUPPORTED
    (reason,) = ADAPTER.refuse_model(replace(TINY, kind="projector"), LlamaCppSettings(), None)
    assert reason.code is ErrorCode.WRONG_KIND
    (reason,) = ADAPTER.refuse_model(TINY, LlamaCppSettings(task="embed", max_output_tokens=3), None)
    assert reason.param == "settings.max_output_tokens"


def test_captured_output_of_any_bytes_ends_in_a_value() -> None:
    for junk in (b"\xff\xfe\x00", b"{" * 100_000, b"[" * 100_000, b'{"parameters": {"n_ctx": 3}}'):
        told = {name: Captured(0, junk, junk, 1.0) for name in ("module", "help", "version", "devices")}
        for kind in ("binary", "embedded"):
            assert isinstance(ADAPTER.read_build(at(kind), told), BuildRefused)
