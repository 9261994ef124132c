"""The on-demand floor of a job as text (`workers.min_on`)."""

from collections.abc import Sequence

from planner.base.text import counted
from planner.job import Workers
from planner.plan.prices import Offer, rent


def floor_text(workers: Workers) -> str:
    """One line: what is left when all spot nodes are lost. Empty without a floor."""
    if not workers.floor:
        return ""
    return (
        f"workers.min: {counted(workers.floor, 'worker')} on on-demand nodes (workers.min_on): losing all spot nodes "
        "leaves these"
    )


def floor_price(workers: Workers, most: int, offers: Sequence[Offer]) -> str:
    """One line: dollars per hour of the floor, and of spot for the others of `most` workers.

    Without spot prices, dollars of the floor alone. Empty without a floor, or without prices on demand.
    """
    if not workers.floor:
        return ""
    rest = most - workers.floor
    lasting, spot = rent(offers, workers.floor, "on demand"), rent(offers, max(rest, 1), "spot")
    if lasting is None:
        return ""
    others = f", and {spot.usd_per_hour:,.4g} $ spot for {rest} more" if spot and rest > 0 else ""
    return f"workers.min: {lasting.usd_per_hour:,.4g} $ per hour on demand for {workers.floor}{others}"
