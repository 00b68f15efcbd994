"""Names that a person may have meant (R-91): shown beside a 404, never used in place of what was said."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near_names(name: str, known: Iterable[str], most: int = 3) -> tuple[str, ...]:
    """Up to ``most`` known names close to ``name``, best first."""
    return tuple(difflib.get_close_matches(name[:256], list(known), n=most, cutoff=0.5))
