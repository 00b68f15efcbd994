"""Small programs that behave like engines do, as ``python -c`` text, and the plans that run them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.domain.reconcile import IdentityVerdict
from stoker.hosts.process.procfs import identify, verdict
from stoker.hosts.process.procfs import marked as marked_processes
from stoker.ids import DeploymentName, Generation, Scope, marker, unit_name
from stoker.ports.units import Endpoint, ProcessIdentity, UnitPlan
from stoker.testing.units_contract import GREETING, Behaviour

SCOPE = Scope(os.environ.setdefault("STOKER_TEST_SCOPE", os.urandom(4).hex()))  # a driver shares it, nobody else does
SLEEP = "import time\nwhile True: time.sleep(60)\n"
RUNS = f"print({GREETING!r}, flush=True)\n{SLEEP}"
IGNORES_TERM = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{RUNS}"
EXITS_7 = f"print({GREETING!r}, flush=True); raise SystemExit(7)"
DIES_BY_SEGV = f"import os; print({GREETING!r}, flush=True); os.kill(os.getpid(), 11)"
LISTENS = f"""
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
{RUNS}"""
SHARED_PORT = f"""
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=True)
{RUNS}"""

# A helper as hard to follow as one can be: own session, other name, no inherited descriptor, emptied environment
# area, deaf to TERM and HUP; its parent is gone at once, so it is an orphan too. ``keep`` keeps its marker.
HIDDEN_HELPER = f"""
import os, signal, sys
def helper(keep):
    if os.fork(): os.wait(); return
    os.setsid()
    if os.fork(): os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in range(3): os.dup2(null, fd)
    os.closerange(3, 64)
    code = "import time\\nwhile True: time.sleep(60)"
    os.execve(sys.executable, ["kworker/7:1", "-c", code], dict(os.environ) if keep else {{}})
helper(sys.argv[2:] != ["bare"])
{RUNS}"""
PORT_HOLDER = f"""
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.set_inheritable(listener.fileno(), True)
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    os.execv(sys.executable, [sys.executable, "-c", {SLEEP!r}])
os.wait()
listener.close()
{RUNS}"""
NOISY_LOAD = f"""
import os, sys
for number in range(8192): os.write(1 + number % 2, b"%07d " % number + b"x" * 247 + b"\\n")
{RUNS}"""
FLOOD = f"""
import os
for number in range(102400): os.write(1, b"%07d " % number + b"y" * 94 + b"\\n")
open("flooded", "w").close()
{RUNS}"""
WAITS_THEN_FLOODS = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print({GREETING!r}, flush=True)
signal.sigwait([signal.SIGUSR1])
{FLOOD}"""

STRANGE_LINES = r"""
import os, time
os.write(1, b"a" * 200000 + b"\n")
os.write(1, b"bad \xff\xfe utf-8\n")
os.write(1, "\u5317\u4eac\n".encode())
os.write(1, b"\x1b[31mred\x1b[0m \x00nul\n")
os.write(1, b"10%\r20%\r30%\r\n")
os.write(1, b"crlf\r\nno end")
time.sleep(0.5)
os.write(1, b"the end without newline")
"""
TELLS = r"""
import json, os, resource, sys
print(json.dumps({
    "env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "umask": os.umask(0),
    "core": resource.getrlimit(resource.RLIMIT_CORE), "oom": int(open("/proc/self/oom_score_adj").read()),
    "stdin": sys.stdin.read(), "sid": os.getsid(0), "pgid": os.getpgrp(), "pid": os.getpid(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
    "ignored": open("/proc/self/status").read().split("SigIgn:")[1].split()[0],
}), flush=True)
"""

PROGRAMS = {
    Behaviour.RUNS: RUNS,
    Behaviour.IGNORES_TERM: IGNORES_TERM,
    Behaviour.EXITS_7: EXITS_7,
    Behaviour.LISTENS: LISTENS,
}


def make_plan(folder: Path, generation: int, program: str, *extra: str, **fields: object) -> UnitPlan:
    life_dir = folder / "lives" / str(generation)
    number = Generation(generation)
    given = {
        "scope": SCOPE,
        "generation": number,
        "name": unit_name(SCOPE, number),
        "deployment": DeploymentName("d"),
        "replica": 0,
        "argv": (sys.executable, "-c", program, "{port}", *extra),
        "env": {"PATH": os.defpath, "STOKER_UNIT": marker(SCOPE, number), "HOME": f"{life_dir}/home", "PORT": "{port}"},
        "files": {"token": ("s3cret", True)},
        "endpoint": Endpoint(),
        "life_dir": str(life_dir),
        "log_path": str(folder / "logs" / f"{generation}.log"),
        "stop_grace_s": 1.0,
    }
    return UnitPlan(**{**given, **fields})  # type: ignore[arg-type]


def missing_program(plan_folder: Path, generation: int) -> UnitPlan:
    return make_plan(plan_folder, generation, "", argv=("/nowhere/engine",))


def living(*identities: ProcessIdentity | None) -> list[ProcessIdentity]:
    """Those of ``identities`` that are alive now."""
    return [one for one in identities if one is not None and verdict(one) is IdentityVerdict.SAME]


def marked(generation: int | None = None) -> list[ProcessIdentity]:
    """Every process on the machine that carries a marker of our scope."""
    return [one for one, found in marked_processes(SCOPE) if generation is None or found == generation]


def running_since(pid: int) -> ProcessIdentity:
    found = identify(pid)
    assert found is not None
    return found
