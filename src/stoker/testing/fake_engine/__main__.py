"""``python -m stoker.testing.fake_engine``: run one fake engine."""

from __future__ import annotations

from stoker.testing.fake_engine.process import main

main()
