"""The doors between the core and the world: what a store, a live store, a register, a dispatcher must do.

Each port has an adapter in memory and a real one, and one contract suite in ``tests/contract`` that both pass.
Adapters hold no rule of their own: what a run may do is said in :mod:`app.transitions`, what a role is in
:mod:`app.roles`.

Every method of every port may raise :class:`app.errors.ServerUnavailable` after a bounded wait.
"""

# Long because: every door between the core and the world is to be seen in one place.
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from app.clock import to_rfc3339
from app.models.deployment import Deployment
from app.models.event import Event, NewEvent
from app.models.flow import Flow, FlowVersion
from app.models.heartbeat import Heartbeat, RegisteredInstance
from app.models.role import QueueStats, RegisterSnapshot
from app.models.run import Run, RunError, RunStatus, WorkerRef

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list. ``next`` is given back as ``after`` to read on; ``None`` where the list ends."""

    items: list[T]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a list shows; ``None`` means any."""

    deployment: str | None = None
    variant: str | None = None
    role: str | None = None
    status: RunStatus | None = None
    session: str | None = None
    """``meta.session_id``, compared as text."""


# --- the durable store -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalPage:
    """One write to a run's journal: what the next attempt is to take from there instead of executing it again."""

    number: int
    """Counts from 1 without gaps; whoever holds a number has fenced everybody who comes later with the same."""
    attempt: int
    writer: str
    """The lease token of the attempt that wrote it."""
    text: str
    """JSON; :mod:`app.engine.journal` says of what."""


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """The answer to a claim of an idempotency key of a node.

    ``mine``: execute, then keep the output or release the key. ``taken``: somebody else is executing. ``kept``: it has
    been done and ``output`` is the JSON text of what came of it.
    """

    state: Literal["mine", "taken", "kept"]
    output: str | None = None


class Store(Protocol):
    """Flows, deployments and the ledger of runs; durable before a call returns."""

    def ping(self) -> None:
        """Ask the server something real."""

    def prepare(self) -> None:
        """Make the indexes. Safe to call again and from several processes at once."""

    # Flows
    def save_version(
        self, flow_id: str, *, flow_name: str, document: Mapping[str, Any], content_hash: str,
        needs: tuple[tuple[str, ...], ...], title: str, now: str,
    ) -> tuple[FlowVersion, bool]:  # fmt: skip
        """Store a version unless the flow has one with that hash; return it and whether it is new."""

    def publish(self, flow_id: str, version_id: str, *, now: str) -> Flow:
        """Make a version the published one.

        Raises:
            NotFound: no such flow or version.
        """

    def get_flow(self, flow_id: str) -> Flow | None: ...
    def get_flows(self, flow_ids: Collection[str]) -> dict[str, Flow]:
        """Return those of the flows that exist, by id, in one round trip."""

    def list_flows(self, *, after: str | None = None, limit: int = 100) -> Page[Flow]:
        """List flows by id."""

    def get_version(self, flow_id: str, version_id: str) -> FlowVersion | None: ...
    def list_versions(self, flow_id: str, *, after: str | None = None, limit: int = 100) -> Page[FlowVersion]:
        """List a flow's versions, newest number first."""

    # Deployments
    def put_deployment(self, deployment: Deployment) -> None:
        """Create a deployment, or replace the one that is there; its rev must be :meth:`deployment_rev` plus one.

        Raises:
            RevConflict: it is not.
        """

    def get_deployment(self, deployment_id: str) -> Deployment | None: ...
    def deployment_rev(self, deployment_id: str) -> int:
        """Return the number of changes that this id has seen, 0 if none.

        Deletions count as well, so that nobody can overwrite a deployment that was deleted and created again by a
        rev that he read before.
        """

    def list_deployments(
        self, *, flow: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Deployment]:  # fmt: skip
        """List deployments by id, or those of them with a variant of ``flow``."""

    def delete_deployment(self, deployment_id: str) -> bool:
        """Delete it; return whether it was there. Its runs stay."""

    # The ledger
    def insert_run(self, run: Run) -> Run | None:
        """Insert a run. Return ``None``, or the run that already has its deployment and idempotency key.

        A run that is there already with this very id was inserted by a call whose answer got lost: ``None``.
        """

    def get_run(self, run_id: str) -> Run | None: ...
    def find_run(self, deployment_id: str, idempotency_key: str) -> Run | None: ...
    def mirror_run(self, run: Run) -> bool:
        """Bring the ledger up to ``run`` if it is newer (``rev``) and the stored one has not ended.

        ``input`` and the idempotency fields in the ledger are kept. Return whether it changed anything; an unknown
        run, an older or equal rev, or an ended record change nothing.
        """

    def refuse_run(self, run: Run) -> bool:
        """Write that a run was never accepted: as :meth:`mirror_run`, and its idempotency key is free again.

        Return false if it was accepted after all: it has been mirrored.
        """

    def request_cancel(self, run_id: str) -> None:
        """Note on an open record that somebody asked to cancel the run; it stays open until the live state says so."""

    def ended_runs(self, run_ids: Sequence[str]) -> set[str]:
        """Return those of the ids that are on record as ended, in one round trip."""

    def list_runs(self, where: RunFilter, *, after: str | None = None, limit: int = 50) -> Page[Run]:
        """List runs, newest first by the time of acceptance and id.

        ``after`` is a cursor that stays right while runs are added and change. A page of large runs may be shorter
        than ``limit``; only ``next`` says whether the list ends.

        Raises:
            BadRequest: ``after`` is no cursor of ours.
        """

    def append_events(self, run_id: str, events: Sequence[Event]) -> None:
        """Store events of a run; those already stored (by ``seq``) are left as they are.

        Raises:
            ValueError: a number is missing among them, or between them and what is stored.
        """

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return stored events with ``seq`` > ``after``, in order."""

    def drop_events(self, run_id: str) -> None:
        """Forget stored events of an open run: a part of a story that Redis has lost, and that begins anew."""

    # The journal of a run
    def journal(self, run_id: str) -> list[JournalPage]:
        """Return the pages of a run's journal, in order."""

    def journal_put(self, run_id: str, page: JournalPage) -> bool:
        """Write the next page. Return false, changing nothing, if another writer has that number.

        The same page again, by a writer whose answer got lost, is true. The caller has read, or written, the page
        before.

        Raises:
            BadRequest: it is larger than the store can keep; 13 MB always fit.
        """

    def drop_journal(self, run_id: str) -> None:
        """Forget the journal of a run that has ended."""

    # Idempotency keys of nodes
    def claim_key(self, key: str, *, holder: str, ttl_ms: int) -> KeyClaim:
        """Claim a key for ``holder``, for ``ttl_ms`` unless it is kept or released before.

        One holder at a time; the same holder may claim again.
        """

    def keep_output(self, key: str, *, holder: str, output: str, ttl_ms: int) -> bool:
        """Keep the output (JSON text) of what was executed under a key. Return false if another has the key now."""

    def release_key(self, key: str, *, holder: str) -> None:
        """Give up a claim: nothing was executed, or it failed."""

    # Counters of core/count
    def count(self, key: str, packet: str) -> int:
        """Add one to a counter, once for each different ``packet`` key, and return the counter."""

    def counter(self, key: str) -> int:
        """Return a counter; 0 if nothing was counted."""

    def close(self) -> None: ...


# --- the live state ----------------------------------------------------------------------------------------------

Leaving = Literal["stopping", "draining"]
"""Why a process takes and keeps no run: it is about to end, or was told to drain."""

ClaimRefusal = Literal[
    "missing",
    "ended",
    "taken",
    "other_role",
    "too_early",
    "excluded",
    "expired",
    "newer_schema",
    "stopping",
    "draining",
]


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim: the run, or why not.

    ``taken``: somebody else holds it. ``excluded``: this instance handed it back before. ``expired``: its ``expiresAt``
    has come and it never started. ``stopping``, ``draining``: this process takes no run and did not ask.
    """

    run: Run | None
    refusal: ClaimRefusal | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The answer to whoever says it holds a lease.

    ``ok`` is false when the token is not the run's (any more): the caller is fenced and must stop. ``seq`` is the
    number of the last event. ``cancelled``: somebody asked to cancel the run.
    """

    ok: bool
    seq: int = 0
    cancelled: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to a renewal of many leases: run ids that are not the caller's any more, and those to cancel."""

    refused: frozenset[str] = frozenset()
    cancelled: frozenset[str] = frozenset()
    forced: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: ``completed`` with an output, ``failed`` with an error, or ``cancelled``."""

    status: RunStatus
    output: Any = None
    error: RunError | None = None


CancelResult = Literal["cancelled", "requested", "ended", "missing", "newer_schema"]


class AckToCome(Protocol):
    """The answer to a command that was sent and not waited for."""

    def known(self) -> bool:
        """Return whether :meth:`get` needs not wait."""

    def get(self) -> Ack:
        """Return the answer; wait for it, as long as any command may take.

        Raises:
            ServerUnavailable: none came; the command may have taken effect.
        """


class Live(Protocol):
    """Open runs: fast, atomic, one round trip a call. Its server's clock stamps everything."""

    def ping(self) -> None: ...
    def headroom(self) -> bool:
        """Return whether it can store more."""

    def create(self, run: Run, *, reason: str | None = None) -> bool:
        """Make the live state of a queued run with its first event ``run.queued``.

        Return false, changing nothing, if it has one already. ``created_ms`` of the stored run is the server's time,
        unless it is made anew (``epoch``).

        Raises:
            OutOfMemory: the server refuses to store more.
            ServerUnavailable: no answer in time. It may have been made, but it will not be made later than now.
        """

    def claim(self, run_id: str, *, worker: WorkerRef, token: str, ttl_ms: int) -> Claim:
        """Take a queued run of the worker's role: status ``running``, event ``run.started``, a lease for ``token``.

        Called again with the same token it answers as the first time.
        """

    def append(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent]) -> Ack:
        """Write a batch of events. ``batch`` counts from 1 under one token; a number seen before writes nothing.

        With no events it only asks whether the lease still holds (``batch`` is then not looked at).
        """

    def renew(self, leases: Iterable[tuple[str, str]], *, ttl_ms: int) -> Renewal:
        """Renew many ``(run_id, token)`` leases in one round trip."""

    def finish(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome) -> Ack:
        """Write the last batch of events, end the run and add its terminal event, all or nothing.

        Called again with the same token it answers as the first time.
        """

    def send_finish(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome
    ) -> AckToCome:
        """Send what :meth:`finish` sends and do not wait for the answer.

        Raises:
            ServerUnavailable: it was not sent.
        """

    def hand_back(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *,
        reason: str, role: str | None = None, exclude: bool = False,
    ) -> Ack:  # fmt: skip
        """Give a run back to the queue of ``role`` (default: the same): attempt + 1, ``run.rerouted``, no loss.

        ``exclude``: this instance must not be given the run again.
        """

    def retry(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *, code: str, pause_ms: int
    ) -> Ack:
        """Give a run back to its role's queue because its policy allows another try after the fault ``code``:
        attempt + 1, ``retries`` + 1, ``run.retrying``, no claim before the pause is over.
        """

    def move(self, run_id: str, *, attempt: int, role: str, reason: str) -> Run | None:
        """Give a queued run of that attempt to another role: ``run.rerouted``, the same attempt, no loss.

        Return the changed run, or ``None`` if it does not wait (there) any more.
        """

    def fail_queued(self, run_id: str, *, attempt: int, error: RunError) -> Run | None:
        """End a queued run of that attempt as failed. Return the changed run, or ``None`` if it does not wait."""

    def drop(self, run_id: str) -> None:
        """Forget an open run: the ledger knows better. One of a newer schema, or one that has ended, is left alone."""

    def break_lease(
        self, run_id: str, *, attempt: int, reason: str, role: str | None, pause_ms: int, max_losses: int,
        token: str | None = None,
    ) -> Run | None:  # fmt: skip
        """Take a run from a worker that is lost: attempt + 1, losses + 1, queued after a pause, ``run.rerouted``; or
        ``run.failed`` ``worker_lost`` once ``losses`` reaches ``max_losses``.

        Without ``token`` the lease must have expired; with it, it must be that lease. ``attempt`` must be the run's.
        Return the changed run, or ``None`` if nothing was to be done.
        """

    def cancel(self, run_id: str, *, force: bool = False) -> CancelResult:
        """End a queued run at once; ask a running one to stop; leave one of a newer schema alone."""

    def get(self, run_id: str) -> Run | None: ...
    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return events with ``seq`` > ``after``, in order."""

    def queues(self, roles: Collection[str]) -> Mapping[str, QueueStats]:
        """Return queued, running and oldest age of each role asked for, in one round trip."""

    def changed(self, limit: int) -> list[Run]:
        """Return runs whose state is newer than what :meth:`mirrored` was told, those changed first first.

        Fewer than ``limit`` may also mean that their outputs are large.
        """

    def mirrored(self, run_id: str, rev: int) -> None:
        """The ledger holds this run up to ``rev``; forget the change unless a newer one has come."""

    def archived(self, run_id: str, *, keep_ms: int) -> None:
        """The ledger holds this ended run and all its events: let its live state expire in ``keep_ms``."""

    def expired_leases(self, limit: int) -> list[str]:
        """Return ids of runs whose lease has expired, oldest first."""

    def queued(self, role: str, limit: int, *, waited_ms: int = 0) -> list[str]:
        """Return ids of the runs that wait longest for a role, of those that have waited for ``waited_ms``.

        A run in its pause does not wait yet.
        """

    def waiting_roles(self) -> list[str]:
        """Return the roles that have queued runs, in order."""

    def expired(self, limit: int) -> list[str]:
        """Return ids of queued runs whose ``expiresAt`` has come before anybody ever started them."""

    def behind(self, revs: Mapping[str, int]) -> list[str]:
        """Return those of the ids whose live state is missing or older than the rev given, in one round trip."""

    def open_runs(self) -> list[str]:
        """Return the ids of all queued and running runs, in one (large) answer."""

    def trusted(self) -> bool:
        """Return whether nothing can have been lost since :meth:`trust`; false after the server was emptied,
        restarted or replaced by another.
        """

    def trust(self) -> None:
        """From now on what is here is what there is: it has been compared with the ledger."""

    def guard(self, job: str, *, period_ms: int) -> bool:
        """Return true to one caller a period for each ``job``, false to the others."""

    def close(self) -> None: ...


class Bell(Protocol):
    """Rings when a run has new events. It carries no event: whoever hears it reads the log."""

    def watch(self, run_id: str) -> AbstractContextManager[Callable[[float], bool]]:
        """Watch one run. The context's value is ``wait(seconds) -> bool``: true as soon as it rang since the last
        wait, false when the time is over. It is in force when the context is entered: read the log after that.
        """

    def close(self) -> None: ...


class Streams(Protocol):
    """Where ``stream`` edges publish their packets, for whoever reads a topic outside of Rolecall."""

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Append a message to a topic. Only the last ten thousand or so of a topic are kept."""

    def close(self) -> None: ...


# --- the register ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeatReply:
    """``accepted`` is false for a beat that arrived so late that it says nothing of now. ``server_ms``: its clock."""

    accepted: bool
    server_ms: int
    gap: bool = False
    """This beat was the first after a time in which nobody was heard."""
    drain: bool = False
    """Whether the instance is to take no new runs: its node or its role is drained. Only told if accepted."""


DrainKind = Literal["node", "role"]


@dataclass(frozen=True, slots=True)
class Drain:
    """A stored wish that a node, or everybody of a role, takes no new runs, restarts included.

    ``by`` says who wished it, ``at_ms`` the server's time since which it holds.
    """

    kind: DrainKind
    name: str
    by: str
    at_ms: int

    def to_wire(self) -> dict[str, Any]:
        return {self.kind: self.name, "by": self.by, "at": to_rfc3339(self.at_ms)}


class Register(Protocol):
    """Who is alive. The server's clock stamps arrivals; questions about roles cost the same at any fleet size."""

    def ping(self) -> None: ...
    def beat(self, heartbeat: Heartbeat, *, expected_ms: int | None = None) -> BeatReply:
        """Announce an instance and publish ``worker.heartbeat``.

        ``expected_ms`` is what the sender believes the server's clock to say on arrival; a beat that arrives far
        from it was stuck on the way, maybe longer than its sender lived, and is refused.
        """

    def leave(self, instance_id: str) -> None:
        """Say goodbye: the instance is gone at once."""

    def snapshot(self) -> RegisterSnapshot:
        """Return the roles as they are now: one round trip, its cost independent of the number of instances."""

    def instances(self) -> list[RegisteredInstance]:
        """Return every living instance, ordered by role and node."""

    def drain(self, kind: DrainKind, name: str, *, by: str) -> Drain:
        """Store that a node or a role drains; its processes hear of it in the answer to their next heartbeat.

        One that drains already is left as it is. Nobody needs to answer for it.
        """

    def undrain(self, kind: DrainKind, name: str) -> bool:
        """Forget a drain; return whether there was one."""

    def drains(self) -> list[Drain]:
        """Return every stored drain, nodes first, by name."""

    def close(self) -> None: ...


# --- dispatch ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nudge:
    """The message that tells a role's workers of a queued run. It may be lost or doubled without harm."""

    run_id: str
    attempt: int
    target_role: str
    flow_id: str
    version_id: str
    deployment_id: str
    variant: str
    priority: int = 0

    @classmethod
    def of(cls, run: Run) -> Nudge:
        return cls(
            run.run_id,
            run.attempt,
            run.target_role,
            run.flow_id,
            run.version_id,
            run.deployment_id,
            run.variant,
            run.priority,
        )


class Dispatcher(Protocol):
    """Sends nudges to the queue of a role."""

    def ping(self) -> None: ...
    def nudge(self, nudge: Nudge) -> None: ...
    def depth(self, roles: Collection[str]) -> Mapping[str, int]:
        """Return how many messages lie ready in the queue of each role, of every priority."""

    def close(self) -> None: ...
