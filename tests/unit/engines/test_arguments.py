"""What an operator may add to an engine's command (E-27 to E-30)."""

from __future__ import annotations

import pytest

from stoker.engines.arguments import check_arguments
from stoker.engines.llama_cpp.facts import OPTIONS
from stoker.errors import ErrorCode
from stoker.ids import EngineId
from stoker.ports.engines import Build, OptionRules

RULES = OptionRules(
    free={"--top-k": 1, "--fast": 0}, reserved={"--host": "", "-c": "context_tokens"}, env_prefixes=("ENG_",)
)


@pytest.mark.parametrize(
    "args",
    [
        ("--host", "0.0.0.0"),
        ("--host=0.0.0.0",),
        ("--ho", "0.0.0.0"),
        ("--HOST", "0.0.0.0"),
        ("--port", "1"),
        ("--api-key", "x"),
        ("--api_key", "x"),
        ("--ctx_size", "99"),
        ("-c", "99"),
        ("-m", "/x"),
        ("--model=/x",),
        ("--tools", "all"),
        ("-ag",),
        ("--rpc", "h:1"),
        ("--media-path", "/"),
        ("--log-file", "/x"),
        ("--log-prompts-dir", "/x"),
        ("--hf-repo", "a/b"),
        ("--chat-template-file", "/etc/passwd"),
        ("--grammar-file", "/etc/passwd"),
        ("--metrics",),
        ("--no-slots",),
        ("--never-heard-of", "x"),
        ("--temp", "0.5", "--host", "0.0.0.0"),
        ("stray",),
        ("--perf", "stray"),
    ],
)
def test_br_1005_what_would_undo_the_plan_is_refused_in_every_spelling(args) -> None:
    reasons = check_arguments(OPTIONS, args, {})
    assert reasons
    assert reasons[0].code is ErrorCode.BAD_SETTING
    assert reasons[0].param == "engine_args"


@pytest.mark.parametrize(
    "args", [("--top-k", "20"), ("--seed", "-1"), ("--perf",), ("--logit-bias", "15043-1", "--no-perf"), ()]
)
def test_harmless_arguments_pass_with_values_that_begin_with_a_dash(args) -> None:
    assert check_arguments(OPTIONS, args, {}) == ()


def test_a_value_swallows_what_looks_like_an_option_as_the_engine_does() -> None:
    assert check_arguments(RULES, ("--top-k", "--host"), {}) == ()
    assert check_arguments(RULES, ("--fast", "--host"), {})


def test_a_missing_or_unwanted_value_is_refused() -> None:
    assert "has none" in check_arguments(RULES, ("--top-k",), {})[0].message
    assert "takes 0" in check_arguments(RULES, ("--fast=1",), {})[0].message


def test_the_setting_that_decides_an_option_is_named() -> None:
    reason = check_arguments(RULES, ("-c", "9"), {})[0]
    assert "context_tokens decides it" in reason.message
    assert reason.remedy == "Use context_tokens instead of -c."


@pytest.mark.parametrize("name", ["LLAMA_ARG_HOST", "llama_arg_host", "LLAMA_API_KEY", "GGML_RPC"])
def test_br_1005_variables_of_the_engine_are_refused(name) -> None:
    reasons = check_arguments(OPTIONS, (), {name: "x", "MY_OWN": "y"})
    assert [reason.param for reason in reasons] == ["env"]


def test_without_rules_every_option_is_refused_and_every_variable_passes() -> None:
    assert check_arguments(OptionRules(), ("--anything",), {"LLAMA_X": "1"})[0].param == "engine_args"
    assert check_arguments(OptionRules(), (), {"LLAMA_X": "1"}) == ()


def test_a_build_without_a_command_line_takes_no_arguments_at_all() -> None:
    wheel = Build(EngineId("llama-cpp"), "1", frozenset())
    program = Build(EngineId("llama-cpp"), "1", frozenset({"engine-args"}))
    (reason,) = check_arguments(OPTIONS, ("--top-k", "20"), {}, wheel)
    assert "takes no arguments" in reason.message
    assert check_arguments(OPTIONS, ("--top-k", "20"), {}, program) == ()
    assert check_arguments(OPTIONS, (), {}, wheel) == ()
