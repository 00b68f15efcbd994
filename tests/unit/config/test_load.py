"""Sources and mistakes of a configuration: C-20 to C-24; acceptance 17 and 18 of control; BR-901, BR-903, BR-904."""

from __future__ import annotations

import os
import textwrap

import pytest

from stoker.config.load import Flag, Sources, check, fingerprint, load
from stoker.config.origins import changes, origin_of, shown
from stoker.errors import ErrorCode, UsageError


@pytest.fixture
def home(tmp_path):
    for name in ("config/conf.d", "data"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def write(home, text, name="config.toml"):
    path = home / "config" / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def sources(home, *flags, config_file=None, **environ):
    return Sources({"STOKER_HOME": str(home)} | environ, config_file, flags)


def problems(home, *flags, **environ):
    return check(sources(home, *flags, **environ))[1]


def one(home, text):
    write(home, text)
    (problem,) = problems(home)
    return problem


# -- BR-901: nothing is silently ignored ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "key", "near", "belongs"),
    [
        ("[gatewya]\nport = 1\n", 1, "gatewya", "gateway", ()),
        ("\n[models.tiny]\nkeep_alive = 3\n", 3, "models.tiny.keep_alive", "keep_alive_s", ()),
        ("[cache]\nenable = false\n", 2, "cache.enable", "enabled", ()),
        ("[models.tiny]\nwatch_config = false\n", 2, "models.tiny.watch_config", None, ("[daemon]",)),
        (
            "keep_alive_s = 3\n", 1, "keep_alive_s", None,
            ("[defaults]", '[models."NAME"]'),
        ),
        ("[gateway]\nmax-connections = 5\n", 2, "gateway.max-connections", "max_connections", ()),
        ("[sessions]\ndrain_s = {operator = 1, operater = 2}\n", 2, "sessions.drain_s.operater", "operator", ()),
        ("[sessions.drain_s]\nshutdown = 1\nwait = 2\n", 3, "sessions.drain_s.wait", None, ()),
        ('[models."a b".gateway]\nport = 1\n', 1, 'models."a b".gateway', None, ("the top level of the file, as [gateway]",)),
        ("[engines.llama-cpp]\narg = []\n", 2, "engines.llama-cpp.arg", "args", ()),
        ("[defaults]\naliases = []\n", 2, "defaults.aliases", None, ('[models."NAME"]',)),
    ],
)  # fmt: skip
def test_br_901_a_misspelt_or_misplaced_key_is_named_with_its_place_and_what_was_meant(
    home, text, line, key, near, belongs
):
    problem = one(home, text)
    assert (problem.line, problem.key, problem.nearest, problem.belongs_at) == (line, key, near, belongs)
    assert problem.origin == f"{home}/config/config.toml:{line}"
    assert key in str(problem)
    for word in (*([near] if near else []), *belongs):
        assert word in str(problem)


def test_br_901_free_tables_stay_free(home):
    write(
        home,
        """
        [models.tiny]
        env = {ANY_THING = "x"}
        labels.team = "red"
        settings.whatever.deep = 1
        sampling = {temperature = 0.5}
        engine_args = ["--unheard-of"]
        [containers]
        registries = {"ghcr.io" = "/root/x"}
        """,
    )
    model = load(sources(home)).settings.models["tiny"]
    assert model.settings == {"whatever": {"deep": 1}}
    assert model.labels == {"team": "red"}


def test_br_901_another_version_is_named_as_such(home):
    problem = one(home, "config_version = 2\n[future]\nx = 1\n")
    assert "config_version = 2 is another version's" in problem.message


def test_br_901_the_error_of_the_daemon_is_what_the_check_finds(home):
    write(home, "[gateway]\ncolour = 1\nport = 'x'\n[log]\nlevel = 'loud'\n")
    found = problems(home)
    assert [problem.line for problem in found] == [3, 2, 5]
    with pytest.raises(UsageError) as caught:
        load(sources(home))
    error = caught.value
    assert error.code == ErrorCode.INVALID_CONFIG
    assert error.row.exit_code == 2
    assert [entry["message"] for entry in error.details["problems"]] == [problem.message for problem in found]
    assert all(problem.message in error.message for problem in found)


def test_all_problems_of_all_sources_are_reported_in_one_run(home):
    write(home, "[gateway]\nport = true\n")
    write(home, "[gateway]\nhost = \n", "conf.d/10.toml")
    write(home, "[queue]\nnope = 1\n", "conf.d/20.toml")
    (home / "data" / "overrides.toml").write_text("[cache]\nenabled = 1\n")
    found = problems(home, Flag("--port", ("gateway", "port"), 99999), STOKER_LOG__LEVEL="loud", STOKER_WHAT__EVER="1")
    where = {problem.origin.removeprefix(f"{home}/") for problem in found}
    assert where == {
        "config/config.toml:2", "config/conf.d/10.toml:2", "config/conf.d/20.toml:2", "control", "env:STOKER_LOG__LEVEL",
        "env:STOKER_WHAT__EVER", "flag:--port",
    }  # fmt: skip


def test_a_mistake_that_a_stronger_source_covers_is_still_named(home):
    write(home, "[gateway]\nport = 'x'\n")
    assert len(problems(home, STOKER_GATEWAY__PORT="5000")) == 1


# -- no coercion, ranges, quantities -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[gateway]\nport = '5151'", ("gateway.port = '5151'", "a whole number")),
        ("[gateway]\nport = true", ("gateway.port = true", "a whole number")),
        ("[gateway]\nport = 70000", ("gateway.port = 70000", "0 to 65535")),
        ("[gateway]\nport = -1", ("gateway.port = -1", "0 to 65535")),
        ("[gateway]\nport = 5151.0", ("gateway.port = 5151.0", "a whole number")),
        ("[gateway]\nhost = 5", ("gateway.host = 5", "text in quotes")),
        ("[gateway]\nhost = ''", ("gateway.host", "must not be empty")),
        ("[gateway]\ndialects = ['openai', 'grpc']", ("gateway.dialects.1 = 'grpc'", "'ollama'")),
        ("[gateway]\ntrusted_hosts = 'a'", ("gateway.trusted_hosts = 'a'", "a list")),
        ("[cache]\nenabled = 1", ("cache.enabled = 1", "true or false")),
        ("[cache]\nenabled = 'true'", ("cache.enabled = 'true'", "true or false")),
        ("[queue]\nturn_gap_s = '5'", ("queue.turn_gap_s", "'5'", "30s")),
        ("[queue]\nturn_gap_s = true", ("queue.turn_gap_s", "True")),
        ("[queue]\nturn_gap_s = -1", ("queue.turn_gap_s = -1", "0 to 3600 seconds")),
        ("[queue]\nturn_gap_s = '2d'", ("queue.turn_gap_s = '2d'", "0 to 3600 seconds")),
        ("[queue]\nturn_gap_s = inf", ("queue.turn_gap_s", "inf")),
        ("[queue]\nturn_gap_s = nan", ("queue.turn_gap_s", "nan")),
        ("[cache]\nverify_ratio = nan", ("cache.verify_ratio",)),
        ("[gateway]\nspool_bytes = '4 parsecs'", ("gateway.spool_bytes", "parsecs", "GB")),
        ("[gateway]\nspool_bytes = 1.5", ("gateway.spool_bytes", "whole number of bytes")),
        ("[pools.ram]\nbudget_bytes = '120%'", ("pools.ram.budget_bytes", "120%")),
        ("[pools.ram]\nbudget_bytes = -4", ("pools.ram.budget_bytes", "below 0")),
        ("[sessions]\nport_range = '9-1'", ("sessions.port_range", "9-1")),
        ("[sessions]\ndrain_s = 30", ("sessions.drain_s = 30", "a table")),
        ("[control]\ntcp = 'nowhere'", ("control.tcp", "127.0.0.1:5152")),
        ("[models.tiny]\nkeep_alive_s = -2", ("models.tiny.keep_alive_s", "-1 (until unloaded)")),
        ("[models.tiny]\ncontext_tokens = 10", ("models.tiny.context_tokens = 10", "256 to 4194304 tokens")),
        ("[models.tiny]\nreference = 7", ("models.tiny.reference = 7", "text in quotes")),
        ("models = 3", ("models = 3", "a table")),
        ("daemon = []", ("daemon = []", "a table")),
        ("[log]\nlevel = 2020-01-01", ("log.level", "'debug'")),
    ],
)
def test_nothing_is_coerced_and_the_message_has_path_value_and_range(home, text, parts):
    problem = one(home, text)
    assert problem.line is not None
    for part in parts:
        assert part in problem.message


def test_a_value_of_an_environment_table_is_never_repeated_in_a_message(home):
    problem = one(home, "[models.tiny]\nenv = {HF_TOKEN = 12345678}\n")
    assert "HF_TOKEN" in problem.message
    assert "12345678" not in str(problem)


def test_quantities_are_numbers_in_their_unit_or_text_with_one(home):
    write(
        home,
        """
        [queue]
        turn_gap_s = "250ms"
        swap_bound_s = 7
        [cache]
        max_age_s = "7d"
        disk_bytes = "20GB"
        keep_free_bytes = "1.5GiB"
        [pools."gpu:0"]
        budget_bytes = "80%"
        reserve_bytes = 5
        [models.tiny]
        keep_alive_s = -1
        load_timeout_s = "5m"
        context_tokens = "auto"
        """,
    )
    found = load(sources(home)).settings
    assert (found.queue.turn_gap_s, found.queue.swap_bound_s, found.cache.max_age_s) == (0.25, 7.0, 604800.0)
    assert (found.cache.disk_bytes, found.cache.keep_free_bytes) == (20 * 10**9, 3 * 2**29)
    assert (found.pools["gpu:0"].budget_bytes, found.pools["gpu:0"].reserve_bytes) == ("80%", 5)
    model = found.models["tiny"]
    assert (model.keep_alive_s, model.load_timeout_s, model.context_tokens) == (-1.0, 300.0, None)


# -- given twice ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "lines"),
    [
        ("[gateway]\nport = 1\n\nport = 2\n", "gateway.port", (2, 4)),
        ("[gateway]\nport = 1\n[log]\n[gateway]\nhost = 'a'\n", "gateway", (1, 4)),
        ("gateway.port = 1\n'gateway'.\"port\" = 2\n", "gateway.port", (1, 2)),
        ("[models.tiny]\nenv = {A = '1', A = '2'}\n", "models.tiny.env.A", (2, 2)),
    ],
)
def test_a_key_or_table_given_twice_is_named_with_both_lines(home, text, key, lines):
    problem = one(home, text)
    assert problem.key == key
    assert f"{key} is given twice, on lines {lines[0]} and {lines[1]}" in problem.message
    assert problem.line == lines[1]


def test_a_model_pool_or_engine_of_two_files_is_named_with_both(home):
    text = "[models.tiny]\n[pools.ram]\n[engines.llama-cpp]\n"
    write(home, text)
    write(home, "\n" + text, "conf.d/10.toml")
    found = problems(home)
    assert [problem.key for problem in found] == ["models.tiny", "pools.ram", "engines.llama-cpp"]
    assert [problem.line for problem in found] == [2, 3, 4]
    assert f"{home}/config/config.toml:1" in found[0].message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('[models.a]\naliases = ["b"]\n[models.b]\n', ""),
        ('[models.a]\naliases = ["x"]\n[models.b]\naliases = ["x"]\n', ""),
        ('[models.a]\naliases = ["a"]\n', ""),
        ('[models.a]\naliases = ["b"]\n', "[models.b]\n"),
        ('[models.a]\naliases = ["x"]\n', '[models.b]\naliases = ["x"]\n'),
    ],
)
def test_a_name_that_is_taken_cannot_be_an_alias(home, first, second):
    write(home, first)
    write(home, second, "conf.d/10.toml")
    (problem,) = problems(home)
    assert "already, at" in problem.message
    assert problem.line is not None


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "-a", "a//b", "a/./b", "../a", "a/-/b", "/a", "a/", "tab\\tbed", "x" * 257, "é" * 129]
)
def test_names_that_no_route_could_carry_are_refused(home, name):
    assert "cannot be a model's name" in one(home, f'[models."{name}"]\n').message


@pytest.mark.parametrize("name", ["org/model:q4", "two words", "100%", "é", "a.b", "x" * 256, "a/--/b", "a-"])
def test_unusual_names_are_kept_byte_for_byte(home, name):
    write(home, f'[models."{name}"]\n')
    assert list(load(sources(home)).settings.models) == [name]


# -- BR-903: encodings ---------------------------------------------------------------------------------------------

GOOD = '# caf\u00e9\n[models."caf\u00e9"]\nkeep_alive_s = 9\n'


@pytest.mark.parametrize(
    "raw",
    [GOOD.encode(), b"\xef\xbb\xbf" + GOOD.encode(), GOOD.replace("\n", "\r\n").encode(),
     b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()],
    ids=["utf-8", "mark", "crlf", "mark and crlf"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["config.toml", "conf.d/10.toml"])
def test_br_903_utf_8_is_read_with_and_without_a_mark_and_with_either_line_end(home, raw, name):
    (home / "config" / name).write_bytes(raw)
    loaded = load(sources(home))
    assert loaded.settings.models["caf\u00e9"].keep_alive_s == 9
    assert origin_of(loaded.origins, ("models", "caf\u00e9", "keep_alive_s")).endswith(f"{name}:3")


@pytest.mark.parametrize(
    ("raw", "word", "line"),
    [
        (b"\xff\xfe" + GOOD.encode("utf-16-le"), "UTF-16 LE", 1),
        (b"\xfe\xff" + GOOD.encode("utf-16-be"), "UTF-16 BE", 1),
        (b"\xff\xfe\0\0" + GOOD.encode("utf-32-le"), "UTF-32 LE", 1),
        (b"\0\0\xfe\xff" + GOOD.encode("utf-32-be"), "UTF-32 BE", 1),
        (GOOD.encode("utf-16-le"), "UTF-16 LE without a mark", 1),
        (GOOD.encode("utf-16-be"), "UTF-16 BE without a mark", 1),
        (b'[log]\n[models."caf\xe9"]\n', "byte 0xe9 is not valid UTF-8", 2),
        (b"[log]\nlevel = 'a\0b'\n", "NUL byte", 2),
        (b"[log]\n\xef\xbb\xbflevel = 'info'\n", "byte-order mark stands in the middle", 2),
        (b"[log\n", "not valid TOML", 1),
    ],
)
def test_br_903_other_encodings_are_refused_by_name_and_never_lead_to_defaults(home, raw, word, line):
    (home / "config" / "config.toml").write_bytes(raw)
    loaded, (problem, *_) = check(sources(home))
    assert loaded is None
    assert word in problem.message
    assert problem.line == line
    if "TOML" not in word:
        assert "byte" in problem.message


def test_br_903_an_empty_file_means_defaults(home):
    write(home, "")
    assert load(sources(home)).settings.gateway.port == 5151


def test_a_missing_file_is_fine_only_at_the_default_place(home):
    assert load(sources(home)).files == ()
    with pytest.raises(UsageError, match="No such file"):
        load(sources(home, config_file=str(home / "nowhere.toml")))
    with pytest.raises(UsageError, match="No such file"):
        load(sources(home, STOKER_CONFIG=str(home / "nowhere.toml")))


@pytest.mark.parametrize("name", ["config.toml", "conf.d/10.toml"])
def test_a_file_that_is_there_and_cannot_be_read_fails_the_start(home, name):
    os.symlink(home / "nowhere", home / "config" / name)
    assert "it cannot be read" in problems(home)[0].message


def test_a_folder_of_files_that_cannot_be_listed_fails_the_start(home):
    (home / "config" / "conf.d").rmdir()
    (home / "config" / "conf.d").write_text("a file")
    assert "it cannot be read" in problems(home)[0].message


def test_only_toml_files_of_the_folder_count_in_name_order(home):
    write(home, "[gateway]\nport = 1\n")
    for name, port in (("20.toml", 3), ("10.toml", 2), (".30.toml", 4), ("40.toml~", 5), ("50.txt", 6)):
        write(home, f"[gateway]\nport = {port}\n", f"conf.d/{name}")
    loaded = load(sources(home))
    assert loaded.settings.gateway.port == 3
    assert [os.path.basename(path) for path in loaded.files] == ["config.toml", "10.toml", "20.toml"]


# -- BR-904: which source wins -------------------------------------------------------------------------------------

_KINDS = {
    "number": (("gateway", "port"), "port = 1111", "2222", 2222, 3333, 5151),
    "flag": (("cache", "enabled"), "enabled = false", "true", True, False, True),
    "list": (("gateway", "trusted_hosts"), 'trusted_hosts = ["a", "b"]', " c , d ", ("c", "d"), ["e"], ()),
    "secret": (("store", "token_file"), 'token_file = "/a"', " /b\n", "/b", "/c", ""),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_br_904_flag_before_environment_before_control_before_file_before_default(home, kind):
    path, file, variable, from_variable, flag, default = _KINDS[kind]
    name = "STOKER_" + "__".join(path).upper()
    given = Flag("--it", path, flag)

    def value(*flags, **environ):
        loaded = load(sources(home, *flags, **environ))
        return getattr(getattr(loaded.settings, path[0]), path[1]), origin_of(loaded.origins, path)

    from_flag = tuple(flag) if isinstance(flag, list) else flag
    assert value() == (default, "default")
    write(home, f"\n[{path[0]}]\n{file}\n")
    from_file, origin = value()
    assert from_file != default
    assert origin == f"{home}/config/config.toml:3"
    (home / "data" / "overrides.toml").write_text(f"[{path[0]}]\n{file}\n")
    assert value() == (from_file, "control")
    assert value(**{name: variable}) == (from_variable, f"env:{name}")
    assert value(given, **{name: variable}) == (from_flag, "flag:--it")
    for empty in ("", "  ", "\n"):
        assert value(**{name: empty}) == (from_file, "control")


@pytest.mark.parametrize("kind", _KINDS)
def test_br_904_a_given_flag_wins_even_when_it_equals_the_default(home, kind):
    path, file, variable, *_, default = _KINDS[kind]
    write(home, f"[{path[0]}]\n{file}\n")
    given = Flag("--it", path, list(default) if isinstance(default, tuple) else default)
    loaded = load(sources(home, given, **{"STOKER_" + "__".join(path).upper(): variable}))
    assert getattr(getattr(loaded.settings, path[0]), path[1]) == default
    assert origin_of(loaded.origins, path) == "flag:--it"


@pytest.mark.parametrize("text", ["1", "0", "yes", "True", "TRUE", "on"])
def test_br_904_environment_booleans_are_true_and_false_only(home, text):
    (problem,) = problems(home, STOKER_CACHE__ENABLED=text)
    assert problem.origin == "env:STOKER_CACHE__ENABLED"
    assert "true or false" in problem.message


def test_br_904_variables_of_other_programs_change_nothing(home):
    inherited = {"PORT": "1", "HOST": "0.0.0.0", "OLLAMA_HOST": "x", "LLAMA_ARG_PORT": "9", "STOKER_UNIT": "0:1"}
    loaded = load(sources(home, **inherited))
    assert loaded.settings == load(sources(home)).settings
    assert loaded.origins == {}


def test_a_variable_with_one_underscore_too_few_is_named(home):
    (problem,) = problems(home, STOKER_GATEWAY_PORT="1")
    assert problem.nearest == "STOKER_GATEWAY__PORT"


def test_variables_reach_models_engines_and_free_tables(home):
    write(home, '[models."Org/Tiny:q4"]\n[engines.llama-cpp]\n')
    loaded = load(
        sources(
            home, STOKER_MODELS__ORG_TINY_Q4__KEEP_ALIVE_S="2m", STOKER_ENGINES__LLAMA_CPP__ENABLED="false",
            STOKER_MODELS__ORG_TINY_Q4__ENV__HF_Home="5", STOKER_MODELS__ORG_TINY_Q4__SETTINGS__THREADS="4",
            STOKER_SESSIONS__DRAIN_S__OPERATOR="3", STOKER_MEMORY__YIELD="false",
        )
    )  # fmt: skip
    model = loaded.settings.models["Org/Tiny:q4"]
    assert (model.keep_alive_s, model.env, model.settings) == (120.0, {"HF_Home": "5"}, {"threads": 4})
    assert not loaded.settings.engines["llama-cpp"].enabled
    assert loaded.settings.sessions.drain_s.operator == 3
    assert not loaded.settings.memory.yield_


def test_a_table_cannot_be_given_by_one_variable(home):
    (problem,) = problems(home, STOKER_MODELS__X__ENV="A=b")
    assert "STOKER_MODELS__X__ENV__KEY" in problem.message


def test_lists_replace_and_tables_merge_key_by_key(home):
    write(home, '[defaults]\nenv = {A = "1", B = "2"}\nengine_args = ["a"]\n[store]\nprefer = ["X"]\n')
    write(home, '[defaults.env]\nB = "3"\n[store]\nprefer = ["Y"]\n', "conf.d/10.toml")
    loaded = load(sources(home))
    assert loaded.settings.defaults.env == {"A": "1", "B": "3"}
    assert loaded.settings.store.prefer == ("Y",)
    assert origin_of(loaded.origins, ("defaults", "env", "A")) == f"{home}/config/config.toml:2"
    assert origin_of(loaded.origins, ("defaults", "env", "B")) == f"{home}/config/conf.d/10.toml:2"


# -- folders, origins, changes -------------------------------------------------------------------------------------


def test_the_data_folder_of_a_file_is_where_kept_values_are_read(home, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "overrides.toml").write_text("[gateway]\nport = 7\n")
    write(home, f'[daemon]\ndata_dir = "{other}"\n')
    loaded = load(sources(home))
    assert loaded.paths.data_dir == str(other)
    assert loaded.settings.gateway.port == 7


def test_the_configuration_folder_is_no_business_of_a_file_in_it(home, tmp_path):
    assert "STOKER_DAEMON__CONFIG_DIR" in one(home, '[daemon]\nconfig_dir = "/x"\n').message
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.toml").write_text("[gateway]\nport = 8\n")
    assert load(sources(home, STOKER_DAEMON__CONFIG_DIR=str(other))).settings.gateway.port == 8


def test_every_value_has_an_origin_and_secrets_are_hidden_by_the_caller(home):
    write(home, '[defaults]\nkeep_alive_s = 7\n[models.tiny]\nenv = {HF_TOKEN = "secret"}\n')
    loaded = load(sources(home))
    rows = {
        key: (value, origin)
        for key, value, origin in shown(
            loaded.settings, loaded.origins, lambda name, value: "set" if name == "HF_TOKEN" else value
        )
    }
    assert rows["gateway.port"] == (5151, "default")
    assert rows["models.tiny.keep_alive_s"] == (7.0, f"{home}/config/config.toml:2")
    assert rows["models.tiny.env.HF_TOKEN"] == ("set", f"{home}/config/config.toml:4")
    assert rows["memory.yield"] == (True, "default")


def test_changes_carry_their_effect_and_spelling_is_no_change(home):
    write(home, '[cache]\nmax_age_s = "7d"\nenabled = true\n[models.tiny]\nslots = 2\n')
    before = load(sources(home)).settings
    write(home, "[models.tiny]\nslots = 2\n# moved\n[cache]\nenabled = true\nmax_age_s = 604800\n")
    loaded = load(sources(home))
    assert changes(before, loaded.settings, loaded.origins) == ()
    write(home, "[gateway]\nport = 1\n[models.tiny]\nslots = 3\nload_timeout_s = 5\nkeep_alive_s = 1\n[models.new]\n")
    loaded = load(sources(home))
    found = {change.key: change for change in changes(before, loaded.settings, loaded.origins)}
    assert {key: found[key].effect for key in found if not key.startswith("models.new")} == {
        "gateway.port": "R", "cache.max_age_s": "L", "models.tiny.slots": "D", "models.tiny.load_timeout_s": "N",
        "models.tiny.keep_alive_s": "L",
    }  # fmt: skip
    assert found["models.tiny.slots"].subjects == ("tiny",)
    assert (found["models.tiny.slots"].old, found["models.tiny.slots"].new) == (2, 3)
    assert any(key.startswith("models.new") for key in found)


def test_the_fingerprint_moves_with_every_file_and_with_nothing_else(home):
    path = write(home, "[gateway]\nport = 1\n")
    where = sources(home)
    paths = load(where).paths
    seen = [fingerprint(where, paths)]
    os.utime(path)
    assert fingerprint(where, paths) == seen[0]
    for change in (
        lambda: write(home, "[gateway]\nport = 2\n"),
        lambda: write(home, "", "conf.d/10.toml"),
        lambda: (home / "data" / "overrides.toml").write_text(""),
        lambda: os.unlink(path),
    ):
        change()
        seen.append(fingerprint(where, paths))
    assert len(set(seen)) == len(seen)
