"""From a deployment's words to what would run: model, engine, installation, valid settings (S-13, checks 2, 6, 7).

Blocking file work; the shell calls it in a worker thread. It starts nothing and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.domain.context import PlanRequest
from stoker.domain.deployments import DeploymentSpec
from stoker.domain.hardware import Hardware
from stoker.engines.arguments import check_arguments
from stoker.engines.settings import read_settings, restart_values
from stoker.errors import ErrorCode, error_for
from stoker.ids import RAM, EngineId
from stoker.ports.engines import Adapter, Build, Installation
from stoker.ports.models import Models
from stoker.runtime.launching import check_user_environment
from stoker.runtime.state import Prospect

# Keys of a deployment that nothing here carries out.
_UNSUPPORTED = ("adapters", "draft", "projector", "template", "pools", "sampling")


@dataclass(frozen=True, slots=True)
class Resolver:
    """What is needed to resolve a deployment. ``adapters`` in priority order (E-10)."""

    models: Models
    adapters: tuple[Adapter, ...]
    installations: Callable[[], tuple[Installation, ...]]
    hardware: Callable[[], Hardware]
    context_floor_tokens: int = 8192

    def resolve(self, spec: DeploymentSpec) -> Prospect:
        """The prospect of ``spec``.

        Raises:
            StokerError: the model, the engine or a setting is not what it must be; the sentence says which.
        """
        refuse_unsupported(spec)
        model = self.models.resolve(spec.reference)
        adapter, installation = self._engine(spec, model.facts.format)
        settings = validated(adapter, spec, installation.build)
        refusals = adapter.refuse_model(model.facts, settings, installation.build)
        if refusals:
            first = refusals[0]
            raise error_for(first.code, first.message, remedy=first.remedy, details=first.details, param=first.param)
        hardware = self.hardware()
        capabilities = adapter.capabilities(model.facts, settings, installation.build)
        request = PlanRequest(
            spec.name,
            adapter.id,
            model.path,
            model.facts,
            settings,
            adapter.wishes(settings),
            adapter.profile(installation.build, hardware),
            context_tokens=spec.context_tokens,
            slots=spec.slots,
            declared_bytes=spec.declared_bytes,
            context_floor_tokens=self.context_floor_tokens,
            task=capabilities.task,
            cores=hardware.cores,
            ram_total_bytes=hardware.pools[RAM].total_bytes,
        )
        key = load_key(spec, model.model_id, model.facts.content_id, adapter, installation, settings)
        return Prospect(model, adapter, installation, settings, request, key)

    def _engine(self, spec: DeploymentSpec, model_format: str) -> tuple[Adapter, Installation]:
        """The named engine, or the first whose adapter takes the format and that is installed here (E-10)."""
        ready = [one for one in self.installations() if one.state == "ready"]
        if spec.engine is not None:
            named = next((a for a in self.adapters if a.id == EngineId(spec.engine or "")), None)
            if named is None:
                known = ", ".join(adapter.id for adapter in self.adapters)
                raise error_for(
                    ErrorCode.ENGINE_NOT_FOUND,
                    f"There is no engine {spec.engine!r}; known are: {known}.",
                    remedy="Correct `engine`.",
                )
            candidates: tuple[Adapter, ...] = (named,)
        else:
            candidates = tuple(a for a in self.adapters if model_format in a.traits.formats)
        for adapter in candidates:
            for installation in ready:
                if installation.engine == adapter.id:
                    return adapter, installation
        names = ", ".join(adapter.title for adapter in candidates) or f"any engine for {model_format} files"
        raise error_for(
            ErrorCode.ENGINE_NOT_INSTALLED,
            f"{spec.name} needs {names}, and it is not installed here.",
            remedy="For llama.cpp: pip install 'stoker[llama]', or put llama-server on the PATH.",
        )


def validated(adapter: Adapter, spec: DeploymentSpec, build: Build | None) -> Any:
    """The engine's settings object, or one sentence naming field, value and rule (E-22, E-28)."""
    settings = read_settings(adapter.settings, spec.settings)
    refusals = check_arguments(adapter.traits.arguments, spec.engine_args, spec.env, build)
    if refusals:
        first = refusals[0]
        raise error_for(first.code, first.message, remedy=first.remedy, details=first.details, param=first.param)
    check_user_environment(spec.env)
    return settings


def refuse_unsupported(spec: DeploymentSpec) -> None:
    """What is asked for and would be left out is refused by name, never dropped (E-18)."""
    for key in _UNSUPPORTED:
        if getattr(spec, key):
            raise error_for(
                ErrorCode.UNSUPPORTED_PARAMETER,
                f"{spec.name} sets {key}, which no engine of this version can honour.",
                remedy=f"Remove {key}.",
                param=key,
            )


def load_key(
    spec: DeploymentSpec, model_id: str, content_id: str, adapter: Adapter, installation: Installation, settings: Any
) -> str:
    """S-11: what must be equal for a running session to serve a changed request."""
    build = installation.build
    canonical: Mapping[str, Any] = {
        "model": [model_id, content_id],
        "engine": [adapter.id, adapter.contract],
        "installation": [installation.installation_id, build.digest if build else ""],
        "settings": restart_values(settings),
        "context_tokens": spec.context_tokens,
        "slots": spec.slots,
        "engine_args": list(spec.engine_args),
        "env": dict(sorted(spec.env.items())),
        "declared_bytes": spec.declared_bytes,
        "unit_kind": "process",
    }
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
