"""The control API on its two real listeners (C-1; acceptance 4, 5)."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import anyio
import httpx2
import pytest
from control_rig import TOKEN, events_of, running
from control_sockets import Raw, ask, make, serving

from stoker.control import listener, server
from stoker.errors import ErrorCode, StokerError
from stoker.runtime.effects import KernelFault

pytestmark = pytest.mark.anyio


async def test_the_socket_is_for_this_account_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, surface):
        path = surface.addresses["control"]
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.lstat(os.path.dirname(path)).st_mode) == 0o700
        answer = await ask(await Raw.unix(surface), "GET /v1/status", "Host: stoker")
        assert answer.startswith(b"HTTP/1.1 200 ")
    assert not os.path.exists(path)


async def test_a_peer_of_another_account_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (_, surface):
        await ask(await Raw.unix(surface), "GET /livez", "Host: stoker")
        monkeypatch.setattr(listener, "peer_uid", lambda _: 65534)
        answer = await ask(await Raw.unix(surface), "GET /v1/status", "Host: stoker")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b'"scope-missing"' in answer


async def test_tcp_needs_the_token_and_serves_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, surface):
        answer = await ask(await Raw.tcp(surface), "GET /v1/status", "Host: localhost")
        assert answer.startswith(b"HTTP/1.1 401 ")
        answer = await ask(await Raw.tcp(surface), "GET /readyz", "Host: localhost")
        assert answer.startswith(b"HTTP/1.1 200 ")
        answer = await ask(
            await Raw.tcp(surface), "GET /v1/status", "Host: localhost", f"Authorization: Bearer {TOKEN}"
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"server:" not in answer.lower()


async def test_without_a_tcp_address_there_is_no_tcp_listener(tmp_path: Path) -> None:
    async with serving(tmp_path, tcp="") as (_, surface):
        assert set(surface.addresses) == {"control"}
        assert (await ask(await Raw.unix(surface), "GET /livez", "Host: x")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (["Host: evil.example:5152"], b"403"),
        (["Host: 127.0.0.1.evil.example"], b"403"),
        (["Host: localhost@evil.example"], b"400"),
        (["Host: localhost", "Host: localhost"], b"400"),
        ([], b"400"),
        (["Host: LOCALHOST.:5152"], b"200"),
        (["Host: localhost", "Origin: http://evil.example"], b"403"),
        (["Host: localhost", "Origin: null"], b"403"),
    ],
)
async def test_br_1001_hosts_and_origins_as_bytes(tmp_path: Path, fields: list[str], status: bytes) -> None:
    async with serving(tmp_path) as (_, surface):
        answer = await ask(await Raw.tcp(surface), "GET /livez", *fields)
        assert answer.split(b" ")[1] == status
        assert b"access-control" not in answer.lower()


async def test_br_1001_a_page_s_plain_text_post_loads_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, a=10) as (rig, surface):
        before = rig.state()
        answer = await ask(
            await Raw.tcp(surface), "POST /v1/deployments/a/-/load", "Host: localhost", "Origin: http://evil.example",
            "Content-Type: text/plain", body=b"{}",
        )  # fmt: skip
        assert answer.split(b" ")[1] == b"403"
        assert rig.state() == before


async def test_br_601_names_as_they_stand_on_the_wire(tmp_path: Path) -> None:
    async with serving(tmp_path, m=10) as (rig, surface):
        for name, spellings in {
            "aaa/llava:13b": ("aaa%2Fllava:13b", "aaa/llava:13b", "aaa%2Fllava%3A13b", "aaa%2fllava%3a13b"),
            "a b": ("a%20b",),
            "a%2Fb": ("a%252Fb", "a%2Fb"),
            "100%": ("100%25", "100%"),
        }.items():
            kind, body = "Content-Type: application/json", b'{"reference": "m"}'
            answer = await ask(
                await Raw.unix(surface), f"PUT /v1/deployments/{spellings[0]}", "Host: x", kind, body=body
            )
            assert answer.split(b" ")[1] == b"200", answer
            assert name in {each.name for each in rig.runtime.deployments()}
            for spelling in spellings:
                answer = await ask(await Raw.unix(surface), f"POST /v1/deployments/{spelling}/-/unpin", "Host: x")
                assert answer.split(b" ")[1] == b"200", (spelling, answer)
        answer = await ask(await Raw.unix(surface), "GET /v1/deployments/a/../../status", "Host: x")
        assert answer.split(b" ")[1] == b"404"


async def test_broken_http_is_answered_as_a_problem(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, surface):
        raw = await Raw.unix(surface)
        await raw.say(b"HELLO\r\n\r\n")
        answer = await raw.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in answer
        await raw.close()


async def test_callers_that_come_before_the_application_is_built_are_answered(tmp_path: Path) -> None:
    """The daemon's start does not wait for slow imports, and no early caller is turned away."""
    async with running(make_app=False) as rig:
        surface = make(rig, tmp_path)
        early = await Raw.unix(surface)
        await early.say(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        async with anyio.create_task_group() as tasks:

            async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                await surface.run(task_status=task_status)

            await tasks.start(run)
            assert surface._listener is None
            assert (await early.rest()).startswith(b"HTTP/1.1 200 ")
            await early.close()
            await surface.stop()


async def test_nothing_is_built_until_somebody_calls(tmp_path: Path) -> None:
    """A daemon that only serves models holds no memory for this application."""
    async with serving(tmp_path) as (_, surface):
        await anyio.wait_all_tasks_blocked()
        assert surface._listener is None
        await ask(await Raw.unix(surface), "GET /livez", "Host: stoker")
        assert surface._listener is not None


async def test_a_listener_that_is_stopped_before_it_serves_ends_at_once(tmp_path: Path) -> None:
    async with running(make_app=False) as rig:
        surface = make(rig, tmp_path)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:

                async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                    await surface.run(task_status=task_status)

                await tasks.start(run)
                await surface.stop()
        assert not os.path.exists(surface.addresses["control"])


async def test_streams_end_at_shutdown_with_their_last_events(tmp_path: Path) -> None:
    """C-15."""
    async with serving(tmp_path, a=10) as (rig, surface):
        streams = [await Raw.unix(surface), await Raw.tcp(surface)]
        for raw in streams:
            await raw.say(
                f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            await raw.until(b"stream.snapshot-taken")
        rig.runtime.put_deployment(rig.runtime.defaults("late", "a"))
        rig.runtime.bus.close()
        for raw in streams:
            rest = await raw.until(b"0\r\n\r\n")
            assert b"deployment.created" in rest
            await raw.close()


async def test_a_stream_over_http_goes_on_where_it_broke(tmp_path: Path) -> None:
    """C-14, with a real client."""
    async with serving(tmp_path, a=10) as (rig, surface):
        transport = httpx2.AsyncHTTPTransport(uds=surface.addresses["control"])
        async with httpx2.AsyncClient(transport=transport, base_url="http://stoker", timeout=20) as client:
            text = ""
            async with client.stream("GET", "/v1/events") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                await rig.load("a")
                async for part in answer.aiter_text():
                    text += part
                    if "operation.finished" in text and text.endswith("\n\n"):
                        break
            whole = events_of(text)
            rest = ""
            headers = {"last-event-id": whole[1]["id"]}
            async with client.stream("GET", "/v1/events", headers=headers) as answer:
                async for part in answer.aiter_text():
                    rest += part
                    if rest.endswith("\n\n") and len(events_of(rest)) >= len(whole) - 2:
                        break
            assert events_of(rest)[: len(whole) - 2] == whole[2:]
            await rig.until(lambda: rig.runtime.bus.subscribers == 0)


async def test_a_caller_who_leaves_while_it_waits_is_forgotten_and_its_load_goes_on(tmp_path: Path) -> None:
    """C-9."""
    async with serving(tmp_path, a=10) as (rig, surface):
        rig.probes.holds = True
        raw = await Raw.unix(surface)
        await raw.say(b"POST /v1/deployments/a/-/load HTTP/1.1\r\nHost: x\r\nPrefer: wait=300\r\n\r\n")
        await rig.until(lambda: rig.runtime.bus.subscribers == 1)
        await raw.close()
        await rig.until(lambda: rig.runtime.bus.subscribers == 0)
        rig.probes.holds = False
        await rig.until(lambda: rig.phase("a") == "ready")


async def test_reads_are_quick_while_loads_hang(tmp_path: Path) -> None:
    """C-5, S-19: the whole way through a real socket."""
    async with serving(tmp_path, budget_mib=5000, **{f"m{n}": 10 for n in range(50)}) as (rig, surface):
        rig.probes.holds = True
        for n in range(50):
            rig.runtime.load(f"m{n}")
        await rig.until(lambda: len(rig.runtime.sessions()) == 50)
        transport = httpx2.AsyncHTTPTransport(uds=surface.addresses["control"])
        async with httpx2.AsyncClient(transport=transport, base_url="http://stoker", timeout=20) as client:
            await client.get("/v1/snapshot")
            took: list[float] = []
            for _ in range(50):
                for path in ("/v1/status", "/v1/sessions", "/v1/queue"):
                    began = anyio.current_time()
                    assert (await client.get(path)).status_code == 200
                    took.append(anyio.current_time() - began)
        assert sorted(took)[len(took) // 2] < 0.05


async def test_a_kernel_fault_in_a_request_ends_the_surface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(make_app=False) as rig:
        surface = make(rig, tmp_path)

        def breaks(_: object) -> None:
            raise KernelFault("broken")

        monkeypatch.setattr(type(rig.runtime), "pools", breaks)
        met: list[BaseException] = []
        async with anyio.create_task_group() as tasks:

            async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
                try:
                    await surface.run(task_status=task_status)
                except KernelFault as fault:
                    met.append(fault)

            await tasks.start(run)
            answer = await ask(await Raw.unix(surface), "GET /v1/pools", "Host: x")
            assert b"broken" not in answer
        assert len(met) == 1


# -- addresses ---------------------------------------------------------------------------------------------------------


async def test_a_dead_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    async with running(make_app=False) as rig:
        folder = tmp_path / "run"
        folder.mkdir(mode=0o755)
        path = folder / "control.sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        surface = make(rig, tmp_path)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises(StokerError) as refused:
            make(rig, tmp_path)
        assert refused.value.code is ErrorCode.BIND_FAILED
        assert "another daemon" in refused.value.message
        surface._close()
        assert not path.exists()


async def test_what_is_no_socket_of_ours_stays(tmp_path: Path) -> None:
    async with running(make_app=False) as rig:
        (tmp_path / "run").mkdir()
        path = tmp_path / "run" / "control.sock"
        path.write_text("mine")
        with pytest.raises(StokerError, match="no socket"):
            make(rig, tmp_path)
        assert path.read_text() == "mine"
        path.unlink()
        (tmp_path / "run").chmod(0o1777)
        with pytest.raises(StokerError, match="this account alone"):
            make(rig, tmp_path)


async def test_a_path_that_is_too_long_and_a_port_in_use_fail_and_leave_nothing(tmp_path: Path) -> None:
    async with running(make_app=False) as rig:
        with pytest.raises(StokerError, match="too long"):
            make(rig, tmp_path / ("x" * 120))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(StokerError, match="in use"):
                make(rig, tmp_path, f"127.0.0.1:{port}")
        assert not (tmp_path / "run" / "control.sock").exists()


@pytest.mark.parametrize("tcp", ["0.0.0.0:0", "192.168.1.1:80", "example.org:80", "127.0.0.1", "[::]:0", "nonsense"])
async def test_only_loopback_addresses_are_taken(tmp_path: Path, tcp: str) -> None:
    async with running(make_app=False) as rig:
        with pytest.raises(StokerError) as refused:
            make(rig, tmp_path, tcp)
        assert refused.value.code is ErrorCode.INVALID_CONFIG


async def test_another_daemon_s_socket_at_our_path_is_not_taken_away(tmp_path: Path) -> None:
    async with running(make_app=False) as rig:
        surface = make(rig, tmp_path)
        path = surface.addresses["control"]
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
            surface._close()
            assert os.path.exists(path)


async def test_the_surface_is_light_to_import() -> None:
    """FastAPI is most of a start; it comes in a thread, later."""
    import subprocess
    import sys

    code = "import sys, stoker.control.server as s; print([m for m in ('fastapi', 'uvicorn', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert server.ControlSurface
