"""Which paths, methods and query parameters there are, read from the published description (C-2).

What is described and what is served cannot differ: this table is made from the description, and asked before routing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.control.problems import unknown
from stoker.errors import ErrorCode, UsageError, error_for

_METHODS = frozenset({"get", "put", "post", "delete", "patch"})


class MethodRefusedError(Exception):
    """The path is there, the method is not. ``allow`` are those that are."""

    def __init__(self, error: UsageError, allow: str) -> None:
        super().__init__(error.message)
        self.error = error
        self.allow = allow


@dataclass(frozen=True, slots=True)
class Act:
    """One method of one path. ``queries``: the names of its query parameters."""

    queries: frozenset[str]
    takes_body: bool


@dataclass(frozen=True, slots=True)
class Table:
    """Every route: a pattern of its path, and its methods."""

    rows: tuple[tuple[re.Pattern[str], Mapping[str, Act]], ...]

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Table:
        return cls(
            tuple(
                (
                    _pattern(path),
                    {method.upper(): _act(described[method]) for method in described if method in _METHODS},
                )
                for path, described in description["paths"].items()
            )
        )

    def find(self, method: str, path: str) -> Act:
        """What ``method`` on ``path`` takes.

        Raises:
            UsageError: ``route-not-found``.
            MethodRefusedError: the path has other methods.
        """
        for pattern, acts in self.rows:
            if not pattern.fullmatch(path):
                continue
            if method in acts:
                return acts[method]
            allow = ", ".join(sorted(acts))
            message = f"{method[:20]} is not a method of this path; it has {allow}."
            raise MethodRefusedError(
                UsageError(ErrorCode.METHOD_NOT_ALLOWED, message, remedy="See /v1/openapi.json."), allow
            )
        raise error_for(
            ErrorCode.ROUTE_NOT_FOUND,
            "There is nothing at this path.",
            remedy="See /v1/openapi.json for what there is.",
        )


def check_query(act: Act, given: Iterable[str]) -> None:
    """Raise `UsageError` ``unknown-field`` for a parameter that the route does not take."""
    for name in given:
        if name not in act.queries:
            raise unknown(name, sorted(act.queries), "a query parameter of this route")


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+\}", path)
    return re.compile("[^/]+".join(map(re.escape, parts)))


def _act(described: Mapping[str, Any]) -> Act:
    queries = frozenset(each["name"] for each in described.get("parameters", ()) if each["in"] == "query")
    return Act(queries, "requestBody" in described)
