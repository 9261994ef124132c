"""Dollars of machines, by a price list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.plan.prices import Offer, offers_of, rent


def offer(gpu="H100", gpus=1, on_demand=4.0, spot=None, name="", place=""):
    return Offer(gpu=gpu, gpus=gpus, on_demand=on_demand, spot=spot, name=name, place=place)


def test_whole_machines_are_paid():
    """3 GPUs on a machine of 8 cost as much as 8, unless small machines are cheaper."""
    eight, one = offer(gpus=8, on_demand=16.0, name="eight"), offer(on_demand=4.0, name="one")
    found = [rent([eight, one], gpus, "on demand") for gpus in (3, 4, 5, 9)]
    assert [(way.offer.name, way.machines, way.usd_per_hour) for way in found] == [
        ("one", 3, 12.0),
        ("one", 4, 16.0),
        ("eight", 1, 16.0),
        ("eight", 2, 32.0),
    ]
    assert found[0].usd_per_step(3600.0) == 12.0


def test_only_offers_of_that_market_count():
    """An offer without a spot price is not sold so."""
    assert rent([offer()], 4, "spot") is None
    assert rent([offer(), offer(on_demand=None, spot=1.0)], 4, "spot").usd_per_hour == 4.0


@given(
    prices=st.lists(st.tuples(st.integers(1, 8), st.floats(0, 100)), min_size=1, max_size=6),
    gpus=st.integers(1, 64),
)
def test_more_gpus_never_cost_less(prices, gpus):
    """And no offer is cheaper than the one that was found."""
    offers = [offer(gpus=count, on_demand=usd) for count, usd in prices]
    fewer, more = (rent(offers, count, "on demand").usd_per_hour for count in (gpus, gpus + 1))
    assert fewer <= more
    assert all(fewer <= rent([each], gpus, "on demand").usd_per_hour for each in offers)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("H100", ["H100"]),
        ("h100-80g", ["H100"]),
        ("NVIDIA H100", ["H100"]),
        ("a100-80g", ["A100-80GB"]),
        ("A100 80GB", ["A100-80GB"]),
        ("a100-40g", ["A100"]),
        ("A100", ["A100"]),
        ("H200", []),
    ],
)
def test_a_gpu_is_found_by_its_name(asked, found):
    """In the spelling of a list or of a person."""
    offers = [offer(gpu=gpu) for gpu in ("A100", "A100-80GB", "H100", "L4")]
    assert [each.gpu for each in offers_of(offers, asked)] == found


def test_an_offer_in_words():
    """What is rented, and where."""
    assert offer(gpus=8, name="p5.48xlarge", place="us-east-1").text == "8 x H100 (p5.48xlarge, us-east-1)"
    assert offer().text == "1 x H100"
