"""Useful work on traces of spot capacity: planner's controller, Ray's elastic policy, fixed sizes and offline optima.

    python bench/spot.py SCORER TRACES [--seeds 5] [--only ours,stock] [--name NAME]

An outside scorer (a Python file) replays each trace for every policy. Its optima know all times in advance. `--name`
keeps rows of `ours` under another name: run it with the PYTHONPATH of an older checkout to compare two versions. Rows
of other policies stay in bench/results/spot.json.
"""

import argparse
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import _results
from _scorer import Controlled, load

SETTINGS: dict[str, dict[str, float]] = {
    "A": {"restart": 60, "save": 15, "p": 0},
    "B": {"restart": 60, "save": 15, "p": 1, "notice": 120},
    "C": {"restart": 30, "full": 19.5, "p": 0.5, "notice": 30},
    "D": {"restart": 5},
}
"""A: a restart takes 60 s and a commit 15 s, without notices. B: with notices of 120 s. C: steps of 20 s, notices of
30 s for half of the losses. D: a restart takes 5 s"""
_MOST_HOURS = 48.0


def main() -> None:
    """Measure, and merge the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scorer", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="ours,stock,fixed,divisors,optimum,fair")
    parser.add_argument("--name", default="ours")
    args = parser.parse_args()
    traces = sorted(path for path in args.traces.glob("*.csv") if _is_trace(path))
    tasks = list(itertools.product(traces, SETTINGS, args.only.split(",")))
    with ProcessPoolExecutor() as pool:
        rows = list(pool.map(partial(_row, args.scorer, args.seeds, args.name), *zip(*tasks, strict=True)))
    new = {_key(row) for row in rows}
    rows += [row for row in _results.kept("spot") if _key(row) not in new]
    _results.write("spot", sorted(rows, key=_key))


def _is_trace(path: Path) -> bool:
    return not path.name.endswith(".events.csv") and path.open().readline().startswith("time_s,available_nodes")


def _key(row: dict[str, object]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in ("trace", "setting", "policy"))


def _row(scorer: Path, seeds: int, name: str, trace: Path, setting: str, policy: str) -> dict[str, object]:
    """One policy on one trace: the mean over the seeds, which draw the nodes that are lost and those with notice."""
    module = load(scorer)
    values = []
    for seed in range(1, seeds + 1):
        costs = module.Setting(seed=seed, **SETTINGS[setting])
        world = module.World(trace, costs, _MOST_HOURS)
        values.append(_POLICIES[policy](module, world, costs) / module.ideal(world, module.Speed(costs, world.peak)))
    return {
        "trace": trace.stem,
        "setting": setting,
        "policy": name if policy == "ours" else policy,
        "useful_over_ideal": round(mean(values), 4),
        "range": [round(min(values), 4), round(max(values), 4)],
        "seeds": seeds,
    }


def _played(module: Any, world: Any, costs: Any, make: Callable[[Any, Any, Any], Any]) -> float:
    return float(module.Sim(world, costs, make(module, world, costs)).run().done)


def _ours(_module: Any, _world: Any, _costs: Any) -> Controlled:
    return Controlled()


def _stock(module: Any, _world: Any, _costs: Any) -> Any:
    return module.Stock()


def _fixed(module: Any, world: Any, _costs: Any) -> Any:
    """The most nodes that are there for at least half of all changes."""
    return module.Fixed(max(1, int(median(count for _, count in world.counts))))


def _divisors(module: Any, _world: Any, costs: Any) -> Controlled:
    return Controlled(rooms=module.divisors(costs), name="divisors")


def _optimum(module: Any, world: Any, costs: Any) -> float:
    """All times and all victims are known."""
    return float(module.optimum(world, costs)[0])


def _fair(module: Any, world: Any, costs: Any) -> float:
    """All times are known, and no victim."""
    return float(module.fair_optimum(world, costs))


_POLICIES: dict[str, Callable[[Any, Any, Any], float]] = {
    "ours": partial(_played, make=_ours),
    "stock": partial(_played, make=_stock),
    "fixed": partial(_played, make=_fixed),
    "divisors": partial(_played, make=_divisors),
    "optimum": _optimum,
    "fair": _fair,
}


if __name__ == "__main__":
    main()
