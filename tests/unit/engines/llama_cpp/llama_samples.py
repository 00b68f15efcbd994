"""Plans, sites, builds and captured texts of llama.cpp, for its own tests and for the conformance suite."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stoker.domain.context import LaunchPlan
from stoker.domain.footprint import Footprint
from stoker.domain.models import LayerGroup, LayerKind, ModelFacts
from stoker.engines.llama_cpp.adapter import ADAPTER
from stoker.engines.llama_cpp.build import options_of
from stoker.engines.llama_cpp.facts import ID
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.errors import ErrorCode
from stoker.ids import Generation
from stoker.ports.engines import (
    Build,
    Captured,
    InstallationSite,
    ReadySeen,
    Route,
    Sample,
    Seen,
    Site,
)
from stoker.ports.units import Endpoint, Exit
from stoker.testing.engines import BuildCase, EditCase, EngineCase, ErrorCase, LaunchCase, LogCase
from stoker.testing.model_zoo import facts

HERE = Path(__file__).parent
PROGRAM = "/opt/llama/llama-server"
PYTHON = "/opt/stoker/bin/python"
TOKEN = "planted-engine-token-7f3a"
TINY: ModelFacts = facts(
    LayerGroup(1, LayerKind.FULL, 1, 64, 64), context_native=8192, vocab_size=288, has_chat_template=True, name="tiny"
)
CHAT = Route("POST", "/v1/chat/completions")
RESPONSES = Route("POST", "/v1/responses")
EMBEDDINGS = Route("POST", "/v1/embeddings")


def plan(**members: object) -> LaunchPlan:
    """A small CPU plan; ``members`` replace any field."""
    values: dict[str, object] = {
        "engine": ID,
        "deployment": "tiny",
        "model_path": "/models/tiny.gguf",
        "facts": TINY,
        "settings": LlamaCppSettings(),
        "context_tokens": 2048,
        "slots": 2,
        "kv_type_k": "f16",
        "kv_type_v": "f16",
        "flash_attention": True,
        "batch_tokens": 2048,
        "micro_batch_tokens": 512,
        "gpu_layers": 0,
        "threads": 1,
        "use_mmap": True,
        "cache_ram_bytes": 64 << 20,
        "checkpoints": 0,
        "footprint": Footprint(()),
    }
    return LaunchPlan(**{**values, **members})


def site(kind: str = "embedded", **members: object) -> Site:
    values: dict[str, object] = {
        "unit_kind": "process",
        "executable": PYTHON if kind == "embedded" else PROGRAM,
        "site_kind": kind,
        "model_path": "/models/tiny.gguf",
        "served_name": "tiny",
        "generation": Generation(7),
        "life_dir": "/run/stoker/7",
        "cache_dir": "/var/stoker/cache",
        "slots_dir": "/var/stoker/slots/7",
        "endpoint": Endpoint(),
        "token": TOKEN,
        "build": build(kind),
    }
    return Site(**{**values, **members})


def captured(text: str, status: int | None = 0, ended: str = "exit") -> Captured:
    return Captured(status, text.encode(), b"", 12.0, ended)


def help_text() -> str:
    return (HERE / "help-binary.txt").read_text(encoding="utf-8")


def outputs(kind: str) -> dict[str, Captured]:
    if kind == "embedded":
        return {"module": captured((HERE / "module.json").read_text(encoding="utf-8"))}
    return {
        "version": captured((HERE / "version-binary.txt").read_text(encoding="utf-8")),
        "help": captured(help_text()),
        "devices": captured("Available devices:\n  (none)\n"),
    }


def at(kind: str) -> InstallationSite:
    return InstallationSite(kind, PYTHON if kind == "embedded" else PROGRAM)


def build(kind: str) -> Build:
    read = ADAPTER.read_build(at(kind), outputs(kind))
    assert isinstance(read, Build)
    return read


def log(name: str) -> tuple[str, ...]:
    """The lines of a captured log without the note of its release."""
    lines = (HERE / "logs" / f"{name}.log").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# release: ")
    return tuple(lines[1:])


FAILED = Exit(1, None, False, 0.0, "engine")
MIB = 1 << 20
# (case, kind, cause, class, numbers, part of the deciding line)
_CAPTURED = (
    ("architecture", "model-unsupported", "architecture", 5, {}, "unknown model architecture: 'blimp'"),
    ("bad-magic", "model-file-corrupt", "bad-magic", 5, {}, "invalid magic characters"),
    ("cut-header", "model-file-corrupt", "truncated-file", 5, {}, "failed to read key-value pairs"),
    ("empty-file", "model-file-corrupt", "bad-magic", 5, {}, "failed to read magic"),
    ("missing", "model-file-missing", "missing-file", 5, {}, "failed to open GGUF file"),
    ("truncated", "model-file-corrupt", "truncated-file", 5, {}, "not within the file bounds"),
    ("version", "model-unsupported", "version", 5, {}, "version 99"),
    ("port-taken", "port-in-use", "port", 2, {}, "couldn't bind HTTP server socket"),
    ("stale-socket", "port-in-use", "port", 2, {}, "couldn't bind HTTP server socket"),
    ("quantised-v", "bad-setting", "flag-combination", 5, {}, "quantized V cache requires"),
    ("kv-cache", "host-out-of-memory", "kv-cache", 8, {"requested_bytes": 1440 * MIB}, "buffer for kv cache"),
)
_ONE_BUILD = (
    ("binary-unknown-flag", "bad-setting", "unknown-flag", 1, {}, "--no-such-flag"),
    ("binary-bad-kv-type", "bad-setting", "bad-value", 1, {}, "Unsupported cache type: q9_9"),
    ("binary-bad-device", "bad-setting", "devices", 1, {}, "invalid device: CUDA7"),
    ("binary-no-slot-folder", "bad-setting", "bad-value", 1, {}, "not a directory"),
    ("binary-projector", "bad-setting", "companion", 4, {}, "Failed to load CLIP model"),
    ("binary-adapter", "bad-setting", "companion", 4, {}, "expect general.type to be 'adapter'"),
    ("binary-draft", "bad-setting", "companion", 4, {}, "failed to load draft model"),
    ("binary-cells", "host-out-of-memory", "process", 8, {}, "std::bad_alloc"),
    ("binary-weights", "host-out-of-memory", "weights", 8, {"requested_bytes": int(92.10 * MIB)}, "unable to allocate"),
    (
        "binary-scratch",
        "host-out-of-memory",
        "compute",
        8,
        {"requested_bytes": int(2662.13 * MIB)},
        "failed to allocate compute",
    ),
    (
        "embedded-scratch",
        "host-out-of-memory",
        "compute",
        8,
        {"requested_bytes": int(2680.22 * MIB)},
        "failed to allocate compute",
    ),
    ("embedded-weights", "engine-exited", "host-limits", 10, {}, "Resource temporarily unavailable"),
)
_ENDS = {
    "binary-illegal-instruction": ("illegal-instruction", "other", Exit(None, 4, False, 0.0, "engine")),
}
# written after the engine's own format, for cards that no test machine has
_CONSTRUCTED = {
    "card-weights": (
        ("0.01.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9216.00 MiB on device 0: cudaMalloc failed: out of memory",
         "0.01.000.001 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 9663676416",
         "0.01.000.002 E llama_model_load: error loading model: unable to allocate CUDA0 buffer"),
        "device-out-of-memory", "weights", 7, {"requested_bytes": 9216 * MIB, "device": 0}, "unable to allocate CUDA0",
    ),
    "card-kv": (
        ("0.01.000.000 E ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 4294967296",
         "0.01.000.002 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache"),
        "device-out-of-memory", "weights", 7, {"requested_bytes": 4 << 30}, "failed to allocate CUDA0 buffer",
    ),
    "wheel-parameter": (
        ('{"stage": "failed", "cause": "parameter", "parameter": "fit_params", "detail": "this build has no such parameter"}',),
        "bad-setting", "parameter", 1, {}, "fit_params",
    ),
    "no-module": (
        ('{"stage": "failed", "cause": "module", "detail": "No module named \'xllamacpp\'"}',),
        "installation-broken", "missing-module", 3, {}, "xllamacpp",
    ),
    "no-library": (
        ("llama-server: error while loading shared libraries: libggml.so.0: cannot open shared object file: No such file",),
        "installation-broken", "missing-library", 3, {}, "libggml.so.0",
    ),
    "old-libc": (
        ("llama-server: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by llama-server)",),
        "installation-broken", "old-system", 3, {}, "GLIBC_2.38",
    ),
    "old-driver": (
        ("0.00.100.000 E ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime",),
        "installation-broken", "driver-too-old", 4, {}, "insufficient",
    ),
    "lost-card": (
        ("0.00.100.000 E CUDA error: unspecified launch failure",), "device-lost", "card", 9, {}, "unspecified",
    ),
    "tokenizer": (
        ("0.00.100.000 E llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'zig'",),
        "model-unsupported", "tokenizer", 5, {}, "zig",
    ),
    "tensor": (
        ("0.00.100.000 E llama_model_load: error loading model: missing tensor 'blk.3.ffn_up.weight'",),
        "model-file-corrupt", "incomplete-file", 5, {}, "blk.3",
    ),
    "nothing": ((), "engine-exited", "other", 0, {}, ""),
}  # fmt: skip


def logs() -> tuple[LogCase, ...]:
    found = [
        LogCase(f"{kind}-{name}", log(f"{kind}-{name}"), *rest, exit=FAILED)
        for name, *rest in _CAPTURED
        for kind in ("binary", "embedded")
    ]
    found += [LogCase(name, log(name), *rest, exit=FAILED) for name, *rest in _ONE_BUILD]
    found += [LogCase(name, lines, *rest, exit=FAILED) for name, (lines, *rest) in _CONSTRUCTED.items()]
    found += [LogCase(name, log(name), kind, cause, exit=end) for name, (kind, cause, end) in _ENDS.items()]
    found += [
        LogCase(name, log(name))
        for name in ("binary-tiny-ready", "embedded-tiny-ready", "embedded-smollm2-ready", "embedded-served")
    ]
    return tuple(found)


PROPS = {
    "default_generation_settings": {"n_ctx": 2048},
    "total_slots": 2,
    "model_alias": "tiny",
    "modalities": {"vision": False, "audio": False, "video": False},
    "chat_template": "{{ messages }}",
    "chat_template_caps": {"supports_tools": True, "supports_parallel_tool_calls": False},
}


def ready(plan_: LaunchPlan | None = None, seen: Seen | None = None, **props: object) -> ReadySeen:
    body = json.dumps({**PROPS, **props}).encode()
    return ReadySeen({"/props": body}, seen or Seen(), plan_ or plan())


def golden() -> dict[str, dict[str, list[str]]]:
    return json.loads((HERE / "argv.json").read_text(encoding="utf-8"))


def launch_inputs() -> dict[str, tuple[LaunchPlan, Site]]:
    """The plans and sites of the golden lists, by name."""
    cards = replace(
        build("binary"),
        devices=tuple(type("D", (), {"name": name}) for name in ("CUDA0", "CUDA1")),
    )
    busy = LlamaCppSettings(
        cache_reuse_tokens=256, swa_full=True, warmup=False, speculation="ngram", reasoning_budget_tokens=64,
        reasoning_format="deepseek", slot_similarity=0.5, numa="isolate",
    )  # fmt: skip
    two_cards = (("GPU-a", 1), ("GPU-b", 0))
    embed = plan(task="embed", slots=1, settings=LlamaCppSettings(pooling="mean"), micro_batch_tokens=2048)
    return {
        "binary-small": (plan(), site("binary")),
        "binary-tcp": (plan(), site("binary", life_dir="/run/" + "d" * 100)),
        "binary-settings": (plan(settings=busy, kv_type_k="q8_0", kv_type_v="q8_0", use_mmap=False), site("binary")),
        "binary-embed": (embed, site("binary")),
        "binary-rerank": (plan(task="rerank", slots=1), site("binary")),
        "binary-cards": (plan(gpu_layers=2, settings=LlamaCppSettings(tensor_split=(3.0, 1.0))),
                         site("binary", build=cards, cards=two_cards)),
        "binary-arguments": (plan(), site("binary", extra_args=("--top-k", "20"))),
        "binary-names": (plan(), site("binary", served_name="-org/a model:v1, 'x'")),
        "binary-no-build": (plan(), site("binary", build=None)),
        "embedded-small": (plan(), site()),
        "embedded-tcp": (plan(), site(endpoint=Endpoint(port=23111))),
        "embedded-settings": (plan(settings=busy, kv_type_k="q8_0", kv_type_v="q8_0", use_mmap=False), site()),
        "embedded-embed": (embed, site()),
        "embedded-no-build": (plan(), site(build=None)),
    }  # fmt: skip


def launches() -> tuple[LaunchCase, ...]:
    stored = golden()
    return tuple(
        LaunchCase(name, plan_, site_, tuple(stored[name]["argv"]), (TOKEN,))
        for name, (plan_, site_) in launch_inputs().items()
    )


def error(message: str, kind: str, code: int, **more: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "type": kind, **more}}).encode()


OVERFLOW = error(
    "request (15019 tokens) exceeds the available context size (2048 tokens), try increasing it",
    "exceed_context_size_error", 400, n_prompt_tokens=15019, n_ctx=2048,
)  # fmt: skip
LOADING = error("Loading model", "unavailable_error", 503)
_LENGTH = ErrorCode.CONTEXT_LENGTH_EXCEEDED
_TOO_LARGE = "input (1000 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
ERRORS = (
    ErrorCase(CHAT, 400, OVERFLOW, _LENGTH, {"limit_tokens": 2048, "requested_tokens": 15019}),
    ErrorCase(EMBEDDINGS, 500, error(_TOO_LARGE, "server_error", 500), _LENGTH,
              {"limit_tokens": 512, "requested_tokens": 1000}),
    ErrorCase(CHAT, 500, error("Context size has been exceeded.", "server_error", 500), _LENGTH,
              {"limit_tokens": None, "requested_tokens": None}),
    ErrorCase(CHAT, 401, error("Invalid API Key", "authentication_error", 401), ErrorCode.ENGINE_FAILED),
    ErrorCase(EMBEDDINGS, 501, error("This server does not support embeddings. Start it with `--embeddings`",
              "not_supported_error", 501), ErrorCode.UNSUPPORTED_CAPABILITY),
    ErrorCase(CHAT, 500, error("image input is not supported - hint: if this is unexpected, you may need to provide "
              "the mmproj", "server_error", 500), ErrorCode.UNSUPPORTED_CAPABILITY),
    ErrorCase(CHAT, 500, error("Jinja Exception: Conversation roles must alternate", "server_error", 500),
              ErrorCode.INVALID_PARAMETER),
    ErrorCase(CHAT, 400, error("'messages' is required", "invalid_request_error", 400), None),
    ErrorCase(CHAT, 503, LOADING, None),
    ErrorCase(CHAT, 500, b"<html>Internal Server Error</html>", None),
    ErrorCase(CHAT, 500, b'{"error": "text"}', None),
    ErrorCase(CHAT, 500, b"\xff\xfe", None),
)  # fmt: skip

_CAPPED = plan(settings=LlamaCppSettings(max_output_tokens=100))
_SAMPLED = plan(settings=LlamaCppSettings.model_validate({"sampling": {"temperature": 0.2, "top_k": 20}}))
_WRAPPED = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
EDITS = (
    EditCase(plan(), CHAT, {"max_tokens": 5, "temperature": 1}, {}),
    EditCase(_CAPPED, CHAT, {}, {"max_tokens": b"100"}),
    EditCase(_CAPPED, CHAT, {"max_tokens": None}, {"max_tokens": b"100"}),
    EditCase(_CAPPED, CHAT, {"max_completion_tokens": None}, {"max_tokens": b"100", "max_completion_tokens": None}),
    EditCase(_CAPPED, CHAT, {"max_tokens": 50}, {}),
    EditCase(_CAPPED, CHAT, {"max_tokens": 500}, {"max_tokens": b"100"}),
    EditCase(_CAPPED, CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": b"100"}),
    EditCase(_CAPPED, CHAT, {"max_completion_tokens": 50, "max_tokens": 70},
             {"max_tokens": b"50", "max_completion_tokens": None}),
    EditCase(_CAPPED, CHAT, {"max_completion_tokens": 50, "max_tokens": None}, {"max_tokens": None}),
    EditCase(_CAPPED, RESPONSES, {"max_output_tokens": 101}, {"max_output_tokens": b"100"}),
    EditCase(_CAPPED, EMBEDDINGS, {}, {}),
    EditCase(_CAPPED, CHAT, {"max_tokens": 0}, ErrorCode.INVALID_PARAMETER),
    EditCase(_CAPPED, CHAT, {"max_tokens": True}, ErrorCode.INVALID_PARAMETER),
    EditCase(_CAPPED, CHAT, {"max_tokens": "9"}, ErrorCode.INVALID_PARAMETER),
    EditCase(_SAMPLED, CHAT, {"top_k": None}, {"temperature": b"0.2", "top_k": b"20"}),
    EditCase(_SAMPLED, CHAT, {"temperature": 0}, {"top_k": b"20"}),
    EditCase(_SAMPLED, EMBEDDINGS, {}, {}),
    EditCase(plan(), CHAT, {"response_format": _WRAPPED}, {}),
    EditCase(plan(), CHAT, {"response_format": {"type": "json_schema"}}, ErrorCode.INVALID_PARAMETER),
    EditCase(plan(), CHAT, {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
             ErrorCode.INVALID_PARAMETER),
)  # fmt: skip

METRICS = (
    (
        (
            "# HELP llamacpp:prompt_tokens_total Number\n# TYPE llamacpp:prompt_tokens_total counter\n"
            "llamacpp:prompt_tokens_total 29\nllamacpp:tokens_predicted_total 11\n"
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n"
        ),
        Sample(running=1.0, waiting=0.0, prompt_tokens_total=29.0, completion_tokens_total=11.0),
    ),
    ("", Sample()),
    ("llamacpp:requests_processing nan\nllamacpp:requests_deferred x\n", Sample()),
)
CHANGES = {
    "task": "embed", "max_output_tokens": 9, "require": ["tools"], "sampling": {"top_k": 3}, "gpu_layers": 3,
    "cpu_moe_layers": 2, "split_mode": "row", "tensor_split": [1.0, 2.0], "cache_type_k": "q8_0",
    "cache_type_v": "q8_0", "flash_attention": "on", "batch_tokens": 64, "micro_batch_tokens": 64, "threads": 3,
    "load_mode": "none", "prompt_cache_bytes": 1 << 20, "cache_reuse_tokens": 1, "checkpoints": 1, "swa_full": True,
    "warmup": False, "pooling": "cls", "reasoning_format": "none", "reasoning_budget_tokens": 0,
    "speculation": "ngram", "slot_similarity": 0.2, "numa": "isolate",
}  # fmt: skip
DECOYS = (
    "0.00.010.000 W common_fit_params: failed to fit: cudaMalloc failed: out of memory",
    "0.00.010.000 E common_fit_params: unable to allocate CUDA0 buffer",
    "0.00.010.000 E srv    load_model: failed to measure the memory of the extra model: std::bad_alloc",
    "0.00.011.700 W llama_context: n_ctx_seq (400000000) > n_ctx_train (8192) -- possible training context overflow",
    "0.00.010.000 I llama_model_loader: - kv   1: general.name str = CUDA out of memory",
    "0.00.010.000 W srv   get: Address already in use",
)


def case() -> EngineCase:
    return EngineCase(
        adapter=ADAPTER,
        builds=(
            BuildCase(at("binary"), outputs("binary"), options_of(help_text())),
            BuildCase(at("embedded"), outputs("embedded")),
        ),
        launches=launches(),
        logs=logs(),
        decoys=DECOYS,
        ready=ready(),
        refused=(
            (ready(default_generation_settings={"n_ctx": 1792}), "context-below-plan"),
            (ready(total_slots=1), "slots-below-plan"),
            (ready(model_alias="other"), "wrong-model"),
            (ready(plan(gpu_layers=2), Seen(numbers={"layers_on_device": 1, "layers": 2})), "layers-below-plan"),
            (ready(plan(settings=LlamaCppSettings.model_validate({"require": ["vision"]}))), "capability-missing"),
        ),
        errors=ERRORS,
        edits=EDITS,
        metrics=METRICS,
        changes=CHANGES,
    )
