"""What ``run MODEL`` means: a name, or a file that gets a deployment of its own."""

from __future__ import annotations

import os

from stoker.client import StokerClient
from stoker.client.records import Deployment
from stoker.errors import ErrorCode, StokerError, StoreError

_SUFFIX = ".gguf"


def is_path(model: str) -> bool:
    """Is it a file's path and no name? Names may hold slashes, but hardly ever end so."""
    return model.lower().endswith(_SUFFIX) and ":" not in model.partition("/")[0]


def target_of(client: StokerClient, model: str) -> Deployment:
    """The deployment to ask. A file nobody deployed yet gets one, named by its stem.

    Raises `StoreError` ``file-not-found`` and `UsageError` ``deployment-not-found``.
    """
    if not is_path(model):
        return client.deployment(model)
    path = os.path.abspath(os.path.expanduser(model))
    if not os.path.isfile(path):
        found = _named(client, model)
        if found is not None:
            return found
        raise StoreError(
            ErrorCode.FILE_NOT_FOUND, f"There is no file {path}.", remedy="Check the path; `stoker list` shows names."
        )
    name = os.path.basename(path)[: -len(_SUFFIX)]
    found = _named(client, name)
    if found is None:
        client.put(name, {"reference": f"file:{path}"})
        return client.deployment(name)
    return found


def _named(client: StokerClient, name: str) -> Deployment | None:
    try:
        return client.deployment(name)
    except StokerError as exc:
        if exc.code is not ErrorCode.DEPLOYMENT_NOT_FOUND:
            raise
        return None
