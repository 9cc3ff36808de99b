"""(e) What the engine adds to a node: a run of 101 nodes that do nothing less one of a single node, by 100.

No peer: bare Celery has no nodes. The whole executor runs in this process against the real Valkey, so that the share of
claim and finish falls out of the difference, while making the node's two events, sending them in batches and waiting
for the last of them at the end stays in.
"""

from __future__ import annotations

import secrets
from time import perf_counter

from app import wiring
from app.models.run import Run, WorkerRef
from benchmarks.rows import Bound, Row, interleaved
from benchmarks.world import ROLE, World, document, node

NODES = 101


def measure(world: World, *, pairs: int, quick: bool) -> list[Row]:
    times = 10 if quick else 50
    services = world.services
    worker = WorkerRef("bench", "bench@localhost", ROLE)
    executor = wiring.executor(services, worker, leaving=lambda: None)

    def imported(name: str, nodes: int) -> Run:
        raw = document(name, *[node("bench/pass")] * nodes)
        flow = services.catalog.import_document(raw, publish=True).flows[0]
        run = Run(secrets.token_hex(8), name, "only", flow.flow_id, flow.version_id, ROLE, 0, input={"n": 1})
        return run.with_(meta={"session_id": "s"})

    def seconds(template: Run) -> float:
        spent = 0.0
        for _ in range(times):
            run = world.queue_like(template)
            start = perf_counter()
            word = executor.execute(run.run_id, secrets.token_hex(16))
            spent += perf_counter() - start
            if word != "completed":
                raise RuntimeError(f"run {run.run_id}: {word}")
        return spent / times

    short, long = imported("engine-short", 1), imported("engine-long", NODES)
    seconds(short), seconds(long)  # compiles the plans
    many, one = interleaved(pairs, lambda: seconds(long), lambda: seconds(short))
    per_node = [(a - b) / (NODES - 1) * 1e6 for a, b in zip(many, one, strict=True)]
    return [
        Row("engine per node, events on", "us", per_node, bound=Bound("<=", 100)),
        Row("claim to finish of a run of one node, in process", "us", [value * 1e6 for value in one]),
    ]
