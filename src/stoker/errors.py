"""Every error Stoker can answer with: one code, one row, one meaning in every dialect.

The table is the only place that knows HTTP status, public error types, retry advice and exit codes. A code
without a row, or in two rows, fails at import. Sentences are made where the error is raised; they carry the
numbers, and ``remedy`` says what to do (C-11, C-12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """Who has to act; each family is one CLI exit code."""

    USAGE = "usage"
    CAPACITY = "capacity"
    ENGINE = "engine"
    HOST = "host"
    STORE = "store"
    UNCONFIRMED = "unconfirmed"
    INTERNAL = "internal"


EXIT_CODES = {
    Family.USAGE: 2,
    Family.CAPACITY: 3,
    Family.ENGINE: 4,
    Family.HOST: 5,
    Family.STORE: 6,
    Family.UNCONFIRMED: 7,
    Family.INTERNAL: 70,
}


class ErrorCode(StrEnum):
    """Every code of C-12, in the order of its table. Codes are added, never renamed."""

    MALFORMED_REQUEST = "malformed-request"
    INVALID_JSON = "invalid-json"
    DUPLICATE_FIELD = "duplicate-field"
    UNKNOWN_FIELD = "unknown-field"
    INVALID_PARAMETER = "invalid-parameter"
    INVALID_NAME = "invalid-name"
    INVALID_CONFIG = "invalid-config"
    UNSUPPORTED_ENDPOINT = "unsupported-endpoint"
    UNSUPPORTED_CAPABILITY = "unsupported-capability"
    UNSUPPORTED_PARAMETER = "unsupported-parameter"
    CONTEXT_LENGTH_EXCEEDED = "context-length-exceeded"
    REMOTE_MEDIA_REFUSED = "remote-media-refused"
    REFERENCE_INVALID = "reference-invalid"
    REFERENCE_AMBIGUOUS = "reference-ambiguous"
    NAME_UNSAFE = "name-unsafe"
    WRONG_KIND = "wrong-kind"
    INVALID_KEY = "invalid-key"
    SCOPE_MISSING = "scope-missing"
    HOST_NOT_ALLOWED = "host-not-allowed"
    ORIGIN_NOT_ALLOWED = "origin-not-allowed"
    PRIORITY_NOT_ALLOWED = "priority-not-allowed"
    ROUTE_NOT_FOUND = "route-not-found"
    DEPLOYMENT_NOT_FOUND = "deployment-not-found"
    SESSION_NOT_FOUND = "session-not-found"
    UNIT_NOT_FOUND = "unit-not-found"
    TICKET_NOT_FOUND = "ticket-not-found"
    REQUEST_NOT_FOUND = "request-not-found"
    OPERATION_NOT_FOUND = "operation-not-found"
    ENGINE_NOT_FOUND = "engine-not-found"
    CONVERSATION_NOT_FOUND = "conversation-not-found"
    KEY_NOT_FOUND = "key-not-found"
    POOL_NOT_FOUND = "pool-not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    EXPECTATION_FAILED = "expectation-failed"
    BODY_TIMEOUT = "body-timeout"
    NOT_LEGAL_NOW = "not-legal-now"
    SESSION_BUSY = "session-busy"
    TICKET_NOT_WAITING = "ticket-not-waiting"
    REQUEST_CANCELLED = "request-cancelled"
    LOAD_CANCELLED = "load-cancelled"
    LOAD_SUPERSEDED = "load-superseded"
    REVISION_CONFLICT = "revision-conflict"
    IDEMPOTENCY_CONFLICT = "idempotency-conflict"
    DEPLOYMENT_FROM_FILE = "deployment-from-file"
    ENGINE_IN_USE = "engine-in-use"
    MODEL_BEING_REMOVED = "model-being-removed"
    ENGINE_BEING_REMOVED = "engine-being-removed"
    DAEMON_ALREADY_RUNNING = "daemon-already-running"
    SCOPE_DUPLICATE = "scope-duplicate"
    SESSION_GONE = "session-gone"
    REQUEST_TOO_LARGE = "request-too-large"
    HEADER_TOO_LARGE = "header-too-large"
    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    TOO_MANY_OPEN = "too-many-open"
    RATE_LIMITED = "rate-limited"
    GATEWAY_BUSY = "gateway-busy"
    DAEMON_STARTING = "daemon-starting"
    NOT_LOADED = "not-loaded"
    ROOM_DENIED = "room-denied"
    MEMORY_BUSY = "memory-busy"
    OUTSIDE_MEMORY = "outside-memory"
    MEMORY_NOT_RETURNED = "memory-not-returned"
    OVERDRAFT = "overdraft"
    SESSION_STOPPED = "session-stopped"
    SHUTTING_DOWN = "shutting-down"
    NEVER_FITS = "never-fits"
    BLOCKED_BY_PIN = "blocked-by-pin"
    DEPLOYMENT_REMOVED = "deployment-removed"
    CRASH_LOOP_HELD = "crash-loop-held"
    LEDGER_UNAVAILABLE = "ledger-unavailable"
    RESIDENT_BELOW_MINIMUM = "resident-below-minimum"
    EXCLUSIVE = "exclusive"
    WOULD_DEADLOCK = "would-deadlock"
    ENGINE_EXITED = "engine-exited"
    ENGINE_FAULT = "engine-fault"
    ENGINE_FAILED = "engine-failed"
    ENGINE_BAD_ANSWER = "engine-bad-answer"
    ENGINE_CONNECTION_LOST = "engine-connection-lost"
    STREAM_INCOMPLETE = "stream-incomplete"
    KILLED = "killed"
    HEARTBEAT_LOST = "heartbeat-lost"
    HUNG = "hung"
    DEVICE_OUT_OF_MEMORY = "device-out-of-memory"
    CONTEXT_TOO_LARGE = "context-too-large"
    MODEL_UNSUPPORTED = "model-unsupported"
    BAD_SETTING = "bad-setting"
    ILLEGAL_INSTRUCTION = "illegal-instruction"
    INSTALLATION_BROKEN = "installation-broken"
    READY_REFUSED = "ready-refused"
    ENGINE_NOT_INSTALLED = "engine-not-installed"
    LOAD_TIMED_OUT = "load-timed-out"
    LOAD_STALLED = "load-stalled"
    FIRST_TOKEN_TIMEOUT = "first-token-timeout"  # noqa: S105 - tokens of text
    STREAM_IDLE_TIMEOUT = "stream-idle-timeout"
    RUNTIME_UNAVAILABLE = "runtime-unavailable"
    NO_ANSWER = "no-answer"
    DEVICE_LOST = "device-lost"
    JOURNAL_UNWRITABLE = "journal-unwritable"
    INTERRUPTED = "interrupted"
    CLUSTER_UNREACHABLE = "cluster-unreachable"
    DEVICES_UNKNOWN = "devices-unknown"
    GPU_PANIC_COOLDOWN = "gpu-panic-cooldown"
    RUNTIME_PERMISSION = "runtime-permission"
    RUNTIME_ERROR = "runtime-error"
    RUNTIME_LIMITS = "runtime-limits"
    ENDPOINT_UNTRUSTED = "endpoint-untrusted"
    IMAGE_MISSING = "image-missing"
    IMAGE_CORRUPT = "image-corrupt"
    IMAGE_NOT_FOUND = "image-not-found"
    REGISTRY_DENIED = "registry-denied"
    REGISTRY_RATE_LIMITED = "registry-rate-limited"
    REGISTRY_UNTRUSTED = "registry-untrusted"
    GPU_RUNTIME_MISSING = "gpu-runtime-missing"
    GPU_UNRESOLVABLE = "gpu-unresolvable"
    PORT_IN_USE = "port-in-use"
    NAME_IN_USE = "name-in-use"
    NAME_FOREIGN = "name-foreign"
    HARDENING_NOT_APPLIED = "hardening-not-applied"
    WATCHDOG_UNSUPPORTED = "watchdog-unsupported"
    WATCHDOG_MISCONFIGURED = "watchdog-misconfigured"
    ENTRYPOINT_MISSING = "entrypoint-missing"
    WRONG_ARCHITECTURE = "wrong-architecture"
    ENGINE_BINARY_PRIVILEGED = "engine-binary-privileged"
    HEARTBEAT_UNWRITABLE = "heartbeat-unwritable"
    HOST_OUT_OF_MEMORY = "host-out-of-memory"
    WRONG_DEVICE = "wrong-device"
    DISK_FULL = "disk-full"
    DAEMON_UNREACHABLE = "daemon-unreachable"
    BIND_FAILED = "bind-failed"
    SOURCE_NOT_ALLOWED = "source-not-allowed"
    NEEDS_TRUST = "needs-trust"
    MODEL_NOT_FOUND = "model-not-found"
    REVISION_NOT_FOUND = "revision-not-found"
    FILE_NOT_FOUND = "file-not-found"
    MODEL_IN_USE = "model-in-use"
    ALIAS_TAKEN = "alias-taken"
    REVISION_CHANGED = "revision-changed"
    STORE_TOO_NEW = "store-too-new"
    CONTENT_NOT_A_MODEL = "content-not-a-model"
    CONTENT_SHORT = "content-short"
    CONTENT_MISMATCH = "content-mismatch"
    MODEL_FILE_CORRUPT = "model-file-corrupt"
    MODEL_FILE_MISSING = "model-file-missing"
    SET_INCOMPLETE = "set-incomplete"
    BIG_ENDIAN = "big-endian"
    UNSUPPORTED_VERSION = "unsupported-version"
    FACTS_INCONSISTENT = "facts-inconsistent"
    MODEL_HEADER_TOO_LARGE = "model-header-too-large"
    HUB_AUTH_REQUIRED = "hub-auth-required"
    HUB_ACCESS_DENIED = "hub-access-denied"
    HUB_RATE_LIMITED = "hub-rate-limited"
    HUB_UNREACHABLE = "hub-unreachable"
    PULL_STALLED = "pull-stalled"
    HUB_OFFLINE = "hub-offline"
    DISK_SPACE_SHORT = "disk-space-short"
    QUOTA_EXCEEDED = "quota-exceeded"
    STOP_UNCONFIRMED = "stop-unconfirmed"
    INTERNAL = "internal"
    LAUNCH_INVALID = "launch-invalid"


@dataclass(frozen=True, slots=True)
class Row:
    """What one code means outside: C-12, one line of the table."""

    family: Family
    http_status: int
    openai_type: str
    anthropic_type: str
    retry: bool | None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.family]


_INVALID, _SERVER, _RATE = "invalid_request_error", "server_error", "rate_limit_error"

# (family, status, codes, OpenAI type, Anthropic type, value of X-Should-Retry)
_TABLE: tuple[tuple[Family, int, str, str, str, bool | None], ...] = (
    (
        Family.USAGE,
        400,
        "malformed-request invalid-json duplicate-field unknown-field invalid-parameter invalid-name invalid-config "
        "unsupported-endpoint unsupported-capability unsupported-parameter context-length-exceeded "
        "remote-media-refused reference-invalid reference-ambiguous name-unsafe wrong-kind",
        _INVALID,
        "invalid_request_error",
        None,
    ),
    (Family.USAGE, 401, "invalid-key", _INVALID, "authentication_error", None),
    (
        Family.USAGE,
        403,
        "scope-missing host-not-allowed origin-not-allowed priority-not-allowed",
        _INVALID,
        "permission_error",
        None,
    ),
    (
        Family.USAGE,
        404,
        "route-not-found deployment-not-found session-not-found unit-not-found ticket-not-found request-not-found "
        "operation-not-found engine-not-found conversation-not-found key-not-found pool-not-found",
        _INVALID,
        "not_found_error",
        None,
    ),
    (Family.USAGE, 405, "method-not-allowed", _INVALID, "invalid_request_error", None),
    (Family.USAGE, 417, "expectation-failed", _INVALID, "invalid_request_error", None),
    (Family.USAGE, 408, "body-timeout", _INVALID, "invalid_request_error", False),
    (
        Family.USAGE,
        409,
        "not-legal-now session-busy ticket-not-waiting request-cancelled load-cancelled load-superseded "
        "revision-conflict idempotency-conflict deployment-from-file engine-in-use model-being-removed "
        "engine-being-removed daemon-already-running scope-duplicate",
        _INVALID,
        "invalid_request_error",
        False,
    ),
    (Family.USAGE, 410, "session-gone", _INVALID, "not_found_error", None),
    (Family.USAGE, 413, "request-too-large", _INVALID, "request_too_large", None),
    (Family.USAGE, 431, "header-too-large", _INVALID, "request_too_large", None),
    (Family.CAPACITY, 429, "queue-full queue-timeout too-many-open rate-limited", _RATE, "rate_limit_error", True),
    (
        Family.CAPACITY,
        503,
        "gateway-busy daemon-starting not-loaded room-denied memory-busy outside-memory memory-not-returned "
        "overdraft session-stopped shutting-down",
        _SERVER,
        "overloaded_error",
        True,
    ),
    (
        Family.CAPACITY,
        503,
        "never-fits blocked-by-pin deployment-removed crash-loop-held ledger-unavailable resident-below-minimum "
        "exclusive would-deadlock",
        _SERVER,
        "overloaded_error",
        False,
    ),
    (
        Family.ENGINE,
        502,
        "engine-exited engine-fault engine-failed engine-bad-answer engine-connection-lost stream-incomplete killed "
        "heartbeat-lost hung",
        _SERVER,
        "api_error",
        None,
    ),
    (
        Family.ENGINE,
        502,
        "device-out-of-memory context-too-large model-unsupported bad-setting illegal-instruction "
        "installation-broken ready-refused",
        _SERVER,
        "api_error",
        False,
    ),
    (Family.ENGINE, 503, "engine-not-installed", _SERVER, "api_error", False),
    (
        Family.ENGINE,
        504,
        "load-timed-out load-stalled first-token-timeout stream-idle-timeout",
        _SERVER,
        "timeout_error",
        False,
    ),
    (
        Family.HOST,
        503,
        "runtime-unavailable no-answer device-lost journal-unwritable interrupted cluster-unreachable "
        "devices-unknown gpu-panic-cooldown",
        _SERVER,
        "api_error",
        None,
    ),
    (
        Family.HOST,
        503,
        "runtime-permission runtime-error runtime-limits endpoint-untrusted image-missing image-corrupt "
        "image-not-found registry-denied registry-rate-limited registry-untrusted gpu-runtime-missing "
        "gpu-unresolvable port-in-use name-in-use name-foreign hardening-not-applied watchdog-unsupported "
        "watchdog-misconfigured entrypoint-missing wrong-architecture engine-binary-privileged "
        "heartbeat-unwritable host-out-of-memory wrong-device",
        _SERVER,
        "api_error",
        False,
    ),
    (Family.HOST, 507, "disk-full", _SERVER, "api_error", False),
    (Family.HOST, 503, "daemon-unreachable bind-failed", _SERVER, "api_error", None),
    (Family.STORE, 403, "source-not-allowed needs-trust", _INVALID, "permission_error", None),
    (Family.STORE, 404, "model-not-found revision-not-found file-not-found", _INVALID, "not_found_error", None),
    (
        Family.STORE,
        409,
        "model-in-use alias-taken revision-changed store-too-new",
        _INVALID,
        "invalid_request_error",
        False,
    ),
    (
        Family.STORE,
        422,
        "content-not-a-model content-short content-mismatch model-file-corrupt model-file-missing set-incomplete "
        "big-endian unsupported-version facts-inconsistent model-header-too-large",
        _INVALID,
        "invalid_request_error",
        None,
    ),
    (Family.STORE, 424, "hub-auth-required hub-access-denied", _INVALID, "permission_error", None),
    (Family.STORE, 429, "hub-rate-limited", _RATE, "rate_limit_error", True),
    (Family.STORE, 502, "hub-unreachable pull-stalled", _SERVER, "api_error", None),
    (Family.STORE, 503, "hub-offline", _SERVER, "api_error", None),
    (Family.STORE, 507, "disk-space-short quota-exceeded", _SERVER, "api_error", False),
    (Family.UNCONFIRMED, 409, "stop-unconfirmed", _SERVER, "api_error", False),
    (Family.INTERNAL, 500, "internal launch-invalid", _SERVER, "api_error", False),
)


def _rows() -> dict[ErrorCode, Row]:
    rows: dict[ErrorCode, Row] = {}
    for family, status, codes, openai_type, anthropic_type, retry in _TABLE:
        for code in map(ErrorCode, codes.split()):
            if code in rows:
                raise AssertionError(f"error code {code} stands in two rows")
            rows[code] = Row(family, status, openai_type, anthropic_type, retry)
    missing = set(ErrorCode) - set(rows)
    if missing:
        raise AssertionError(f"error codes without a row: {sorted(missing)}")
    return rows


ROWS = _rows()

# The public OpenAI code is ours with underscores, except these.
_OPENAI_CODES = {ErrorCode.INVALID_KEY: "invalid_api_key", ErrorCode.RATE_LIMITED: "rate_limit_exceeded"}


def openai_code(code: ErrorCode) -> str:
    """The ``code`` member of an OpenAI error object."""
    return _OPENAI_CODES.get(code, code.replace("-", "_"))


class StokerError(Exception):
    """An answer that is an error: one sentence with the numbers in it, and what to do.

    ``details`` is structured, small and free of secrets. ``retry_after_s`` is an honest wait, never a guess of zero.
    """

    families: frozenset[Family] = frozenset(Family)

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        remedy: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
        param: str | None = None,
    ) -> None:
        if ROWS[code].family not in self.families:
            raise AssertionError(f"{code} is not a code of {type(self).__name__}")
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after_s = retry_after_s
        self.param = param

    @property
    def row(self) -> Row:
        return ROWS[self.code]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (
            type(self), self.code, self.message, self.remedy, self.details, self.retry_after_s, self.param,
        )  # fmt: skip


def _rebuild(
    kind: type[StokerError],
    code: ErrorCode,
    message: str,
    remedy: str,
    details: dict[str, Any],
    retry_after_s: float | None,
    param: str | None,
) -> StokerError:
    return kind(code, message, remedy=remedy, details=details, retry_after_s=retry_after_s, param=param)


class UsageError(StokerError):
    """The caller asked for something that cannot be done as asked."""

    families = frozenset({Family.USAGE})


class CapacityError(StokerError):
    """There is no room or no place now; ``retry_after_s`` says when to come back, if ever."""

    families = frozenset({Family.CAPACITY})


class EngineError(StokerError):
    """The engine failed: it did not start, died, or answered wrongly."""

    families = frozenset({Family.ENGINE})


class HostError(StokerError):
    """The machine, its devices or a container runtime did not do what was asked."""

    families = frozenset({Family.HOST})


class StoreError(StokerError):
    """A model is missing, broken, or may not be had."""

    families = frozenset({Family.STORE})


class StopUnconfirmedError(StokerError):
    """What was stopped is not proven gone; its memory stays reserved."""

    families = frozenset({Family.UNCONFIRMED})


class InternalError(StokerError):
    """A defect of Stoker itself."""

    families = frozenset({Family.INTERNAL})


_CLASSES: dict[Family, type[StokerError]] = {
    Family.USAGE: UsageError,
    Family.CAPACITY: CapacityError,
    Family.ENGINE: EngineError,
    Family.HOST: HostError,
    Family.STORE: StoreError,
    Family.UNCONFIRMED: StopUnconfirmedError,
    Family.INTERNAL: InternalError,
}


def error_for(code: ErrorCode, message: str, **members: Any) -> StokerError:
    """An error of the class that owns ``code``; ``members`` as for `StokerError`."""
    return _CLASSES[ROWS[code].family](code, message, **members)
