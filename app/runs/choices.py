"""What a run of a deployment can be: the deployment and the version of each variant, read once a second at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.catalog import Catalog
from app.clock import Monotonic
from app.models.deployment import Deployment
from app.resolver import VersionRef

MAX_AGE_S: Final = 1.0
KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A deployment, and by label the version that each variant would run; ``None`` where there is none."""

    deployment: Deployment
    versions: Mapping[str, VersionRef | None]


@dataclass(frozen=True, slots=True)
class _Kept:
    choice: Choice
    read_at: float
    changes: int


class Choices:
    """Reads choices from the catalog and keeps them for a second. Thread-safe; one a process.

    A change made through this process counts at once: what was read before it was complete is not used after it.
    Another process sees it when its second is over.
    """

    def __init__(self, catalog: Catalog, monotonic: Monotonic) -> None:
        self._catalog = catalog
        self._monotonic = monotonic
        self._kept: dict[str, _Kept] = {}

    def of(self, deployment_id: str) -> Choice:
        """Return a deployment with its versions: 2 round trips to MongoDB, or none.

        Raises:
            NotFound: ``deployment_not_found``.
        """
        # Both before the reading, so that what is kept is never taken for newer than it is.
        now, changes = self._monotonic(), self._catalog.changes
        kept = self._kept.get(deployment_id)
        if kept is not None and kept.changes == changes and now - kept.read_at <= MAX_AGE_S:
            return kept.choice
        deployment = self._catalog.deployment(deployment_id)
        choice = Choice(deployment, self._catalog.versions_for(deployment))
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[deployment_id] = _Kept(choice, now, changes)
        return choice
