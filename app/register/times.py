"""The times by which a register tells who is alive, and a pause from a death. Both adapters go by these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """All in milliseconds of the server's clock."""

    interval_ms: int
    """Between two heartbeats of a process. A beat that arrives further than this from the time at which its sender
    expects it to arrive was stuck on the way, and says nothing of now."""
    ttl_ms: int
    """An instance not heard of for this long is gone."""
    lease_ttl_ms: int
    """For this long after a gap no lease is broken: each had as much time to be renewed as it ever has."""

    @property
    def silence_ms(self) -> int:
        """Nobody heard of for longer than this, while instances are registered, is a gap."""
        return self.ttl_ms // 2

    @property
    def unknown_ms(self) -> int:
        """After a gap every living process has been heard of again within this time."""
        return self.interval_ms + 1000
