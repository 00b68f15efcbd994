"""Starting a daemon that outlives the command that needed it (C-19).

Whoever gets the owner lock is the daemon; a start that loses leaves, and both callers connect to the winner. Nothing of
ours is inherited: own session, no descriptors, no input, output to a file below the data folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.client.discovery import Place
from stoker.errors import ErrorCode, StokerError, error_for
from stoker.journal.owner import Owner
from stoker.journal.private import private_folder

READY_WAIT_S = 10.0
_POLL_S = 0.05
_SHOWN_LINES = 12
_READ_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class Start:
    """A daemon process begun; ``output`` is its file, and what it says begins at byte ``begins_at``."""

    process: subprocess.Popen[bytes]
    output: str
    begins_at: int

    def last_lines(self) -> list[str]:
        with open(self.output, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self.begins_at, size - _READ_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]


def ready_daemon(
    place: Place,
    say: Callable[[str], None],
    *,
    wait_s: float = READY_WAIT_S,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Owner:
    """The daemon of this place, ready; starts one if none lives.

    Raises `HostError` ``daemon-unreachable`` with the last lines it wrote, when it is not ready within ``wait_s``.
    """
    if place.owner() is not None:
        return place.ready_owner()
    say("Starting the Stoker daemon…")
    start = start_daemon(place)
    until = now() + wait_s
    while True:
        owner = place.owner()
        if owner is not None and owner.state == "ready":
            return owner
        if owner is None and start.process.poll() is not None:
            raise _failed(start, f"The daemon ended with exit code {start.process.returncode} before it was ready.")
        if now() >= until:
            raise _failed(start, f"The daemon was not ready within {wait_s:g} s.")
        sleep(_POLL_S)


def start_daemon(place: Place) -> Start:
    output = os.path.join(place.data_dir(), "logs", "daemon.out")
    command = [sys.executable, "-P", "-m", "stoker"]
    if place.config_file is not None:
        command += ["--config", os.path.abspath(place.config_file)]
    try:
        private_folder(place.data_dir())
        private_folder(os.path.dirname(output))
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise error_for(
            ErrorCode.DAEMON_UNREACHABLE,
            f"No daemon runs, and none can be started: {exc}.",
            remedy="Set daemon.data_dir to a private folder of this account.",
        ) from exc
    with open(descriptor, "ab") as file:
        begins_at = file.seek(0, os.SEEK_END)
        process = subprocess.Popen(  # it is not ours to wait for: it goes on after this command
            [*command, "serve", "--auto"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd="/",
            env=dict(place.environ),
            start_new_session=True,
        )
    # It may end long before or after this command: whoever comes first, nobody is left unreaped.
    threading.Thread(target=process.wait, name="reap-daemon", daemon=True).start()
    return Start(process, output, begins_at)


def _failed(start: Start, message: str) -> StokerError:
    return error_for(
        ErrorCode.DAEMON_UNREACHABLE,
        message,
        remedy=f"See {start.output}, or run `stoker serve` to watch it start.",
        details={"log": start.last_lines()},
    )
