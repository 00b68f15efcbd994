"""Put the fake engine where an engine's program is looked for: an executable that starts it in a flavour.

Decides only how that file looks. Its options are fixed in the file, since an engine's environment is built and not
inherited (S-46), so no ``FAKE_…`` variable of the test would reach it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def install(path: Path, *options: str, flavour: str = "llama-cpp") -> Path:
    """Write an executable at ``path`` (named ``llama-server``, say) and return it; its folder must exist.

    The arguments it is started with come after ``options``, so an adapter's own arguments and the fake's live together.
    """
    words = [sys.executable, "-I", "-m", "stoker.testing.fake_engine", "--flavour", flavour, *options]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    os.chmod(path, 0o755)
    return path
