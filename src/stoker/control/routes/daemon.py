"""The daemon itself: status, health, snapshot, configuration, metrics (control section 2)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from stoker.control import views
from stoker.control.desk import Here, answer
from stoker.control.kept import KeptRoute
from stoker.errors import ErrorCode, error_for

router = APIRouter(route_class=KeptRoute)


@router.get("/livez", response_model=views.Alive)
async def livez() -> Response:
    """Answers as long as the daemon's loop turns; needs no token."""
    return answer(views.Alive())


@router.get("/readyz", response_model=views.Ready)
async def readyz(desk: Here) -> Response:
    """200 once requests are admitted, 503 before and while stopping; needs no token."""
    if desk.runtime.is_ready():
        return answer(views.Ready())
    if desk.runtime.status().state == "stopping":
        raise error_for(ErrorCode.SHUTTING_DOWN, "The daemon is stopping.", remedy="Start it again.", retry_after_s=5)
    raise error_for(ErrorCode.DAEMON_STARTING, "The daemon is starting.", remedy="Try again.", retry_after_s=1)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(desk: Here) -> Response:
    """Prometheus text. Scraping counts as no use."""
    return Response(desk.runtime.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/openapi.json")
async def openapi(request: Request) -> dict[str, Any]:
    """This description."""
    return dict(request.app.openapi())


@router.get("/v1/status", response_model=views.Status)
async def status(desk: Here) -> Response:
    made = views.Status.model_validate(desk.runtime.status())
    warnings = [desk.scrubber.text(each) for each in made.warnings]
    return answer(made.model_copy(update={"warnings": warnings}))


@router.get("/v1/health", response_model=views.Health)
async def health(desk: Here) -> Response:
    return answer(views.Health.model_validate(desk.runtime.health()))


@router.get("/v1/snapshot", response_model=views.Snapshot)
async def snapshot(desk: Here) -> Response:
    """Everything at one moment: what an event stream begins with."""
    return answer(desk.snapshot(desk.runtime.snapshot()))


@router.get("/v1/config", response_model=views.Config)
async def config(desk: Here) -> Response:
    """Secrets show as set: whoever made the view knows which values are."""
    return answer(views.Config.model_validate(dict(desk.config_view())))
