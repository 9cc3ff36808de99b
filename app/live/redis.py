"""The live state on Redis: one script for each command, one round trip for each call.

Keys, all under the prefix:

=====================  ==========================================================================================
``run:<id>``           hash: the run (see :mod:`app.live.codec`) and its lease token, batch number, last answer
``run:<id>:events``    stream: its events, with ids ``<seq>-<epoch>``
``queued:<role>``      sorted set of queued runs by the time since which they wait (after a pause, its end). The
                       priority is not in the score: the broker's lists order by it, and so the true waiting time
                       stays readable and the longest waiting run is found whatever its priority
``waiting``            set of the roles that had queued runs when somebody last asked, and of those that came since
``expiring``           sorted set of queued runs that must be started by a certain time, by that time
``running:<role>``     set of running runs
``leases``             sorted set of running runs by the time at which the lease expires
``changed``            sorted set of runs that the ledger does not show as they are, by the time of the first change
``ended``              sorted set of ended runs that are not archived, by the time of their end
``guard:<job>``        there while a job's period lasts
``trusted``            the ``run_id`` of the server whose runs were last compared with the ledger
=====================  ==========================================================================================

``run.events.<id>`` is the channel on which the number of a run's last event is published. Each script keeps all of
this in step; times are the server's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from app.clock import Monotonic
from app.errors import ServerUnavailable
from app.live.codec import event_text, excluded_entry, read_events, read_run, run_fields
from app.live.lua import source
from app.models.event import Event, NewEvent
from app.models.json_value import dumps
from app.models.role import QueueStats
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Ack, AckToCome, CancelResult, Claim, ClaimRefusal, Outcome, Renewal
from app.redis_client import RedisServer
from app.redis_scripts import Reply
from app.transitions import (
    check_batch,
    expires,
    new_run,
    queued_event,
    retrying_event,
    started_event,
    terminal_event,
    worker_lost,
)

HEADROOM_AGE_S = 1.0
FULL_AT = 0.95
CHANGED_BYTES = 8_000_000
"""About how much one call of ``changed`` returns at most; the rest comes with the next call."""


class RedisLive:
    """Implements :class:`app.ports.Live`. Safe to share between threads; a forked child makes its own connections."""

    def __init__(
        self, url: str, *, key_prefix: str, socket_timeout_s: float, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._server = RedisServer(url, socket_timeout_s=socket_timeout_s)
        self._prefix = key_prefix
        self._monotonic = monotonic
        self._timeout_ms = int(socket_timeout_s * 1000)
        self._headroom: tuple[float, bool] | None = None
        self._ahead_ms: float | None = None
        """The server's clock minus ours, as its last answer showed it."""
        names = (
            "create", "claim", "append", "check", "renew", "finish", "hand_back", "retry", "break", "move",
            "fail_queued", "cancel", "drop", "mirrored", "archived", "get", "events", "queues", "changed", "due",
            "waiting", "behind", "open", "guard", "trust", "now",
        )  # fmt: skip
        self._scripts = {name: self._server.script(source(name)) for name in names}

    def ping(self) -> None:
        self._server.ping()

    def headroom(self) -> bool:
        """Return whether less than 95 % of ``maxmemory`` is used; asked at most once a second."""
        now = self._monotonic()
        if self._headroom is None or now - self._headroom[0] > HEADROOM_AGE_S:
            with self._server.errors():
                memory = self._server.client.info("memory")
            limit = memory["maxmemory"]
            self._headroom = now, limit == 0 or memory["used_memory"] < FULL_AT * limit
        return self._headroom[1]

    # --- commands about one run ----------------------------------------------------------------------------------

    def create(self, run: Run, *, reason: str | None = None) -> bool:
        fresh = new_run(run, now_ms=0)  # the script puts in the server's time
        event = event_text(queued_event(fresh, reason))
        fields = run_fields(fresh) | {"seq": "1"}
        created = str(fresh.created_ms) if fresh.epoch else ""
        place = fresh.target_role, fresh.attempt, fresh.epoch
        options = *place, fresh.not_before_ms, created, str(expires(fresh) or ""), event
        words = [word for pair in fields.items() for word in pair]
        for _ in range(2):
            # Whoever asked is told "no" when the time is over, so a call that arrives later must do nothing.
            latest_ms = int(self._monotonic() * 1000 + self._server_ahead()) + self._timeout_ms
            done, now_ms = self._run("create", run.run_id, latest_ms, *options, *words)
            self._ahead_ms = now_ms - self._monotonic() * 1000
            if done >= 0:
                return bool(done)
            # The server's clock was set, or the call was stuck on the way: now we know its time and ask afresh.
        raise ServerUnavailable("redis", "it was reached too late to be asked for anything")

    def _server_ahead(self) -> float:
        if self._ahead_ms is None:
            self._ahead_ms = int(self._scripts["now"]()) - self._monotonic() * 1000
        return self._ahead_ms

    def claim(self, run_id: str, *, worker: WorkerRef, token: str, ttl_ms: int) -> Claim:
        event = event_text(started_event(worker))
        instance = excluded_entry(worker.instance_id)
        lease = token, ttl_ms, dumps(worker.to_wire()), event
        answer: str = self._run("claim", run_id, RUN_SCHEMA, worker.role, instance, *lease)
        if answer.startswith("-"):
            return Claim(None, cast(ClaimRefusal, answer[1:]))
        return Claim(read_run(answer))

    def append(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent]) -> Ack:
        check_batch(events)
        if not events:
            return _ack(self._run("check", run_id, token))
        return _ack(self._run("append", run_id, token, batch, *map(event_text, events)))

    def renew(self, leases: Iterable[tuple[str, str]], *, ttl_ms: int) -> Renewal:
        leases = list(leases)
        if not leases:
            return Renewal()
        answers = self._scripts["renew"](args=[self._prefix, ttl_ms, *(word for lease in leases for word in lease)])
        asked = list(zip((run_id for run_id, _ in leases), answers, strict=True))
        return Renewal(
            refused=frozenset(run_id for run_id, answer in asked if answer == "no"),
            cancelled=frozenset(run_id for run_id, answer in asked if answer in ("requested", "force")),
            forced=frozenset(run_id for run_id, answer in asked if answer == "force"),
        )

    def finish(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome) -> Ack:
        return _ack(self._run("finish", run_id, token, batch, *_end(events, outcome)))

    def send_finish(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome
    ) -> AckToCome:
        keys, args = self._about(run_id, token, batch, *_end(events, outcome))
        return _AckToCome(self._scripts["finish"].send(keys, args))

    def hand_back(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *,
        reason: str, role: str | None = None, exclude: bool = False,
    ) -> Ack:  # fmt: skip
        check_batch(events)
        options = role or "", dumps(reason), "1" if exclude else ""
        return _ack(self._run("hand_back", run_id, token, batch, *options, *map(event_text, events)))

    def break_lease(
        self, run_id: str, *, attempt: int, reason: str, role: str | None, pause_ms: int, max_losses: int,
        token: str | None = None,
    ) -> Run | None:  # fmt: skip
        lost = dumps(worker_lost(attempt, max_losses, reason).to_wire())
        options = attempt, token or "", max_losses, role or "", dumps(reason), pause_ms
        answer = self._run("break", run_id, RUN_SCHEMA, *options, lost)
        return None if answer is None else read_run(answer)

    def retry(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], *, code: str, pause_ms: int
    ) -> Ack:
        check_batch(events)
        options = pause_ms, event_text(retrying_event(code, pause_ms))
        return _ack(self._run("retry", run_id, token, batch, *options, *map(event_text, events)))

    def move(self, run_id: str, *, attempt: int, role: str, reason: str) -> Run | None:
        answer = self._run("move", run_id, RUN_SCHEMA, attempt, role, dumps(reason))
        return None if answer is None else read_run(answer)

    def fail_queued(self, run_id: str, *, attempt: int, error: RunError) -> Run | None:
        answer = self._run("fail_queued", run_id, RUN_SCHEMA, attempt, dumps(error.to_wire()))
        return None if answer is None else read_run(answer)

    def drop(self, run_id: str) -> None:
        self._run("drop", run_id, RUN_SCHEMA)

    def cancel(self, run_id: str, *, force: bool = False) -> CancelResult:
        return cast(CancelResult, self._run("cancel", run_id, RUN_SCHEMA, "force" if force else "requested"))

    def mirrored(self, run_id: str, rev: int) -> None:
        self._run("mirrored", run_id, rev)

    def archived(self, run_id: str, *, keep_ms: int) -> None:
        self._run("archived", run_id, RUN_SCHEMA, keep_ms)

    # --- questions -----------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run | None:
        answer = self._run("get", run_id)
        return None if answer is None else read_run(answer)

    def events(self, run_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return read_events(run_id, self._run("events", run_id, after + 1, limit))

    def queues(self, roles: Collection[str]) -> Mapping[str, QueueStats]:
        if not roles:
            return {}
        counts = self._scripts["queues"](args=[self._prefix, *roles])
        return {
            role: QueueStats(queued, running, int(float(since)) if since else None)
            for role, (queued, running, since) in zip(roles, counts, strict=True)
        }

    def changed(self, limit: int) -> list[Run]:
        """Return runs to mirror; fewer than ``limit`` also when their outputs are large."""
        rows = self._scripts["changed"](args=[self._prefix, limit, RUN_SCHEMA, CHANGED_BYTES])
        return [read_run(row) for row in rows]

    def expired_leases(self, limit: int) -> list[str]:
        return self._due("leases", limit)

    def queued(self, role: str, limit: int, *, waited_ms: int = 0) -> list[str]:
        return self._due(f"queued:{role}", limit, waited_ms)

    def waiting_roles(self) -> list[str]:
        return sorted(self._scripts["waiting"](args=[self._prefix]))

    def expired(self, limit: int) -> list[str]:
        return self._due("expiring", limit)

    def behind(self, revs: Mapping[str, int]) -> list[str]:
        words = [word for pair in revs.items() for word in pair]
        return cast(list[str], self._scripts["behind"](args=[self._prefix, *words])) if words else []

    def open_runs(self) -> list[str]:
        return cast(list[str], self._scripts["open"](args=[self._prefix]))

    def trusted(self) -> bool:
        """Return whether this is the server process that was trusted, and not emptied since (2 round trips)."""
        return bool(self._scripts["trust"](args=[self._prefix, self._server_run(), ""]))

    def trust(self) -> None:
        self._scripts["trust"](args=[self._prefix, self._server_run(), "1"])

    def guard(self, job: str, *, period_ms: int) -> bool:
        return bool(self._scripts["guard"](args=[self._prefix, job, period_ms]))

    def close(self) -> None:
        self._server.close()

    # --- inside --------------------------------------------------------------------------------------------------

    def _about(self, run_id: str, *args: str | int) -> tuple[list[str], list[str | int]]:
        """Return keys and arguments of a script about one run."""
        key = f"{self._prefix}run:{run_id}"
        return [key, f"{key}:events"], [self._prefix, run_id, *args]

    def _run(self, script: str, run_id: str, *args: str | int) -> Any:
        return self._scripts[script](*self._about(run_id, *args))

    def _due(self, index: str, limit: int, ago_ms: int = 0) -> list[str]:
        ids: list[str] = self._scripts["due"](args=[self._prefix, index, limit, ago_ms])
        return ids

    def _server_run(self) -> str:
        """Return what the server calls its present run: another after each start."""
        with self._server.errors():
            return str(self._server.client.info("server")["run_id"])


class _AckToCome:
    """:class:`app.ports.AckToCome` on a script's reply."""

    __slots__ = ("_reply", "known")

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.known = reply.known

    def get(self) -> Ack:
        return _ack(self._reply.get())


def _end(events: Sequence[NewEvent], outcome: Outcome) -> list[str]:
    """Return the words of the end of a run: its status, output or error, and the last batch."""
    check_batch(events)
    terminal_event(outcome)
    match outcome:
        case Outcome(RunStatus.COMPLETED):
            detail = dumps(outcome.output)
        case Outcome(RunStatus.FAILED, error=RunError() as error):
            detail = dumps(error.to_wire())
        case _:
            detail = ""
    return [outcome.status, detail, *map(event_text, events)]


def _ack(answer: Any) -> Ack:
    held, seq, cancel = answer
    return Ack(bool(held), seq, cancelled=cancel != "", force=cancel == "force")
