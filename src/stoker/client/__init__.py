"""The typed client of the control API, used by the command line and by programs.

    from stoker.client import connect

    with connect() as stoker:
        stoker.wait(stoker.load("qwen3-4b")).raise_if_failed()

It speaks plain HTTP over the daemon's Unix socket (or loopback TCP with a token) and never starts a daemon.
"""

from __future__ import annotations

from stoker.client.client import StokerClient, connect
from stoker.client.records import Deployment, Event, LogLine, Operation, Page, Pool, Session, Status

__all__ = [
    "Deployment",
    "Event",
    "LogLine",
    "Operation",
    "Page",
    "Pool",
    "Session",
    "Status",
    "StokerClient",
    "connect",
]
