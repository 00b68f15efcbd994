"""Stored models, and the engines that can run them (control section 2)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from stoker.control import views
from stoker.control.desk import Cursor, Here, Limit, answer, page
from stoker.control.kept import KeptRoute
from stoker.errors import ErrorCode, StoreError, error_for

router = APIRouter(prefix="/v1", route_class=KeptRoute)


@router.get("/models", response_model=views.Page[views.Model])
async def models(desk: Here, limit: Limit = 500, cursor: Cursor = None) -> Response:
    """By reference."""
    made = [views.Model.model_validate(each) for each in await desk.runtime.models()]
    return page(views.Model, made, lambda each: (each.reference, each.model_id), limit, cursor)


@router.get("/models/{ref}", response_model=views.Model)
async def model(
    request: Request,
    desk: Here,
    ref: Annotated[str, Path(description="A reference or a name; slashes and colons may stand plain.")],  # noqa: ARG001
) -> Response:
    first, *others = request.scope["stoker.names"]
    try:
        found = await desk.runtime.model(first)
    except StoreError as error:
        if error.code is not ErrorCode.MODEL_NOT_FOUND or not others:
            raise
        found = await desk.runtime.model(others[0])
    return answer(views.Model.model_validate(found))


@router.get("/engines", response_model=views.Page[views.Engine])
async def engines(desk: Here, limit: Limit = 500, cursor: Cursor = None) -> Response:
    """By id."""
    made = [views.Engine.model_validate(each) for each in desk.runtime.engines()]
    return page(views.Engine, made, lambda each: each.engine_id, limit, cursor)


@router.get("/engines/{engine_id}", response_model=views.Engine)
async def engine(desk: Here, engine_id: str) -> Response:
    for each in desk.runtime.engines():
        if each["engine_id"] == engine_id:
            return answer(views.Engine.model_validate(each))
    raise error_for(
        ErrorCode.ENGINE_NOT_FOUND, f"There is no engine {engine_id[:80]!r}.", remedy="See `stoker engines`."
    )
