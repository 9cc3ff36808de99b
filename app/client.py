"""A client of the admin app's HTTP API: what the command line and ``rolecall up`` use."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from app.errors import RolecallError, Unavailable
from app.models.event import RESET, TERMINAL

KEEPALIVE_S = 15.0
"""How often an idle stream sends a comment; three missed ones mean that it is dead."""


class Refused(RolecallError):
    """The API said no. ``status`` is the HTTP status, ``problem`` the whole RFC 9457 body, ``code`` the stable code."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        text = problem.get("detail") or problem.get("title") or f"HTTP status {status}"
        super().__init__(str(text), code=str(problem.get("code", f"http_{status}")))
        self.status = status
        self.problem = problem

    def extra(self) -> dict[str, Any]:
        return self.problem


class TryLater(Unavailable):
    """The API did not answer, or answered that it cannot do it now. The same call may work later."""


@dataclass(frozen=True, slots=True)
class Received:
    """One event of a stream as it came: the stream's ``id`` of it, the event's wire form, the stream's name for it."""

    id: str
    event: dict[str, Any]
    name: str = "message"

    @property
    def reset(self) -> bool:
        """Whether this is no event of the run but says that Redis lost it: what came before is to be forgotten, and
        the story begins anew.
        """
        return self.name == RESET


class Client:
    """Calls one admin app. Answers are the decoded JSON.

    Every call raises :class:`Refused` for a refusal and :class:`TryLater` for 429, 503 and a server out of reach.
    """

    def __init__(self, url: str, *, timeout_s: float = 10.0, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, transport=transport, trust_env=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """GET; parameters that are ``None`` are left out."""
        return self._call("GET", path, params=params)

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        return self._call("POST", path, params=params, json=body)

    def put(self, path: str, body: Any) -> Any:
        return self._call("PUT", path, json=body)

    def upload(self, path: str, content: bytes, content_type: str, **params: Any) -> Any:
        """POST a document as it is."""
        return self._call("POST", path, params=params, content=content, headers={"Content-Type": content_type})

    def wait(self, run_id: str, *, step_s: int = 20) -> dict[str, Any]:
        """Return the run once it has ended."""
        while True:
            run: dict[str, Any] = self.get(f"/api/v1/runs/{run_id}", wait=step_s)
            if run["endedAt"] is not None:
                return run

    def follow(
        self, run_id: str, *, after: str = "", patience_s: float = 60.0, lost: Callable[[str], None] = lambda _: None
    ) -> Iterator[Received]:
        """Yield the events of a run from the first, or the one after ``after``, to its end.

        A broken connection is made anew from the last event seen; ``lost`` is told why. If Redis loses the run, a
        :attr:`Received.reset` comes, and then its new story from the first event.

        Raises:
            TryLater: nothing came back for ``patience_s``.
        """
        deadline, pause = time.monotonic() + patience_s, 0.5
        while True:
            try:
                for received in self._stream(run_id, after):
                    deadline, pause = time.monotonic() + patience_s, 0.5
                    after = received.id or after
                    yield received
                    if received.event.get("type") in TERMINAL:
                        return
                if self.get(f"/api/v1/runs/{run_id}")["endedAt"] is not None:
                    return
            except TryLater as error:
                if time.monotonic() > deadline:
                    raise
                lost(str(error))
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _stream(self, run_id: str, after: str) -> Iterator[Received]:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
        timeout = httpx.Timeout(self._http.timeout.connect, read=3 * KEEPALIVE_S)
        try:
            with self._http.stream(
                "GET", f"/api/v1/runs/{run_id}/events", headers=headers, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    response.read()
                    raise self._error(response)
                yield from read_stream(response.iter_bytes())
        except httpx.TransportError as error:
            raise self._out_of_reach(error) from None

    def _call(self, method: str, path: str, *, params: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {key: value for key, value in (params or {}).items() if value is not None}
        # A call that waits at the server takes as long as it was asked to.
        timeout = httpx.Timeout(self._http.timeout.connect, read=(self._http.timeout.read or 0) + given.get("wait", 0))
        try:
            response = self._http.request(method, path, params=given, timeout=timeout, **options)
        except httpx.TransportError as error:
            raise self._out_of_reach(error) from None
        if response.status_code >= 400:
            raise self._error(response)
        try:
            return response.json() if response.content else None
        except ValueError:
            raise Refused(
                response.status_code,
                {"code": "not_rolecall", "detail": f"{self.url}{path} answers no JSON; is that the admin app?"},
            ) from None

    def _out_of_reach(self, error: httpx.TransportError) -> TryLater:
        why = str(error) or type(error).__name__
        return TryLater(
            f"{self.url} does not answer ({why}); is Rolecall running? `make up` starts it", code="no_answer"
        )

    def _error(self, response: httpx.Response) -> RolecallError:
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        refused = Refused(response.status_code, problem if isinstance(problem, dict) else {})
        if response.status_code in (429, 502, 503, 504):
            after = response.headers.get("Retry-After", "")
            return TryLater(refused.message, code=refused.code, retry_after=int(after) if after.isdecimal() else 5)
        return refused


def read_stream(chunks: Iterable[bytes]) -> Iterator[Received]:
    """Read server-sent events whose data is JSON; comments and events without data are left out."""
    ident, name, data = "", "", list[str]()
    for line in _lines(chunks):
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "id":
                ident = value
            elif field == "event":
                name = value
            elif field == "data":
                data.append(value)
        else:
            if data:
                yield Received(ident, json.loads("\n".join(data)), name or "message")
            name, data = "", []


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # Not httpx's own line reader: that one also splits at U+2028 and the like, which JSON text may contain.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
