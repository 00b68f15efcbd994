"""Units: what counts as a quantity and what does not (C-23)."""

from __future__ import annotations

import pytest

from stoker.config.quantities import seconds, share, whole_bytes


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(5, 5.0), (0.5, 0.5), ("250ms", 0.25), ("1.5h", 5400.0), ("7d", 604800.0), ("0s", 0.0), ("100 ms", 0.1)],
)
def test_seconds(given, wanted):
    assert seconds(given) == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(5, 5), (5.0, 5), ("1KB", 1000), ("1KiB", 1024), ("20GB", 20 * 10**9), ("1.1GB", 1_100_000_000),
     ("2TiB", 2**41), ("9007199254740993B", 9007199254740993)],
)  # fmt: skip
def test_bytes(given, wanted):
    assert whole_bytes(given) == wanted


@pytest.mark.parametrize("given", ["5", "", "s", "-5s", "5 weeks", "1m30s", "5S", True, None, [], float("nan")])
def test_what_is_no_time(given):
    with pytest.raises(ValueError, match="not a number of seconds"):
        seconds(given)


@pytest.mark.parametrize("given", ["5", "5gb", "5 Gb", "1.0001KB7", False, float("inf"), "0.3B"])
def test_what_is_no_size(given):
    with pytest.raises(ValueError, match="not a"):
        whole_bytes(given)


def test_shares():
    assert share("80%") == "80%"
    for wrong in ("80", "101%", "-1%", "%"):
        with pytest.raises(ValueError, match="share"):
            share(wrong)
