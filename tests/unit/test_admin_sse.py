"""A run's events, as a stream and as JSON, over a log in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any, NoReturn

import pytest
from werkzeug.test import TestResponse

import admin.sse
from admin.sse import Follower, message
from app.errors import ServerUnavailable
from app.live.memory import MemoryLive
from app.models.event import START, Event, NewEvent
from app.models.run import RunStatus
from app.runs.log import LogPage
from app.runs.recovery import make_anew
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


@pytest.mark.parametrize(
    "after", ["x", "-1", "1.5", "٣", "99999999999999999999", "9007199254740992", "1:", ":1", "1:x", "1:2:3"]
)
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
    pages = Follower(held, run["runId"], START).pages()
    assert [event.seq for event in next(pages).events] == [1, 2, 3, 4]

    world.append(run, 2, *NODES)
    assert [event.seq for event in next(pages).events] == [5, 6]
    finisher = Thread(target=world.finish, args=(run,))
    finisher.start()

    assert [event.type for page in pages for event in page.events] == ["run.completed"]
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
    pages = Follower(world.app.extensions["rolecall"], run["runId"], START).pages()
    assert len(next(pages).events) == 4
    assert list(next(pages).events) == []
    world.finish(run)

    assert [event.seq for page in pages for event in page.events] == [5]


def test_a_follower_whose_run_moves_to_the_ledger_gets_the_rest_from_there(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "BATCH", 2)
    pages = Follower(world.app.extensions["rolecall"], run["runId"], START).pages()
    seqs = [event.seq for event in next(pages).events]
    world.finish(run)
    world.mirror()
    world.services.live.archived(run["runId"], keep_ms=-1)
    assert world.services.live.get(run["runId"]) is None

    assert seqs + [event.seq for page in pages for event in page.events] == [1, 2, 3, 4, 5]


def test_a_stream_survives_redis_being_away(world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(admin.sse, "AWAY_S", 0.01)
    held = world.app.extensions["rolecall"]
    pages = Follower(held, run["runId"], START).pages()
    assert len(next(pages).events) == 4

    with monkeypatch.context() as away:
        away.setattr(held.services.bell, "watch", _bell_away)
        world.take_away("redis", away)
        world.take_away("mongo", away)
        assert [list(next(pages).events) for _ in range(3)] == [[], [], []]
    world.append(run, 2, *NODES)
    world.finish(run)

    assert [event.seq for page in pages for event in page.events] == [5, 6, 7]


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
    pages = Follower(held, run["runId"], START).pages()
    next(pages)
    stopper = Thread(target=held.stop)

    stopper.start()

    assert [event for page in pages for event in page.events] == []
    stopper.join()


def test_a_stalled_reader_holds_a_bounded_number_of_events(world: World, run: dict[str, Any]) -> None:
    world.append(run, 2, *(NewEvent("log", data={"n": n}) for n in range(500)))
    world.finish(run)

    pages = list(Follower(world.app.extensions["rolecall"], run["runId"], START).pages())

    assert max(len(page.events) for page in pages) <= admin.sse.BATCH
    assert [event.seq for page in pages for event in page.events] == list(range(1, 506))


def test_a_run_that_was_never_queued_has_no_stream(world: World) -> None:
    world.ready()
    run = world.start()
    recorded = world.services.store.get_run(run["runId"])
    assert recorded is not None
    refused = recorded.with_(run_id="refused", status=RunStatus.FAILED, seq=0, idempotency_key=None)
    world.services.store.insert_run(refused)

    assert world.client.get("/api/v1/runs/refused/events").status_code == 204


# --- started to be watched ---------------------------------------------------------------------------------------


def post(world: World, accept: str, **body: Any) -> TestResponse:
    headers = {"Accept": accept, "Last-Event-ID": "no id"}
    return world.client.post("/api/v1/deployments/hello/runs", json=body, headers=headers, buffered=False)


@pytest.mark.parametrize("accept", ["text/event-stream", "text/event-stream, application/json;q=0.5"])
def test_whoever_starts_a_run_may_have_its_events_as_the_answer(world: World, accept: str) -> None:
    world.ready()

    answer = post(world, accept)

    assert (answer.status_code, answer.mimetype) == (202, "text/event-stream")
    run = world.client.get(answer.headers["Location"]).json
    world.claim(run)
    world.append(run, 1, *NODES)
    world.finish(run)
    events = list(sse(answer.text))
    assert [event["event"] for event in events] == WHOLE
    assert {event["data"]["run_id"] for event in events} == {run["runId"]}


@pytest.mark.parametrize("accept", ["", "*/*", "application/json, text/event-stream", "text/html"])
def test_whoever_does_not_ask_for_the_events_gets_the_run(world: World, accept: str) -> None:
    world.ready()

    assert post(world, accept).json["status"] == "queued"


def test_the_same_key_gives_the_events_of_the_first_time_again(world: World) -> None:
    world.ready()
    run = world.start(idempotencyKey="k")
    world.claim(run)
    world.finish(run)

    for _ in range(2):
        answer = post(world, "text/event-stream", idempotencyKey="k")
        assert [event["id"] for event in sse(answer.text)] == [1, 2, 3]


def test_a_run_that_is_not_accepted_is_a_problem_and_no_stream(world: World) -> None:
    world.ready()

    answer = post(world, "text/event-stream", input=1)

    assert (answer.status_code, answer.mimetype) == (400, "application/problem+json")


def _redis_away(*_: object, **__: object) -> NoReturn:
    raise ServerUnavailable("redis", "no answer within 2 s")


def test_an_accepted_run_is_so_though_its_events_cannot_be_read_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "AWAY_S", 0.01)
    world.ready()
    with monkeypatch.context() as away:
        for name in ("events", "changed"):
            away.setattr(world.services.live, name, _redis_away)
        answer = post(world, "text/event-stream")
        assert answer.status_code == 202
    run = world.client.get(answer.headers["Location"]).json
    world.claim(run)
    world.finish(run)

    assert [event["id"] for event in sse(answer.text)] == [1, 2, 3]


# --- when Redis has lost the run ---------------------------------------------------------------------------------

ANEW = ["1:1", "1:2", "1:3"]


@pytest.fixture
def anew(world: World, run: dict[str, Any]) -> dict[str, Any]:
    """The run, lost after its fourth event, made anew and completed with three events."""
    world.lose(run)
    world.claim(run)
    world.finish(run)
    return run


def reset(run: dict[str, Any], epoch: int = 1) -> dict[str, Any]:
    return {"id": f"{epoch}:0" if epoch else 0, "event": "reset", "data": {"run_id": run["runId"], "epoch": epoch}}


def ids(events: Iterable[dict[str, Any]]) -> list[int | str]:
    return [event["id"] for event in events]


def test_whoever_has_nothing_gets_the_new_story_alone(world: World, anew: dict[str, Any]) -> None:
    events = read(world, anew)

    assert ids(events) == ANEW
    assert [event["data"]["epoch"] for event in events] == [1, 1, 1]
    assert ids(read(world, anew, 0)) == ids(read(world, anew, "1:0")) == ANEW


@pytest.mark.parametrize("after", ["1", "3", "4", "99", "0:2", "2:2"])
def test_the_id_of_another_epoch_gets_a_reset_and_the_whole_story(
    world: World, anew: dict[str, Any], after: str
) -> None:
    for events in (read(world, anew, after), read(world, anew, query=f"?after={after}")):
        assert events[0] == reset(anew)
        assert ids(events[1:]) == ANEW


def test_the_id_of_this_epoch_goes_on_and_gets_204_at_the_end(world: World, anew: dict[str, Any]) -> None:
    assert ids(read(world, anew, "1:2")) == ["1:3"]
    for after in ("1:3", "1:9"):
        assert world.client.get(anew["events"], headers={"Last-Event-ID": after}).status_code == 204


def test_an_epoch_that_never_was_is_another_one_too(world: World, run: dict[str, Any]) -> None:
    world.finish(run)

    events = read(world, run, "3:2")

    assert events[0] == reset(run, epoch=0)
    assert ids(events[1:]) == [1, 2, 3, 4, 5]


def test_a_reset_is_told_from_the_ledger_as_from_the_live_state(
    world: World, anew: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(world, anew, 2)
    world.mirror()
    with monkeypatch.context() as away:
        world.take_away("redis", away)
        assert read(world, anew, 2) == before
    world.services.live.archived(anew["runId"], keep_ms=-1)

    assert read(world, anew, 2) == before
    assert world.client.get(anew["events"], headers={"Last-Event-ID": "1:3"}).status_code == 204


@pytest.mark.parametrize("seen", [1, 4])
def test_a_connected_client_is_told_whether_the_new_story_has_passed_its_place_or_not(
    world: World, run: dict[str, Any], seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "BATCH", seen)
    body = iter(world.client.get(run["events"], buffered=False).response)
    old = [next(body) for _ in range(seen + 1)]
    world.lose(run)
    world.claim(run)
    world.finish(run)

    assert ids(sse(b"".join(old).decode())) == list(range(1, seen + 1))
    events = list(sse(b"".join(body).decode()))
    assert events[0] == reset(run)
    assert ids(events[1:]) == ANEW


def test_a_client_hears_nothing_until_its_run_is_back(
    world: World, run: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin.sse, "KEEPALIVE_S", 0.01)
    live = world.services.live
    assert isinstance(live, MemoryLive)
    pages = Follower(world.app.extensions["rolecall"], run["runId"], START).pages()
    assert len(next(pages).events) == 4
    known = world.services.runs.get(run["runId"])

    live.lose()

    assert [next(pages) for _ in range(3)] == [LogPage((), over=False)] * 3
    make_anew(world.services.store, live, known)
    page = next(pages)
    assert (page.reset, page.epoch, [event.seq for event in page.events]) == (True, 1, [1])


def test_json_says_that_the_story_began_anew(world: World, anew: dict[str, Any]) -> None:
    def page(query: str) -> dict[str, Any]:
        return world.client.get(anew["events"] + query, headers={"Accept": "application/json"}).json

    first = page("?after=3&limit=2")
    assert [event["seq"] for event in first["events"]] == [1, 2]
    assert (first["next"], first["reset"]) == ("1:2", True)
    rest = page(f"?after={first['next']}&limit=2")
    assert [(event["seq"], event["epoch"]) for event in rest["events"]] == [(3, 1)]
    assert rest["next"] is None
    assert "reset" not in rest
    assert page("?after=1:3") == {"events": [], "next": None}


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
