"""Names in paths, plain and percent-encoded once, on every route that takes one (C-3, R-92; BR-601)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from control_rig import problem, running
from hypothesis import given
from hypothesis import strategies as st

from stoker.config.names import name_problem
from stoker.control.paths import Target, read
from stoker.errors import UsageError

NAMES = ("aaa/llava:13b", "Org/Repo-GGUF:Q4_K_M", "a b", "a%2Fb", "100%", "ünïcode/模型", "a?b#c", "x/load", "+&=;@")


@pytest.mark.parametrize(
    ("raw", "path", "names"),
    [
        (b"/v1/status", "/v1/status", ()),
        (b"/v1/pools/gpu%3A0", "/v1/pools/gpu:0", ()),
        (b"/v1/deployments", "/v1/deployments", ()),
        (b"/v1/deployments/", "/v1/deployments/", ()),
        (b"/v1/deployments/a", "/v1/deployments/a", ("a",)),
        (b"/v1/deployments/a/b:q/-/load", "/v1/deployments/a%2Fb%3Aq/-/load", ("a/b:q",)),
        (b"/v1/deployments/a%2Fb/-/load", "/v1/deployments/a%2Fb/-/load", ("a/b", "a%2Fb")),
        (b"/v1/deployments/a%252Fb", "/v1/deployments/a%252Fb", ("a%2Fb", "a%252Fb")),
        (b"/v1/deployments/100%/-/pin", "/v1/deployments/100%25/-/pin", ("100%",)),
        (b"/v1/%64eployments/a/b", "/v1/deployments/a%2Fb", ("a/b",)),
        (b"/v1/models/hf:o/m@main/q.gguf", "/v1/models/hf%3Ao%2Fm%40main%2Fq.gguf", ("hf:o/m@main/q.gguf",)),
        (b"/v1/deployments//-/load", "/v1/deployments//-/load", ()),
        (b"//v1/status", "//v1/status", ()),
    ],
)
def test_a_path_is_split_into_a_route_and_a_name(raw: bytes, path: str, names: tuple[str, ...]) -> None:
    assert read(raw) == Target(path, names)


@pytest.mark.parametrize("raw", [b"/v1/deployments/%ff", b"/v1/\xff", b"/v1/pools/%c3%28"])
def test_a_path_that_is_no_text_is_refused(raw: bytes) -> None:
    with pytest.raises(UsageError):
        read(raw)


@given(st.text(min_size=1, max_size=60).filter(lambda name: name_problem(name) is None), st.sampled_from(["", "/:"]))
def test_every_possible_name_comes_back_from_its_encoded_form(name: str, safe: str) -> None:
    for tail in ("", "/-/load"):
        target = read(f"/v1/deployments/{quote(name, safe=safe)}{tail}".encode())
        assert target.names[0] == name
        assert target.path.count("/") == 3 + tail.count("/")


@pytest.mark.anyio
async def test_br_601_every_spelling_of_a_name_reaches_every_route() -> None:
    """Acceptance 5."""
    async with running(m=10) as rig, rig.client() as client:
        for name in NAMES:
            spellings = {quote(name, safe=""), quote(name, safe="/"), quote(name, safe="/:")}
            made = await client.put(f"/v1/deployments/{quote(name, safe='')}", json={"reference": "m"})
            assert made.status_code == 200, made.text
            assert made.json()["deployment"]["name"] == name
            for spelling in spellings:
                base = f"/v1/deployments/{spelling}"
                assert (await client.get(base)).json()["name"] == name
                found = (await client.get(f"{base}/-/attempts")).json()["items"]
                assert {attempt["deployment"] for attempt in found} <= {name}
                for verb in ("pin", "unpin", "release"):
                    assert (await client.post(f"{base}/-/{verb}")).json()["name"] == name
                scaled = await client.post(f"{base}/-/scale", json={"replicas": 1})
                assert scaled.json()["name"] == name
                for verb in ("load", "unload"):
                    answer = await client.post(f"{base}/-/{verb}", json={}, headers={"prefer": "wait=30"})
                    assert answer.json()["subject"] == name
                    assert answer.json()["state"] == "succeeded", answer.text
                assert (await client.put(base, json={"reference": "m"})).json()["created"] is False
            gone = await client.delete(f"/v1/deployments/{quote(name, safe='/')}", headers={"prefer": "wait=10"})
            assert (gone.json()["subject"], gone.json()["state"]) == (name, "succeeded")


@pytest.mark.anyio
async def test_br_601_a_name_with_a_percent_sign_may_stand_as_it_is() -> None:
    """R-92: but where both exist, the decoded one is meant."""
    async with running(m=10) as rig, rig.client() as client:
        await client.put("/v1/deployments/a%252Fb", json={"reference": "m"})
        assert (await client.get("/v1/deployments/a%2Fb")).json()["name"] == "a%2Fb"
        await client.put("/v1/deployments/a/b", json={"reference": "m"})
        assert (await client.get("/v1/deployments/a%2Fb")).json()["name"] == "a/b"
        assert (await client.get("/v1/deployments/a%252Fb")).json()["name"] == "a%2Fb"


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["..", "a/../b", ".", "a//b", "/a", "a/", "-x", " a", "a ", "a\x07", "a/-"])
async def test_br_601_a_name_that_nobody_could_address_is_refused(name: str) -> None:
    async with running(m=10) as rig, rig.client() as client:
        path = f"/v1/deployments/{quote(name, safe='').replace('.', '%2E')}"  # a client folds plain dots itself
        problem(await client.put(path, json={"reference": "m"}), 400, "invalid-name")
        problem(await client.get(path), 404, "deployment-not-found")


@pytest.mark.anyio
async def test_br_601_an_unknown_name_and_an_unknown_path_are_told_apart() -> None:
    async with running(m=10) as rig, rig.client() as client:
        problem(await client.get("/v1/deployments/no/such:thing"), 404, "deployment-not-found")
        problem(await client.get("/v1/nothing/no/such"), 404, "route-not-found")
        problem(await client.post("/v1/deployments/m/-/lod"), 404, "route-not-found")
        problem(await client.post("/v1/deployments/m/load"), 405, "method-not-allowed")
        problem(await client.get("/v1//deployments"), 404, "route-not-found")
        problem(await client.get("/v1/deployments/"), 404, "route-not-found")
        problem(await client.get("/v1/status/"), 404, "route-not-found")


@pytest.mark.anyio
async def test_a_model_is_found_under_its_reference_with_slashes() -> None:
    async with running(**{"org/m:q4": 10}) as rig, rig.client() as client:
        for spelling in ("org/m:q4", "org%2Fm%3Aq4"):
            assert (await client.get(f"/v1/models/{spelling}")).json()["names"] == ["org/m:q4"]
        problem(await client.get("/v1/models/org%2Fnone"), 404, "model-not-found")
