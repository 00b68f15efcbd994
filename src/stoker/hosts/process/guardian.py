"""The guardian: owns one unit from before its first instruction until its last process is gone (S-34 to S-41, S-49).

Run as ``python -I -S guardian.py CONTROL_FD LOG_FD``; one thread, standard library only. It decides nothing but time:
when *control* closes, at any stage, it ends the unit and then itself. Members are its descendants; the kernel gives it
their orphans, so "no child left" is the proof of the end. Privileges stay as they are (no ``no_new_privs``: CUDA may
run a set-uid helper to create its device files). It does not know: ports, readiness, what a log line means, who asked.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

HELPER_GRACE_S, LAST_LINES_S = 2.0, 2.0
PASS_S, SLOW_PASS_S = 0.02, 0.25
PIPE_BYTES = 1 << 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, F_SETPIPE_SZ = 1, 36, 1031
LIBC = ctypes.CDLL(None, use_errno=True)
if TYPE_CHECKING:
    from stoker.hosts.process.output import Channel, Log, Stream
else:  # isolated: the package cannot be imported, and must not be
    spec = importlib.util.spec_from_file_location("output", os.path.join(os.path.dirname(__file__), "output.py"))
    output = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(output)
    Channel, Log, Stream = output.Channel, output.Log, output.Stream


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def read_stat(pid: int) -> tuple[str, str, int, int, int]:
    """Name, state, parent, threads, start time. Fields are counted after the last ``)``, which a name may contain."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        head, _, tail = file.read().rpartition(b")")
    rest = tail.decode().split()
    return head.partition(b"(")[2].decode("utf-8", "replace"), rest[0], int(rest[1]), int(rest[17]), int(rest[19])


def members(root: int) -> list[tuple[int, int, str, str]]:
    """Pid, start time, name, state of every living descendant of ``root``. A dead leader with living threads is alive."""
    seen: dict[int, tuple[str, str, int, int, int]] = {}
    children: dict[int, list[int]] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            seen[pid] = read_stat(pid)
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(seen[pid][2], []).append(pid)
    found, todo = [], list(children.get(root, ()))
    while todo:
        name, state, _, threads, start = seen[pid := todo.pop()]
        todo += children.get(pid, ())
        if state not in "ZX" or threads > 1:
            found.append((pid, start, name, state))
    return found


def send_signal(pid: int, start: int, number: int) -> None:
    """Signal exactly that process: the handle is taken first and the start time checked after it (S-42)."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if read_stat(pid)[4] == start:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it ended meanwhile; the next pass looks again
    finally:
        os.close(handle)


def signal_all(number: int) -> None:
    for pid, start, _, _ in members(os.getpid()):
        send_signal(pid, start, number)


def become_engine(launch: dict[str, Any], guardian: int, out: int, err: int, go: int, status: int) -> NoReturn:
    """In the child: set up S-36, wait until ``unit.json`` is safe (S-37), execute. A failure is told on ``status``."""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for fd in set(range(3, 256)) - {go, status}:
            os.closerange(fd, fd + 1)
        os.umask(0o077)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/oom_score_adj", "r+") as file:
            file.write(str(min(1000, int(file.read()) + 500)))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(launch["life_dir"])
        if os.getppid() == guardian and os.read(go, 1) and os.getppid() == guardian:
            os.execve(launch["file"], launch["argv"], launch["env"])
    except (OSError, ValueError) as problem:
        os.write(status, str(getattr(problem, "errno", 22)).encode())
    finally:
        os._exit(127)


class Guardian:
    def __init__(self, control: socket.socket, log: socket.socket) -> None:
        self.control, self.log = Channel(control), Log(log)
        self.launch, self.exit, self.failure = (dict[str, Any]() for _ in range(3))
        self.streams: dict[int, Stream] = {}
        self.me, self.main, self.main_start, self.stop_id = [0, 0], 0, 0, 0
        self.status_fd = -1  # open until exec succeeded or failed
        self.orphaned = self.orphan_begun = self.executed = self.termed = self.helpers_termed = self.ended = False
        self.kill_at, self.asked_at, self.next_pass_at = math.inf, 0.0, 0.0
        self.wake, wake_in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "orphaned", True))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> None:
        while not self.ended:
            self.wait_and_read()
            self.advance(time.monotonic())
            self.log.flush()
            self.control.flush()

    def wait_and_read(self) -> None:
        handlers: dict[int, Callable[[int], object]] = {self.wake: lambda fd: os.read(fd, 512)}
        handlers |= dict.fromkeys(self.streams, self.pump)
        if self.status_fd >= 0:
            handlers[self.status_fd] = self.read_status
        if not self.orphaned:
            handlers[self.control.sock.fileno()] = self.hear
        poll = select.poll()
        for fd in handlers:
            poll.register(fd, select.POLLIN)
        for outlet in (self.control, self.log.out):
            if outlet.pending:
                fd = outlet.sock.fileno()
                poll.register(fd, select.POLLOUT | (select.POLLIN if fd in handlers else 0))
        due = min([self.pass_due(), self.report_due(), *(stream.due for stream in self.streams.values())])
        timeout_ms = None if due == math.inf else max(0, math.ceil((due - time.monotonic()) * 1000))
        for fd, _ in poll.poll(timeout_ms):
            if fd in handlers:
                handlers[fd](fd)

    def advance(self, now: float) -> None:
        """Whatever is due: orphan work, reaping, late lines, a pass of KILL, the report of who survived."""
        if self.orphaned and not self.orphan_begun:
            self.orphan_begun = True
            self.begin_stop(self.launch["orphan_grace_s"] if self.executed else 0.0)  # S-38, at any stage
        self.reap()
        for stream in self.streams.values():
            if stream.due <= now:
                stream.partial()
        if now >= self.pass_due():
            self.next_pass_at = now + (PASS_S if now < self.kill_at + self.launch["kill_confirm_s"] else SLOW_PASS_S)
            signal_all(signal.SIGKILL)
        if now >= self.report_due():
            self.control.say("survivors", id=self.stop_id, survivors=members(os.getpid()))
            self.stop_id = 0

    def pass_due(self) -> float:
        return max(self.kill_at, self.next_pass_at) if self.main and not self.ended else math.inf

    def report_due(self) -> float:
        return max(self.kill_at, self.asked_at) + self.launch["kill_confirm_s"] if self.stop_id else math.inf

    def hear(self, fd: int) -> None:
        messages = self.control.receive()
        self.orphaned = self.orphaned or messages is None
        for message in messages or ():
            if message["word"] == "launch" and not self.launch:
                self.start(message)
            elif message["word"] == "stop" and self.main:
                self.stop_id, self.asked_at = message["id"], time.monotonic()
                self.begin_stop(message["grace_s"])

    def start(self, launch: dict[str, Any]) -> None:
        self.launch, self.log.path = launch, launch["log_path"]
        out, err, go, status = (os.pipe2(os.O_CLOEXEC) for _ in range(4))
        self.me = [os.getpid(), read_stat(os.getpid())[4]]
        self.main = os.fork()
        if self.main == 0:
            become_engine(launch, self.me[0], out[1], err[1], go[0], status[1])
        self.main_start, self.status_fd = read_stat(self.main)[4], status[0]
        for fd in (out[1], err[1], go[0], status[1]):
            os.close(fd)
        for name, fd in (("out", out[0]), ("err", err[0])):
            LIBC.fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES)  # may be refused; then it is merely smaller
            self.streams[fd] = Stream(name, fd, self.log, launch["secrets"])
        try:
            self.record()
            os.write(go[1], b"!")
        except OSError as problem:
            self.failure = {"stage": "record", "errno": problem.errno}
        os.close(go[1])  # a child that was given no byte leaves without executing anything

    def record(self) -> None:
        """``unit.json``: who this is, on the disk before the engine's first instruction (S-37)."""
        fields = {key: self.launch[key] for key in ("scope", "generation", "boot_id", "log_path")}
        fields |= {"guardian": self.me, "main": [self.main, self.main_start]}
        path = os.path.join(self.launch["life_dir"], "unit.json")
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            json.dump(fields, file)
            file.flush()
            os.fsync(fd)
        os.replace(path + ".new", path)

    def read_status(self, fd: int) -> None:
        """End of file: executed. A number: the errno of what failed before."""
        told = os.read(fd, 16)
        os.close(fd)
        self.status_fd = -1
        if told:
            self.failure = self.failure or {"stage": "exec", "errno": int(told)}
        elif not self.failure:
            self.executed = True
            self.control.say("started", guardian=self.me, main=[self.main, self.main_start])

    def pump(self, fd: int) -> None:
        if not self.streams[fd].read():
            del self.streams[fd]
            os.close(fd)

    def begin_stop(self, grace_s: float) -> None:
        """TERM to the main process, once (a second one is a crash to some engines); KILL to all when grace is over."""
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)
        self.ended = self.ended or not self.main
        if self.main and not self.exit and not self.termed:
            self.termed = True
            if grace_s > 0:
                send_signal(self.main, self.main_start, signal.SIGTERM)

    def reap(self) -> None:
        """Every child is ours. That none is left is the only end there is (S-40)."""
        while self.main and not self.ended:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.finish()
            if pid == self.main:
                code = os.waitstatus_to_exitcode(status)
                self.exit = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}
                self.exit |= {"wall": time.time(), "by": "us" if self.termed else "engine"}
            if pid == 0:
                break
        if self.exit and not self.helpers_termed and not self.ended:
            self.helpers_termed = True
            signal_all(signal.SIGTERM)
            self.kill_at = min(self.kill_at, time.monotonic() + HELPER_GRACE_S)

    def finish(self) -> None:
        if self.status_fd >= 0:
            self.read_status(self.status_fd)
        for stream in self.streams.values():
            stream.drain(PIPE_BYTES)
        self.control.say("failed", **self.failure) if self.failure else self.control.say("gone", exit=self.exit)
        self.ended, until = True, time.monotonic() + LAST_LINES_S
        while (self.control.pending or self.log.out.pending) and time.monotonic() < until:
            select.select([], [o.sock for o in (self.control, self.log.out) if o.pending], [], PASS_S)
            self.control.flush()
            self.log.flush()


def main() -> None:
    control, log = (socket.socket(fileno=int(fd)) for fd in sys.argv[1:3])
    guardian = Guardian(control, log)
    try:
        guardian.run()
    except Exception:
        guardian.control.say("fault", text=traceback.format_exc())
        guardian.control.flush()
    with contextlib.suppress(ChildProcessError):
        while guardian.main and not guardian.ended:  # after a fault of ours: still nothing may be left
            signal_all(signal.SIGKILL)
            time.sleep(PASS_S)
            os.waitpid(-1, os.WNOHANG)


if __name__ == "__main__":
    main()
