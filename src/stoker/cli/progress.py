"""What a person sees while something is waited for: one line that moves on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from stoker.cli.invocation import Invocation
from stoker.cli.render import bar
from stoker.client.records import Operation

_CLEAR = "\r\x1b[K"
_BAR = 20


class Progress:
    """Shows operations as they come; silent with -q and with --json."""

    def __init__(self, stream: TextIO, *, is_live: bool, is_silent: bool) -> None:
        self._stream = stream
        self._is_live = is_live
        self._is_silent = is_silent
        self._shown = ""

    def show(self, operation: Operation) -> None:
        line = words(operation)
        if self._is_silent or operation.is_over:
            return
        if self._is_live:
            self._put(_CLEAR + line)
        elif (stage := line.partition(" [")[0]) != self._shown:
            self._shown = stage
            self._put(stage + "\n")

    def clear(self) -> None:
        """Leave an empty line for what comes next."""
        if self._is_live and not self._is_silent:
            self._put(_CLEAR)

    def _put(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def words(operation: Operation) -> str:
    """Loading tiny: loading-weights [████░░░░]  42 %"""
    what = {"load": "Loading", "unload": "Unloading", "stop": "Stopping"}.get(operation.kind, operation.kind)
    stage = operation.stage or ("waiting for memory or a place" if operation.kind == "load" else "waiting for the end")
    line = f"{what} {operation.subject}: {stage}"
    if operation.percent is None:
        return line
    return f"{line} [{bar(operation.percent, 100, _BAR)}] {operation.percent:3.0f} %"


@contextmanager
def watching(invocation: Invocation) -> Iterator[Progress]:
    is_live = sys.stderr.isatty() and invocation.environ.get("TERM") != "dumb"
    progress = Progress(sys.stderr, is_live=is_live, is_silent=invocation.quiet or invocation.as_json)
    try:
        yield progress
    finally:
        progress.clear()
