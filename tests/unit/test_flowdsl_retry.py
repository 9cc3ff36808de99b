"""Retry policies in both spellings."""

from __future__ import annotations

import pytest

from app.flowdsl.retry import RetryPolicy, parse_duration, read_policy


def test_both_spellings_mean_the_same() -> None:
    with_ms = {"maxAttempts": 5, "initialDelayMs": 3_000, "maxDelayMs": 60_000, "backoff": "linear"}
    with_iso = {"maxAttempts": 5, "initialDelay": "PT3S", "maxDelay": "PT1M", "backoff": "linear"}
    assert read_policy(with_ms, "/p") == read_policy(with_iso, "/p")
    assert read_policy(with_ms, "/p") == (RetryPolicy(5, 3_000, "linear", 60_000), [])


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT3S", 3_000), ("PT0.25S", 250), ("PT1M30S", 90_000), ("PT1H", 3_600_000), ("P1DT1S", 86_401_000),
     ("P", None), ("PT", None), ("3s", None), ("PT3", None), ("", None), (3, None), (None, None)],
)  # fmt: skip
def test_durations_are_iso_8601(text: object, ms: int | None) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    ("backoff", "delays"), [("fixed", [100, 100, 100, 100]), ("linear", [100, 200, 300, 350]),
                            ("exponential", [100, 200, 350, 350])],
)  # fmt: skip
def test_pauses_grow_as_the_backoff_says_up_to_the_longest(backoff: str, delays: list[int]) -> None:
    policy = RetryPolicy(9, 100, backoff, 350)
    assert [policy.delay_ms(tries, 0.9) for tries in (1, 2, 3, 4)] == delays
    assert policy.delay_ms(10_000, 0.0) <= 350


def test_jitter_varies_a_pause_by_a_fifth() -> None:
    policy = RetryPolicy(initial_delay_ms=1_000, jitter=True)
    assert [policy.delay_ms(1, random) for random in (0.0, 0.5, 1.0)] == [800, 1_000, 1_200]


def test_retry_on_names_what_is_retried_and_some_codes_never_are() -> None:
    policy, _ = read_policy({"maxAttempts": 3, "retryOn": ["TIMEOUT", "PERMANENT"]}, "/p")
    assert policy.allows("TIMEOUT", 1)
    assert policy.allows("TIMEOUT", 2)
    assert not policy.allows("TIMEOUT", 3)
    assert not policy.allows("TEMPORARY", 1)
    assert not policy.allows("PERMANENT", 1)
    assert RetryPolicy().allows("ERROR", 1)
    assert not RetryPolicy().allows("VALIDATION", 1)


def test_what_is_wrong_in_a_policy_is_named_and_replaced() -> None:
    wrong = {
        "maxAttempts": "5", "initialDelay": "soon", "maxDelayMs": -1, "backoff": "cubic", "retryOn": "TIMEOUT",
    }  # fmt: skip
    policy, warnings = read_policy(wrong, "/p")
    assert policy == RetryPolicy()
    assert {warning.at for warning in warnings} == {f"/p/{name}" for name in wrong}
