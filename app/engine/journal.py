"""The journal of a run: what is durable of its packets, so that the next attempt need not execute them again.

Outputs are collected as nodes complete and written when a packet is about to follow a ``checkpoint`` or ``durable``
edge: all that has completed until then, in order, so that the next attempt goes on from there and not from a mixture
of old and new outputs. A page is JSON: packet ids to entries, an entry being one of

    {"output": ...}     the node completed
    {"passed": true}    it completed and had nothing to execute: its output is its input
    {"error": {...}}    it failed, on a branch that may
    {"started": true}   it is to run at most once and was about to start

Attempts are told apart by the pages' numbers: each begins its part with a page of its own, and whoever finds the next
number taken has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import orjson

from app.engine.calling import Failed
from app.engine.host import Fenced, HandBack, Host, Ledger
from app.errors import ServerUnavailable
from app.nodes.api import Code
from app.ports import JournalPage

T = TypeVar("T")
Entry = dict[str, Any]

PASSED: Final[Entry] = {"passed": True}
STARTED: Final[Entry] = {"started": True}
MAX_ENTRY_BYTES: Final = 12_000_000
PAGE_BYTES: Final = 1_000_000
"""A page is written once it has this much, checkpoint or not; so nobody has to keep more."""

TRIES: Final = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 4.0


def patiently(host: Host, question: Callable[[], T]) -> T:
    """Ask a server, again while it is away, for some ten pauses' and time-outs' worth of seconds.

    Raises:
        HandBack: it stayed away; another attempt may be luckier.
        Interrupted: the run is to stop meanwhile.
    """
    pause = FIRST_PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return question()
        except ServerUnavailable:
            host.sleep(pause)
            host.check()
            pause = min(2 * pause, LONGEST_PAUSE_S)
    try:
        return question()
    except ServerUnavailable as error:
        raise HandBack(error.code) from error


class Journal:
    """The journal as one attempt sees it. ``writer`` is its lease token."""

    def __init__(self, ledger: Ledger, host: Host, *, run_id: str, attempt: int, writer: str) -> None:
        self._ledger = ledger
        self._host = host
        self._run_id = run_id
        self._attempt = attempt
        self._writer = writer
        self._next = 1
        self._known: dict[str, Entry] = {}
        self._pending: dict[str, bytes] = {}
        self._pending_bytes = 0

    def open(self) -> None:
        """Read what earlier attempts wrote, and keep them from writing more. A first attempt has nothing to read.

        Raises:
            Fenced: a later attempt has been here.
        """
        if self._attempt == 1:
            return
        while True:
            pages = patiently(self._host, lambda: self._ledger.journal(self._run_id))
            self._refuse_if_replaced(pages)
            self._next = len(pages) + 1
            if self._put("{}"):
                break
            self._host.check()
        for page in pages:
            self._known |= orjson.loads(page.text)

    def find(self, packet: str) -> Entry | None:
        """Return what is durable of a packet."""
        return self._known.get(packet)

    def note(self, packet: str, entry: Entry | None, *, output: bytes = b"") -> None:
        """Remember that a packet was dealt with: an entry, or the JSON text of an output. Written with :meth:`save`.

        What is larger than an entry may be is left out: the next attempt executes it again.
        """
        text = orjson.dumps({"output": orjson.Fragment(output)} if entry is None else entry)
        if len(text) > MAX_ENTRY_BYTES:
            return
        self._pending[packet] = text
        self._pending_bytes += len(text)
        if self._pending_bytes > PAGE_BYTES:
            self.save()

    def start(self, packet: str) -> None:
        """Make durable that a node is about to run that must not run twice."""
        self.note(packet, STARTED)
        self.save()

    def save(self) -> None:
        """Write all that was noted.

        Raises:
            HandBack: the ledger is away.
            Fenced: the run is somebody else's.
        """
        if not self._pending:
            return
        pages = {packet: orjson.Fragment(text) for packet, text in self._pending.items()}
        if not self._put(orjson.dumps(pages).decode()):
            self._refuse_if_replaced(patiently(self._host, lambda: self._ledger.journal(self._run_id)))
            # The live state went back in time and gave this attempt out twice; it decides whose the run is.
            raise HandBack("journal_taken")
        for packet, text in self._pending.items():
            if _comes_again(packet):
                self._known[packet] = orjson.loads(text)
        self._pending.clear()
        self._pending_bytes = 0

    def forget(self, prefix: str) -> None:
        """Drop what was noted of packets below ``prefix`` and not written: they are executed anew, or not needed."""
        for packet in [packet for packet in self._pending if packet.startswith(prefix)]:
            self._pending_bytes -= len(self._pending.pop(packet))

    def _put(self, text: str) -> bool:
        page = JournalPage(self._next, self._attempt, self._writer, text)
        if not patiently(self._host, lambda: self._ledger.journal_put(self._run_id, page)):
            return False
        self._next += 1
        return True

    def _refuse_if_replaced(self, pages: list[JournalPage]) -> None:
        if any(page.attempt > self._attempt for page in pages):
            raise Fenced("a later attempt has written to the journal")


def check_size(output: bytes) -> None:
    """Refuse an output that is to be durable and cannot be.

    Raises:
        Failed: it is too large.
    """
    if len(output) > MAX_ENTRY_BYTES - 100:
        size = f"{len(output):,} bytes and a checkpoint holds {MAX_ENTRY_BYTES - 100:,}"
        raise Failed(Code.PERMANENT, f"the output is {size}; pass a reference on instead")


def _comes_again(packet: str) -> bool:
    """Return whether this attempt may meet the packet again: inside a subworkflow, whose node may be tried again."""
    return "/flow/" in packet
