"""Starting runs, and answering for them afterwards.

The way of a start and its round trips: deployment and published versions (2, MongoDB, or none: at most 1 s old), who
is healthy (0; a snapshot at most 1 s old, before a refusal 0.1 s), free capacity if several roles could take it (0 or
1, Redis), idempotency key if there is one (0 or 1, MongoDB), ledger insert (1, MongoDB), live state (1, Redis), nudge
(1, broker).
"""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from app.clock import Clock
from app.errors import (
    AcceptanceUnknown,
    BadRequest,
    Conflict,
    Fault,
    IdempotencyMismatch,
    NoHealthyVariant,
    NotAccepted,
    NotFound,
    RegisterUnknown,
    ServerUnavailable,
)
from app.models.base import Request, parse
from app.models.event import START, Event, Place
from app.models.heartbeat import RegisteredInstance
from app.models.json_value import canonical, check_json
from app.models.names import Role
from app.models.run import Run, RunError, RunRequest, RunStatus, read_expiry
from app.ports import CancelResult, Dispatcher, Live, Page, RunFilter, Store
from app.resolver import Resolution, resolve
from app.roles import PlainRoles, RoleTable, RoleView
from app.runs.choices import Choice, Choices
from app.runs.gate import Gate
from app.runs.log import LogPage, RunLog
from app.runs.recovery import make_anew
from app.runs.rescue import send_nudge
from app.runs.waiting import Snapshots, Waiting

logger = logging.getLogger(__name__)

LIVE_INPUT_BYTES = 256_000
"""A larger input stays in the ledger, so that Redis holds many open runs."""
REFUSAL_AGE_S = 0.1
"""Nobody is told "no healthy variant" by an older snapshot than this: a worker may have come since."""


class ResolveRequest(Request):
    """The body of ``POST /api/v1/deployments/<id>/resolve``."""

    meta: dict[str, Any] = Field(default_factory=dict)
    healthy_roles: list[Role] | None = None
    """Asks "what if exactly these roles were healthy"."""


class Runs:
    """What callers can do with runs. Thread-safe; one a process."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        dispatcher: Dispatcher,
        choices: Choices,
        snapshots: Snapshots,
        instances: Callable[[], Sequence[RegisteredInstance]],
        waiting: Waiting,
        gate: Gate,
        clock: Clock,
        rng: random.Random,
        new_id: Callable[[], str],
        default_role: str | None,
        own_role: str,
        input_max_bytes: int,
    ) -> None:
        self._store = store
        self._live = live
        self._log = RunLog(live, store)
        self._dispatcher = dispatcher
        self._choices = choices
        self._snapshots = snapshots
        self._instances = instances
        self._waiting = waiting
        self._gate = gate
        self._clock = clock
        self._rng = rng
        self._new_id = new_id
        self._default_role = default_role
        self._own_role = own_role
        self._input_max_bytes = input_max_bytes

    # --- starting ------------------------------------------------------------------------------------------------

    def start(self, deployment_id: str, body: dict[str, Any], *, default_key: str | None = None) -> Run:
        """Accept a run of a deployment: resolve, record, queue, nudge.

        ``body`` is the request of the API (see :class:`~app.models.run.RunRequest`); ``default_key`` is the
        idempotency key of a request that brings none. Asked again with a key, it returns the run of the first time.

        Raises:
            BadRequest, NotFound, Conflict, IdempotencyMismatch: it can never work like this.
            NoHealthyVariant, RegisterUnknown, NotAccepted, ServerUnavailable: nothing runs; try again.
            AcceptanceUnknown: it may run; ask for ``run_id`` once the servers are back.
        """
        request = self._read(body)
        key = request.idempotency_key or default_key
        return self._start(deployment_id, request, key)

    def retry(self, run_id: str, *, key: str | None = None) -> Run:
        """Start a new run with the input and meta of an ended one, resolved again; its ``retryOf`` is ``run_id``.

        ``key`` is its idempotency key: asked again with it, the run of the first time is returned.

        Raises:
            Conflict: ``run_not_ended``.
        """
        old = self.get(run_id)
        if not old.ended:
            raise Conflict(
                f"run {run_id!r} is {old.status.value}; only an ended run can be retried", code="run_not_ended"
            )
        request = RunRequest(input=old.input, meta=old.meta, priority=old.priority)
        return self._start(old.deployment_id, request, key, retry_of=run_id)

    def _start(self, deployment_id: str, request: RunRequest, key: str | None, *, retry_of: str | None = None) -> Run:
        choice = self._choices.of(deployment_id)
        size_and_hash = canonical({"input": request.input, "meta": request.meta})
        body_hash = hashlib.sha256(size_and_hash).hexdigest()
        if key is not None and (known := self._store.find_run(deployment_id, key)) is not None:
            return self._known(known, key, body_hash)
        resolution = self._resolve_now(choice, request.meta)
        self._gate.check(resolution.target_role)
        run = Run(
            run_id=self._new_id(),
            deployment_id=deployment_id,
            variant=resolution.variant.label,
            flow_id=resolution.version.flow_id,
            version_id=resolution.version.version_id,
            target_role=resolution.target_role,
            target_roles=resolution.variant.target_roles,
            created_ms=self._clock(),
            input=request.input,
            meta=request.meta,
            explain=resolution.explain,
            priority=request.priority,
            expires_ms=read_expiry(request.expires_at),
            validation=choice.deployment.validation,
            retry_of=retry_of,
            idempotency_key=key,
            body_hash=body_hash,
            input_in_ledger=len(size_and_hash) > LIVE_INPUT_BYTES,
        )
        return self._accept(run, key, body_hash)

    def _accept(self, run: Run, key: str | None, body_hash: str) -> Run:
        """Make the run durable, then live, then known to the workers; 202 is owed once the first is done."""
        try:
            known = self._store.insert_run(run)
        except ServerUnavailable as error:
            raise AcceptanceUnknown(
                f"the ledger went away while run {run.run_id!r} was recorded ({error}); look it up later",
                run_id=run.run_id,
            ) from error
        if known is not None:
            return self._known(known, key or "", body_hash)
        try:
            self._queue(run)
        except ServerUnavailable as error:
            self._refuse(run, error)
        return run

    def _queue(self, run: Run) -> None:
        if self._live.create(run.with_(input={}) if run.input_in_ledger else run):
            send_nudge(self._dispatcher, run)

    def _known(self, known: Run, key: str, body_hash: str) -> Run:
        """Return the run that has the idempotency key already, if it was asked for with the same body."""
        if known.body_hash != body_hash:
            raise IdempotencyMismatch(known.deployment_id, key, known.run_id)
        if known.rev == 0:
            # Nothing of it has come back from the live state yet: its acceptance may have been cut off.
            self._queue(known)
        return known

    def _refuse(self, run: Run, cause: ServerUnavailable) -> None:
        """Write into the ledger that the run was never accepted, and raise."""
        message = f"the run could not be queued: {cause}"
        error = RunError("not_accepted", message, run.attempt)
        try:
            refused = self._store.refuse_run(
                run.with_(status=RunStatus.FAILED, error=error, ended_ms=self._clock(), rev=run.rev + 1)
            )
        except ServerUnavailable as second:
            raise AcceptanceUnknown(f"{message}; and then {second}", run_id=run.run_id) from second
        if not refused:
            raise AcceptanceUnknown(f"{message}; yet it lives; look it up", run_id=run.run_id) from cause
        raise NotAccepted(message) from cause

    def _read(self, body: dict[str, Any]) -> RunRequest:
        request = parse(RunRequest, body)
        check_json(request.input, "/input", max_bytes=self._input_max_bytes)
        check_json(request.meta, "/meta", max_bytes=self._input_max_bytes)
        try:
            read_expiry(request.expires_at)
        except ValueError as error:
            raise BadRequest.of(
                [Fault("/expiresAt", f"must be RFC 3339 such as 2026-11-30T21:40:00Z: {error}")]
            ) from None
        return request

    # --- resolving -----------------------------------------------------------------------------------------------

    def resolve(self, deployment_id: str, body: dict[str, Any]) -> Resolution:
        """Say which variant, version and role a run would get; run nothing.

        Raises:
            BadRequest, NotFound, Conflict, NoHealthyVariant, RegisterUnknown: as :meth:`start`.
        """
        request = parse(ResolveRequest, body)
        check_json(request.meta, "/meta", max_bytes=self._input_max_bytes)
        choice = self._choices.of(deployment_id)
        if request.healthy_roles is not None:
            return self._resolve(choice, request.meta, (PlainRoles(dict.fromkeys(request.healthy_roles, True)), 0))
        return self._resolve_now(choice, request.meta)

    def _resolve_now(self, choice: Choice, meta: dict[str, Any]) -> Resolution:
        view = self._role_view()
        try:
            return self._resolve(choice, meta, view)
        except NoHealthyVariant:
            if view[1] <= REFUSAL_AGE_S * 1000:
                raise
        return self._resolve(choice, meta, self._role_view(REFUSAL_AGE_S))

    def _resolve(self, choice: Choice, meta: dict[str, Any], view: tuple[RoleView, int]) -> Resolution:
        roles, age_ms = view
        return resolve(
            choice.deployment,
            choice.versions,
            meta,
            self._rng,
            roles,
            self._default_role,
            self._own_role,
            snapshot_age_ms=age_ms,
        )

    def _role_view(self, max_age_s: float | None = None) -> tuple[RoleView, int]:
        try:
            snapshot, age_ms = self._snapshots.get(max_age_s)
        except ServerUnavailable as error:
            raise RegisterUnknown(f"nobody can say which roles are healthy: {error}") from error
        if not snapshot.known:
            raise RegisterUnknown(
                "nobody can say yet which roles are healthy: the register was out of reach until a moment ago"
            )
        return RoleTable(snapshot, self._live.queues), age_ms

    # --- answering for runs --------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run:
        """Return a run as it is now, from the live state while it has one, else from the ledger.

        Raises:
            NotFound: ``run_not_found``.
        """
        run = self._from_live(run_id)
        if run is None or run.input_in_ledger:
            recorded = self._store.get_run(run_id)
            if run is None:
                run = recorded
            elif recorded is not None:
                run = run.with_(input=recorded.input)
        if run is None:
            raise NotFound.of("run", run_id)
        return run

    def show(self, run_id: str) -> Run:
        """Return a run as :meth:`get` does, and if it is queued, what it waits for."""
        return self._waiting.explain([self.get(run_id)])[0]

    def log(self, run_id: str, *, after: Place = START, limit: int = 1000) -> LogPage:
        """Return a page of a run's log, and whether anything can follow it; see :meth:`RunLog.read`."""
        return self._log.read(run_id, after=after, limit=limit)

    def events(self, run_id: str, *, after: Place = START, limit: int = 1000) -> list[Event]:
        """Return events of a run after a place, in order; raises as :meth:`log`."""
        return list(self.log(run_id, after=after, limit=limit).events)

    def list(self, where: RunFilter, *, after: str | None = None, limit: int = 50) -> Page[Run]:
        """List runs from the ledger, newest first; it follows the live state within seconds."""
        page = self._store.list_runs(where, after=after, limit=limit)
        return Page(self._waiting.explain(page.items), page.next)

    def cancel(self, run_id: str, *, force: bool = False) -> Run:
        """End a queued run, or ask a running one to stop; it stops at its next step.

        ``force``: if it has not stopped after a second or two, the process that executes it is ended.

        Raises:
            NotFound: ``run_not_found``.
            Conflict: ``run_ended``; ``pool_cannot_force``: other runs would end with that process; ``newer_schema``.
        """
        if force:
            self._check_force(run_id)
        # On record first: if Redis loses the run before it has ended, it is not run again.
        self._store.request_cancel(run_id)
        result = self._live.cancel(run_id, force=force)
        if result == "missing":
            result = self._cancel_recorded(run_id)
        run = self.get(run_id)
        if result == "ended":
            raise Conflict(f"run {run_id!r} is {run.status.value} already", code="run_ended")
        if result == "newer_schema":
            raise Conflict(f"run {run_id!r} was accepted by a newer Rolecall; cancel it there", code="newer_schema")
        return run

    def _cancel_recorded(self, run_id: str) -> CancelResult:
        """Cancel a run that has no live state: one that has ended, or one that is made anew to end at once."""
        run = self.get(run_id)
        if run.ended:
            return "ended"
        make_anew(self._store, self._live, run)
        return self._live.cancel(run_id)

    def _check_force(self, run_id: str) -> None:
        run = self._live.get(run_id)
        if run is None or run.worker is None or run.status is not RunStatus.RUNNING:
            return
        for instance in self._instances():
            worker = instance.heartbeat
            if worker.instance_id == run.worker.instance_id and worker.pool != "prefork":
                raise Conflict(
                    f"run {run_id!r} is executed by {worker.node!r}, whose pool {worker.pool!r} cannot end one run by "
                    "force; cancel it without force, or stop that worker",
                    code="pool_cannot_force",
                )

    def _from_live(self, run_id: str) -> Run | None:
        try:
            return self._live.get(run_id)
        except ServerUnavailable:
            # The ledger's word may be seconds old; that beats no word.
            return None
