"""Optimizers and learning rates, in optimizer steps."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.job import SGD, AdamW, OwnOptimizer, RMSprop
from planner.train.collectives import shard_of


def make_optimizer(config: AdamW | RMSprop | SGD | OwnOptimizer, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a job names, over what is trained.

    `foreach`, not `fused`: on shards the fused CPU kernels round differently from the same kernel on the whole
    tensor (29 of 75 shapes), foreach does not.
    """
    assert not isinstance(config, OwnOptimizer)  # who has one does not come here
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if isinstance(config, AdamW):
        return torch.optim.AdamW(
            parameters,
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            foreach=True,
        )
    if isinstance(config, RMSprop):
        return torch.optim.RMSprop(
            parameters,
            lr=config.lr,
            alpha=config.alpha,
            eps=config.eps,
            weight_decay=config.weight_decay,
            foreach=True,
        )
    return torch.optim.SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay, foreach=True
    )


def localize(optimizer: torch.optim.Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Put plain shards in the place of the parameters that an optimizer was made over: call `step`, not its own.

    DTensor looks a sharding rule up for every operation, and anew at every world size: 0.3 s of each resize.

    Returns every parameter with its shard, which has the same memory.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for group in optimizer.param_groups:
        shards = [shard_of(parameter) for parameter in group["params"]]
        found += zip(group["params"], shards, strict=True)
        group["params"] = shards
    return found


def step(optimizer: torch.optim.Optimizer, pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Update the model by its gradients; `pairs` are its parameters and the optimizer's own views of their shards."""
    for parameter, shard in pairs:
        shard.grad = None if parameter.grad is None else shard_of(parameter.grad)
    optimizer.step()
    for parameter, shard in pairs:
        if shard is not parameter:  # else the gradient's memory would be held until the next step
            shard.grad = None


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """For the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(model: nn.Module, norm: float, clip_norm: float | None) -> None:
    """Scale all gradients so that their global norm, which is `norm` now, is at most `clip_norm`."""
    if clip_norm is not None:
        total = torch.tensor(norm, dtype=torch.float32)
        parameters = [_with_gradient(p) for p in model.parameters() if p.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, total, foreach=True)


def _with_gradient(parameter: nn.Parameter) -> Tensor:
    """The shard as a plain tensor that has the shard's gradient, in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    shard = shard_of(parameter)
    assert parameter.grad is not None  # the caller has looked
    shard.grad = shard_of(parameter.grad)
    return shard


def not_finite(model: nn.Module) -> list[str]:
    """Parameters whose gradient, in this worker's shard, is not finite."""
    found = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(shard_of(parameter.grad)).all()):
            found.append(name)
    return found
