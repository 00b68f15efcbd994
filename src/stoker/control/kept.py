"""The route class of the control API: validation told our way, and writes that are done once (C-2, C-10)."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from stoker.control import problems
from stoker.control.desk import Desk
from stoker.control.idempotency import digest_of
from stoker.errors import StokerError


class KeptRoute(APIRoute):
    """Errors become problem documents here, so that an answer that is kept is the whole answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        plain = super().get_route_handler()
        body = _body_of(self.endpoint)
        known = tuple(body.model_fields) if body is not None else ()

        async def told(request: Request) -> Response:
            desk: Desk = request.app.state.desk
            try:
                return await plain(request)
            except RequestValidationError as exc:
                error: StokerError = problems.from_validation(exc.errors(), known)
            except StokerError as exc:
                error = exc
            return problems.respond(error, request.scope["stoker.request_id"], desk.scrubber)

        async def handle(request: Request) -> Response:
            key = request.headers.get("idempotency-key")
            if request.method == "GET" or key is None:
                return await told(request)
            return await _once(request, key, body, lambda: told(request))

        return handle


async def _once(
    request: Request, key: str, body: type[BaseModel] | None, act: Callable[[], Awaitable[Response]]
) -> Response:
    desk: Desk = request.app.state.desk
    route = f"{request.method} {request.scope['path']}?{sorted(request.query_params.multi_items())}"
    digest = digest_of(_filled_in(await request.body(), body))
    try:
        return await desk.answers.once(request.scope["stoker.caller"], route, key, digest, act)
    except StokerError as error:
        return problems.respond(error, request.scope["stoker.request_id"], desk.scrubber)


def _filled_in(raw: bytes, body: type[BaseModel] | None) -> Any:
    """The body with its defaults; one that is not valid as it came, since its answer says so anyway."""
    if body is None:
        return None
    try:
        return body.model_validate(json.loads(raw or b"{}")).model_dump(mode="json")
    except ValidationError:
        return raw.hex()


def _body_of(endpoint: Callable[..., Any]) -> type[BaseModel] | None:
    """The model of the endpoint's body: its one parameter whose type is a model."""
    hints = typing.get_type_hints(endpoint)
    for name in inspect.signature(endpoint).parameters:
        kind = hints.get(name)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
