"""The parts of a step, one by one, without a process group."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.data.base import sample_row_counts
from planner.data.samples import NO_LOSS, Text
from planner.job import AdamW, GptModel, LmObjective, Schedule, Train
from planner.job.step_schedule import StepSchedule, learning_rate
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train import control
from planner.train.batches import Loader
from planner.train.control import Tally
from planner.train.exact.gradient_sums import FloatSums
from planner.train.models.gpt import Gpt
from planner.train.objectives import denominators, make_objective
from planner.train.optimize import clip_gradients, make_optimizer, set_learning_rate
from planner.train.reference.frozen import UniformReference
from planner.train.sample_batches import batch_of, text_batch

PEAK = 0.5
CONTEXT = 12


def rates(kind, total_steps, warmup_steps=0, final_fraction=0.0):
    """The rate of every step."""
    schedule = Schedule(kind=kind, final_fraction=final_fraction)
    train = Train(steps=total_steps, optimizer=AdamW(kind="adamw", lr=PEAK), schedule=schedule)
    lengths = StepSchedule(total_steps=total_steps, warmup_steps=warmup_steps, eval_every=1, commit_every="auto")
    return [learning_rate(train, step, lengths) for step in range(total_steps)]


# -- the learning rate


def test_constant_is_constant():
    """At the peak, from the first step on."""
    assert rates("constant", 5) == [PEAK] * 5


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_warmup_rises_by_equal_steps_to_the_peak(kind):
    """The first step is not wasted at zero; the first step after warmup is at the peak, too."""
    measured = rates(kind, 20, warmup_steps=4)
    assert measured[:5] == pytest.approx([PEAK / 4, PEAK / 2, 3 * PEAK / 4, PEAK, PEAK])


@pytest.mark.parametrize("final_fraction", [0.0, 0.1, 1.0])
def test_linear_falls_by_equal_steps(final_fraction):
    """From the peak to its fraction, reached at the last step."""
    measured = rates("linear", 14, warmup_steps=3, final_fraction=final_fraction)[3:]
    assert measured == pytest.approx(np.linspace(PEAK, PEAK * final_fraction, 11).tolist())


@pytest.mark.parametrize("final_fraction", [0.0, 0.1, 1.0])
def test_cosine_falls_along_half_a_wave(final_fraction):
    """The ends, the middle and the quarter by hand."""
    measured = rates("cosine", 12, warmup_steps=3, final_fraction=final_fraction)[3:]
    span = PEAK * (1 - final_fraction)
    last = PEAK * final_fraction
    assert measured[0] == pytest.approx(PEAK)
    assert measured[2] == pytest.approx(last + span * (1 + math.sqrt(0.5)) / 2)
    assert measured[4] == pytest.approx(last + span / 2)
    assert measured[8] == pytest.approx(last)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_a_run_shorter_than_its_warmup_never_reaches_the_peak(kind):
    """It goes on rising to the end."""
    assert rates(kind, 3, warmup_steps=10) == pytest.approx([PEAK / 10, 2 * PEAK / 10, 3 * PEAK / 10])


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("total_steps", "warmup_steps"), [(1, 0), (5, 4), (4, 4), (1, 1)])
def test_one_step_after_warmup_is_at_the_peak(kind, total_steps, warmup_steps):
    """A shape of one step, or none, has no end to come down to."""
    assert rates(kind, total_steps, warmup_steps)[-1] == pytest.approx(PEAK)


@given(
    kind=st.sampled_from(["constant", "linear", "cosine"]),
    total_steps=st.integers(1, 200),
    warmup_steps=st.integers(0, 250),
    final_fraction=st.floats(0, 1),
)
def test_a_rate_is_between_nothing_and_the_peak(kind, total_steps, warmup_steps, final_fraction):
    """It rises in warmup and never rises after it."""
    measured = rates(kind, total_steps, warmup_steps, final_fraction)
    assert all(0 <= rate <= PEAK * (1 + 1e-12) for rate in measured)
    warm, after = measured[:warmup_steps], measured[warmup_steps:]
    assert warm == sorted(warm)
    assert all(later <= earlier * (1 + 1e-12) + 1e-15 for earlier, later in pairwise(after))
    assert all(rate > 0 for rate in warm)


def test_a_rate_is_set_in_every_group():
    """And in nothing else."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weight], "momentum": 0.5} for weight in weights], lr=1.0)
    set_learning_rate(optimizer, 0.25)
    assert [(group["lr"], group["momentum"]) for group in optimizer.param_groups] == [(0.25, 0.5)] * 2


@pytest.mark.parametrize(("clip_norm", "scale"), [(None, 1.0), (100.0, 1.0), (1.0, 0.2)])
def test_clipping_scales_the_whole_gradient(clip_norm, scale):
    """By one factor. A weight without a gradient is passed over."""
    model = torch.nn.ParameterList([torch.zeros(1), torch.zeros(1), torch.zeros(1)])
    model[0].grad, model[1].grad = torch.tensor([3.0]), torch.tensor([-4.0])
    assert FloatSums(model).norm() == pytest.approx(5.0)
    clip_gradients(model, 5.0, clip_norm)
    assert model[0].grad.item() == pytest.approx(3 * scale, rel=1e-5)
    assert model[1].grad.item() == pytest.approx(-4 * scale, rel=1e-5)


# -- micro-batches

rows_of_tokens = st.lists(
    st.tuples(st.integers(0, 2**40), st.binary(min_size=2, max_size=CONTEXT + 1)), min_size=1, max_size=6
)


def collated(rows):
    return batch_of([row for row, _ in rows], [text_of_bytes(text) for _, text in rows])


def text_of_bytes(content):
    return Text.of(np.frombuffer(content, dtype=np.uint8).astype(np.int32))


@given(rows=rows_of_tokens)
def test_a_micro_batch_holds_inputs_labels_and_padding(rows):
    """Each row's inputs are all tokens but the last, its labels all but the first; what is left bears no loss."""
    batch = collated(rows)
    longest = max(len(text) for _, text in rows) - 1
    assert batch.sequences.inputs.shape == batch.sequences.labels.shape == (len(rows), longest)
    for (_, text), inputs, labels in zip(
        rows, batch.sequences.inputs.tolist(), batch.sequences.labels.tolist(), strict=True
    ):
        padding = longest - len(text) + 1
        assert inputs == [*text[:-1], *[0] * padding]
        assert labels == [*text[1:], *[NO_LOSS] * padding]
    assert batch.rows == tuple(row for row, _ in rows)
    assert batch.num_tokens == sum(len(text) - 1 for _, text in rows)


@given(rows=rows_of_tokens)
def test_the_checksum_of_a_micro_batch_is_the_sum_over_its_rows(rows):
    """Taken from the tensors, it equals what the audit derives from the data, padding or not."""
    expected = sum(sample_row_counts(row, text_of_bytes(text)).check_sum for row, text in rows)
    assert collated(rows).check_sum() == expected


@given(rows=rows_of_tokens, data=st.data())
def test_the_checksum_sees_the_tensors(rows, data):
    """A token that is changed after collating, in inputs or labels, changes it."""
    batch = collated(rows)
    before = batch.check_sum()
    i = data.draw(st.integers(0, len(rows) - 1))
    if data.draw(st.booleans()):
        batch.sequences.inputs[i, data.draw(st.integers(0, len(rows[i][1]) - 2))] ^= 1
    else:
        batch.sequences.labels[i, len(rows[i][1]) - 2] ^= 1
    assert batch.check_sum() != before


@pytest.fixture(scope="module")
def model():
    """A small model with weights far from zero."""
    torch.manual_seed(0)
    return Gpt(GptModel(kind="gpt", layers=1, width=16, heads=2, context=CONTEXT))


def gradient(model, batches, totals):
    """The loss summed over micro-batches, and every weight's gradient."""
    model.zero_grad(set_to_none=True)
    objective, loss = make_objective(LmObjective(), UniformReference()), 0.0
    for batch in batches:
        part = objective.loss(model, batch, totals)
        part.backward()
        loss += part.item()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


def test_a_ghost_weighs_nothing(model):
    """No rows, no tokens, no checksum, a loss of zero and a gradient of exactly zero for every weight."""
    ghost = batch_of([], [])
    assert (ghost.rows, ghost.num_tokens, ghost.check_sum()) == ((), 0, 0)
    assert ghost.sequences.inputs.shape == (1, 1)
    assert denominators(make_objective(LmObjective(), UniformReference()), [ghost]) == (0, 0)
    for totals in [(0, 0), (7, 2)]:
        loss, gradients = gradient(model, [ghost], totals)
        assert loss == 0.0
        assert all(torch.count_nonzero(g) == 0 and torch.isfinite(g).all() for g in gradients)


def test_a_ghost_beside_real_samples_changes_no_bit(model):
    """Not of the loss, not of any gradient."""
    batch = collated([(0, b"abcdef"), (1, b"xy")])
    loss, plain = gradient(model, [batch], (6,))
    with_ghost = gradient(model, [batch, batch_of([], [])], (6,))
    assert with_ghost[0] == loss > 0
    assert all(torch.equal(a, b) for a, b in zip(plain, with_ghost[1], strict=True))


def test_padding_changes_nothing(model):
    """A short row beside a long one has the loss and the gradient that it has alone."""
    rows = [(0, b"abcdefghijk"), (1, b"xy"), (2, b"hello")]
    together = gradient(model, [collated(rows)], (16,))
    apart = gradient(model, [collated([row]) for row in rows], (16,))
    assert together[0] == pytest.approx(apart[0], rel=1e-6)
    for a, b in zip(together[1], apart[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_mean_over_every_token(model):
    """Of the whole global batch, whatever the split: a short micro-batch's tokens weigh no more."""
    rows = [(0, b"abcdefghijk"), (1, b"xy")]
    losses = [gradient(model, [collated([row])], (1,))[0] for row in rows]
    objective = make_objective(LmObjective(), UniformReference())
    batches = [collated([row]) for row in rows]
    totals = denominators(objective, batches)
    assert totals == (11, 2)
    assert gradient(model, batches, totals)[0] == pytest.approx(sum(losses) / 11, rel=1e-6)


@given(splits=st.lists(rows_of_tokens, max_size=4))
def test_denominators_add_up_over_micro_batches(splits):
    """Loss-bearing tokens, zero for none, and samples."""
    expected = sum(len(text) - 1 for rows in splits for _, text in rows)
    found = denominators(make_objective(LmObjective(), UniformReference()), [collated(rows) for rows in splits])
    assert found == (expected, sum(map(len, splits)))


# -- the loader


class Rows:
    """A data set in memory: row i has i % 5 + 2 tokens, all of them i."""

    num_rows = 40
    fingerprint = "f" * 64

    def samples(self, rows):
        return [Text.of(np.full(row % 5 + 2, row, dtype=np.int32)) for row in rows]


def loaders_of(order, plan):
    """One for each worker."""
    ranks = range(plan.world_size)
    return [Loader(dataset=Rows(), order=order, plan=plan, rank=rank, make_batch=text_batch) for rank in ranks]


@pytest.mark.parametrize(("global_batch", "max_micro"), [(12, 4), (13, 3), (7, 1), (3, 2)])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_workers_together_load_the_global_batch(global_batch, max_micro, world_size):
    """Every sample once, in the order's own order, equally many rounds each, across the end of an epoch."""
    order = Order(num_rows=40, num_held_out=6, seed=1)
    plan = make_plan(BatchSizes(global_batch=global_batch, max_micro=max_micro), world_size)
    loaders = [
        Loader(dataset=Rows(), order=order, plan=plan, rank=rank, make_batch=text_batch) for rank in range(world_size)
    ]
    for cursor in [0, 29, 2 * 34 - 1]:
        batches = [loader.load(cursor).batches for loader in loaders]
        assert {len(rounds) for rounds in batches} == {plan.accumulation_steps}
        rows = [row for rounds in batches for batch in rounds for row in batch.rows]
        assert rows == order.rows(cursor, cursor + global_batch).tolist()
        for batch in (batch for rounds in batches for batch in rounds):
            assert len(batch.rows) <= max_micro
            assert [
                set(t[: row % 5 + 1]) for row, t in zip(batch.rows, batch.sequences.inputs.tolist(), strict=False)
            ] == [{row} for row in batch.rows]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_all_workers_together_load_the_held_out_samples(world_size):
    """Each once, at any world size."""
    order = Order(num_rows=40, num_held_out=3, seed=1)
    plan = make_plan(BatchSizes(global_batch=3, max_micro=2), world_size)
    loaders = [
        Loader(dataset=Rows(), order=order, plan=plan, rank=rank, make_batch=text_batch) for rank in range(world_size)
    ]
    rows = [row for loader in loaders for batch in loader.load_held_out() for row in batch.rows]
    assert rows == order.held_out_rows(0, 3).tolist()


# -- the control message


def summed(tallies):
    """What the all-reduce hands to every worker: an int64 must hold it."""
    columns = zip(*(control._encode(tally, len(tallies)) for tally in tallies), strict=True)
    return control._decode(
        torch.tensor([list(column) for column in columns]).sum(dim=1).tolist(), len(tallies[0].metrics)
    )


@st.composite
def groups(draw):
    """One tally per worker, with equally many denominators and metrics."""
    num_denominators, num_metrics = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    tally = st.builds(
        Tally,
        denominators=st.tuples(*[st.integers(0, 2**40)] * num_denominators),
        samples=st.integers(0, 2**20),
        loss=st.floats(-100, 100),
        metrics=st.tuples(*[st.floats(-100, 100)] * num_metrics),
        check_sum=st.integers(0, 2**76),
        stop=st.integers(0, 1),
        failed=st.integers(0, 1),
        report=st.integers(0, 1),
        commit=st.integers(0, 1),
    )
    return draw(st.lists(tally, min_size=1, max_size=9))


@given(group=groups())
def test_a_sum_of_tallies_decodes_to_the_sums(group):
    """Counts exactly, the checksum modulo 2^64, the loss to half a unit of 2^-36 per worker."""
    total = summed(group)
    assert total.denominators == tuple(map(sum, zip(*(tally.denominators for tally in group), strict=True)))
    for name in ["samples", "stop", "failed", "report", "commit"]:
        assert getattr(total, name) == sum(getattr(tally, name) for tally in group)
    assert total.check_sum == sum(tally.check_sum for tally in group) % 2**64
    for found, *parts in zip(
        (total.loss, *total.metrics), *((tally.loss, *tally.metrics) for tally in group), strict=True
    ):
        exact = math.fsum(parts)
        assert abs(found - exact) <= len(group) * 2.0**-37 + abs(exact) * 1e-15


@given(group=groups(), data=st.data())
def test_the_sum_does_not_depend_on_the_order_of_workers(group, data):
    """To the last bit."""
    assert summed(data.draw(st.permutations(group))) == summed(group)


@given(group=groups(), data=st.data(), loss=st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -(2.0**26)]))
def test_one_loss_that_is_not_finite_makes_the_sum_nan(group, data, loss):
    """Or one too large for the message; everything else is still summed."""
    i = data.draw(st.integers(0, len(group) - 1))
    others = group[:i] + group[i + 1 :]
    broken = summed([*others, replace(group[i], samples=5, loss=loss)])
    assert math.isnan(broken.loss)
    assert broken.metrics == summed(group).metrics
    assert broken.samples == sum(tally.samples for tally in others) + 5


@pytest.mark.parametrize("world_size", [1, 2, 3, 1000, 65_536])
def test_the_largest_message_fits_an_int64(world_size):
    """Every field at its most, on every worker."""
    largest = Tally(
        denominators=(2**46,),
        samples=2**20,
        loss=math.nextafter(2.0**26 / world_size, 0),
        metrics=(-math.nextafter(2.0**26 / world_size, 0),),
        check_sum=2**64 - 1,
        stop=1,
        failed=1,
        report=1,
        commit=1,
    )
    values = [value * world_size for value in control._encode(largest, world_size)]
    assert max(values) < 2**63
    total = control._decode(values, 1)
    assert total.loss == pytest.approx(2.0**26)
    assert total.metrics == pytest.approx((-(2.0**26),))
    assert total.check_sum == (2**64 - 1) * world_size % 2**64
    assert total.denominators == (2**46 * world_size,)
    too_large = Tally(denominators=(1,), loss=-(2.0**26) / world_size)
    assert math.isnan(control._decode(control._encode(too_large, world_size), 0).loss)


def test_the_optimizer_is_the_one_that_the_job_names():
    """With its numbers, and never fused: shards must round as the whole tensor does."""
    model = torch.nn.Linear(2, 2)
    train = Train.model_validate(
        {"steps": 1, "optimizer": {"kind": "adamw", "lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.2}}
    )
    optimizer = make_optimizer(train.optimizer, model)
    assert isinstance(optimizer, torch.optim.AdamW)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.1, (0.8, 0.9), 1e-6, 0.2)
    assert (group["foreach"], group["fused"]) == (True, None)
    rmsprop = Train.model_validate(
        {"steps": 1, "optimizer": {"kind": "rmsprop", "lr": 0.1, "alpha": 0.7, "eps": 1e-6, "weight_decay": 0.2}}
    )
    group = make_optimizer(rmsprop.optimizer, model).param_groups[0]
    assert (group["lr"], group["alpha"], group["eps"], group["weight_decay"]) == (0.1, 0.7, 1e-6, 0.2)
    sgd = Train.model_validate({"steps": 1, "optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.7}})
    group = make_optimizer(sgd.optimizer, model).param_groups[0]
    assert (group["lr"], group["momentum"], group["foreach"]) == (0.1, 0.7, True)
