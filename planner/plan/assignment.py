"""Which worker computes which samples of a step, where the lengths of the step's samples are known.

Symbols are those of `planner.plan.plan`: G samples of a step at offsets 0 to G - 1, W workers, A rounds, m the cap on
the samples of a micro-batch. Here a micro-batch also has a cap on its tokens.

FSDP synchronises every round. So a step's cost is the sum over rounds of the round's most expensive micro-batch.
Finding the least is NP-hard (one round is multiprocessor scheduling), so `assign_balanced` is a heuristic, and
`lower_bound` says how far from the least it can be. All numbers are integers, so every platform assigns alike.
"""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, cmp_to_key
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, count, zip_longest

from planner.errors import PlanError
from planner.plan.plan import ceil_div

# More passes changed no figure of bench/balance.py by 0.0001.
_PASSES = 4
# Of a larger step, single samples are a small part of a round, and each try takes a second or more.
_MOST_WITH_HEAD_STARTS = 2**14
_NONE = -1  # no offset


@dataclass(frozen=True, kw_only=True)
class SampleLengths:
    """How long the samples of a step are, and what they cost. Both tuples have G entries, by offset in the step.

    Raises:
        ValueError: there is no sample, the tuples differ in length, a sample has no token or a cost below 0.
    """

    tokens: tuple[int, ...]
    """tokens of each sample, at least 1"""
    costs: tuple[int, ...]
    """what each sample costs, at least 0, in any unit that adds up: tokens, or tokens * s + the sum of squares"""

    def __post_init__(self) -> None:
        """Check both tuples."""
        if not self.tokens or len(self.tokens) != len(self.costs):
            raise ValueError(f"{len(self.tokens)} samples have tokens and {len(self.costs)} have costs")
        if min(self.tokens) < 1 or min(self.costs) < 0:
            raise ValueError(f"a sample has {min(self.tokens)} tokens, or costs {min(self.costs)}")


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The micro-batches of a step, and which worker computes which. Made by `assign_balanced` and `assign_bitwise`."""

    world_size: int
    """W: workers in the group"""
    micro_batches_in_order: tuple[tuple[int, ...], ...]
    """Offsets in the step, rising in each micro-batch. None is empty.

    Number `a * W + r` is worker r's in round a. Behind the end are ghosts.
    """

    @property
    def accumulation_steps(self) -> int:
        """A: forward/backward rounds of the step, the same on every worker."""
        return ceil_div(len(self.micro_batches_in_order), self.world_size)

    def micro_batches(self, rank: int) -> list[tuple[int, ...]]:
        """The micro-batches of `rank`, one for each round: offsets in the step. A ghost is `()`.

        Raises:
            IndexError: `rank` is out of range.
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank {rank} is not in [0, {self.world_size})")
        own = list(self.micro_batches_in_order[rank :: self.world_size])
        return own + [()] * (self.accumulation_steps - len(own))

    def step_cost(self, costs: Sequence[int]) -> int:
        """Sum over rounds of the round's most expensive micro-batch, in the unit of `costs` (one for each sample)."""
        loads = [sum(map(costs.__getitem__, each)) for each in self.micro_batches_in_order]
        return sum(max(loads[start : start + self.world_size]) for start in range(0, len(loads), self.world_size))

    @cached_property
    def digest(self) -> str:
        """16 hex digits that identify the world size and the micro-batches in their order."""
        text = f"assignment {self.world_size} {self.micro_batches_in_order}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def assign_balanced(lengths: SampleLengths, world_size: int, *, max_micro: int, max_tokens: int) -> Assignment:
    """Spread a step's samples over the workers at a step cost that is close to the least.

    Rounds are the fewest that bisection finds for one of the packings below. Each sample alone always fits. With one
    more round the cost may be lower, but that round's collectives take time, too.

    longest first   Samples by falling cost, each to the micro-batch with the least cost so far that has room: LPT
                    (Graham 1969, Bounds on multiprocessing timing anomalies), here with two caps.
    head starts     A sample that costs more than a mean micro-batch makes its round expensive. The other micro-batches
                    of that round may cost as much for free, so the later rounds can cost less. So each round has a
                    target, and LPT begins as if the micro-batches of later rounds had the difference already
                    (`_targets`). The cheapest result is kept: without head starts, or with one of up to two targets.
                    Steps of more than 2^14 samples go without.
    swaps           In each round the most expensive micro-batch exchanges a sample with the cheapest one, the second
                    with the second cheapest, and so on, as long as the round becomes cheaper.
    best fit        Where LPT needs more rounds: samples by falling tokens, each to the micro-batch that it leaves the
                    least room in.

    The cost is at most that of LPT without head starts, where that fits into as many rounds. It is not always at most
    that of other splits. Nothing but the arguments decides. Ties are broken by offset.

    Args:
        lengths: tokens and costs of the step's samples.
        world_size: W, at least 1.
        max_micro: m, the most samples of a micro-batch, at least 1.
        max_tokens: the most tokens of a micro-batch.

    Raises:
        PlanError: a sample has more than `max_tokens` tokens.
        ValueError: `world_size` or `max_micro` is below 1.
    """
    samples = _Samples.of(lengths, max_micro, max_tokens)
    _require_positive("world_size", world_size)
    return Assignment(
        world_size=world_size, micro_batches_in_order=_in_order(samples, _for_workers(samples, world_size))
    )


def assign_bitwise(lengths: SampleLengths, world_size: int, *, max_micro: int, max_tokens: int) -> Assignment:
    """Cut a step's samples into micro-batches that do not depend on the world size. Workers take them in turn.

    They are the fewest that the packings of `assign_balanced` fit into as a single round, by falling cost. So they cost
    about the same, except where a single sample costs more, and a step takes `ceil(C / W)` rounds of C micro-batches.

    Args:
        lengths: tokens and costs of the step's samples.
        world_size: W, at least 1.
        max_micro: m, the most samples of a micro-batch, at least 1.
        max_tokens: the most tokens of a micro-batch.

    Raises:
        PlanError: a sample has more than `max_tokens` tokens.
        ValueError: `world_size` or `max_micro` is below 1.
    """
    samples = _Samples.of(lengths, max_micro, max_tokens)
    _require_positive("world_size", world_size)
    return Assignment(world_size=world_size, micro_batches_in_order=_in_order(samples, _for_any_workers(samples)))


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}. It must be at least 1")


# Micro-batches that are being filled: offsets in any order. Some may be empty.
_Bins = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """A step's samples, by falling cost, and the caps on a micro-batch."""

    tokens: tuple[int, ...]
    costs: tuple[int, ...]
    order: tuple[int, ...]
    """offsets by falling cost, equal ones by rising offset"""
    max_micro: int
    max_tokens: int

    @classmethod
    def of(cls, lengths: SampleLengths, max_micro: int, max_tokens: int) -> "_Samples":
        """Raises what `assign_balanced` raises."""
        _require_positive("max_micro", max_micro)
        tokens, costs = lengths.tokens, lengths.costs
        longest = max(tokens)
        if longest > max_tokens:
            over = sum(each > max_tokens for each in tokens)
            raise PlanError(
                f"{over} of {len(tokens)} samples of the step have more than max_tokens ({max_tokens}) tokens, the "
                f"longest (offset {tokens.index(longest)}) has {longest}. Write max_tokens: {longest}, or shorten them"
            )
        order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
        return cls(tokens=tokens, costs=costs, order=tuple(order), max_micro=max_micro, max_tokens=max_tokens)

    def loads(self, bins: Iterable[Iterable[int]]) -> list[int]:
        """The cost of each micro-batch."""
        cost = self.costs.__getitem__
        return [sum(map(cost, each)) for each in bins]

    def fewest_bins(self) -> int:
        """No packing has fewer micro-batches: by samples, by tokens, and by samples of which no two share one."""
        long = sum(2 * each > self.max_tokens for each in self.tokens)
        by_tokens = ceil_div(sum(self.tokens), self.max_tokens)
        return max(ceil_div(len(self.tokens), self.max_micro), by_tokens, long)


def _in_order(samples: _Samples, bins: _Bins) -> tuple[tuple[int, ...], ...]:
    """The micro-batches that are not empty, by falling cost. No other order has a lower sum of the rounds' maxima."""
    kept = sorted(tuple(sorted(each)) for each in bins if each)
    loads = samples.loads(kept)
    return tuple(kept[index] for index in sorted(range(len(kept)), key=loads.__getitem__, reverse=True))


def _for_workers(samples: _Samples, world_size: int) -> _Bins:
    """The micro-batches of `assign_balanced`: the fewest rounds that one of the packings fits into."""
    width = min(world_size, len(samples.costs))
    return _fewest(samples, width, lambda rounds: (width, rounds))


def _for_any_workers(samples: _Samples) -> _Bins:
    """The micro-batches of `assign_bitwise`: the fewest in one round that one of the packings fits into."""
    return _fewest(samples, 1, lambda number: (number, 1))


def _fewest(samples: _Samples, unit: int, shape: Callable[[int], tuple[int, int]]) -> _Bins:
    """Pack into the least number of units that is found. Each unit is `unit` micro-batches.

    LPT may fit into some number of units and not into a larger one. Then bisection may miss the least.

    Args:
        samples: what to pack.
        unit: micro-batches in a unit.
        shape: number of units -> micro-batches in a round, and rounds.
    """
    least = ceil_div(samples.fewest_bins(), unit)
    bins = _balanced(samples, *shape(least))
    if bins is not None:
        return bins
    fallback = _best_fit(samples)
    low, high = least + 1, ceil_div(len(fallback), unit)
    while low < high:
        middle = (low + high) // 2
        found = _balanced(samples, *shape(middle))
        if found is None:
            low = middle + 1
        else:
            bins, high = found, middle
    if bins is None and high > least:
        bins = _balanced(samples, *shape(high))
    return _evened(samples, fallback, shape(high)[0]) if bins is None else bins


def _balanced(samples: _Samples, width: int, rounds: int) -> _Bins | None:
    """The cheapest of the packings by LPT into `rounds` rounds of `width` micro-batches. None if none fits."""
    tries = [_longest_first(samples, samples.order, width, (0,) * rounds)]
    if len(samples.costs) <= _MOST_WITH_HEAD_STARTS:
        tries += [_with_head_starts(samples, width, targets) for targets in _targets(samples, width, rounds)]
    fitting = [bins for bins in tries if bins is not None]
    if fitting:
        return _evened(samples, min(fitting, key=lambda bins: _cost(samples, bins, width)), width)
    by_tokens = sorted(range(len(samples.tokens)), key=samples.tokens.__getitem__, reverse=True)
    bins = _longest_first(samples, by_tokens, width, (0,) * rounds)
    return None if bins is None else _evened(samples, bins, width)


def _cost(samples: _Samples, bins: _Bins, width: int) -> int:
    """The step cost, where the micro-batches are taken by falling cost."""
    return sum(sorted(samples.loads(bins), reverse=True)[::width])


def _targets(samples: _Samples, width: int, rounds: int) -> list[tuple[int, ...]]:
    """What the micro-batches of each round should cost, where that differs between rounds, in up to two ways.

    A round's target is the mean of what the rounds before it leave, or the most expensive sample that they leave, if
    that is more. If each of their micro-batches has one of the most expensive samples, they leave sample `a * width`
    (by falling cost) to round a. If their micro-batches are full of those, they leave sample `a * width * m`.
    """
    costs = [samples.costs[offset] for offset in samples.order]
    found: list[tuple[int, ...]] = []
    for each in (1, samples.max_micro) if rounds > 1 else ():
        left, targets = sum(costs), []
        for index, largest in zip_longest(range(rounds), costs[:: width * each][:rounds], fillvalue=0):
            targets.append(max(ceil_div(left, width * (rounds - index)), largest))
            left = max(0, left - width * targets[-1])
        if targets[0] > targets[-1] and tuple(targets) not in found:
            found.append(tuple(targets))
    return found


def _with_head_starts(samples: _Samples, width: int, targets: tuple[int, ...]) -> _Bins | None:
    """`_longest_first` with these targets. Where they do not fit, with targets closer to each other. None if none fits.

    Many samples in a later round and few in the first one may leave too little room for all.
    """
    for quarters in (4, 3, 2, 1):
        closer = [targets[0] - (targets[0] - each) * quarters // 4 for each in targets]
        bins = _longest_first(samples, samples.order, width, closer)
        if bins is not None:
            return bins
    return None


def _longest_first(samples: _Samples, order: Sequence[int], width: int, targets: Sequence[int]) -> _Bins | None:
    """Each sample in `order` to the micro-batch with room that is farthest below its target. None if there is none."""
    tokens, costs, max_micro = samples.tokens, samples.costs, samples.max_micro
    size = width * len(targets)
    # An entry is (what is filled, as seen from the highest target) * size + the micro-batch. Integers compare fast.
    highest = max(targets)
    heap = [(highest - targets[index // width]) * size + index for index in range(size)]
    heapify(heap)
    bins: _Bins = [[] for _ in range(size)]
    room = [samples.max_tokens] * size
    # Entries that lacked room for an earlier sample, as (-room, entry), so that the one with the most room is first.
    without_room: list[tuple[int, int]] = []
    for offset in order:
        need = tokens[offset]
        while without_room and -without_room[0][0] >= need:
            heappush(heap, heappop(without_room)[1])
        while heap and room[heap[0] % size] < need:
            entry = heappop(heap)
            heappush(without_room, (-room[entry % size], entry))
        if not heap:
            return None
        entry = heap[0]
        index = entry % size
        bins[index].append(offset)
        room[index] -= need
        if len(bins[index]) < max_micro:
            heapreplace(heap, entry + costs[offset] * size)
        else:
            heappop(heap)
    return bins


def _best_fit(samples: _Samples) -> _Bins:
    """Each sample, by falling tokens, to the micro-batch that it leaves the least room in, or to a new one."""
    tokens, bins = samples.tokens, _Bins()
    with_room: list[tuple[int, int]] = []  # (room, the micro-batch), rising
    for offset in sorted(range(len(tokens)), key=tokens.__getitem__, reverse=True):
        need = tokens[offset]
        place = bisect_left(with_room, (need, 0))
        if place < len(with_room):
            room, index = with_room.pop(place)
        else:
            room, index = samples.max_tokens, len(bins)
            bins.append([])
        bins[index].append(offset)
        if len(bins[index]) < samples.max_micro and room > need:
            insort(with_room, (room - need, index))
    return bins


def _evened(samples: _Samples, bins: _Bins, width: int) -> _Bins:
    """The micro-batches with exchanges inside each round, which begin with the most expensive and the cheapest one."""
    loads = samples.loads(bins)
    ranked = [bins[index] for index in sorted(range(len(bins)), key=loads.__getitem__, reverse=True)]
    if width == 1:
        return ranked
    return [each for start in range(0, len(ranked), width) for each in _evened_round(samples, ranked[start:][:width])]


def _evened_round(samples: _Samples, bins: _Bins) -> _Bins:
    """The micro-batches of one round after exchanges that made the most expensive one cheaper."""
    loads = samples.loads(bins)
    best, least, mean = bins, max(loads), ceil_div(sum(loads), len(bins))
    for _ in range(_PASSES if least > mean else 0):
        ranked = sorted(range(len(best)), key=loads.__getitem__)
        tried = list(best)
        for low, high in zip(ranked, reversed(ranked[len(ranked) // 2 :]), strict=False):
            tried[low], tried[high] = _exchanged(samples, best[low], best[high], loads[high] - loads[low])
        loads = samples.loads(tried)
        if max(loads) >= least:
            break
        best, least = tried, max(loads)
    return best


def _exchanged(samples: _Samples, low: list[int], high: list[int], gap: int) -> tuple[list[int], list[int]]:
    """Two micro-batches after the one exchange of a sample, or the one move, that leaves the least gap between them.

    Args:
        samples: tokens, costs and caps.
        low: the cheaper micro-batch.
        high: the more expensive one.
        gap: how much more it costs.
    """
    if gap < 2:
        return low, high
    tokens, costs = samples.tokens, samples.costs
    most = samples.max_tokens - sum(map(tokens.__getitem__, low))
    least = sum(map(tokens.__getitem__, high)) - samples.max_tokens
    back = sorted((costs[offset], tokens[offset], offset) for offset in low)
    if len(low) < samples.max_micro:
        back.insert(0, (0, 0, _NONE))
    best, pair = gap, (_NONE, _NONE)
    for offset in high:
        cost, length = costs[offset], tokens[offset]
        # The two on both sides of the cost that would leave no gap. Trying all would take long for large micro-batches.
        place = bisect_left(back, (cost - gap // 2,))
        for other_cost, other_length, other in back[max(0, place - 1) : place + 1]:
            left = abs(gap - 2 * (cost - other_cost))
            if left < best and least <= length - other_length <= most:
                best, pair = left, (offset, other)
    if best == gap:
        return low, high
    given, taken = pair
    low = [offset for offset in low if offset != taken] + [given]
    high = [offset for offset in high if offset != given] + ([] if taken == _NONE else [taken])
    return low, high


def lower_bound(lengths: SampleLengths, world_size: int, *, max_micro: int, max_tokens: int) -> int:
    """No assignment of these samples to `world_size` workers within the caps has a lower `step_cost`.

    Let M_0 >= M_1 >= ... be the costs of the rounds' most expensive micro-batches, where micro-batches are taken by
    falling cost, as no other order has a lower sum. c_0 >= c_1 >= ... are the samples' costs, and i is any round.

    one round       Rounds before i hold at most i W m samples and i W max_tokens tokens. If that is too little for c_0
                    to c_j, one of them is in a later round, and M_i >= c_j. With i = 0 this is the largest sample.
    long samples    No two samples of more than half of max_tokens share a micro-batch. So i W + 1 micro-batches cost at
                    least as much as the (i W + 1)-th most expensive of those samples, and so does M_i.
    all rounds      What one worker computes in all rounds costs at most M_0 + M_1 + ... So that sum is at least the
                    makespan of the samples on W machines (`_makespan`).
    rest, samples   At least G - i W m samples are in rounds from i on. So M_i + M_(i+1) + ... is at least the makespan
                    of as many of the cheapest samples.
    rest, tokens    Rounds before i cost at most as much as i W max_tokens tokens can, if samples could be cut. So
                    M_i + M_(i+1) + ... is at least the rest of the total cost, divided by W.

    The bound is the largest sum, over i, of the bounds of M_0 to M_(i-1) and of the larger bound of the rest.

    Args:
        lengths: tokens and costs of the step's samples.
        world_size: W, at least 1.
        max_micro: m, the most samples of a micro-batch, at least 1.
        max_tokens: the most tokens of a micro-batch.

    Returns:
        The bound in the unit of the costs.

    Raises:
        PlanError: a sample has more than `max_tokens` tokens.
        ValueError: `world_size` or `max_micro` is below 1.
    """
    samples = _Samples.of(lengths, max_micro, max_tokens)
    _require_positive("world_size", world_size)
    costs = [samples.costs[offset] for offset in samples.order]
    long = [samples.costs[offset] for offset in samples.order if 2 * samples.tokens[offset] > max_tokens]
    rounds = map(max, zip_longest(_one_round(samples, costs, world_size), long[::world_size], fillvalue=0))
    by_samples = (_makespan(costs[start:], world_size) for start in count(0, world_size * max_micro))
    by_tokens = (ceil_div(each, world_size) for each in _rest(samples, world_size * max_tokens))
    rest = map(max, by_samples, by_tokens)
    return max(before + after for before, after in zip(accumulate(rounds, initial=0), rest, strict=False))


def _one_round(samples: _Samples, costs: Sequence[int], world_size: int) -> Iterator[int]:
    """The bound `one round` for each round that is needed at least. `costs` are the samples' costs, which fall."""
    tokens = list(accumulate(samples.tokens[offset] for offset in samples.order))
    for index in range(len(costs)):
        held = index * world_size
        first = min(held * samples.max_micro, bisect_right(tokens, held * samples.max_tokens))
        if first >= len(costs):
            return
        yield costs[first]


def _rest(samples: _Samples, tokens_per_round: int) -> Iterator[int]:
    """The cost that 0, 1, 2, ... rounds leave if they hold the tokens that cost most (a fractional knapsack)."""

    def cheaper(one: int, other: int) -> int:
        """Below 0 if a token of `one` costs more than a token of `other`. Quotients would be rounded."""
        return samples.costs[other] * samples.tokens[one] - samples.costs[one] * samples.tokens[other]

    order = sorted(samples.order, key=cmp_to_key(cheaper))
    tokens = list(accumulate(samples.tokens[offset] for offset in order))
    left = [
        sum(samples.costs),
        *(sum(samples.costs) - each for each in accumulate(map(samples.costs.__getitem__, order))),
    ]
    for held in count(0, tokens_per_round):
        whole = bisect_right(tokens, held)
        part = 0
        if whole < len(order):
            offset = order[whole]
            part = samples.costs[offset] * (held - (tokens[whole] - samples.tokens[offset])) // samples.tokens[offset]
        yield left[whole] - part


def _makespan(costs: Sequence[int], world_size: int) -> int:
    """A lower bound of the makespan of `costs`, which fall, on `world_size` machines.

    One machine has at least the mean, rounded up. One has k + 1 of the k W + 1 most expensive samples (pigeonholes), so
    at least the k + 1 cheapest of those. With k = 0 that is the most expensive one.
    """
    if not costs:
        return 0
    shared = (sum(costs[k * world_size - k : k * world_size + 1]) for k in range(ceil_div(len(costs), world_size)))
    return max(ceil_div(sum(costs), world_size), *shared)
