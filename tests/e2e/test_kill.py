"""``kill -9`` of the daemon at each numbered step, with real engines and with hostile ones (S-98, acceptance 52)."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from killpoints import POINTS
from running import Running, until

from stoker.testing.fake_engine.install import install

LOAD_POINTS = [point for point in POINTS if 1 <= point <= 10]
STOP_POINTS = [point for point in POINTS if 11 <= point <= 18]
HOSTILE = {
    "ignores TERM": ("--ignore-term",),
    "helper in a session of its own": ("--fork-child", "new-session,rename,close-fds"),
    "helper that holds the port": ("--fork-child", "hold-port,ignore-term"),
}


def config(models: dict[str, Path], engine: Path | None = None) -> str:
    text = '[pools.ram]\nbudget_bytes = "120MiB"\n'
    if engine is not None:
        text += f'[engines.llama-cpp]\npath = "{engine}"\n'
    for name in ("ash", "birch"):
        text += f'[models.{name}]\nreference = "file:{models[name]}"\nslots = 1\ncontext_tokens = 1024\n'
        text += 'declared_bytes = "100MiB"\nstop_grace_s = 1\n'
    return text


def provoke(daemon: Running, point: int) -> None:
    """Do what passes the kill point: load one model, then swap to the other, then stop everything."""

    def ask(model: str) -> None:
        try:
            daemon.chat(model)
        except OSError:
            return

    def act() -> None:
        ask("ash")
        if point >= 11 and daemon.process is not None and daemon.process.poll() is None:
            if point == 11:  # a drain needs work in flight
                threading.Thread(target=stream_for_ever, args=(daemon, "ash"), daemon=True).start()
                time.sleep(0.5)
                daemon.process.terminate()
            else:
                ask("birch")

    threading.Thread(target=act, daemon=True).start()


def stream_for_ever(daemon: Running, model: str) -> None:
    try:
        daemon.chat(model, max_tokens=1_000_000, ignore_eos=True)
    except OSError:
        return


def check_reconciled(daemon: Running) -> None:
    """No survivor 5 s after the death; the next start knows the truth; the same model loads again."""
    until(lambda: not daemon.survivors(), 5, f"survivors {daemon.survivors()}")
    daemon.start()
    until(lambda: not daemon.open_lives(), 10, f"open lives {daemon.open_lives()}")
    until(lambda: not list(daemon.home.glob("run/lives/*")), 5, "life directories removed")
    status, answer = daemon.chat("ash")
    assert status == 200, answer
    assert daemon.stop() == 0
    assert not daemon.survivors()
    assert not daemon.open_lives()


@pytest.mark.engine
@pytest.mark.parametrize("point", LOAD_POINTS + STOP_POINTS)
def test_a_daemon_killed_at_each_step_leaves_no_survivor(
    point: int, home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    daemon = Running(home, config(tiny_models))
    daemons.append(daemon)
    daemon.start(point)
    provoke(daemon, point)
    daemon.wait_dead()
    check_reconciled(daemon)


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("point", [6, 7, 9, 12, 13, 14, 15])
def test_br_402_a_hostile_engine_does_not_outlive_a_killed_daemon(
    point: int, hostile: str, home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    engine = install(home / "llama-server", *HOSTILE[hostile])
    daemon = Running(home, config(tiny_models, engine))
    daemons.append(daemon)
    daemon.start(point)
    provoke(daemon, point)
    daemon.wait_dead()
    check_reconciled(daemon)


def test_a_daemon_killed_in_its_start_up_reconcile_is_reconciled_by_the_next(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    """K19: between a stop and its outcome, inside the start."""
    daemon = Running(home, config(tiny_models))
    daemons.append(daemon)
    daemon.start()
    assert daemon.chat("ash")[0] == 200
    daemon.kill()
    daemon.start(15, wait=False)
    daemon.wait_dead()
    check_reconciled(daemon)
