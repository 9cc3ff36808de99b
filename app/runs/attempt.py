"""One attempt's line to the live state: events out in numbered batches, cancel and fencing back in."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event as Flag
from threading import Lock
from typing import Protocol

from app.clock import Monotonic
from app.engine.host import Cancelled, Fenced, HandBack, TimedOut
from app.errors import OutOfMemory, ServerUnavailable
from app.models.event import DROPPABLE, LOG, NewEvent
from app.models.json_value import dumps
from app.models.run import Run
from app.ports import Ack, Leaving, Live, Outcome

logger = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0


class Ticker(Protocol):
    """Whoever flushes attempts in the background (:class:`app.runs.flusher.Flusher`)."""

    def poke(self) -> None:
        """An attempt has something to send."""


class Attempt:
    """What the engine sees of the world while it executes one attempt (an :class:`app.engine.host.Host`).

    Events are collected and sent by a background thread in batches, or with the end of the run, whichever comes first:
    a short run costs one claim, and one finish whose answer nobody waits for. While Redis is away they wait here. Two
    threads use an attempt: the executing one and the flusher.
    """

    def __init__(
        self,
        live: Live,
        run: Run,
        token: str,
        *,
        ticker: Ticker,
        monotonic: Monotonic,
        random: Callable[[], float],
        count: Callable[[str, str], int],
        leaving: Callable[[], Leaving | None],
        die: Callable[[], None] | None,
        lease_ttl_s: float,
        timeout_s: float,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self.run = run
        self._live = live
        self._token = token
        self._ticker = ticker
        self._monotonic = monotonic
        self._random = random
        self._count = count
        self._leaving = leaving
        self._die = die
        self._lease_ttl_s = lease_ttl_s
        self._deadline = monotonic() + timeout_s
        self._room = max_events - run.seq
        self._room_bytes = max_bytes
        self._truncated = False
        self._buffer: list[NewEvent] = []
        self._buffer_lock = Lock()
        # Held during every call that carries this token, so that batches leave in order.
        self._line = Lock()
        self._batch = 0
        self._unanswered: list[NewEvent] | None = None
        self._acked_at = monotonic()
        self._fenced = False
        self._concluded = False
        self._end_unheard: Callable[[], Ack] | None = None
        self._end_again: Callable[[], Ack] | None = None
        self._cancel = Flag()

    # --- what the engine asks ------------------------------------------------------------------------------------

    def emit(self, event: NewEvent) -> None:
        """Take an event; it is sent within a tick. Past the run's share only lifecycle events are kept."""
        with self._buffer_lock:
            if event.type in DROPPABLE and not self._fits(event):
                return
            self._buffer.append(event)
            first = len(self._buffer) == 1
        if first:
            self._ticker.poke()

    def check(self) -> None:
        """Raise if the engine must not go on: fenced, cancelled, out of time, or this process keeps no runs."""
        if self._fenced:
            raise Fenced("the run was given to somebody else")
        if self._monotonic() - self._acked_at > self._lease_ttl_s:
            # The lease may have been broken without our hearing of it: start nothing that another may start too.
            raise Fenced("the live state was out of reach for longer than the lease")
        if self._cancel.is_set():
            raise Cancelled
        if self._monotonic() > self._deadline:
            raise TimedOut
        reason = self._leaving()
        if reason is not None:
            raise HandBack(reason)

    def cancelled(self) -> bool:
        """Return whether a handler should give up: the run is cancelled or is not ours any more."""
        return self._cancel.is_set() or self._fenced

    def now(self) -> float:
        return self._monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, but no longer than until the run is cancelled or fenced."""
        self._cancel.wait(seconds)

    def random(self) -> float:
        return self._random()

    def count(self, key: str, packet: str) -> int:
        return self._count(key, packet)

    # --- what the flusher does -----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what has been collected. When Redis is away, the same batch is sent again next time.

        After the end: hear the answer to that.
        """
        if self._end_unheard is not None:
            with self._line:
                self._hear_end()
        if self._fenced or (not self._buffer and self._unanswered is None):
            return
        with self._line:
            self._send_collected()

    def poll(self, *, ttl_ms: int) -> None:
        """Renew this run's lease, and hear whether it still holds and whether to cancel.

        The process's pulse renews it too; this one goes on when the pulse is stopped (a frozen parent of a pool
        child), and tells the executing thread at once. A forced cancel ends the process, unless the handler has given
        up by the next time.
        """
        with self._line:
            if self._concluded:
                return
            warned = self._cancel.is_set()
            asked_at = self._monotonic()
            try:
                renewal = self._live.renew([(self.run.run_id, self._token)], ttl_ms=ttl_ms)
            except ServerUnavailable:
                return
            run_id = self.run.run_id
            self._hear(Ack(run_id not in renewal.refused, cancelled=run_id in renewal.cancelled), asked_at)
            if warned and run_id in renewal.forced and self._die is not None:
                # Under the lock that the end of this run needs too: the process cannot have gone on to another run.
                logger.warning("run %s is cancelled by force: this process ends", run_id)
                self._die()

    # --- the end -------------------------------------------------------------------------------------------------

    def finish(self, outcome: Outcome) -> bool:
        """Send the rest and the end of the run; keep trying while Redis is away. Return false if fenced.

        The answer is not waited for, so that the process can go on to its next run meanwhile: the flusher hears it,
        and sends the end again if none comes. With the end on its way the run is nobody's to stop.
        """

        def again() -> Ack:
            return self._live.finish(self.run.run_id, self._token, self._batch + 1, events, outcome)

        with self._line:
            if not self._fenced and self._unanswered is None:
                events = self._take()
                try:
                    sent = self._live.send_finish(self.run.run_id, self._token, self._batch + 1, events, outcome)
                except ServerUnavailable:
                    self._put_back(events)
                else:
                    self._concluded, self._end_unheard, self._end_again = True, sent.get, again
                    if sent.known():
                        self._hear_end()
                    else:
                        self._ticker.poke()
                    return not self._fenced
        return self._conclude(
            lambda batch, events: self._live.finish(self.run.run_id, self._token, batch, events, outcome)
        )

    def hand_back(self, reason: str, *, role: str | None = None, exclude: bool = False) -> bool:
        """Send the rest and give the run back to the queue of ``role`` (default: its own). Return false if fenced."""
        return self._conclude(
            lambda batch, events: self._live.hand_back(
                self.run.run_id, self._token, batch, events, reason=reason, role=role, exclude=exclude
            )
        )

    def retry(self, code: str, pause_ms: int) -> bool:
        """Send the rest and give the run back for another try after a pause. Return false if fenced."""
        return self._conclude(
            lambda batch, events: self._live.retry(
                self.run.run_id, self._token, batch, events, code=code, pause_ms=pause_ms
            )
        )

    def _conclude(self, send: Callable[[int, list[NewEvent]], Ack]) -> bool:
        pause = RETRY_FIRST_S
        while not self._fenced:
            with self._line:
                asked_at = self._monotonic()
                try:
                    if self._unanswered is not None and not self._send_collected():
                        raise ServerUnavailable("redis", "the last batch is still unanswered")
                    events = self._take()
                    try:
                        ack = send(self._batch + 1, events)
                    except ServerUnavailable:
                        # The same batch number carries the same events if it is tried again.
                        self._put_back(events)
                        raise
                    self._hear(ack, asked_at)
                    self._concluded = True
                    return ack.ok
                except ServerUnavailable as error:
                    logger.warning("run %s has ended but cannot say so yet: %s", self.run.run_id, error)
            Flag().wait(pause)
            pause = min(2 * pause, RETRY_MOST_S)
        return False

    @property
    def awaits_answer(self) -> bool:
        """Whether the end was sent and its answer is still to be heard."""
        return self._end_unheard is not None

    @property
    def over(self) -> bool:
        """Whether the end was sent and answered: nothing is left to be done for this attempt."""
        return self._concluded and self._end_unheard is None

    # --- inside --------------------------------------------------------------------------------------------------

    def _hear_end(self) -> None:
        """Hear the answer to the end, or send the end again; the caller holds the line."""
        if self._end_unheard is None:
            return
        asked_at = self._monotonic()
        try:
            ack = self._end_unheard()
        except ServerUnavailable as error:
            # The same batch number carries the same events, and the token makes the answer the same.
            self._end_unheard = self._end_again
            logger.warning("run %s has ended but cannot say so yet: %s", self.run.run_id, error)
            return
        self._end_unheard = None
        self._hear(ack, asked_at)
        if not ack.ok:
            run = self.run
            logger.warning("run %s attempt %d ended after it was given to somebody else", run.run_id, run.attempt)

    def _send_collected(self) -> bool:
        """Send one batch; the caller holds the line. Return whether it was answered."""
        if self._unanswered is None:
            self._unanswered = self._take()
            self._batch += 1
        asked_at = self._monotonic()
        try:
            ack = self._live.append(self.run.run_id, self._token, self._batch, self._unanswered)
        except OutOfMemory as error:
            # Refused for certain, so these events may travel with a later batch or with the end of the run, which a
            # full server does take.
            logger.info("events of run %s wait: %s", self.run.run_id, error)
            self._put_back(self._unanswered)
            self._unanswered = None
            return True
        except ServerUnavailable as error:
            logger.info("events of run %s wait: %s", self.run.run_id, error)
            return False
        self._unanswered = None
        self._hear(ack, asked_at)
        return True

    def _hear(self, ack: Ack, asked_at: float) -> None:
        if not ack.ok:
            self._fenced = True
            self._cancel.set()
            return
        # What holds when the server answered held when it was asked; the answer may have been long on the way.
        self._acked_at = asked_at
        if ack.cancelled:
            self._cancel.set()

    def _take(self) -> list[NewEvent]:
        with self._buffer_lock:
            events, self._buffer = self._buffer, []
        return events

    def _put_back(self, events: list[NewEvent]) -> None:
        with self._buffer_lock:
            self._buffer[:0] = events

    def _fits(self, event: NewEvent) -> bool:
        """Return whether a droppable event still has room; the first that has none leaves a note in its place."""
        self._room -= 1
        self._room_bytes -= len(dumps(event.data)) if event.data else 0
        if self._room >= 0 and self._room_bytes >= 0:
            return True
        if not self._truncated:
            self._truncated = True
            note = "this run has had its share of events; further progress, token and log events are dropped"
            self._buffer.append(NewEvent(LOG, data={"truncated": True, "message": note}))
        return False
