"""What a parcel costs: a table that ships with the package."""

from __future__ import annotations

import json
from importlib.resources import files

Tariff = dict[str, dict[str, float]]


def read_tariff() -> Tariff:
    """Return base price and price per kilogram, by zone."""
    tariff: Tariff = json.loads(files("parcels").joinpath("tariff.json").read_bytes())
    return tariff
