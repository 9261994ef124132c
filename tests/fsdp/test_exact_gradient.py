"""The gradient of one global batch is the true mean, and the same at every world size."""

import pytest
import torch
from worker_functions import TWO_BLOCKS, make_job

from planner.job import batch_sizes
from planner.plan import make_plan
from planner.provenance.identity import identity_of, open_data
from planner.train.batches import Loader
from planner.train.objectives import denominators, make_objective
from planner.train.reference.frozen import UniformReference
from planner.train.sample_batches import batch_of, text_batch
from planner.train.shard import build_model

pytestmark = pytest.mark.fsdp


def sharded_gradient(rank, job, cursor, where):
    """One worker's call of the real step; rank 0 returns loss and whole gradients."""
    from planner.train import control
    from planner.train.cuts import Cuts
    from planner.train.exact.gradient_sums import FloatSums
    from planner.train.hooks import Hooks
    from planner.train.optimizer_step import Step, accumulate
    from planner.train.shard import shard
    from planner.train.stopwatch import Stopwatch
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    dataset, order = open_data(job)
    plan = make_plan(batch_sizes(job), world.world_size)
    model = shard(build_model(job.model, job.train), world, job.train)
    objective = make_objective(job.objective, UniformReference())
    batches = Loader(dataset=dataset, order=order, plan=plan, rank=rank, make_batch=text_batch).load(cursor).batches
    totals = control.exchange(world, control.Tally(denominators=denominators(objective, batches))).denominators
    sums, watch, cuts = FloatSums(model, where), Stopwatch(), Cuts(world, Hooks())
    step = Step(number=0, model=model, sums=sums, batches=batches, totals=totals, seed=0, watch=watch, cuts=cuts)
    accumulate(model, objective, step)
    (loss,), _ = step.result()
    loss = control.exchange(world, control.Tally(denominators=(0,), loss=loss)).loss
    return loss, {name: p.grad.full_tensor().double() for name, p in model.named_parameters()}


def reference_gradient(job, cursor):
    """One process, float64, the whole global batch in one forward pass."""
    dataset, order = open_data(job)
    rows = [int(row) for row in order.rows(cursor, cursor + job.batch.global_batch)]
    batch = batch_of(rows, dataset.samples(rows)).sequences
    model = build_model(job.model, job.train).double()
    logits = model(batch.inputs)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
    loss = losses.sum() / (batch.labels != -100).sum()
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("where", ["sharded", "local"])
@pytest.mark.parametrize(
    ("global_batch", "max_micro"),
    [
        pytest.param(12, 4, id="divides at 1..4"),
        pytest.param(13, 3, id="prime"),
        pytest.param(7, 1, id="ghost rounds"),
        pytest.param(3, 2, id="fewer samples than workers"),
    ],
)
def test_the_gradient_is_the_true_mean_per_token(workers, texts, global_batch, max_micro, where):
    """At W = 1..5, with unequal token counts, it equals the float64 reference to float32 rounding.

    Whether workers exchange their gradients after every round or once per step.
    """
    job = make_job(texts, global_batch=global_batch, max_micro=max_micro, model=TWO_BLOCKS)
    cursor = 5 * global_batch
    loss, gradient = reference_gradient(job, cursor)
    for world_size in range(1, 6):
        measured_loss, measured = workers.run(sharded_gradient, world_size, job, cursor, where)[0]
        assert measured_loss == pytest.approx(loss, rel=1e-6)
        for name, expected in gradient.items():
            error = (measured[name] - expected).norm() / expected.norm()
            assert error < 2e-6, f"W={world_size} {name}: {error:.1e}"


def test_the_reference_would_catch_a_mean_of_means(texts):
    """The rows are unequal enough: weighing micro-batches instead of tokens is off by far more than rounding."""
    job = make_job(texts, global_batch=12, max_micro=4)
    dataset, order = open_data(job)
    rows = [int(row) for row in order.rows(60, 72)]
    model = build_model(job.model, job.train).double()
    means = []
    for i in range(0, 12, 4):
        batch = batch_of(rows[i : i + 4], dataset.samples(rows[i : i + 4])).sequences
        logits = model(batch.inputs)
        means.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten()))
    (sum(means) / 3).backward()
    _, gradient = reference_gradient(job, 60)
    worst = max(
        ((p.grad - gradient[name]).norm() / gradient[name].norm()).item() for name, p in model.named_parameters()
    )
    assert worst > 1e-3
    assert identity_of(job, dataset, order).global_batch == 12
