"""Which engines are installed on this host, and what each can do (E-12, E-15, I-16).

Blocking; the shell calls it in a thread. Programs are asked about themselves in processes of their own, with limits,
in an empty folder, without our environment; nothing is imported into the daemon. What a program said is kept under
its path, size and time of change, so that a later start asks nobody.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from stoker import __version__
from stoker.ports.engines import Adapter, BuildRefused, Captured, Installation, InstallationSite, ProbeCommand, Search

RunProbe = Callable[[ProbeCommand], Captured]
CACHE_FORMAT = 1
_ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True, slots=True)
class Configured:
    """An installation an operator named: it is looked at before what is found."""

    engine: str
    site: InstallationSite


def find_installations(
    adapters: Iterable[Adapter],
    path: str,
    run: RunProbe,
    *,
    cache: Path | None = None,
    configured: Iterable[Configured] = (),
) -> tuple[Installation, ...]:
    """Every installation of ``adapters``, in their order: named by the operator, embedded, then along ``path``.

    ``path`` is a search path as in ``PATH``; parts that are not absolute are skipped. A program that cannot be asked
    or refuses is an installation in state ``broken`` with the reason.
    """
    named = tuple(configured)
    kept = _Cache(cache)
    found: list[Installation] = []
    for adapter in adapters:
        sites = [item.site for item in named if item.engine == adapter.id]
        sites += [site for search in adapter.searches for site in _sites(search, path)]
        seen: set[str] = set()
        for site in sites:
            real = f"{site.kind}:{os.path.realpath(site.executable)}"
            if real not in seen:
                seen.add(real)
                found.append(_look_at(adapter, site, run, kept))
    kept.write()
    return tuple(found)


def run_probe(command: ProbeCommand) -> Captured:
    """One probe command, bounded in time and output. ``ended`` is ``missing`` if there is no such program."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stoker-probe-") as folder:
        try:
            process = subprocess.Popen(
                command.argv,
                cwd=folder,
                env={**_ENVIRONMENT, "HOME": folder, "TMPDIR": folder, **command.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as exc:
            return Captured(None, b"", str(exc.strerror).encode(), _ms_since(started), "missing")
        with process:
            return _collect(process, command, started)


def _collect(process: subprocess.Popen[bytes], command: ProbeCommand, started: float) -> Captured:
    outputs: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def drain(name: str, stream: IO[bytes]) -> None:
        outputs[name] = stream.read(command.max_bytes)
        while stream.read(1 << 16):  # what is beyond the limit is dropped, so that the program can end
            pass

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=drain, args=("stdout", process.stdout), daemon=True),
        threading.Thread(target=drain, args=("stderr", process.stderr), daemon=True),
    ]
    for reader in readers:
        reader.start()
    deadline = started + command.timeout_s
    for reader in readers:  # both streams end with the program, unless a helper of it keeps them
        reader.join(max(0.0, deadline - time.monotonic()))
    is_late = any(reader.is_alive() for reader in readers)
    if not is_late:
        try:
            process.wait(max(0.001, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            is_late = True
    if is_late:
        _end_group(process.pid)  # its leader was not waited for, so the number is still this group's
        for reader in readers:
            reader.join(timeout=2.0)
        process.wait()
    ended = "timeout" if is_late else "exit"
    return Captured(process.returncode, outputs["stdout"], outputs["stderr"], _ms_since(started), ended)


def _end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _ms_since(started: float) -> float:
    return (time.monotonic() - started) * 1000


def _sites(search: Search, path: str) -> Iterator[InstallationSite]:
    if search.kind == "embedded":
        if sys.executable and _module_file(search.name) is not None:
            yield InstallationSite("embedded", sys.executable, "environment")
        return
    own = os.path.dirname(sys.executable)
    for folder in path.split(os.pathsep):
        if not os.path.isabs(folder):
            continue  # a relative part would mean another program in every folder
        candidate = os.path.join(folder, search.name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            yield InstallationSite(search.kind, candidate, "environment" if folder == own else "host")


def _module_file(name: str) -> str | None:
    """The file of a top-level module, found without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _look_at(adapter: Adapter, site: InstallationSite, run: RunProbe, kept: _Cache) -> Installation:
    commands = adapter.probe_commands(site)
    signature = _signature(adapter, site)
    outputs = kept.get(site, signature, commands)
    if outputs is None:
        outputs = {command.name: run(command) for command in commands}
        kept.put(site, signature, commands, outputs)
    build = adapter.read_build(site, outputs)
    if isinstance(build, BuildRefused):
        name = sha256(f"{site.kind}:{site.executable}".encode()).hexdigest()[:8]
        identity = f"{adapter.id}-{site.kind}-{name}"
        return Installation(identity, adapter.id, site, None, "broken", f"{build.cause}: {build.message}")
    return Installation(f"{adapter.id}-{site.kind}-{build.digest[:8]}", adapter.id, site, build)


def _signature(adapter: Adapter, site: InstallationSite) -> list[list[Any]]:
    """Path, size and change time of every file that decides what the probe will say."""
    files = {os.path.realpath(site.executable)}
    if site.kind == "embedded":
        for search in adapter.searches:
            origin = _module_file(search.name) if search.kind == "embedded" else None
            folder = os.path.dirname(origin) if origin else ""
            files |= {entry.path for entry in os.scandir(folder) if entry.is_file()} if folder else set()
    signature: list[list[Any]] = [[__version__]]
    for file in sorted(files):
        try:
            status = os.stat(file)
        except OSError:
            continue
        signature.append([file, status.st_size, status.st_mtime_ns])
    return signature


class _Cache:
    """What programs said, by path and signature. A file that cannot be read or written costs only time."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, Any] = self._read()
        self._used: dict[str, Any] = {}
        self._changed = False

    def _read(self) -> dict[str, Any]:
        try:
            table = json.loads(self._path.read_bytes()) if self._path is not None else {}
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(table, dict) or table.get("format") != CACHE_FORMAT:
            return {}
        entries = table.get("entries")
        return entries if isinstance(entries, dict) else {}

    def get(
        self, site: InstallationSite, signature: list[list[Any]], commands: tuple[ProbeCommand, ...]
    ) -> dict[str, Captured] | None:
        key = f"{site.kind}:{site.executable}"
        entry = self._entries.get(key)
        asked = [list(command.argv) for command in commands]
        if not isinstance(entry, dict) or entry.get("signature") != signature or entry.get("asked") != asked:
            return None
        outputs = _restored(entry.get("outputs"))
        if outputs is not None:
            self._used[key] = entry
        return outputs

    def put(
        self,
        site: InstallationSite,
        signature: list[list[Any]],
        commands: tuple[ProbeCommand, ...],
        outputs: Mapping[str, Captured],
    ) -> None:
        """Only whole answers are kept: a program that did not answer in time is asked again."""
        if not all(captured.ended == "exit" for captured in outputs.values()):
            return
        self._changed = True
        self._used[f"{site.kind}:{site.executable}"] = {
            "signature": signature,
            "asked": [list(command.argv) for command in commands],
            "outputs": {
                name: [captured.status, captured.stdout.decode("latin-1"), captured.stderr.decode("latin-1")]
                for name, captured in outputs.items()
            },
        }

    def write(self) -> None:
        """Replace the file by what was used now; entries of vanished programs go."""
        if self._path is None or not (self._changed or self._used.keys() != self._entries.keys()):
            return
        text = json.dumps({"format": CACHE_FORMAT, "entries": self._used})
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(draft, self._path)
        except OSError:
            return


def _restored(outputs: Any) -> dict[str, Captured] | None:
    found: dict[str, Captured] = {}
    for name, row in outputs.items() if isinstance(outputs, dict) else ():
        match row:
            case [int() as status, str() as stdout, str() as stderr]:
                found[name] = Captured(status, stdout.encode("latin-1"), stderr.encode("latin-1"), 0.0)
            case _:
                return None
    return found or None
