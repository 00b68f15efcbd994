"""Watches a streamed answer on its bytes, so that a broken one never looks whole (R-76 to R-81).

Bytes pass as they came. Complete lines pass at once; the beginning of a line waits for its end, so that a break
leaves no half line with the client. Content is only ever taken out where the dialect says so, and only whole events.
A finish reason is never made up. Line ends are LF, CRLF and CR, wherever the pieces are cut.
"""

from __future__ import annotations

from stoker.gateway.dialect import Dialect, Reading

MAX_KEPT_BYTES = 64 << 10
_BOM = b"\xef\xbb\xbf"


class StreamGuard:
    """One stream. ``feed`` every piece in order, then ask once for `closing`."""

    __slots__ = ("_cr", "_dialect", "_dropping", "_first", "_kept", "_kept_bytes", "_long", "is_open", "reading")

    def __init__(self, dialect: Dialect, reading: Reading) -> None:
        self._dialect = dialect
        self.reading = reading
        self.is_open = False  # a line was passed since the last empty one
        self._kept: list[bytes] = []  # the beginning of a line
        self._kept_bytes = 0
        self._cr = False  # the last byte was a CR: an LF that comes next belongs to it
        self._long = False  # the present line is too long to be kept and passes in pieces
        self._dropping = False  # the present event is taken out up to its empty line
        self._first = True

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go to the client now."""
        if not self._kept and not self._cr and not self._long and not self._dropping and not self._first:
            tail = data[-2:]
            if tail == b"\n\n" and b"\r" not in data and self._dialect.is_dull(data):
                self.is_open = False
                return data
        return self._feed_lines(data)

    def closing(self, error_event: bytes | None) -> bytes:
        """What has to be added now that the stream is over: nothing, a lost end marker, or the error and the marker.

        ``error_event`` is None if the engine ended its answer by itself and whole.
        """
        if self.reading.marked or self.reading.failed:
            return b""
        gap = b"\n" if self.is_open else b""
        if self._long or (gap and self._cr):  # a line end of its own first: an LF after a CR would only complete it
            gap = b"\n\n"
        if self.reading.is_whole or error_event is None:
            return gap + self._dialect.end_mark
        return gap + error_event + self._dialect.end_mark

    def take_last_line(self) -> bytes:
        """At an orderly end, a last line without a line end counts if it tells something (R-81); it then passes."""
        line = self._take_kept()
        if not line:
            return b""
        before = (self.reading.finished, self.reading.marked, self.reading.failed)
        passes = self._dialect.read_line(line.removeprefix(_BOM), self.reading)
        if passes and before != (self.reading.finished, self.reading.marked, self.reading.failed):
            self.is_open = False
            return line + b"\n\n"
        return b""

    def _feed_lines(self, data: bytes) -> bytes:
        out: list[bytes] = []
        if self._cr and data:
            if data[:1] == b"\n":
                if not self._dropping:
                    out.append(b"\n")
                data = data[1:]
            self._cr = False
        lines = data.splitlines(keepends=True)
        rest = lines.pop() if lines and lines[-1][-1:] not in b"\r\n" else b""
        if lines and self._kept:
            lines[0] = self._take_kept() + lines[0]
        for line in lines:
            self._take_line(line, out)
        if rest:
            self._keep(rest, out)
        elif lines:
            self._cr = lines[-1].endswith(b"\r")
        return b"".join(out)

    def _keep(self, rest: bytes, out: list[bytes]) -> None:
        """A line's beginning waits for its end, or passes once it is too long for that (R-76)."""
        self._kept.append(rest)
        self._kept_bytes += len(rest)
        if self._long or self._kept_bytes > MAX_KEPT_BYTES:
            self._long = True
            passing = self._take_kept()
            if not self._dropping:
                out.append(passing)

    def _take_kept(self) -> bytes:
        kept = b"".join(self._kept)
        self._kept.clear()
        self._kept_bytes = 0
        return kept

    def _take_line(self, whole: bytes, out: list[bytes]) -> None:
        line = whole.rstrip(b"\r\n")
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if self._long:  # the rest of a line that has passed in pieces
            self._long = False
            self.is_open = True
            out.append(whole)
            return
        if not line:
            if self._dropping:
                self._dropping = False
            else:
                out.append(whole)
            self.is_open = False
            return
        if self._dropping:
            return
        if not self._dialect.is_dull(line) and not self._dialect.read_line(line, self.reading):
            self._dropping = True  # lines before it that passed are no content: they go on into the next event
            return
        self.is_open = True
        out.append(whole)
