"""llama.cpp's own figures, for showing and counting, never for deciding (E-64)."""

from __future__ import annotations

import math
import re

from stoker.ports.engines import Sample

_LINE = re.compile(r"^llamacpp:(\w+)(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)
_FIELDS = {
    "requests_processing": "running",
    "requests_deferred": "waiting",
    "prompt_tokens_total": "prompt_tokens_total",
    "tokens_predicted_total": "completion_tokens_total",
}


def read_metrics(text: str) -> Sample:
    found: dict[str, float] = {}
    for name, value in _LINE.findall(text):
        field = _FIELDS.get(name)
        if field is not None:
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                found[field] = number
    return Sample(**found)
