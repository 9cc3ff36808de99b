"""Whether a worker can quote prices; it says so in its heartbeat. HEALTH_MODULES names this module."""

from __future__ import annotations

from app.health import health_check
from parcels.tariff import read_tariff


@health_check("parcels-tariff", timeout_s=2)
def tariff_is_complete() -> str:
    """A worker whose check raises is unhealthy, and runs go to others of its role."""
    tariff = read_tariff()
    for zone, rate in tariff.items():
        if not {"base", "perKg"} <= rate.keys():
            raise RuntimeError(f"the zone {zone!r} has no price")
    return f"{len(tariff)} zones"
