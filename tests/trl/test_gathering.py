"""Values of pairs from processes that have unequal numbers of them."""

from types import SimpleNamespace

import pytest
import torch

from planner.errors import TrainingFailed
from planner.trl.gathering import gather_uneven, uneven_gathers

SIZES = (3, 2, 0)


def gathered(values):
    """What every process gets. `values` by rank."""
    sent = []
    for rank, value in enumerate(values):
        gather_uneven(lambda tensor: sent.append(tensor) or tensor.new_zeros(9), value, SIZES, rank)
    assert len({tensor.shape for tensor in sent}) == 1, "a collective needs equal shapes"
    whole = torch.stack(sent) if sent[0].ndim == 0 else torch.cat(sent)
    return [gather_uneven(lambda _tensor: whole, value, SIZES, rank) for rank, value in enumerate(values)]


def test_each_value_comes_once_and_a_ghosts_never():
    """The ghost computes a pair, whose value nobody sees."""
    for found in gathered([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0]), torch.tensor([99.0])]):
        assert found.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_ghosts_sum_is_zero():
    for found in gathered([torch.tensor(6.0), torch.tensor(9.0), torch.tensor(99.0)]):
        assert found.sum() == 15


def test_other_shapes_are_refused():
    """A value per token would be cut silently."""
    with pytest.raises(TrainingFailed, match="gathers 7 values of a micro-batch of 3 samples"):
        gather_uneven(lambda tensor: tensor, torch.zeros(7), SIZES, 0)


def test_the_accelerator_is_as_before_afterwards():
    """Also after an error: evaluation gathers equal shapes by accelerate's own method."""
    pytest.importorskip("accelerate")

    class Accelerator(SimpleNamespace):
        def gather(self, data):
            return data

    accelerator = Accelerator()
    with uneven_gathers(accelerator, (1,), 0):
        assert accelerator.gather({"a": torch.ones(1)})["a"].tolist() == [1.0]
        assert "gather" in vars(accelerator)
    assert "gather" not in vars(accelerator)
    with pytest.raises(TrainingFailed), uneven_gathers(accelerator, (1,), 0):
        accelerator.gather(torch.ones(7))
    assert "gather" not in vars(accelerator)
