"""The state that training changes and checkpoints hold: weights, optimizer state, and state of the gradient sums."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.errors import TrainingFailed
from planner.train import collectives, optimize
from planner.train.collectives import shard_of
from planner.train.exact.gradient_sums import GradientSums
from planner.train.world import World

MODEL, OPTIMIZER = "model", "optimizer"


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The state of one worker. The dataclass is frozen, but a step updates its tensors in place."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    sums: GradientSums
    shards: Mapping[str, tuple[Tensor, Tensor]]
    """name -> (parameter, the optimizer's view of its shard), for the trained parameters"""
    only_trained: bool = False
    """whether checkpoints leave frozen weights out, because every generation reads or draws them again"""

    @classmethod
    def of(
        cls, model: nn.Module, optimizer: torch.optim.Optimizer, sums: GradientSums, *, only_trained: bool = False
    ) -> "TrainState":
        """The state of a model and its optimizer. It changes the optimizer to work on shards of the parameters.

        Raises:
            TrainingFailed: the optimizer has parameters that are not the model's.
        """
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        pairs = optimize.use_local_shards(optimizer)
        if unknown := [parameter for parameter, _ in pairs if parameter not in names]:
            raise TrainingFailed(
                f"the optimizer has {len(unknown)} parameters that are not the model's, first one of shape "
                f"{tuple(unknown[0].shape)}. Shard the model first, then make the optimizer over model.parameters()"
            )
        shards = {names[parameter]: (parameter, shard) for parameter, shard in pairs}
        return cls(model=model, optimizer=optimizer, sums=sums, shards=shards, only_trained=only_trained)

    def step(self) -> None:
        """Update the weights by their gradients."""
        optimize.step(self.optimizer, list(self.shards.values()))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the state, by their names in a checkpoint. Loading writes into these tensors."""
        weights = {name: parameter.detach() for name, parameter in self._saved_parameters()}
        optimizer = {name: _sharded_like(parameter, value) for name, parameter, value in self._optimizer_state()}
        return {**_named(MODEL, weights), **_named(OPTIMIZER, optimizer), **self.sums.state()}

    def local_shards(self) -> dict[str, Tensor]:
        """This worker's shards of `tensors`, by the same names, in the same memory. Makes no DTensor, so it is fast."""
        weights = {
            name: self.shards[name][1].detach() if name in self.shards else shard_of(parameter)
            for name, parameter in self._saved_parameters()
        }
        optimizer = {name: value for name, _, value in self._optimizer_state()}
        return {**_named(MODEL, weights), **_named(OPTIMIZER, optimizer), **self.sums.state()}

    def digests(self, world: World) -> dict[str, str]:
        """SHA-256 of every whole tensor, on every worker. Collective, in the group for small objects.

        Each tensor is gathered by one worker, one after the other. A worker has one of them at a time, in three copies.
        """
        mine = {}
        for number, (name, tensor) in enumerate(self.tensors().items()):
            whole = collectives.whole_on(tensor, number % world.world_size, world.object_group)
            if whole is not None:
                mine[name] = tensor_digest(whole)
        return {name: digest for part in world.gather(mine) for name, digest in part.items()}

    def _saved_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad or not self.only_trained:
                yield name, parameter

    def _optimizer_state(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Name, parameter and value of each tensor in the optimizer's state."""
        for name, (parameter, shard) in self.shards.items():
            for key, value in self.optimizer.state.get(shard, {}).items():
                if isinstance(value, Tensor):
                    yield f"{name}/{key}", parameter, value


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _sharded_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor of optimizer state as a DTensor sharded like its parameter. A scalar is returned unchanged."""
    if not isinstance(parameter, DTensor) or value.ndim == 0:
        return value
    # `run_check` would be a collective for each tensor. Without the shape, torch would assume shards of equal size.
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def tensor_digest(tensor: Tensor) -> str:
    """SHA-256 over type, shape and bytes, as 64 hex digits."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    # Viewed as bytes, because numpy has no bfloat16.
    digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
