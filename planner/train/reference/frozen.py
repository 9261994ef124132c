"""The reference model, which gives the log-probabilities that a policy is held to: its first weights, or another model.

It is not in checkpoints, because its weights follow from the job, or are in the earlier run's commit (`after`).
"""

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor, nn

from planner.base import progress_counter
from planner.data.job_folders import JobFolders
from planner.job import HfModel, Job
from planner.train.earlier_weights import EarlierWeights
from planner.train.log_probs import log_probs, no_training
from planner.train.sample_batches import Sequences
from planner.train.shard import make_model
from planner.train.world import World


class Reference(Protocol):
    """A source of log-probabilities, without gradient and without dropout."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(n,)` float32 on the policy's device. `rows` are the samples of the sequences, empty for a ghost."""
        ...


class UniformReference:
    """A reference to which all completions are equally likely, so its log-probabilities cancel in differences."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(n,)` zeros, float32 on the policy's device."""
        del rows
        return torch.zeros(len(sequences.lengths), device=next(policy.parameters()).device)


class FrozenReference:
    """A reference that is a second sharded model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(n,)` float32 on the policy's device, by a forward pass of the second model."""
        del policy, rows
        with no_training(self.model):
            return log_probs(self.model, sequences)


class PolicyWithoutAdapters:
    """A reference that is the policy without its adapters, so that no second model is needed."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(n,)` float32 on the policy's device, by a forward pass of the policy."""
        del rows
        # All models with adapters are `HfCausal`, which has this method.
        with no_training(policy), policy.without_adapters():  # type: ignore[operator]
            return log_probs(policy, sequences)


def make_reference(job: Job, folders: JobFolders, world: World, auto_attention: tuple[str, ...]) -> Reference:
    """Make the reference of a job that computes it by forward passes. All workers must call it."""
    if job.reference.source == "none":
        return UniformReference()
    if job.reference.model is None and isinstance(job.model, HfModel) and job.model.lora is not None:
        return PolicyWithoutAdapters()
    return FrozenReference(make_reference_model(job, folders, world, auto_attention))


def make_reference_model(job: Job, folders: JobFolders, world: World, auto_attention: tuple[str, ...]) -> nn.Module:
    """The frozen sharded model: the job's other model, or the first weights, which are equal in every generation.

    `auto_attention`: as for `make_model`.
    """
    if folders.reference:
        model = make_model(folders.reference, job.train, world, auto_attention=auto_attention)
    else:
        bare = folders.model and replace(folders.model, model=folders.model.model.model_copy(update={"lora": None}))
        earlier = EarlierWeights.of(job, folders.model, world, "the reference")
        model = make_model(bare or job.model, job.train, world, earlier=earlier, auto_attention=auto_attention)
    model.requires_grad_(requires_grad=False)
    # So that the controller does not take a long pass of the reference for a hang.
    model.register_forward_pre_hook(progress_counter.count_work)
    return model
