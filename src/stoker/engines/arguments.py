"""May an operator give this argument or variable to an engine (E-27 to E-30)?

Only options on the engine's free list pass: whatever is not known to be harmless is refused, in every spelling.
Values are never split and never reach a shell. It does not know any engine; the lists are the adapter's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.errors import ErrorCode
from stoker.ports.engines import Build, OptionRules, Reason

TAKES_ARGUMENTS = "engine-args"
"""The feature of a build that is started by a command line of its own."""


def check_arguments(
    rules: OptionRules, args: Sequence[str], env: Mapping[str, str], build: Build | None = None
) -> tuple[Reason, ...]:
    """A reason for each argument and variable that is not an operator's to give; empty: all may be given.

    With a ``build``, arguments are also refused where it takes none at all.
    """
    found: list[Reason] = []
    if args and build is not None and TAKES_ARGUMENTS not in build.features:
        why = f"the installed build ({build.engine} {build.release}) takes no arguments"
        found.append(_refused(args[0], why, "", remedy="Remove engine_args, or name another installation."))
    position = 0
    while position < len(args):
        argument = args[position]
        position += 1
        if not argument.startswith("-"):
            found.append(_refused(argument, "it belongs to no option", ""))
            continue
        spelled, has_value, _ = argument.partition("=")
        name = canonical(spelled)
        if name not in rules.free:
            found.append(_unknown(rules, spelled, name))
            break  # how many of the following belong to it is not known
        wanted = rules.free[name]
        if has_value and wanted != 1:
            found.append(_refused(spelled, f"it takes {wanted} values", ""))
        if not has_value:
            if position + wanted > len(args):
                found.append(_refused(spelled, f"it takes {wanted} value and has none", ""))
            position += wanted
    found.extend(
        _refused(name, "variables of the engine are set by Stoker", "env")
        for name in env
        if name.upper().startswith(rules.env_prefixes or ("\0",))
    )
    return tuple(found)


def canonical(option: str) -> str:
    """``--ctx_size`` is ``--ctx-size`` to the parsers we know; short options are case-sensitive and stay."""
    return option.replace("_", "-").lower() if option.startswith("--") else option


def _unknown(rules: OptionRules, spelled: str, name: str) -> Reason:
    owner = rules.reserved.get(name)
    if owner is None:
        abbreviated = [option for option in rules.reserved if option.startswith(name) and len(name) > 2]
        if not abbreviated:
            return _refused(spelled, "it is not on the list of arguments that may be added", "")
        owner = rules.reserved[abbreviated[0]]
    if owner:
        return _refused(spelled, f"{owner} decides it", "", remedy=f"Use {owner} instead of {spelled}.")
    return _refused(spelled, "it is decided by Stoker", "")


def _refused(name: str, why: str, where: str, remedy: str = "") -> Reason:
    key = where or "engine_args"
    return Reason(
        ErrorCode.BAD_SETTING,
        f"{name[:80]!r} cannot be given to the engine: {why}.",
        param=key,
        remedy=remedy or f"Remove it from {key}.",
    )
