"""What the settings of all engines have in common: marks, aliases, and reading them from a table (E-22 to E-26).

Every field is marked `Restart` or `PerRequest`; a mark that is missing is a defect that the conformance suite finds.
``"auto"`` and "not given" are one value, None. It does not know any engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from stoker.errors import ErrorCode, UsageError


@dataclass(frozen=True, slots=True)
class Mark:
    """When a changed value acts: at the next start of the engine, or with the next request (E-23)."""

    acts: Literal["restart", "request"]


@dataclass(frozen=True, slots=True)
class Also:
    """The engine's own words for a field (E-24)."""

    names: tuple[str, ...]


Restart = Mark("restart")
PerRequest = Mark("request")
Words = Annotated[tuple[str, ...], Strict(strict=False)]


class Record(BaseModel):
    """Strict, closed and immutable; lists of a table become tuples."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sampling(Record):
    """Sampling defaults of a deployment: used only where the client names none (E-55)."""

    temperature: float | None = Field(default=None, ge=0, le=2, description="Randomness; 0 is greedy.")
    top_p: float | None = Field(default=None, gt=0, le=1, description="Keep the smallest set of tokens with this mass.")
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000, description="Keep this many tokens; 0 or -1: all.")
    min_p: float | None = Field(default=None, ge=0, le=1, description="Drop tokens below this share of the likeliest.")
    repeat_penalty: float | None = Field(default=None, gt=0, le=10, description="Above 1: discourage repetition.")
    seed: int | None = Field(
        default=None, ge=0, le=2**32 - 2, description="Fixed seed; not given: a new one each time."
    )


class EngineSettings(Record):
    """Fields every engine has."""

    task: Annotated[Literal["generate", "embed", "rerank"] | None, Restart] = Field(
        default=None, description="What the session is for; auto: what the model is made for."
    )
    max_output_tokens: Annotated[int | None, PerRequest] = Field(
        default=None, ge=1, le=4_194_304, description="The longest answer a request may ask for."
    )
    require: Annotated[Words, PerRequest] = Field(
        default=(), max_length=32, description="Capabilities without which a ready session is refused."
    )
    sampling: Annotated[Sampling, PerRequest] = Field(
        default=Sampling(), description="Sampling defaults for requests that name none."
    )

    @model_validator(mode="before")
    @classmethod
    def _canonical(cls, data: Any) -> Any:
        """Engine words become field names; both spellings at once are an error; ``auto`` is None (E-24, E-25)."""
        if not isinstance(data, Mapping):
            return data
        spelled = aliases(cls)
        found: dict[str, Any] = {}
        places: dict[str, str] = {}
        for key, value in data.items():
            name = str(key)
            canonical = spelled.get(name, name)
            if canonical in places:
                raise ValueError(f"{places[canonical]} and {name} are the same setting; give one of them")
            places[canonical] = name
            if value != "auto":
                found[canonical] = value
        return found


SettingsModel = TypeVar("SettingsModel", bound=EngineSettings)


def aliases(model: type[EngineSettings]) -> dict[str, str]:
    """Engine word -> field name."""
    return {
        word: name
        for name, info in model.model_fields.items()
        for note in info.metadata
        if isinstance(note, Also)
        for word in note.names
    }


def marks(model: type[EngineSettings]) -> dict[str, str]:
    """Field name -> ``restart`` or ``request``; unmarked fields are missing."""
    return {
        name: note.acts for name, info in model.model_fields.items() for note in info.metadata if isinstance(note, Mark)
    }


def restart_values(settings: EngineSettings) -> dict[str, Any]:
    """The part of the settings that a running engine cannot take over: what belongs into the load key (S-11)."""
    values = settings.model_dump(mode="json")
    return {name: values[name] for name, acts in marks(type(settings)).items() if acts == "restart"}


def read_settings(model: type[SettingsModel], table: Mapping[str, Any]) -> SettingsModel:
    """Settings from a configuration table. Raises `UsageError` ``invalid-config`` naming field, value and rule."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        value = "" if not field else f" = {_short(first['input'])}"
        raise UsageError(
            ErrorCode.INVALID_CONFIG,
            f"{f'settings.{field}{value}' if field else 'settings'}: {_rule(first['msg'])}.",
            param=f"settings.{field}" if field else "settings",
            remedy="Correct the value, or leave it out to have it chosen.",
            details={"errors": len(exc.errors())},
        ) from exc


def _rule(message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
