"""How many workers fit on one node. `tests/dispatch/test_resources.py` holds the same function against Ray."""

import pytest

from planner.job import Workers
from planner.plan import WorkerRange, worker_range, workers_on_node


@pytest.mark.parametrize(
    ("offers", "takes", "room"),
    [
        ({"CPU": 8, "GPU": 4}, {}, 4),
        ({"CPU": 3, "GPU": 4}, {}, 3),
        ({"CPU": 8, "GPU": 4}, {"cpus": 3}, 2),
        ({"CPU": 8, "GPU": 4}, {"cpus": 0}, 4),
        ({"CPU": 8, "GPU": 0}, {}, 0),
        ({"CPU": 8}, {}, 0),
        ({"CPU": 8}, {"gpus": 0, "cpus": 2.5}, 3),
        ({"CPU": 1}, {"gpus": 0, "cpus": 0.1}, 10),
        ({"CPU": 1}, {"gpus": 0, "cpus": 0.2}, 5),
        ({"CPU": 1}, {"gpus": 0, "cpus": 0.33335}, 3),
        ({"CPU": 8, "GPU": 4}, {"resources": {"slot": 1}}, 0),
        ({"CPU": 8, "GPU": 4, "slot": 1}, {"resources": {"slot": 0.5}}, 2),
        ({"CPU": 8, "GPU": 4, "slot": 1}, {"resources": {"slot": 0.0001}}, 4),
    ],
)
def test_the_scarcest_resource_counts(offers, takes, room):
    """In Ray's ten-thousandths."""
    assert workers_on_node(offers, Workers(**takes).taken) == room


def test_parts_of_an_accelerator_lie_within_one_of_them():
    """Ray cuts it into instances of 1. A job cannot ask for one, but a caller of the function can."""
    assert workers_on_node({"CPU": 8, "NPU": 3}, {"CPU": 1, "NPU": 0.4}) == 6
    assert workers_on_node({"CPU": 8, "NPU": 3}, {"CPU": 1, "NPU": 2}) == 1


def test_a_float_sum_of_rays_is_as_good_as_the_number():
    """Ray's coordinator adds and subtracts floats: 0.3 - 0.1 - 0.1 is below 0.1."""
    assert workers_on_node({"CPU": 0.1 + (0.3 - 0.1 - 0.1)}, {"CPU": 0.1}) == 2


def test_a_worker_that_takes_nothing_is_a_mistake():
    """A job cannot say it."""
    with pytest.raises(ValueError, match="takes no resources"):
        workers_on_node({"CPU": 1}, {})


def test_a_run_never_uses_more_workers_than_a_batch_has_samples():
    """G bounds workers.max, and what is there is moved into the range."""
    workers = worker_range(workers_min=2, workers_max=16, global_batch=12)
    assert workers == WorkerRange(least=2, most=12)
    assert [workers.nearest(room) for room in (0, 2, 7, 40)] == [2, 2, 7, 12]


@pytest.mark.parametrize(("least", "most"), [(0, 4), (5, 4)])
def test_an_empty_range_is_refused(least, most):
    """A job's own bounds are checked where it is read."""
    with pytest.raises(ValueError, match="begins at 1 or more and is not empty"):
        WorkerRange(least=least, most=most)
