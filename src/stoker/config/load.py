"""The configuration that counts, from its sources, weakest first (C-20 to C-24).

Default, ``config.toml``, ``conf.d/*.toml``, values kept by control calls, ``STOKER_*``, flags. Every layer is checked
on its own, so that a mistake is named even where a stronger source covers it, and all mistakes are named at once.
The command that checks and the daemon that starts call the same function.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from stoker.config.catalog import Path
from stoker.config.environment import read_environment
from stoker.config.files import File, folder_files, read_file
from stoker.config.names import name_problems
from stoker.config.origins import merge
from stoker.config.paths import Paths, find_paths
from stoker.config.problems import ConfigProblem, dotted, invalid, sentence_of, unknown_key
from stoker.config.schema import CONFIG_VERSION, Settings
from stoker.errors import UsageError


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag that was given, even if with the default's value."""

    name: str
    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. ``config_file`` None: the default place, where a missing file means defaults."""

    environ: Mapping[str, str] = field(default_factory=dict)
    config_file: str | None = None
    flags: tuple[Flag, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the daemon runs on. ``from_files``: models that stand in a file; the others are kept control calls.

    ``tables`` are the values as given, before defaults, for what must be merged later.
    """

    settings: Settings
    origins: Mapping[Path, str]
    paths: Paths
    files: tuple[str, ...]
    from_files: frozenset[str]
    tables: Mapping[str, Any]


def load(sources: Sources) -> Loaded:
    """The configuration in force. Raises `UsageError` ``invalid-config`` naming every problem."""
    loaded, problems = check(sources)
    if loaded is None:
        raise invalid(problems)
    return loaded


def check(sources: Sources) -> tuple[Loaded | None, tuple[ConfigProblem, ...]]:
    """What `load` would give, and all that is wrong."""
    outer = _Layers()
    outer.add_environment(sources.environ, {})
    outer.add_flags(sources.flags)
    problems: list[ConfigProblem] = []
    files, wrong = _files(sources, _folder(outer, "config_dir"))
    problems.extend(wrong)

    layers = _Layers()
    for file in files:
        layers.add_file(file)
        problems.extend(_config_dir_in_file(file))
    problems.extend(name_problems(files))
    paths, wrong = _paths(sources, layers, outer)
    problems.extend(wrong)
    control = read_file(paths.overrides) if paths and not _is_missing(paths.overrides) else None
    if control is not None:
        layers.add_control(control)
    layers.add_environment(sources.environ, layers.values)
    layers.add_flags(sources.flags)
    problems.extend(layers.problems)
    settings = None if problems or paths is None else _settings(layers, problems)
    if settings is None or paths is None:
        return None, tuple(dict.fromkeys(problems))
    named = frozenset(name for file in files for name in file.values.get("models", {}))
    listed = tuple(file.path for file in (*files, *([control] if control else [])))
    return Loaded(settings, layers.origins, paths, listed, named, layers.values), ()


def fingerprint(sources: Sources, paths: Paths) -> str:
    """A digest of all that `load` would read from disk; equal as long as nothing changed (C-25)."""
    digest = hashlib.sha256()
    first = _explicit(sources) or paths.config_file
    folder = os.path.join(os.path.dirname(first), "conf.d")
    try:
        rest = folder_files(folder)
    except OSError as exc:
        rest = []
        digest.update(f"{folder}: {exc.errno}".encode())
    for path in (first, *rest, paths.overrides):
        digest.update(os.fsencode(path) + b"\0")
        try:
            with open(path, "rb") as file:
                digest.update(file.read())
        except OSError as exc:
            digest.update(f"errno {exc.errno}".encode())
    return digest.hexdigest()


class _Layers:
    """Values merged so far, the origin of each key, and what is wrong in each layer."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Path, str] = {}
        self.problems: list[ConfigProblem] = []

    def add_file(self, file: File) -> None:
        self.problems.extend(file.problems)
        self._add(file.values, file.origin, file.path, lambda path: file.problem("", path).line)

    def add_control(self, file: File) -> None:
        self.problems.extend(file.problems)
        self._add(file.values, lambda _: "control", file.path, lambda path: file.problem("", path).line)

    def add_environment(self, environ: Mapping[str, str], known: Mapping[str, Any]) -> None:
        found = read_environment(environ, known)
        self.problems.extend(found.problems)
        self._add(found.values, lambda path: f"env:{_longest(found.names, path)}")

    def add_flags(self, flags: Sequence[Flag]) -> None:
        for flag in flags:
            values: Any = flag.value
            for part in reversed(flag.path):
                values = {part: values}
            self._add(values, lambda _, name=flag.name: f"flag:{name}")  # type: ignore[misc]

    def _add(
        self,
        values: Mapping[str, Any],
        origin: Callable[[Path], str],
        file: str | None = None,
        line: Callable[[Path], int | None] = lambda _: None,
    ) -> None:
        wrong = [
            ConfigProblem(
                said.message, origin(path), dotted(path), file, line(path), None, said.nearest, said.belongs_at
            )
            for path, said in _wrong(values)
        ]
        self.problems.extend(wrong)

        def note(path: Path) -> None:
            for old in [known for known in self.origins if known[: len(path)] == path]:
                del self.origins[old]
            self.origins[path] = origin(path)

        if not wrong:
            merge(self.values, copy.deepcopy(dict(values)), note)


def _longest(names: Mapping[Path, str], path: Path) -> str:
    """The variable that gave ``path``; of a table, the first that gave something in it."""
    for end in range(len(path), 0, -1):
        for known, name in names.items():
            if known[:end] == path[:end]:
                return name
    return ""


def _wrong(values: Mapping[str, Any]) -> list[tuple[Path, ConfigProblem]]:
    """What is wrong in one layer by itself: path and what to say of it."""
    version = values.get("config_version", CONFIG_VERSION)
    if isinstance(version, int) and not isinstance(version, bool) and version != CONFIG_VERSION:
        said = f"config_version = {version} is another version's; this Stoker reads version {CONFIG_VERSION}"
        return [(("config_version",), ConfigProblem(said, ""))]
    try:
        Settings.model_validate(values)
    except ValidationError as exc:
        return [_worded(error) for error in exc.errors(include_url=False)]
    return []


def _worded(error: Any) -> tuple[Path, ConfigProblem]:
    path = tuple(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        sentence, near, belongs = unknown_key(path)
        return path, ConfigProblem(sentence, "", nearest=near, belongs_at=belongs)
    return path, ConfigProblem(sentence_of(error, path), "")


def _settings(layers: _Layers, problems: list[ConfigProblem]) -> Settings | None:
    values = copy.deepcopy(layers.values)
    for name, table in values.get("models", {}).items():
        whole = copy.deepcopy(values.get("defaults", {}))
        merge(whole, table, lambda _: None)
        values["models"][name] = whole
    try:
        return Settings.model_validate(values)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            path, said = _worded(error)
            problems.append(ConfigProblem(said.message, layers.origins.get(path, ""), dotted(path)))
        return None


# -- where to look -------------------------------------------------------------------------------------------------


def _explicit(sources: Sources) -> str | None:
    given = sources.config_file or sources.environ.get("STOKER_CONFIG", "").strip()
    return os.path.abspath(os.path.expanduser(given)) if given else None


def _folder(layers: _Layers, key: str) -> str:
    value = layers.values.get("daemon", {}).get(key, "")
    return value if isinstance(value, str) else ""


def _files(sources: Sources, config_dir: str) -> tuple[list[File], list[ConfigProblem]]:
    """The files that are there, in the order they count. Only a file at the default place may be missing."""
    explicit = _explicit(sources)
    first = explicit or find_paths(sources.environ, config_dir=config_dir).config_file
    folder = os.path.join(os.path.dirname(first), "conf.d")
    try:
        rest = folder_files(folder)
    except OSError as exc:
        return [], [ConfigProblem(f"it cannot be read: {exc.strerror}", folder, file=folder)]
    return [read_file(path) for path in (first, *rest) if path != first or explicit or not _is_missing(first)], []


def _is_missing(path: str) -> bool:
    """Nothing stands there. A link that leads nowhere or a folder that may not be entered is not nothing."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _config_dir_in_file(file: File) -> list[ConfigProblem]:
    table = file.values.get("daemon")
    if isinstance(table, Mapping) and "config_dir" in table:
        path = ("daemon", "config_dir")
        return [file.problem("daemon.config_dir says where files are; give it by STOKER_DAEMON__CONFIG_DIR", path)]
    return []


def _paths(sources: Sources, layers: _Layers, outer: _Layers) -> tuple[Paths | None, list[ConfigProblem]]:
    """The data folder must be known before the values kept in it can be read."""

    def folder(key: str) -> str:
        return _folder(outer, key) or _folder(layers, key)

    try:
        return find_paths(
            sources.environ, config_dir=_folder(outer, "config_dir"), data_dir=folder("data_dir"),
            volatile_dir=folder("volatile_dir"),
        ), []  # fmt: skip
    except UsageError as exc:
        return None, [ConfigProblem(exc.message, "", "daemon.volatile_dir")]
