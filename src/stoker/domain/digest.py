"""One name for one content: the digest of a plan (M-55, E-31).

Equal plans have equal digests, whatever the order of keys in their settings. The path of the model counts, the
deployment's name does not change what is launched but is part of the plan, so it counts too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.domain.context import LaunchPlan

_OMITTED = frozenset({"facts", "footprint", "settings", "digest", "reasons"})


def plan_digest(plan: LaunchPlan) -> str:
    """SHA-256 in hex over the canonical content: every flag value, the settings, the model and the charge."""
    content = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name not in _OMITTED}
    content["model"] = [plan.facts.content_id, [[file.name, file.bytes] for file in plan.facts.files]]
    content["settings"] = plain(plan.settings)
    content["charge"] = dict(plan.footprint.charge)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def plain(value: Any) -> Any:
    """``value`` as JSON would hold it, sets in order; what has no plain form is named by its type and text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    dump = getattr(value, "model_dump", None)  # settings are pydantic models, which this layer does not know
    if callable(dump):
        return plain(dump())
    return f"{type(value).__name__}:{value!r}"
