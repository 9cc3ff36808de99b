"""Retry policies, in both spellings of FlowDSL, and the pauses that follow from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import Fault

NEVER_RETRIED: Final = frozenset({"VALIDATION", "PERMANENT", "outcome_unknown"})
"""Codes of faults that a repetition cannot cure, whatever a policy says."""

BACKOFFS: Final = ("fixed", "linear", "exponential")
MAX_ATTEMPTS: Final = 100
MAX_DELAY_MS: Final = 24 * 3_600_000
JITTER: Final = 0.2

_DURATION = re.compile(r"P(?:(\d{1,4})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed node is tried, and how long to wait in between."""

    max_attempts: int = 3
    """Tries in all, the first included."""
    initial_delay_ms: int = 1_000
    backoff: str = "exponential"
    max_delay_ms: int = 60_000
    jitter: bool = False
    """Vary each pause by up to a fifth, so that many failures at once do not come back at once."""
    retry_on: frozenset[str] | None = None
    """Codes that are retried; ``None``: all but those that never are."""

    def allows(self, code: str, tries: int) -> bool:
        """Return whether a node that has failed with ``code`` at its try number ``tries`` may be tried again."""
        if tries >= self.max_attempts or code in NEVER_RETRIED:
            return False
        return self.retry_on is None or code in self.retry_on

    def delay_ms(self, tries: int, random: float) -> int:
        """Return the pause after try number ``tries`` (from 1); ``random`` is from [0, 1)."""
        factor = {"fixed": 1, "linear": tries, "exponential": 2 ** min(tries - 1, 40)}[self.backoff]
        delay = float(min(self.initial_delay_ms * factor, self.max_delay_ms))
        if self.jitter:
            delay *= 1 + JITTER * (2 * random - 1)
        return round(delay)


def read_policy(value: Mapping[str, Any], at: str) -> tuple[RetryPolicy, list[Fault]]:
    """Read a ``retryPolicy``; what is wrong in it is replaced by its default and named in the warnings."""
    default, warnings = RetryPolicy(), list[Fault]()

    def whole(name: str, least: int, most: int, otherwise: int) -> int:
        given = value.get(name, otherwise)
        if isinstance(given, int) and not isinstance(given, bool) and least <= given <= most:
            return given
        warnings.append(
            Fault.warning(f"{at}/{name}", f"must be a whole number from {least} to {most:,}; {otherwise} is used")
        )
        return otherwise

    def delay(name: str, otherwise: int) -> int:
        if name not in value or f"{name}Ms" in value:
            return whole(f"{name}Ms", 0, MAX_DELAY_MS, otherwise)
        given = parse_duration(value[name])
        if given is not None and given <= MAX_DELAY_MS:
            return given
        warnings.append(
            Fault.warning(f"{at}/{name}", f"must be a duration like PT3S, at most a day; {otherwise} ms is used")
        )
        return otherwise

    backoff = value.get("backoff", default.backoff)
    if backoff not in BACKOFFS:
        warnings.append(
            Fault.warning(f"{at}/backoff", f"must be one of {', '.join(BACKOFFS)}; {default.backoff} is used")
        )
        backoff = default.backoff
    retry_on = value.get("retryOn")
    if retry_on is not None and not (isinstance(retry_on, list) and all(isinstance(code, str) for code in retry_on)):
        warnings.append(
            Fault.warning(f"{at}/retryOn", "must be a list of error codes, like [TIMEOUT]; all are retried")
        )
        retry_on = None
    initial = delay("initialDelay", default.initial_delay_ms)
    policy = RetryPolicy(
        max_attempts=whole("maxAttempts", 1, MAX_ATTEMPTS, default.max_attempts),
        initial_delay_ms=initial,
        backoff=backoff,
        max_delay_ms=delay("maxDelay", max(default.max_delay_ms, initial)),
        jitter=value.get("jitter") is True,
        retry_on=None if retry_on is None else frozenset(retry_on),
    )
    return policy, warnings


def parse_duration(text: Any) -> int | None:
    """Return an ISO 8601 duration of days, hours, minutes and seconds in milliseconds; ``None`` if it is none."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
