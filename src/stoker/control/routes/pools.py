"""Pools of memory, and who waits for them: the queue (control section 2)."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from stoker.control import views
from stoker.control.desk import Cursor, Here, IfMatch, Limit, answer, check_revision, page
from stoker.control.kept import KeptRoute
from stoker.control.schemas import BudgetBody

router = APIRouter(prefix="/v1", route_class=KeptRoute)


@router.get("/pools", response_model=views.Page[views.Pool])
async def pools(desk: Here, limit: Limit = 500, cursor: Cursor = None) -> Response:
    """By id."""
    made = [views.Pool.model_validate(each) for each in desk.runtime.pools()]
    return page(views.Pool, made, lambda each: each.pool_id, limit, cursor)


@router.patch("/pools/{pool_id}", response_model=views.Pool)
async def set_budget(desk: Here, pool_id: str, body: BudgetBody, if_match: IfMatch = None) -> Response:
    """Change what may start; a lower budget stops nothing."""
    check_revision(if_match, None)
    return answer(views.Pool.model_validate(desk.runtime.set_budget(pool_id, body.budget_bytes)))


@router.get("/queue", response_model=views.Queue)
async def queue(desk: Here) -> Response:
    """Every deployment with its limits and who waits for it, in order."""
    waiting: dict[str, list[views.Ticket]] = {}
    for ticket in desk.runtime.queue():
        waiting.setdefault(ticket.deployment, []).append(views.Ticket.model_validate(ticket))
    rows = [
        views.DeploymentQueue(
            name=each.name,
            places=each.places,
            in_flight=each.in_flight,
            waiting=each.waiting,
            limits=views.QueueLimits.model_validate(dict(each.spec)),
            tickets=sorted(waiting.get(each.name, ()), key=lambda ticket: (ticket.position or 0, ticket.queued_at)),
        )
        for each in sorted(desk.runtime.deployments(), key=lambda each: each.name)
    ]
    return answer(views.Queue(deployments=rows))


@router.delete("/queue/{ticket}", response_model=views.Cancelled)
async def cancel(desk: Here, ticket: str, if_match: IfMatch = None) -> Response:
    """End a request by its ticket's id or its own, waiting or running (R-25)."""
    check_revision(if_match, None)
    was_waiting = any(ticket in {each.ticket_id, each.request_id} for each in desk.runtime.queue())
    ticket_id = desk.runtime.cancel_ticket(ticket)
    return answer(views.Cancelled(ticket_id=ticket_id, state="cancelled" if was_waiting else "granted"))
