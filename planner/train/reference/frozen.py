"""Log-probabilities of the model that a policy is held to: its first weights, or another model.

Never in a checkpoint: the first weights follow from the job alone, whatever the policy has become since.
"""

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from planner.base import work_counter
from planner.job import GptModel, HfModel, Job
from planner.train.log_probs import log_probs, no_training
from planner.train.sample_batches import Sequences
from planner.train.shard import make_model
from planner.train.world import World


class Reference(Protocol):
    """Answers like `planner.train.log_probs.log_probs`, without gradient and without dropout."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(n,)` float32 on the policy's device; `rows` are the samples that the sequences are of, none for a ghost."""
        ...


class UniformReference:
    """Every completion is as likely as any other: its log-probabilities fall out of all differences."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """Zeros."""
        del rows
        return torch.zeros(len(sequences.lengths), device=next(policy.parameters()).device)


class FrozenReference:
    """A second model in shards."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """By a forward pass of its own."""
        del policy, rows
        with no_training(self._model):
            return log_probs(self._model, sequences)


class PolicyWithoutAdapters:
    """Where adapters alone are trained, the first weights lie below them: no second model is needed."""

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """By a forward pass of the policy."""
        del rows
        # Models that are trained with adapters are all of one class, which has it.
        with no_training(policy), policy.without_adapters():  # type: ignore[operator]
            return log_probs(policy, sequences)


def make_reference(job: Job, world: World) -> Reference:
    """What a job's objective wants to be held to, by forward passes. Every worker calls it: models are sharded."""
    if job.reference.source == "none":
        return UniformReference()
    if job.reference.model is None and isinstance(job.model, HfModel) and job.model.lora is not None:
        return PolicyWithoutAdapters()
    return FrozenReference(make_reference_model(job, world))


def make_reference_model(job: Job, world: World) -> nn.Module:
    """The frozen model in shards: another one, or the first weights, which are the same in every generation."""
    config = cast("GptModel | HfModel", job.model)
    if isinstance(config, HfModel):
        config = config.model_copy(update={"lora": None})
        if (other := job.reference.model) is not None:
            config = config.model_copy(update={"path": other, "revision": None, "weights": "pretrained"})
    model = make_model(config, job.train, world).requires_grad_(requires_grad=False)
    model.register_forward_pre_hook(work_counter.count_work)
    return model
