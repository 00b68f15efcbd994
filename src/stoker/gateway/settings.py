"""The gateway's numbers: one frozen record, replaced whole when the configuration changes (R-104).

Whoever needs a number reads it from the record that is current at that moment; nothing here is copied elsewhere,
so a change counts from the next request. The record knows no defaults of models: those belong to a deployment.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The keys of ``[gateway]``. ``spool_dir`` is the data folder's ``spool/``; None keeps every body in memory."""

    trusted_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_connections: int = 2048
    max_body_bytes: int = 64 << 20
    body_memory_bytes: int = 256 << 20
    spool_bytes: int = 4 << 30
    spool_dir: str | None = None
    header_timeout_s: float = 30.0
    body_idle_s: float = 30.0
    connection_idle_s: float = 75.0
    client_stall_s: float = 120.0
    keepalive_after_s: float = 15.0
