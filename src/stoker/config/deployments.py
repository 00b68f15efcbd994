"""From ``[models."NAME"]`` and ``[defaults]`` to what the kernel keeps: `DeploymentSpec` (R-91, R-92, T-65)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from stoker.config.load import Loaded
from stoker.config.names import name_problem
from stoker.config.origins import merge
from stoker.config.problems import nearest, sentence_of
from stoker.config.schema import Model
from stoker.domain.deployments import DeploymentSpec
from stoker.errors import ErrorCode, UsageError
from stoker.ids import DeploymentName

_KEYS = tuple(name for name in Model.model_fields if name != "reference")


def specs(loaded: Loaded) -> tuple[DeploymentSpec, ...]:
    """What the configuration wants kept, in its order; origin ``file``, or ``control`` for kept control calls."""
    return tuple(
        _spec(name, model, "file" if name in loaded.from_files else "control")
        for name, model in loaded.settings.models.items()
    )


def implicit_spec(loaded: Loaded, name: str, reference: str) -> DeploymentSpec:
    """A deployment of a stored model that nobody configured: ``[defaults]`` alone."""
    return _spec(name, Model.model_validate(_with_defaults(loaded, {"reference": reference})), "implicit")


def spec_from(loaded: Loaded, name: str, table: Mapping[str, Any]) -> DeploymentSpec:
    """A deployment as a control call describes it, checked as a file would be.

    Raises `UsageError`: ``invalid-name``, ``unknown-field`` or ``invalid-parameter``, with the member in ``param``.
    """
    if why := name_problem(name):
        raise UsageError(
            ErrorCode.INVALID_NAME,
            f"{name!r} cannot be a deployment's name: {why}.",
            remedy="Choose a name of 1 to 256 bytes without control characters.",
            param="name",
        )
    try:
        return _spec(name, Model.model_validate(_with_defaults(loaded, table)), "control")
    except ValidationError as exc:
        raise _refused(exc) from exc


def table_of(spec: DeploymentSpec) -> dict[str, Any]:
    """The keys of ``[models."NAME"]`` with the values of ``spec``: what a view shows and a file may hold."""
    values = {"reference": spec.reference} | {key: getattr(spec, key) for key in _KEYS}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _with_defaults(loaded: Loaded, table: Mapping[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = copy.deepcopy(dict(loaded.tables.get("defaults", {})))
    merge(whole, copy.deepcopy(dict(table)), lambda _: None)
    return whole


def _spec(name: str, model: Model, origin: str) -> DeploymentSpec:
    values = {key: getattr(model, key) for key in _KEYS}
    return DeploymentSpec(
        name=DeploymentName(name), reference=name if model.reference is None else model.reference, origin=origin,
        **values,
    )  # fmt: skip


def _refused(exc: ValidationError) -> UsageError:
    errors = exc.errors(include_url=False)
    error = errors[0]
    path = tuple(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = nearest(path[-1], sorted(Model.model_fields))
        return UsageError(
            ErrorCode.UNKNOWN_FIELD,
            f"{path[-1]} is not a key of a deployment" + (f"; did you mean {near}?" if near else "."),
            remedy="See the keys of [models] in the configuration's reference.",
            param=path[-1],
        )
    return UsageError(
        ErrorCode.INVALID_PARAMETER,
        sentence_of(error, ("models", "*", *path)).removeprefix('models."*".') + ".",
        remedy="Correct the value.",
        param=path[0],
    )


_UNMAPPED = set(_KEYS) - {field.name for field in fields(DeploymentSpec)}
if _UNMAPPED:
    raise AssertionError(f"keys of a model that no deployment carries: {sorted(_UNMAPPED)}")
