"""Generations with the user's own training loop. Batches, commits, resizes, ledger and audit work as in other jobs.

def train(run):                                         # called on every worker, in every generation
    model = run.shard(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            step.backward(loss_sum(model, batch))       # the sum over the batch's samples, not the mean
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from planner.base.memory_errors import memory_error_in
from planner.base.user_errors import UserCodeFailed, code_error, origin_of
from planner.data.base import SampleDataset
from planner.data.user_dataset import check_sum, errors_of_user, function_of
from planner.errors import PlannerError, TrainingFailed
from planner.job import Job
from planner.train.batches import TokenCounts
from planner.train.checkpoints.from_memory import MemoryLost
from planner.train.collectives import let_fsdp_sum_gradients, use_own_collectives
from planner.train.exact.determinism import require_shard_invariant
from planner.train.flops import StepFlops
from planner.train.hooks import GenerationEnd, Hooks
from planner.train.lifecycle import Generation, begin, looping, make_sums
from planner.train.loop import Loop
from planner.train.optimizer_step import Step
from planner.train.out_of_memory import Computing
from planner.train.setup import Launch
from planner.train.state import TrainState

Count = Callable[[Any], int]
"""collated micro-batch -> its count. The loss sums are divided by the sum of the counts over the global batch"""
Sums = Tensor | tuple[Tensor, ...]


class Run:
    """The argument of a user's train function: where it runs, and the steps to take."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._outcome: GenerationEnd | None = None
        self._loop: Loop | None = None
        self._steps: Generator[Step] | None = None
        # So that every worker makes the same first weights.
        torch.manual_seed(generation.job.train.seed)

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self._generation.world.rank

    @property
    def world_size(self) -> int:
        """The number of workers. It changes with a resize."""
        return self._generation.world.world_size

    @property
    def device(self) -> torch.device:
        """The device of this worker."""
        return self._generation.world.device

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of all workers, for `fully_shard`."""
        return self._generation.world.mesh

    @property
    def total_steps(self) -> int:
        """The optimizer steps of the whole job."""
        return self._generation.setup.lengths.total_steps

    @property
    def finished(self) -> bool:
        """Whether the job is complete, not just stopped for a resize. Check it before you export a model."""
        return self._outcome is not None and self._outcome.finished

    def shard(self, model: nn.Module, units: Iterable[nn.Module] = ()) -> nn.Module:
        """Move the model to the device and shard it over all workers with FSDP2, in place. Returns the model.

        Each unit, such as a transformer block, is sharded by itself, then the rest. For other settings, such as mixed
        precision, call `fully_shard(..., mesh=run.mesh)` yourself.
        """
        model.to(self.device)
        for unit in units:
            fully_shard(unit, mesh=self.mesh)
        fully_shard(model, mesh=self.mesh)
        return model

    def steps(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        counts: Sequence[Count] = (),
        evaluate: Callable[[Any], Sums] | None = None,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> Iterator[Step]:
        """Load the newest commit into model and optimizer, then yield the remaining optimizer steps.

        When you request the next step, planner clips the gradient if `train.clip_norm` is set (by default it is not)
        and steps the optimizer. With `batch.equality: bitwise`, a step is repeated with the same weights if a gradient
        exceeded the range of its fixed point. You set the learning rate, from `step.number`: a scheduler of torch
        would begin again in each generation.

        Args:
            model: sharded, with the same weights on every worker (random numbers are seeded before `train`).
            optimizer: over the model's parameters, with no step taken.
            counts: one function per loss sum for what it is divided by. By default, one sum and the number of samples.
            evaluate: `(collated samples) -> loss sums`, for the held-out samples of `eval.samples`.
            collate: list of samples -> the value that `step.micro_batches()` yields, on the CPU.

        Raises:
            PlannerError: the same error on every worker.
        """
        if self._steps is not None:
            raise TrainingFailed("run.steps was called twice in one train function")
        self._steps = self._all_steps(model, optimizer, _OwnObjective(tuple(counts), evaluate), collate)
        return self._steps

    def _all_steps(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: "_OwnObjective",
        collate: Callable[[list[Any]], Any],
    ) -> Generator[Step]:
        generation = self._generation
        generation.world.agree(partial(_require_usable, generation, model, optimizer, objective))
        let_fsdp_sum_gradients(model)
        if generation.world.is_gloo:
            use_own_collectives(model)
        state = TrainState.of(model, optimizer, make_sums(generation, model))
        make_batch = _MakeBatch(collate)
        with looping(generation, state, lambda _note: (objective, StepFlops()), make_batch) as loop:
            self._loop = loop
            yield from loop.steps()
            self._outcome = loop.outcome

    @property
    def loop(self) -> Loop | None:
        """The loop of this generation. None before its first step."""
        return self._loop

    @property
    def num_steps(self) -> int:
        """How many steps this generation has done."""
        return self._loop.outcome.step - self._generation.claim.start.step if self._loop is not None else 0

    @property
    def outcome(self) -> GenerationEnd:
        """Where this generation ended.

        Raises:
            TrainingFailed: not all steps were taken.
        """
        if self._outcome is None:
            raise TrainingFailed("train(run) returned before the end of run.steps. Take all of its steps")
        return self._outcome

    def close(self) -> None:
        """End the steps, even in the middle of one. planner calls it when your function returns or fails."""
        if self._steps is not None:
            self._steps.close()


def train_own(generation: Generation, computing: Computing) -> GenerationEnd:
    """Run one generation of a job with the user's own training loop. `computing` gets its loop if memory runs out.

    Raises:
        PlannerError: the same error on every worker.
        UserCodeFailed: the user's function raised an error or let one through, perhaps on this worker alone.
    """
    train = generation.world.agree(partial(function_of, generation.job.data.path, "train"))
    with closing(Run(generation)) as run:
        try:
            train(run)
        # All workers raise these together. What else comes out of the function may be this worker's alone.
        except (PlannerError, MemoryLost):
            raise
        except BaseException as error:  # also SystemExit, and what asyncio and signals raise
            if memory_error_in(error) is not None:  # no mistake of theirs
                computing.loop = run.loop
                raise
            raise UserCodeFailed(code_error(error), origin_of(error), run.num_steps) from error
    return run.outcome


def attached(job: Job, device: torch.device) -> "closing[Run]":
    """A run in a process group that you have initialised, in your own Ray train function or under torchrun.

        with attached(read_job("jobs/own_loop.yaml", []), torch.device("cpu")) as run:
            train(run)

    Every process calls it. Such a run gets no preemption notices and never resizes by itself. Start it again, with any
    number of workers, to resume it from its last commit.

    Raises:
        PlannerError: the same error on every worker.
    """
    launch = Launch(job=job, url=job.run_path)
    return closing(Run(begin(launch, lambda: device, Hooks())))


@dataclass(frozen=True, kw_only=True)
class _OwnBatch:
    """A micro-batch of the user's samples. A ghost holds one sample with zero weight."""

    rows: tuple[int, ...]
    position: int
    content: Any
    total: int

    def pinned(self) -> "_OwnBatch":
        """A copy whose tensors are in page-locked memory."""
        # Not public, but torch's DataLoader uses it: it knows nested lists, dicts and objects with a `pin_memory` of
        # their own.
        return replace(self, content=pin_memory(self.content))  # type: ignore[no-untyped-call]

    @property
    def token_counts(self) -> TokenCounts:
        """Not known: a sample may be anything."""
        return TokenCounts()

    def check_sum(self) -> int:
        """The sum computed when the samples were read, since the loop may change them afterwards."""
        return self.total


@dataclass(frozen=True)
class _MakeBatch:
    """Makes micro-batches. A class instead of a closure, so that loader processes can unpickle it."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, dataset: SampleDataset, rows: list[int], position: int) -> _OwnBatch:
        """Read and collate samples. Without rows, the ghost holds sample 0.

        Raises:
            DataError: a sample cannot be read, or the samples cannot be collated.
        """
        samples = [dataset.sample(row) for row in rows]
        total = sum(check_sum(row, sample) for row, sample in zip(rows, samples, strict=True))
        with errors_of_user(f"samples {rows[:4]} cannot be collated"):
            content = self.collate(samples or [dataset.sample(0)])
        return _OwnBatch(rows=tuple(rows), position=position, content=content, total=total)


@dataclass(frozen=True)
class _OwnObjective:
    """The denominators of a user's own loop, and its loss on held-out samples."""

    counts: tuple[Count, ...]
    evaluate: Callable[[Any], Sums] | None
    metrics: ClassVar[Mapping[str, int]] = {}

    @property
    def num_denominators(self) -> int:
        """One per count of the user. Without any, one: the number of samples."""
        return max(len(self.counts), 1)

    def denominators(self, batch: Any) -> tuple[int, ...]:
        """This micro-batch's part of each denominator. A ghost's parts are zero."""
        if not batch.rows:
            return (0,) * self.num_denominators
        if not self.counts:
            return (len(batch.rows),)
        return tuple(int(count(batch.content)) for count in self.counts)

    def loss(self, _model: nn.Module, batch: Any, totals: tuple[int, ...]) -> Tensor:
        """The loss of a micro-batch of held-out samples, divided by `totals`. A ghost's loss is zero."""
        assert self.evaluate is not None  # checked before the first step
        found = self.evaluate(batch.content)
        sums = found if isinstance(found, tuple) else (found,)
        parts = [value.float() / max(total, 1) for value, total in zip(sums, totals, strict=True)]
        # Multiplied, not left out: the other workers wait for this one in FSDP's all-gathers of the forward pass.
        return torch.stack(parts).sum() * float(bool(batch.rows))


def _require_usable(
    generation: Generation, model: nn.Module, optimizer: torch.optim.Optimizer, objective: _OwnObjective
) -> None:
    """Check for mistakes that would silently train another model.

    Raises:
        TrainingFailed: the model is not sharded over all workers or keeps statistics of its batches, the optimizer has
            taken steps, or there are held-out samples but no `evaluate`.
    """
    if not isinstance(model, FSDPModule):
        raise TrainingFailed(
            "run.steps got a model that is not sharded. Call model = run.shard(model) before you make the optimizer"
        )
    for name, parameter in model.named_parameters():
        if not isinstance(parameter, DTensor) or parameter.device_mesh != generation.world.mesh:
            raise TrainingFailed(
                f"{name} is not sharded over run.mesh, so its gradient would not be summed. Shard the whole model"
            )
    for name, module in model.named_modules():
        if getattr(module, "track_running_stats", False):
            raise TrainingFailed(
                f"{name} ({type(module).__name__}) keeps statistics of micro-batches, which depend on the number of "
                "workers and are not committed. Use GroupNorm or LayerNorm"
            )
    if optimizer.state:
        raise TrainingFailed("the optimizer has already taken steps. Pass a new one to run.steps")
    if generation.job.batch.equality == "bitwise":
        require_shard_invariant(optimizer)
    if generation.job.eval.is_on and objective.evaluate is None:
        raise TrainingFailed(
            f"eval.samples is {generation.job.eval.samples}, but run.steps has no `evaluate`. Pass one, or remove eval "
            "from the job"
        )
