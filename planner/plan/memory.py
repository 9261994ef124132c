"""How much device memory a worker needs, in bytes, item by item. Pure arithmetic over sizes that others have found.

A step has moments, and each of them needs memory for other things. The most that any of them needs decides:

    forward     weights gathered for a block, and what the backward pass needs of all blocks before it
    loss        all activations, the head's weights, logits
    backward    of each block, from the last to the first: its gradients, and fewer and fewer activations
    end         the gradients of what is in no block: embeddings and head
    update      the optimizer's step

FSDP2 (torch 2.9 to 2.13, `torch/distributed/fsdp/_fully_shard`) gathers a block's weights for its forward and its
backward pass, and frees them after each. It gathers the rest of the model once, until the end of the backward pass.
With more than one worker, a second buffer of a block's size is there meanwhile: the one that it was gathered into, or
the next one. Gradients are copied into a float32 buffer for their sum over workers, which is kept until the next
block's.

Shapes: W workers, m rows of a micro-batch, T tokens of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from planner.plan.commit_size import FLOAT32_BYTES

Placement = Literal["sharded", "local"]
"""where a worker keeps its gradient sums between rounds (`planner.job.gradient`)"""
_INT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What FSDP2 shards and gathers as one: a block of the model, or the rest."""

    trained: int
    """trained numbers. Their shards are float32"""
    frozen_bytes: int
    """of the shards of all workers together, of weights that are not trained"""
    gathered_bytes: int
    """of the whole unit, in the type in which the job computes"""


@dataclass(frozen=True, kw_only=True)
class Units:
    """A model as FSDP2 sees it."""

    rest: Unit
    blocks: tuple[Unit, ...]

    @property
    def all(self) -> tuple[Unit, ...]:
        """The rest and all blocks."""
        return (self.rest, *self.blocks)

    @property
    def trained(self) -> int:
        """Trained numbers."""
        return sum(unit.trained for unit in self.all)

    @property
    def frozen_bytes(self) -> int:
        """Of the shards of all workers together."""
        return sum(unit.frozen_bytes for unit in self.all)

    @property
    def largest_block(self) -> int:
        """Bytes of the largest block, gathered."""
        return max((block.gathered_bytes for block in self.blocks), default=0)


@dataclass(frozen=True, kw_only=True)
class Live:
    """Bytes of a micro-batch's tensors in a part of its passes: without weights, with whole gradients of the part."""

    peak: int
    """the most at once"""
    end: int
    """at the end of the part, before gradients are summed over workers"""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A micro-batch's forward and backward pass on one device, as `planner.train.footprint` has found it."""

    forward: Live
    """up to the end of the last block"""
    loss: Live
    """from there to the begin of the last block's backward pass"""
    blocks: tuple[Live, ...]
    """the backward pass of each block, the last one first"""
    end: Live
    """from the end of the first block's backward pass"""

    def parts(self) -> tuple[Live, ...]:
        """All parts in their order."""
        return (self.forward, self.loss, *self.blocks, self.end)


@dataclass(frozen=True, kw_only=True)
class SampleSize:
    """What the longest sample is in a micro-batch."""

    rows: int
    """2 for a pair"""
    tokens: int
    """T: of a row"""
    is_summed: bool
    """whether the loss needs the sum of all tokens' log-probabilities, not that of each row"""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a job's model needs. Everything is measured without a device, from the model's own operations."""

    units: Units
    reference: Units | None
    """of a second, frozen model"""
    sample: SampleSize
    measured: tuple[tuple[int, Pass], ...]
    """number of samples of a micro-batch, rising, and its pass. Two or more"""

    def passes(self, samples: float) -> Pass:
        """Of a micro-batch of so many samples of T tokens each: linear between the nearest that were measured.

        Most tensors grow with the samples. The loss has chunks, which stop growing at a number of tokens.
        """
        above = next((place for place, (count, _) in enumerate(self.measured) if count >= samples), -1)
        last = len(self.measured) - 1
        place = last if above < 0 else max(above, 1)
        (few, one), (many, other) = self.measured[place - 1], self.measured[place]
        share = (samples - few) / (many - few)
        forward, loss, *blocks, end = map(partial(_along, share), one.parts(), other.parts())
        return Pass(forward=forward, loss=loss, blocks=tuple(blocks), end=end)


def _along(share: float, one: Live, other: Live) -> Live:
    def at(first: int, second: int) -> int:
        return max(round(first + (second - first) * share), 0)

    return Live(peak=at(one.peak, other.peak), end=at(one.end, other.end))


@dataclass(frozen=True, kw_only=True)
class MemoryRules:
    """What of a job decides its memory, beside the model."""

    optimizer_numbers: int
    """numbers of state that the optimizer keeps per trained number, float32"""
    update_numbers: int
    """numbers per trained number that its step makes and drops again"""
    is_fixed_point: bool
    """whether gradients are summed as integers (`bitwise`)"""
    has_fast_exchange: bool
    """whether workers sum over NCCL. Else over gloo, which needs buffers of its own"""


@dataclass(frozen=True, kw_only=True)
class Items:
    """Bytes on one worker's device at one moment, by what they are for."""

    weights: int = 0
    optimizer: int = 0
    reference: int = 0
    gradients: int = 0
    """sums over rounds"""
    gathered: int = 0
    """whole weights of the blocks that compute, and of the rest"""
    exchange: int = 0
    """buffers for sums over workers"""
    activations: int = 0
    """all tensors of the micro-batch: what the backward pass needs, the loss, and whole gradients of a block"""
    update: int = 0
    """what the optimizer's step makes and drops"""

    @property
    def total(self) -> int:
        """Their sum."""
        state = self.weights + self.optimizer + self.reference + self.gradients
        return state + self.gathered + self.exchange + self.activations + self.update


@dataclass(frozen=True, kw_only=True)
class WorkerMemory:
    """The memory of one worker at the moment that needs the most."""

    moment: Literal["forward", "loss", "backward", "end", "update"]
    items: Items

    @property
    def peak_bytes(self) -> int:
        """Bytes of all tensors at that moment."""
        return self.items.total


def worker_memory(
    found: Footprint,
    rules: MemoryRules,
    *,
    world_size: int,
    samples: float,
    rounds: int,
    placement: Placement,
    mask_bytes: int = 0,
) -> WorkerMemory:
    """The most memory of a worker's step.

    Args:
        found: of the job's model.
        rules: of the job.
        world_size: W.
        samples: m, of the largest micro-batch.
        rounds: of a step. From the second one on, the sums of the rounds before are there all the time.
        placement: of the gradient sums.
        mask_bytes: of a mask that keeps documents of packed rows apart.
    """
    moments = _Moments(found, rules, world_size, rounds, placement, mask_bytes)
    return max(moments.of(found.passes(samples)), key=lambda memory: memory.peak_bytes)


class _Moments:
    """The moments of a step of one worker."""

    def __init__(
        self, found: Footprint, rules: MemoryRules, world_size: int, rounds: int, where: Placement, mask_bytes: int
    ) -> None:
        self._units, self._rules, self._world_size, self._rounds = found.units, rules, world_size, rounds
        self._where, self._mask_bytes = where, mask_bytes
        reference = found.reference
        self._state = Items(
            weights=self._shard(FLOAT32_BYTES * self._units.trained + self._units.frozen_bytes),
            optimizer=self._shard(FLOAT32_BYTES * rules.optimizer_numbers * self._units.trained),
            # Its passes have no backward pass that would free what FSDP has gathered of the rest.
            reference=0 if reference is None else self._shard(reference.frozen_bytes) + reference.rest.gathered_bytes,
        )

    def of(self, passes: Pass) -> Iterator[WorkerMemory]:
        """Each moment, and what it needs."""
        before = self._sums(self._units.trained) if self._rounds > 1 else 0
        rest, block = self._units.rest.gathered_bytes, self._units.largest_block
        is_alone = self._world_size == 1
        done, earlier = 0, self._of_round_before
        gathered = rest + block * (2 - is_alone)
        yield self._moment("forward", passes.forward.peak, gradients=before, gathered=gathered, exchange=earlier)
        gathered = rest + block * (1 - is_alone)
        yield self._moment("loss", passes.loss.peak, gradients=before, gathered=gathered, exchange=earlier)
        for unit, live in zip(reversed(self._units.blocks), passes.blocks, strict=True):
            sums = before or self._sums(done)
            gathered = rest + unit.gathered_bytes + block * (1 - is_alone)
            yield self._moment("backward", live.peak, gradients=sums, gathered=gathered, exchange=earlier)
            yield self._moment("backward", live.end, gradients=sums, gathered=rest, exchange=self._exchange(unit))
            done += unit.trained
            earlier = self._kept(unit)
        sums, unit = before or self._sums(done), self._units.rest
        yield self._moment("end", passes.end.peak, gradients=sums, gathered=rest, exchange=earlier)
        yield self._moment("end", passes.end.end, gradients=sums, gathered=rest, exchange=self._exchange(unit))
        shard = self._shard(FLOAT32_BYTES * self._units.trained)
        yield self._moment("update", 0, gradients=shard, update=self._rules.update_numbers * shard)

    def _moment(
        self,
        name: Literal["forward", "loss", "backward", "end", "update"],
        activations: int,
        *,
        gradients: int,
        gathered: int = 0,
        exchange: int = 0,
        update: int = 0,
    ) -> WorkerMemory:
        state = self._state
        items = Items(
            weights=state.weights,
            optimizer=state.optimizer,
            reference=state.reference,
            gradients=gradients,
            gathered=gathered,
            exchange=exchange,
            activations=activations + (self._mask_bytes if activations else 0),
            update=update,
        )
        return WorkerMemory(moment=name, items=items)

    def _shard(self, num_bytes: int) -> int:
        return -(-num_bytes // self._world_size)

    def _sums(self, trained: int) -> int:
        """Gradient sums of so many numbers."""
        whole = (_INT64_BYTES if self._rules.is_fixed_point else FLOAT32_BYTES) * trained
        if self._where == "local":
            return whole
        # FSDP keeps a shard of zeros until the last round, beside the integers.
        return self._shard(whole + (FLOAT32_BYTES * trained if self._rules.is_fixed_point else 0))

    @property
    def _of_round_before(self) -> int:
        """The buffer of the last sum of a round, which is kept until the first sum of the next one."""
        is_summed = self._rounds > 1 and self._where == "sharded"
        return self._kept(self._units.rest) if is_summed else 0

    def _kept(self, unit: Unit) -> int:
        """The buffer of a unit's sum over workers, until the next unit's."""
        return FLOAT32_BYTES * unit.trained

    def _exchange(self, unit: Unit) -> int:
        """All buffers for the sum of a unit's gradients over workers: what goes in and out."""
        sent = FLOAT32_BYTES * unit.trained
        if self._world_size == 1:  # FSDP divides a copy of it by one, and copies that
            return 3 * sent
        if self._rules.is_fixed_point:
            # The scaled gradient and its integers are whole over NCCL. gloo gets floats, and converts by parts.
            return sent + (sent + 2 * sent if self._rules.has_fast_exchange else sent) + self._shard(3 * sent)
        return sent + self._shard(sent) + (0 if self._rules.has_fast_exchange else sent)
