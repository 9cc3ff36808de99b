"""(d) One resolve of a deployment with 2 and with 20 variants, in process, with its explanation.

No peer: bare Celery picks nothing. What is timed is what every start does: a view of the register's snapshot, then the
resolver. Each variant has a role of its own; workers of all of them are alive and have 20 handlers, of which a version
needs three. Sessions are sticky, which costs more than a draw. The clock is the thread's CPU time: nothing here waits.
"""

from __future__ import annotations

import random
from time import thread_time

from app.models.deployment import Deployment, DeploymentIn
from app.models.role import Capability, RegisterSnapshot, RoleSummary
from app.resolver import VersionRef, resolve
from app.roles import RoleTable
from benchmarks.rows import Bound, Row, interleaved
from benchmarks.world import World

HANDLERS = frozenset(f"acme/handler{number}" for number in range(20))
NEEDS = (("acme/handler1",), ("acme/handler2", "other"), ("acme/handler3",))


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    times = 500 if quick else 5_000
    # More passes than pairs: each takes a fraction of a second.
    two, twenty = interleaved(2 * pairs, lambda: _microseconds(2, times), lambda: _microseconds(20, times // 5))
    return [
        Row("resolve, 2 variants", "us", two, bound=Bound("<=", 20)),
        Row("resolve, 20 variants", "us", twenty, bound=Bound("<=", 80)),
    ]


def _microseconds(variants: int, times: int) -> float:
    wanted = DeploymentIn.model_validate(
        {
            "variants": [
                {"label": f"v{n}", "flowId": f"flow{n}", "weight": n + 1, "targetRoles": [f"role{n}"]}
                for n in range(variants)
            ]
        }
    )
    deployment = Deployment.create("bench", wanted, rev=1, created_at="", updated_at="")
    versions = {f"v{n}": VersionRef(f"flow{n}", "1", NEEDS) for n in range(variants)}
    capability = Capability(True, True, False, HANDLERS)
    roles = {f"role{n}": RoleSummary({capability: 3}, {capability: 6}) for n in range(variants)}
    snapshot, rng = RegisterSnapshot(True, roles), random.Random(1)
    metas = [{"session_id": f"session-{number}"} for number in range(times)]
    start = thread_time()
    for meta in metas:
        resolve(deployment, versions, meta, rng, RoleTable(snapshot, lambda _: {}), None, "admin-api", 500)
    return (thread_time() - start) / times * 1e6
