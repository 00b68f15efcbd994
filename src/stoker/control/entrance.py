"""What every request passes before a route sees it, and every answer on its way out (C-1 to C-3, C-11).

In this order: Host and Origin, who is calling, is there such a route, is the daemon up, is the body usable. A refusal
is a problem document. A defect of ours is told without a word of its trace, which goes to the log under an id.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.control import auth, bodies, gate, paths, problems
from stoker.control.desk import Desk
from stoker.control.table import Act, MethodRefusedError, Table, check_query
from stoker.errors import ErrorCode, StokerError, UsageError, error_for
from stoker.runtime.effects import KernelFault

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Entrance:
    """The one door of the application. ``table`` is asked lazily: routes are complete only after it is made."""

    app: ASGIApp
    desk: Desk
    table: Callable[[], Table]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["stoker.request_id"] = request_id = f"req_{secrets.token_hex(8)}"
        has_begun = False

        async def out(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                headers["cache-control"] = "no-store"
                headers["x-content-type-options"] = "nosniff"
                headers["x-request-id"] = request_id
            await send(message)

        more: dict[str, str] = {}
        error: StokerError | None = None
        try:
            await self._pass(scope, receive, out)
        except bodies.GoneError:
            return
        except MethodRefusedError as exc:
            error = exc.error
            more["allow"] = exc.allow
        except StokerError as exc:
            error = exc
        except KernelFault as fault:
            self.desk.on_fault(fault)
            raise
        except Exception:  # the border between a defect and its caller
            if has_begun:
                raise
            error_id = f"err_{secrets.token_hex(6)}"
            _log.exception("A control request failed.", extra={"request_id": request_id, "error_id": error_id})
            error = problems.internal(error_id)
        if error is None:
            return
        if has_begun:
            raise error
        await problems.respond(error, request_id, self.desk.scrubber, more)(scope, receive, out)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await self._admit(scope, receive)
        await self.app(scope, bodies.again(body, receive), send)

    async def _admit(self, scope: Scope, receive: Receive) -> bytes:
        """Everything that is checked before routing; the body, read whole."""
        headers = Headers(scope=scope)
        peer = scope.get("state", {}).get(auth.PEER_UID)
        if peer is None:
            gate.check(scope["headers"], http10=scope.get("http_version") == "1.0")
        target = paths.read(_raw_path(scope))
        scope["path"], scope["stoker.names"] = target.path, target.names
        scope["stoker.caller"] = self._caller(scope, peer)
        act = self.table().find(scope["method"], target.path)
        check_query(act, QueryParams(scope["query_string"]).keys())
        if scope["method"] == "GET":
            return b""
        body = await bodies.read(receive, headers.get("content-length"))
        _check_body(act, body, headers.get("content-type"))
        if self.desk.runtime.status().state == "starting":
            raise error_for(
                ErrorCode.DAEMON_STARTING, "The daemon is starting; nothing was changed.", remedy="Try again.",
                retry_after_s=1,
            )  # fmt: skip
        return body

    def _caller(self, scope: Scope, peer: Any) -> str:
        if scope["path"] in auth.OPEN_PATHS:
            return "anyone"
        if peer is not None:
            return auth.check_peer(peer, os.getuid())
        return auth.check_token(scope["headers"], self.desk.token)


def _raw_path(scope: Scope) -> bytes:
    raw: bytes | None = scope.get("raw_path")
    return raw if raw is not None else scope["path"].encode(errors="surrogateescape")


def _check_body(act: Act, body: bytes, content_type: str | None) -> None:
    if not body:
        return
    bodies.check(body, content_type)
    if not act.takes_body and body.strip() != b"{}":
        raise UsageError(ErrorCode.UNKNOWN_FIELD, "This route takes no body.", remedy="Send none, or an empty object.")
