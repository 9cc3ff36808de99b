"""Redis at its memory limit: what may still be done to open runs, and what may not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import OutOfMemory
from app.live.redis import HEADROOM_AGE_S, RedisLive
from app.models.event import NewEvent
from app.models.run import RunStatus
from app.ports import Ack, Outcome, Renewal
from app.redis_client import RedisServer
from app.stack.servers import valkey_command
from tests.contract.test_live import LOG, TTL, WORKER, new_run, started
from tests.servers import free_port, running


class Full:
    """A live store on a server of its own that can be filled up."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.live = RedisLive(url, key_prefix="x:", socket_timeout_s=2, monotonic=lambda: self.now)
        self.server = RedisServer(url, socket_timeout_s=2)

    def limit(self, share: float | None) -> None:
        """Set ``maxmemory`` so that ``share`` of it is used; ``None``: no limit."""
        with self.server.errors():
            used = self.server.client.info("memory")["used_memory"]
            self.server.client.config_set("maxmemory", 0 if share is None else int(used / share))

    @contextmanager
    def up(self) -> Iterator[None]:
        self.limit(2)
        try:
            yield
        finally:
            self.limit(None)


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("full"), free_port()
    with running(valkey_command(port, Path(folder)), port, folder / "server.log"):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def full(server_url: str) -> Iterator[Full]:
    full = Full(server_url)
    with full.server.errors():
        full.server.client.flushdb()
    yield full
    full.live.close()
    full.server.close()


def test_what_needs_room_is_refused_whole_and_works_again_by_itself(full: Full) -> None:
    live = full.live
    before = started(live)
    live.create(new_run("r2"))
    with full.up():
        for refused in (
            lambda: live.create(new_run("r3")),
            lambda: live.claim("r2", worker=WORKER, token="t2", ttl_ms=TTL),
            lambda: live.append("r1", "t1", 1, [LOG]),
        ):
            with pytest.raises(OutOfMemory):
                refused()
        assert live.get("r1") == before
        assert live.get("r3") is None
        assert (live.queued("worker", 10), live.queues(["worker"])["worker"].queued) == (["r2"], 1)
        assert len(live.events("r1")) == 2
    assert live.create(new_run("r3"))
    assert live.append("r1", "t1", 1, [LOG]) == Ack(True, 3)


def test_what_ends_and_frees_goes_on(full: Full) -> None:
    live = full.live
    for number in range(5):
        started(live, f"r{number}")
    live.create(new_run("queued"))
    outcome = Outcome(RunStatus.COMPLETED, output="x")
    options: dict[str, Any] = {"reason": "lost", "role": None, "pause_ms": 0, "max_losses": 3}
    with full.up():
        assert live.append("r1", "t1", 1, []) == Ack(True, 2)
        assert live.renew([("r1", "t1")], ttl_ms=TTL) == Renewal()
        assert live.finish("r1", "t1", 1, [NewEvent("log", data={"last": "words"})], outcome) == Ack(True, 4)
        assert live.hand_back("r2", "t1", 1, [LOG], reason="stopping") == Ack(True, 4)
        assert live.break_lease("r3", attempt=1, token="t1", **options) is not None
        assert (live.cancel("r4"), live.cancel("queued")) == ("requested", "cancelled")
        assert len(live.changed(10)) == 6
        live.mirrored("r0", 2)
        live.archived("r1", keep_ms=TTL)
        assert len(live.changed(10)) == 4
        assert live.guard("mirror", period_ms=TTL)
        live.ping()


@pytest.mark.parametrize(("share", "room"), [(0.94, True), (0.96, False), (2, False), (None, True)])
def test_headroom_ends_at_95_percent(full: Full, share: float | None, room: bool) -> None:
    with full.server.errors():  # so much that what a connection needs does not matter
        full.server.client.setrange("ballast", 50_000_000, "x")
    full.limit(share)
    try:
        assert full.live.headroom() is room
    finally:
        full.limit(None)


def test_headroom_is_asked_once_a_second(full: Full) -> None:
    assert full.live.headroom()
    with full.up():
        assert full.live.headroom()
        full.now += HEADROOM_AGE_S + 0.1
        assert not full.live.headroom()
