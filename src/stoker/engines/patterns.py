"""Text by which many programs tell why they end: the shared classes of E-44, as data.

Adapters put their own patterns beside these and hand both to `stoker.engines.verdicts`. A smaller ``rank`` decides
first. Groups named ``…_mib`` or ``…_gib`` are amounts in that unit; other named groups are words for the sentence.
Most lives end well, so an expression is compiled when it is first looked for: no start pays for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

ARGUMENT, PORT, LIBRARY, DRIVER, MODEL, WINDOW, CARD_MEMORY, HOST_MEMORY, CARD, LIMITS, OTHER = range(1, 12)
FIRST_COUNTS = frozenset({ARGUMENT, PORT, LIBRARY, DRIVER, MODEL})
"""Classes in which the first match decides: they happen once, and later lines are their echo."""


@cache
def compiled(text: str) -> re.Pattern[str]:
    return re.compile(text)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way a cause is told. ``kind`` is the code a start that ended so is answered with."""

    rank: int
    kind: str
    cause: str
    text: str

    @property
    def regex(self) -> re.Pattern[str]:
        return compiled(self.text)


pattern = Pattern


SHARED: tuple[Pattern, ...] = (
    pattern(ARGUMENT, "bad-setting", "unknown-flag", r"unrecognized arguments: (?P<what>\S+)"),
    pattern(ARGUMENT, "bad-setting", "unknown-flag", r"No such option:? (?P<what>\S+)"),
    pattern(ARGUMENT, "bad-setting", "bad-value", r"argument (?P<what>\S+): invalid choice: (?P<why>.+)"),
    pattern(PORT, "port-in-use", "port", r"[Aa]ddress already in use|\[Errno (?:98|48)\]|Failed to bind socket"),
    pattern(PORT, "port-in-use", "port", r"failed to listen on"),
    pattern(LIBRARY, "installation-broken", "missing-library",
            r"error while loading shared libraries: (?P<what>[^\s:]+)"),
    pattern(LIBRARY, "installation-broken", "missing-library",
            r"(?P<what>\S+): cannot open shared object file"),
    pattern(LIBRARY, "installation-broken", "old-system",
            r"version .(?P<what>(?:GLIBC|GLIBCXX|CXXABI)[\w.]*).* not found"),
    pattern(LIBRARY, "installation-broken", "missing-library", r"dyld\[\d+\]: Library not loaded: (?P<what>\S+)"),
    pattern(LIBRARY, "installation-broken", "missing-module", r"No module named '?(?P<what>[\w.]+)"),
    pattern(DRIVER, "installation-broken", "driver-too-old",
            r"CUDA driver version is insufficient|unsupported toolchain|forward compatibility was attempted"),
    pattern(DRIVER, "installation-broken", "no-driver",
            r"Found no NVIDIA driver|libcuda\.so\.1: cannot open|HIP error: no ROCm-capable device"),
    pattern(DRIVER, "installation-broken", "no-kernel-for-card", r"no kernel image is available"),
    pattern(CARD_MEMORY, "device-out-of-memory", "weights",
            r"torch.*OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|cudaMalloc failed: out of memory"),
    pattern(CARD_MEMORY, "device-out-of-memory", "weights",
            r"ErrorOutOfDeviceMemory|hipErrorOutOfMemory|kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    pattern(CARD_MEMORY, "device-out-of-memory", "weights",
            r"failed to allocate (?:CUDA|ROCm|Vulkan|Metal|MTL)\S* buffer"),
    pattern(HOST_MEMORY, "host-out-of-memory", "process",
            r"std::bad_alloc|\bMemoryError\b|can't allocate memory|Cannot allocate memory"),
    pattern(HOST_MEMORY, "host-out-of-memory", "process", r"insufficient memory \(attempted to allocate"),
    pattern(CARD, "device-lost", "card", r"fallen off the bus|DeviceLost|uncorrectable ECC"),
    pattern(CARD, "device-lost", "card", r"unspecified launch failure"),
    pattern(LIMITS, "engine-exited", "host-limits",
            r"(?P<what>Too many open files|No space left on device|Resource temporarily unavailable)"),
    pattern(LIMITS, "engine-exited", "host-limits", r"(?P<what>/dev/shm).*Bus error|Bus error.*/dev/shm"),
)  # fmt: skip
