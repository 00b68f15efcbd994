"""The control API as one application (control sections 1 to 5). Slow to import: start-up does it beside other work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import anyio
from fastapi import FastAPI

from stoker.control.desk import Desk
from stoker.control.entrance import Entrance
from stoker.control.idempotency import Answers
from stoker.control.problems import MEDIA_TYPE
from stoker.control.routes import daemon, deployments, models, operations, pools, sessions, streams
from stoker.control.table import Table
from stoker.observability.scrub import Scrubber
from stoker.runtime.wiring import Runtime

_PROBLEM = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "It cannot be done as asked.", **_PROBLEM},
    "5XX": {"description": "It cannot be done now, or Stoker failed.", **_PROBLEM},
}
# Before those with a name in the middle: a fixed path is never read as one.
_ROUTERS = (daemon, streams, deployments, sessions, models, pools, operations)


def create_app(
    runtime: Runtime,
    *,
    config_view: Callable[[], Mapping[str, Any]],
    token: str,
    scrubber: Scrubber | None = None,
    closing: anyio.Event | None = None,
    on_fault: Callable[[BaseException], None] = lambda _: None,
) -> FastAPI:
    """An application over ``runtime``. ``token`` is what TCP callers must show; ``closing`` ends open streams."""
    desk = Desk(
        runtime=runtime,
        config_view=config_view,
        token=token,
        scrubber=scrubber or Scrubber((token,)),
        closing=closing or anyio.Event(),
        answers=Answers(anyio.current_time),
        on_fault=on_fault,
    )
    app = FastAPI(
        title="Stoker control API",
        version=runtime.status().version,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_ERRORS,
    )
    app.state.desk = desk
    for each in _ROUTERS:
        app.include_router(each.router)
    table = functools.cache(lambda: Table.of(app.openapi()))
    app.add_middleware(Entrance, desk=desk, table=table)
    return app
