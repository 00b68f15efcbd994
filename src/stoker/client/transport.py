"""HTTP to one daemon, over its Unix socket or TCP; every failure is a `StokerError`.

What stands in the answers is not known here. httpx2 is imported with the first request, so that a program that only
imports the client starts fast.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker.client.discovery import unreachable
from stoker.client.problems import error_from
from stoker.errors import ErrorCode, error_for

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 5.0


@dataclass(frozen=True)
class Transport:
    """``address``: a socket's path, or ``http://host:port``. ``timeout_s`` bounds the wait for each answer's bytes."""

    address: str
    token: str | None = None
    timeout_s: float = 30.0

    @cached_property
    def _http(self) -> httpx2.Client:
        import httpx2

        is_tcp = self.address.startswith(("http://", "https://"))
        headers = {"accept": "application/json"} | ({"authorization": f"Bearer {self.token}"} if self.token else {})
        # A Unix socket and loopback need no certificates, and loading those of the system takes longer than an answer.
        verify = True if self.address.startswith("https://") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx2.Client(
            base_url=self.address if is_tcp else "http://stoker",
            transport=httpx2.HTTPTransport(verify=verify, trust_env=False, uds=None if is_tcp else self.address),
            headers=headers,
            timeout=self._timeout(self.timeout_s),
            trust_env=False,
        )

    def knock(self) -> None:
        """Raise ``daemon-unreachable`` if nobody listens on the Unix socket; nothing is sent.

        The HTTP library forgets to close a socket whose connection is refused, so it is not the one to find that out.
        """
        if self.address.startswith(("http://", "https://")):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_CONNECT_S)
            try:
                probe.connect(self.address)
            except OSError as exc:
                raise unreachable(f"Nothing answers at {self.address}.", address=self.address) from exc

    def close(self) -> None:
        if "_http" in self.__dict__:
            self._http.close()

    def call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None, **headers: str
    ) -> Any:
        """The JSON answer of one request; raises the error that the daemon answered."""
        if "_http" not in self.__dict__:
            self.knock()
        with self._caught():
            answer = self._http.request(
                method,
                path,
                params=_params(query),
                json=body,
                headers={k.replace("_", "-"): headers[k] for k in headers},
            )
        return _checked(answer)

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float | None,
    ) -> Iterator[tuple[str, Iterator[str]]]:
        """The answer's content type and its lines as they come; silence longer than ``silence_s`` is ``no-answer``."""
        self.knock()
        with self._caught():
            streamed = self._http.stream(
                method, path, params=_params(query), json=body, headers=dict(headers or {}),
                timeout=self._timeout(silence_s),
            )  # fmt: skip
            with streamed as answer:
                if answer.is_error:
                    answer.read()
                    _checked(answer)
                yield answer.headers.get("content-type", "").partition(";")[0], answer.iter_lines()

    def _timeout(self, seconds: float | None) -> httpx2.Timeout:
        import httpx2

        connect_s = _CONNECT_S if seconds is None else min(_CONNECT_S, seconds)
        return httpx2.Timeout(seconds, connect=connect_s)

    @contextmanager
    def _caught(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as exc:
            raise unreachable(f"Nothing answers at {self.address}.", address=self.address) from exc
        except httpx2.TimeoutException as exc:
            raise error_for(
                ErrorCode.NO_ANSWER,
                f"The daemon at {self.address} did not answer in time.",
                remedy="Try again, allow more with --timeout, or see `stoker logs`.",
            ) from exc
        except httpx2.TransportError as exc:
            raise unreachable(
                f"The connection to {self.address} broke before the answer was whole.", address=self.address
            ) from exc


def _params(query: Mapping[str, Any] | None) -> dict[str, str]:
    """Query members that were given; booleans and lists as the API reads them."""
    shown = {}
    for name, value in (query or {}).items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"  # noqa: PLW2901 - the same value, spelled for the wire
        shown[name] = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return shown


def _checked(answer: httpx2.Response) -> Any:
    try:
        body = json.loads(answer.content) if answer.content else None
    except ValueError:
        body = None
    if not answer.is_error:
        return body
    if isinstance(body, Mapping) and "code" in body:
        raise error_from(body)
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
        raise error_from(gateway_problem(body["error"]))
    raise error_for(
        ErrorCode.NO_ANSWER,
        f"{answer.request.url.path} was answered {answer.status_code}, by something that is no Stoker daemon.",
        remedy="Check the address.",
    )


def gateway_problem(error: Mapping[str, Any]) -> dict[str, Any]:
    """A Problem from the error object of the gateway's OpenAI dialect, whose ``stoker`` member has the rest."""
    more = error.get("stoker")
    return {"code": error.get("code"), **(more if isinstance(more, Mapping) else {}), "message": error.get("message")}
