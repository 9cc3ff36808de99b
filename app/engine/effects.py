"""What the engine does to the world outside of the run: nodes with an idempotency key, edges that publish."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from app.engine.calling import Failed
from app.engine.host import Fenced, Host, Ledger
from app.engine.journal import MAX_ENTRY_BYTES, patiently
from app.models.json_value import canonical
from app.nodes.api import Code
from app.ports import Streams

WAIT_S: Final = 30.0
"""How long a packet waits for another with the same key that is under way."""

FIRST_LOOK_S, LAST_LOOK_S = 0.1, 2.0
CLAIM_MS: Final = 3_600_000
"""How long a claim holds of a node without a time limit, if its holder is never heard of again."""


class Effects:
    """Executes once for each key within its time, whichever run asks; publishes."""

    def __init__(self, ledger: Ledger, host: Host, streams: Streams | None) -> None:
        self._ledger = ledger
        self._host = host
        self._streams = streams

    @property
    def streaming(self) -> bool:
        """Whether there is anything to publish to."""
        return self._streams is not None

    def publish(self, topic: str, message: Mapping[str, Any]) -> None:
        """Publish a packet, at least once: an attempt that follows the edge again publishes it by the same id."""
        streams = self._streams
        if streams is not None:
            patiently(self._host, lambda: streams.publish(topic, message))

    def once(
        self, key: tuple[str, str, str], execute: Callable[[], bytes], *, holder: str, ttl_ms: int,
        timeout_ms: int | None, deadline: float | None = None,
    ) -> tuple[bytes, bool]:  # fmt: skip
        """Return what ``execute`` gave (JSON text) for ``key``, and whether that was not now but before.

        ``key`` is flow, node and the value of its expression. ``holder`` is the same for every attempt at the packet,
        so that an attempt which was lost in the middle keeps nobody waiting but itself. After ``deadline``, the end of
        the time of the subworkflow around the node, nobody waits for another.

        Raises:
            Failed: ``TEMPORARY``: somebody else has been executing for longer than a packet waits; or what ``execute``
                raised, after which the key is free again.
        """
        name = hashlib.sha256(canonical(list(key))).hexdigest()
        claim_ms = CLAIM_MS if timeout_ms is None else timeout_ms + CLAIM_MS // 60
        give_up_at = self._host.now() + WAIT_S
        kept = self._claim(name, holder, claim_ms, give_up_at if deadline is None else min(give_up_at, deadline))
        if kept is not None:
            return kept.encode(), True
        try:
            output = execute()
        except Fenced:
            raise  # whoever has the run now holds the key by the same name
        except BaseException:
            patiently(self._host, lambda: self._ledger.release_key(name, holder=holder))
            raise
        self._keep(name, holder, output, ttl_ms)
        return output, False

    def _claim(self, name: str, holder: str, claim_ms: int, give_up_at: float) -> str | None:
        """Claim a key; return the output if there is one already."""
        pause = FIRST_LOOK_S
        while True:
            claim = patiently(self._host, lambda: self._ledger.claim_key(name, holder=holder, ttl_ms=claim_ms))
            if claim.state != "taken":
                return claim.output
            left = give_up_at - self._host.now()
            if left <= 0:
                raise Failed(Code.TEMPORARY, "a packet with the same idempotency key is still under way elsewhere")
            self._host.sleep(min(pause, left))
            self._host.check()
            pause = min(2 * pause, LAST_LOOK_S)

    def _keep(self, name: str, holder: str, output: bytes, ttl_ms: int) -> None:
        if len(output) > MAX_ENTRY_BYTES:
            raise Failed(Code.PERMANENT, f"the output is {len(output):,} bytes, too large to be kept under a key")
        text = output.decode()
        patiently(self._host, lambda: self._ledger.keep_output(name, holder=holder, output=text, ttl_ms=ttl_ms))
