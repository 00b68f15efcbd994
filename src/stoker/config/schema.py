"""Every key of the configuration: its type, default, range and the effect of changing it (control section 7).

The models are strict and frozen. An effect letter says when a change counts: L at once, N at the session's next
start, D by draining and restarting the deployment's sessions, R at the daemon's next start (C-26).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from stoker.config import quantities

CONFIG_VERSION = 1


class Effect(StrEnum):
    AT_ONCE = "L"
    NEXT_START = "N"
    DRAIN = "D"
    DAEMON_RESTART = "R"


L, N, D, R = Effect.AT_ONCE, Effect.NEXT_START, Effect.DRAIN, Effect.DAEMON_RESTART


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _auto_or(value: Any, parse: Any) -> Any:
    return value if value == "auto" else parse(value)


def _budget(value: Any) -> Any:
    if isinstance(value, str) and value.endswith("%"):
        return quantities.share(value)
    return _auto_or(value, quantities.whole_bytes)


def _not_negative(value: int | str) -> int | str:
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{value} is below 0")
    return value


def _port_range(value: str) -> str:
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", value)
    if match is None or not 1024 <= int(match[1]) < int(match[2]) <= 65535:
        raise ValueError(f'{value!r} is not a range of ports such as "23100-23999", between 1024 and 65535')
    return value


def _listener(value: str) -> str:
    host, _, port = value.rpartition(":")
    if value and not (host and port.isdecimal() and 0 <= int(port) <= 65535):
        raise ValueError(f'{value!r} is not an address such as "127.0.0.1:5152", nor empty')
    return value


def _keep_alive(value: float) -> float:
    if value < 0 and value != -1:
        raise ValueError(f"{value:g} is neither -1 (until unloaded) nor 0 or more")
    return value


def _none_if_auto(value: Any) -> Any:
    return None if value == "auto" else value


Seconds = Annotated[float, BeforeValidator(quantities.seconds)]
Bytes = Annotated[int, BeforeValidator(quantities.whole_bytes)]
AutoBytes = Annotated[
    int | str, BeforeValidator(lambda v: _auto_or(v, quantities.whole_bytes)), AfterValidator(_not_negative)
]
Budget = Annotated[int | str, BeforeValidator(_budget), AfterValidator(_not_negative)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Table = dict[str, Any]
TextTable = dict[str, str]

_FROM_ZERO = Field(ge=0)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Daemon(Section):
    """Empty folders mean the platform's own. ``config_dir`` comes from the environment or a flag only."""

    data_dir: Annotated[str, R] = ""
    volatile_dir: Annotated[str, R] = ""
    config_dir: Annotated[str, R] = ""
    idle_exit_s: Annotated[Seconds, L, _FROM_ZERO] = 1800.0
    watch_config: Annotated[bool, L] = True


class Gateway(Section):
    host: Annotated[str, R, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, R, Field(ge=0, le=65535)] = 5151
    socket: Annotated[str, R] = ""
    max_connections: Annotated[int, R, Field(ge=1, le=65536)] = 2048
    allow_anonymous_network: Annotated[bool, R] = False
    trusted_hosts: Annotated[Texts, L] = ()
    cors_origins: Annotated[Texts, L] = ()
    anonymous_scopes: Annotated[
        tuple[Literal["infer", "operate", "admin"], ...], BeforeValidator(_as_tuple), L
    ] = ("infer",)  # fmt: skip
    dialects: Annotated[
        tuple[Literal["openai", "anthropic", "ollama"], ...], BeforeValidator(_as_tuple), L
    ] = ("openai", "anthropic", "ollama")  # fmt: skip
    usage: Annotated[Literal["auto", "off"], L] = "auto"
    max_body_bytes: Annotated[Bytes, L, Field(ge=1024, le=2**40)] = 64 * 2**20
    body_memory_bytes: Annotated[Bytes, L, Field(ge=1024, le=2**40)] = 256 * 2**20
    spool_bytes: Annotated[Bytes, L, Field(ge=0, le=2**50)] = 4 * 2**30
    header_timeout_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 30.0
    body_idle_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 30.0
    connection_idle_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 75.0
    client_stall_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 120.0
    keepalive_after_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 15.0


class Control(Section):
    tcp: Annotated[str, AfterValidator(_listener), R] = "127.0.0.1:5152"
    dashboard: Annotated[bool, R] = True


class Queue(Section):
    max_waiting_total: Annotated[int, L, Field(ge=1, le=65536)] = 512
    class_handicap_s: Annotated[Seconds, L, Field(ge=0, le=3600)] = 20.0
    background_quiet_s: Annotated[Seconds, L, Field(ge=0, le=3600)] = 2.0
    background_patience_s: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 60.0
    turn_gap_s: Annotated[Seconds, L, Field(ge=0, le=3600)] = 5.0
    affinity_patience_s: Annotated[Seconds, L, Field(ge=0, le=3600)] = 2.0
    affinity_min_tokens: Annotated[int, L, _FROM_ZERO] = 256
    swap_bound_s: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 15.0
    swap_bound_factor: Annotated[float, L, Field(ge=0, le=1000)] = 4.0


class ModelDefaults(Section):
    """Keys of ``[defaults]``; a model's own replace them, tables key by key. None: the engine or the plan decides."""

    engine: Annotated[str | None, D] = None
    context_tokens: Annotated[Annotated[int, Field(ge=256, le=4_194_304)] | None, BeforeValidator(_none_if_auto), D] = (
        None
    )
    slots: Annotated[Annotated[int, Field(ge=1, le=256)] | None, BeforeValidator(_none_if_auto), D] = None
    adapters: Annotated[Texts, D] = ()
    draft: Annotated[str | None, D] = None
    projector: Annotated[str | None, D] = None
    template: Annotated[str | None, D] = None
    engine_args: Annotated[Texts, D] = ()
    env: Annotated[TextTable, D] = {}
    pools: Annotated[Texts, D] = ()
    declared_bytes: Annotated[Annotated[Bytes, Field(ge=1, le=2**50)] | None, D] = None
    settings: Annotated[Table, D] = {}
    sampling: Annotated[Table, L] = {}
    load_timeout_s: Annotated[Annotated[Seconds, Field(ge=1, le=86_400)] | None, N] = None
    stop_grace_s: Annotated[Annotated[Seconds, Field(ge=0, le=600)] | None, N] = None
    labels: Annotated[TextTable, L] = {}
    replicas: Annotated[int, L, Field(ge=0, le=64)] = 1
    pinned: Annotated[bool, L] = False
    preload: Annotated[bool, L] = False
    load_on_demand: Annotated[bool, L] = True
    several_engines: Annotated[bool, L] = False
    evict_for_replicas: Annotated[bool, L] = False
    allow_remote_media: Annotated[bool, L] = False
    keep_alive_s: Annotated[Seconds, AfterValidator(_keep_alive), L] = 300.0
    keep_alive_max_s: Annotated[Annotated[Seconds, _FROM_ZERO] | None, L] = None
    max_in_flight: Annotated[Annotated[int, Field(ge=1, le=65536)] | None, L] = None
    light_in_flight: Annotated[int, L, Field(ge=1, le=65536)] = 8
    max_queued: Annotated[int, L, Field(ge=0, le=65536)] = 64
    max_wait_s: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 600.0
    first_token_timeout_s: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 1800.0
    stream_idle_timeout_s: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 300.0


class Model(ModelDefaults):
    """``[models."NAME"]``. ``reference`` None: the name itself."""

    reference: Annotated[Annotated[str, Field(min_length=1)] | None, D] = None
    aliases: Annotated[Texts, L] = ()


class DrainSeconds(Section):
    operator: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 30.0
    shutdown: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 10.0
    change: Annotated[Seconds, L, Field(ge=0, le=86_400)] = 600.0


class Sessions(Section):
    abandoned_load: Annotated[Literal["finish", "cancel"], L] = "finish"
    degraded: Annotated[Literal["restart", "report"], L] = "restart"
    adopt: Annotated[bool, L] = True
    claim_wait_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 120.0
    drain_s: DrainSeconds = DrainSeconds()
    shutdown_bound_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 45.0
    load_stall_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 180.0
    load_ceiling_s: Annotated[Seconds, L, Field(ge=1, le=604_800)] = 3600.0
    hang_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 300.0
    loop_stall_limit_s: Annotated[Seconds, L, Field(ge=1, le=86_400)] = 300.0
    port_range: Annotated[str, AfterValidator(_port_range), N] = "23100-23999"
    kill_confirm_s: Annotated[Seconds, N, Field(ge=0.5, le=60)] = 4.0
    orphan_grace_s: Annotated[Seconds, N, Field(ge=0, le=60)] = 2.0

    @property
    def ports(self) -> tuple[int, int]:
        first, last = self.port_range.split("-")
        return int(first), int(last)


class Pool(Section):
    """Bytes, ``"auto"``, or for the budget a share of the total such as ``"80%"``."""

    budget_bytes: Annotated[Budget, L] = "auto"
    reserve_bytes: Annotated[AutoBytes, L] = "auto"
    use: Annotated[bool, R] = True


class Memory(Section):
    spill: Annotated[Literal["auto", "on", "off"], L] = "auto"
    yield_: Annotated[bool, L, Field(alias="yield")] = True
    gpu_panic_cooldown_s: Annotated[Seconds, L, Field(ge=0, le=604_800)] = 3600.0
    context: Annotated[Literal["adaptive", "model-max"], N] = "adaptive"
    context_floor_tokens: Annotated[int, N, Field(ge=256, le=4_194_304)] = 8192
    growth_tokens: Annotated[int, N, Field(ge=0, le=4_194_304)] = 131_072


class Engine(Section):
    enabled: Annotated[bool, L] = True
    live_cache_bytes: Annotated[AutoBytes, L] = "auto"
    disk_cache_bytes: Annotated[AutoBytes, L] = "auto"
    release: Annotated[str | None, N] = None
    host: Annotated[Literal["auto", "process", "container", "ray"], N] = "auto"
    path: Annotated[str | None, N] = None
    image: Annotated[str | None, N] = None
    args: Annotated[Texts, D] = ()
    env: Annotated[TextTable, D] = {}


class Store(Section):
    """``keep_free_bytes`` None: the rule of T-47."""

    extra: Annotated[Texts, L] = ()
    prefer: Annotated[Texts, L] = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q8_0")
    allow: Annotated[Texts, L] = ("hf:*", "bundled:*", "file:*", "ollama:*", "lmstudio:*")
    file_roots: Annotated[Texts, L] = ()
    endpoint: Annotated[str, L] = ""
    token_file: Annotated[str, L] = ""
    offline: Annotated[bool, L] = False
    pull_on_demand: Annotated[bool, L] = False
    xet: Annotated[bool, L] = False
    keep_free_bytes: Annotated[Annotated[Bytes, Field(ge=0, le=2**60)] | None, L] = None
    max_bytes: Annotated[Annotated[Bytes, Field(ge=0, le=2**60)] | None, L] = None
    quota: Annotated[Literal["refuse", "evict"], L] = "refuse"


class Cache(Section):
    enabled: Annotated[bool, L] = True
    disk_bytes: Annotated[Bytes, L, Field(ge=0, le=2**60)] = 20 * 2**30
    keep_free_bytes: Annotated[Bytes, L, Field(ge=0, le=2**60)] = 10 * 2**30
    min_tokens: Annotated[int, L, _FROM_ZERO] = 512
    max_age_s: Annotated[Seconds, L, _FROM_ZERO] = 14 * 86_400.0
    save_s: Annotated[Seconds, L, Field(ge=0, le=30)] = 20.0
    verify_ratio: Annotated[float, L, Field(ge=0, le=1)] = 0.9
    share_prefixes: Annotated[Literal["client", "deployment"], L] = "client"


class Requests(Section):
    keep_days: Annotated[int, L, Field(ge=0, le=3650)] = 7
    keep_rows: Annotated[int, L, Field(ge=0, le=10_000_000)] = 100_000
    memory_rows: Annotated[int, L, Field(ge=0, le=1_000_000)] = 2000


class Events(Section):
    buffer: Annotated[int, L, Field(ge=16, le=1_000_000)] = 4096
    buffer_bytes: Annotated[Bytes, L, Field(ge=65536, le=2**32)] = 4 * 2**20
    subscribers: Annotated[int, L, Field(ge=1, le=4096)] = 64
    heartbeat_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 15.0


class Metrics(Section):
    enabled: Annotated[bool, L] = True
    engine_metrics: Annotated[bool, L] = True
    engine_interval_s: Annotated[Seconds, L, Field(ge=1, le=3600)] = 15.0


class Tracing(Section):
    otlp_endpoint: Annotated[str, R] = ""
    sample: Annotated[float, L, Field(ge=0, le=1)] = 0.0


class Log(Section):
    level: Annotated[Literal["debug", "info", "warning", "error"], L] = "info"
    format: Annotated[Literal["auto", "console", "json"], L] = "auto"
    file_bytes: Annotated[Bytes, L, Field(ge=65536, le=2**40)] = 32 * 2**20
    files: Annotated[int, L, Field(ge=1, le=100)] = 5


class Containers(Section):
    endpoint: Annotated[str, R] = "auto"
    hardening: Annotated[Literal["standard", "strict"], N] = "standard"
    egress: Annotated[Literal["deny", "allow"], N] = "deny"
    pull_on_load: Annotated[bool, N] = False
    mounts: Annotated[Texts, N] = ()
    registries: Annotated[TextTable, N] = {}


class Ray(Section):
    address: Annotated[str, R] = ""
    namespace: Annotated[str, R, Field(min_length=1)] = "stoker"


class Settings(Section):
    """The whole configuration as it counts now. ``models`` already hold what ``defaults`` say."""

    config_version: Annotated[int, R] = CONFIG_VERSION
    daemon: Daemon = Daemon()
    gateway: Gateway = Gateway()
    control: Control = Control()
    queue: Queue = Queue()
    defaults: ModelDefaults = ModelDefaults()
    models: dict[str, Model] = {}
    sessions: Sessions = Sessions()
    pools: dict[str, Pool] = {}
    memory: Memory = Memory()
    engines: dict[str, Engine] = {}
    store: Store = Store()
    cache: Cache = Cache()
    requests: Requests = Requests()
    events: Events = Events()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    log: Log = Log()
    containers: Containers = Containers()
    ray: Ray = Ray()
