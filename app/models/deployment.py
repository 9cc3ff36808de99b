"""Deployments: the stable names that callers use, and their weighted variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from app.models.base import Request, Stored
from app.models.names import Ident, Role

MAX_WEIGHT = 1_000_000
MAX_VARIANTS = 100

Validation = Literal["off", "warn", "strict"]
Labels = dict[str, str]


def _check_label(label: str) -> str:
    if not label or len(label) > 128 or not label.isprintable() or label != label.strip():
        raise ValueError("must be 1 to 128 printable characters without spaces around, for example 'canary'")
    return label


def _once(names: Sequence[str], what: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"must name each {what} once; {twice!r} occurs twice")


def _roles_once(roles: tuple[str, ...]) -> tuple[str, ...]:
    _once(roles, "role")
    return roles


def _labels_once(variants: tuple[VariantIn, ...]) -> tuple[VariantIn, ...]:
    _once([variant.label for variant in variants], "label")
    return variants


Label = Annotated[str, AfterValidator(_check_label)]


class VariantIn(Request):
    """One weighted choice of a deployment, as a caller writes it (the seed's format)."""

    label: Label
    flow_id: Ident
    version_id: Ident | None = None
    """A fixed version; absent: whichever is published when a run starts."""
    weight: Annotated[int, Field(ge=0, le=MAX_WEIGHT)]
    """Share of the traffic, relative to the other variants; 0 is never picked."""
    target_roles: Annotated[tuple[Role, ...], Field(strict=False, max_length=32), AfterValidator(_roles_once)] = ()
    """Roles whose workers may run it; empty: any role."""
    labels: Labels = Field(default_factory=dict)


class DeploymentIn(Request):
    """The body of ``PUT /api/v1/deployments/<id>``."""

    id: Ident | None = None
    """If sent, it must be the id in the path."""
    name: Annotated[str, Field(max_length=200)] = ""
    description: Annotated[str, Field(max_length=10_000)] = ""
    variants: Annotated[
        tuple[VariantIn, ...], Field(strict=False, min_length=1, max_length=MAX_VARIANTS), AfterValidator(_labels_once)
    ]
    sticky_by: Annotated[str, Field(min_length=1, max_length=128)] = "session"
    """``session`` (reads ``meta.session_id``), ``user`` (``meta.user_id``), ``none``, or a key of ``meta``."""
    validation: Validation = "warn"
    labels: Labels = Field(default_factory=dict)
    disabled: bool = False
    rev: Annotated[int, Field(ge=1)] | None = None
    """The rev that is replaced; absent: create."""
    created_at: str | None = None
    updated_at: str | None = None
    """Both are accepted so that an answer can be sent back, and are otherwise ignored."""


class Variant(Stored):
    """One weighted choice of a deployment, as stored."""

    label: str
    flow_id: str
    version_id: str | None = None
    weight: int
    target_roles: Annotated[tuple[str, ...], Field(strict=False)] = ()
    labels: Labels = Field(default_factory=dict)


class Deployment(Stored):
    """A stable name with weighted variants. Immutable: each change makes the next ``rev``."""

    id: str
    name: str
    description: str
    variants: Annotated[tuple[Variant, ...], Field(strict=False)]
    sticky_by: str
    validation: Validation
    labels: Labels
    disabled: bool
    rev: int
    created_at: str
    updated_at: str

    @classmethod
    def create(cls, ident: str, body: DeploymentIn, *, rev: int, created_at: str, updated_at: str) -> Deployment:
        """Build the stored form of ``body``; times are RFC 3339."""
        return cls(
            id=ident,
            name=body.name or ident,
            description=body.description,
            variants=tuple(Variant.model_validate(variant.model_dump()) for variant in body.variants),
            sticky_by=body.sticky_by,
            validation=body.validation,
            labels=body.labels,
            disabled=body.disabled,
            rev=rev,
            created_at=created_at,
            updated_at=updated_at,
        )

    def sticky_value(self, meta: dict[str, Any]) -> tuple[str, str] | None:
        """Return the name of the sticky key and its value in ``meta`` as text, or ``None`` where there is none.

        Only strings and integers stick; integers are compared as text, so ``7`` and ``"7"`` are one session.
        """
        if self.sticky_by == "none":
            return None
        key = {"session": "session_id", "user": "user_id"}.get(self.sticky_by, self.sticky_by)
        value = meta.get(key)
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return None
        return key, str(value)
