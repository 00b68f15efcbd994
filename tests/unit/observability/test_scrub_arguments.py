"""Command lines inside records: BR-1003."""

from __future__ import annotations

from stoker.observability.scrub import SET, Scrubber


def test_br_1003_a_secret_in_an_engine_argument_is_hidden_in_every_record() -> None:
    told = {"models": {"x": {"engine_args": ["--api-key", "planted-mark-1", "--threads", "2"]}}}
    shown = Scrubber().value(told)
    assert shown["models"]["x"]["engine_args"] == ["--api-key", SET, "--threads", "2"]
    assert Scrubber().value({"args": ("--hub-token=planted-mark-2",)}) == {"args": [f"--hub-token={SET}"]}
