"""Seconds and dollars of plans, as columns and lines of `planner plan` and as keys of JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from planner.base.text import duration
from planner.plan import Plan
from planner.plan.prices import Market, Rent
from planner.plan.surplus import advice
from planner.report.plan_table import Column
from planner.report.text_columns import spans
from planner.runner.plan_rates import MARKETS, PlanCost, PlanRates

_MILLION = 1e6
# Machines that are rented have so many GPUs at most, but for a few.
_MOST_ON_A_NODE = 8

Costs = Mapping[int, PlanCost]
"""world size -> what its plan costs"""


def plan_costs(found: PlanRates, plans: Sequence[Plan]) -> Costs:
    """What each plan costs."""
    return {plan.world_size: found.cost(plan) for plan in plans}


def cost_columns(found: PlanRates, costs: Costs) -> list[Column]:
    """The columns of seconds and, with prices, of dollars. `~` marks what was not measured at that size."""
    has_tokens = found.sample_tokens is not None
    rate = "tokens/s" if has_tokens else "samples/s"
    columns = [
        Column(title="s/step", cells={size: _step_cell(cost) for size, cost in costs.items()}),
        Column(title=rate, cells={size: _rate_cell(cost) for size, cost in costs.items()}),
    ]
    if found.offers:
        columns.append(_dollars("$/step", costs, {size: cost.step_s for size, cost in costs.items()}))
        if has_tokens:
            columns.append(_dollars("$/M tokens", costs, {size: _million_s(cost) for size, cost in costs.items()}))
        if found.total_steps:
            columns.append(_dollars("$/run", costs, {size: cost.run_s for size, cost in costs.items()}))
    return columns


def _step_cell(cost: PlanCost) -> str:
    return ("" if cost.origin == "measured" else "~") + f"{cost.step_s:.3g}"


def _rate_cell(cost: PlanCost) -> str:
    rate = cost.samples_per_s if cost.tokens_per_s is None else cost.tokens_per_s
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _million_s(cost: PlanCost) -> float | None:
    """Seconds for a million tokens."""
    return _MILLION / cost.tokens_per_s if cost.tokens_per_s else None


def _dollars(title: str, costs: Costs, seconds: Mapping[int, float | None]) -> Column:
    """A column of dollars: on demand, and spot in brackets."""
    markets = [market for market in MARKETS if any(market in cost.rents for cost in costs.values())]
    cells = {}
    for size, cost in costs.items():
        texts = [_usd_text(cost.rents.get(market), seconds[size]) for market in markets]
        cells[size] = texts[0] if len(texts) == 1 else f"{texts[0]} ({texts[1]})"
    shown = f"{title} (spot)" if len(markets) == 2 else f"{title} {markets[0]}" if markets == ["spot"] else title
    return Column(title=shown, cells=cells)


def _usd(way: Rent | None, seconds: float | None) -> float | None:
    return None if way is None or seconds is None else way.usd_per_step(seconds)


def _usd_text(way: Rent | None, seconds: float | None) -> str:
    usd = _usd(way, seconds)
    if usd is None:
        return "-"
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:.3g}"


def cost_lines(found: PlanRates, plans: Sequence[Plan], costs: Costs) -> list[str]:
    """Where seconds and dollars come from, and what differs from what was measured."""
    lines = [f"s/step: {_origin_text(found, costs)}"]
    if found.total_steps and (times := {size: cost.run_s for size, cost in costs.items() if cost.run_s is not None}):
        ends = sorted({min(times), max(times)})
        each = ", ".join(f"{duration(times[size])} at {size} GPU{'' if size == 1 else 's'}" for size in ends)
        lines.append(f"a run of {found.total_steps:,} steps takes {each}, without pauses for resizes and evaluations")
    if found.offers:
        lines += _price_lines(plans, costs)
    return [*lines, *_node_lines(found, plans), *found.notes]


def _node_lines(found: PlanRates, plans: Sequence[Plan]) -> list[str]:
    """That all workers count as one node's, if that is unlikely and nothing says how many a node has."""
    most = max(plan.world_size for plan in plans)
    if most <= _MOST_ON_A_NODE or found.on_a_node is not None or found.rates.model.node_workers is not None:
        return []
    note = f"All workers count as those of one node, also {most}: the rates do not say how many a node has."
    return [f"{note} Write node_workers and terms.between_nodes_gbps into the rates file, or name --cluster FILE"]


def _origin_text(found: PlanRates, costs: Costs) -> str:
    model = found.rates.model
    by_origin: dict[str, list[int]] = {}
    for size in sorted(costs):
        by_origin.setdefault(costs[size].origin, []).append(size)
    fitted = sorted(each.world_size for each in found.rates.measured)
    words = {
        "measured": "measured at {}",
        "rounds": "measured with other micro-batches at {}, and scaled by the step model",
        "between": "between measured costs at {}",
        "beyond": "extrapolated by the step model at {}",
        "model": "by the step model alone at {}",
    }
    parts = [words[origin].format(spans(sizes)) for origin, sizes in by_origin.items()]
    of = (
        f" The model is {_sources(found)}, of a run at {spans(fitted)} GPU{'s' if fitted != [1] else ''}."
        if fitted
        else f" Its numbers are from: {_sources(found)}."
    )
    share = f" A step's share of the commits is in it ({model.commit_s.value:.2g} s)." if model.commit_s.value else ""
    return "; ".join(parts) + "." + of + share


def _sources(found: PlanRates) -> str:
    """`fitted`, or the sources of the terms that are not 0."""
    model = found.rates.model
    terms = (model.sample_s, model.round_s, model.fixed_s, model.in_node_s_per_byte, model.between_s_per_byte)
    return ", ".join(dict.fromkeys(term.source for term in terms if term.value))


def _price_lines(plans: Sequence[Plan], costs: Costs) -> list[str]:
    """The machines of the cheapest row that the prices are of, per market."""
    lines = []
    size = max(plan.world_size for plan in plans)
    for market in MARKETS:
        if (way := costs[size].rents.get(market)) is not None:
            machines = f"{way.machines} machines" if way.machines != 1 else "1 machine"
            each = f"{way.offer.usd_per_hour(market):,.4g} $ per hour{' each' if way.machines != 1 else ''}"
            lines.append(f"{market}: {machines} of {way.offer.text} at {each} for {size} GPUs, from your price list")
    return lines


def surplus_line(plans: Sequence[Plan], costs: Costs) -> str:
    """What is best done with more GPUs than the batch can feed, for the greatest such count. Else empty."""
    plan = max(plans, key=lambda each: each.world_size)
    fewer = plan.fewest_workers_as_fast
    if not plan.workers_idle or fewer not in costs:
        return advice(plan)
    ours, theirs = costs[plan.world_size], costs[fewer]
    text = advice(plan, ours.step_s, theirs.step_s)
    return f"{text}{_saved(ours.rents, theirs.rents)}"


def _saved(ours: Mapping[Market, Rent], fewer: Mapping[Market, Rent]) -> str:
    for market in MARKETS:
        if market in ours and market in fewer:
            saved = ours[market].usd_per_hour - fewer[market].usd_per_hour
            return f" Fewer cost {saved:,.4g} $ less per hour ({market})." if saved > 0 else ""
    return ""


def cost_keys(cost: PlanCost) -> dict[str, object]:
    """The keys of a plan's JSON object. Dollars are null where they are not known."""
    dollars = {
        market: {
            "usd_per_hour": way.usd_per_hour,
            "usd_per_step": _usd(way, cost.step_s),
            "usd_per_million_tokens": _usd(way, _million_s(cost)),
            "usd_per_run": _usd(way, cost.run_s),
            "machines": way.machines,
            "offer": way.offer.text,
        }
        for market, way in cost.rents.items()
    }
    return {
        "seconds_per_step": cost.step_s,
        "seconds_from": cost.origin,
        "step_parts": asdict(cost.parts),
        "samples_per_s": cost.samples_per_s,
        "tokens_per_s": cost.tokens_per_s,
        "run_s": cost.run_s,
        "on_demand": dollars.get("on demand"),
        "spot": dollars.get("spot"),
    }
