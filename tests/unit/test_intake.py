"""Whether a worker takes messages: what it was told, what its loop has done, what it says of itself in between."""

from __future__ import annotations

from workers.intake import Intake
from workers.process import SharedFlag


class Loop:
    """What the worker's loop holds: the queues chosen at start, and the consumer."""

    def __init__(self) -> None:
        self.selected = {"worker"}
        self.consuming = False
        self.task_consumer: Loop | None = self
        self.draining = SharedFlag()
        self.hurried = 0
        self.intake = Intake("worker", self.draining)

    def start(self) -> None:
        """The consumer starts with the queues that are left."""
        self.intake.begin(self)
        self.consuming = "worker" in self.selected
        self.intake.ready(self.hurry)

    def hurry(self) -> None:
        self.hurried += 1

    def deselect(self, queue: str) -> None:
        self.selected.discard(queue)

    def consuming_from(self, queue: str) -> bool:
        assert queue == "worker"
        return self.consuming

    def cancel_task_queue(self, queue: str) -> None:
        assert self.draining.is_set(), "the worker would be unhealthy: it does not consume, and does not say why"
        self.consuming = False

    def add_task_queue(self, queue: str) -> None:
        assert self.draining.is_set()
        self.consuming = True


def test_a_worker_that_nobody_drains_takes_messages_from_the_start() -> None:
    loop = Loop()
    assert not loop.intake.told(False)
    loop.start()
    assert loop.consuming
    assert not loop.draining.is_set()


def test_a_worker_that_is_drained_when_it_starts_never_takes_a_message() -> None:
    loop = Loop()
    assert loop.intake.told(True)
    loop.start()
    assert not loop.consuming
    assert not loop.intake.apply(loop)
    assert loop.draining.is_set()


def test_a_worker_that_has_heard_nothing_takes_nothing_until_it_has() -> None:
    loop = Loop()
    loop.start()
    assert not loop.consuming
    assert loop.draining.is_set()
    assert not loop.intake.told(False)
    assert loop.hurried == 1
    assert loop.intake.apply(loop)
    assert loop.consuming
    assert not loop.draining.is_set()


def test_draining_is_said_at_once_and_done_by_the_loop_which_is_woken() -> None:
    loop = Loop()
    loop.intake.told(False)
    loop.start()
    assert loop.intake.told(True)
    assert loop.draining.is_set()
    assert loop.hurried == 1
    assert not loop.intake.apply(loop)
    assert not loop.consuming
    assert not loop.intake.told(True)
    assert loop.hurried == 1


def test_it_drains_until_the_queue_is_open_again() -> None:
    loop = Loop()
    loop.intake.told(True)
    loop.start()
    assert not loop.intake.told(False)
    assert loop.draining.is_set()
    assert loop.intake.apply(loop)
    assert not loop.draining.is_set()
    assert not loop.intake.apply(loop)


def test_a_drain_that_is_taken_back_before_the_loop_came_round_leaves_the_queue_open() -> None:
    loop = Loop()
    loop.intake.told(False)
    loop.start()
    loop.intake.told(True)
    loop.intake.told(False)
    assert loop.intake.apply(loop)
    assert loop.consuming
    assert not loop.draining.is_set()


def test_without_a_connection_nothing_is_done_and_nothing_is_forgotten() -> None:
    loop = Loop()
    loop.intake.told(False)
    loop.start()
    loop.task_consumer = None
    loop.intake.told(True)
    assert not loop.intake.apply(loop)
    loop.task_consumer = loop
    loop.intake.apply(loop)
    assert not loop.consuming


def test_a_queue_that_an_operator_has_cancelled_is_left_alone() -> None:
    loop = Loop()
    loop.intake.told(False)
    loop.start()
    loop.consuming = False
    loop.intake.told(False)
    assert not loop.intake.apply(loop)
    assert not loop.consuming
