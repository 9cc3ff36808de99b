"""Server-sent events: a client is always served from a run's log; the bell only says when to read it again.

This is flask-sse's blueprint and message format, extended: a stream belongs to a run (a caller names no channel),
events have ids, joining late or again gives exactly what was missed, and a stream ends with its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import NoReturn

from flask import Response, jsonify, request
from flask_sse import Message, ServerSentEventsBlueprint
from werkzeug.exceptions import NotAcceptable

from admin.inputs import query, whole
from admin.process import Process, process
from app.errors import BadRequest, Fault, ServerUnavailable, Unavailable
from app.models.event import RESET, START, Event, Place
from app.models.json_value import dumps
from app.models.run import Run
from app.runs.log import LogPage

KEEPALIVE_S = 15.0
"""After this time of silence a stream says something, which is how gone clients are noticed, and the log is read
unasked, so that nothing rests on a ring that was lost."""
AWAY_S = 2.0
"""The pause before a server that did not answer is asked again."""
RETRY_MS = 1_000
"""When a browser whose connection broke comes back."""
BATCH = 25
"""Events read at a time: all that a reader who stalls can hold in memory."""

SSE, JSON = "text/event-stream", "application/json"

# Some readers split lines at these too. As escapes they are the same text to every JSON parser.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def message(event: Event) -> Message:
    """Return an event in flask-sse's format, its data one line of JSON whatever the event holds."""
    name = "".join(char if char.isprintable() else " " for char in event.type)
    return Message(dumps(event.to_wire()).translate(_LINE_BREAKS), type=name, id=str(event.place))


def reset_message(run_id: str, epoch: int) -> Message:
    """Return what tells a client to forget what it was told, since the story begins anew.

    Its id is where that story begins, so that a client which comes back with it is not told again.
    """
    return Message(dumps({"run_id": run_id, "epoch": epoch}), type=RESET, id=str(Place(0, epoch)))


_SILENCE = LogPage((), over=False)


class Follower:
    """Follows the log of one run from the place ``after``, for at most ``seconds``.

    ``first`` is what the log has after it, if that was read already.
    """

    def __init__(
        self, held: Process, run_id: str, after: Place, *, first: LogPage | None = None, seconds: float = float("inf")
    ) -> None:
        self._log = held.log
        self._bell = held.services.bell
        self._stopping = held.stopping
        self._run_id = run_id
        self._after = after
        self._first = first
        self._deadline = monotonic() + seconds
        self._finished = False

    def pages(self) -> Iterator[LogPage]:
        """Yield what the log has, then what is added, in order and without gaps.

        A page with ``reset`` begins the story anew. One without events means that nothing came for a while: while Redis
        is away that is all that comes, and it goes on when Redis is back. Ends with the run, when the time is over, or
        when the process stops.
        """
        if self._first is not None:
            yield from self._taken(self._first)
        while self._goes_on():
            try:
                with self._bell.watch(self._run_id) as wait:
                    yield from self._watched(wait)
            except Unavailable:
                self._stopping.wait(self._patience(AWAY_S))
                yield _SILENCE

    def _watched(self, wait: Callable[[float], bool]) -> Iterator[LogPage]:
        while self._goes_on():
            page = self._log.read(self._run_id, self._after, BATCH)
            yield from self._taken(page)
            if not (page.over or page.more or wait(self._patience(KEEPALIVE_S))):
                yield _SILENCE

    def _taken(self, page: LogPage) -> Iterator[LogPage]:
        self._finished = page.over
        self._after = page.place(self._after)
        if page.events or page.reset:
            yield page

    def _goes_on(self) -> bool:
        return not (self._finished or self._stopping.is_set() or monotonic() >= self._deadline)

    def _patience(self, seconds: float) -> float:
        return max(0.0, min(seconds, self._deadline - monotonic()))


def wait_for_end(held: Process, run: Run, seconds: float) -> Run:
    """Return the run when it has ended, or as it is after ``seconds``."""
    if run.ended or seconds == 0:
        return run
    for _ in Follower(held, run.run_id, Place(run.seq, run.epoch), seconds=seconds).pages():
        pass
    return held.services.runs.show(run.run_id)


class RunEvents(ServerSentEventsBlueprint):  # type: ignore[misc] # flask-sse has no types
    """flask-sse's blueprint, for the events of runs."""

    @property
    def redis(self) -> NoReturn:
        """Refuse flask-sse's own client: events are published by whoever executes a run, never through HTTP."""
        raise NotImplementedError("the events of a run are read from its log; nothing is published here")

    def messages(self, run_id: str, after: Place = START, first: LogPage | None = None) -> Iterator[Message | None]:
        """Return the run's events after a place as messages, and ``None`` whenever it is time for a keepalive."""
        return _messages(run_id, Follower(process(), run_id, after, first=first))

    def stream(self, run_id: str) -> Response:
        """Answer with the events of a run: a stream, or JSON for whoever accepts only that."""
        # A tie, and a caller who accepts anything, get the stream.
        accepted = request.accept_mimetypes
        best = accepted.best_match((SSE, JSON)) if accepted else SSE
        if best is None:
            raise NotAcceptable(f"events are given as {SSE} or {JSON}")
        return self._as_json(run_id) if best == JSON else self._as_stream(run_id)

    def of_accepted(self, run_id: str) -> Response | None:
        """Return the events of a run that this request has started, if it asks for those rather than for JSON.

        Whoever starts a run to watch it has the first event after one request instead of two.
        """
        if request.accept_mimetypes.best_match((JSON, SSE)) != SSE:
            return None
        try:
            first = process().services.runs.log(run_id, limit=BATCH)
        except Unavailable:
            # It is accepted, which no trouble in showing it may hide.
            first = None
        return self._answer(run_id, START, first)

    def _as_stream(self, run_id: str) -> Response:
        after = _last_event_id(query(after=Place.parse).get("after", START))
        first = _first_page(run_id, after)
        if first is not None and first.over and not first.events and not first.reset:
            # Tells a browser's EventSource to stay away; after anything else it would come back for ever.
            return Response(status=204)
        return self._answer(run_id, after, first)

    def _answer(self, run_id: str, after: Place, first: LogPage | None) -> Response:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return Response(_body(self.messages(run_id, after, first)), mimetype=SSE, headers=headers)

    def _as_json(self, run_id: str) -> Response:
        asked = query(after=Place.parse, limit=whole(1, 1000))
        after = _last_event_id(asked.get("after", START))
        page = process().services.runs.log(run_id, after=after, limit=asked.get("limit", 500))
        reset = {"reset": True} if page.reset else {}
        last = None if page.over else page.place(after).to_wire()
        return jsonify(events=[event.to_wire() for event in page.events], next=last, **reset)


def _first_page(run_id: str, after: Place) -> LogPage | None:
    """Read what a new stream begins with; nothing if it has to wait until Redis is back.

    Raises:
        NotFound: ``run_not_found``.
        ServerUnavailable: there is nobody to ask whether there is such a run.
    """
    runs = process().services.runs
    try:
        return runs.log(run_id, after=after, limit=BATCH)
    except ServerUnavailable:
        runs.get(run_id)
        return None


def _messages(run_id: str, follower: Follower) -> Iterator[Message | None]:
    for page in follower.pages():
        if page.reset:
            yield reset_message(run_id, page.epoch)
        yield from map(message, page.events)
        if page is _SILENCE:
            yield None


def _body(messages: Iterator[Message | None]) -> Iterator[str]:
    # Sent at once, so that the answer's headers are too.
    yield f"retry:{RETRY_MS}\n\n"
    for each in messages:
        yield ":keepalive\n\n" if each is None else str(each)


def _last_event_id(after: Place) -> Place:
    """Return how far the caller has come: the header of a reconnecting browser wins over the parameter."""
    header = request.headers.get("Last-Event-ID", "").strip()
    if not header:
        return after
    try:
        return Place.parse(header)
    except ValueError as error:
        raise BadRequest.of([Fault("Last-Event-ID", str(error))]) from None


blueprint = RunEvents("events", __name__)
blueprint.add_url_rule("/runs/<run_id>/events", view_func=blueprint.stream, endpoint="stream")
