"""The fleet and its queues in the text format of Prometheus. Everything comes from the pruned register, so that the
dead leave the metrics with their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from admin import fleet
from app.errors import RegisterUnknown, ServerUnavailable
from app.wiring import Services

Sample = tuple[Mapping[str, str], float]


def exposition(services: Services) -> str:
    """Return the metrics; while the register is unknown only that."""
    try:
        rows, found = fleet.roles(services), fleet.instances(services)
    except (RegisterUnknown, ServerUnavailable):
        return _family("register_known", "Whether the register can say who is alive.", [({}, 0)])
    by_role = {row.role: row for row in rows}
    waited = [({"role": name}, row.oldest_queued_s or 0) for name, row in by_role.items()]
    workers = [
        ({"role": role, "state": state.value}, count) for (role, state), count in fleet.count_states(found).items()
    ]
    return "".join(
        (
            _family("register_known", "Whether the register can say who is alive.", [({}, 1)]),
            _family("workers", "Living instances by role and state.", workers),
            _family("role_healthy", "Whether a healthy instance answers for the role.",
                    [({"role": name}, row.healthy) for name, row in by_role.items()]),
            _family("role_slots", "Runs that the role's instances can execute at a time.",
                    [({"role": name}, row.slots) for name, row in by_role.items()]),
            _family("role_running", "Runs of the role under way.",
                    [({"role": name}, row.running) for name, row in by_role.items()]),
            _family("role_queued", "Runs that wait for the role.",
                    [({"role": name}, row.queued) for name, row in by_role.items()]),
            _family("role_oldest_queued_seconds", "How long the role's first run has been waiting.", waited),
        )
    )  # fmt: skip


def _family(name: str, text: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP rolecall_{name} {text}", f"# TYPE rolecall_{name} gauge"]
    lines += [f"rolecall_{name}{_labels(labels)} {float(value):g}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    # Roles and states hold no character that would need an escape.
    inner = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{{{inner}}}" if inner else ""
