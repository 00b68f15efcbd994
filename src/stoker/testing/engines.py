"""The conformance suite: what every adapter must keep, foreign ones too (E-108).

Give it an `EngineCase` (an adapter with plans, builds and captured texts) and run each of `CHECKS` as a test of its
own. A check raises AssertionError with a sentence. Points that need the real program are the adapter's own tests.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar
from unittest import mock

from stoker.domain.context import LaunchPlan
from stoker.engines.arguments import check_arguments
from stoker.engines.registry import check_adapter
from stoker.engines.settings import aliases, marks, restart_values
from stoker.errors import ErrorCode
from stoker.ports.engines import (
    STAGE_ORDER,
    Accepted,
    Adapter,
    Build,
    BuildRefused,
    Captured,
    Edits,
    ExitSeen,
    InstallationSite,
    Peek,
    Problem,
    ReadySeen,
    Route,
    Sample,
    Seen,
    Site,
    Stage,
    Verdict,
)
from stoker.ports.units import Exit

T = TypeVar("T")
_EXCERPT_LINES, _LINE_CHARS = 8, 500


@dataclass(frozen=True, slots=True)
class LogCase:
    """A log and what it must be understood as. ``rank`` is its class in E-44; ``kind`` None: the start went well."""

    name: str
    lines: tuple[str, ...]
    kind: str | None = None
    cause: str = ""
    rank: int = 0
    numbers: Mapping[str, int] = field(default_factory=dict)
    decisive: str = ""
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class BuildCase:
    """One installed program: what it said, and the options its help text describes (empty: it takes no arguments)."""

    at: InstallationSite
    outputs: Mapping[str, Captured]
    options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LaunchCase:
    """A plan at a site and the exact command it must become; ``secrets`` may stand nowhere in it."""

    name: str
    plan: LaunchPlan
    site: Site
    argv: tuple[str, ...]
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorCase:
    """An error answer of the engine: the code and details it means, or None where it passes unchanged."""

    route: Route
    status: int
    body: bytes
    code: ErrorCode | None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EditCase:
    """A body's members and the changes they must get; a code: it is refused."""

    plan: LaunchPlan
    route: Route
    members: Mapping[str, Any]
    expected: Mapping[str, bytes | None] | ErrorCode


@dataclass(frozen=True, slots=True)
class EngineCase:
    """Everything the suite needs of one adapter. ``rounds``: random inputs for each method."""

    adapter: Adapter
    builds: tuple[BuildCase, ...]
    launches: tuple[LaunchCase, ...]
    logs: tuple[LogCase, ...]
    decoys: tuple[str, ...]
    ready: ReadySeen
    refused: tuple[tuple[ReadySeen, str], ...]
    errors: tuple[ErrorCase, ...]
    edits: tuple[EditCase, ...]
    metrics: tuple[tuple[str, Sample], ...]
    changes: Mapping[str, Any]
    rounds: int = 10_000


def check_registry_rules(case: EngineCase) -> None:
    """Point 1."""
    assert check_adapter(case.adapter) == []


def check_purity(case: EngineCase) -> None:
    """Point 2: the same answer twice, with every way to the outside shut."""
    with _shut():
        first = _ask_everything(case)
        second = _ask_everything(case)
    for name, answer in first.items():
        assert answer == second[name], f"{name} answers differently the second time"


def check_totality(case: EngineCase) -> None:
    """Point 3: any text, any bytes, any JSON end in a value."""
    chance = random.Random(108)
    adapter = case.adapter
    samples = [line for log in case.logs for line in log.lines] or [""]
    bodies = [error.body for error in case.errors] + [b"{}", b"[]", b"\xff"]
    wire = adapter.wire(case.ready.plan, _accepted(case))
    route = min(wire.policy.routes, key=lambda item: item.path)
    seen = Seen()
    for _ in range(case.rounds):
        text = _mutated(chance, chance.choice(samples))
        body = _mutated(chance, chance.choice(bodies).decode("latin-1")).encode("latin-1", "replace")
        seen = adapter.read_line(text, seen)
        assert isinstance(seen, Seen)
        adapter.read_metrics(text)
        assert isinstance(wire.is_loading(chance.choice((200, 400, 503)), body), bool)
        mapped = wire.map_error(route, chance.choice((400, 401, 404, 500, 501, 503)), body)
        assert mapped is None or isinstance(mapped, Problem)
        edited = wire.edit(route, Peek({chance.choice(_MEMBERS): _any_json(chance)}))
        assert edited is None or isinstance(edited, (Edits, Problem))
    for _ in range(case.rounds // 100):
        lines = tuple(_mutated(chance, chance.choice(samples)) for _ in range(chance.randrange(40)))
        assert isinstance(adapter.explain(ExitSeen(_any_exit(chance), "starting", lines)), Verdict)
        wire.describe_break(lines)
        ready = replace(case.ready, bodies={path: _mutated_bytes(chance, b) for path, b in case.ready.bodies.items()})
        assert isinstance(adapter.judge_ready(ready), (Accepted, Verdict))
        build = chance.choice(case.builds)
        outputs = {n: replace(c, stdout=_mutated_bytes(chance, c.stdout)) for n, c in build.outputs.items()}
        assert isinstance(adapter.read_build(build.at, outputs), (Build, BuildRefused))


def check_settings(case: EngineCase) -> None:
    """Point 4: every field is marked, described, and bounded if it is a number; words are unique."""
    model = case.adapter.settings
    schema = model.model_json_schema()
    assert json.dumps(schema) == json.dumps(model.model_json_schema()), "the JSON Schema changes between calls"
    for name, info in model.model_fields.items():
        assert name in marks(model), f"setting {name} has no mark"
        assert info.description, f"setting {name} has no text"
    for name, part in _number_schemas(schema):
        bounds = {"minimum", "exclusiveMinimum"} & part.keys(), {"maximum", "exclusiveMaximum"} & part.keys()
        assert all(bounds), f"number {name} has no range"
    words = [note for name in model.model_fields for note in aliases(model) if aliases(model)[note] == name]
    assert len(words) == len(set(words))
    assert not set(words) & model.model_fields.keys(), "an alias is also a field"


def check_reserved_options(case: EngineCase) -> None:
    """Point 5: what is not free is refused, in every spelling; all that we render is ours alone."""
    rules = case.adapter.traits.arguments
    assert not rules.free.keys() & rules.reserved.keys(), "an option is both free and reserved"
    options = frozenset().union(*(build.options for build in case.builds)) | rules.reserved.keys()
    for option in sorted(options - rules.free.keys()):
        for spelled in ((option, "x"), (f"{option}=x",), (option.replace("-", "_").replace("__", "--", 1), "x")):
            assert check_arguments(rules, spelled, {}), f"{spelled} may be given to the engine"
    for launch in case.launches:
        rendered = {item for item in _argv(case, launch) if item.startswith("--")} - set(launch.site.extra_args)
        assert not rendered & rules.free.keys(), f"{rendered & rules.free.keys()} is rendered and free"


def check_arguments_are_golden(case: EngineCase) -> None:
    """Point 6: the exact command for each build and plan; no secret, no value that reads as an option."""
    for launch in case.launches:
        argv = _argv(case, launch)
        assert argv == launch.argv, f"{launch.name}: {argv}"
        made = case.adapter.launch(launch.plan, launch.site)
        shown = json.dumps(
            [made.argv, made.shown, sorted((k, v) for k, (v, hidden) in made.files.items() if not hidden)]
        )
        for secret in launch.secrets:
            assert secret not in shown, f"{launch.name} shows a secret"
        assert made.endpoint.socket is None or len(made.endpoint.socket.encode()) <= 100


def check_equal_plans(case: EngineCase) -> None:
    """Point 7: equal plans give equal bytes; a restart field changes the load key and a request field does not."""
    for launch in case.launches:
        assert case.adapter.launch(launch.plan, launch.site) == case.adapter.launch(replace(launch.plan), launch.site)
    model = case.adapter.settings
    assert case.changes.keys() == model.model_fields.keys(), "each setting needs a changed value to try"
    before = restart_values(model())
    for name, value in case.changes.items():
        is_changed = restart_values(model.model_validate({name: value})) != before
        assert is_changed == (marks(model)[name] == "restart"), f"setting {name} is marked wrongly"


def check_stages(case: EngineCase) -> None:
    """Point 8: stages never fall, and a good start reaches verifying."""
    for log in case.logs:
        seen = Seen()
        for line in log.lines:
            following = case.adapter.read_line(line, seen)
            assert STAGE_ORDER[following.stage] >= STAGE_ORDER[seen.stage], f"{log.name}: the stage falls at {line!r}"
            seen = following
        if log.kind is None:
            assert seen.stage is Stage.VERIFYING, f"{log.name} ends in {seen.stage}"
            assert seen.listening, f"{log.name} never says that it listens"


def check_fatal_lines(case: EngineCase) -> None:
    """Point 9: no line of a good start is fatal."""
    for log in case.logs:
        fatal = [line for line in log.lines if case.adapter.read_line(line, Seen()).fatal]
        assert log.kind is not None or not fatal, f"{log.name}: {fatal[0]!r} is taken as fatal"


def check_exits(case: EngineCase) -> None:
    """Point 10: each failure gives its kind, cause and numbers, whatever decoys stand beside it."""
    failures = [log for log in case.logs if log.kind is not None]
    for log in failures:
        verdict = case.adapter.explain(ExitSeen(log.exit, "starting", log.lines))
        _check_verdict(log, verdict)
        for decoy in case.decoys:
            for place in (0, len(log.lines) // 2, len(log.lines)):
                lines = (*log.lines[:place], decoy, *log.lines[place:])
                again = case.adapter.explain(ExitSeen(log.exit, "starting", lines))
                assert (again.kind, again.cause, again.numbers) == (verdict.kind, verdict.cause, verdict.numbers), (
                    f"{log.name}: {decoy!r} changes the verdict"
                )
    for first in failures:
        for second in failures:
            if first.decisive and second.decisive and first.rank < second.rank:
                for lines in (first.lines + second.lines, second.lines + first.lines):
                    verdict = case.adapter.explain(ExitSeen(None, "starting", lines))
                    assert verdict.kind == first.kind, f"{first.name} beside {second.name} is {verdict.kind}"


def check_ready(case: EngineCase) -> None:
    """Point 11: what was planned is accepted, each smaller figure is refused."""
    accepted = _accepted(case)
    assert accepted.width == case.ready.plan.slots
    assert accepted.context_tokens == case.ready.plan.context_tokens
    for seen, cause in case.refused:
        verdict = case.adapter.judge_ready(seen)
        assert isinstance(verdict, Verdict), f"{cause} is accepted"
        assert (verdict.kind, verdict.cause) == ("ready-refused", cause)


def check_policy(case: EngineCase) -> None:
    """Point 12: every ask has an answer, and only what the session can do is ``yes`` or ``edit``."""
    accepted = _accepted(case)
    for word in ("yes", "no", "unknown"):
        flags = dict.fromkeys(accepted.capabilities.flags, word)
        capabilities = replace(accepted.capabilities, flags=flags)
        policy = case.adapter.wire(case.ready.plan, replace(accepted, capabilities=capabilities)).policy
        for ask, answer in policy.asks.items():
            assert answer in {"yes", "no", "edit"}, f"{ask}: {answer}"
            assert (answer == "no") == (word != "yes"), f"{ask} is {answer} although the capability is {word}"
        assert bool(policy.routes) == (word == "yes")
        assert all(route.method == "POST" for route in policy.routes)


def check_edits(case: EngineCase) -> None:
    """Point 13: exactly the expected members change, with JSON in them, and a second pass changes nothing."""
    accepted = _accepted(case)
    for edit in case.edits:
        wire = case.adapter.wire(edit.plan, accepted)
        done = wire.edit(edit.route, Peek(edit.members))
        if isinstance(edit.expected, ErrorCode):
            assert isinstance(done, Problem), f"{edit.members} is not refused"
            assert done.code is edit.expected
            continue
        assert not isinstance(done, Problem), f"{edit.members} is refused: {done}"
        changes = {} if done is None else dict(done.members)
        assert changes == edit.expected, f"{edit.members}: {changes}"
        after = dict(edit.members)
        for name, raw in changes.items():
            if raw is None:
                after.pop(name)
            else:
                after[name] = json.loads(raw)
        assert wire.edit(edit.route, Peek(after)) is None, f"{edit.members} is edited twice"


def check_errors(case: EngineCase) -> None:
    """Point 14: an answer of the engine becomes its code and numbers, and none of its text is repeated."""
    wire = case.adapter.wire(case.ready.plan, _accepted(case))
    for error in case.errors:
        problem = wire.map_error(error.route, error.status, error.body)
        assert (None if problem is None else problem.code) == error.code, f"{error.body!r}: {problem}"
        if problem is not None:
            assert dict(problem.details) == dict(error.details), f"{error.body!r}: {problem.details}"
            assert problem.message.endswith(".")


def check_metrics(case: EngineCase) -> None:
    """Point 15."""
    for text, sample in case.metrics:
        assert case.adapter.read_metrics(text) == sample


CHECKS: tuple[Callable[[EngineCase], None], ...] = (
    check_registry_rules,
    check_purity,
    check_totality,
    check_settings,
    check_reserved_options,
    check_arguments_are_golden,
    check_equal_plans,
    check_stages,
    check_fatal_lines,
    check_exits,
    check_ready,
    check_policy,
    check_edits,
    check_errors,
    check_metrics,
)

_MEMBERS = ("max_tokens", "max_completion_tokens", "response_format", "temperature", "tools", "input")


def _check_verdict(log: LogCase, verdict: Verdict) -> None:
    assert (verdict.kind, verdict.cause) == (log.kind, log.cause), f"{log.name}: {verdict.kind}, {verdict.cause}"
    assert verdict.kind in set(ErrorCode), f"{log.name}: {verdict.kind} is no error code"
    assert verdict.message.endswith("."), f"{log.name}: {verdict.message}"
    assert "{" not in verdict.message, f"{log.name}: {verdict.message}"
    assert dict(verdict.numbers) == dict(log.numbers), f"{log.name}: {verdict.numbers}"
    assert verdict.remedy, f"{log.name} has no remedy"
    assert len(verdict.excerpt) <= _EXCERPT_LINES
    assert all(len(line) <= _LINE_CHARS for line in verdict.excerpt)
    if log.decisive:
        assert verdict.decisive_line is not None, f"{log.name} has no deciding line"
        assert log.decisive in verdict.decisive_line, f"{log.name}: {verdict.decisive_line}"


def _accepted(case: EngineCase) -> Accepted:
    accepted = case.adapter.judge_ready(case.ready)
    assert isinstance(accepted, Accepted), f"the planned session is refused: {accepted}"
    return accepted


def _argv(case: EngineCase, launch: LaunchCase) -> tuple[str, ...]:
    return case.adapter.launch(launch.plan, launch.site).argv


def _ask_everything(case: EngineCase) -> dict[str, Any]:
    adapter, plan = case.adapter, case.ready.plan
    accepted = _accepted(case)
    wire = adapter.wire(plan, accepted)
    build = next((b for c in case.builds if isinstance(b := adapter.read_build(c.at, c.outputs), Build)), None)
    return {
        "probe_commands": [adapter.probe_commands(item.at) for item in case.builds],
        "read_build": [adapter.read_build(item.at, item.outputs) for item in case.builds],
        "refuse_model": adapter.refuse_model(plan.facts, plan.settings, build),
        "wishes": adapter.wishes(plan.settings),
        "capabilities": adapter.capabilities(plan.facts, plan.settings, build),
        "load_allowance_s": adapter.load_allowance_s(1 << 30, plan.settings),
        "launch": [adapter.launch(item.plan, item.site) for item in case.launches],
        "startup": adapter.startup(plan, build),
        "read_line": [adapter.read_line(line, Seen()) for log in case.logs for line in log.lines],
        "judge_ready": accepted,
        "explain": [adapter.explain(ExitSeen(log.exit, "starting", log.lines)) for log in case.logs],
        "policy": wire.policy,
        "edit": [wire.edit(item.route, Peek(item.members)) for item in case.edits],
        "map_error": [wire.map_error(item.route, item.status, item.body) for item in case.errors],
        "read_metrics": [adapter.read_metrics(text) for text, _ in case.metrics],
    }


class NotPureError(AssertionError):
    """An adapter reached for the world outside."""


@contextmanager
def _shut() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotPureError("an adapter opened a file, a socket, a clock, chance or the environment")

    doors = (
        (builtins, "open"), (os, "open"), (os, "stat"), (os, "getenv"), (os, "urandom"), (socket, "socket"),
        (time, "time"), (time, "monotonic"), (random, "random"),
    )  # fmt: skip
    patches = [mock.patch.object(owner, name, refuse) for owner, name in doors]
    patches.append(mock.patch.object(type(os.environ), "__getitem__", refuse))
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _number_schemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    tables = [schema, *schema.get("$defs", {}).values()]
    for table in tables:
        for name, part in table.get("properties", {}).items():
            for option in (part, *part.get("anyOf", ())):
                if option.get("type") in {"integer", "number"}:
                    yield name, option


def _mutated(chance: random.Random, text: str) -> str:
    """``text`` cut, doubled, or with noise in it."""
    place = chance.randrange(len(text) + 1)
    noise = "".join(chr(chance.choice((0, 10, 34, 40, 46, 48, 57, 123, 255, 0x2028))) for _ in range(3))
    return chance.choice((text, text[:place], text[place:], text[:place] + noise + text[place:], text * 2, noise * 9))


def _mutated_bytes(chance: random.Random, data: bytes) -> bytes:
    return _mutated(chance, data.decode("latin-1")).encode("latin-1", "replace")


def _any_json(chance: random.Random) -> Any:
    return _pick(
        chance,
        (None, True, -1, 0, 7, 1.5, 10**30, "", "x", [], {}, {"type": "json_schema"}, {"type": ["json_schema"]},
         {"type": "json_schema", "json_schema": {"schema": 3}}),
    )  # fmt: skip


def _any_exit(chance: random.Random) -> Exit | None:
    return _pick(chance, (None, Exit(1, None, None, 0.0, "engine"), Exit(None, 11, None, 0.0, "engine")))


def _pick(chance: random.Random, options: Sequence[T]) -> T:
    return options[chance.randrange(len(options))]
