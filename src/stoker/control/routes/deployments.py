"""Deployments: what is wanted, by name (control section 2).

The name is everything between ``/deployments/`` and ``/-/``; it may be an alias.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request
from starlette.responses import Response

from stoker.config.names import name_problem
from stoker.control import views
from stoker.control.desk import Cursor, Desk, Here, IfMatch, Limit, Named, Prefer, answer, check_revision, page
from stoker.control.desk import operation_answer as operation
from stoker.control.kept import KeptRoute
from stoker.control.schemas import DeploymentBody, LoadBody, ReleaseBody, ScaleBody, UnloadBody
from stoker.domain.deployments import DeploymentSpec
from stoker.errors import ErrorCode, UsageError
from stoker.ids import DeploymentName

router = APIRouter(prefix="/v1/deployments", route_class=KeptRoute)
_TABLES = ("settings", "env", "labels", "sampling")


@router.get("", response_model=views.Page[views.Deployment])
async def listed(desk: Here, limit: Limit = 500, cursor: Cursor = None) -> Response:
    """By name."""
    made = [desk.deployment(each) for each in desk.runtime.deployments()]
    return page(views.Deployment, made, lambda each: each.name, limit, cursor)


@router.get("/{name}", response_model=views.Deployment)
async def one(desk: Here, name: Named) -> Response:
    return answer(desk.deployment(desk.runtime.deployment(name)))


@router.put("/{name}", response_model=views.Put)
async def put(
    request: Request,
    desk: Here,
    name: Annotated[str, Path(description="The deployment's own name.")],  # noqa: ARG001 - described here, read raw
    body: DeploymentBody,
    dry_run: Annotated[bool, Query(description="Say what would change, and change nothing.")] = False,
    if_match: IfMatch = None,
) -> Response:
    """Create or change a deployment. Keys that are left out are those of ``[defaults]``."""
    spelled: tuple[str, ...] = request.scope["stoker.names"]
    known = {each.name: each.revision for each in desk.runtime.deployments()}
    wanted = next((each for each in spelled if each in known), spelled[0])
    check_revision(if_match, known.get(wanted))
    put_answer = desk.runtime.put_deployment(_spec(desk, wanted, body), dry_run=dry_run)
    shown = put_answer["deployment"]
    made = views.Put(
        deployment=None if shown is None else desk.deployment(shown),
        created=put_answer["created"],
        changes=[desk.change(each) for each in put_answer["changes"]],
        restarts=list(put_answer["restarts"]),
    )
    return answer(made)


@router.delete("/{name}", status_code=202, response_model=views.Operation)
async def delete(
    request: Request, desk: Here, name: Named, if_match: IfMatch = None, prefer: Prefer = None
) -> Response:
    """Drain, then remove."""
    _check_revision(desk, name, if_match)
    return await operation(desk, request, desk.runtime.delete_deployment(name), prefer)


@router.post("/{name}/-/load", status_code=202, response_model=views.Operation)
async def load(
    request: Request,
    desk: Here,
    name: Named,
    body: Annotated[LoadBody, Body()] = LoadBody(),  # noqa: B008 - frozen
    if_match: IfMatch = None,
    prefer: Prefer = None,
) -> Response:
    """Make it ready; joins a load that runs, and lifts a hold."""
    _check_revision(desk, name, if_match)
    view = desk.runtime.load(name, replica=body.replica, settings=body.settings, load_timeout_s=body.load_timeout_s)
    return await operation(desk, request, view, prefer)


@router.post("/{name}/-/unload", status_code=202, response_model=views.Operation)
async def unload(
    request: Request,
    desk: Here,
    name: Named,
    body: Annotated[UnloadBody, Body()] = UnloadBody(),  # noqa: B008 - frozen
    if_match: IfMatch = None,
    prefer: Prefer = None,
) -> Response:
    """End its sessions. ``idle-only`` never waits: on a busy one it is refused."""
    _check_revision(desk, name, if_match)
    view = desk.runtime.unload(name, replica=body.replica, mode=body.mode, drain_s=body.drain_s)
    return await operation(desk, request, view, prefer)


@router.post("/{name}/-/pin", response_model=views.Deployment)
async def pin(desk: Here, name: Named, if_match: IfMatch = None) -> Response:
    _check_revision(desk, name, if_match)
    return answer(desk.deployment(desk.runtime.pin(name, pinned=True)))


@router.post("/{name}/-/unpin", response_model=views.Deployment)
async def unpin(desk: Here, name: Named, if_match: IfMatch = None) -> Response:
    _check_revision(desk, name, if_match)
    return answer(desk.deployment(desk.runtime.pin(name, pinned=False)))


@router.post("/{name}/-/scale", response_model=views.Deployment)
async def scale(desk: Here, name: Named, body: ScaleBody, if_match: IfMatch = None) -> Response:
    _check_revision(desk, name, if_match)
    return answer(desk.deployment(desk.runtime.scale(name, body.replicas)))


@router.post("/{name}/-/release", response_model=views.Deployment)
async def release(
    desk: Here,
    name: Named,
    body: Annotated[ReleaseBody, Body()] = ReleaseBody(),  # noqa: B008 - frozen
    if_match: IfMatch = None,
) -> Response:
    """End a hold."""
    _check_revision(desk, name, if_match)
    return answer(desk.deployment(desk.runtime.release_hold(name, body.replica)))


@router.get("/{name}/-/attempts", response_model=views.Page[views.Attempt])
async def attempts(
    desk: Here,
    name: Named,
    replica: Annotated[int | None, Query(ge=0, le=63)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 10,
) -> Response:
    """The stories of its last loads, newest first (S-23)."""
    found = await desk.runtime.attempts(name, replica, limit)
    items = [views.Attempt.model_validate(each) for each in found]
    shown = [
        each.model_copy(
            update={
                "message": desk.scrubber.text(each.message),
                "lines": [desk.scrubber.text(line) for line in each.lines],
            }
        )
        for each in items
    ]
    return answer(views.Page[views.Attempt](items=shown))


def _check_revision(desk: Desk, name: str, if_match: str | None) -> None:
    if if_match is not None:
        check_revision(if_match, desk.runtime.deployment(name).revision)


def _spec(desk: Desk, name: str, body: DeploymentBody) -> DeploymentSpec:
    """What was given, laid over the defaults: tables key by key, everything else whole."""
    if why := name_problem(name):
        raise UsageError(
            ErrorCode.INVALID_NAME,
            f"{name[:80]!r} cannot be a deployment's name: {why}.",
            remedy="Choose a name of 1 to 256 bytes without control characters.",
            param="name",
        )
    for alias in body.aliases:
        if why := name_problem(alias):
            raise UsageError(
                ErrorCode.INVALID_NAME, f"{alias[:80]!r} cannot be an alias: {why}.", remedy="Choose another.",
                param="aliases",
            )  # fmt: skip
    base = desk.runtime.defaults(name, body.reference or name)
    given: dict[str, Any] = {key: getattr(body, key) for key in body.model_fields_set if key != "reference"}
    for key in _TABLES:
        if key in given:
            given[key] = {**getattr(base, key), **given[key]}
    return replace(base, name=DeploymentName(name), reference=body.reference or name, origin="control", **given)
