"""Sums gradients over rounds and workers, either by FSDP in float32 or in fixed point (`fixed_point.py`).

FSDP2 passes every module's unsharded gradient to a reduce-scatter, which can be replaced. The fixed-point one converts
it to integers, sums those over workers and rounds, and gives FSDP zeros until the last round.
"""

from collections.abc import Mapping
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from planner.train import collectives
from planner.train.collectives import shard_of
from planner.train.exact.fixed_point import Exponents
from planner.train.exact.norm import exact_norm, pieces, staged_norm
from planner.train.world import World

STATE_KEY = "fixed_point/exponents"


class FloatSums:
    """FSDP's own reduce-scatter in float32. The sum's rounding depends on the split.

    `where` chooses what is kept between rounds. `sharded` keeps 4 bytes per parameter of the shard, and exchanges 4
    bytes per parameter every round. `local` keeps 4 bytes per parameter of the whole model, with one exchange per step.
    """

    def __init__(self, model: nn.Module, where: Literal["sharded", "local"] = "sharded") -> None:
        self._model, self._where = model, where

    def begin(self) -> None:
        """Have FSDP keep whole gradients until the last round, if that is chosen."""
        if self._where == "local":
            self._model.set_requires_gradient_sync(False)  # type: ignore[operator]

    def last_round(self) -> None:
        """Have FSDP exchange the gradients after the next backward pass."""
        if self._where == "local":
            self._model.set_requires_gradient_sync(True)  # type: ignore[operator]

    def abandon(self, before: Mapping[str, Tensor]) -> None:
        """Have FSDP exchange gradients again after a step that was given up. `before` is empty."""
        del before
        self.last_round()

    def settle(self) -> bool:
        """Return true. Float sums are always valid."""
        return True

    def norm(self) -> float:
        """The global norm, computed by torch. A norm per shard would clip differently at every world size."""
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        if gradients and isinstance(gradients[0], DTensor):
            group = gradients[0].device_mesh.get_group()
            if collectives.is_staged(gradients[0], group):
                return staged_norm([shard_of(gradient) for gradient in gradients], group)
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if not isinstance(norm, DTensor):
            return float(norm)
        with collectives.blocked:
            # torch gives a DTensor of partial norms. This reduces it over all workers.
            return float(norm.full_tensor())

    def state(self) -> dict[str, Tensor]:
        """Nothing: float sums have no state."""
        return {}


class FixedPointSums:
    """One integer sum per FSDP module, each with its exponent. Every worker has the same exponents.

    `where` chooses what is kept between rounds. `sharded` keeps 8 bytes per parameter of the shard, and exchanges 8
    bytes per parameter every round (4 on the CPU). `local` keeps 8 bytes per parameter of the whole model, with one
    exchange per step. The result is equal to the bit, so the choice affects only memory and speed.
    """

    def __init__(
        self, model: nn.Module, world: World, num_micro_batches: int, where: Literal["sharded", "local"]
    ) -> None:
        self._model, self._world, self._num_micro_batches = model, world, num_micro_batches
        self._modules: list[_ModuleSum] = []
        self._is_plain = False
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module_sum = _ModuleSum(where)
                if world.world_size > 1:
                    # FSDP does not export its protocol for this, so mypy cannot check it.
                    module.set_custom_reduce_scatter(module_sum)  # type: ignore[arg-type]
                else:
                    # With one worker, FSDP skips the reduce-scatter but calls the hook after it.
                    module.set_all_reduce_hook(module_sum.on_one_worker)
                self._modules.append(module_sum)
        # 0 in `_known`: no exponents yet. The first step is done twice, the first time to learn the magnitudes.
        # As tensors, because a checkpoint holds nothing else.
        self._exponents = torch.zeros(len(self._modules), dtype=torch.int64)
        self._known = torch.zeros(1, dtype=torch.int64)

    def begin(self) -> None:
        """Reset all sums, with the exponents that the last step chose."""
        for module_sum, exponent in zip(self._modules, self._exponents.tolist(), strict=True):
            module_sum.begin(exponent, is_plain=self._is_plain)

    def last_round(self) -> None:
        """Make every module give its sum to FSDP after the next backward pass."""
        for module_sum in self._modules:
            module_sum.is_last = True

    def abandon(self, before: Mapping[str, Tensor]) -> None:
        """Drop the sums of a step that was given up, and take back what its attempts changed.

        Args:
            before: copies of `state` before the step.
        """
        self._is_plain = False
        for name, value in self.state().items():
            value.copy_(before[name])
        self.begin()

    def settle(self) -> bool:
        """Find the step's largest magnitudes over all workers and choose the next exponents. True if all sums fit.

        If a gradient is not finite, the step is repeated with FSDP's own sums, which show in which tensor.
        """
        if self._is_plain:
            return True
        largest = self._largest()
        if torch.inf in largest:
            self._is_plain = True
            return False
        exponents = Exponents(values=tuple(self._exponents.tolist()), num_micro_batches=self._num_micro_batches)
        following, fits = exponents.after(largest)
        settled = fits and bool(self._known)
        self._exponents.copy_(torch.tensor(following.values))
        self._known.fill_(1)
        return settled

    def norm(self) -> float:
        """The global norm by `exact_norm`, equal to the bit at every world size."""
        # Plain sums are for the repeated step alone, and its norm is the last thing that it is asked for.
        self._is_plain = False
        shards = [shard_of(p.grad) for p in self._model.parameters() if p.grad is not None]
        return exact_norm(self._world, shards)

    def state(self) -> dict[str, Tensor]:
        """The exponents, and whether they are known yet."""
        return {STATE_KEY: self._exponents, f"{STATE_KEY}/known": self._known}

    def _largest(self) -> tuple[float, ...]:
        # A module whose parameters are all frozen gets no gradient.
        nothing = torch.zeros((), device=self._world.device)
        found = [nothing if each.largest is None else each.largest for each in self._modules]
        # One wait for the device, for all modules together.
        largest = torch.stack(found).double().cpu()
        # Backends differ in a maximum with NaN, but not with infinity.
        largest = torch.nan_to_num(largest, nan=torch.inf, posinf=torch.inf)
        # On the CPU by gloo: Python needs the numbers now, to choose the exponents.
        with collectives.blocked:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self._world.object_group)
        return tuple(largest.tolist())


class _ModuleSum(collectives.ReduceScatter):
    """The integer sum of one FSDP module. It replaces FSDP's reduce-scatter."""

    def __init__(self, where: Literal["sharded", "local"]) -> None:
        self._where = where
        self.is_last = self._is_plain = False
        self.largest: Tensor | None = None
        """the largest |g| of this step, a scalar on the gradient's device. None before its first gradient"""
        self._exponent = 0
        self._sum: Tensor | None = None

    def begin(self, exponent: int, *, is_plain: bool) -> None:
        """Reset the sum for a new step. With `is_plain`, floats are summed as FSDP does."""
        self._exponent, self.is_last, self._is_plain, self._sum = exponent, False, is_plain, None
        self.largest = None

    def reduce(self, output: Tensor, tensor: Tensor, group: dist.ProcessGroup) -> None:
        """Add one round, `(W * n,)` float32. In the last round, write the sum to `output`, `(n,)`, else zeros."""
        if self._is_plain:
            collectives.reduce_scatter(output, tensor, group)
            return
        if self._where == "local":
            self._add(tensor)
        elif collectives.is_gloo(tensor, group):
            # Workers exchange float32 (4 bytes per element) and each converts what it receives to integers. The
            # integers are the same as if their owners had converted them, at half the bytes.
            for gradient in collectives.all_to_all(tensor, group):
                self._add(gradient)
        else:
            self._note(tensor)
            mine = torch.empty_like(output, dtype=torch.int64)
            collectives.reduce_scatter(mine, self._quanta(tensor), group)
            self._sum = mine if self._sum is None else self._sum.add_(mine)
        self._hand_out(output, group)

    def on_one_worker(self, reduce_output: Tensor) -> None:
        """Add one round with a single worker, in place: the sum in the last round, else zeros."""
        if reduce_output.is_cuda:
            # FSDP takes this memory on its stream for reduce-scatters, calls this on another one, and there adds the
            # result to the gradient. From the second round on, it then frees the memory, which the next module's
            # reduce-scatter could overwrite too soon (pytorch/pytorch#180665 is the same mistake with other work).
            reduce_output.record_stream(torch.cuda.current_stream(reduce_output.device))
        if self._is_plain:
            return
        self._add(reduce_output)
        self._hand_out(reduce_output, None)

    def _note(self, gradient: Tensor) -> None:
        if gradient.numel():
            # aminmax reads once and writes no |g|. With a NaN, both extremes are NaN, so it is not missed.
            least, most = gradient.aminmax()
            largest = torch.maximum(-least, most)
            # Not from a zero on the CPU: to copy that to a GPU, Python would wait for each module's gradient.
            self.largest = largest if self.largest is None else torch.maximum(self.largest, largest)

    def _quanta(self, gradient: Tensor) -> Tensor:
        # Scaling a float32 by a power of two is exact, and a float32 of 2^23 or more is already an integer.
        return (gradient * 2.0**self._exponent).round_().to(torch.int64)

    def _add(self, gradient: Tensor) -> None:
        self._note(gradient)
        if self._sum is None:
            self._sum = torch.zeros_like(gradient, dtype=torch.int64)
        for total, part in zip(pieces(self._sum), pieces(gradient), strict=True):
            total.add_(self._quanta(part))

    def _hand_out(self, output: Tensor, group: dist.ProcessGroup | None) -> None:
        if not self.is_last:
            # FSDP adds each round's output to the shard's gradient, so all rounds but the last must add nothing.
            output.zero_()
            return
        assert self._sum is not None  # this round added to it
        total = self._sum
        if group is not None and self._where == "local":
            total = _sum_over_workers(total, output, group)
        for part, quanta in zip(pieces(output), pieces(total), strict=True):
            # Through float64, whose range holds every sum times every power of two.
            part.copy_(quanta.double().mul_(2.0**-self._exponent))
        # Freed: the optimizer's step needs the memory more than this, which has 8 bytes per parameter.
        self._sum = None


def _sum_over_workers(quanta: Tensor, like: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Sum `(W * n,)` int64 over all workers. Returns this worker's shard of the sum, `(n,)`."""
    if collectives.is_gloo(quanta, group):
        return collectives.all_to_all(quanta, group).sum(dim=0)
    total = torch.empty_like(like, dtype=torch.int64)
    collectives.reduce_scatter(total, quanta, group)
    return total


GradientSums = FloatSums | FixedPointSums
"""what an optimizer step asks: `begin` before its first round, `last_round` before its last backward pass, `settle`,
which says on every worker alike whether the step must be repeated, and `norm`. Or `abandon`, if the step is given up. A
checkpoint must hold `state`"""
