"""One method for each route of the control API, typed answers, and waiting for operations (control sections 2, 3).

Nothing is retried here but the event stream: a request that failed may have had its effect, and only its caller knows
whether it may be repeated. Instances may be used by one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote

from stoker.client.discovery import STARTING_WAIT_S, Place
from stoker.client.events import EventStream
from stoker.client.logs import LogStream
from stoker.client.records import Deployment, Event, Operation, Page, Pool, R, Session, Status, read
from stoker.client.transport import Transport
from stoker.errors import ErrorCode, StokerError, error_for


def connect(
    *,
    socket: str | None = None,
    config_file: str | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    starting_wait_s: float = STARTING_WAIT_S,
) -> StokerClient:
    """A client of the daemon of this account, or of the one at ``socket``.

    Waits for one that is starting. Raises `HostError` ``daemon-unreachable`` if none runs; it never starts one.
    """
    if socket is None:
        place = Place(os.environ if environ is None else environ, config_file)
        socket = place.ready_owner(starting_wait_s).control_socket
    return StokerClient(socket, timeout_s=timeout_s)


class StokerClient:
    """Speaks to one daemon. ``address``: the path of its control socket, or ``http://host:port`` with a ``token``."""

    def __init__(self, address: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.transport = Transport(address, token, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    # -- looking ---------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        return read(Status, self._get("/status"))

    def health(self) -> Mapping[str, Any]:
        return self._get("/health")

    def snapshot(self) -> Mapping[str, Any]:
        return self._get("/snapshot")

    def deployments(self) -> Page[Deployment]:
        return self._list(Deployment, "/deployments")

    def deployment(self, name: str) -> Deployment:
        return read(Deployment, self._get(_named(name)))

    def sessions(self, *, deployment: str | None = None, phase: str | None = None) -> Page[Session]:
        return self._list(Session, "/sessions", deployment=deployment, phase=phase)

    def session(self, generation: int) -> Session:
        return read(Session, self._get(f"/sessions/{generation}"))

    def attempts(self, name: str) -> list[Mapping[str, Any]]:
        return list(self._pages(f"{_named(name)}/-/attempts"))

    def pools(self) -> Page[Pool]:
        return self._list(Pool, "/pools")

    def queue(self) -> Mapping[str, Any]:
        return self._get("/queue")

    def models(self) -> list[Mapping[str, Any]]:
        return list(self._pages("/models"))

    def model(self, reference: str) -> Mapping[str, Any]:
        return self._get(f"/models/{_quoted(reference)}")

    def engines(self) -> list[Mapping[str, Any]]:
        return list(self._pages("/engines"))

    def engine(self, engine_id: str) -> Mapping[str, Any]:
        return self._get(f"/engines/{quote(engine_id)}")

    def config(self) -> Mapping[str, Any]:
        return self._get("/config")

    # -- changing --------------------------------------------------------------------------------------------------

    def put(self, name: str, spec: Mapping[str, Any], *, dry_run: bool = False) -> Mapping[str, Any]:
        """Create or change a deployment: ``{deployment, created, changes[], restarts[]}``."""
        answer: Mapping[str, Any] = self.transport.call(
            "PUT", f"/v1{_named(name)}", query={"dry_run": True if dry_run else None}, body=spec
        )
        return answer

    def change(self, name: str, **keys: Any) -> Mapping[str, Any]:
        """Give a deployment other values for some of its keys, unless somebody else changes it at the same time.

        Raises `UsageError` ``revision-conflict`` then; ``invalid-parameter`` for a spec with hidden values.
        """
        known = self.deployment(name)
        answer: Mapping[str, Any] = self.transport.call(
            "PUT", f"/v1{_named(known.name)}", body={**known.spec, **keys}, if_match=f'"{known.revision}"'
        )
        return answer

    def delete(self, name: str) -> Operation:
        return self._operation("DELETE", _named(name))

    def load(
        self,
        name: str,
        *,
        replica: int | None = None,
        settings: Mapping[str, Any] | None = None,
        load_timeout_s: float | None = None,
    ) -> Operation:
        """Make a deployment ready; joins a load under way, and is over at once if it is ready (S-12)."""
        body = _given(replica=replica, settings=settings or None, load_timeout_s=load_timeout_s)
        return self._operation("POST", f"{_named(name)}/-/load", body)

    def unload(
        self, name: str, *, mode: str = "drain", drain_s: float | None = None, replica: int | None = None
    ) -> Operation:
        """``mode``: idle-only, drain, now or kill."""
        return self._operation("POST", f"{_named(name)}/-/unload", _given(mode=mode, drain_s=drain_s, replica=replica))

    def pin(self, name: str, *, pinned: bool = True) -> Deployment:
        return read(Deployment, self._post(f"{_named(name)}/-/{'pin' if pinned else 'unpin'}"))

    def scale(self, name: str, replicas: int) -> Deployment:
        return read(Deployment, self._post(f"{_named(name)}/-/scale", {"replicas": replicas}))

    def release(self, name: str, *, replica: int | None = None) -> Deployment:
        """End a hold."""
        return read(Deployment, self._post(f"{_named(name)}/-/release", _given(replica=replica)))

    def stop(self, generation: int, *, mode: str = "drain", drain_s: float | None = None) -> Operation:
        """On a session that is ``stop-unconfirmed`` it is a retry."""
        return self._operation("POST", f"/sessions/{generation}/stop", _given(mode=mode, drain_s=drain_s))

    def force_release(self, generation: int) -> Session:
        """Promise an unconfirmed session's memory to others; stops nothing (S-32)."""
        return read(Session, self._post(f"/sessions/{generation}/force-release", {"confirm": generation}))

    def set_budget(self, pool_id: str, budget_bytes: int | None, *, persist: bool = False) -> Pool:
        """None gives the budget back to the daemon's own rule."""
        body = {"budget_bytes": budget_bytes, "persist": persist}
        return read(Pool, self.transport.call("PATCH", f"/v1/pools/{quote(pool_id)}", body=body))

    def cancel_ticket(self, ticket_id: str) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self.transport.call("DELETE", f"/v1/queue/{quote(ticket_id)}")
        return answer

    # -- operations ------------------------------------------------------------------------------------------------

    def operations(self, *, kind: str | None = None, state: str | None = None) -> Page[Operation]:
        return Page(tuple(read(Operation, tree) for tree in self._pages("/operations", kind=kind, state=state)))

    def operation(self, operation_id: str) -> Operation:
        return read(Operation, self._get(f"/operations/{quote(operation_id)}"))

    def cancel(self, operation_id: str) -> Operation:
        return read(Operation, self._post(f"/operations/{quote(operation_id)}/cancel"))

    def wait(
        self,
        operation: Operation | str,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[Operation], None] = lambda _: None,
    ) -> Operation:
        """The operation once it has ended, however it ended: see `Operation.raise_if_failed`.

        Follows events, so a restart of the daemon or a lost connection is sat out. Leaving never cancels it.

        Raises:
            HostError: ``no-answer`` after ``timeout_s``, ``daemon-unreachable`` when the daemon stays away.
        """
        if isinstance(operation, str):
            operation = self.operation(operation)
        on_progress(operation)
        if operation.is_over:
            return operation
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for event in EventStream(self.transport, topics=("operation",), deadline=deadline):
            current = self._seen(operation, event)
            if current is None:
                continue
            on_progress(current)
            if current.is_over:
                return current
        raise AssertionError("an event stream ends only by raising")

    def _seen(self, operation: Operation, event: Event) -> Operation | None:
        """What an event says of the operation, None if nothing; a snapshot says it of every one it holds."""
        if event.event == "stream.snapshot-taken":
            for tree in event.get("operations", ()):
                if tree.get("operation_id") == operation.operation_id:
                    return read(Operation, tree)
            return self.operation(operation.operation_id)
        if event.event.startswith("operation.") and event.get("operation_id") == operation.operation_id:
            return read(Operation, event.raw)
        return None

    # -- streams ---------------------------------------------------------------------------------------------------

    def events(
        self, *, after: str | None = None, topics: tuple[str, ...] = (), patience_s: float = 15.0
    ) -> Iterator[Event]:
        """Every event from now on, a snapshot first; with ``after``, those since that id. Reconnects by itself."""
        return iter(EventStream(self.transport, after, topics, patience_s))

    def logs(
        self,
        name: str | None = None,
        *,
        generation: int | None = None,
        tail: int | None = None,
        follow: bool = False,
    ) -> LogStream:
        """Lines of a deployment's engine, of one life of it, or without a name the daemon's own."""
        path = "/logs" if name is None else f"{_named(name)}/-/logs"
        query = {"generation": generation, "tail": tail, "follow": True if follow else None}
        return LogStream(self.transport, f"/v1{path}", query, follow=follow)

    # -- one request -----------------------------------------------------------------------------------------------

    def _get(self, path: str, **query: Any) -> Mapping[str, Any]:
        return _object(self.transport.call("GET", f"/v1{path}", query=query), path)

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        return _object(self.transport.call("POST", f"/v1{path}", body=body or {}), path)

    def _operation(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Operation:
        return read(Operation, _object(self.transport.call(method, f"/v1{path}", body=body), path))

    def _list(self, kind: type[R], path: str, **query: Any) -> Page[R]:
        return Page(tuple(read(kind, tree) for tree in self._pages(path, **query)))

    def _pages(self, path: str, **query: Any) -> Iterator[Mapping[str, Any]]:
        """All items of a list, page after page (C-4)."""
        cursor: str | None = None
        while True:
            answer = self._get(path, cursor=cursor, **query)
            yield from answer["items"]
            cursor = answer.get("next")
            if cursor is None:
                return


def _named(name: str) -> str:
    return f"/deployments/{_quoted(name)}"


def _quoted(name: str) -> str:
    """A name in a path: slashes and colons stand plain, all else is encoded once (C-3)."""
    if not name:
        raise error_for(ErrorCode.INVALID_NAME, "The name is empty.", remedy="Name a deployment; see `stoker list`.")
    return quote(name, safe="/:")


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _object(answer: Any, path: str) -> Mapping[str, Any]:
    if isinstance(answer, Mapping):
        return answer
    raise _no_object(path)


def _no_object(path: str) -> StokerError:
    return error_for(
        ErrorCode.NO_ANSWER,
        f"/v1{path} was answered with something that is no object.",
        remedy="Use a client and a daemon of the same release.",
    )
