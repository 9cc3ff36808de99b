"""The pick: shares, stability, and nobody's session moving without a reason. Laws by Hypothesis, and a fixed corpus."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.models.deployment import Variant
from app.resolver import draw, minus_ln, pick_sticky
from tests.unit.resolving import deployment, resolve_for, variant

KEYS = [f"session-{number}" for number in range(10_000)]
SPREADS = [(1, 1), (1, 9), (50, 30, 20), (1, 2, 3, 4), (1_000_000, 1), tuple(range(1, 21)), (7,) * 20]

labels = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs")), min_size=1, max_size=8)
weighted = st.dictionaries(labels, st.integers(1, 1_000_000), min_size=2, max_size=8).map(
    lambda weights: [variant(label, weight) for label, weight in weights.items()]
)
sessions = st.text(max_size=20)

quick = settings(max_examples=150, deadline=None)


def sticky(variants: list[Variant], keys: list[str] = KEYS, dep: str = "checkout") -> list[str]:
    return [pick_sticky(dep, key, variants).label for key in keys]


def within(count: int, n: int, share: float) -> bool:
    """Whether a count of ``n`` trials is within 5 standard deviations of its share."""
    return abs(count - n * share) <= 5 * math.sqrt(n * share * (1 - share)) + 1


# --- shares ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", SPREADS, ids=lambda weights: "-".join(map(str, weights[:4])))
def test_sticky_shares_are_those_of_the_weights(weights: tuple[int, ...]) -> None:
    counts = Counter(sticky([variant(f"v{number}", weight) for number, weight in enumerate(weights)]))
    for number, weight in enumerate(weights):
        assert within(counts[f"v{number}"], len(KEYS), weight / sum(weights))


@pytest.mark.parametrize("weights", SPREADS, ids=lambda weights: "-".join(map(str, weights[:4])))
def test_drawn_shares_are_those_of_the_weights(weights: tuple[int, ...]) -> None:
    variants = [variant(f"v{number}", weight) for number, weight in enumerate(weights)]
    rng, total = random.Random(20261130), sum(weights)
    counts = Counter(draw(variants, total, rng).label for _ in range(len(KEYS)))
    for number, weight in enumerate(weights):
        assert within(counts[f"v{number}"], len(KEYS), weight / total)


def test_two_deployments_are_uncorrelated() -> None:
    variants = [variant("a", 6), variant("b", 3), variant("c", 1)]
    pairs = list(zip(sticky(variants), sticky(variants, dep="search"), strict=True))
    expected = sum((each.weight / 10) ** 2 for each in variants)
    assert within(sum(first == second for first, second in pairs), len(KEYS), expected)
    counts = Counter(pairs)
    for first, second in itertools.product(variants, variants):
        assert within(counts[first.label, second.label], len(KEYS), first.weight * second.weight / 100)


def test_deployment_value_and_label_are_told_apart_wherever_they_meet() -> None:
    variants = [variant(f"v{number}") for number in range(100)]
    picks = {pick_sticky(dep, value, variants).label for dep, value in (("a", "bc"), ("ab", "c"), ("abc", ""))}
    assert len(picks) > 1


# --- the same everywhere -----------------------------------------------------------------------------------------

CORPUS_VARIANTS = [variant("stable", 60), variant("canary", 30), variant("grün", 9), variant("青", 1)]
CORPUS = ["", "0", "42", "-7", "session-1", "session-2", "a" * 200, "é", "🙂", "x\ny", "S", "s", "\ud800", "user@host"]
CORPUS_PICKS = "stable stable stable stable grün canary stable stable stable canary canary stable stable stable"
MANY = [variant(f"v{number}", 1 + number * number) for number in range(20)]
MANY_PICKS = "96913c58a8f298fa0ab403c7d1cafe3f18d3f864fb037daf8521793f4bb8eafc"
LOGARITHMS = {0.1: "0x1.26bb1bba16c31p+1", 0.75: "0x1.269620b316b84p-2", 2.0**-53: "0x1.25e4f7b2737fap+5"}


def test_the_picks_of_a_fixed_corpus_never_change() -> None:
    # A change of any of these moves sessions of everybody who upgrades.
    assert " ".join(sticky(CORPUS_VARIANTS, CORPUS)) == CORPUS_PICKS
    assert sha256(" ".join(sticky(MANY)).encode()).hexdigest() == MANY_PICKS


def test_the_logarithm_is_the_same_to_the_last_bit_on_every_machine() -> None:
    assert {u: minus_ln(u).hex() for u in LOGARITHMS} == LOGARITHMS


def test_two_processes_with_different_hash_seeds_pick_the_same(repository: Path) -> None:
    program = (
        "import json; from tests.unit.test_resolver_shares import *; "
        "print(json.dumps(sticky(CORPUS_VARIANTS, CORPUS + KEYS[:300])))"
    )
    answers = []
    for seed in ("1", "2"):
        environ = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, cwd=repository, capture_output=True, check=True, timeout=60
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1] == sticky(CORPUS_VARIANTS, CORPUS + KEYS[:300])


@quick
@given(weighted, sessions, st.randoms(use_true_random=False))
def test_the_order_of_variants_does_not_matter(variants: list[Variant], key: str, rng: random.Random) -> None:
    shuffled = list(variants)
    rng.shuffle(shuffled)
    assert pick_sticky("d", key, variants) == pick_sticky("d", key, shuffled)


def test_the_logarithm_is_one() -> None:
    rng = random.Random(3)
    points = [0.5 * 2.0**-52, 2.0**-30, 0.5, math.sqrt(0.5), math.nextafter(math.sqrt(0.5), 0), 1 - 0.5 * 2.0**-52]
    for u in [*points, *(rng.random() or 0.5 for _ in range(20_000))]:
        assert minus_ln(u) == pytest.approx(-math.log(u), rel=1e-7)
        assert minus_ln(u) > 0


# --- who moves ---------------------------------------------------------------------------------------------------


@quick
@given(weighted, st.data(), sessions)
def test_a_variant_that_drops_out_moves_only_its_own_sessions_and_gets_them_back(
    variants: list[Variant], data: st.DataObject, key: str
) -> None:
    gone = data.draw(st.sampled_from(variants))
    before = pick_sticky("d", key, variants)
    without = pick_sticky("d", key, [each for each in variants if each is not gone])
    assert without == before or before == gone
    assert without != gone
    assert pick_sticky("d", key, [*(each for each in variants if each is not gone), gone]) == before


def test_over_many_sessions_a_variant_that_drops_out_moves_exactly_its_own() -> None:
    variants = [variant("a", 5), variant("b", 3), variant("c", 2)]
    before, without = sticky(variants), sticky(variants[:2])
    moved = [key for key, old, new in zip(KEYS, before, without, strict=True) if old != new]
    assert moved == [key for key, old in zip(KEYS, before, strict=True) if old == "c"]
    assert moved
    assert sticky(variants) == before


@quick
@given(weighted, st.data(), st.integers(1, 1_000_000), sessions)
def test_a_changed_weight_moves_sessions_only_to_or_from_that_variant(
    variants: list[Variant], data: st.DataObject, weight: int, key: str
) -> None:
    index = data.draw(st.integers(0, len(variants) - 1))
    old = variants[index]
    new = variant(old.label, weight)
    before = pick_sticky("d", key, variants).label
    after = pick_sticky("d", key, [*variants[:index], new, *variants[index + 1 :]]).label
    if after != before:
        assert old.label == (after if weight > old.weight else before)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (5, 50), (50, 5), (10, 11), (1, 1_000_000)])
def test_a_changed_weight_moves_no_more_than_the_change_of_share(before: int, after: int) -> None:
    others = [variant("a", 7), variant("b", 3)]
    moved = sum(
        old != new
        for old, new in zip(
            sticky([*others, variant("c", before)]), sticky([*others, variant("c", after)]), strict=True
        )
    )
    assert within(moved, len(KEYS), abs(after / (10 + after) - before / (10 + before)))


def test_weights_in_proportion_move_nobody() -> None:
    assert sticky([variant("a", 1), variant("b", 3)]) == sticky([variant("a", 1000), variant("b", 3000)])


# --- weight 0 ----------------------------------------------------------------------------------------------------


@quick
@given(
    st.permutations([0, 0, 1, 5]),
    st.one_of(st.none(), sessions),
    st.floats(0, 1, exclude_max=True),
)
def test_weight_zero_is_never_picked_in_any_position(weights: list[int], session: str | None, point: float) -> None:
    class Fixed:
        def random(self) -> float:
            return point

    dep = deployment(*(variant(f"v{number}", weight, "r") for number, weight in enumerate(weights)))
    result = resolve_for(dep, session, rng=Fixed())
    assert result.variant.weight > 0


@quick
@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=100))
def test_the_last_point_of_a_draw_is_still_of_a_variant(weights: list[int]) -> None:
    class Last:
        def random(self) -> float:
            return math.nextafter(1.0, 0.0)

    variants = [variant(f"v{number}", weight) for number, weight in enumerate(weights)]
    assert draw(variants, sum(weights), Last()) in variants
