"""The routes Stoker answers by itself: never queued, never counted as use, never delayed by work (R-2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

import stoker
from stoker.errors import CapacityError, ErrorCode, StokerError, StoreError
from stoker.gateway.dialect import Dialect
from stoker.gateway.errors import Answer, json_answer
from stoker.gateway.routes import PublicRoute, RouteKind
from stoker.runtime.uses import Uses
from stoker.runtime.views import DeploymentView

_METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def free_answer(route: PublicRoute, uses: Uses, dialect: Dialect, request_id: str) -> Answer | None:
    """The answer of a free route; None if the path names a model that is not known now."""
    match route.kind:
        case RouteKind.ROOT:
            body = {"name": "stoker", "version": stoker.__version__}
        case RouteKind.LIVE:
            body = {"status": "ok"}
        case RouteKind.READY:
            if not uses.is_ready():
                raise _not_ready()
            body = {"status": "ready"}
        case RouteKind.METRICS:
            return json_answer(200, uses.metrics().encode(), request_id, _METRICS_TYPE)
        case RouteKind.MODELS:
            entries = [dialect.model_entry(view, _capabilities(uses, view)) for view in uses.deployments()]
            return json_answer(200, msgspec.json.encode({"object": "list", "data": entries}), request_id)
        case _:
            return _model_answer(route, uses, dialect, request_id)
    return json_answer(200, msgspec.json.encode(body), request_id)


def unknown_model(name: str, near: Sequence[str]) -> StokerError:
    """404 with names that are nearly right; no other model ever answers (R-91)."""
    hint = f" Nearly the same: {', '.join(near)}." if near else ""
    return StoreError(
        ErrorCode.MODEL_NOT_FOUND,
        f"There is no model {name!r} here.{hint}",
        remedy="List the models with GET /v1/models, or fetch one with: stoker pull.",
        details={"near": list(near)},
        param="model",
    )


def _model_answer(route: PublicRoute, uses: Uses, dialect: Dialect, request_id: str) -> Answer | None:
    for name in route.names:
        found = uses.find(name)
        if found is None:
            continue
        for view in uses.deployments():
            if view.name == found:
                entry = dialect.model_entry(view, _capabilities(uses, view))
                return json_answer(200, msgspec.json.encode(entry), request_id)
    return None


def _capabilities(uses: Uses, view: DeploymentView) -> tuple[str, ...] | None:
    """What its sessions can do; None where none has said so yet."""
    for session in uses.sessions() if view.sessions else ():
        if session.generation in view.sessions and session.phase == "ready":
            return session.capabilities
    return None


def _not_ready() -> StokerError:
    return CapacityError(
        ErrorCode.DAEMON_STARTING,
        "Stoker does not take work now: it is starting, stopping, or stuck.",
        remedy="Ask again shortly; `stoker status` says why.",
        retry_after_s=1,
    )
