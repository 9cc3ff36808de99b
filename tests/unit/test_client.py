"""The HTTP client: errors, waiting, and streams that break."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import client as module
from app.client import Client, Received, Refused, TryLater, read_stream

ENDED = {"endedAt": "2026-11-30T21:40:00.123Z", "status": "completed"}
OPEN = {"endedAt": None, "status": "running"}


def api(answer: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://admin/", transport=httpx.MockTransport(answer))


def event(seq: int, kind: str = "log") -> dict[str, Any]:
    return {"run_id": "r", "seq": seq, "attempt": 1, "type": kind, "at": "2026-11-30T21:40:00.123Z"}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"id: {one['seq']}\nevent: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)


def test_a_refusal_has_its_status_code_detail_and_whole_problem() -> None:
    problem = {"code": "rev_conflict", "detail": "is at rev 3", "rev": 3}
    with (
        api(lambda _: httpx.Response(409, json=problem)) as client,
        pytest.raises(Refused, match="is at rev 3") as caught,
    ):
        client.get("/x")
    assert (caught.value.status, caught.value.code, caught.value.extra()) == (409, "rev_conflict", problem)


@pytest.mark.parametrize("status", [429, 503])
def test_what_may_work_later_says_when(status: int) -> None:
    problem = {"code": "register_unknown", "detail": "nobody can say"}
    answer = httpx.Response(status, json=problem, headers={"Retry-After": "7"})
    with api(lambda _: answer) as client, pytest.raises(TryLater, match="nobody can say") as caught:
        client.get("/x")
    assert (caught.value.code, caught.value.retry_after) == ("register_unknown", 7)


def test_an_error_that_is_no_problem_document_is_told_by_its_status() -> None:
    with (
        api(lambda _: httpx.Response(500, text="<html>")) as client,
        pytest.raises(Refused, match="HTTP status 500") as caught,
    ):
        client.get("/x")
    assert caught.value.code == "http_500"


def test_a_server_that_is_not_the_admin_app_is_named() -> None:
    page = httpx.Response(200, text="<html>")
    with api(lambda _: page) as client, pytest.raises(Refused, match="http://admin/x answers no JSON"):
        client.get("/x")


def test_a_server_out_of_reach_is_something_to_try_later() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused")

    with api(answer) as client, pytest.raises(TryLater, match=r"http://admin does not answer \(Connection refused\)"):
        client.get("/x")


def test_parameters_that_are_none_are_left_out_and_a_wait_extends_the_time_limit() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["read"] == 30
        return httpx.Response(200, json=str(request.url))

    with api(answer) as client:
        assert client.get("/x", a=None, wait=20) == "http://admin/x?wait=20"


def test_wait_asks_again_until_the_run_has_ended() -> None:
    answers = iter([OPEN, OPEN, ENDED])
    with api(lambda _: httpx.Response(200, json=next(answers))) as client:
        assert client.wait("r") == ENDED


class Streams:
    """An API whose event stream breaks off after each of the given parts."""

    def __init__(self, *parts: Any, run: dict[str, Any] = OPEN) -> None:
        self.parts = list(parts)
        self.run = run
        self.resumed: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=self.run)
        self.resumed.append(request.headers.get("Last-Event-ID"))
        part = self.parts.pop(0)
        return part if isinstance(part, httpx.Response) else httpx.Response(200, stream=part)


class Broken(httpx.SyncByteStream):
    def __init__(self, data: bytes, *, error: bool = True) -> None:
        self.data, self.error = data, error

    def __iter__(self) -> Iterator[bytes]:
        yield self.data
        if self.error:
            raise httpx.ReadError("connection reset")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    return pauses


def test_a_broken_stream_goes_on_after_the_last_event_seen(no_pause: list[float]) -> None:
    streams = Streams(
        Broken(sse(event(1), event(2)) + b"id: 3\ndata: {half"),
        httpx.Response(503, json={"code": "redis_unavailable", "detail": "redis does not answer"}),
        Broken(sse(event(3), event(4, "run.completed"))),
    )
    lost: list[str] = []
    with api(streams) as client:
        seen = list(client.follow("r", lost=lost.append))
    assert [one.event["seq"] for one in seen] == [1, 2, 3, 4]
    assert streams.resumed == [None, "2", "2"]
    assert lost == [
        "http://admin does not answer (connection reset); is Rolecall running? `make up` starts it",
        "redis does not answer",
    ]
    assert no_pause == [0.5, 1.0]


def test_a_stream_that_ends_without_the_last_event_is_asked_for_again(no_pause: list[float]) -> None:
    streams = Streams(Broken(sse(event(1)), error=False), Broken(sse(event(2, "run.failed"))))
    with api(streams) as client:
        assert [one.id for one in client.follow("r")] == ["1", "2"]


def test_following_an_ended_run_from_its_last_event_gives_nothing(no_pause: list[float]) -> None:
    streams = Streams(httpx.Response(204), run=ENDED)
    with api(streams) as client:
        assert list(client.follow("r", after="9")) == []
    assert streams.resumed == ["9"]


def test_a_story_that_begins_anew_is_told_and_followed_by_its_own_ids(no_pause: list[float]) -> None:
    reset = b'event: reset\ndata: {"run_id": "r", "epoch": 1}\nid: 1:0\n\n'
    anew = [event(seq, kind) | {"epoch": 1} for seq, kind in ((1, "run.queued"), (2, "run.cancelled"))]
    parts = [f"id: 1:{one['seq']}\nevent: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in anew]
    streams = Streams(Broken(sse(event(1), event(2)) + reset), Broken(parts[0]), Broken(parts[1]))
    with api(streams) as client:
        seen = list(client.follow("r"))
    assert [one.id for one in seen] == ["1", "2", "1:0", "1:1", "1:2"]
    assert [one.reset for one in seen] == [False, False, True, False, False]
    assert streams.resumed == [None, "1:0", "1:1"]


def test_following_gives_up_when_its_patience_is_over(no_pause: list[float]) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with api(answer) as client, pytest.raises(TryLater):
        list(client.follow("r", patience_s=0))
    assert no_pause == []


def test_a_run_that_is_not_there_is_not_asked_for_again() -> None:
    with api(lambda _: httpx.Response(404, json={"code": "run_not_found"})) as client, pytest.raises(Refused):
        list(client.follow("r"))


@settings(deadline=None, max_examples=100)
@given(
    texts=st.lists(st.text(st.characters(codec="utf-8")), max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_any_text_arrives_unchanged_wherever_the_bytes_are_cut(texts: list[str], cuts: list[int]) -> None:
    stream = b": keepalive\n\n" + b"".join(
        f"id: {place}\ndata: {json.dumps({'text': text}, ensure_ascii=False)}\n\n".encode()
        for place, text in enumerate(texts)
    )
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert list(read_stream(chunks)) == [Received(str(place), {"text": text}) for place, text in enumerate(texts)]


def test_line_ends_comments_and_several_data_lines_are_read_as_the_standard_says() -> None:
    stream = b'retry: 500\r\n: hello\r\nid:7\r\ndata: {"a":\r\ndata:1}\r\n\r\nevent: x\n\n'
    stream += b'data: {"b": 2}\n\nevent:y\ndata: {}\n\ndata: {"cut'
    assert list(read_stream([stream])) == [
        Received("7", {"a": 1}),
        Received("7", {"b": 2}),
        Received("7", {}, "y"),
    ]
