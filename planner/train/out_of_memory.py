"""What a worker that ran out of memory tells the controller: where, with which caps, and its largest micro-batch.

The place follows from the traceback: planner's functions that the error passed on its way out. So user's own loops need
nothing, and a step pays nothing.
"""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

import torch

from planner.base.memory_errors import (
    MemoryFacts,
    MemoryPlace,
    OutOfMemory,
    asked_bytes,
    error_text,
    memory_error_in,
)
from planner.data.longest import longest_sample
from planner.plan.by_length import ByLength
from planner.train import loop as loops
from planner.train.journal import Journal
from planner.train.lifecycle import Generation
from planner.train.loop import Loop
from planner.train.models import head
from planner.train.optimizer_step import Step
from planner.train.prefetch import Prefetcher
from planner.train.reference.cache import TableBuilder
from planner.train.saves import Saves
from planner.train.step_update import Updater
from planner.train.world import device_kind

_PLACES: dict[CodeType, MemoryPlace] = {
    Updater.update.__code__: "optimizer",
    Journal.evaluate.__code__: "evaluation",
    Step.micro_batches.__code__: "backward",  # itself, not the caller's code between two of them: the sums are made
    Step.backward_part.__code__: "backward",
    Loop.settle.__code__: "backward",
    Saves.save.__code__: "saving",
    Saves.advance.__code__: "saving",
    Saves.before_update.__code__: "saving",
    TableBuilder.table.__code__: "reference",
    Prefetcher.start.__code__: "data",
    loops.ready.__code__: "data",
}
"""function -> the place. The outermost of them counts: a backward pass may compute a forward pass again"""
_MODULE_CALL = torch.nn.Module._call_impl.__code__  # noqa: SLF001  # each call of a module passes it
_HEAD_FILE = head.__file__


@dataclass(kw_only=True)
class Computing:
    """What a generation has got to. Not frozen: the loop is there only when the model is."""

    loop: Loop | None = None


def out_of_memory(error: Exception, generation: Generation, computing: Computing) -> OutOfMemory | None:
    """What to raise in place of an error which says that memory ran out. None for other errors.

    It forgets the loop, so that nothing which is left refers to the model.
    """
    computing.loop, loop = None, computing.loop
    if (found := memory_error_in(error)) is None:
        return None
    codes = [code for each in dict.fromkeys((error, found)) for code in _codes(each)]
    place = place_of(codes, is_training=loop is not None)
    sizes, setup = generation.setup.sizes, generation.setup
    by_length = isinstance(setup.plan, ByLength)
    samples, tokens = _largest(loop, place, generation)
    return OutOfMemory(
        MemoryFacts(
            device=device_kind(generation.world.device),
            place=place,
            max_micro=sizes.max_micro,
            max_tokens=sizes.max_tokens,
            samples=samples,
            tokens=tokens if by_length else None,
            longest=longest_sample(generation.job, setup.dataset) if by_length else None,
            asked_bytes=asked_bytes(str(found)),
            error=error_text(found),
        )
    )


def place_of(codes: list[CodeType], *, is_training: bool) -> MemoryPlace:
    """Where memory ran out, by the functions that the error passed, outermost first.

    Of a forward pass that ends in planner's head, the head is the loss: it computes log-probabilities in chunks.
    """
    if (place := next((_PLACES[code] for code in codes if code in _PLACES), None)) is not None:
        return place
    if not is_training:
        return "start"
    is_loss = _MODULE_CALL not in codes or any(code.co_filename == _HEAD_FILE for code in codes)
    return "loss" if is_loss else "forward"


def _codes(error: BaseException) -> Iterator[CodeType]:
    return (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))


def _largest(loop: Loop | None, place: MemoryPlace, generation: Generation) -> tuple[int, int | None]:
    """The largest micro-batch in force where memory ran out: its samples and its tokens, as far as they are known."""
    plan = generation.setup.plan
    if loop is None:
        return plan.max_micro_batch, None
    if place == "evaluation":
        return max(loop.largest_evaluated, 1), None
    if not isinstance(plan, ByLength):
        return plan.max_micro_batch, None
    # Of this worker, which is the one that ran out of memory.
    samples = max((len(batch.rows) for batch in loop.batches), default=1)
    return max(samples, 1), max((batch.token_counts.inputs for batch in loop.batches), default=0) or None
