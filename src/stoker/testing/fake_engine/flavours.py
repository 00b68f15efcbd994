"""What the fake engine imitates: each flavour is a record of data, so a further engine is a further record (E-107).

Decides which arguments, routes, log lines, failure texts and statuses belong to which engine. The llama.cpp texts have
the shape of what its server prints. It knows nothing of sockets, time or memory. ``{name}`` in a text is filled
in by the engine from its launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """The lines an engine leaves behind when it dies, and how: an exit status, or a signal by name."""

    lines: Lines
    status: int = 1
    signal: str = ""


@dataclass(frozen=True, slots=True)
class Flavour:
    name: str
    arguments: Mapping[str, str]
    """The engine's own flags that mean something to us, and the setting each one fills."""
    routes: Mapping[tuple[str, str], str]
    """Method and path to what answers: health, models, props, slots, metrics, chat, completions, embeddings …"""
    log: str = "stdout"
    stamped: bool = False
    printed: Mapping[str, tuple[str, Lines]] = field(default_factory=dict)
    """Flags that only print and leave: the stream and the lines."""
    token_env: str = ""
    open_routes: frozenset[str] = frozenset({"health"})
    server: str = "fake"
    drains_on_term: bool = False
    idle_s: float = 75.0
    slots: int = 1
    context: int = 4096
    loading: str = '{"error":{"message":"still loading","code":503}}'
    decoys: Lines = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)
    before_load: Lines = ()
    during_load: Lines = ()
    after_load: Lines = ("listening on {address}",)
    request_begun: Lines = ()
    request_done: Lines = ()
    errors: Mapping[str, tuple[int, str]] = field(default_factory=dict)


OPENAI_ROUTES: Final[Mapping[tuple[str, str], str]] = {
    ("GET", "/health"): "health",
    ("GET", "/v1/models"): "models",
    ("POST", "/v1/chat/completions"): "chat",
    ("POST", "/v1/completions"): "completions",
    ("POST", "/v1/embeddings"): "embeddings",
    ("POST", "/tokenize"): "tokenize",
    ("POST", "/detokenize"): "detokenize",
}

PLAIN_ERRORS: Final[Mapping[str, tuple[int, str]]] = {
    "key": (401, '{"error":{"message":"wrong key","type":"authentication_error","code":401}}'),
    "route": (404, '{"error":{"message":"no such route","type":"not_found_error","code":404}}'),
    "json": (400, '{"error":{"message":"the body is not JSON","type":"invalid_request_error","code":400}}'),
    "overflow": (
        400,
        (
            '{{"error":{{"message":"{prompt_tokens} tokens do not fit into {context}",'
            '"type":"context_length_exceeded","code":400}}}}'
        ),
    ),
    "embeddings": (501, '{"error":{"message":"no embeddings","type":"not_supported_error","code":501}}'),
    "metrics": (501, '{"error":{"message":"no metrics","type":"not_supported_error","code":501}}'),
    "save": (501, '{"error":{"message":"no slot files","type":"not_supported_error","code":501}}'),
    "restore": (400, '{"error":{"message":"no such slot file","type":"invalid_request_error","code":400}}'),
    "broken": (500, '{"error":{"message":"the engine failed","type":"server_error","code":500}}'),
}

BARE: Final = Flavour(
    name="bare",
    arguments={},
    routes={
        **OPENAI_ROUTES,
        ("GET", "/props"): "props",
        ("GET", "/slots"): "slots",
        ("GET", "/metrics"): "metrics",
        ("POST", "/slots/*"): "slot-action",
    },
    decoys=("warning: an older run was out of memory",),
    failures={
        "argument": Failure(("error: unrecognized arguments: --nonsense",), 2),
        "port": Failure(("error: [Errno 98] Address already in use",)),
        "library": Failure(
            ("error while loading shared libraries: libfake.so.1: cannot open shared object file",), 127
        ),
        "driver": Failure(("error: CUDA driver version is insufficient for CUDA runtime version",)),
        "architecture": Failure(("error: unknown model architecture: 'fake'",)),
        "quantization": Failure(("error: unknown quantization: 'q0'",)),
        "file": Failure(("error: the model file is truncated",)),
        "zero": Failure(("leaving",), 0),
        "load": Failure(("error: CUDA out of memory while loading weights",)),
        "kv": Failure(("error: CUDA out of memory while making the KV cache",)),
        "graphs": Failure(("error: CUDA out of memory while capturing graphs",)),
        "serve": Failure(("error: CUDA out of memory while serving",)),
    },
    errors=PLAIN_ERRORS,
)

KV_TYPES: Final = "f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"
LLAMA_HELP: Final[Lines] = (
    "----- common params -----",
    "",
    "-h,    --help, --usage                  print usage and exit",
    "--version                               show version and build info",
    "--list-devices                          print list of available devices and exit",
    "-m,    --model FNAME                    model path to load",
    "-c,    --ctx-size N                     size of the prompt context, shared by all sequences",
    "-b,    --batch-size N                   logical maximum batch size (default: 2048)",
    "-ub,   --ubatch-size N                  physical maximum batch size (default: 512)",
    "-t,    --threads N                      number of CPU threads to use during generation",
    "-tb,   --threads-batch N                number of threads to use during batch and prompt processing",
    "-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto')",
    "-ctk,  --cache-type-k TYPE              KV cache data type for K",
    f"                                        allowed values: {KV_TYPES}",
    "-ctv,  --cache-type-v TYPE              KV cache data type for V",
    f"                                        allowed values: {KV_TYPES}",
    "-np,   --parallel N                     number of parallel sequences to decode",
    "--load-mode [mmap|mlock|read]           how weights are brought into memory",
    "--numa TYPE                             attempt optimizations that help on some NUMA systems",
    "-dev,  --device <dev1,dev2,..>          comma-separated list of devices to use (none = don't offload)",
    "-ngl,  --gpu-layers, --n-gpu-layers N   number of layers to store in VRAM",
    "-sm,   --split-mode {none,layer,row}    how to split the model across multiple GPUs",
    "-ts,   --tensor-split N0,N1,N2,...      fraction of the model to offload to each GPU",
    "-mg,   --main-gpu INDEX                 the GPU to use for the model",
    "-ncmoe, --n-cpu-moe N                   keep the expert weights of the first N layers in the CPU",
    "--n-cpu-ffn N                           keep the feed-forward weights of the first N layers in the CPU",
    "-fit,  --fit [on|off]                   whether to adjust unset arguments to fit in device memory",
    "--lora FNAME                            path to LoRA adapter (comma-separated values to load several)",
    "--lora-scaled FNAME:SCALE,...           path to LoRA adapter with user defined scaling",
    "--offline                               offline mode: forces use of cache, prevents network access",
    "-lv,   --verbosity, --log-verbosity N   set the verbosity threshold",
    "",
    "----- server params -----",
    "",
    "--host HOST                             ip address to listen, or bind to an UNIX socket if the address",
    "                                        ends with .sock (default: 127.0.0.1)",
    "--port PORT                             port to listen (default: 8080)",
    "-a,    --alias STRING                   set model name aliases, comma-separated (to be used by API)",
    "--api-key KEY                           API key to use for authentication",
    "--cors-origins ORIGINS                  origins that may read answers",
    "--sse-ping-interval N                   seconds between pings in a silent stream",
    "--no-ui                                 do not serve the web page",
    "--embedding, --embeddings               restrict to only support embedding use case",
    "--rerank, --reranking                   enable reranking endpoint on server",
    "--pooling {none,mean,cls,last,rank}     pooling type for embeddings",
    "--metrics                               enable prometheus compatible metrics endpoint",
    "--slots, --no-slots                     expose slots monitoring endpoint",
    "--slot-save-path PATH                   path to save slot kv cache",
    "-sps,  --slot-prompt-similarity S       how much a prompt must match a slot to use it",
    "--cache-reuse N                         min chunk size to attempt reusing from the cache via KV shifting",
    "-cram, --cache-ram N                    set the maximum cache size in MiB",
    "-ctxcp, --ctx-checkpoints N             max number of context checkpoints to create per slot",
    "--swa-full                              use full-size SWA cache",
    "-kvu,  --kv-unified, --no-kv-unified    use single unified KV buffer for all sequences",
    "--no-context-shift                      disables context shift on infinite text generation",
    "--jinja, --no-jinja                     whether to use jinja template engine for chat",
    "--chat-template-file FILE               set custom jinja chat template file",
    "--reasoning-format FORMAT               controls whether thought tags are extracted from the response",
    "--reasoning-budget N                    controls the amount of thinking allowed",
    "--mmproj FILE                           path to a multimodal projector file",
    "--no-mmproj                             do not use a multimodal projector",
    "--no-mmproj-offload                     do not offload the multimodal projector",
    "--no-warmup                             skip warming up the model with an empty run",
    "--spec-type TYPE                        speculative decoding without or with a draft model",
    "--spec-draft-model FNAME                draft model for speculative decoding",
    "--spec-draft-n-max N                    number of tokens to draft for speculative decoding",
    "--spec-draft-ngl N                      number of draft model layers to store in VRAM",
    "--spec-draft-type-k TYPE                KV cache data type for K of the draft model",
    "--spec-draft-type-v TYPE                KV cache data type for V of the draft model",
)

LLAMA_LEAVING: Final[Lines] = (
    "E cmn  common_init_: failed to load model '{model}'",
    "E srv    load_model: failed to load model, '{model}'",
    "I srv    operator(): operator(): cleaning up before exit...",
    "E srv          init: exiting due to model loading error",
)


def _load_failure(*lines: str) -> Failure:
    return Failure(lines + LLAMA_LEAVING)


CUDA_FULL: Final = (
    "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib} MiB on device 0: cudaMalloc failed: out of memory"
)
LLAMA_FAILURES: Final[Mapping[str, Failure]] = {
    "argument": Failure(("error: invalid argument: --nonsense",)),
    "port": Failure(
        (
            "E srv         start: couldn't bind HTTP server socket, hostname: {host}, port: {port}",
            "E srv          init: exiting due to HTTP server error",
        )
    ),
    "library": Failure(
        (
            (
                "llama-server: error while loading shared libraries: libggml-base.so.0: "
                "cannot open shared object file: No such file or directory"
            ),
        ),
        127,
    ),
    "driver": Failure(
        ("E ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",)
    ),
    "architecture": _load_failure("E llama_model_load: error loading model: unknown model architecture: 'fake'"),
    "quantization": _load_failure(
        "E gguf_init_from_reader: tensor 'blk.0.attn_q.weight' has invalid ggml type 61. should be in [0, 41)",
    ),
    "file": _load_failure(
        "E llama_model_load: error loading model: tensor 'blk.0.attn_output.weight' data is not within the file "
        "bounds, model is corrupted or incomplete",
    ),
    "zero": Failure((), 0),
    "load": _load_failure(
        CUDA_FULL.replace("{mib}", "4096.00"),
        "E alloc_tensor_range: failed to allocate CUDA0 buffer of size 4294967296",
        "E llama_model_load: error loading model: unable to allocate CUDA0 buffer",
    ),
    "kv": _load_failure(
        CUDA_FULL.replace("{mib}", "1024.00"),
        "E alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824",
        "E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
    ),
    "graphs": _load_failure(
        CUDA_FULL.replace("{mib}", "512.00"),
        "E ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 536870912",
        "E llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers",
    ),
    "serve": Failure(("E ggml_cuda_error: CUDA error: out of memory",), 134, "ABRT"),
}

LLAMA_CPP: Final = Flavour(
    name="llama-cpp",
    arguments={
        "--model": "model",
        "-m": "model",
        "--alias": "alias",
        "-a": "alias",
        "--ctx-size": "ctx_size",
        "-c": "ctx_size",
        "--parallel": "parallel",
        "-np": "parallel",
        "--api-key": "token",
        "--slot-save-path": "slot_save_path",
        "--metrics": "metrics",
        "--embeddings": "embeddings",
        "--embedding": "embeddings",
    },
    routes={
        **OPENAI_ROUTES,
        ("GET", "/v1/health"): "health",
        ("GET", "/models"): "models",
        ("GET", "/props"): "props",
        ("GET", "/slots"): "slots",
        ("GET", "/metrics"): "metrics",
        ("POST", "/slots/*"): "slot-action",
    },
    log="stderr",
    stamped=True,
    printed={
        "--version": ("stderr", ("version: 9999 (fa4e0001)", "built with a fake compiler for a fake machine")),
        "--help": ("stdout", LLAMA_HELP),
        "-h": ("stdout", LLAMA_HELP),
        "--list-devices": ("stdout", ("Available devices:",)),
    },
    token_env="LLAMA_API_KEY",
    open_routes=frozenset({"health", "models"}),
    server="llama.cpp",
    drains_on_term=True,
    idle_s=5.0,
    slots=4,
    loading='{"error":{"message":"Loading model","type":"unavailable_error","code":503}}',
    decoys=(
        "E common_fit_params: encountered an error while trying to fit params to free device memory: no model",
        "W llama_context: n_ctx_seq (8192) > n_ctx_train (4096) -- possible training context overflow",
    ),
    failures=LLAMA_FAILURES,
    before_load=(
        "I srv          init: initializing ...",
        "I srv          init: build_info: b9999-fa4e0001",
        "I srv          init: using 6 threads for HTTP server",
        "I srv          init: loading model",
        "I srv    load_model: loading model '{model}'",
        "I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
    ),
    during_load=("I load_tensors: {percent}% of the weights are in",),
    after_load=(
        "I load_tensors: offloaded 0/1 layers to GPU",
        "I load_tensors:   CPU_Mapped model buffer size = {ram_mib}.00 MiB",
        "I llama_context: constructing llama_context",
        "I llama_context: n_seq_max             = {slots}",
        "I llama_context: n_ctx_seq             = {context}",
        "I llama_context:        CPU  output buffer size =     0.00 MiB",
        "I llama_kv_cache:        CPU KV buffer size =     0.25 MiB",
        "I sched_reserve:        CPU compute buffer size =     4.27 MiB",
        "I cmn  common_init_: warming up the model with an empty run - please wait ... (--no-warmup to disable)",
        "I srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {context}, kv_unified = 'false'",
        "I srv          init: model loaded",
        "I srv          init: listening on {address}",
    ),
    request_begun=("I slot launch_slot_: id  {slot} | task {task} | processing task, is_child = 0",),
    request_done=(
        "I slot print_timing: id  {slot} | task {task} |       total time =      {took_ms} ms /    {tokens} tokens",
        "I slot      release: id  {slot} | task {task} | stop processing: n_tokens = {tokens}, truncated = 0",
    ),
    errors={
        "key": (401, '{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'),
        "route": (404, '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}'),
        "json": (
            400,
            (
                '{"error":{"code":400,"message":"[json.exception.parse_error.101] parse error at line 1, column 1",'
                '"type":"invalid_request_error"}}'
            ),
        ),
        "overflow": (
            400,
            (
                '{{"error":{{"code":400,"message":"request ({prompt_tokens} tokens) exceeds the available context size '
                '({context} tokens), try increasing it","type":"exceed_context_size_error",'
                '"n_prompt_tokens":{prompt_tokens},"n_ctx":{context}}}}}'
            ),
        ),
        "embeddings": (
            501,
            (
                '{"error":{"code":501,"message":"This server does not support embeddings. '
                'Start it with `--embeddings`","type":"not_supported_error"}}'
            ),
        ),
        "metrics": (
            501,
            (
                '{"error":{"code":501,"message":"This server does not support metrics endpoint. '
                'Start it with `--metrics`","type":"not_supported_error"}}'
            ),
        ),
        "save": (
            501,
            (
                '{"error":{"code":501,"message":"This server does not support slots action. '
                'Start it with `--slot-save-path`","type":"not_supported_error"}}'
            ),
        ),
        "restore": (
            400,
            '{"error":{"code":400,"message":"Unable to restore slot","type":"invalid_request_error"}}',
        ),
        "broken": (500, '{"error":{"code":500,"message":"Compute error.","type":"server_error"}}'),
    },
)

FLAVOURS: Final[Mapping[str, Flavour]] = {flavour.name: flavour for flavour in (BARE, LLAMA_CPP)}
SWITCHES: Final = frozenset({"metrics", "embeddings"})
"""Settings of ``Flavour.arguments`` that take no value."""

METRICS: Final = (
    ("prompt_tokens_total", "counter", "Number of prompt tokens processed, excluding cached tokens"),
    ("tokens_predicted_total", "counter", "Number of generation tokens processed"),
    ("requests_processing", "gauge", "Number of requests processing"),
    ("requests_deferred", "gauge", "Number of requests deferred"),
)
