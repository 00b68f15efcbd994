"""Following a start of llama.cpp, judging it, and explaining its end (E-38 to E-50)."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from llama_samples import ADAPTER, FAILED, MIB, log, logs, plan, ready

from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.ports.engines import Accepted, ExitSeen, Seen, Stage, Verdict
from stoker.ports.units import Exit


def follow(name: str) -> Seen:
    return functools.reduce(lambda seen, line: ADAPTER.read_line(line, seen), log(name), Seen())


def test_readiness_and_liveness_are_the_health_route_and_its_words() -> None:
    startup = ADAPTER.startup(plan(), None)
    assert (startup.probe.path, startup.probe.status, startup.probe.body_has) == ("/health", 200, b'"ok"')
    assert startup.liveness.path == "/health"
    assert startup.also == ("/props",)


def test_a_captured_start_tells_stages_numbers_and_memory() -> None:
    seen = follow("embedded-smollm2-ready")
    assert seen.stage is Stage.VERIFYING
    assert seen.listening
    assert seen.fatal is None
    assert seen.numbers == {"slots": 1, "context_tokens": 4096}
    assert follow("binary-tiny-ready").numbers["layers_on_device"] == 0
    assert {term: round(amount / MIB, 2) for (pool, term), amount in seen.memory.items() if pool == "ram"} == {
        "weights": 92.1,
        "output": 0.19,
        "kv": 90.0,
        "compute": 18.64,
    }


def test_lines_about_buffers_of_cards_are_their_own_pool() -> None:
    seen = Seen()
    for line in (
        "0.01.0 I load_tensors:        CUDA0 model buffer size =  1000.50 MiB",
        "0.01.0 I load_tensors:   CPU_Mapped model buffer size =   100.00 MiB",
        "0.01.0 I load_tensors:   CPU_REPACK model buffer size =    50.00 MiB",
        "0.01.0 I llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB",
        "0.01.0 I sched_reserve:  CUDA_Host compute buffer size =     2.00 MiB",
        "0.01.0 I llama_kv_cache:      CUDA0 KV buffer size =    16.00 MiB",
        "0.01.0 I llama_kv_cache:      CUDA0 KV buffer size =  1.2.3 MiB",
    ):
        seen = ADAPTER.read_line(line, seen)
    assert {key: amount / MIB for key, amount in seen.memory.items()} == {
        ("CUDA0", "weights"): 1000.5,
        ("ram", "weights"): 100.0,
        ("ram", "repacked"): 50.0,
        ("CUDA0", "kv"): 80.0,
        ("ram", "compute"): 2.0,
    }


def test_a_line_that_tells_nothing_gives_the_same_record() -> None:
    seen = follow("binary-tiny-ready")
    assert ADAPTER.read_line("0.02.0 I srv  update_slots: all slots are idle", seen) is seen


def test_a_failed_stage_of_the_launcher_ends_the_wait() -> None:
    assert "failed" in (follow("embedded-missing").fatal or "")
    assert follow("embedded-tiny-ready").fatal is None


def test_the_planned_session_is_accepted_with_what_the_engine_reports() -> None:
    accepted = ADAPTER.judge_ready(ready())
    assert isinstance(accepted, Accepted)
    assert (accepted.width, accepted.context_tokens, accepted.engine_names) == (2, 2048, ("tiny",))
    assert accepted.capabilities.can("tools")
    assert not accepted.capabilities.can("vision")
    assert accepted.capabilities.max_choices == 2
    assert accepted.warnings == ()


def test_less_than_planned_is_refused_with_both_numbers() -> None:
    verdict = ADAPTER.judge_ready(ready(default_generation_settings={"n_ctx": 1792}))
    assert isinstance(verdict, Verdict)
    assert verdict.numbers == {"given": 1792, "planned": 2048}
    assert "1792" in verdict.message
    assert "2048" in verdict.message


def test_more_than_planned_is_a_warning() -> None:
    accepted = ADAPTER.judge_ready(ready(default_generation_settings={"n_ctx": 4096}, total_slots=4))
    assert isinstance(accepted, Accepted)
    assert len(accepted.warnings) == 2
    assert (accepted.width, accepted.context_tokens) == (4, 4096)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"total_slots": true}', b'{"total_slots": "2"}'])
def test_figures_nobody_told_are_the_plans_and_marked_unverified(body) -> None:
    accepted = ADAPTER.judge_ready(replace(ready(), bodies={"/props": body}))
    assert isinstance(accepted, Accepted)
    assert (accepted.width, accepted.context_tokens) == (2, 2048)
    assert "unverified" in accepted.warnings[0]


def test_the_log_tells_the_figures_where_the_route_does_not() -> None:
    seen = Seen(numbers={"slots": 1, "context_tokens": 2048})
    verdict = ADAPTER.judge_ready(replace(ready(seen=seen), bodies={}))
    assert isinstance(verdict, Verdict)
    assert verdict.cause == "slots-below-plan"


def test_a_name_with_a_comma_is_not_compared() -> None:
    assert isinstance(ADAPTER.judge_ready(ready(plan(deployment="a,b"), model_alias="m-7")), Accepted)


def test_a_template_without_tools_cannot_be_asked_for_them() -> None:
    caps = {"supports_tools": False}
    accepted = ADAPTER.judge_ready(ready(chat_template_caps=caps))
    assert isinstance(accepted, Accepted)
    assert ADAPTER.wire(plan(), accepted).policy.asks["tools"] == "no"
    required = plan(settings=LlamaCppSettings.model_validate({"require": ["tools"]}))
    refused = ADAPTER.judge_ready(ready(required, chat_template_caps=caps))
    assert isinstance(refused, Verdict)
    assert "tools" in refused.message


def test_before_a_start_what_only_the_engine_knows_is_unknown_and_counts_as_no() -> None:
    expected = ADAPTER.capabilities(plan().facts, LlamaCppSettings(), None)
    assert expected.flags["tools"] == "unknown"
    assert not expected.can("tools")
    assert expected.can("chat")
    assert not expected.can("embeddings")
    assert expected.flags.keys() == ADAPTER.judge_ready(ready()).capabilities.flags.keys()


def test_a_model_without_a_template_completes_and_does_not_chat() -> None:
    base = replace(plan().facts, has_chat_template=False)
    expected = ADAPTER.capabilities(base, LlamaCppSettings(), None)
    assert expected.can("completions")
    assert not expected.can("chat")
    accepted = ADAPTER.judge_ready(ready(plan(facts=base)))
    assert {route.path for route in ADAPTER.wire(plan(facts=base), accepted).policy.routes} == {
        "/v1/completions", "/tokenize", "/detokenize",
    }  # fmt: skip


@pytest.mark.parametrize("case", [log for log in logs() if log.kind], ids=lambda case: case.name)
def test_a_failure_is_told_in_one_sentence_without_paths_or_flags(case) -> None:
    verdict = ADAPTER.explain(ExitSeen(case.exit, "starting", case.lines, plan()))
    assert "/models/" not in verdict.message
    assert "--" not in verdict.message.replace("--cache-type-k", "").replace("--no-such-flag", "").replace(
        "--device", ""
    ).replace("--slot-save-path", "")
    assert verdict.message.count(". ") == 0
    assert "--" not in verdict.remedy


def test_the_whole_need_stands_in_the_sentence_of_a_failed_cache() -> None:
    verdict = ADAPTER.explain(
        ExitSeen(FAILED, "starting", log("embedded-kv-cache"), plan(context_tokens=65_536, slots=1))
    )
    assert verdict.message == "The system has no memory for the cache of 65536 tokens, 1440 MiB in one piece."


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (Exit(0, None, None, 0.0, "engine"), "engine-exited"),
        (Exit(1, None, None, 0.0, "engine"), "engine-exited"),
        (Exit(None, 11, None, 0.0, "engine"), "engine-fault"),
        (Exit(139, None, None, 0.0, "engine"), "engine-fault"),
        (Exit(None, 6, None, 0.0, "engine"), "engine-fault"),
        (Exit(None, 4, None, 0.0, "engine"), "illegal-instruction"),
        (Exit(132, None, None, 0.0, "engine"), "illegal-instruction"),
        (None, "engine-exited"),
    ],
)
def test_without_a_word_in_the_log_the_end_itself_decides(end, kind) -> None:
    assert ADAPTER.explain(ExitSeen(end, "ready", ())).kind == kind


def test_a_good_log_explains_nothing_and_status_zero_is_still_an_end() -> None:
    verdict = ADAPTER.explain(ExitSeen(Exit(0, None, None, 0.0, "engine"), "ready", log("embedded-served")))
    assert (verdict.kind, verdict.message) == ("engine-exited", "llama.cpp ended with status 0.")


def test_the_excerpt_is_short_and_without_repeats() -> None:
    lines = (*tuple(f"0.00.00{n}.000 E srv: the same failure" for n in range(9)), "E" * 4000)
    verdict = ADAPTER.explain(ExitSeen(FAILED, "starting", (*lines, "\x1b[31mstd::bad_alloc\x07")))
    assert verdict.excerpt == (lines[0], "[31mstd::bad_alloc")
