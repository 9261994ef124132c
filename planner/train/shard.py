"""The model in shards: FSDP2 per block, gradients summed and never averaged."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from planner.job import GptModel, Model, Train
from planner.train.models.gpt import Gpt
from planner.train.world import World


def make_model(config: Model, train: Train, world: World) -> nn.Module:
    """A job's model with its first weights, in shards: the same weights at every world size."""
    return shard(build_model(config, train), world, train)


def build_model(config: Model, train: Train) -> nn.Module:
    """The whole model on the CPU, with the same weights on every worker: they depend on the seed alone."""
    assert isinstance(config, GptModel)  # who has one of his own does not come here
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(train.seed)
        return Gpt(config, activation_checkpointing=train.activation_checkpointing)


def shard(model: nn.Module, world: World, train: Train) -> nn.Module:
    """Shard every block and then the rest, in place.

    Gradients are reduced in float32 after every round, which keeps them sharded: a worker holds 1/W of them, for
    A reduce-scatters a step. (Reducing once, after the last round, would hold a full copy on every worker.)
    """
    model.to(world.device)
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if train.precision == "bf16" else None, reduce_dtype=torch.float32
    )
    blocks = model.get_submodule("blocks")
    for block in blocks.children():
        fully_shard(block, mesh=world.mesh, mp_policy=precision)
    fully_shard(model, mesh=world.mesh, mp_policy=precision)
    sum_gradients(model)
    return model


def sum_gradients(model: nn.Module) -> None:
    """Let FSDP sum gradients over workers: the loss is divided by the global count already, so the sum is the mean."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no PREMUL_SUM, which FSDP would use for a factor of its own.
            module.set_force_sum_reduction_for_comms(True)
