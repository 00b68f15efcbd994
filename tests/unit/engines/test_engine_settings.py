"""Reading an engine's settings from a table (E-22 to E-26)."""

from __future__ import annotations

import pytest

from stoker.engines.llama_cpp.settings import LlamaCppSettings, wishes_of
from stoker.engines.settings import EngineSettings, aliases, marks, read_settings, restart_values
from stoker.errors import ErrorCode, UsageError

INTEGERS = [
    ("gpu_layers", 0, 1000),
    ("cpu_moe_layers", 0, 1000),
    ("batch_tokens", 32, 16_384),
    ("micro_batch_tokens", 32, 16_384),
    ("threads", 1, 1024),
    ("cache_reuse_tokens", 0, 65_536),
    ("checkpoints", 0, 64),
    ("reasoning_budget_tokens", -1, 1_000_000),
    ("max_output_tokens", 1, 4_194_304),
]


def refused(table) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_settings(LlamaCppSettings, table)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value


@pytest.mark.parametrize(("name", "low", "high"), INTEGERS)
def test_both_ends_of_a_range_are_taken_and_what_lies_beyond_is_named(name, low, high) -> None:
    for value in (low, high):
        assert getattr(read_settings(LlamaCppSettings, {name: value}), name) == value
    for value, word in ((low - 1, str(low)), (high + 1, str(high))):
        error = refused({name: value})
        assert error.param == f"settings.{name}"
        assert f"settings.{name} = {value}" in error.message
        assert word in error.message


@pytest.mark.parametrize("value", ["4", 4.0, True, None.__class__, [4]])
def test_a_number_is_a_number_and_nothing_else(value) -> None:
    assert refused({"threads": value}).param == "settings.threads"


def test_an_unknown_setting_is_refused_by_name() -> None:
    error = refused({"thread": 4})
    assert error.param == "settings.thread"
    assert error.message.startswith("settings.thread = 4: ")


def test_the_engines_own_word_is_the_same_setting() -> None:
    assert read_settings(LlamaCppSettings, {"n_gpu_layers": 3}) == read_settings(LlamaCppSettings, {"gpu_layers": 3})


def test_both_words_at_once_are_refused_naming_both() -> None:
    error = refused({"gpu_layers": 3, "ngl": 3})
    assert "gpu_layers and ngl are the same setting" in error.message


def test_auto_and_not_given_are_one_value() -> None:
    assert read_settings(LlamaCppSettings, {"flash_attention": "auto", "gpu_layers": "auto"}) == LlamaCppSettings()
    assert read_settings(LlamaCppSettings, {"gpu_layers": 0}).gpu_layers == 0


def test_settings_that_exclude_one_another_are_refused_in_one_sentence() -> None:
    assert "needs flash_attention" in refused({"cache_type_v": "q8_0", "flash_attention": "off"}).message
    assert "more than batch_tokens" in refused({"batch_tokens": 64, "micro_batch_tokens": 128}).message
    assert "whole number of MiB" in refused({"prompt_cache_bytes": 5}).message


def test_lists_of_a_table_are_taken_and_their_members_are_strict() -> None:
    assert read_settings(LlamaCppSettings, {"tensor_split": [1.0, 3.0]}).tensor_split == (1.0, 3.0)
    assert read_settings(LlamaCppSettings, {"require": ["tools"]}).require == ("tools",)
    assert refused({"require": [1]}).param == "settings.require.0"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        LlamaCppSettings().threads = 3


def test_a_long_value_is_shown_short() -> None:
    assert len(refused({"cache_type_k": "x" * 5000}).message) < 400


def test_marks_and_words_of_the_common_settings() -> None:
    assert marks(EngineSettings) == {
        "task": "restart",
        "max_output_tokens": "request",
        "require": "request",
        "sampling": "request",
    }
    assert aliases(EngineSettings) == {}
    assert restart_values(EngineSettings()) == {"task": None}


def test_wishes_are_the_settings_in_the_planners_words() -> None:
    wishes = wishes_of(
        read_settings(
            LlamaCppSettings,
            {
                "cache_type_k": "q8_0",
                "flash_attention": "off",
                "load_mode": "none",
                "prompt_cache_bytes": 0,
                "threads": 2,
            },
        )
    )
    assert (wishes.kv_type_k, wishes.flash_attention, wishes.use_mmap) == ("q8_0", False, False)
    assert (wishes.cache_ram_bytes, wishes.threads, wishes.kv_type_v) == (0, 2, None)
    assert wishes_of(LlamaCppSettings()).flash_attention is None
