"""The soak's clients: some post runs, some follow their streams, some cancel. They remember what they were told."""

from __future__ import annotations

import logging
import queue
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, Literal

from app.client import Client, Received, Refused, TryLater
from app.errors import RolecallError
from tests.soak.flows import BY_NAME, DEPLOYMENTS, FLOWS, DeploymentSpec
from tests.soak.proof import Post, Told

logger = logging.getLogger(__name__)

SESSIONS = 24
PACE_S = 0.45
"""Mean pause of a poster between two posts."""
PATIENCE_S = 90.0
"""How long a client goes on asking for what it once began."""
WITH_KEY = 0.6
FOLLOWED = 0.15
CANCELLED = 0.03
CANCELLED_SLOW = 0.15
"""Slow runs are cancelled more often, since the others have ended by then."""
UNDECIDED = ("no_answer", "acceptance_unknown", "http_502", "http_504")
"""Codes of answers after which a run may or may not have been accepted."""


@dataclass
class Book:
    """What all clients together were told. Its lists only grow."""

    posts: list[Post] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    cancels: set[str] = field(default_factory=set)
    strange: list[str] = field(default_factory=list)
    """Answers that no client should ever get."""
    answers: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    """The longest that each kind of answer took to come."""
    lock: Lock = field(default_factory=Lock)

    def note(self, what: str, code: str, took_s: float) -> None:
        with self.lock:
            self.answers[f"{what} {code}"] += 1
            call = f"{what} {code}"
            self.slowest_s[call] = max(took_s, self.slowest_s.get(call, 0.0))

    def odd(self, text: str) -> None:
        logger.error("%s", text)
        with self.lock:
            self.strange.append(text)


class Load:
    """Clients in threads, from :meth:`start` to :meth:`stop`. What they do follows from the seed."""

    def __init__(self, url: str, seed: int, *, posters: int = 6, followers: int = 5, cancellers: int = 1) -> None:
        self.book = Book()
        self._url = url
        self._over = Event()
        self._hopeless = Event()
        self._to_follow: queue.Queue[str | None] = queue.Queue(maxsize=30)
        self._to_cancel: queue.Queue[str | None] = queue.Queue()
        workers = [("poster", self._post_on)] * posters + [("canceller", self._cancel_on)] * cancellers
        workers += [("follower", self._follow_on)] * followers
        self._threads = {
            kind: [
                Thread(
                    target=self._work, args=(work, random.Random(f"{seed} {index}")), name=f"{kind}{index}", daemon=True
                )
                for index, (its, work) in enumerate(workers)
                if its == kind
            ]
            for kind in ("poster", "canceller", "follower")
        }

    def prepare(self) -> None:
        """Import the flows and make the deployments."""
        with Client(self._url) as client:
            for flow in FLOWS:
                client.post("/api/v1/flows/import", flow.document(), publish="true")
            for deployment in DEPLOYMENTS:
                client.put(f"/api/v1/deployments/{deployment.name}", deployment.body())

    def start(self) -> None:
        for threads in self._threads.values():
            for thread in threads:
                thread.start()

    def stop(self) -> None:
        """Begin nothing new; let every client finish what it has begun, but no longer than its patience."""
        self._over.set()
        self._join("poster")
        self._to_cancel.put(None)
        self._join("canceller")
        for _ in self._threads["follower"]:
            self._to_follow.put(None)

    def finish(self, seconds: float = 20.0) -> None:
        """Wait for the followers, who are done soon after their runs have ended, and let each come back once more.

        Whoever has all is told nothing. Whoever saw an end that was lost with Redis before it was on record is told of
        the one that took its place.
        """
        self._join("follower", seconds)
        self._hopeless.set()
        with Client(self._url) as client:
            for told in self.book.told:
                if not told.broken:
                    self._tell(told, self._stream(client, told))

    def _join(self, kind: str, seconds: float = 2 * PATIENCE_S) -> None:
        until = time.monotonic() + seconds
        for thread in self._threads[kind]:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                self.book.odd(f"{thread.name} did not come to an end")

    def _work(self, work: Callable[[Client, random.Random], None], rng: random.Random) -> None:
        with Client(self._url) as client:
            try:
                work(client, rng)
            except Exception as error:
                logger.exception("a client broke")
                self.book.odd(f"a client broke: {type(error).__name__}: {error}")

    # --- posting -------------------------------------------------------------------------------------------------

    def _post_on(self, client: Client, rng: random.Random) -> None:
        names = [deployment.name for deployment in DEPLOYMENTS]
        shares = [deployment.flow.share for deployment in DEPLOYMENTS]
        while not self._over.wait(rng.expovariate(1 / PACE_S)):
            self._post(client, rng, BY_NAME[rng.choices(names, shares)[0]])

    def _post(self, client: Client, rng: random.Random, deployment: DeploymentSpec) -> None:
        request = uuid.UUID(int=rng.getrandbits(128)).hex
        key = request if rng.random() < WITH_KEY else None
        body: dict[str, Any] = {
            "input": {"request": request} | deployment.flow.make_input(rng),
            "meta": {"session_id": f"s{rng.randrange(SESSIONS)}"},
        }
        if key is not None:
            body["idempotencyKey"] = key
        # Drawn before the answer, so that what a client does depends on the seed alone.
        follow = rng.random() < FOLLOWED
        cancel = rng.random() < (CANCELLED_SLOW if deployment.flow.rest else CANCELLED)
        run_id, fate = self._until_told(client, rng, deployment.name, body)
        with self.book.lock:
            self.book.posts.append(Post(request, deployment.name, key is not None, fate, run_id))
        if run_id is None:
            return
        if cancel:
            self._to_cancel.put(run_id)
        elif follow and not self._to_follow.full():
            self._to_follow.put(run_id)

    def _until_told(
        self, client: Client, rng: random.Random, deployment: str, body: dict[str, Any]
    ) -> tuple[str | None, Literal["accepted", "unknown", "refused"]]:
        """Post until it is accepted or refused. Without an idempotency key a lost answer is not asked for again."""
        give_up_at = time.monotonic() + PATIENCE_S
        maybe = False
        while True:
            began = time.monotonic()
            try:
                answer = client.post(f"/api/v1/deployments/{deployment}/runs", body)
            except TryLater as error:
                self.book.note("post", error.code, time.monotonic() - began)
                undecided = error.code in UNDECIDED
                if undecided and "idempotencyKey" not in body:
                    return None, "unknown"
                maybe = maybe or undecided
            except Refused as error:
                self.book.note("post", error.code, time.monotonic() - began)
                self.book.odd(f"a sound post was refused with {error.status} {error.code}: {error}")
                return None, "refused"
            else:
                self.book.note("post", "202", time.monotonic() - began)
                return answer["runId"], "accepted"
            if time.monotonic() > give_up_at:
                self.book.odd(f"nothing was accepted for {PATIENCE_S:g} s")
                return None, "unknown" if maybe else "refused"
            # A second rather than Retry-After's five, which is for people.
            time.sleep(rng.uniform(0.3, 1.2))

    # --- cancelling ----------------------------------------------------------------------------------------------

    def _cancel_on(self, client: Client, rng: random.Random) -> None:
        while (run_id := self._to_cancel.get()) is not None:
            time.sleep(rng.uniform(0, 0.5))
            with self.book.lock:
                self.book.cancels.add(run_id)
            began = time.monotonic()
            try:
                client.post(f"/api/v1/runs/{run_id}/cancel")
            except TryLater as error:
                self.book.note("cancel", error.code, time.monotonic() - began)
            except Refused as error:
                self.book.note("cancel", error.code, time.monotonic() - began)
                if error.code != "run_ended":
                    self.book.odd(f"cancelling run {run_id} was refused with {error.status} {error.code}: {error}")
            else:
                self.book.note("cancel", "200", time.monotonic() - began)

    # --- following -----------------------------------------------------------------------------------------------

    def _follow_on(self, client: Client, rng: random.Random) -> None:
        while (run_id := self._to_follow.get()) is not None:
            told = Told(run_id)
            with self.book.lock:
                self.book.told.append(told)
            self._tell(told, self._follow(client, rng, told))

    def _tell(self, told: Told, stream: Iterator[Received]) -> None:
        try:
            for received in stream:
                told.hear(received)
        except RolecallError as error:
            told.broken = f"{error.code}: {error}"

    def _stream(self, client: Client, told: Told) -> Iterator[Received]:
        return client.follow(
            told.run_id, after=told.last_id, patience_s=PATIENCE_S, lost=lambda why: self._lost(told, why)
        )

    def _follow(self, client: Client, rng: random.Random, told: Told) -> Iterator[Received]:
        """Follow a run to its end; now and then hang up and come back with the last id, as a browser does."""
        while True:
            hang_up = rng.randint(1, 6) if rng.random() < 0.4 else None
            stream = self._stream(client, told)
            over = True
            for received in stream:
                yield received
                if hang_up is not None and not told.over:
                    hang_up -= 1
                    if hang_up == 0:
                        over = False
                        break
            stream.close()  # type: ignore[attr-defined] # it is a generator
            if over:
                return
            told.reconnects += 1

    def _lost(self, told: Told, why: str) -> None:
        told.reconnects += 1
        if self._hopeless.is_set():
            raise TryLater(why)
