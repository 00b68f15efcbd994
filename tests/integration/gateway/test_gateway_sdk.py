"""The public OpenAI client library against the gateway: what its users see (R-34, R-35, R-46, R-94)."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from gateway_rig import DONE, STREAM_HEAD, Bench, Seen, chunk, event, plain, post, streamed, until

from stoker.errors import CapacityError, ErrorCode

pytestmark = pytest.mark.anyio
MESSAGES: Any = [{"role": "user", "content": "hi"}]
VECTOR = [1.0, -0.5]


@pytest.fixture
async def sdk(at: Bench) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{at.port}/v1", api_key="any", max_retries=0) as made:
        yield made


def completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return json.dumps(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    ).encode()


async def test_models_are_listed_and_fetched_by_their_names(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    names = [model.id async for model in sdk.models.list()]
    assert names[:2] == ["m", "aaa/llava:13b"]
    for name in names:
        assert (await sdk.models.retrieve(name)).id == name


async def test_chat_plain_and_streamed(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    at.engine.script = plain(completion("北京🚀"))
    answer = await sdk.chat.completions.create(model="nick", messages=MESSAGES)
    assert answer.choices[0].message.content == "北京🚀"
    assert answer._request_id is not None
    assert answer._request_id.startswith("req_")
    at.engine.script = streamed(event("北"), event("京🚀"), event("", "stop"), DONE)
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "北京🚀"


async def test_br_504_a_broken_stream_raises_and_gives_what_had_come(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    at.engine.script = streamed(event("half"), end=b"")
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    first = await anext(stream)
    assert first.choices[0].delta.content == "half"
    with pytest.raises(openai.APIError, match="ended before"):
        await anext(stream)


async def test_comments_of_a_wait_are_nothing_to_the_client(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    at.settings(keepalive_after_s=0.02)
    at.uses.hold = True
    at.engine.script = streamed(event("x"), event("", "stop"), DONE)
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    await asyncio.sleep(0.1)
    at.uses.grant(at.uses.asked[0])
    assert "".join([part.choices[0].delta.content or "" async for part in stream]) == "x"


async def test_a_refusal_in_a_stream_that_waited_raises(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    at.settings(keepalive_after_s=0.02)
    at.uses.hold = True
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    at.uses.refuse(at.uses.asked[0], CapacityError(ErrorCode.QUEUE_TIMEOUT, "Waited too long.", retry_after_s=1))
    with pytest.raises(openai.APIError, match="Waited too long"):
        await anext(stream)


async def test_errors_have_their_class_code_and_parameter(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(model="other", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        await sdk.chat.completions.create(model="m", messages=MESSAGES, n=9)
    assert (wrong.value.code, wrong.value.param) == ("unsupported_capability", "n")
    at.uses.refusal = CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=1)
    with pytest.raises(openai.RateLimitError):
        await sdk.chat.completions.create(model="m", messages=MESSAGES)


async def test_a_client_that_repeats_by_itself_succeeds_after_the_wait_it_was_told(at: Bench) -> None:
    at.uses.refusal = CapacityError(ErrorCode.QUEUE_FULL, "Full.", retry_after_s=0.5)
    at.engine.script = plain(completion("late"))
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{at.port}/v1", api_key="any", max_retries=2) as sdk:
        asking = asyncio.create_task(sdk.chat.completions.create(model="m", messages=MESSAGES))
        await asyncio.sleep(0.3)
        at.uses.refusal = None
        assert (await asking).choices[0].message.content == "late"


async def test_a_client_that_breaks_off_ends_the_engines_work(at: Bench, sdk: openai.AsyncOpenAI) -> None:
    async def endless(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not seen.closed.is_set():
            writer.write(chunk(event("x")))
            await asyncio.sleep(0.01)

    at.engine.script = endless
    stream = await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: at.uses.left and at.engine.seen[0].closed.is_set())


async def embed(seen: Seen, writer: asyncio.StreamWriter) -> None:
    """One vector an input, in the form that was asked for."""
    asked = seen.json
    inputs = asked["input"]
    many = isinstance(inputs, list) and not isinstance(inputs[0], int)
    packed = base64.b64encode(struct.pack("<2f", *VECTOR)).decode()
    vector: Any = packed if asked.get("encoding_format") == "base64" else VECTOR
    count = len(inputs) if many else 1
    data = [{"object": "embedding", "index": number, "embedding": vector} for number in range(count)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    await plain(json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}).encode())(seen, writer)


@pytest.mark.parametrize(
    ("value", "count"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2), (["a", "b", "c"], 3)]
)
@pytest.mark.parametrize("form", ["base64", "float", None])
async def test_br_604_every_form_of_input_gives_as_many_vectors(
    at: Bench, sdk: openai.AsyncOpenAI, value: Any, count: int, form: Any
) -> None:
    at.engine.script = embed
    more = {"encoding_format": form} if form else {}
    got = await sdk.embeddings.create(model="m", input=value, **more)
    assert [entry.index for entry in got.data] == list(range(count))
    if form == "base64":
        assert {str(entry.embedding) for entry in got.data} == {"AACAPwAAAL8="}
    else:
        assert all(list(entry.embedding) == VECTOR for entry in got.data)


@pytest.mark.parametrize("value", ["", [], ["a", ""], ["a", 1], [[1], "a"], [[]], [True], {"a": 1}, None, 3, [1.5]])
async def test_br_604_inputs_without_a_right_count_are_400_naming_the_field(at: Bench, value: Any) -> None:
    got = await at.ask(post({"model": "m", "input": value}, "/v1/embeddings"))
    assert (got.status, got.json["error"]["param"]) == (400, "input")
    assert at.engine.seen == []


async def test_br_604_a_session_without_base64_says_so(at: Bench) -> None:
    at.wire.policy = type(at.wire.policy)(at.wire.policy.routes, {"base64_embeddings": "no"})
    at.reopen()
    got = await at.ask(post({"model": "m", "input": "a", "encoding_format": "base64"}, "/v1/embeddings"))
    assert (got.status, got.code, got.json["error"]["param"]) == (400, "unsupported_capability", "encoding_format")
