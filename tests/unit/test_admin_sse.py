"""A run's events, as a stream and as JSON, over a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

import admin.sse
from admin.sse import Follower, message
from app.errors import ServerUnavailable
from app.models.event import Event, NewEvent
from app.models.run import RunStatus
from tests.unit.admin_world import World, sse, world

__all__ = ["world"]

NODES = [NewEvent("node.started", "say", {"input": {}}), NewEvent("node.completed", "say", {"output": {}})]
WHOLE = ["run.queued", "run.started", "node.started", "node.completed", "run.completed"]


@pytest.fixture
def run(world: World) -> dict[str, Any]:
    """A run that is under way with four events."""
    world.ready()
    run = world.start()
    world.claim(run)
    world.append(run, 1, *NODES)
    return run


def read(world: World, run: dict[str, Any], after: object = None, query: str = "") -> list[dict[str, Any]]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    answer = world.client.get(run["events"] + query, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(sse(answer.text))


def test_a_stream_gives_the_whole_story_of_an_ended_run_and_ends(world: World, run: dict[str, Any]) -> None:
    world.finish(run)

    answer = world.client.get(run["events"])

    assert answer.mimetype == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    events = list(sse(answer.text))
    assert [event["id"] for event in events] == [1, 2, 3, 4, 5]
    assert [event["event"] for event in events] == WHOLE
    assert all(event["data"]["seq"] == event["id"] and event["data"]["type"] == event["event"] for event in events)
    assert read(world, run) == events


@pytest.mark.parametrize("after", range(5))
def test_whoever_comes_back_gets_exactly_what_was_missed(world: World, run: dict[str, Any], after: int) -> None:
    world.finish(run)
    expected = list(range(after + 1, 6))

    assert [event["id"] for event in read(world, run, after)] == expected
    assert [event["id"] for event in read(world, run, query=f"?after={after}")] == expected


def test_the_header_of_a_browser_that_comes_back_wins_over_the_parameter(world: World, run: dict[str, Any]) -> None:
    world.finish(run)

    assert [event["id"] for event in read(world, run, 4, "?after=1")] == [5]


@pytest.mark.parametrize("after", [5, 6, 10_000])
def test_after_the_end_there_is_nothing_to_come_back_for(world: World, run: dict[str, Any], after: int) -> None:
    world.finish(run)

    assert world.client.get(run["events"], headers={"Last-Event-ID": str(after)}).status_code == 204


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "99999999999999999999"])
def test_a_wrong_event_id_is_refused(world: World, run: dict[str, Any], after: str) -> None:
    for answer in (
        world.client.get(run["events"], headers={"Last-Event-ID": after.encode().decode("latin-1")}),
        world.client.get(run["events"], query_string={"after": after}),
    ):
        assert (answer.status_code, answer.json["code"]) == (400, "bad_request")


def test_a_caller_names_a_run_and_never_a_channel(world: World, run: dict[str, Any]) -> None:
    answer = world.client.get(run["events"] + "?channel=other")

    assert answer.status_code == 400
    assert "channel" in answer.json["detail"]


def test_events_are_json_for_whoever_accepts_only_that(world: World, run: dict[str, Any]) -> None:
    as_json = {"Accept": "application/json"}

    def page(query: str) -> dict[str, Any]:
        return world.client.get(run["events"] + query, headers=as_json).json

    assert [event["seq"] for event in page("")["events"]] == [1, 2, 3, 4]
    assert page("")["next"] == 4
    assert page("?limit=2")["next"] == 2
    assert page("?after=4") == {"events": [], "next": 4}
    world.finish(run)
    assert page("?after=4")["next"] is None
    assert page("?after=5") == {"events": [], "next": None}


def test_other_formats_are_406(world: World, run: dict[str, Any]) -> None:
    answer = world.client.get(run["events"], headers={"Accept": "text/html"})

    assert (answer.status_code, answer.json["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "text/event-stream, application/json", "text/*"])
def test_whoever_accepts_anything_gets_the_stream(world: World, run: dict[str, Any], accept: str) -> None:
    world.finish(run)

    answer = world.client.get(run["events"], headers={"Accept": accept})

    assert answer.mimetype == "text/event-stream"


def test_a_run_whose_events_went_to_the_ledger_tells_the_same_story(world: World, run: dict[str, Any]) -> None:
    world.finish(run)
    before = read(world, run)
    world.mirror()
    world.services.live.archived(run["runId"], keep_ms=-1)
    assert world.services.live.get(run["runId"]) is None

    assert read(world, run) == before
    assert world.client.get(run["events"] + "?after=5").status_code == 204


def test_events_that_come_later_arrive_on_the_same_stream(world: World, run: dict[str, Any]) -> None:
    held = world.app.extensions["rolecall"]
    batches = Follower(held, run["runId"], 0).batches()
    assert [event.seq for event in next(batches)] == [1, 2, 3, 4]

    world.append(run, 2, *NODES)
    assert [event.seq for event in next(batches)] == [5, 6]
    finisher = Thread(target=world.finish, args=(run,))
    finisher.start()

    assert [event.type for batch in batches for event in batch] == ["run.completed"]
    finisher.join()


def test_a_silent_stream_says_that_it_lives(world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    body = iter(world.client.get(run["events"] + "?after=4", buffered=False).response)

    assert [next(body) for _ in range(3)] == [b"retry:1000\n\n", b":keepalive\n\n", b":keepalive\n\n"]


def test_a_stream_opened_while_redis_is_away_begins_when_it_is_back(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "AWAY_S", 0.01)
    with monkeypatch.context() as away:
        world.take_away("redis", away)
        answer = world.client.get(run["events"], buffered=False)
        body = iter(answer.response)
        assert (answer.status_code, next(body), next(body)) == (200, b"retry:1000\n\n", b":keepalive\n\n")
        assert world.client.get("/api/v1/runs/unknown/events").status_code == 404
    world.finish(run)

    assert [event["id"] for event in sse(b"".join(body).decode())] == [1, 2, 3, 4, 5]


def test_a_live_run_is_followed_without_asking_the_ledger(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    world.take_away("mongo", monkeypatch)
    batches = Follower(world.app.extensions["rolecall"], run["runId"], 0).batches()
    assert len(next(batches)) == 4
    assert list(next(batches)) == []
    world.finish(run)

    assert [event.seq for batch in batches for event in batch] == [5]


def test_a_follower_whose_run_moves_to_the_ledger_gets_the_rest_from_there(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "BATCH", 2)
    batches = Follower(world.app.extensions["rolecall"], run["runId"], 0).batches()
    seqs = [event.seq for event in next(batches)]
    world.finish(run)
    world.mirror()
    world.services.live.archived(run["runId"], keep_ms=-1)
    assert world.services.live.get(run["runId"]) is None

    assert seqs + [event.seq for batch in batches for event in batch] == [1, 2, 3, 4, 5]


def test_a_stream_survives_redis_being_away(world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(admin.sse, "AWAY_S", 0.01)
    held = world.app.extensions["rolecall"]
    batches = Follower(held, run["runId"], 0).batches()
    assert len(next(batches)) == 4

    with monkeypatch.context() as away:
        away.setattr(held.services.bell, "watch", _bell_away)
        world.take_away("redis", away)
        world.take_away("mongo", away)
        assert [list(next(batches)) for _ in range(3)] == [[], [], []]
    world.append(run, 2, *NODES)
    world.finish(run)

    assert [event.seq for batch in batches for event in batch] == [5, 6, 7]


@contextmanager
def _bell_away(run_id: str) -> Iterator[None]:
    raise ServerUnavailable("redis", "no answer")
    yield


def test_a_reader_who_left_is_not_watched_for(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    answer = world.client.get(run["events"], buffered=False)
    body = iter(answer.response)
    while next(body) != b":keepalive\n\n":
        pass
    assert world.services.bell._watchers

    answer.close()

    assert not world.services.bell._watchers


def test_streams_end_when_the_process_stops(world: World, run: dict[str, Any]) -> None:
    held = world.app.extensions["rolecall"]
    batches = Follower(held, run["runId"], 0).batches()
    next(batches)
    stopper = Thread(target=held.stop)

    stopper.start()

    assert [event for batch in batches for event in batch] == []
    stopper.join()


def test_a_stalled_reader_holds_a_bounded_number_of_events(world: World, run: dict[str, Any]) -> None:
    world.append(run, 2, *(NewEvent("log", data={"n": n}) for n in range(500)))
    world.finish(run)

    batches = list(Follower(world.app.extensions["rolecall"], run["runId"], 0).batches())

    assert max(map(len, batches)) <= admin.sse.BATCH
    assert [event.seq for batch in batches for event in batch] == list(range(1, 506))


def test_a_run_that_was_never_queued_has_no_stream(world: World) -> None:
    world.ready()
    run = world.start()
    recorded = world.services.store.get_run(run["runId"])
    assert recorded is not None
    refused = recorded.with_(run_id="refused", status=RunStatus.FAILED, seq=0, idempotency_key=None)
    world.services.store.insert_run(refused)

    assert world.client.get("/api/v1/runs/refused/events").status_code == 204


def test_waiting_for_a_run_ends_with_it(world: World, run: dict[str, Any]) -> None:
    finisher = Thread(target=world.finish, args=(run, {"content": "Hello"}))
    finisher.start()

    shown = world.client.get(f"/api/v1/runs/{run['runId']}?wait=30").json

    finisher.join()
    assert (shown["status"], shown["output"]) == ("completed", {"content": "Hello"})


AWKWARD = "line\nfeed\rreturn\r\n\0nul\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029 😀 é \x7f"


@pytest.mark.parametrize("text", [AWKWARD, "", *AWKWARD])
def test_any_text_in_any_field_arrives_as_one_event_unchanged(text: str) -> None:
    event = Event("run", 7, 1, f"their.{text}", 0, node=text, data={"text": text, text: [text]})

    written = str(message(event))

    lines = written.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["event", "data", "id", ""]
    assert written.endswith("\n\n")
    assert json.loads(lines[1].removeprefix("data:")) == event.to_wire()


def test_nothing_is_published_over_http(world: World) -> None:
    with pytest.raises(NotImplementedError):
        admin.sse.blueprint.publish({"x": 1})
