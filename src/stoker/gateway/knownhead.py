"""What need not be parsed again: a head that is the last one's byte for byte, and a read that is exactly one chunk.

Both ends of a kept connection repeat themselves. What a parser said of a head holds for the same bytes; only the digits
of ``Content-Length`` may differ, and only a message that lies whole in one read is taken here. The parser stands at the
same place before and after what is taken past it; everything else is the parser's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n)", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


def one_chunk(data: bytes) -> bytes | None:
    """What is in the chunk, if ``data`` is one whole chunk that is not the last, and nothing else."""
    found = _CHUNK.match(data)
    if found is None:
        return None
    start, size = found.end(), int(found.group(1), 16)
    if not size or start + size + 2 != len(data) or not data.endswith(b"\r\n"):
        return None
    return data[start:-2]


@dataclass(frozen=True, slots=True)
class KnownHead:
    """``before`` and ``after`` stand around the length's digits; ``after`` ends with the empty line."""

    before: bytes
    after: bytes

    def body_start(self, data: bytes) -> int:
        """Where the body begins if ``data`` is one whole message with this head; 0 if it is not."""
        before, after = self.before, self.after
        if not data.startswith(before):
            return 0
        start = len(before)
        end = data.find(b"\r", start, start + 19)
        if end <= start or not data.startswith(after, end):
            return 0
        digits = data[start:end]
        body_start = end + len(after)
        if not digits.isdigit() or int(digits) != len(data) - body_start:
            return 0
        return body_start


def read_known_head(data: bytes, body_bytes: int) -> KnownHead | None:
    """The head of ``data``, a whole message that a parser found to have ``body_bytes`` of body by its one length."""
    head_end = len(data) - body_bytes
    if data[head_end - 4 : head_end] != b"\r\n\r\n":
        return None
    found = list(_LENGTH.finditer(data, 0, head_end))
    if len(found) != 1 or int(found[0].group(1)) != body_bytes:
        return None
    return KnownHead(data[: found[0].start(1)], data[found[0].end(1) : head_end])
