"""The handlers. The entry point in pyproject.toml names this module."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from pydantic import Field

from app.nodes import HandlerError, HandlerSettings, Step, handler
from parcels.tariff import read_tariff


class QuoteSettings(HandlerSettings):
    """What a flow may say under ``settings``; anything else is refused when the flow is imported."""

    surcharge_percent: Annotated[int, Field(ge=0, le=100)] = 0


@handler("parcels/quote", settings=QuoteSettings)
def quote(step: Step) -> dict[str, Any]:
    """Add ``price`` to a packet with ``kg`` and ``zone``."""
    zone, kg = step.input.get("zone"), step.input.get("kg")
    rate = read_tariff().get(zone)
    if rate is None:
        raise HandlerError(f"there is no zone {zone!r}", code="VALIDATION")
    if not isinstance(kg, int | float) or not 0 < kg <= 30:
        raise HandlerError("kg must be a number up to 30", code="VALIDATION")
    price = (rate["base"] + rate["perKg"] * kg) * (1 + step.settings.surcharge_percent / 100)
    return {**step.input, "price": round(price, 2)}


class BookSettings(HandlerSettings):
    carriers: Annotated[list[str], Field(min_length=1, max_length=10)]


@handler("parcels/book", settings=BookSettings)
async def book(step: Step) -> dict[str, Any]:
    """Ask all ``carriers`` at once, take the fastest, and add ``booking``."""
    offers = await asyncio.gather(*(_ask(step, name) for name in step.settings.carriers))
    days, carrier = min(offers)
    # The key is the same in every attempt at this packet: who takes it knows a repeated booking.
    return {**step.input, "booking": {"carrier": carrier, "days": days, "reference": step.key}}


async def _ask(step: Step, carrier: str) -> tuple[int, str]:
    """Stand in for a request to a carrier: a longer name takes a day less."""
    await asyncio.sleep(0.01)
    step.log(f"{carrier} has answered")
    return max(1, 10 - len(carrier)), carrier
