"""What the OpenAI dialect reads from bodies and lines (E-19, R-77, R-89, R-94; BR-604)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.errors import ErrorCode, StokerError
from stoker.gateway.openai import EMBEDDINGS, OPENAI
from stoker.gateway.peek import Peeked, peek

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def body(**members: Any) -> Peeked:
    return peek(json.dumps({"model": "m", **members}).encode())


def parts(*content: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": list(content)}]


@pytest.mark.parametrize(
    ("path", "members", "asks"),
    [
        (CHAT, {"messages": [], "temperature": 0, "max_tokens": 5}, {}),
        (CHAT, {"messages": [], "unknown_member": {"x": 1}}, {}),
        (CHAT, {"tools": [{}]}, {"tools": "tools"}),
        (CHAT, {"tools": [], "functions": None}, {}),
        (CHAT, {"functions": [{}]}, {"tools": "functions"}),
        (CHAT, {"tool_choice": "auto"}, {}),
        (CHAT, {"tool_choice": "none"}, {}),
        (CHAT, {"tool_choice": None}, {}),
        (CHAT, {"tool_choice": "required"}, {"forced_tools": "tool_choice"}),
        (CHAT, {"tool_choice": {"type": "function"}}, {"forced_tools": "tool_choice"}),
        (CHAT, {"response_format": None}, {}),
        (CHAT, {"response_format": {"type": "text"}}, {}),
        (CHAT, {"response_format": {"type": "json_object"}}, {"json_object": "response_format"}),
        (CHAT, {"response_format": {"type": "json_schema"}}, {"json_schema": "response_format"}),
        (CHAT, {"logprobs": True}, {"logprobs": "logprobs"}),
        (CHAT, {"logprobs": False, "top_logprobs": 0}, {}),
        (CHAT, {"n": 1}, {}),
        (CHAT, {"n": 3}, {"choices": "n"}),
        (CHAT, {"grammar": "x"}, {"grammar": "grammar"}),
        (CHAT, {"guided_json": {}}, {"grammar": "guided_json"}),
        (CHAT, {"lora": []}, {"adapters": "lora"}),
        (COMPLETIONS, {"prompt": "x"}, {}),
        (COMPLETIONS, {"prompt": ["x", "y"]}, {}),
        (COMPLETIONS, {"prompt": [1, 2]}, {"token_prompts": "prompt"}),
        (COMPLETIONS, {"prompt": [[1], [2]]}, {"token_prompts": "prompt"}),
        (EMBEDDINGS, {"input": "x"}, {}),
        (EMBEDDINGS, {"input": ["x"], "encoding_format": "float"}, {}),
        (EMBEDDINGS, {"input": ["x"], "encoding_format": None}, {}),
        (EMBEDDINGS, {"input": "x", "encoding_format": "base64"}, {"base64_embeddings": "encoding_format"}),
        (EMBEDDINGS, {"input": "x", "encoding_format": {"a": 1}}, {"base64_embeddings": "encoding_format"}),
        (EMBEDDINGS, {"input": [1, 2]}, {"token_prompts": "input"}),
        (EMBEDDINGS, {"input": [[1], [2]]}, {"token_prompts": "input"}),
        (EMBEDDINGS, {"input": "x", "dimensions": 8}, {"dimensions": "dimensions"}),
    ],
)
def test_asks_are_what_goes_beyond_plain_work(path: str, members: dict[str, Any], asks: dict[str, str]) -> None:
    assert OPENAI.asks(path, body(**members)) == asks


@pytest.mark.parametrize("kind", ["xml", 3, None, ["text"]])
def test_a_format_nobody_knows_is_refused(kind: object) -> None:
    with pytest.raises(StokerError) as caught:
        OPENAI.asks(CHAT, body(response_format={"type": kind}))
    assert (caught.value.code, caught.value.param) == (ErrorCode.UNSUPPORTED_CAPABILITY, "response_format")


def test_content_parts_ask_for_sight_and_hearing() -> None:
    picture = {"type": "image_url", "image_url": {"url": "DATA:image/png;base64,AA"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AA"}}
    found = OPENAI.asks(CHAT, body(messages=parts({"type": "text", "text": "image"}, picture, sound)))
    assert found == {
        "vision": "messages[1].content[1].image_url",
        "audio": "messages[1].content[2].input_audio",
    }


def test_a_part_is_seen_in_any_escaping() -> None:
    raw = b'{"model":"m","messages":[{"content":[{"type":"\\u0069mage_url","image_url":{"url":"data:x"}}]}]}'
    assert OPENAI.asks(CHAT, peek(raw)) == {"vision": "messages[0].content[0].image_url"}


@pytest.mark.parametrize("link", ["http://a/b", "https://a", "file:///etc/passwd", "//a/b", " data:x", ""])
def test_links_are_refused_whether_or_not_the_model_can_see(link: str) -> None:
    for shape in ({"url": link}, link):
        with pytest.raises(StokerError) as caught:
            OPENAI.asks(CHAT, body(messages=parts({"type": "image_url", "image_url": shape})))
        assert caught.value.code is ErrorCode.REMOTE_MEDIA_REFUSED
        assert caught.value.param == "messages[1].content[0].image_url"


@pytest.mark.parametrize("messages", ["x", 3, None, {}, [1, "image", None], [{"content": ["image_url", 1]}], [{}]])
def test_messages_of_an_odd_form_are_the_engines_to_judge(messages: object) -> None:
    assert OPENAI.asks(CHAT, body(messages=messages, x="image_url")) == {}


@pytest.mark.parametrize("value", ["x", ["x"], ["x", "y"], [1], [1, 2], [[1], [2, 3]]])
def test_br_604_every_form_of_an_input_passes(value: object) -> None:
    OPENAI.check(EMBEDDINGS, body(input=value))


@pytest.mark.parametrize(
    "value", ["", [], ["x", ""], ["x", 1], [1, "x"], [[1], 2], [[]], [[1], []], [True], [1.5], [["x"]], 3, {}, None]
)
def test_br_604_an_empty_or_mixed_input_is_400_and_named(value: object) -> None:
    with pytest.raises(StokerError) as caught:
        OPENAI.check(EMBEDDINGS, body(input=value))
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_PARAMETER, "input")


def test_an_absent_input_is_named_too() -> None:
    with pytest.raises(StokerError, match="no 'input'"):
        OPENAI.check(EMBEDDINGS, body())


@pytest.mark.parametrize(
    ("members", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"prompt": "x", "n": 2}, 2),
        ({"prompt": ["x", "y", "z"]}, 3),
        ({"prompt": ["x", "y"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
    ],
)
def test_a_stream_has_a_choice_for_each_prompt_and_each_n(members: dict[str, Any], choices: int) -> None:
    assert OPENAI.reading(body(stream=True, **members)).choices == choices


@pytest.mark.parametrize(
    ("line", "dull"),
    [
        (b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}', True),
        (b'data: {"choices":[{"delta":{"content":"x"},"finish_reason": null}]}', True),
        (b'data: {"choices":[{"finish_reason":"stop"}]}', False),
        (b'data: {"choices":[{"finish_reason":null},{"finish_reason":"length"}]}', False),
        (b'data: {"choices":[{"finish_reason" : null}]}', False),
        (b'data: {"choices": [ ]}', False),
        (b'data: {"error":{}}', False),
        (b"data: [DONE]", False),
        (b": comment", True),
    ],
)
def test_only_lines_that_cannot_matter_are_dull(line: bytes, dull: bool) -> None:
    assert OPENAI.is_dull(line) is dull


@pytest.mark.parametrize(
    ("answer", "is_error"),
    [
        (b'{"error":{"message":"m"}}', True),
        (b'{"error":{"code":1,"message":"m","type":"t"}}', True),
        (b'{"error":"m"}', False),
        (b'{"error":{}}', False),
        (b'{"message":"m"}', False),
        (b"<html>", False),
        (b"", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
def test_an_error_of_the_dialect_has_a_message_in_its_object(answer: bytes, is_error: bool) -> None:
    assert OPENAI.is_error(answer) is is_error
