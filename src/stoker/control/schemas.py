"""What callers may send: bodies and queries, each with the members it has and no others (C-2, C-7).

The keys of a deployment are those of a configuration file, checked by the same models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from stoker.config.schema import Model

HIDDEN = "[set]"

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Replica = Annotated[int, Field(ge=0, le=63)]


class Body(BaseModel):
    """A body with these members only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DeploymentBody(Model):
    """The keys of ``[models."NAME"]``; what is left out is filled from ``[defaults]``."""

    fixed_port: Annotated[int, Field(ge=1024, le=65535)] | None = None

    @field_validator("env", "settings", "sampling", "engine_args")
    @classmethod
    def _shown_values_stay_out(cls, value: Any) -> Any:
        """A view hides secrets; what it shows in their place must not become the value."""
        inner = value.values() if isinstance(value, dict) else value
        if HIDDEN in inner:
            raise ValueError(f"{HIDDEN} is how a hidden value is shown, not a value")
        return value


class LoadBody(Body):
    """``settings`` are laid over the deployment's own."""

    replica: Replica | None = None
    settings: dict[str, Any] | None = None
    load_timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None


class UnloadBody(Body):
    replica: Replica | None = None
    mode: Literal["idle-only", "drain", "now", "kill"] = "drain"
    drain_s: Seconds | None = None


class StopBody(Body):
    mode: Literal["drain", "now", "kill"] = "drain"
    drain_s: Seconds | None = None


class ForceReleaseBody(Body):
    """``confirm``: the generation once more."""

    confirm: int


class ScaleBody(Body):
    replicas: Annotated[int, Field(ge=0, le=64)]


class ReleaseBody(Body):
    replica: Replica | None = None


class BudgetBody(Body):
    """``budget_bytes`` null: the daemon's own rule again. The change lasts until the daemon ends."""

    budget_bytes: Annotated[int, Field(ge=0, le=2**60)] | None
    persist: Literal[False] = False
