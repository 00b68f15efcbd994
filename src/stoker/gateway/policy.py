"""What a body may ask of the session that got it, and the few bytes that change on the way (R-63, R-88, R-89).

Nothing is forwarded to see what happens, and nothing is dropped: a route or an ask that the session's adapter does
not declare is refused before a connection is opened.
"""

from __future__ import annotations

import msgspec

from stoker.errors import ErrorCode, StokerError, UsageError, error_for
from stoker.gateway.dialect import Dialect
from stoker.gateway.peek import Buffer, DecodedMembers, Peeked, splice
from stoker.gateway.upstream import Pool
from stoker.ports.engines import Edits, Peek, Route
from stoker.runtime.tickets import Door


def declared_route(pool: Pool, dialect: Dialect, path: str) -> Route:
    """The engine's own route for this path; 400 ``unsupported-endpoint`` if it declares none."""
    route = pool.routes.get((dialect.name, "POST", path))
    if route is None:
        door = pool.door
        raise UsageError(
            ErrorCode.UNSUPPORTED_ENDPOINT,
            f"The model {door.deployment!r} does not offer {path}; its task is {door.accepted.capabilities.task}.",
            remedy="Use a model that offers this endpoint.",
            details={"offers": sorted(route.path for route in door.wire.policy.routes)},
        )
    return route


def body_for(door: Door, dialect: Dialect, route: Route, peeked: Peeked) -> list[Buffer]:
    """The bytes the engine gets; raises `StokerError` for what the session cannot do."""
    policy = door.wire.policy
    if policy.control and not policy.control.isdisjoint(peeked.members):
        name = min(policy.control & peeked.members.keys())
        raise _cannot(door, name, f"the member {name!r}, which steers the engine itself")
    for ask, member in dialect.asks(route.path, peeked).items():
        if ask == "choices":
            if peeked.choices > policy.max_choices:
                raise _cannot(door, member, f"{peeked.choices} choices; it gives at most {policy.max_choices}")
        elif policy.asks.get(ask, "no") == "no":
            raise _cannot(door, member, f"{ask.replace('_', ' ')} ({member!r})")
    edits = door.wire.edit(route, Peek(DecodedMembers(peeked)))
    changes: dict[str, bytes | None] = {}
    if isinstance(edits, Edits):
        changes |= edits.members
    elif edits is not None:
        raise error_for(edits.code, edits.message, remedy=edits.remedy, details=edits.details, param=edits.param)
    if peeked.model != door.served_name and "model" not in changes:
        changes["model"] = msgspec.json.encode(door.served_name)
    return splice(peeked.body, peeked.members, changes) if changes else [peeked.body]


def _cannot(door: Door, member: str, what: str) -> StokerError:
    return UsageError(
        ErrorCode.UNSUPPORTED_CAPABILITY,
        f"The model {door.deployment!r} cannot be asked for {what}.",
        remedy="Leave it out, or use a model that can do it.",
        param=member,
    )
