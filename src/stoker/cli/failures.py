"""From an exception to one sentence, what to do about it, and an exit code (C-18)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from stoker.client.problems import problem_of
from stoker.errors import EXIT_CODES, ErrorCode, Family, StokerError, error_for

SOME_FAILED = 1


def report(error: Exception, *, as_json: bool, verbose: bool = False) -> int:
    """Say it on stderr; returns the exit code of its family."""
    told = _told(error)
    if as_json:
        click.echo(json.dumps(problem_of(told), ensure_ascii=False), err=True)
        return told.row.exit_code
    click.echo(f"Error: {told.message}", err=True)
    lines = told.details.get("log")
    for line in lines if isinstance(lines, list) else ():
        click.echo(f"  | {line}", err=True)
    if told.remedy:
        click.echo(told.remedy, err=True)
    if verbose:
        _explain(error, told)
    return told.row.exit_code


def exit_code_of_several(errors: Sequence[StokerError | None]) -> int:
    """0, 1 when some of several failed, the family of the first when all did; an unconfirmed stop always shows."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return 0
    if any(error.row.family is Family.UNCONFIRMED for error in failed):
        return EXIT_CODES[Family.UNCONFIRMED]
    return SOME_FAILED if len(failed) < len(errors) else failed[0].row.exit_code


def _told(error: Exception) -> StokerError:
    if isinstance(error, StokerError):
        return error
    if isinstance(error, click.UsageError):
        usage = f"{error.ctx.get_usage()} (--help says more)" if error.ctx is not None else ""
        return error_for(ErrorCode.INVALID_PARAMETER, _sentence(error.format_message()), remedy=usage)
    if isinstance(error, click.ClickException):
        return error_for(ErrorCode.INVALID_PARAMETER, _sentence(error.format_message()))
    return error_for(
        ErrorCode.INTERNAL,
        f"Stoker's command line failed: {type(error).__name__}: {error}.",
        remedy="This is a defect; please report it with what you did. -v shows where it happened.",
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else text + "."


def _explain(error: Exception, told: StokerError) -> None:
    if told.details:
        click.echo(json.dumps(told.details, indent=2, ensure_ascii=False, default=str), err=True)
    if told.code is ErrorCode.INTERNAL and told is not error:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True)
