"""Where the daemon of this account answers: found from folders and the owner lock's text, never by guessing (C-42).

Only the two keys that move the data folder are read from the configuration, without checking the rest of it: a client
must find a daemon that runs on its last good configuration. Nothing is started, made or changed here.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import ErrorCode, StokerError, UsageError, error_for
from stoker.journal.owner import Owner, is_owned, read_owner

STARTING_WAIT_S = 15.0
_POLL_S = 0.05
_DATA_DIR, _CONFIG_DIR = "STOKER_DAEMON__DATA_DIR", "STOKER_DAEMON__CONFIG_DIR"


@dataclass(frozen=True, slots=True)
class Place:
    """One scope as a client sees it: its folders' environment, and the configuration file if one was named."""

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    config_file: str | None = None

    def data_dir(self) -> str:
        """The data folder, resolved. Raises `UsageError` ``invalid-config`` for a named file that cannot be read."""
        from stoker.config.paths import find_paths  # only here: programs that know their socket do without

        config_dir = self.environ.get(_CONFIG_DIR, "").strip()
        given = self.environ.get(_DATA_DIR, "").strip()
        if not given:
            first = self.config_file or find_paths(self.environ, config_dir=config_dir).config_file
            given = _data_dir_in(first, is_named=self.config_file is not None)
        return find_paths(self.environ, config_dir=config_dir, data_dir=given).data_dir

    def owner(self) -> Owner | None:
        """What the living daemon says of itself; None if none lives. An empty text reads as a start just begun."""
        data_dir = self.data_dir()
        if not is_owned(data_dir):
            return None
        return read_owner(data_dir) or Owner("", 0, "", "", "")

    def ready_owner(
        self,
        wait_s: float = STARTING_WAIT_S,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Owner:
        """The daemon once it is ready, waiting up to ``wait_s`` for one that starts.

        Raises:
            HostError: ``daemon-unreachable``, naming the command that starts one.
            CapacityError: ``daemon-starting``, still starting after the wait.
        """
        until = now() + wait_s
        while True:
            owner = self.owner()
            if owner is None:
                raise unreachable(f"No daemon runs on {self.data_dir()}.")
            if owner.state == "ready":
                return owner
            if now() >= until:
                raise error_for(
                    ErrorCode.DAEMON_STARTING,
                    f"The daemon (pid {owner.pid}) is still starting after {wait_s:g} s.",
                    remedy="Try again in a moment, or see `stoker logs`.",
                    retry_after_s=5,
                )
            sleep(_POLL_S)


def unreachable(message: str, **details: Any) -> StokerError:
    return error_for(
        ErrorCode.DAEMON_UNREACHABLE,
        message,
        remedy="Start one with `stoker serve`.",
        details=details,
    )


def _data_dir_in(first: str, *, is_named: bool) -> str:
    """``daemon.data_dir`` of the file and of ``conf.d`` beside it, the last one that gives it (C-20)."""
    folder = os.path.join(os.path.dirname(os.path.abspath(first)), "conf.d")
    rest = sorted(name for name in _listing(folder) if name.endswith(".toml") and name[0] != ".")
    found = ""
    for path in (first, *(os.path.join(folder, name) for name in rest)):
        try:
            with open(path, "rb") as file:
                daemon = tomllib.loads(file.read().decode("utf-8-sig")).get("daemon")
        except (OSError, ValueError) as exc:
            if is_named and path == first:
                raise UsageError(
                    ErrorCode.INVALID_CONFIG,
                    f"The configuration {path} cannot be read: {exc}.",
                    remedy="Correct the file, or name another one with --config.",
                ) from exc
            continue
        given = daemon.get("data_dir") if isinstance(daemon, Mapping) else None
        found = given if isinstance(given, str) and given else found
    return found


def _listing(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
