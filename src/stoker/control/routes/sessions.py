"""Sessions: lives of engines, addressed by their generation (control section 2)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path, Query, Request
from starlette.responses import Response

from stoker.control import views
from stoker.control.desk import Cursor, Here, IfMatch, Limit, Prefer, answer, check_revision, operation_answer, page
from stoker.control.kept import KeptRoute
from stoker.control.schemas import ForceReleaseBody, StopBody
from stoker.errors import ErrorCode, UsageError
from stoker.ids import Generation

router = APIRouter(prefix="/v1/sessions", route_class=KeptRoute)
Number = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get("", response_model=views.Page[views.Session])
async def listed(
    desk: Here,
    deployment: Annotated[str | None, Query(max_length=256)] = None,
    phase: Annotated[str | None, Query(max_length=32)] = None,
    limit: Limit = 500,
    cursor: Cursor = None,
) -> Response:
    """By generation."""
    found = [
        views.Session.model_validate(each)
        for each in desk.runtime.sessions()
        if deployment in {None, each.deployment} and phase in {None, each.phase}
    ]
    return page(views.Session, found, lambda each: each.generation, limit, cursor)


@router.get("/{generation}", response_model=views.Session)
async def one(desk: Here, generation: Number) -> Response:
    return answer(views.Session.model_validate(desk.runtime.session(Generation(generation))))


@router.post("/{generation}/stop", status_code=202, response_model=views.Operation)
async def stop(
    request: Request,
    desk: Here,
    generation: Number,
    body: Annotated[StopBody, Body()] = StopBody(),  # noqa: B008 - frozen
    if_match: IfMatch = None,
    prefer: Prefer = None,
) -> Response:
    """End one life; on one whose stop is not confirmed it tries again."""
    check_revision(if_match, None)
    view = desk.runtime.stop(Generation(generation), mode=body.mode, drain_s=body.drain_s)
    return await operation_answer(desk, request, view, prefer)


@router.post("/{generation}/force-release", response_model=views.Session)
async def force_release(
    request: Request, desk: Here, generation: Number, body: ForceReleaseBody, if_match: IfMatch = None
) -> Response:
    """Promise the memory of an unconfirmed session to others; stops nothing (S-32)."""
    check_revision(if_match, None)
    if body.confirm != generation:
        raise UsageError(
            ErrorCode.INVALID_PARAMETER,
            f"confirm is {body.confirm} and the session is {generation}; nothing was released.",
            remedy="Send the generation of the session that is meant.",
            param="confirm",
        )
    by: str = request.scope["stoker.caller"]
    return answer(views.Session.model_validate(desk.runtime.force_release(Generation(generation), by=by)))
