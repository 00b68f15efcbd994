"""From a plan to a unit: folders of a life, its token, and the environment it is given (S-3, S-46, S-47, E-36)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.domain.context import LaunchPlan
from stoker.errors import ErrorCode, error_for
from stoker.ids import Generation, Scope, marker, unit_name
from stoker.observability.scrub import SHORTEST, is_secret_name
from stoker.ports.clock import Clock
from stoker.ports.engines import Launch, Site
from stoker.ports.units import Endpoint, UnitPlan
from stoker.runtime.outbox import Assignment

# Set by us whatever a user says (S-46); loader variables would undo the guard, so a user may not set them at all.
_PROTECTED = frozenset({"STOKER_UNIT", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
_LOADER = frozenset({"LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"})
_BASE = {
    "LANG": "C.UTF-8",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOKEN_BYTES = 32


def make_private_folder(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def list_folders(path: str) -> Sequence[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return ()


@dataclass(frozen=True, slots=True)
class Life:
    """Where lives keep what is theirs: ``lives`` is volatile and short, ``logs`` and ``caches`` stay."""

    lives: str
    logs: str
    caches: str
    port_range: tuple[int, int] = (23100, 23999)
    orphan_grace_s: float = 2.0
    kill_confirm_s: float = 4.0
    make_folder: Callable[[str], None] = make_private_folder
    list_folders: Callable[[str], Sequence[str]] = list_folders

    def life_dir(self, generation: Generation) -> str:
        return os.path.join(self.lives, str(generation))

    def slots_dir(self, generation: Generation) -> str:
        """Saved prompt caches of one life; they go with it."""
        return os.path.join(self.life_dir(generation), "slots")

    def log_path(self, generation: Generation) -> str:
        return os.path.join(self.logs, f"{generation}.log")


def make_plan(
    assignment: Assignment, plan: LaunchPlan, scope: Scope, folders: Life, clock: Clock
) -> tuple[UnitPlan, Launch, str | None]:
    """The complete unit plan of one life, the adapter's launch, and the token of this generation.

    The deployment's own variables were checked when it was resolved; ours come last and win (S-46).
    """
    prospect, spec = assignment.prospect, assignment.spec
    assert prospect is not None
    assert spec is not None
    generation, adapter = assignment.generation, prospect.adapter
    life_dir = folders.life_dir(generation)
    token = None if adapter.traits.token == "none" else clock.token(_TOKEN_BYTES)  # noqa: S105
    site = Site(
        unit_kind="process",
        executable=prospect.installation.site.executable,
        site_kind=prospect.installation.site.kind,
        model_path=prospect.model.path,
        served_name=spec.name,
        generation=generation,
        life_dir=life_dir,
        cache_dir=os.path.join(folders.caches, adapter.id),
        slots_dir=folders.slots_dir(generation),
        endpoint=Endpoint(port=spec.fixed_port or 0),
        build=prospect.installation.build,
        token=token,
        extra_args=spec.engine_args,
        extra_env=spec.env,
    )
    launch = adapter.launch(plan, site)
    environment = {
        **_BASE,
        "PATH": os.path.dirname(site.executable) + ":" + _SYSTEM_PATH,
        "HOME": life_dir,
        "TMPDIR": life_dir,
        **({"TZ": os.environ["TZ"]} if os.environ.get("TZ") else {}),
        **launch.env,
        **spec.env,
        "STOKER_UNIT": marker(scope, generation),
    }
    unit_plan = UnitPlan(
        scope=scope,
        generation=generation,
        name=unit_name(scope, generation),
        deployment=spec.name,
        replica=assignment.replica,
        argv=launch.argv,
        env=environment,
        files=launch.files,
        endpoint=launch.endpoint,
        life_dir=life_dir,
        log_path=folders.log_path(generation),
        stop_grace_s=spec.stop_grace_s if spec.stop_grace_s is not None else launch.stop_grace_s,
        secrets=(*((token,) if token else ()), *_user_secrets(spec.env)),
        fixed_port=spec.fixed_port,
        port_range=folders.port_range,
        orphan_grace_s=folders.orphan_grace_s,
        kill_confirm_s=folders.kill_confirm_s,
        needs_port=launch.endpoint.socket is None,
    )
    return unit_plan, launch, token


def _user_secrets(env: Mapping[str, str]) -> Iterator[str]:
    """Values of the user's variables that say they are secrets: an engine may print them, its log may not (S-48)."""
    return (value for name, value in env.items() if is_secret_name(name) and len(value) >= SHORTEST)


def check_user_environment(env: Mapping[str, str]) -> None:
    """Refuse, never override: a variable that would undo what Stoker set is a mistake worth knowing (S-46)."""
    for name in env:
        if name in _PROTECTED or name in _LOADER:
            raise error_for(
                ErrorCode.INVALID_PARAMETER,
                f"The variable {name} is set by Stoker and cannot be given to an engine.",
                remedy=f"Remove {name} from env.",
                param=f"env.{name}",
            )
