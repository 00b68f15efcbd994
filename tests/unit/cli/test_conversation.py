"""One conversation, with a model that answers what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stoker.cli.conversation import Conversation
from stoker.errors import EngineError, ErrorCode


class Model:
    """Answers in the given pieces; an exception among them is raised there. ``closed`` counts ended requests."""

    def __init__(self, *pieces: str | BaseException) -> None:
        self.pieces = pieces
        self.asked: list[list[dict[str, str]]] = []
        self.closed = 0

    def __call__(self, messages: list[dict[str, str]]) -> Iterator[str]:
        self.asked.append(messages)
        try:
            for piece in self.pieces:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            self.closed += 1


def typing(*lines: str | BaseException) -> Callable[[str], str]:
    left = iter(lines)

    def read(_: str) -> str:
        line = next(left, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def test_pieces_are_written_as_they_come_and_end_with_a_line() -> None:
    written: list[str] = []
    assert Conversation(Model("a", "b"), written.append).say("hi") == "ab"
    assert written == ["a", "b", "\n"]


def test_an_answer_that_ends_its_own_line_gets_no_second_end() -> None:
    written: list[str] = []
    Conversation(Model("a\n"), written.append).say("hi")
    assert written == ["a\n"]


def test_an_interrupt_cancels_the_request_and_keeps_what_was_said() -> None:
    model = Model("a", KeyboardInterrupt())
    talk = Conversation(model, lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        talk.say("hi")
    assert model.closed == 1
    assert talk.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]


def test_a_reader_that_goes_away_cancels_the_request() -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    model = Model("a", "b")
    with pytest.raises(BrokenPipeError):
        Conversation(model, broken).say("hi")
    assert model.closed == 1


def test_a_prompt_without_any_answer_is_forgotten() -> None:
    talk = Conversation(Model(EngineError(ErrorCode.ENGINE_EXITED, "It died.")), lambda _: None, system="Be brief.")
    with pytest.raises(EngineError):
        talk.say("hi")
    assert talk.messages == [{"role": "system", "content": "Be brief."}]


def test_a_conversation_goes_on_after_a_cancelled_answer() -> None:
    notes: list[str] = []
    model = Model("a", KeyboardInterrupt())
    Conversation(model, lambda _: None).converse(typing("one", "", "two", "/bye", "three"), notes.append)
    assert [asked[-1]["content"] for asked in model.asked] == ["one", "two"]
    assert notes[1:] == ["(cancelled)", "(cancelled)"]


def test_the_end_of_input_ends_a_conversation() -> None:
    model = Model("a")
    Conversation(model, lambda _: None).converse(typing("one"), lambda _: None)
    assert len(model.asked) == 1


def test_an_interrupt_at_the_prompt_leaves() -> None:
    with pytest.raises(KeyboardInterrupt):
        Conversation(Model("a"), lambda _: None).converse(typing(KeyboardInterrupt()), lambda _: None)
