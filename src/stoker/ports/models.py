"""The models this host has, by the names people use."""

from __future__ import annotations

from typing import Protocol

from stoker.domain.models import StoredModel


class Models(Protocol):
    """Resolves names to stored models. Blocking file work: the shell calls it in a worker thread."""

    def list(self) -> tuple[StoredModel, ...]:
        """Every model that can be offered, in a stable order. One bad file never hides its neighbours."""
        ...

    def resolve(self, reference: str) -> StoredModel:
        """The model that ``reference`` names: alias, stored name, ``file:`` path or ``bundled:`` name.

        Raises `StoreError` ``model-not-found``, ``reference-ambiguous``, ``wrong-kind``, ``set-incomplete``,
        ``model-file-corrupt``, ``model-file-missing``; `UsageError` ``reference-invalid``.
        """
        ...

    def check_unchanged(self, model: StoredModel) -> None:
        """Raise `StoreError` if a file of ``model`` vanished or changed since its facts were read (T-21)."""
        ...
