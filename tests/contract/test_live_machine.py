"""Redis' scripts follow the state machine: random histories of a few runs, on both at once, compared after each step.

:class:`MemoryLive` is the state machine of :mod:`app.transitions` itself; a test of :mod:`tests.unit` holds its laws.
Nothing here depends on how fast the machine is: leases and pauses end in the far past or the far future, and times are
compared to within a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from app.clock import system_clock
from app.live.memory import MemoryLive
from app.live.redis import RedisLive
from app.models.event import NewEvent
from app.models.role import QueueStats
from app.models.run import RUN_SCHEMA, Run, RunError, RunStatus, WorkerRef
from app.ports import Claim, Live, Outcome
from app.redis_client import RedisServer
from app.transitions import expires

PREFIX = "machine:"
FAR = 10**9
MINUTE = 60_000
ROLES = ("worker", "gpu")
RUNS = ("r0", "r1")
WORKERS = [WorkerRef("i0", "node", "worker"), WorkerRef("i1", "node", "gpu")]
TIMES = ("created_ms", "started_ms", "ended_ms", "not_before_ms")

runs = st.sampled_from(RUNS)
often, seldom = st.sampled_from([True] * 5 + [False]), st.sampled_from([False] * 5 + [True])
payloads = st.sampled_from(["", "a\nb\x00\u2028😀", [], {}, {"n": [None, 2**53 - 1, 1.0]}])
events = st.lists(
    st.builds(NewEvent, st.sampled_from(["log", "node.started"]), st.none() | st.just("né"), st.none() | st.just({})),
    max_size=3,
)
outcomes = st.one_of(
    st.builds(Outcome, st.just(RunStatus.COMPLETED), payloads),
    st.builds(Outcome, st.just(RunStatus.FAILED), error=st.builds(RunError, st.just("X"), st.just('"'), st.just(1))),
    st.sampled_from([Outcome(RunStatus.CANCELLED), Outcome(RunStatus.CANCELLED, "x", RunError("X", "", 1))]),
)
tokens = st.sampled_from(["held", "held", "held", "released", "t0", ""])
"""``held`` and ``released`` stand for the token of the run's last claim and of the one before."""
batches = st.sampled_from([-1, 0, 1, 1, 2])
"""Counted from the last batch that was sent."""
ttls = st.sampled_from([FAR, -FAR])
roles = st.none() | st.sampled_from(ROLES)


class SideBySide(RuleBasedStateMachine):
    redis: RedisLive
    raw: RedisServer
    """Both on a database of their own, which each history finds empty."""

    def __init__(self) -> None:
        super().__init__()
        with self.raw.errors():
            self.raw.client.flushdb()
        self.memory = MemoryLive(system_clock)
        self.touched = set(RUNS)
        self.claims = 0
        self.held: dict[str, list[str]] = {run_id: ["-", "-"] for run_id in RUNS}
        self.batch = dict.fromkeys(RUNS, 0)
        self.archived: set[str] = set()

    def both(self, call: Callable[[Live], Any]) -> Any:
        """Make the same call on both and compare the answers."""
        expected, answer = call(self.memory), call(self.redis)
        assert plain(answer) == plain(expected)
        return expected

    def token(self, run_id: str, name: str) -> str:
        return {"held": self.held[run_id][-1], "released": self.held[run_id][-2]}.get(name, name)

    def attempt(self, run_id: str) -> int:
        run = self.memory.get(run_id)
        return 1 if run is None else run.attempt

    # --- commands ------------------------------------------------------------------------------------------------

    @rule(
        run_id=runs, role=st.sampled_from(ROLES), pause=st.sampled_from([0] * 5 + [FAR]), cancel=seldom,
        excluded=st.sampled_from([(), (), ("i0",)]), schema=st.sampled_from([0] * 9 + [1]), payload=payloads,
        reason=st.none() | st.just("live_state_lost"), expiry=st.sampled_from([0, 0, FAR, -FAR]), anew=seldom,
    )  # fmt: skip
    def create(
        self, run_id: str, role: str, pause: int, cancel: bool, excluded: tuple[str, ...], schema: int, payload: Any,
        reason: str | None, expiry: int = 0, anew: bool = False,
    ) -> None:  # fmt: skip
        self.touched.add(run_id)
        run = Run(
            run_id, "shop", "canary", "checkout", "v1", role, created_ms=0, input={"in": payload}, attempt=2, rev=3,
            not_before_ms=system_clock() + pause if pause else 0, excluded=excluded, waiting_for="saturated",
            cancel_requested=cancel, schema=RUN_SCHEMA + schema, expires_ms=system_clock() + expiry if expiry else None,
            epoch=1 if anew else 0, started_ms=system_clock() if anew else None, retries=1,
        )  # fmt: skip
        known = self.memory.get(run_id)
        if known is not None and known.ended:  # so that histories go on
            self.both(lambda live: live.archived(run_id, keep_ms=0))
            self.archived.discard(run_id)
        self.both(lambda live: live.create(run, reason=reason))

    @rule(run_id=runs, fits=often, worker=st.sampled_from(WORKERS), again=seldom, ttl_ms=ttls)
    def claim(self, run_id: str, fits: bool, worker: WorkerRef, again: bool, ttl_ms: int) -> None:
        self.touched.add(run_id)
        self.claims += 1
        token = self.held[run_id][-1] if again else f"c{self.claims}"
        if fits and (run := self.memory.get(run_id)) is not None:
            worker = replace(worker, role=run.target_role)
        claim: Claim = self.both(lambda live: live.claim(run_id, worker=worker, token=token, ttl_ms=ttl_ms))
        if claim.run is not None and token != self.held[run_id][-1]:
            self.held[run_id].append(token)
            self.batch[run_id] = 0

    @rule(run_id=runs, token=tokens, ahead=batches, news=events)
    def append(self, run_id: str, token: str, ahead: int, news: list[NewEvent]) -> None:
        self.touched.add(run_id)
        token, batch = self.token(run_id, token), self.next(run_id, ahead)
        self.both(lambda live: live.append(run_id, token, batch, news))

    @rule(wanted=st.lists(st.tuples(runs, tokens), max_size=3, unique_by=lambda lease: lease[0]), ttl_ms=ttls)
    def renew(self, wanted: list[tuple[str, str]], ttl_ms: int) -> None:
        self.touched.update(run_id for run_id, _ in wanted)
        leases = [(run_id, self.token(run_id, token)) for run_id, token in wanted]
        self.both(lambda live: live.renew(leases, ttl_ms=ttl_ms))

    @rule(run_id=runs, token=tokens, ahead=batches, news=events, outcome=outcomes)
    def finish(self, run_id: str, token: str, ahead: int, news: list[NewEvent], outcome: Outcome) -> None:
        self.touched.add(run_id)
        token, batch = self.token(run_id, token), self.next(run_id, ahead)
        self.both(lambda live: live.finish(run_id, token, batch, news, outcome))

    @rule(run_id=runs, token=tokens, ahead=batches, news=events, role=roles, exclude=seldom)
    def hand_back(
        self, run_id: str, token: str, ahead: int, news: list[NewEvent], role: str | None, exclude: bool
    ) -> None:  # fmt: skip
        self.touched.add(run_id)
        token, batch = self.token(run_id, token), self.next(run_id, ahead)
        self.both(
            lambda live: live.hand_back(run_id, token, batch, news, reason="it's \"\n", role=role, exclude=exclude)
        )

    @rule(
        run_id=runs, off=st.sampled_from([0, 0, 0, 1, -1]), role=roles, pause_ms=st.sampled_from([0, 0, 0, FAR]),
        max_losses=st.integers(1, 3), token=st.none() | tokens,
    )  # fmt: skip
    def break_lease(
        self, run_id: str, off: int, role: str | None, pause_ms: int, max_losses: int, token: str | None
    ) -> None:  # fmt: skip
        self.touched.add(run_id)
        attempt = off + self.attempt(run_id)
        token = token and self.token(run_id, token)
        self.both(
            lambda live: live.break_lease(
                run_id, attempt=attempt, reason="lost\u2028", role=role, pause_ms=pause_ms, max_losses=max_losses,
                token=token,
            )
        )  # fmt: skip

    @rule(run_id=runs, token=tokens, ahead=batches, news=events, pause_ms=st.sampled_from([0, 0, FAR]))
    def retry(self, run_id: str, token: str, ahead: int, news: list[NewEvent], pause_ms: int) -> None:
        self.touched.add(run_id)
        token, batch = self.token(run_id, token), self.next(run_id, ahead)
        self.both(lambda live: live.retry(run_id, token, batch, news, code='timed_out"', pause_ms=pause_ms))

    @rule(run_id=runs, off=st.sampled_from([0, 0, 0, 1]), role=st.sampled_from(ROLES))
    def move(self, run_id: str, off: int, role: str) -> None:
        self.touched.add(run_id)
        attempt = off + self.attempt(run_id)
        self.both(lambda live: live.move(run_id, attempt=attempt, role=role, reason="saturated\u2028"))

    @rule(run_id=runs, off=st.sampled_from([0, 0, 0, 1]))
    def fail_queued(self, run_id: str, off: int) -> None:
        self.touched.add(run_id)
        attempt = off + self.attempt(run_id)
        error = RunError("expired", '"', attempt)
        self.both(lambda live: live.fail_queued(run_id, attempt=attempt, error=error))

    @rule(run_id=runs)
    def drop(self, run_id: str) -> None:
        self.touched.add(run_id)
        self.both(lambda live: live.drop(run_id))

    @rule(run_id=runs, force=st.booleans())
    def cancel(self, run_id: str, force: bool) -> None:
        self.touched.add(run_id)
        self.both(lambda live: live.cancel(run_id, force=force))

    @rule(run_id=runs, behind=st.sampled_from([0, 1]))
    def mirrored(self, run_id: str, behind: int) -> None:
        run = self.memory.get(run_id)
        self.both(lambda live: live.mirrored(run_id, (0 if run is None else run.rev) - behind))

    @rule(run_id=runs)
    def archive(self, run_id: str) -> None:
        self.touched.add(run_id)
        run = self.memory.get(run_id)
        if run is not None and run.ended and run.schema == RUN_SCHEMA:
            self.archived.add(run_id)
        self.both(lambda live: live.archived(run_id, keep_ms=FAR))

    @rule(
        run_id=runs, ttl_ms=ttls, news=events, outcome=outcomes, role=roles, exclude=seldom,
        steps=st.lists(
            st.sampled_from(["append", "append", "hand back", "retry", "break", "cancel", "finish"]), max_size=6
        ),
    )  # fmt: skip
    def go_on(
        self, run_id: str, ttl_ms: int, news: list[NewEvent], outcome: Outcome, role: str | None, exclude: bool,
        steps: list[str],
    ) -> None:  # fmt: skip
        """Lead a run through several steps that it can take, so that histories become long; replies get lost."""
        for step in steps:
            run = self.memory.get(run_id)
            if run is None or run.ended:
                self.create(run_id, "worker", 0, False, (), 0, "", None)
            elif run.not_before_ms > system_clock():
                self.cancel(run_id, False)
            elif run.status is RunStatus.QUEUED:
                self.claim(run_id, True, WORKERS["i0" in run.excluded], False, ttl_ms)
            elif step == "append":
                self.append(run_id, "held", 1, news)
                self.append(run_id, "held", 0, news)
            elif step == "hand back":
                self.hand_back(run_id, "held", 1, news, role, exclude)
                self.hand_back(run_id, "held", 0, news, role, exclude)
            elif step == "retry":
                self.retry(run_id, "held", 1, news, 0)
                self.retry(run_id, "held", 0, news, 0)
            elif step == "break":
                self.break_lease(run_id, 1, role, 0, 3, "held")
                self.break_lease(run_id, 0, role, FAR if exclude else 0, 3, "held")
            elif step == "cancel":
                self.cancel(run_id, exclude)
            else:
                self.finish(run_id, "held", 1, news, outcome)
                self.finish(run_id, "held", 0, news, outcome)

    def next(self, run_id: str, ahead: int) -> int:
        self.batch[run_id] += ahead
        return self.batch[run_id]

    # --- what must be the same after each ------------------------------------------------------------------------

    @invariant()
    def runs_and_events_are_the_same(self) -> None:
        self.both(lambda live: {run_id: live.get(run_id) for run_id in self.touched})
        self.both(lambda live: {run_id: live.events(run_id) for run_id in self.touched})
        self.touched.clear()

    @invariant()
    def answers_about_many_runs_are_the_same(self) -> None:
        self.both(lambda live: live.queues(ROLES))
        # Runs of one millisecond have no order, so these are compared as sets; `test_live` looks at the order.
        self.both(lambda live: {role: sorted(live.queued(role, 10)) for role in ROLES})
        self.both(lambda live: sorted(live.expired_leases(10)))
        self.both(lambda live: sorted(live.expired(10)))
        self.both(lambda live: sorted(live.open_runs()))
        self.both(lambda live: sorted(live.behind(dict.fromkeys(RUNS, 5))))
        self.both(lambda live: live.waiting_roles())
        self.both(lambda live: {run.run_id: run for run in live.changed(10)})

    @invariant()
    def each_run_is_in_the_indexes_where_it_belongs_and_in_no_other(self) -> None:
        known = [run for run in map(self.memory.get, RUNS) if run is not None]
        expected: dict[str, set[str]] = {
            "leases": ids(run for run in known if run.status is RunStatus.RUNNING),
            "ended": ids(run for run in known if run.ended) - self.archived,
            "expiring": ids(run for run in known if run.status is RunStatus.QUEUED and expires(run) is not None),
        }
        for role in ROLES:
            of_role = [run for run in known if run.target_role == role]
            expected[f"queued:{role}"] = ids(run for run in of_role if run.status is RunStatus.QUEUED)
            expected[f"running:{role}"] = ids(run for run in of_role if run.status is RunStatus.RUNNING)
        with self.raw.errors(), self.raw.client.pipeline(transaction=False) as pipe:
            for name in expected:
                key = PREFIX + name
                pipe.smembers(key) if name.startswith("running") else pipe.zrange(key, 0, -1)
            assert dict(zip(expected, map(set, pipe.execute()), strict=True)) == expected


def ids(some: Iterable[Run]) -> set[str]:
    return {run.run_id for run in some}


def plain(value: Any) -> Any:
    """Return an answer with its times rounded away: what is left must be equal to the last bit."""
    match value:
        case Claim(Run() as run):
            return Claim(plain(run))
        case Run():
            return value.with_(**{name: about(getattr(value, name)) for name in TIMES})
        case QueueStats():
            return replace(value, oldest_ms=about(value.oldest_ms))
        case list():
            return [replace(event, at_ms=0) if hasattr(event, "at_ms") else event for event in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
    return value


def about(time_ms: int | None) -> str | None:
    """Return when a time is, to within what no pause or lease here can be taken for."""
    if not time_ms:
        return str(time_ms)
    away = time_ms - system_clock()
    return "now" if abs(away) < MINUTE else "later" if abs(away - FAR) < MINUTE else f"{away} ms away"


def test_any_history_leaves_redis_where_the_state_machine_is(valkey: str) -> None:
    url = valkey.removesuffix("/0") + "/9"
    SideBySide.redis = RedisLive(url, key_prefix=PREFIX, socket_timeout_s=5)
    SideBySide.raw = RedisServer(url, socket_timeout_s=5)
    try:
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            SideBySide,
            settings=settings(
                max_examples=25, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    finally:
        SideBySide.redis.close()
        SideBySide.raw.close()
