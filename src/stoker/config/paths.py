"""Where things lie: the configuration, the data of a scope, and what is gone at reboot (C-44).

``STOKER_HOME`` puts all three below one folder. The volatile folder has a short path, because the path of a Unix
socket ends at about a hundred bytes and engines' sockets lie in it. It is named by the data folder, so that a client
finds it without asking anybody.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.errors import ErrorCode, UsageError
from stoker.journal.private import ForeignPathError, private_file, private_folder

# The shortest limit of a socket's path is 104 bytes with its end mark; the rest is for what lies in the folder.
SOCKET_PATH_BYTES = 103
_INSIDE = len("/lives/1234567890/engine.sock")
VOLATILE_BYTES = SOCKET_PATH_BYTES - _INSIDE


@dataclass(frozen=True, slots=True)
class Paths:
    """Absolute folders, data resolved. ``machine_dir`` belongs to all scopes of the account."""

    config_dir: str
    data_dir: str
    volatile_dir: str
    machine_dir: str

    @property
    def config_file(self) -> str:
        return os.path.join(self.config_dir, "config.toml")

    @property
    def journal(self) -> str:
        return os.path.join(self.data_dir, "journal.sqlite")

    @property
    def overrides(self) -> str:
        return os.path.join(self.data_dir, "overrides.toml")

    @property
    def store(self) -> str:
        return os.path.join(self.data_dir, "store")

    @property
    def installations(self) -> str:
        return os.path.join(self.data_dir, "installations")

    @property
    def prompts(self) -> str:
        return os.path.join(self.data_dir, "prompts")

    @property
    def daemon_log(self) -> str:
        return os.path.join(self.data_dir, "logs", "daemon.log")

    @property
    def unit_logs(self) -> str:
        return os.path.join(self.data_dir, "logs", "units")

    @property
    def spool(self) -> str:
        return os.path.join(self.data_dir, "spool")

    @property
    def control_socket(self) -> str:
        return os.path.join(self.volatile_dir, "control.sock")

    @property
    def control_token(self) -> str:
        return os.path.join(self.volatile_dir, "control.token")

    @property
    def lives(self) -> str:
        return os.path.join(self.volatile_dir, "lives")

    def life_dir(self, generation: int) -> str:
        """The private folder of one life (S-3)."""
        return os.path.join(self.lives, str(generation))

    def prepare(self) -> None:
        """Make the daemon's folders, tighten wider ones of ours, empty the spool. Refuses what is another account's."""
        try:
            for folder in (
                self.data_dir, self.volatile_dir, self.machine_dir, self.store, self.installations, self.prompts,
                os.path.dirname(self.daemon_log), self.unit_logs, self.spool, self.lives,
            ):  # fmt: skip
                private_folder(folder)
            for file in (self.overrides, self.daemon_log):
                if os.path.lexists(file):
                    private_file(file)
            self._tighten_configuration()
            _empty(self.spool)
        except OSError as exc:
            raise UsageError(
                ErrorCode.INVALID_CONFIG,
                f"A folder of Stoker cannot be used: {exc}.",
                remedy="Set daemon.data_dir and daemon.volatile_dir to private folders of this account.",
            ) from exc

    def _tighten_configuration(self) -> None:
        """The configuration may be the administrator's; it must not be a third account's."""
        for path, mode in ((self.config_dir, 0o700), (self.config_file, 0o600)):
            if not os.path.exists(path):
                continue
            found = os.stat(path)
            if found.st_uid == os.geteuid():
                if stat.S_IMODE(found.st_mode) & ~mode:
                    os.chmod(path, mode)
            elif found.st_uid != 0:
                raise ForeignPathError(f"{path} belongs to uid {found.st_uid}, not to this account or to root")


def find_paths(
    environ: Mapping[str, str], *, config_dir: str = "", data_dir: str = "", volatile_dir: str = ""
) -> Paths:
    """The folders in force; empty arguments mean the platform's, or those below ``STOKER_HOME``."""
    home = environ.get("STOKER_HOME", "").strip()
    if home:
        home = os.path.abspath(os.path.expanduser(home))
    config = _given(config_dir) or (os.path.join(home, "config") if home else _platform("config"))
    data = os.path.realpath(_given(data_dir) or (os.path.join(home, "data") if home else _platform("data")))
    volatile = _given(volatile_dir)
    if len(os.fsencode(volatile)) > VOLATILE_BYTES:
        raise UsageError(
            ErrorCode.INVALID_CONFIG,
            f"daemon.volatile_dir = {volatile!r} has {len(os.fsencode(volatile))} bytes; "
            f"sockets in it need it to have at most {VOLATILE_BYTES}.",
            remedy="Choose a shorter folder, such as one below /run or /tmp.",
        )
    base = _volatile_base(environ)
    name = hashlib.sha256(os.fsencode(data)).hexdigest()[:8]
    if not volatile:
        volatile = os.path.join(home, "run") if home else os.path.join(base, f"stoker-{name}")
        if len(os.fsencode(volatile)) > VOLATILE_BYTES:
            volatile = os.path.join(_short_base(), name)
    machine = os.path.join(home, "machine") if home else os.path.join(base, "stoker-machine")
    return Paths(config, data, volatile, machine)


def _given(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def _platform(kind: str) -> str:
    import platformdirs  # only here: not needed below STOKER_HOME, and clients should start fast

    find = {"config": platformdirs.user_config_dir, "data": platformdirs.user_data_dir}[kind]
    return find("stoker", appauthor=False)


def _volatile_base(environ: Mapping[str, str]) -> str:
    """The account's own folder in memory if there is one, else a folder of ours in /tmp."""
    for folder in (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
        if os.path.isabs(folder) and _is_ours(folder) and len(os.fsencode(folder)) <= VOLATILE_BYTES - 16:
            return folder
    return _short_base()


def _short_base() -> str:
    return f"/tmp/stoker-{os.geteuid()}"  # noqa: S108 - 0700 and refused when it belongs to another


def _is_ours(folder: str) -> bool:
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _empty(folder: str) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
