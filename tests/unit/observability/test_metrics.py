"""The table of metrics and the page a scraper reads (C-28; the unit part of acceptance 22)."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker.observability.metrics import TABLE, EngineText, Meters, render


def parsed(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def filled():
    meters = Meters()
    for name, spec in TABLE.items():
        labels = tuple(f"{label}-value" for label in spec.labels)
        match spec.kind:
            case "counter":
                meters.count(name, *labels, by=3)
            case "gauge":
                meters.gauge(name, *labels, value=2.5)
            case "histogram":
                meters.observe(name, *labels, value=0.3)
    return meters


def test_names_follow_the_rules_of_names():
    for name, spec in TABLE.items():
        assert name.startswith("stoker_")
        assert spec.help.endswith(".")
        assert (spec.kind == "counter") == name.endswith("_total")
        assert bool(spec.bounds) == (spec.kind == "histogram")
        assert list(spec.bounds) == sorted(set(spec.bounds))


def test_every_metric_of_the_table_is_on_the_page_with_its_type_and_labels_and_nothing_else_is():
    families = parsed(render(filled().freeze()))
    assert {f"{name}_total" if family.type == "counter" else name for name, family in families.items()} == set(
        TABLE
    ) - {"stoker_engine_metrics_age_seconds"}
    for name, spec in TABLE.items():
        family = families.get(name.removesuffix("_total") if spec.kind == "counter" else name)
        if family is None:
            continue
        assert family.type == spec.kind
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == set(spec.labels)


def test_values_are_those_that_were_counted():
    meters = Meters()
    meters.count("stoker_requests_total", "tiny", "/v1/chat/completions", "ok")
    meters.count("stoker_requests_total", "tiny", "/v1/chat/completions", "ok", by=2)
    for value in (0.0004, 0.0005, 0.3, 99.0):
        meters.observe("stoker_kernel_step_seconds", value=value)
    families = parsed(render(meters.freeze()))
    (sample,) = families["stoker_requests"].samples
    assert (sample.value, sample.labels["code"]) == (3.0, "ok")
    steps = {(s.name, s.labels.get("le")): s.value for s in families["stoker_kernel_step_seconds"].samples}
    assert steps["stoker_kernel_step_seconds_bucket", "0.0005"] == 2
    assert steps["stoker_kernel_step_seconds_bucket", "0.5"] == 3
    assert steps["stoker_kernel_step_seconds_bucket", "+Inf"] == steps["stoker_kernel_step_seconds_count", None] == 4
    assert steps["stoker_kernel_step_seconds_sum", None] == pytest.approx(99.3009)


def test_a_page_is_of_one_moment_and_rendering_changes_nothing():
    meters = filled()
    snapshot = meters.freeze()
    first = render(snapshot)
    meters.count("stoker_log_dropped_total")
    meters.observe("stoker_abort_seconds", value=1.0)
    assert render(snapshot) == first
    assert render(meters.freeze()) != first


def test_gauges_of_the_moment_replace_the_ones_before():
    meters = Meters()
    name = "stoker_sessions"
    meters.gauge(name, "old", "ready", value=1)
    text = render(meters.freeze(gauges={name: {("tiny", "ready"): 2.0, ("tiny", "starting"): 0.0}}))
    assert 'deployment="old"' not in text
    assert 'stoker_sessions{deployment="tiny",phase="ready"} 2.0' in text


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.count("stoker_made_up_total"),
        lambda m: m.count("stoker_sessions", "a", "b"),
        lambda m: m.count("stoker_requests_total", "tiny"),
        lambda m: m.gauge("stoker_requests_total", "a", "b", "c", value=1),
        lambda m: m.freeze(gauges={"stoker_nothing": {(): 1.0}}),
        lambda m: m.freeze(gauges={"stoker_sessions": {("tiny",): 1.0}}),
    ],
)
def test_what_is_not_in_the_table_cannot_be_counted(use):
    with pytest.raises(AssertionError):
        use(Meters())


def test_series_of_a_deployment_end_with_it():
    meters = filled()
    meters.count("stoker_tokens_total", "other", "prompt")
    meters.forget("deployment-value")
    text = render(meters.freeze())
    assert "deployment-value" not in text
    assert 'stoker_tokens_total{deployment="other",kind="prompt"} 1.0' in text
    assert "stoker_kernel_faults_total 3.0" in text


def test_names_of_users_are_escaped():
    meters = Meters()
    meters.gauge("stoker_places", 'a"b\\c\nd', value=1)
    (sample,) = parsed(render(meters.freeze()))["stoker_places"].samples
    assert sample.labels == {"deployment": 'a"b\\c\nd'}


ENGINE = """# HELP llamacpp:tokens_predicted_total Number of tokens.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 42
# TYPE vllm:latency histogram
vllm:latency_bucket{le="1.0",deployment="spoofed"} 1
vllm:latency_bucket{le="+Inf"} 2
vllm:latency_count 2
vllm:latency_sum 3.5
# TYPE stoker_sessions gauge
stoker_sessions 99
"""


def test_engines_figures_stand_under_their_names_with_our_labels():
    engines = (
        EngineText("tiny", 0, "llama-cpp", ENGINE, 1.5),
        EngineText("tiny", 1, "llama-cpp", ENGINE, 2.5),
        EngineText("broken", 0, "llama-cpp", "what is { this\n", 0.5),
    )
    text = render(Meters().freeze(engines=engines))
    assert text.count("# TYPE llamacpp:tokens_predicted_total counter") == 1
    families = parsed(text)
    tokens = {sample.labels["replica"]: sample for sample in families["llamacpp:tokens_predicted"].samples}
    assert tokens["1"].labels == {"deployment": "tiny", "replica": "1", "engine": "llama-cpp"}
    assert tokens["1"].value == 42
    assert {sample.labels["deployment"] for sample in families["vllm:latency"].samples} == {"tiny"}
    assert "stoker_sessions" not in families
    ages = {
        s.labels["deployment"] + s.labels["replica"]: s.value
        for s in families["stoker_engine_metrics_age_seconds"].samples
    }
    assert ages["tiny1"] == 2.5
