"""Executing a run that a nudge told of: claim, engine, finish.

A short run waits for one round trip, its claim. Its end is sent, and the answer read with that of the next claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event as Flag
from typing import get_args

from app import engine
from app.catalog import Catalog
from app.clock import Monotonic
from app.engine.host import Cancelled, Fenced, HandBack, TimedOut
from app.errors import NotFound, RolecallError, ServerUnavailable
from app.flowdsl import Plan
from app.models.run import Run, RunError, RunStatus, WorkerRef
from app.nodes.registry import HandlerRegistry
from app.ports import Claim, Dispatcher, Leaving, Live, Outcome, Store, Streams
from app.runs.attempt import Attempt
from app.runs.flusher import Flusher
from app.runs.rescue import send_nudge

logger = logging.getLogger(__name__)

CLAIM_RETRY_S = 0.5
TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one attempt may take; from the settings of the same names."""

    lease_ttl_s: float
    run_timeout_s: float
    max_events: int
    output_max_bytes: int


class Executor:
    """Executes runs in this process, for one worker. Thread-safe."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        dispatcher: Dispatcher,
        catalog: Catalog,
        handlers: HandlerRegistry,
        worker: WorkerRef,
        flusher: Flusher,
        limits: Limits,
        monotonic: Monotonic,
        random: Callable[[], float],
        leaving: Callable[[], Leaving | None],
        secrets: Callable[[str], str | None] | None = None,
        streams: Streams | None = None,
        elsewhere: Callable[[Run], str | None] = lambda _: None,
        die: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._dispatcher = dispatcher
        self._catalog = catalog
        self._handlers = handlers
        self._worker = worker
        self._flusher = flusher
        self._limits = limits
        self._monotonic = monotonic
        self._random = random
        self._leaving = leaving
        self._secrets = secrets
        self._streams = streams
        self._elsewhere = elsewhere
        # Ends this process, where it is one run's alone; a forced cancel that is not obeyed comes to that.
        self._die = die

    def execute(self, run_id: str, token: str) -> str:
        """Execute a run if it may be claimed; return one word for the log.

        The words: a run's end (``completed``, ``failed``, ``cancelled``), ``handed_back``, ``fenced``, ``retrying``
        (its time was over, and its flow's policy allows another try), or why it was not claimed (see
        :data:`app.ports.ClaimRefusal`), which is what becomes of a doubled or late nudge.
        """
        claim = self._claim(run_id, token)
        if claim.run is None:
            if claim.refusal in get_args(Leaving):
                self._tell_again(run_id)
            return claim.refusal or "missing"
        attempt = self._attempt(claim.run, token)
        self._flusher.add(attempt)
        try:
            return self._work(claim.run, attempt, token)
        finally:
            if not attempt.awaits_answer:
                self._flusher.discard(attempt)

    def _claim(self, run_id: str, token: str) -> Claim:
        """Claim a run; while Redis is away ask again, for as long as a lease lasts. The token makes that harmless."""
        give_up_at = self._monotonic() + self._limits.lease_ttl_s
        while (reason := self._leaving()) is None:
            try:
                return self._live.claim(
                    run_id, worker=self._worker, token=token, ttl_ms=int(self._limits.lease_ttl_s * 1000)
                )
            except ServerUnavailable:
                if self._monotonic() > give_up_at:
                    raise
                Flag().wait(CLAIM_RETRY_S)
        return Claim(None, reason)

    def _tell_again(self, run_id: str) -> None:
        """Send the nudge anew that this process has taken and does nothing with."""
        try:
            run = self._live.get(run_id)
        except ServerUnavailable as error:
            logger.info("run %s waits to be told of again: %s", run_id, error)
            return
        if run is not None and run.status is RunStatus.QUEUED:
            send_nudge(self._dispatcher, run)

    def _work(self, run: Run, attempt: Attempt, token: str) -> str:
        try:
            plan = self._catalog.plan(run.flow_id, run.version_id)
            given = self._input(run)
        except ServerUnavailable as error:
            logger.warning("run %s goes back: %s", run.run_id, error)
            return self._hand_back(run, attempt, error.code)
        except RolecallError as error:
            return self._finish(attempt, _failure(error.code, str(error), run))
        if any(self._handlers.find(candidates) is None for candidates in plan.needs):
            return self._hand_back(run, attempt, "missing_handler", exclude=True)
        try:
            outcome = self._run_engine(run, plan, given, attempt, token)
        except Fenced as fenced:
            logger.warning("run %s attempt %d stops here: %s", run.run_id, run.attempt, fenced)
            return "fenced"
        except HandBack as wish:
            return self._hand_back(run, attempt, wish.reason)
        except Cancelled:
            outcome = Outcome(RunStatus.CANCELLED)
        except TimedOut:
            return self._timed_out(run, plan, attempt)
        return self._finish(attempt, outcome)

    def _timed_out(self, run: Run, plan: Plan, attempt: Attempt) -> str:
        tries, policy = run.retries + 1, plan.default_retry
        if policy is not None and any(policy.allows(code, tries) for code in (TIMED_OUT, "TIMEOUT")):
            pause_ms = policy.delay_ms(tries, self._random())
            return "retrying" if attempt.retry(TIMED_OUT, pause_ms) else "fenced"
        return self._finish(attempt, _failure(TIMED_OUT, f"an attempt may take {self._limits.run_timeout_s:g} s", run))

    def _run_engine(self, run: Run, plan: Plan, given: dict[str, object], attempt: Attempt, token: str) -> Outcome:
        return engine.execute(
            plan,
            run_id=run.run_id,
            attempt=run.attempt,
            input=given,
            meta=run.meta,
            handlers=self._handlers,
            host=attempt,
            ledger=self._store,
            token=token,
            secrets=self._secrets,
            streams=self._streams,
            validation=run.validation,
            max_output_bytes=self._limits.output_max_bytes,
        )

    def _input(self, run: Run) -> dict[str, object]:
        if not run.input_in_ledger:
            return run.input
        recorded = self._store.get_run(run.run_id)
        if recorded is None:
            raise NotFound.of("run", run.run_id)
        return recorded.input

    def _finish(self, attempt: Attempt, outcome: Outcome) -> str:
        return outcome.status.value if attempt.finish(outcome) else "fenced"

    def _hand_back(self, run: Run, attempt: Attempt, reason: str, *, exclude: bool = False) -> str:
        # Where nobody can go on, or nobody knows who could, it waits in the queue that it came from.
        role = self._elsewhere(run) or run.target_role
        if not attempt.hand_back(reason, role=role, exclude=exclude):
            return "fenced"
        send_nudge(self._dispatcher, run.with_(attempt=run.attempt + 1, target_role=role))
        return "handed_back"

    def _attempt(self, run: Run, token: str) -> Attempt:
        return Attempt(
            self._live,
            run,
            token,
            ticker=self._flusher,
            monotonic=self._monotonic,
            random=self._random,
            count=self._store.count,
            leaving=self._leaving,
            die=self._die,
            lease_ttl_s=self._limits.lease_ttl_s,
            timeout_s=self._limits.run_timeout_s,
            max_events=self._limits.max_events,
            max_bytes=4 * self._limits.output_max_bytes,
        )


def _failure(code: str, message: str, run: Run) -> Outcome:
    return Outcome(RunStatus.FAILED, error=RunError(code, message, run.attempt))
