"""Which rows a process computes, and what they weigh: sums over all processes and rounds."""

import itertools

import pytest

from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.trl.micro_batches import MicroBatchSampler, Shares, run_length

SIZES = [(16, 4, w) for w in (1, 2, 3, 5, 7)] + [(5, 1, 2), (2, 4, 3), (33, 2, 4), (1, 1, 1)]
ROWS = 50


def shares_of(global_batch, max_micro, world_size):
    plan = make_plan(BatchSizes(global_batch=global_batch, max_micro=max_micro), world_size)
    order = Order(num_rows=ROWS, seed=3)
    return [Shares(plan=plan, order=order, rank=rank) for rank in range(world_size)]


def places(shares):
    return [(share, number) for share in shares for number in range(share.num_rounds)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("step", [0, 7])
def test_each_position_is_computed_once(sizes, step):
    """Over all processes and rounds, but for ghosts. Step 7 crosses the end of an epoch."""
    shares = shares_of(*sizes)
    found = [row for share, number in places(shares) if not share.is_ghost(number) for row in share.rows(step, number)]
    assert found == shares[0].order.rows(step * sizes[0], (step + 1) * sizes[0]).tolist()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_average_over_processes_is_the_mean_over_samples(sizes):
    """As DDP does it: each process adds up its rounds, and the processes are averaged."""
    global_batch, max_micro, world_size = sizes
    values = [0.5 * n * n - n for n in range(global_batch)]
    total = 0.0
    for share, number in places(shares_of(*sizes)):
        micro = share.plan.micro_batch(share.rank, number)
        mean = sum(values[n] for n in micro) / len(micro) if micro else 123.0  # what a ghost computes
        total += share.mean_weight(number) * mean
        assert len(micro) <= max_micro
    assert total / world_size == pytest.approx(sum(values) / global_batch)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_all_processes_have_as_many_rounds_and_know_each_others_samples(sizes):
    shares = shares_of(*sizes)
    assert len({share.num_rounds for share in shares}) == 1
    for number in range(shares[0].num_rounds):
        samples = [share.samples(number) for share in shares]
        assert all(share.all_samples(number) == samples for share in shares)
        assert sum(samples) > 0


def test_a_ghost_has_one_row_of_the_step():
    """A collator needs one, and each step has its own."""
    ghost = shares_of(2, 4, 3)[2]
    assert ghost.is_ghost(0)
    assert ghost.rows(5, 0) == ghost.order.rows(10, 11).tolist()


def test_positions_do_not_depend_on_the_number_of_processes():
    """So dropout is seeded by them."""
    for sizes in SIZES:
        for share, number in places(shares_of(*sizes)):
            if not share.is_ghost(number):
                position = share.position(4, number)
                assert share.order.rows(position, position + 1)[0] == share.rows(4, number)[0]


def test_an_epoch_begins_where_the_trainer_is_when_it_iterates():
    """Not where it was when the loader was made."""
    share, now = shares_of(16, 4, 3)[1], [0]
    sampler = MicroBatchSampler(shares=share, steps=3, first_step=lambda: now[0])
    now[0] = 5
    found = list(sampler)
    assert len(found) == len(sampler) == 3 * share.num_rounds
    wanted = [share.rows(step, number) for step, number in itertools.product((5, 6, 7), range(share.num_rounds))]
    assert found == wanted


@pytest.mark.parametrize(
    ("max_steps", "num_epochs", "total", "per_epoch", "epochs"),
    [
        (20, 3, 20, 7, 3),
        (-1, 3, 19, 7, 3),  # 300 / 16 = 18.75, and the last step is a whole one
        (-1, 1.0, 7, 7, 1),
        (-1, 1.12, 7, 7, 1),  # 112 rows, but as a binary float 1.12 is slightly more
        (1, 1, 1, 7, 1),
    ],
)
def test_the_length_of_a_run(max_steps, num_epochs, total, per_epoch, epochs):
    found = run_length(num_rows=100, global_batch=16, max_steps=max_steps, num_epochs=num_epochs)
    assert (found.total_steps, found.steps_per_epoch, found.num_epochs) == (total, per_epoch, epochs)
