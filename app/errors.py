"""Every error that Rolecall raises on purpose: one tree, typed fields, a stable ``code``.

``admin`` maps the classes to HTTP statuses in one table; the CLI and ``flow.dispatch`` show ``code`` and text. A text
names the thing, the fault and, where there is one, the mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


class RolecallError(Exception):
    """The root. ``code`` is stable and made for programs, ``str(error)`` for people."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code

    @property
    def message(self) -> str:
        return str(self)

    def extra(self) -> dict[str, Any]:
        """Return the fields that a machine-readable answer shows beside ``code`` and text."""
        return {}


Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a document or request.

    ``at`` is a JSON pointer (``/variants/0/weight``), ``message`` says what is wrong or what would be right, ``mend``
    what to do about it, where that is known. An ``error`` keeps it from being taken, a ``warning`` does not.
    """

    at: str
    message: str
    mend: str | None = None
    severity: Severity = "error"

    @classmethod
    def warning(cls, at: str, message: str, mend: str | None = None) -> Fault:
        return cls(at, message, mend, "warning")

    def __str__(self) -> str:
        return f"{self.at or '/'}: {self.message}" + ("" if self.mend is None else f"; {self.mend}")

    def to_wire(self) -> dict[str, str]:
        wire: dict[str, str] = {"at": self.at, "message": self.message, "severity": self.severity}
        return wire if self.mend is None else wire | {"mend": self.mend}


class BadRequest(RolecallError):
    """What the caller sent can never work. ``faults`` names every place."""

    code = "bad_request"

    def __init__(self, message: str, *, faults: Sequence[Fault] = (), code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, faults: Sequence[Fault]) -> BadRequest:
        """Build one error out of one or more faults; its text is the list of them."""
        return cls("; ".join(map(str, faults)), faults=faults)

    def extra(self) -> dict[str, Any]:
        return {"errors": [fault.to_wire() for fault in self.faults]} if self.faults else {}


class InvalidDocument(BadRequest):
    """A FlowDSL document that can never run: unknown node, bad ``$ref``, bad expression, no entry.

    ``faults`` are what keeps it from running, ``warnings`` what else was seen.
    """

    code = "invalid_document"

    def __init__(self, message: str, *, faults: Sequence[Fault] = (), warnings: Sequence[Fault] = ()) -> None:
        super().__init__(message, faults=faults)
        self.warnings = tuple(warnings)

    @classmethod
    def of(cls, faults: Sequence[Fault], warnings: Sequence[Fault] = ()) -> InvalidDocument:
        """Build one error out of one or more faults; its text is the list of these. Doubles are left out."""
        faults = list(dict.fromkeys(faults))
        return cls("; ".join(map(str, faults)), faults=faults, warnings=list(dict.fromkeys(warnings)))

    def extra(self) -> dict[str, Any]:
        warnings = {"warnings": [warning.to_wire() for warning in self.warnings]} if self.warnings else {}
        return super().extra() | warnings


class SettingError(RolecallError):
    """A setting has a wrong value; the text has its name, the fault and an example."""

    code = "bad_setting"


class NotFound(RolecallError):
    """Nothing has that id. Codes: ``deployment_not_found``, ``flow_not_found``, ``version_not_found``,
    ``run_not_found``, ``worker_not_found``."""

    code = "not_found"

    @classmethod
    def of(cls, kind: str, ident: str) -> NotFound:
        return cls(f"no {kind} has the id {ident!r}", code=f"{kind}_not_found")


class Conflict(RolecallError):
    """The request is sound, the state of things is against it. Codes: ``rev_conflict``, ``deployment_disabled``,
    ``flow_not_published``, ``no_positive_weight``, ``run_ended``, ``run_not_ended``, ``pool_cannot_force``,
    ``not_a_worker``."""

    code = "conflict"


class RevConflict(Conflict):
    """A deployment was replaced by somebody else since the caller read it."""

    code = "rev_conflict"

    def __init__(self, deployment_id: str, *, current: int | None, given: int | None) -> None:
        now = "does not exist" if current is None else f"is at rev {current}"
        sent = "none was sent" if given is None else f"{given} was sent"
        super().__init__(f"deployment {deployment_id!r} {now} and {sent}; read it again and send its rev")
        self.current = current

    def extra(self) -> dict[str, Any]:
        return {"rev": self.current}


class LastOfRole(Conflict):
    """To drain it would leave ``variants`` (deployment, label) without a worker that can run them."""

    code = "last_of_role"

    def __init__(self, what: str, variants: Sequence[tuple[str, str]]) -> None:
        shown = [f"{label!r} of {deployment!r}" for deployment, label in variants[:10]]
        if len(variants) > len(shown):
            shown.append(f"{len(variants) - len(shown)} more")
        super().__init__(
            f"without {what} nobody could run the variants {', '.join(shown)}; drain it by force if that is meant"
        )
        self.variants = tuple(variants)

    def extra(self) -> dict[str, Any]:
        return {"variants": [{"deployment": deployment, "label": label} for deployment, label in self.variants]}


class IdempotencyMismatch(RolecallError):
    """The idempotency key was used before with another body."""

    code = "idempotency_mismatch"

    def __init__(self, deployment_id: str, key: str, run_id: str) -> None:
        super().__init__(
            f"idempotency key {key!r} of deployment {deployment_id!r} was used with another body; use a new key"
        )
        self.run_id = run_id

    def extra(self) -> dict[str, Any]:
        return {"runId": self.run_id}


class TooManyQueued(RolecallError):
    """The role's queue is as deep as it may get. Ask again after ``retry_after`` seconds."""

    code = "role_depth_cap"

    def __init__(self, role: str, queued: int, cap: int, *, retry_after: int = 5) -> None:
        super().__init__(f"role {role!r} has {queued} runs queued and its cap is {cap}")
        self.retry_after = retry_after


class Unavailable(RolecallError):
    """It cannot be done right now; the same request may work after ``retry_after`` seconds."""

    code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after: int = 5) -> None:
        super().__init__(message, code=code)
        self.retry_after = retry_after


class NoHealthyVariant(Unavailable):
    """No variant of the deployment can run now. ``explain`` says why for each of them (the run's wire shape)."""

    code = "no_healthy_variant"

    def __init__(self, message: str, *, explain: dict[str, Any]) -> None:
        super().__init__(message)
        self.explain = explain

    def extra(self) -> dict[str, Any]:
        return {"explain": self.explain}


class RegisterUnknown(Unavailable):
    """Nobody can say now which roles are healthy: Redis is out of reach, or was away until a moment ago."""

    code = "register_unknown"


class NotAccepted(Unavailable):
    """The run was refused before it could be made durable, or its record says so."""

    code = "not_accepted"


class AcceptanceUnknown(Unavailable):
    """The ledger went away in the middle: the run ``run_id`` may or may not come to be."""

    code = "acceptance_unknown"

    def __init__(self, message: str, *, run_id: str) -> None:
        super().__init__(message)
        self.run_id = run_id

    def extra(self) -> dict[str, Any]:
        return {"runId": self.run_id}


class ServerUnavailable(Unavailable):
    """A server that Rolecall stands on did not answer in time. ``server`` is ``redis``, ``broker`` or ``mongo``."""

    def __init__(self, server: str, detail: str) -> None:
        super().__init__(f"{server} does not answer: {detail}", code=f"{server}_unavailable")
        self.server = server
        self.detail = detail

    def copy(self) -> ServerUnavailable:
        """Return an equal error without this one's traceback, for an answer that is given more than once."""
        return ServerUnavailable(self.server, self.detail)


class OutOfMemory(ServerUnavailable):
    """Redis answers but refuses to store more."""

    def __init__(self, detail: str) -> None:
        super().__init__("redis", detail)
        self.code = "redis_full"

    def copy(self) -> OutOfMemory:
        return OutOfMemory(self.detail)
