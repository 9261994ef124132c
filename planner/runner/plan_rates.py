"""Seconds and dollars of a job's plans, by a rates file and a price list."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.base.disk import absolute_url
from planner.errors import UserError
from planner.files.prices_file import read_prices
from planner.files.rates_file import read_rates
from planner.job import Job, batch_sizes
from planner.job.step_schedule import total_steps
from planner.job.step_settings import place_settings, step_settings
from planner.plan import BatchSizes, Plan
from planner.plan.by_length import ByLength
from planner.plan.gpu_kinds import is_size, most_gib, nominal_gib
from planner.plan.prices import Market, Offer, Rent, offers_of, rent
from planner.plan.rates import Origin, Rates
from planner.plan.speed import Speeds
from planner.plan.step_time import StepModel, StepTime

_MOST_NAMED = 5
MARKETS: tuple[Market, ...] = ("on demand", "spot")


@dataclass(frozen=True, kw_only=True)
class PlanCost:
    """What one plan costs."""

    origin: Origin
    step_s: float
    """with its share of the commits"""
    parts: StepTime
    """of the model, which need not add up to a measured step"""
    samples_per_s: float
    tokens_per_s: float | None
    run_s: float | None
    """of the whole run without pauses. None if its length depends on data that is not known"""
    rents: dict[Market, Rent]
    """the cheapest machines for all GPUs of the row. Only the markets that the list has prices of"""


@dataclass(frozen=True, kw_only=True)
class PlanRates:
    """Rates and prices for one job."""

    rates: Rates
    sizes: BatchSizes
    """of the job"""
    speeds: Speeds
    offers: tuple[Offer, ...]
    """of the chosen GPU. Empty without a price list"""
    notes: tuple[str, ...]
    """differences between this job and the measured one that may matter"""
    sample_tokens: float | None
    total_steps: int
    """of the whole run. 0 if not known"""
    on_a_node: Mapping[int, int] | None
    """world size -> the workers on the fullest node of the cluster. None without a cluster"""
    priced_gpu: str = ""
    """the GPU of `offers`, if the user has named its memory alone and planner knows a memory of it. Else empty"""

    def found(self, plan: Plan, cap: Literal["max_micro", "max_tokens"], least_tokens: int = 1) -> Plan:
        """The plan with a cap of the measured run's group of that size (`Rates.found_caps`).

        No run has a cap below its longest sample. So a cap on tokens is at least `least_tokens`.
        """
        caps = self.rates.found_caps(plan.world_size)
        if cap == "max_micro" or not isinstance(plan, ByLength):
            return replace(plan, max_micro=caps.max_micro)
        return plan if caps.max_tokens is None else replace(plan, max_tokens=max(caps.max_tokens, least_tokens))

    def cost(self, plan: Plan) -> PlanCost:
        """What a plan of the job costs."""
        origin, parts = self.rates.origin(plan, self.sizes), self._placed(plan).parts(plan)
        training_s = self.speeds.seconds_per_step(plan)
        if origin != "measured":
            # The rates' own levels are those of the measured run.
            training_s *= parts.step_s / self.rates.model.seconds_per_step(plan)
        step_s = training_s + parts.commit_s
        samples_per_s = plan.global_batch / step_s
        rents = {market: found for market in MARKETS if (found := rent(self.offers, plan.world_size, market))}
        return PlanCost(
            origin=origin,
            step_s=step_s,
            parts=parts,
            samples_per_s=samples_per_s,
            tokens_per_s=None if self.sample_tokens is None else self.sample_tokens * samples_per_s,
            run_s=self.total_steps * step_s if self.total_steps else None,
            rents=rents,
        )

    def _placed(self, plan: Plan) -> StepModel:
        """The step model on the cluster's nodes."""
        if self.on_a_node is None:
            return self.rates.model
        return replace(self.rates.model, node_workers=self.on_a_node[plan.world_size])


def plan_rates(
    job: Job,
    rates_file: str,
    prices_file: str | None = None,
    gpu: str | None = None,
    on_a_node: Mapping[int, int] | None = None,
    cluster_gpu: str = "",
) -> PlanRates:
    """Read the files, and check that the rates are of such a job.

    Args:
        job: the job.
        rates_file: a rates file.
        prices_file: a price list. None for no prices.
        gpu: the GPU to take prices of. None if the list has one kind alone.
        on_a_node: world size -> the workers on the fullest node of the cluster. None: the nodes are those of the rates.
        cluster_gpu: the GPU of the cluster's file. Its prices count if `gpu` is None and the list has some.

    Raises:
        UserError: a file is wrong, the rates are of another job, or the list has no such GPU.
    """
    rates = read_rates(rates_file)
    _require_same(rates, job, rates_file)
    sizes = batch_sizes(job)
    known = job.data.sample_tokens(job.model)
    tokens = rates.sample_tokens.value if rates.sample_tokens else known
    offers = () if prices_file is None else _chosen(read_prices(prices_file), gpu, prices_file, cluster_gpu)
    by_size = offers[0].gpu if offers and gpu is not None and is_size(gpu) else ""
    return PlanRates(
        rates=rates,
        sizes=sizes,
        speeds=rates.speeds(sizes),
        offers=offers,
        notes=(
            *([f"--gpu {gpu} stands for the {by_size} of the price list."] if by_size else []),
            *_notes(rates, job, sizes, has_prices=prices_file is not None),
        ),
        sample_tokens=tokens,
        total_steps=total_steps(job, rates.epoch_samples),
        on_a_node=on_a_node,
        priced_gpu=by_size if nominal_gib(by_size) else "",
    )


def _require_same(rates: Rates, job: Job, file: str) -> None:
    """Refuse rates of a job whose samples cost something else. Settings that only one of the two has are not compared.

    Raises:
        UserError: some settings differ.
    """
    here = step_settings(job)
    differing = [
        f"{key} {_shown(value)} there, {_shown(here[key])} here"
        for key, value in rates.settings.items()
        if key in here and here[key] != value
    ]
    if not differing:
        return
    more = f" and {len(differing) - _MOST_NAMED} more" if len(differing) > _MOST_NAMED else ""
    raise UserError(
        f"{file}: rates of another job ({rates.job or 'no name'}): {'; '.join(differing[:_MOST_NAMED])}{more}. "
        "Fit them to a run of this job (planner fit RUN), or remove settings in the file that do not matter"
    )


def _shown(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _notes(rates: Rates, job: Job, sizes: BatchSizes, *, has_prices: bool) -> list[str]:
    """What differs between the measured job and this one without making the rates useless."""
    here, notes = place_settings(job), []
    there = {key: rates.settings.get(key, value) for key, value in here.items()}
    # Paths in a run's jobs are absolute.
    places = [f"{key} {there[key]}" for key in here if absolute_url(str(there[key])) != absolute_url(str(here[key]))]
    if places:
        notes.append(f"The rates were measured with {', '.join(places)}. They hold here if the samples are as long.")
    if sizes.apart_from_caps != rates.sizes.apart_from_caps:
        was = rates.sizes
        caps = [f"{was.max_micro} samples", *([f"{was.max_tokens:,} tokens"] if was.max_tokens else [])]
        notes.append(
            f"The rates were measured at a global batch of {was.global_batch} and at most {' and '.join(caps)} in a "
            "micro-batch, so all times here are the model's."
        )
    if has_prices and not job.workers.gpus:
        notes.append("workers.gpus is 0: each worker is counted as one GPU of the price list.")
    return notes


def _chosen(offers: Sequence[Offer], gpu: str | None, file: str, cluster_gpu: str) -> tuple[Offer, ...]:
    """The offers of one kind of GPU: the one that is named, the cluster's, or the only one that can be meant.

    Raises:
        UserError: the list has no such GPU, or several kinds can be meant.
    """
    # A memory such as 24g says what fits. It names a GPU only if the list leaves no choice.
    if found := offers_of(offers, cluster_gpu if gpu is None else gpu):
        return found
    kinds = sorted({offer.gpu for offer in offers})
    if gpu is not None and not is_size(gpu):
        raise UserError(
            f"{file}: found no price of {gpu!r}, but of {_names(kinds)}. Write --gpu with one of these names"
        )
    if len(kinds) == 1:
        _require_memory(kinds[0], gpu, file)
        return tuple(offers)
    if gpu is None:
        raise UserError(
            f"{file}: found prices of {len(kinds)} kinds of GPU ({_names(kinds)}). Name one: --gpu {kinds[0]}"
        )
    return offers_of(offers, _of_size(kinds, gpu, file))


def _require_memory(kind: str, size: str | None, file: str) -> None:
    """Refuse the only kind of a list if it is known to have less memory than the user names.

    Raises:
        UserError: it has less.
    """
    if size is not None and 0 < most_gib(kind) < nominal_gib(size):
        raise UserError(
            f"{file}: found prices of {kind} alone, which has {most_gib(kind)} GB and not {size}. Write --gpu {kind}, "
            "or use another list"
        )


def _of_size(kinds: Sequence[str], size: str, file: str) -> str:
    """The one kind of a list that is known to have a memory such as `24g`.

    Raises:
        UserError: there is none, or more than one.
    """
    found = [kind for kind in kinds if nominal_gib(kind) == nominal_gib(size)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"{file}: found {len(found)} kinds of GPU with {size} ({_names(found)}). Name one: --gpu {found[0]}"
        )
    raise UserError(
        f"{file}: found no GPU that is known to have {size}, but prices of {_names(kinds)}. Write --gpu with one of "
        "these names"
    )


def _names(kinds: Sequence[str]) -> str:
    more = f" and {len(kinds) - _MOST_NAMED} more" if len(kinds) > _MOST_NAMED else ""
    return ", ".join(kinds[:_MOST_NAMED]) + more
