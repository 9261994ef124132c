"""The optimizer state into which a checkpoint is loaded: on which device each tensor is."""

from types import SimpleNamespace

import pytest
import torch

from planner.train.checkpoints.checkpoint import Saved, prepared
from planner.train.exact.gradient_sums import FloatSums
from planner.train.state import TrainState

IDENTITY = SimpleNamespace(optimizer="adamw", equality="balanced")
MANIFEST = SimpleNamespace(name="000000000001-000001", identity=IDENTITY)
SHAPES = {
    "model/weight": (2, 3),
    "optimizer/weight/step": (),
    "optimizer/weight/exp_avg": (2, 3),
    "optimizer/weight/exp_avg_sq": (2, 3),
}


@pytest.mark.parametrize(("form", "device"), [("fused", "meta"), ("capturable", "meta"), ("foreach", "cpu")])
def test_a_step_is_counted_where_the_optimizer_reads_it(form, device):
    """A fused kernel on a GPU cannot read a count in the memory of the host. `meta` stands for a GPU."""
    model = torch.nn.Linear(3, 2, bias=False, device="meta")
    optimizer = torch.optim.AdamW(model.parameters(), **{form: True})
    saved = {name: Saved(shape=torch.Size(shape), dtype=torch.float32) for name, shape in SHAPES.items()}
    wanted = prepared(TrainState.of(model, optimizer, FloatSums(model)), saved, MANIFEST, IDENTITY)
    assert wanted.keys() == SHAPES.keys()
    assert {name: tuple(tensor.shape) for name, tensor in wanted.items()} == SHAPES
    assert wanted["optimizer/weight/step"].device.type == device
    assert wanted["optimizer/weight/exp_avg"].device.type == "meta"
