"""How far assignments of samples of known lengths are from the lower bound, and how long they take.

    python bench/balance.py [lengths.csv]     lognormal lengths, and those of a file of preference pairs (two minutes)

The file has the columns prompt, chosen and rejected: their lengths in bytes. Four bytes count as a token. SFT trains on
prompt and chosen, DPO on both completions, each behind its prompt. Each step draws its samples with a fixed seed. World
sizes from 1 to 64 take turns. A micro-batch has at most eight samples.

costs          tokens, or tokens * s + the sum of the squares of each row's tokens. s is 4 times a row's mean length. So
               attention is a fifth of what a mean row costs, as with rows of 6,000 tokens at a width of 4,096
max_tokens     tight: ten times the mean of the samples, or the longest if that is more. Loose: four times as many
balanced       the step cost over the lower bound: its mean, its 95th percentile and its largest
bitwise        the mean for micro-batches that do not depend on the world size
without        the mean for shares of equal numbers of samples, as without lengths. Tokens are not capped
more_rounds    steps with more rounds than a bound from the number of samples and tokens
best_ms        milliseconds of the fastest of some assignments at 64 workers, median_ms of the middle one
"""

import csv
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from _results import write

from planner.plan import BatchSizes, SampleLengths, assign_balanced, assign_bitwise, lower_bound, make_plan
from planner.plan.plan import ceil_div

_STEPS, _MOST_WORKERS, _MAX_MICRO, _BYTES_PER_TOKEN = 1_000, 64, 8, 4

Rows = tuple[int, ...]
"""tokens of each row that a sample computes: one for SFT, two for DPO"""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The samples of a step, the workers and the cap on tokens."""

    lengths: SampleLengths
    world_size: int
    max_tokens: int

    def least_rounds(self) -> int:
        """No assignment has fewer."""
        by_samples = ceil_div(len(self.lengths.tokens), self.world_size * _MAX_MICRO)
        return max(by_samples, ceil_div(sum(self.lengths.tokens), self.world_size * self.max_tokens))

    def without_lengths(self) -> int:
        """The step cost of shares of equal numbers of samples."""
        plan = make_plan(BatchSizes(global_batch=len(self.lengths.tokens), max_micro=_MAX_MICRO), self.world_size)
        rounds = zip(*(plan.micro_batches(rank) for rank in range(self.world_size)), strict=True)
        return sum(max(sum(self.lengths.costs[each.start : each.stop]) for each in each_round) for each_round in rounds)


def lognormal() -> list[Rows]:
    """As many samples as the file has, with a mean of 330 tokens."""
    generator = random.Random(0)
    return [(max(1, round(generator.lognormvariate(5.5, 0.8))),) for _ in range(2_312)]


def of_file(path: Path) -> dict[str, list[Rows]]:
    """The rows of each sample of a file of preference pairs, by method."""
    with path.open() as file:
        pairs = [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]
    return {
        "SFT": [(_tokens(prompt + chosen),) for prompt, chosen, _ in pairs],
        "DPO": [(_tokens(prompt + chosen), _tokens(prompt + rejected)) for prompt, chosen, rejected in pairs],
    }


def _tokens(length_bytes: int) -> int:
    return max(1, length_bytes // _BYTES_PER_TOKEN)


def lengths_of(samples: Sequence[Rows], costs: str, mean: int) -> SampleLengths:
    """Tokens and costs of some samples. `mean` is the mean length of a row."""
    tokens = tuple(map(sum, samples))
    if costs == "tokens":
        return SampleLengths(tokens=tokens, costs=tokens)
    return SampleLengths(
        tokens=tokens, costs=tuple(sum(4 * mean * row + row * row for row in rows) for rows in samples)
    )


def steps_of(samples: Sequence[Rows], global_batch: int, costs: str, cap: str) -> Iterator[Step]:
    """Steps at all world sizes in turn."""
    generator = random.Random(global_batch)
    tokens = [sum(rows) for rows in samples]
    mean_row = sum(tokens) // sum(map(len, samples))
    max_tokens = max(10 * sum(tokens) // len(tokens), *tokens) * (4 if cap == "loose" else 1)
    for number in range(_STEPS):
        lengths = lengths_of(generator.sample(samples, global_batch), costs, mean_row)
        yield Step(lengths=lengths, world_size=number % _MOST_WORKERS + 1, max_tokens=max_tokens)


def quality(steps: Iterator[Step]) -> dict[str, object]:
    """How far the costs of all steps are from their bounds."""
    balanced, bitwise, without, more_rounds = [], [], [], 0
    for step in steps:
        caps = {"max_micro": _MAX_MICRO, "max_tokens": step.max_tokens}
        bound = lower_bound(step.lengths, step.world_size, **caps)
        assignment = assign_balanced(step.lengths, step.world_size, **caps)
        of_any_size = assign_bitwise(step.lengths, step.world_size, **caps)
        balanced.append(assignment.step_cost(step.lengths.costs) / bound)
        bitwise.append(of_any_size.step_cost(step.lengths.costs) / bound)
        without.append(step.without_lengths() / bound)
        more_rounds += assignment.accumulation_steps > step.least_rounds()
    return {
        "steps": len(balanced),
        "balanced": round(statistics.fmean(balanced), 4),
        "balanced_95": round(statistics.quantiles(balanced, n=20)[-1], 4),
        "balanced_worst": round(max(balanced), 4),
        "bitwise": round(statistics.fmean(bitwise), 3),
        "without": round(statistics.fmean(without), 3),
        "more_rounds": more_rounds,
    }


def speed(samples: Sequence[Rows], global_batch: int, repeats: int) -> dict[str, object]:
    """How long assignments to the most workers take, with a tight cap."""
    generator = random.Random(1)
    max_tokens = max(10 * sum(map(sum, samples)) // len(samples), *map(sum, samples))
    times = []
    for _ in range(repeats):
        lengths = lengths_of(generator.choices(samples, k=global_batch), "tokens", 0)
        started_s = time.perf_counter()
        assign_balanced(lengths, _MOST_WORKERS, max_micro=_MAX_MICRO, max_tokens=max_tokens)
        times.append(time.perf_counter() - started_s)
    return {"best_ms": round(min(times) * 1e3, 2), "median_ms": round(statistics.median(times) * 1e3, 2)}


def main() -> None:
    """Measure and write."""
    kinds = {"lognormal": lognormal(), **(of_file(Path(sys.argv[1])) if len(sys.argv) > 1 else {})}
    rows: list[dict[str, object]] = []
    for name, samples in kinds.items():
        for global_batch in (64, 512):
            for costs, cap in (("tokens", "tight"), ("tokens", "loose"), ("squares", "tight"), ("squares", "loose")):
                about = {"lengths": name, "global_batch": global_batch, "costs": costs, "max_tokens": cap}
                rows.append(about | quality(steps_of(samples, global_batch, costs, cap)))
        for global_batch, repeats in ((512, 1_000), (16_384, 30)):
            about = {"lengths": name, "global_batch": global_batch, "workers": _MOST_WORKERS}
            rows.append(about | speed(samples, global_batch, repeats))
    write("balance", rows)


if __name__ == "__main__":
    main()
