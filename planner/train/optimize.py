"""Optimizers over sharded parameters: making them, stepping, learning rates, clipping."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.job import SGD, AdamW, OwnOptimizer, RMSprop
from planner.train.collectives import shard_of

_KINDS: Mapping[type, Callable[..., torch.optim.Optimizer]] = {
    AdamW: torch.optim.AdamW,
    RMSprop: torch.optim.RMSprop,
    SGD: torch.optim.SGD,
}


def make_optimizer(
    config: AdamW | RMSprop | SGD | OwnOptimizer, model: nn.Module, *, is_bitwise: bool = False
) -> torch.optim.Optimizer:
    """The job's optimizer over the model's trainable parameters.

    AdamW uses a `fused` kernel on GPUs, except in `bitwise` runs. On the CPU, fused kernels round differently on shards
    than on the whole tensor (29 of 75 shapes), `foreach` kernels do not.
    """
    assert not isinstance(config, OwnOptimizer)  # the user's own loop makes that one
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_on_gpu = all(parameter.device.type == "cuda" for parameter in parameters)
    settings = config.model_dump(exclude={"kind"})  # with torch's own names
    # `foreach` is named because torch's default on the CPU is a loop over the tensors.
    settings["fused" if isinstance(config, AdamW) and is_on_gpu and not is_bitwise else "foreach"] = True
    return _KINDS[type(config)](parameters, **settings)


def use_local_shards(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Replace an optimizer's parameters by their plain shards. From then on, call `step` of this module, not its own.

    With DTensors, every operation would look up a sharding rule, again at every world size (0.3 s of each resize).

    Returns pairs of a parameter and its shard, which share memory.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for group in optimizer.param_groups:
        shards = [shard_of(parameter) for parameter in group["params"]]
        found += zip(group["params"], shards, strict=True)
        group["params"] = shards
    return found


def step(optimizer: torch.optim.Optimizer, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Step an optimizer that `use_local_shards` has changed. `pairs` is what that returned."""
    for parameter, shard in pairs:
        shard.grad = None if parameter.grad is None else shard_of(parameter.grad)
    optimizer.step()
    for parameter, shard in pairs:
        if shard is not parameter:  # free the gradient's memory before the next step
            shard.grad = None


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(model: nn.Module, norm: float, clip_norm: float | None) -> None:
    """Scale all gradients so that their global norm is at most `clip_norm`. `norm` is their norm now."""
    if clip_norm is not None:
        parameters = [_with_gradient(p) for p in model.parameters() if p.grad is not None]
        if not parameters:
            return
        # `full` fills on the device. A copy from the CPU, as `torch.tensor` makes one, would wait for the GPU.
        total = torch.full((), norm, dtype=torch.float32, device=parameters[0].device)
        # Not `clip_grad_norm_`, which would compute the norm again, and with other bits for another split.
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, total, foreach=True)


def _with_gradient(parameter: nn.Parameter) -> Tensor:
    """The shard of a parameter as a plain tensor with its gradient, both in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    shard = shard_of(parameter)
    assert parameter.grad is not None  # the caller checked
    shard.grad = shard_of(parameter.grad)
    return shard


def not_finite(model: nn.Module) -> list[str]:
    """The names of the parameters whose gradient is not finite in this worker's shard."""
    found = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(shard_of(parameter.grad)).all()):
            found.append(name)
    return found
