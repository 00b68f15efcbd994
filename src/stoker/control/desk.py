"""What every route is given: the runtime, and how its views become answers (C-4 to C-6, C-8)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, cast

import anyio
from fastapi import Depends, Header, Path, Query, Request
from starlette.responses import Response

from stoker.control import views
from stoker.control.idempotency import Answers
from stoker.errors import ErrorCode, UsageError
from stoker.ids import OperationId
from stoker.observability.scrub import Scrubber
from stoker.runtime.views import DeploymentView, OperationView, Snapshot
from stoker.runtime.wiring import Runtime

MOST_ITEMS = 500
_LONGEST_WAIT_S = 300
_FOREIGN = frozenset({"env", "settings", "sampling", "labels"})

V = TypeVar("V", bound=views.View)


@dataclass(slots=True)
class Desk:
    """``closing`` is set when the listener ends: streams that nobody else would end, end with it."""

    runtime: Runtime
    config_view: Callable[[], Mapping[str, Any]]
    token: str
    scrubber: Scrubber
    closing: anyio.Event
    answers: Answers
    on_fault: Callable[[BaseException], None]
    wall: Callable[[], float] = time.time

    # -- views -----------------------------------------------------------------------------------------------------

    def deployment(self, view: DeploymentView | Mapping[str, Any]) -> views.Deployment:
        return self._shown(views.Deployment.model_validate(view))

    def operation(self, view: OperationView | Mapping[str, Any]) -> views.Operation:
        made = views.Operation.model_validate(view)
        return made.model_copy(update={"error": self._problem(made.error)})

    def snapshot(self, view: Snapshot | Mapping[str, Any]) -> views.Snapshot:
        made = views.Snapshot.model_validate(view)
        operations = [each.model_copy(update={"error": self._problem(each.error)}) for each in made.operations]
        return made.model_copy(
            update={"deployments": [self._shown(each) for each in made.deployments], "operations": operations}
        )

    def _shown(self, made: views.Deployment) -> views.Deployment:
        """A deployment's keys are those a file may hold; values that are secrets are not shown (C-46)."""
        spec = {name: value for name, value in made.spec.items() if name not in {"name", "origin"}}
        spec = {name: self.setting(name, value) for name, value in spec.items()}
        return made.model_copy(update={"spec": spec, "last_error": self._problem(made.last_error)})

    def change(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """A change of one key, with both values as they are shown."""
        name = str(change["key"]).rpartition(".")[2]
        return {**change, "old": self.setting(name, change["old"]), "new": self.setting(name, change["new"])}

    def setting(self, name: str, value: Any) -> Any:
        """One of a deployment's keys as it is shown. Names that others chose, and arguments, may hold secrets."""
        if name == "engine_args":
            return self.scrubber.argv([str(each) for each in value or ()])
        if name in _FOREIGN:
            return self.scrubber.value(value, foreign=True)
        return value

    def _problem(self, made: views.Problem | None) -> views.Problem | None:
        if made is None:
            return None
        return made.model_copy(
            update={
                "message": self.scrubber.text(made.message),
                "details": self.scrubber.value(made.details),
            }
        )


async def _desk(request: Request) -> Desk:
    return cast("Desk", request.app.state.desk)


async def _named(
    request: Request,
    name: Annotated[str, Path(description="A deployment's name or alias; slashes and colons may stand plain.")],  # noqa: ARG001
) -> str:
    """The name in the path: decoded, or as it was spelled if only that is known (R-92)."""
    spellings: tuple[str, ...] = request.scope["stoker.names"]
    runtime = (await _desk(request)).runtime
    return next((each for each in spellings if runtime.find(each) is not None), spellings[0])


Here = Annotated[Desk, Depends(_desk)]
Named = Annotated[str, Depends(_named)]
IfMatch = Annotated[str | None, Header(description="The revision that the write is meant for.")]
Prefer = Annotated[str | None, Header(description="wait=N: hold the answer up to N seconds, 300 at most.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS)]
Cursor = Annotated[str | None, Query(max_length=4096)]


def answer(view: views.View, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(view.model_dump_json(), status, dict(headers or {}), "application/json")


def page(kind: type[V], made: Sequence[V], key: Callable[[V], Any], limit: int, cursor: str | None) -> Response:
    """One page of ``made`` in the order of ``key``, which names each item once (C-4)."""
    ordered = sorted(made, key=key)
    if cursor is not None:
        after = _read_cursor(cursor)
        try:
            ordered = [each for each in ordered if key(each) > after]
        except TypeError:
            raise _bad_cursor() from None
    items = ordered[:limit]
    following = _cursor(key(items[-1])) if len(ordered) > limit else None
    return answer(views.Page[kind](items=items, next=following))  # type: ignore[valid-type]


def check_revision(if_match: str | None, revision: int | None) -> None:
    """A write meant for another revision changes nothing. ``revision`` None: the thing is not there, or has none."""
    if if_match is None or (if_match.strip() == "*" and revision is not None):
        return
    if if_match.strip().strip('"') != str(revision):
        raise UsageError(
            ErrorCode.REVISION_CONFLICT,
            f"The write is meant for another revision; it is {'none' if revision is None else revision} now.",
            remedy="Read it again and decide anew.",
            details={"revision": revision},
        )


async def operation_answer(desk: Desk, request: Request, view: OperationView, prefer: str | None) -> Response:
    """202 with the operation and where to look; held back as the caller prefers (C-8)."""
    headers = {"location": f"/v1/operations/{view.operation_id}"}
    wait_s = _wait_of(prefer)
    if wait_s is not None:
        headers["preference-applied"] = f"wait={wait_s}"
        view = await _wait(desk, request, view, wait_s)
    return answer(desk.operation(view), 202, headers)


async def _wait(desk: Desk, request: Request, view: OperationView, wait_s: int) -> OperationView:
    """The operation after ``wait_s`` or at its end; sooner if the caller leaves or the listener ends."""
    operation_id = OperationId(view.operation_id)
    async with anyio.create_task_group() as tasks:

        async def leave_with_caller() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async def leave_with_listener() -> None:
            await desk.closing.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(leave_with_caller)
        tasks.start_soon(leave_with_listener)
        await desk.runtime.wait_operation(operation_id, wait_s)
        tasks.cancel_scope.cancel()
    return desk.runtime.operation(operation_id)


def _wait_of(prefer: str | None) -> int | None:
    """The seconds of ``wait=N`` among what a caller prefers; None without it."""
    for preference in (prefer or "").split(","):
        name, _, value = preference.partition("=")
        if name.strip().lower() != "wait":
            continue
        seconds = value.strip().strip('"')
        if not (seconds.isascii() and seconds.isdecimal()) or int(seconds[:9]) > _LONGEST_WAIT_S:
            raise UsageError(
                ErrorCode.INVALID_PARAMETER,
                f"Prefer: wait must be 0 to {_LONGEST_WAIT_S} whole seconds.",
                remedy="Ask for less, and ask again.",
                param="Prefer",
            )
        return int(seconds)
    return None


def _cursor(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> Any:
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        raise _bad_cursor() from None
    return tuple(key) if isinstance(key, list) else key


def _bad_cursor() -> UsageError:
    return UsageError(
        ErrorCode.INVALID_PARAMETER,
        "cursor is not one that this list gave out.",
        remedy="Begin again without it.",
        param="cursor",
    )
