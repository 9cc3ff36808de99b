"""What the soak runs: five flows, and the deployments that pin them to three roles."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from tests.integration.flows import node

ROLES: Final = ("alpha", "beta", "gamma")
LONGEST_RUN_S: Final = 10.0

RETRY: Final = {"maxAttempts": 20, "initialDelayMs": 300, "backoff": "exponential", "maxDelayMs": 1500}
"""Counting needs MongoDB; this outlasts the time for which any fault takes it away."""

Input = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """A flow and what must hold for each of its runs.

    ``half``: nodes whose work is durable once one of ``rest`` has started, a checkpoint lying between them.
    ``counters``: names of the counters that a run has; a completed run has counted each exactly once.
    ``fails_with``: the code with which its runs fail; ``None``: they complete.
    """

    name: str
    nodes: dict[str, dict[str, Any]]
    share: int
    make_input: Callable[[random.Random], Input]
    half: frozenset[str] = frozenset()
    rest: frozenset[str] = frozenset()
    counters: tuple[str, ...] = ()
    fails_with: str | None = None

    def document(self) -> dict[str, Any]:
        names = list(self.nodes)
        edges = [{"from": a, "to": b, "delivery": self._delivery(a, b)} for a, b in pairwise(names)]
        defaults = {"retryPolicy": RETRY}
        flow = {"entrypoints": [names[0]], "defaults": defaults, "nodes": self.nodes, "edges": edges}
        return {"flowdsl": "1.0.0", "info": {"title": self.name, "version": "1"}, "flows": {self.name: flow}}

    def _delivery(self, source: str, target: str) -> dict[str, str]:
        crossing = source in self.half and target in self.rest
        return {"mode": "checkpoint", "store": "mongo"} if crossing else {"mode": "direct"}


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    name: str
    flow: FlowSpec
    variants: tuple[tuple[str, int, tuple[str, ...]], ...]
    """Label, weight, target roles."""

    def body(self) -> dict[str, Any]:
        return {
            "variants": [
                {"label": label, "flowId": self.flow.name, "weight": weight, "targetRoles": list(roles)}
                for label, weight, roles in self.variants
            ]
        }


def counter_key(request: str, name: str) -> str:
    """Return the key under which ``core/count`` counts for one request."""
    return f"soak:{request}:{name}"


def _count(name: str) -> dict[str, Any]:
    return node("core/count", key=counter_key("{{ request }}", name))


def _nothing(_: random.Random) -> Input:
    return {}


def _a_moment(rng: random.Random) -> Input:
    return {"seconds": round(rng.uniform(0.2, 2.0), 2)}


def _a_while(rng: random.Random) -> Input:
    return {"seconds": round(rng.uniform(1.2, LONGEST_RUN_S / 4), 2)}


def _a_list(rng: random.Random) -> Input:
    return {"items": [{"name": f"n{number}"} for number in range(rng.randint(1, 12))]}


_WAIT = node("core/delay", seconds="{{ seconds }}")
_WITNESS = node("soak/witness")

SHORT = FlowSpec(
    "soak-short",
    {"once": _count("once"), "say": node("core/log", message="done")},
    share=50,
    make_input=_nothing,
    counters=("once",),
)
HALFWAY = FlowSpec(
    "soak-halfway",
    {"first": _WITNESS, "before": _count("before"), "wait": _WAIT, "second": _WITNESS, "after": _count("after")},
    share=22,
    make_input=_a_moment,
    half=frozenset({"first", "before"}),
    rest=frozenset({"wait", "second", "after"}),
    counters=("before", "after"),
)
MAPPED = FlowSpec(
    "soak-mapped",
    {"each": node("core/map", items="items", handler="core/template-render", settings={"template": "Hello {{ name }}"},
                  concurrency=4)},
    share=12,
    make_input=_a_list,
)  # fmt: skip
LONG = FlowSpec(
    "soak-long",
    {"w1": _WAIT, "first": _WITNESS, "before": _count("before"), "w2": _WAIT, "w3": _WAIT, "second": _WITNESS,
     "after": _count("after"), "w4": _WAIT},
    share=6,
    make_input=_a_while,
    half=frozenset({"w1", "first", "before"}),
    rest=frozenset({"w2", "w3", "second", "after", "w4"}),
    counters=("before", "after"),
)  # fmt: skip
FAILING = FlowSpec(
    "soak-failing",
    {"pass": node("core/log", message="not yet"), "fail": node("core/fail", message="as it should")},
    share=10,
    make_input=_nothing,
    fails_with="PERMANENT",
)

DEPLOYMENTS: Final = (
    DeploymentSpec("sticky", SHORT, (("stable", 80, ("alpha",)), ("canary", 20, ("beta",)))),
    DeploymentSpec("anywhere", SHORT, (("only", 1, ()),)),
    DeploymentSpec("halfway", HALFWAY, (("only", 1, ("alpha", "beta", "gamma")),)),
    DeploymentSpec("mapped", MAPPED, (("only", 1, ("beta",)),)),
    DeploymentSpec("long", LONG, (("one", 1, ("gamma", "alpha")), ("two", 1, ("beta", "gamma")))),
    DeploymentSpec("failing", FAILING, (("only", 1, ("gamma",)),)),
)
BY_NAME: Final = {deployment.name: deployment for deployment in DEPLOYMENTS}
FLOWS: Final = (SHORT, HALFWAY, MAPPED, LONG, FAILING)
