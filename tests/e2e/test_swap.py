"""Many models, room for one: every request is answered, live streams are never cut, the policy is seen from outside."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from running import Running, until

pytestmark = pytest.mark.engine


def config(models: dict[str, Path], count: int, *, budget: str = "120MiB", more: str = "") -> str:
    text = f'[pools.ram]\nbudget_bytes = "{budget}"\n[queue]\nswap_bound_s = 2\nmax_waiting_total = 1000\n'
    for name in list(models)[:count]:
        text += f'[models.{name}]\nreference = "file:{models[name]}"\nslots = 4\ncontext_tokens = 512\n'
        text += f'declared_bytes = "100MiB"\nmax_queued = 400\n{more}'
    return text


def together(acts: list[Callable[[], Any]]) -> list[Any]:
    """Run every act in a thread of its own from one barrier; results in order."""
    results: list[Any] = [None] * len(acts)
    barrier = threading.Barrier(len(acts))

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = acts[index]()
        except Exception as failed:
            results[index] = failed

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("requests", "count"), [(12, 3), (60, 10), (300, 3)])
def test_an_interleaved_burst_over_more_models_than_fit_is_answered_to_the_last(
    requests: int, count: int, home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    daemon = Running(home, config(tiny_models, count))
    daemons.append(daemon)
    daemon.start()
    names = [list(tiny_models)[index % count] for index in range(requests)]
    random.Random(requests).shuffle(names)
    results = together([lambda name=name: daemon.chat(name) for name in names])
    for name, result in zip(names, results, strict=True):
        assert not isinstance(result, Exception), result
        status, answer = result
        assert status == 200, answer
        assert f"burns {name} " in answer["choices"][0]["message"]["content"]
    assert daemon.stop() == 0


def test_br_301_a_stream_is_not_cut_by_a_request_for_another_model(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    daemon = Running(home, config(tiny_models, 2))
    daemons.append(daemon)
    daemon.start()
    client = openai.OpenAI(base_url=daemon.address + "/v1", api_key="none", max_retries=0)

    def stream() -> list[str]:
        parts = client.chat.completions.create(
            model="ash", stream=True, max_tokens=400, messages=[{"role": "user", "content": "go"}],
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        return [part.choices[0].finish_reason or "" for part in parts if part.choices]

    def other() -> tuple[int, Any]:
        time.sleep(0.05)
        return daemon.chat("birch")

    finishes, (status, answer) = together([stream, other])
    assert finishes[-1] == "length"
    assert status == 200, answer


def test_idle_models_leave_after_their_keep_alive_and_pinned_ones_stay(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    text = config(tiny_models, 2, budget="400MiB", more="keep_alive_s = 1\n")
    daemon = Running(home, text.replace("[models.ash]\n", "[models.ash]\npinned = true\n"))
    daemons.append(daemon)
    daemon.start()
    assert daemon.chat("birch")[0] == 200
    until(lambda: len(daemon.open_lives()) == 1, 10, "only the pinned one is left")
    assert daemon.chat("ash")[0] == 200
    time.sleep(1.5)
    assert len(daemon.open_lives()) == 1


def test_a_model_that_cannot_fit_is_refused_and_nothing_is_stopped(
    home: Path, daemons: list[Running], tiny_models: dict[str, Path]
) -> None:
    text = config(tiny_models, 1) + (
        f'[models.huge]\nreference = "file:{tiny_models["birch"]}"\ndeclared_bytes = "900MiB"\n'
    )
    daemon = Running(home, text)
    daemons.append(daemon)
    daemon.start()
    assert daemon.chat("ash")[0] == 200
    before = daemon.open_lives()
    status, answer = daemon.chat("huge")
    assert status == 503
    assert answer["error"]["code"] == "never_fits"
    assert daemon.open_lives() == before


def test_the_openai_client_works_unchanged(home: Path, daemons: list[Running], tiny_models: dict[str, Path]) -> None:
    text = config(tiny_models, 2, budget="400MiB") + (
        f'[models.vectors]\nreference = "file:{tiny_models["cedar"]}"\ndeclared_bytes = "100MiB"\n'
        '[models.vectors.settings]\ntask = "embed"\npooling = "mean"\n'
    )
    daemon = Running(home, text)
    daemons.append(daemon)
    daemon.start()
    client = openai.OpenAI(base_url=daemon.address + "/v1", api_key="none", max_retries=0)
    assert {"ash", "birch", "vectors"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("ash").id == "ash"
    messages: Any = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(model="ash", messages=messages)
    assert "burns ash" in (whole.choices[0].message.content or "")
    parts = client.chat.completions.create(model="ash", messages=messages, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    plain = client.completions.create(model="birch", prompt="The", max_tokens=5)
    assert plain.choices[0].text
    vectors = client.embeddings.create(model="vectors", input=["one", "two"])
    assert len(vectors.data) == 2
    assert len(vectors.data[0].embedding) > 10
    with pytest.raises(openai.NotFoundError, match="no model"):
        client.chat.completions.create(model="nobody", messages=messages)
    with pytest.raises(openai.BadRequestError, match="embed"):
        client.embeddings.create(model="ash", input="x")
    with pytest.raises(openai.BadRequestError) as overflow:
        client.chat.completions.create(model="ash", messages=[{"role": "user", "content": "word " * 3000}])
    assert overflow.value.code == "context_length_exceeded"
