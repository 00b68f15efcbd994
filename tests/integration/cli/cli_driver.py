"""The command line called in this process, and as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from stoker.cli.invocation import Invocation
from stoker.cli.main import cli

NOW = 1000.0

_FAKE_COMPOSITION = """
import sys, types
{body}
module = types.ModuleType("stoker.cli.composition")
module.serve = serve
sys.modules["stoker.cli.composition"] = module
"""


class Cli:
    """Calls with the home ``folder`` and a clock that stands at `NOW`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"STOKER_HOME": str(folder), "NO_COLOR": "1", "PATH": os.environ["PATH"]}

    def __call__(self, *arguments: str, typed: str | None = None) -> Result:
        invocation = Invocation(environ=self.environ, now=lambda: NOW)
        return CliRunner().invoke(cli, list(arguments), input=typed, obj=invocation, prog_name="stoker")

    def process(self, *arguments: str, **how) -> subprocess.Popen[str]:
        how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
        environ = self.environ | how.pop("env", {})
        return subprocess.Popen([sys.executable, "-m", "stoker", *arguments], env=environ, text=True, **how)

    def with_composition(self, body: str) -> None:
        """Let every process of this folder's environment find ``serve`` from ``body`` as its composition."""
        folder = self.folder / "site"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(_FAKE_COMPOSITION.format(body=body))
        self.environ["PYTHONPATH"] = str(folder)
