"""A conversation at a terminal: prompts in, answers out piece by piece, nothing kept afterwards (C-19, C-47)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Protocol

_END_WORDS = frozenset({"/bye", "/exit", "/quit"})


class Answers(Protocol):
    """Asks the model; closing the iterator cancels the request."""

    def __call__(self, messages: list[dict[str, str]], /) -> Iterator[str]: ...


class Conversation:
    def __init__(self, ask: Answers, write: Callable[[str], object], *, system: str | None = None) -> None:
        self._ask = ask
        self._write = write
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    def say(self, prompt: str) -> str:
        """One prompt and its answer, written as it comes. An interrupt cancels the answer and goes up.

        What was answered until then stays in the conversation, so that the next prompt can refer to it.
        """
        self.messages.append({"role": "user", "content": prompt})
        pieces: list[str] = []
        try:
            with closing(self._ask(list(self.messages))) as answer:  # type: ignore[type-var]  # generators close
                for piece in answer:
                    pieces.append(piece)
                    self._write(piece)
        finally:
            if not "".join(pieces).endswith("\n"):
                self._write("\n")
            if pieces:
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()
        return "".join(pieces)

    def converse(self, read: Callable[[str], str], note: Callable[[str], object]) -> None:
        """Prompts until /bye or the end of input. The first interrupt cancels an answer, one at the prompt leaves."""
        note("Type /bye or press Ctrl-D to leave.")
        while True:
            try:
                prompt = read(">>> ").strip()
            except EOFError:
                note("")
                return
            if prompt in _END_WORDS:
                return
            if not prompt:
                continue
            try:
                self.say(prompt)
            except KeyboardInterrupt:
                note("(cancelled)")
