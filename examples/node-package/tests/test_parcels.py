"""No server, no worker, no waiting: handlers are functions."""

from __future__ import annotations

import pytest
from parcels import health
from parcels.nodes import book, quote

from app.errors import BadRequest
from app.health import find_checks
from app.nodes import HandlerError
from app.nodes.testing import try_handler


def test_a_parcel_costs_its_base_price_and_its_weight() -> None:
    tried = try_handler(quote, {"zone": "home", "kg": 2.5}, settings={"surchargePercent": 10})
    assert tried.output == {"zone": "home", "kg": 2.5, "price": 7.15}


@pytest.mark.parametrize("packet", [{"zone": "moon", "kg": 1}, {"zone": "home", "kg": 31}, {"zone": "home"}])
def test_a_parcel_that_nobody_takes_is_a_fault_of_the_packet(packet: dict[str, object]) -> None:
    with pytest.raises(HandlerError) as caught:
        try_handler(quote, packet)
    assert caught.value.code == "VALIDATION"


def test_a_wrong_setting_is_refused_by_its_name() -> None:
    with pytest.raises(BadRequest, match="/settings/surchargePercent: must be at most 100"):
        try_handler(quote, {}, settings={"surchargePercent": 101})


def test_all_carriers_are_asked_and_the_fastest_is_booked() -> None:
    tried = try_handler(book, {"kg": 1}, settings={"carriers": ["bike", "courier"]})
    assert tried.output["booking"] == {"carrier": "courier", "days": 3, "reference": "run:node"}
    assert sorted((event.data or {})["message"] for event in tried.events) == [
        "bike has answered",
        "courier has answered",
    ]


def test_the_health_check_looks_at_the_tariff() -> None:
    [check] = find_checks(health)
    assert (check.name, check.probe()) == ("parcels-tariff", "2 zones")
