"""Planner's controller beside Ray's elastic policy, on synthetic spot markets that were drawn by seed.

    python bench/regimes.py [--cases 500] [--jobs 2]

A market is calm, flaps, or rises and falls. It has one to 32 nodes, which go one by one or in groups, with and without
notice. Steps take 0.1 s to an hour with all nodes. No number was tuned on these markets. Each play has 12 hours.

Where planner's controller does less than 0.97 times the work, 20 more markets of the same kind say whether that is by
chance: `again` has the ratio of the work in all of them, and in how many of them it was below 0.97 too.
"""

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import mean, quantiles

import _results

from planner.plan import BatchSizes, WorkerRange
from planner.simulation.lives import Notice, lives_of
from planner.simulation.outcome import Outcome
from planner.simulation.play import play
from planner.simulation.regimes import make_trace, parse_regime
from planner.simulation.world import Costs, Speed, by_cost

_POLICIES = ("ours", "stock")
_LEAST_WORK = 0.01
"""where stock keeps less than this part of the ideal, a ratio says nothing"""
_LOW = 0.97
_DRAWS = range(1000, 1020)
"""seeds of the further markets of a kind"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A market and a job."""

    regime: str
    costs: dict[str, float]
    node_workers: int
    global_batch: int
    step_s: float
    """with all nodes"""
    notice: tuple[float, float]
    """seconds, and the part of all losses that has it"""
    least: int

    @classmethod
    def drawn(cls, seed: int) -> "Case":
        """The case of a seed."""
        dice = random.Random(seed)
        nodes = dice.choice([1, 2, 3, 5, 8, 12, 16, 24, 32])
        parts = [
            f"nodes={nodes} lifetime={dice.choice(['15m', '30m', '1h', '3h', '8h', '24h', '100h'])}",
            f"group={dice.choice([0, 0, 0.1, 0.3, 0.8])} arrivals={dice.choice(['1m', '3m', '10m', '30m'])} length=12h",
        ]
        if dice.random() < 0.3:
            parts.append(f"ramp={dice.choice(['2h', '6h', '12h'])}:{dice.choice([0, 0.1, 0.25, 0.5])}")
        if dice.random() < 0.4:
            parts.append(f"flap={dice.choice(['2m', '5m', '10m', '20m', '1h'])}:{dice.choice([1, 2, 5])}")
        restart_s = dice.choice([5.0, 20.0, 60.0, 180.0, 600.0])
        costs = {
            "restart_s": restart_s,
            "save_s": dice.choice([1.0, 15.0, 60.0]),
            # Where newcomers start first, a start without them contains that time.
            "lead_s": restart_s * dice.choice([0.0, 0.25, 0.5]),
            "detect_s": dice.choice([1.0, 5.0, 60.0]),
        }
        return cls(
            regime=" ".join(parts),
            costs=costs,
            node_workers=dice.choice([1, 1, 1, 4, 8]),
            global_batch=dice.choice([16, 64, 96, 256, 1000]),
            step_s=dice.choice([0.1, 0.5, 2.0, 5.0, 20.0, 60.0, 600.0, 3600.0]),
            notice=dice.choice([(0.0, 0.0), (0.0, 0.0), (30.0, 1.0), (120.0, 0.5), (120.0, 1.0)]),
            least=dice.choice([1, 1, 1, 2]),
        )

    def played(self, seed: int) -> dict[str, Outcome]:
        """What each policy makes of it."""
        trace = make_trace(parse_regime(self.regime), seed)
        lives = lives_of(trace, Notice(seconds=self.notice[0], share=self.notice[1]), seed)
        sizes, workers = BatchSizes(global_batch=self.global_batch, max_micro=8), min(64, self.global_batch)
        places = max(min(lives.peak * self.node_workers, workers), 1)
        speed = Speed(
            sizes=sizes,
            workers=WorkerRange(least=min(self.least, places), most=workers),
            node_workers=self.node_workers,
            seconds=by_cost(sizes, places, self.step_s),
            peak=lives.peak,
        )
        return {policy: play(policy, lives, speed, Costs(**self.costs)) for policy in _POLICIES}


def _row(seed: int) -> dict[str, object]:
    case = Case.drawn(seed)
    outcomes = case.played(seed)
    kept = {policy: outcome.useful_over_ideal for policy, outcome in outcomes.items()}
    ratio = round(kept["ours"] / kept["stock"], 4) if kept["stock"] >= _LEAST_WORK else None
    parts = {
        policy: {
            "useful_over_ideal": round(outcome.useful_over_ideal, 4),
            "resizes": outcome.resizes,
            "losses": outcome.losses,
            **{
                name: round(getattr(outcome, f"{name}_s") / outcome.total_s, 4) for name in ("paused", "redone", "idle")
            },
        }
        for policy, outcome in outcomes.items()
    }
    return {"seed": seed, "ours_over_stock": ratio, **asdict(case), **parts}


def _again(seed: int) -> dict[str, object]:
    """The case of a seed on further markets of its kind."""
    case = Case.drawn(seed)
    plays = [case.played(draw) for draw in _DRAWS]
    ours, stock = ([play[policy].useful_over_ideal for play in plays] for policy in _POLICIES)
    low = sum(our < _LOW * other for our, other in zip(ours, stock, strict=True))
    return {"draws": len(plays), "ours_over_stock": round(sum(ours) / sum(stock), 4), "below_0.97": low}


def _summary(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    ratios = sorted(float(str(row["ours_over_stock"])) for row in rows if row["ours_over_stock"] is not None)
    return {
        "cases": len(rows),
        "compared": len(ratios),
        "mean": round(mean(ratios), 4),
        "deciles": [round(each, 3) for each in quantiles(ratios, n=10)],
        "below_0.97": sum(ratio < _LOW for ratio in ratios),
        "least": ratios[0],
    }


def main() -> None:
    """Play all cases, and keep the summary and the low ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=None, help="processes at once")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(_row, range(args.first, args.first + args.cases)))
        ratios = {int(str(row["seed"])): float(str(row["ours_over_stock"])) for row in rows if row["ours_over_stock"]}
        low = sorted((seed for seed, ratio in ratios.items() if ratio < _LOW), key=ratios.__getitem__)
        again = dict(zip(low, pool.map(_again, low), strict=True))
    by_seed = {int(str(row["seed"])): row for row in rows}
    _results.write("regimes", [_summary(rows), *({**by_seed[seed], "again": again[seed]} for seed in low)])


if __name__ == "__main__":
    main()
