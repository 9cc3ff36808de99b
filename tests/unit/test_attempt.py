"""An attempt's line to the live state: batches, lost replies, fencing, cancel, the share of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from app.engine.host import Cancelled, Fenced, HandBack, TimedOut
from app.errors import OutOfMemory, ServerUnavailable
from app.live.memory import MemoryLive
from app.models.event import NewEvent
from app.models.run import Run, RunStatus, WorkerRef
from app.ports import Ack, AckToCome, Leaving, Outcome
from app.runs.attempt import Attempt

WORKER = WorkerRef("i-1", "worker@host", "worker")


class FlakyLive(MemoryLive):
    """Loses replies: while ``lost`` is above 0 a command is carried out and its answer is not heard."""

    lost = 0
    away = False
    full = False

    def _reply(self, ack: Ack) -> Ack:
        if self.lost > 0:
            self.lost -= 1
            raise ServerUnavailable("redis", "Timeout reading from socket")
        return ack

    def append(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent]) -> Ack:
        if self.away:
            raise ServerUnavailable("redis", "away")
        if self.full:
            raise OutOfMemory("full")
        return self._reply(super().append(run_id, token, batch, events))

    def finish(self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome) -> Ack:
        return self._reply(super().finish(run_id, token, batch, events, outcome))


class LateLive(FlakyLive):
    """Takes the end of a run and answers later, or never if the end was ``swallowed``."""

    swallowed = 0
    answers = 0

    def send_finish(
        self, run_id: str, token: str, batch: int, events: Sequence[NewEvent], outcome: Outcome
    ) -> AckToCome:
        if self.away:
            raise ServerUnavailable("redis", "away")
        late = Late(self)
        if self.swallowed:
            self.swallowed -= 1
            late.ack = None
        else:
            late.ack = MemoryLive.finish(self, run_id, token, batch, events, outcome)
        return late


class Late:
    """The answer to an end, which is never known before it is asked for."""

    ack: Ack | None

    def __init__(self, live: LateLive) -> None:
        self._live = live

    def known(self) -> bool:
        return False

    def get(self) -> Ack:
        self._live.answers += 1
        if self.ack is None:
            raise ServerUnavailable("redis", "no answer in time")
        return self.ack


class Ticker:
    poked = 0

    def poke(self) -> None:
        self.poked += 1


class World:
    def __init__(self, *, max_events: int = 100, max_bytes: int = 10_000, live: type[FlakyLive] = FlakyLive) -> None:
        self.now = 1000.0
        self.leaving: Leaving | None = None
        self.ticker = Ticker()
        self.live = live(lambda: int(self.now * 1000))
        self.live.create(Run("r", "d", "v", "f", "v1", "worker", created_ms=0))
        claim = self.live.claim("r", worker=WORKER, token="t", ttl_ms=30_000)
        assert claim.run is not None
        self.deaths: list[float] = []
        self.attempt = Attempt(
            self.live,
            claim.run,
            "t",
            ticker=self.ticker,
            monotonic=lambda: self.now,
            random=lambda: 0.5,
            count=lambda key, packet: 1,
            leaving=lambda: self.leaving,
            die=lambda: self.deaths.append(self.now),
            lease_ttl_s=30,
            timeout_s=3600,
            max_events=max_events,
            max_bytes=max_bytes,
        )

    def log(self, *names: str) -> None:
        for name in names:
            self.attempt.emit(NewEvent("node.started", node=name))

    def nodes(self) -> list[str]:
        return [event.node for event in self.live.events("r") if event.node]

    def types(self) -> list[str]:
        return [event.type for event in self.live.events("r")]


@pytest.fixture
def world() -> World:
    return World()


def test_events_wait_for_a_tick_and_leave_in_order(world: World) -> None:
    world.log("a", "b")
    assert world.nodes() == []
    assert world.ticker.poked == 1
    world.attempt.flush()
    world.log("c")
    world.attempt.flush()
    assert world.nodes() == ["a", "b", "c"]


def test_a_short_run_sends_everything_with_its_end(world: World) -> None:
    world.log("a")
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED, output={"ok": 1}))
    assert world.types() == ["run.queued", "run.started", "node.started", "run.completed"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_reply_doubles_no_event(world: World, lost: int) -> None:
    world.log("a")
    world.live.lost = lost
    for _ in range(lost):
        world.attempt.flush()
        world.log("later")
    world.attempt.flush()
    world.attempt.flush()
    assert world.nodes() == ["a"] + ["later"] * lost


def test_a_lost_reply_to_the_end_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.runs.attempt.RETRY_FIRST_S", 0.001)
    world.log("a")
    world.live.lost = 1
    world.attempt.flush()
    world.log("b")
    world.live.lost = 1
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.types() == ["run.queued", "run.started", "node.started", "node.started", "run.completed"]


def test_while_redis_is_away_events_are_kept(world: World) -> None:
    world.live.away = True
    world.log("a")
    world.attempt.flush()
    world.log("b")
    world.attempt.flush()
    world.live.away = False
    world.attempt.flush()
    world.attempt.flush()
    assert world.nodes() == ["a", "b"]


def test_a_full_redis_refuses_events_and_still_takes_the_end_with_them(world: World) -> None:
    world.live.full = True
    world.log("a")
    world.attempt.flush()
    world.log("b")
    world.attempt.flush()
    assert world.nodes() == []
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.nodes() == ["a", "b"]


def test_an_attempt_that_lost_its_lease_is_told_and_writes_nothing(world: World) -> None:
    world.live.break_lease("r", attempt=1, reason="lost", role="worker", pause_ms=0, max_losses=3, token="t")
    world.log("a")
    world.attempt.flush()
    with pytest.raises(Fenced):
        world.attempt.check()
    assert world.attempt.cancelled()
    assert not world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.nodes() == []


def test_no_node_starts_once_the_lease_may_have_run_out_unheard(world: World) -> None:
    world.now += 29
    world.attempt.check()
    world.now += 2
    with pytest.raises(Fenced, match="longer than the lease"):
        world.attempt.check()


def test_a_renewal_that_is_heard_keeps_the_attempt_going(world: World) -> None:
    world.now += 29
    world.attempt.poll(ttl_ms=30_000)
    world.now += 29
    world.attempt.check()


def test_a_cancellation_is_heard_with_a_batch(world: World) -> None:
    world.live.cancel("r")
    world.attempt.check()
    world.log("a")
    world.attempt.flush()
    with pytest.raises(Cancelled):
        world.attempt.check()


def test_a_cancellation_is_heard_with_a_renewal_and_wakes_a_sleeper(world: World) -> None:
    world.live.cancel("r")
    world.attempt.poll(ttl_ms=30_000)
    world.attempt.sleep(3600)
    assert world.attempt.cancelled()


def test_an_attempt_has_its_time(world: World) -> None:
    for _ in range(130):
        world.now += 29
        world.attempt.poll(ttl_ms=30_000)
    with pytest.raises(TimedOut):
        world.attempt.check()


@pytest.mark.parametrize("reason", ["stopping", "draining"])
def test_a_process_that_leaves_hands_back_at_the_next_node(world: World, reason: Leaving) -> None:
    world.attempt.check()
    world.leaving = reason
    with pytest.raises(HandBack) as wish:
        world.attempt.check()
    assert wish.value.reason == reason
    assert world.attempt.hand_back(reason)
    run = world.live.get("r")
    assert run is not None
    assert (run.status, run.attempt, run.losses) == (RunStatus.QUEUED, 2, 0)


def share(world: World, emit: Callable[[int], NewEvent], count: int) -> list[str]:
    for index in range(count):
        world.attempt.emit(emit(index))
    world.attempt.finish(Outcome(RunStatus.COMPLETED))
    return world.types()


def test_past_the_share_of_events_only_lifecycle_events_pass_with_one_note() -> None:
    world = World(max_events=12)
    types = share(world, lambda index: NewEvent("node.token", data={"text": "x"}), 50)
    # The two events from before the attempt's own count towards the share.
    assert types == ["run.queued", "run.started", *["node.token"] * 10, "log", "run.completed"]
    assert [event.seq for event in world.live.events("r")] == list(range(1, len(types) + 1))


def test_the_share_is_bounded_in_bytes_too() -> None:
    world = World(max_bytes=500)
    types = share(world, lambda index: NewEvent("log", data={"message": "x" * 100}), 50)
    assert types.count("log") == 5
    assert types[-1] == "run.completed"


def test_lifecycle_events_always_pass() -> None:
    world = World(max_events=2)
    assert share(world, lambda index: NewEvent("node.started", node=str(index)), 5).count("node.started") == 5


def test_a_forced_cancel_ends_the_process_unless_the_handler_gives_up_by_the_next_time() -> None:
    world = World()
    world.live.cancel("r", force=True)
    world.attempt.poll(ttl_ms=30_000)
    assert world.attempt.cancelled()
    assert world.deaths == []
    world.attempt.poll(ttl_ms=30_000)
    assert world.deaths == [world.now]


def test_a_forced_cancel_does_not_end_a_process_whose_run_has_just_ended() -> None:
    world = World()
    world.live.cancel("r", force=True)
    world.attempt.poll(ttl_ms=30_000)
    assert world.attempt.finish(Outcome(RunStatus.CANCELLED))
    world.attempt.poll(ttl_ms=30_000)
    assert world.deaths == []


def test_a_cancel_without_force_ends_no_process() -> None:
    world = World()
    world.live.cancel("r")
    for _ in range(5):
        world.attempt.poll(ttl_ms=30_000)
    assert world.attempt.cancelled()
    assert world.deaths == []


# --- an end whose answer is not waited for -----------------------------------------------------------------------

ENDED = ["run.queued", "run.started", "node.started", "run.completed"]


def late() -> tuple[World, LateLive]:
    world = World(live=LateLive)
    assert isinstance(world.live, LateLive)
    world.log("a")
    return world, world.live


def test_the_answer_to_an_end_is_heard_by_the_flusher() -> None:
    world, live = late()
    poked = world.ticker.poked
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.types() == ENDED
    assert (live.answers, world.ticker.poked) == (0, poked + 1)
    assert world.attempt.awaits_answer
    assert not world.attempt.over
    world.attempt.flush()
    assert live.answers == 1
    assert world.attempt.over
    assert not world.attempt.awaits_answer


def test_an_end_without_an_answer_is_sent_again_until_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    world, live = late()
    live.swallowed, live.lost = 1, 2
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.types() == ENDED[:2]
    for _ in range(3):
        world.attempt.flush()
        assert world.types() == (ENDED if live.lost < 2 else ENDED[:2])
        assert not world.attempt.over
    world.attempt.flush()
    assert world.attempt.over
    assert world.types() == ENDED
    assert caplog.text.count("cannot say so yet") == 3


def test_an_end_that_was_refused_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world, live = late()
    live.break_lease("r", attempt=1, reason="lost", role="worker", pause_ms=0, max_losses=3, token="t")
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED)), "nobody knows better yet"
    world.attempt.flush()
    assert world.attempt.over
    assert world.attempt.cancelled()
    assert "given to somebody else" in caplog.text


def test_an_end_that_cannot_be_sent_is_tried_until_it_is() -> None:
    world, live = late()
    live.away = True
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    assert world.attempt.over
    assert world.types() == ENDED


def test_a_process_whose_run_has_sent_its_end_is_not_ended_by_a_forced_cancel() -> None:
    world, live = late()
    live.cancel("r", force=True)
    world.attempt.poll(ttl_ms=30_000)
    live.swallowed = 1
    assert world.attempt.finish(Outcome(RunStatus.COMPLETED))
    for _ in range(3):
        world.attempt.poll(ttl_ms=30_000)
    assert world.deaths == []
