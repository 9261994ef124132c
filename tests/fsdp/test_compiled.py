"""Compiled blocks: the same losses as without, at every world size, and few graphs."""

import math
from functools import partial
from unittest import mock

import pytest
from test_hf_training import hf_job, run_hf
from worker_functions import TWO_BLOCKS, make_job, records

from planner.job import HfModel

pytestmark = pytest.mark.fsdp

HISTORIES = {"short": [(2, 2), (1, None)], "long": [(4, 2), (3, 2), (5, 2), (1, None)]}
"""workers, and after how many steps they stop"""


def run_counted(rank, job, url, stop_at, backend):
    """Graphs that this process has compiled in a generation, by this backend of torch."""
    import torch
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    with mock.patch.object(torch, "compile", partial(torch.compile, backend=backend)):
        run_hf(rank, job, url, stop_at)
    return counters["stats"]["unique_graphs"] - before


def losses(url):
    return [record["loss"] for record in records(url)]


@pytest.mark.parametrize(
    ("kind", "history", "backend"),
    [
        # The same graphs, forward and backward, without a minute of a C++ compiler.
        ("gpt", "short", "aot_eager"),
        *(pytest.param(kind, "long", "inductor", marks=pytest.mark.slow) for kind in ("gpt", "hf")),
    ],
)
def test_compiled_blocks_lose_nothing_over_resizes(workers, texts, tiny_model, tmp_path, kind, history, backend):
    """Losses equal to 1e-5 at all sizes, and two graphs for all blocks and sizes."""
    settings = {"steps": 8, "eval": {"samples": 3, "every": 4}}
    plain = make_job(texts, model=TWO_BLOCKS, **settings)
    if kind == "hf":
        model = HfModel.model_validate({"kind": "hf", "path": str(tiny_model("llama")), "context": 24})
        plain = hf_job(texts, model, train={"steps": 8}, eval=settings["eval"])
    compiled = plain.model_copy(update={"train": plain.train.model_copy(update={"compile": "blocks"})})
    graphs = [0] * 8
    for num_workers, stop_at in HISTORIES[history]:
        workers.run(run_hf, num_workers, plain, str(tmp_path / "plain"), stop_at)
        found = workers.run(run_counted, num_workers, compiled, str(tmp_path / "compiled"), stop_at, backend)
        graphs = [total + new for total, new in zip(graphs, [*found, *[0] * (8 - num_workers)], strict=True)]
    expected, found = losses(tmp_path / "plain"), losses(tmp_path / "compiled")
    assert len(found) == len(expected) == 8
    assert all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(found, expected, strict=True))
    assert 1 <= max(graphs) <= 2, graphs
