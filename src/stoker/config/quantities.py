"""Quantities as people write them: a number in the unit of the key, or text with its unit (C-23).

Nothing is guessed: a number in quotes without a unit is no quantity, and neither is a boolean.
"""

from __future__ import annotations

import math
import re
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"B": 1} | {
    f"{letter}{suffix}": base ** (n + 1)
    for n, letter in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def seconds(value: Any) -> float:
    """Seconds, or text as ``"250ms"``, ``"5m"``, ``"7d"``. Raises `ValueError` with one clause that says why."""
    if isinstance(value, str):
        return _with_unit(value, _SECONDS, 'a number of seconds or text such as "250ms", "30s", "5m", "2h", "7d"')
    return float(_number(value, "a number of seconds"))


def whole_bytes(value: Any) -> int:
    """Bytes, or text as ``"64MiB"`` (2^20) and ``"20GB"`` (10^9). Raises `ValueError`."""
    if isinstance(value, str):
        wanted = 'a number of bytes or text such as "512MiB", "20GB"'
        value = _with_unit(value, _BYTES, wanted)
    number = _number(value, "a number of bytes")
    if number != int(number):
        raise ValueError(f"{number} is not a whole number of bytes")
    return int(number)


def share(value: str) -> str:
    """A share of a total such as ``"80%"``; 0 to 100. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", value)
    if match is None or float(match[1]) > 100:
        raise ValueError(f'{value!r} is not a share such as "80%"')
    return value


def _with_unit(text: str, units: dict[str, Any], wanted: str) -> float | int:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    number = float(match[1]) if "." in match[1] else int(match[1])
    product: float | int = number * units[match[2]]
    # 0.1 * 1000 is not exact; what people mean is.
    return round(product, 9) if isinstance(product, float) else product


def _number(value: Any, wanted: str) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not {wanted}")  # noqa: TRY004 - the validators read ValueError
    if not math.isfinite(value):
        raise ValueError(f"{value} is not {wanted}")
    return value
