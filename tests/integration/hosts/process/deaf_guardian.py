"""A guardian whose signals to a member in another program's clothes are lost, as to a process stuck in the kernel."""

import importlib.util
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
source = os.path.join(here, "..", "..", "..", "..", "src", "stoker", "hosts", "process", "guardian.py")
spec = importlib.util.spec_from_file_location("guardian", os.path.normpath(source))
guardian = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guardian)
really_send = guardian.send_signal


def send_signal(pid: int, start: int, number: int) -> None:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if not file.read().startswith(b"kworker"):
            really_send(pid, start, number)


guardian.send_signal = send_signal
guardian.main()
sys.exit(0)
