"""The client and the API understand each other: every call the client has a route for (control sections 2, 3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from control_rig import CONFIG, TOKEN
from control_sockets import serving

from stoker.client.client import StokerClient
from stoker.errors import ErrorCode, StokerError

pytestmark = pytest.mark.anyio


def _use(client: StokerClient) -> dict[str, Any]:
    """Everything, in the order a person might do it; runs in a thread."""
    assert client.status().state == "ready"
    assert client.status().started_at
    assert client.health()["ready"] is True
    assert client.config() == CONFIG
    assert [each.name for each in client.deployments()] == ["a", "b"]
    loaded = client.wait(client.load("a"), timeout_s=20).raise_if_failed()
    session = client.session(int(loaded.result.get("generation", 1)))
    assert (session.deployment, session.phase) == ("a", "ready")
    assert [each.generation for each in client.sessions(deployment="a")] == [session.generation]
    assert client.pin("b").spec["pinned"] is True
    assert client.pin("b", pinned=False).spec["pinned"] is False
    assert client.scale("b", 1).name == "b"
    assert client.release("b").hold is None
    assert client.put("org/x:1", {"reference": "a", "keep_alive_s": 60.0})["created"] is True
    assert client.put("org/x:1", {"reference": "a"}, dry_run=True)["created"] is False
    assert client.deployment("org/x:1").spec["keep_alive_s"] == 60.0
    client.wait(client.delete("org/x:1"), timeout_s=20).raise_if_failed()
    assert client.set_budget("ram", 1 << 29).budget_bytes == 1 << 29
    assert [pool.pool_id for pool in client.pools()] == ["ram"]
    assert {row["name"] for row in client.queue()["deployments"]} == {"a", "b"}
    assert {model["reference"] for model in client.models()}
    assert client.model("a")["names"] == ["a"]
    assert client.engine("fake")["engine_id"] == "fake"
    assert [engine["engine_id"] for engine in client.engines()] == ["fake"]
    assert client.attempts("a")[0]["outcome"] == "ready"
    log = client.logs(tail=1)
    assert [line.text for line in log] == ["last"]
    assert log.source["subject"] == "daemon"
    first = next(iter(client.events()))
    assert first.event == "stream.snapshot-taken"
    assert {each.kind for each in client.operations(state="succeeded")} >= {"load", "remove"}
    unloaded = client.wait(client.unload("a", mode="now"), timeout_s=20)
    assert client.cancel(unloaded.operation_id).state == "succeeded"
    with pytest.raises(StokerError) as unknown:
        client.deployment("nobody")
    assert unknown.value.code is ErrorCode.DEPLOYMENT_NOT_FOUND
    with pytest.raises(StokerError) as over:
        client.stop(99)
    assert over.value.code is ErrorCode.SESSION_NOT_FOUND
    return dict(client.snapshot())


@pytest.mark.parametrize("way", ["control", "control_tcp"])
async def test_a_client_can_do_everything_it_has_a_method_for(tmp_path: Path, way: str) -> None:
    (tmp_path / "daemon.log").write_text("first\nlast\n")
    async with serving(tmp_path, a=10, b=10, folders=str(tmp_path)) as (_, surface):
        client = StokerClient(surface.addresses[way], token=TOKEN if way == "control_tcp" else None)
        with client:
            snapshot = await anyio.to_thread.run_sync(_use, client)
        assert snapshot["status"]["state"] == "ready"
