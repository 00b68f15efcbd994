"""Operations: what was asked for and is under way, or has ended (C-8, C-9)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from stoker.control import views
from stoker.control.desk import Cursor, Here, IfMatch, Limit, Prefer, answer, check_revision, operation_answer, page
from stoker.control.kept import KeptRoute
from stoker.ids import OperationId

router = APIRouter(prefix="/v1/operations", route_class=KeptRoute)


@router.get("", response_model=views.Page[views.Operation])
async def listed(
    desk: Here,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    state: Annotated[str | None, Query(max_length=32)] = None,
    limit: Limit = 500,
    cursor: Cursor = None,
) -> Response:
    """In the order they were asked for."""
    made = [
        desk.operation(each)
        for each in desk.runtime.operations()
        if kind in {None, each.kind} and state in {None, each.state}
    ]
    return page(views.Operation, made, _order, limit, cursor)


@router.get("/{operation_id}", response_model=views.Operation)
async def one(desk: Here, operation_id: str) -> Response:
    return answer(desk.operation(desk.runtime.operation(OperationId(operation_id))))


@router.post("/{operation_id}/cancel", status_code=202, response_model=views.Operation)
async def cancel(
    request: Request, desk: Here, operation_id: str, if_match: IfMatch = None, prefer: Prefer = None
) -> Response:
    """Acknowledged at once; one that is over answers how it ended."""
    if if_match is not None:
        check_revision(if_match, desk.runtime.operation(OperationId(operation_id)).revision)
    view = desk.runtime.cancel_operation(OperationId(operation_id))
    return await operation_answer(desk, request, view, prefer)


def _order(operation: views.Operation) -> tuple[float, int, str]:
    """By time; those of one moment by the number in their id."""
    number = operation.operation_id.rpartition("_")[2]
    return operation.created_at, int(number) if number.isdecimal() else 0, operation.operation_id
