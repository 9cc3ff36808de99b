"""Flows and their immutable versions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from app.models.base import Stored

VERSION_ID_DIGITS = 16


def version_id_of(content_hash: str) -> str:
    """Return the id of the version with this content: the same document is the same version everywhere."""
    return content_hash[:VERSION_ID_DIGITS]


class FlowVersion(Stored):
    """One saved FlowDSL document under one flow. Never changes once it is stored."""

    flow_id: str
    version_id: str
    """Derived from ``content_hash``, so that the same document is the same version everywhere."""
    number: int
    """1 for the flow's first version, then counting."""
    content_hash: str
    """SHA-256 of the canonical document and the flow's name, in hex."""
    document: dict[str, Any]
    """The whole FlowDSL document as it was imported."""
    flow_name: str
    """The flow's key under ``flows`` in ``document``."""
    needs: tuple[Annotated[tuple[str, ...], Field(strict=False)], ...] = Field(default=(), strict=False)
    """For each node that needs a handler, the refs of which a worker must have at least one."""
    created_at: str

    def summary(self) -> dict[str, Any]:
        """Return the wire form without the document, for lists."""
        wire = self.to_wire()
        del wire["document"]
        return wire


class Flow(Stored):
    """A flow: a stable id, how many versions it has, and which of them is published."""

    flow_id: str
    title: str = ""
    published_version_id: str | None = None
    versions: int = 0
    created_at: str
    updated_at: str
