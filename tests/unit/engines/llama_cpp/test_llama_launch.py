"""From a plan to a command of llama.cpp (E-31 to E-37, E-69 to E-72)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llama_samples import ADAPTER, PROGRAM, TOKEN, build, plan, site

from stoker.domain.hardware import Hardware
from stoker.engines.llama_cpp.settings import LlamaCppSettings
from stoker.errors import ErrorCode, InternalError
from stoker.ids import Generation
from stoker.ports.engines import BuildDevice
from stoker.ports.units import Endpoint


def value(argv, flag):
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def parameters(made):
    return json.loads(made.files["launch.json"][0])["parameters"]


@pytest.mark.parametrize("context", [256, 2048, 131_072])
@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
def test_both_builds_are_given_the_same_figures_of_the_plan(context, slots, kv) -> None:
    wanted = plan(context_tokens=context, slots=slots, kv_type_k=kv, kv_type_v=kv, threads=3, checkpoints=2)
    argv = ADAPTER.launch(wanted, site("binary")).argv
    given = parameters(ADAPTER.launch(wanted, site()))
    assert value(argv, "--ctx-size") == str(given["n_ctx"]) == str(context * slots)
    assert value(argv, "--parallel") == str(given["n_parallel"]) == str(slots)
    assert value(argv, "--cache-type-k") == kv
    assert given["cache_type_k"] == given["cache_type_v"] == f"GGML_TYPE_{kv.upper()}"
    assert value(argv, "--threads") == value(argv, "--threads-batch") == str(given["cpuparams.n_threads"]) == "3"
    assert value(argv, "--ctx-checkpoints") == str(given["n_ctx_checkpoints"]) == "2"
    assert value(argv, "--cache-ram") == str(given["cache_ram_mib"]) == "64"


def test_what_costs_memory_is_never_left_to_the_engine() -> None:
    argv = ADAPTER.launch(plan(), site("binary")).argv
    assert {"--no-kv-unified", "--no-context-shift", "--no-ui", "--offline", "--no-mmproj"} <= set(argv)
    assert value(argv, "--fit") == "off"
    assert value(argv, "--device") == "none"
    assert value(argv, "--sse-ping-interval") == "2"
    assert value(argv, "--slot-save-path").endswith("/")
    given = parameters(ADAPTER.launch(plan(), site()))
    assert (given["fit_params"], given["kv_unified"], given["ctx_shift"], given["ui"]) == (False, False, False, False)


@pytest.mark.parametrize("kind", ["binary", "embedded"])
def test_a_socket_in_the_folder_of_the_life_is_used_where_its_path_fits(kind) -> None:
    fits, too_long = "/run/" + "d" * 88, "/run/" + "d" * 89
    assert ADAPTER.launch(plan(), site(kind, life_dir=fits)).endpoint == Endpoint(socket=f"{fits}/e.sock")
    made = ADAPTER.launch(plan(), site(kind, life_dir=too_long))
    assert made.endpoint == Endpoint(host="127.0.0.1", port=0)
    assert sum("{port}" in item for item in made.argv) == 1
    assert "e.sock" not in json.dumps([made.argv, dict(made.files)])


def test_a_fixed_port_or_a_container_means_tcp_on_the_loopback() -> None:
    assert ADAPTER.launch(plan(), site(endpoint=Endpoint(port=4711))).endpoint == Endpoint(port=4711)
    assert ADAPTER.launch(plan(), site(unit_kind="container")).endpoint.socket is None


@pytest.mark.parametrize("kind", ["binary", "embedded"])
def test_br_1003_the_token_goes_by_environment_and_stands_nowhere_else(kind) -> None:
    made = ADAPTER.launch(plan(), site(kind))
    assert made.env["LLAMA_API_KEY"] == TOKEN
    assert TOKEN not in json.dumps([made.argv, made.shown, dict(made.files)])
    assert "LLAMA_API_KEY" not in ADAPTER.launch(plan(), site(kind, token=None)).env


def test_a_users_variables_never_replace_the_token() -> None:
    assert ADAPTER.launch(plan(), site(extra_env={"LLAMA_API_KEY": "mine", "A": "b"})).env["LLAMA_API_KEY"] == TOKEN


def test_a_cpu_plan_hides_the_cards_and_a_card_plan_names_them_in_order() -> None:
    assert ADAPTER.launch(plan(), site("binary")).env["CUDA_VISIBLE_DEVICES"] == ""
    listed = replace(build("binary"), devices=(BuildDevice("CUDA0"), BuildDevice("CUDA1")))
    made = ADAPTER.launch(plan(gpu_layers=9), site("binary", build=listed, cards=(("GPU-b", 0),)))
    assert made.env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert value(made.argv, "--device") == "CUDA0"
    assert value(made.argv, "--split-mode") == "none"
    assert value(made.argv, "--gpu-layers") == "9"


@pytest.mark.parametrize("name", ["a b", "it's", "org/model:tag", "--help", "$(touch x)", "; rm", "line\nfeed", "ä"])
def test_br_1005_a_name_is_one_argument_whatever_it_looks_like(name) -> None:
    made = ADAPTER.launch(plan(), site("binary", served_name=name))
    assert value(made.argv, "--alias") == name
    assert made.argv[0] == PROGRAM
    assert parameters(ADAPTER.launch(plan(), site(served_name=name)))["model_alias"] == [name]


def test_a_name_with_a_comma_is_replaced_because_the_engine_would_split_it() -> None:
    made = ADAPTER.launch(plan(), site("binary", served_name="a,b", generation=Generation(12)))
    assert value(made.argv, "--alias") == "m-12"


def test_br_1005_a_model_path_is_one_argument_with_spaces_and_quotes() -> None:
    made = ADAPTER.launch(plan(), site("binary", model_path='/m/it\'s "x" $(y).gguf'))
    assert value(made.argv, "--model") == '/m/it\'s "x" $(y).gguf'


def test_arguments_of_an_operator_come_last_unchanged_and_not_into_the_wheel() -> None:
    made = ADAPTER.launch(plan(), site("binary", extra_args=("--top-k", "a b", "-x")))
    assert made.argv[-3:] == ("--top-k", "a b", "-x")
    with pytest.raises(InternalError) as caught:
        ADAPTER.launch(plan(), site(extra_args=("--top-k", "3")))
    assert caught.value.code is ErrorCode.LAUNCH_INVALID


def test_one_session_is_launched_for_one_task() -> None:
    embed = ADAPTER.launch(plan(task="embed", settings=LlamaCppSettings(pooling="cls")), site("binary")).argv
    assert value(embed, "--pooling") == "cls"
    assert "--embeddings" in embed
    assert "--slot-save-path" not in embed
    rerank = parameters(ADAPTER.launch(plan(task="rerank"), site()))
    assert (rerank["embedding"], rerank["pooling_type"]) == (True, "LLAMA_POOLING_TYPE_RANK")
    assert "embedding" not in parameters(ADAPTER.launch(plan(), site()))


def test_the_pooling_a_model_states_is_passed_on() -> None:
    facts = replace(plan().facts, pooling="mean")
    assert value(ADAPTER.launch(plan(task="embed", facts=facts), site("binary")).argv, "--pooling") == "mean"


def test_the_cpu_profile_is_the_calibrated_one() -> None:
    profile = ADAPTER.profile(build("embedded"), Hardware())
    assert (profile.backend, profile.cell_step, profile.host_fixed_bytes) == ("cpu", 256, 30 << 20)
    assert (profile.compute_factor, profile.repack_types) == (1.0, frozenset({"q4_0", "q4_K"}))
    assert "gemma3" in profile.kv_quant_sensitive


def test_a_build_that_does_not_repack_is_not_charged_for_it() -> None:
    plain = replace(build("embedded"), features=build("embedded").features - {"repack"})
    assert ADAPTER.profile(plain, Hardware()).repack_types == frozenset()
    assert ADAPTER.profile(None, Hardware()).repack_types


@pytest.mark.parametrize(
    ("device", "backend"), [("CUDA0", "cuda"), ("Vulkan1", "vulkan"), ("MTL0", "metal"), ("X", "cpu")]
)
def test_the_backend_is_that_of_the_devices_a_build_lists(device, backend) -> None:
    listed = replace(build("binary"), devices=(BuildDevice(device),))
    assert ADAPTER.profile(listed, Hardware(shape="discrete")).backend == backend
    assert ADAPTER.profile(listed, Hardware(shape="cpu")).backend == "cpu"


def test_the_time_a_load_may_take_grows_with_its_weights() -> None:
    assert ADAPTER.load_allowance_s(0, LlamaCppSettings()) == 60
    assert ADAPTER.load_allowance_s(10 << 30, LlamaCppSettings()) == 120
