"""``run``: from a model's name to its answer, with everything between: daemon, load, request (C-19)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from stoker.cli.commands.loading import with_context
from stoker.cli.conversation import Conversation
from stoker.cli.invocation import DEFAULT_TIMEOUT_S, Command, Invocation, pass_invocation
from stoker.cli.names import complete_name
from stoker.cli.progress import watching
from stoker.cli.targets import target_of
from stoker.client import StokerClient
from stoker.client.chat import Gateway
from stoker.client.records import Deployment
from stoker.errors import ErrorCode, error_for


@click.command("run", cls=Command)
@click.argument("model", shell_complete=complete_name)
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told first.")
@click.option("--keep-alive", metavar="TIME", help="Keep it loaded so long afterwards: 5m, 0, -1 for ever.")
@click.option("--context", "context_tokens", type=click.IntRange(1), metavar="TOKENS", help="Change its context.")
@pass_invocation
def run(
    invocation: Invocation,
    *,
    model: str,
    prompt: str | None,
    system: str | None,
    keep_alive: str | None,
    context_tokens: int | None,
) -> None:
    """Ask a model. MODEL is a name, bundled:smollm2-135m, or a path to a .gguf file.

    Without PROMPT it is read from what is piped in; at a terminal a conversation begins. Starts a daemon if none runs.
    """
    text = _prompt(prompt)
    with _daemon(invocation) as client:
        deployment = target_of(client, model)
        if deployment.name != model:
            invocation.say(f"{model} is the deployment {deployment.name}.")
        _load(invocation, client, deployment, context_tokens)
        gateway = _gateway(client)
    try:
        talk = Conversation(
            lambda messages: gateway.stream_chat(deployment.name, messages, keep_alive=keep_alive),
            _write,
            system=system,
        )
        if text is not None:
            talk.say(text)
        else:
            talk.converse(_read, invocation.say)
    finally:
        gateway.close()


def _prompt(given: str | None) -> str | None:
    """The prompt that was given or piped in; None for a conversation at a terminal."""
    if given not in {None, "-"}:
        return given
    if given is None and sys.stdin.isatty():
        return None
    text = sys.stdin.read().strip()
    if not text:
        raise click.UsageError("There is no prompt: give one, or pipe one in.")
    return text


@contextmanager
def _daemon(invocation: Invocation) -> Iterator[StokerClient]:
    """A client of the daemon, which is started if none answers; never one at a named socket."""
    address = invocation.socket
    if address is None:
        from stoker.cli.launching import ready_daemon  # only `run` ever starts one

        address = ready_daemon(invocation.place(), invocation.say).control_socket
    with StokerClient(address, timeout_s=invocation.timeout_s or DEFAULT_TIMEOUT_S) as client:
        yield client


def _load(invocation: Invocation, client: StokerClient, deployment: Deployment, context_tokens: int | None) -> None:
    if context_tokens is not None:
        with_context(client, deployment.name, context_tokens)
    operation = client.load(deployment.name)
    try:
        with watching(invocation) as progress:
            ended = client.wait(operation, timeout_s=invocation.timeout_s, on_progress=progress.show)
    except KeyboardInterrupt:
        invocation.say(f"The load of {deployment.name} goes on. Look again with `stoker ps`.")
        raise
    ended.raise_if_failed()


def _gateway(client: StokerClient) -> Gateway:
    address = client.status().addresses.get("gateway")
    if not address:
        raise error_for(
            ErrorCode.DAEMON_UNREACHABLE,
            "The daemon runs, but its gateway listens nowhere.",
            remedy="See `stoker status` and the section [gateway] of the configuration.",
        )
    return Gateway(address)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _read(mark: str) -> str:
    import readline  # noqa: F401 - gives input() its editing and its history, which ends with this command

    return input(mark)
