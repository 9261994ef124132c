"""What a ledger says of typical steps, by world size."""

import pytest
from made_runs import BEGAN_S, IDENTITY, commit, event, header, measurement, step

from planner.story.step_times import StepTimesFold


def times_of(records):
    fold = StepTimesFold()
    for record in records:
        fold.add(record)
    return fold.times()


def generation(number, workers, first, seconds, **changed):
    """Ten steps, of which the first one takes ten times as long, and two measurements of them."""
    yield header(number, workers, first, **changed)
    for each in range(10):
        yield step(first + each, seconds=seconds * (10 if each == 0 else 1))
    for waits in (9.0, 2.0):
        yield measurement(first + 10, BEGAN_S + first, communication_s=waits)
    yield commit(first + 10, generation=number)


def test_medians_by_world_size_without_first_steps():
    """Two generations of one size count together. Waits are a part of the seconds that were measured with them."""
    records = [*generation(1, 4, 0, 2.0), *generation(2, 3, 10, 3.0), *generation(3, 4, 20, 2.0), event("x", BEGAN_S)]
    found = times_of(records)
    assert [(each.world_size, each.steps, each.seconds) for each in found.times] == [(3, 9, 3.0), (4, 18, 2.0)]
    assert [each.waited_s for each in found.times] == pytest.approx([0.2 * 3.0, 0.2 * 2.0])
    assert (found.num_steps, found.num_commits, found.commit_s) == (30, 3, 3 * 0.5 / 30)
    assert found.sample_tokens == pytest.approx(500 / 64)
    assert (found.sample_flops, found.peak_flops_per_s) == (pytest.approx(4e11 / 64), 1e12 / 4)
    assert (found.header.generation, found.left_out) == (3, 0)


@pytest.mark.parametrize("changed", [{"global_batch": 32}, {"model": "9" * 64}], ids=["batch", "model"])
def test_steps_of_another_batch_or_model_are_left_out(changed):
    """The newest generation's count."""
    identity = IDENTITY.model_copy(update=changed)
    found = times_of([*generation(1, 4, 0, 2.0), *generation(2, 3, 10, 3.0, identity=identity)])
    assert [each.world_size for each in found.times] == [3]
    assert (found.left_out, found.num_steps) == (10, 10)


def test_each_size_has_the_micro_batches_of_its_newest_steps():
    """`batch.max_micro: auto` finds others at each size. The same size may have others later, on other devices."""
    found = times_of(
        [
            *generation(1, 4, 0, 2.0, max_micro=4),
            *generation(2, 3, 10, 3.0, max_micro=2),
            *generation(3, 4, 20, 1.0, max_micro=8),
        ]
    )
    assert [(each.world_size, each.steps, each.seconds, each.caps.max_micro) for each in found.times] == [
        (3, 9, 3.0, 2),
        (4, 9, 1.0, 8),
    ]
    assert [each.waited_s for each in found.times] == pytest.approx([0.2 * 3.0, 0.2 * 1.0])
    assert (found.left_out, found.other_caps, found.num_steps) == (0, 9, 30)
    assert found.times[0].plan(found.sizes).accumulation_steps > found.times[1].plan(found.sizes).accumulation_steps


def test_a_group_without_typical_steps_takes_no_times_away():
    """It had other micro-batches, and ended at once. The times before it still are those of their own."""
    short = [header(2, 4, 10, max_micro=2), step(10, seconds=9.0), measurement(11, BEGAN_S + 11)]
    (found,) = times_of([*generation(1, 4, 0, 2.0, max_micro=4), *short]).times
    assert (found.steps, found.seconds, found.caps.max_micro) == (9, 2.0, 4)
    (found,) = times_of([*generation(1, 4, 0, 2.0, max_micro=4), *short, *generation(3, 4, 11, 2.0, max_micro=4)]).times
    assert (found.steps, found.caps.max_micro) == (18, 4)


def test_nothing_is_known_of_a_run_without_a_second_step():
    """Neither of one without a generation."""
    assert times_of([]) is None
    assert times_of([header(1, 4, 0), step(0)]).times == ()
