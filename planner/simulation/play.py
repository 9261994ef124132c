"""One policy, or several, on the nodes of a trace."""

from planner.simulation.engine import Policy, Run
from planner.simulation.lives import Lives
from planner.simulation.optimum import fair_optimum, optimum
from planner.simulation.outcome import Outcome
from planner.simulation.stock import Stock
from planner.simulation.world import Costs, Speed


def play(policy: str, lives: Lives, speed: Speed, costs: Costs) -> Outcome:
    """What a policy of `outcome.POLICIES` makes of a trace. Equal arguments give equal results.

    Raises:
        GaveUp: the controller gave up.
    """
    match policy:
        case "optimum":
            return optimum(lives, speed, costs)
        case "fair":
            return fair_optimum(lives, speed, costs)
        case _:
            return Run(lives, speed, costs).through(_online(policy, lives, speed))


def _online(policy: str, lives: Lives, speed: Speed) -> Policy:
    """A policy that does not know what comes."""
    match policy:
        case "ours" | "divisors":
            return _controlled(policy, speed)
        case "stock":
            return Stock()
        case "fixed":
            return Stock("fixed", max(speed.places(lives.usual), speed.workers.least))
        case _:
            raise ValueError(f"no policy {policy!r}")


def _controlled(policy: str, speed: Speed) -> Policy:
    from planner.simulation.controlled import Controlled  # `planner show` plays others, and does not wait for it

    if policy == "ours":
        return Controlled(speed)
    batch = speed.sizes.global_batch
    counts = [count for count in range(1, batch + 1) if batch % count == 0]
    return Controlled(speed, counts, name=policy)
