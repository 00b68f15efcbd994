"""Desired state: what an operator wants kept, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.ids import DeploymentName


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """The keys of ``[models."NAME"]`` after defaults (control section 7). ``origin``: file, control or implicit.

    Times in seconds; ``keep_alive_s`` negative: until unloaded. ``max_wait_s`` and the stream limits: 0 means none.
    """

    name: DeploymentName
    reference: str
    engine: str | None = None
    context_tokens: int | None = None
    slots: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    declared_bytes: int | None = None
    replicas: int = 1
    pinned: bool = False
    preload: bool = False
    load_on_demand: bool = True
    keep_alive_s: float = 300.0
    max_in_flight: int | None = None
    light_in_flight: int = 8
    max_queued: int = 64
    max_wait_s: float = 600.0
    first_token_timeout_s: float = 1800.0
    stream_idle_timeout_s: float = 300.0
    load_timeout_s: float | None = None
    stop_grace_s: float | None = None
    fixed_port: int | None = None
    origin: str = "implicit"
    adapters: tuple[str, ...] = ()
    draft: str | None = None
    projector: str | None = None
    template: str | None = None
    pools: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    several_engines: bool = False
    evict_for_replicas: bool = False
    allow_remote_media: bool = False
    keep_alive_max_s: float | None = None
