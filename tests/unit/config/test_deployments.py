"""Deployments from tables: R-92, defaults key by key, and what a control call may say."""

from __future__ import annotations

import pytest

from stoker.config.deployments import implicit_spec, spec_from, specs, table_of
from stoker.config.load import Sources, load
from stoker.domain.deployments import DeploymentSpec
from stoker.errors import ErrorCode, UsageError

TEXT = """
[defaults]
keep_alive_s = "10m"
env = {A = "1", B = "2"}
slots = 4
[models."org/tiny:q4"]
reference = "hf:org/tiny@main#q4"
aliases = ["tiny"]
env = {B = "3"}
slots = "auto"
replicas = 2
[models.plain]
"""


@pytest.fixture
def loaded(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "config" / "config.toml").write_text(TEXT)
    (tmp_path / "data" / "overrides.toml").write_text("[models.kept]\npinned = true\n[models.plain]\nslots = 9\n")
    return load(Sources({"STOKER_HOME": str(tmp_path)}))


def test_a_model_is_its_own_keys_over_the_defaults(loaded):
    tiny, plain, kept = specs(loaded)
    assert tiny == DeploymentSpec(
        name="org/tiny:q4", reference="hf:org/tiny@main#q4", aliases=("tiny",), env={"A": "1", "B": "3"},
        keep_alive_s=600.0, replicas=2, origin="file",
    )  # fmt: skip
    assert (plain.name, plain.reference, plain.slots, plain.origin) == ("plain", "plain", 9, "file")
    assert (kept.pinned, kept.origin, kept.keep_alive_s) == (True, "control", 600.0)


def test_a_stored_model_that_nobody_configured_is_made_of_the_defaults(loaded):
    spec = implicit_spec(loaded, "other", "hf:x/other")
    assert (spec.reference, spec.keep_alive_s, spec.slots, spec.origin) == ("hf:x/other", 600.0, 4, "implicit")


def test_a_control_call_is_checked_as_a_file_is(loaded):
    spec = spec_from(loaded, "new", {"load_timeout_s": "2m", "env": {"C": "x"}})
    assert (spec.origin, spec.load_timeout_s, spec.env) == ("control", 120.0, {"A": "1", "B": "2", "C": "x"})
    for name, table, code, param in (
        ("-x", {}, ErrorCode.INVALID_NAME, "name"),
        ("a/-/b", {}, ErrorCode.INVALID_NAME, "name"),
        ("x", {"keep_alive": 3}, ErrorCode.UNKNOWN_FIELD, "keep_alive"),
        ("x", {"replicas": True}, ErrorCode.INVALID_PARAMETER, "replicas"),
        ("x", {"slots": 0}, ErrorCode.INVALID_PARAMETER, "slots"),
    ):
        with pytest.raises(UsageError) as caught:
            spec_from(loaded, name, table)
        assert (caught.value.code, caught.value.param) == (code, param)


def test_an_error_of_a_control_call_names_the_member_and_the_range(loaded):
    with pytest.raises(UsageError, match=r"^slots = 0 is out of range: 1 to 256\.$"):
        spec_from(loaded, "x", {"slots": 0})
    with pytest.raises(UsageError, match="did you mean keep_alive_s"):
        spec_from(loaded, "x", {"keep-alive-s": 0})


def test_a_spec_shown_as_a_table_gives_the_same_spec_again(loaded):
    for spec in specs(loaded):
        table = {key: value for key, value in table_of(spec).items() if value is not None}
        again = spec_from(loaded, spec.name, table | {"slots": spec.slots or "auto"})
        assert table_of(again) == table_of(spec)
