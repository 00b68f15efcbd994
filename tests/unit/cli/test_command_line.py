"""Exit codes, words of progress, names of files, and what an import costs."""

from __future__ import annotations

import io
import subprocess
import sys

import click
import pytest

from stoker.cli.commands.config import flatten
from stoker.cli.failures import exit_code_of_several, report
from stoker.cli.invocation import Invocation
from stoker.cli.main import COMMANDS, cli
from stoker.cli.progress import Progress, words
from stoker.cli.targets import is_path
from stoker.client.records import Operation, read
from stoker.errors import ROWS, ErrorCode, error_for


def operation(**members: object) -> Operation:
    return read(Operation, {"operation_id": "o", "kind": "load", "subject": "tiny", "state": "running", **members})


@pytest.mark.parametrize("code", list(ErrorCode))
def test_c_18_every_code_ends_with_its_familys_exit_code(code: ErrorCode, capsys) -> None:
    assert report(error_for(code, "It is so."), as_json=False) == ROWS[code].exit_code
    assert capsys.readouterr() == ("", "Error: It is so.\n")


def test_exit_code_of_several_is_of_what_went_wrong() -> None:
    room = error_for(ErrorCode.ROOM_DENIED, "x")
    gone = error_for(ErrorCode.DEPLOYMENT_NOT_FOUND, "x")
    unconfirmed = error_for(ErrorCode.STOP_UNCONFIRMED, "x")
    assert exit_code_of_several([]) == exit_code_of_several([None, None]) == 0
    assert exit_code_of_several([None, room]) == 1
    assert exit_code_of_several([room, gone]) == 3
    assert exit_code_of_several([None, room, unconfirmed]) == 7


def test_a_defect_is_told_without_its_trace(capsys) -> None:
    assert report(ValueError("odd"), as_json=False) == 70
    assert "ValueError: odd" in capsys.readouterr().err


def test_progress_is_one_line_that_moves_on_a_terminal() -> None:
    stream = io.StringIO()
    progress = Progress(stream, is_live=True, is_silent=False)
    progress.show(operation(stage="loading-weights", progress={"done": 50, "total": 100, "unit": "percent"}))
    progress.clear()
    assert stream.getvalue() == f"\r\x1b[KLoading tiny: loading-weights [{'█' * 10}{'░' * 10}]  50 %\r\x1b[K"


def test_progress_elsewhere_is_a_line_a_stage() -> None:
    stream = io.StringIO()
    progress = Progress(stream, is_live=False, is_silent=False)
    for percent in (10, 20):
        progress.show(operation(stage="loading-weights", progress={"done": percent, "total": 100}))
    progress.show(operation(stage="warming"))
    progress.show(operation(state="succeeded"))
    progress.clear()
    assert stream.getvalue() == "Loading tiny: loading-weights\nLoading tiny: warming\n"


def test_silent_progress_writes_nothing() -> None:
    stream = io.StringIO()
    progress = Progress(stream, is_live=True, is_silent=True)
    progress.show(operation())
    progress.clear()
    assert stream.getvalue() == ""


def test_words_say_what_is_waited_for() -> None:
    assert words(operation()) == "Loading tiny: waiting for memory or a place"
    assert words(operation(kind="stop", subject="7")) == "Stopping 7: waiting for the end"
    assert words(operation(kind="pull", stage="files")) == "pull tiny: files"


@pytest.mark.parametrize(
    ("model", "expected"),
    [("x.gguf", True), ("./a/b.GGUF", True), ("/abs/x.gguf", True), ("~/m.gguf", True), ("tiny", False),
     ("org/model", False), ("hf:owner/name#x.gguf", False), ("bundled:smollm2-135m", False)],
)  # fmt: skip
def test_a_file_is_told_from_a_name_by_its_ending(model: str, expected: bool) -> None:
    assert is_path(model) is expected


def test_configuration_is_flattened_to_its_keys() -> None:
    assert list(flatten({"a": {"b": 1, "c": {}}, "d": None})) == [(("a", "b"), 1), (("a", "c"), {}), (("d",), None)]


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_c_17_colour_is_for_terminals_that_want_it() -> None:
    assert Invocation(environ={}).colour(_Screen())
    assert not Invocation(environ={}).colour(io.StringIO())
    assert not Invocation(environ={"NO_COLOR": "1"}).colour(_Screen())
    assert not Invocation(environ={"TERM": "dumb"}).colour(_Screen())


def test_every_command_that_is_listed_is_there_and_says_what_it_does() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.help, f"{name} has no help"
    assert cli.get_command(context, "nonsense") is None


def test_the_version_is_told_without_loading_anything_heavy() -> None:
    program = (
        "import sys\n"
        "from stoker.cli.main import main\n"
        "sys.argv = ['stoker', '--version']\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'httpx2', 'msgspec', 'pydantic', 'rich', 'anyio', 'asyncio', 'stoker.errors', 'stoker.client'}\n"
        "    print(sorted(heavy & set(sys.modules)))\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "stoker 0.1.0\n[]\n"
