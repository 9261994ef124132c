"""The mixin over a stand-in of transformers' Trainer."""

import pytest
import torch
from stand_ins import DPOTrainer, SFTTrainer, made

from planner.errors import DataError
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.trl.micro_batches import Shares
from planner.trl.refusals import base_trainer, reasons

pytest.importorskip("transformers")
ExactBatch = pytest.importorskip("planner.trl.exact_batch").ExactBatch


class Trainer:
    """Counts as transformers does: `prediction_step` asks for the tokens of a batch, too."""

    loss_is_scaled_for_ga = None

    def get_batch_samples(self, batches, num_batches, device):
        found = [next(batches) for _ in range(num_batches)]
        return found, self._get_num_items_in_batch(found, device)

    def _get_num_items_in_batch(self, batches, _device):
        return sum(int((batch["labels"] != -100).sum()) for batch in batches) if "labels" in batches[0] else None


class Exact(ExactBatch, Trainer):
    """As `exact` makes it, without a model."""

    def __init__(self, rank, world_size=3):
        plan = make_plan(BatchSizes(global_batch=4, max_micro=1), world_size)
        self._shares = Shares(plan=plan, order=Order(num_rows=9, seed=0), rank=rank)


def batch():
    return {"labels": torch.tensor([[-100, 3, 4]])}


@pytest.mark.parametrize(("rank", "tokens"), [(0, 4), (1, 2), (2, 2)])
def test_a_ghosts_tokens_are_not_counted(rank, tokens):
    """4 samples on 3 processes in micro-batches of 1: 2 + 1 + 1, in two rounds."""
    trainer, loader = Exact(rank), iter([batch() for _ in range(4)])
    for _ in range(2):  # steps: rounds are counted anew in each
        found, count = trainer.get_batch_samples(loader, 2, None)
        assert (len(found), count) == (2, tokens)


def test_evaluation_keeps_the_labels_of_a_process_that_trains_only_ghosts():
    idle = Exact(rank=5, world_size=6)
    assert idle.get_batch_samples(iter([batch()]), 1, None)[1] == 0
    assert idle._get_num_items_in_batch([batch()], None) == 2


def test_batches_without_labels_are_refused():
    with pytest.raises(DataError, match="no `labels`"):
        Exact(rank=0).get_batch_samples(iter([{}, {}]), 2, None)


@pytest.mark.parametrize("kind", [SFTTrainer, DPOTrainer])
def test_the_mixin_does_not_hide_whose_loss_it_is(kind):
    """Each loss has its own weights and refusals. The mixin has a `compute_loss`, too."""
    mixed = type("Mixed", (ExactBatch, kind), {"__init__": object.__init__})
    assert base_trainer(mixed) is kind
    trainer = made(mixed, loss_types=["aot"])
    assert trainer._is_mean_per_sample == (kind is DPOTrainer)
    assert len(reasons(trainer)) == (kind is DPOTrainer)
