"""How many workers fit on a node: ours and Ray's own placement give one answer."""

from types import SimpleNamespace

import pytest
from events import EVENT_S, wait_for

from planner.dispatch.resources import gpus_for_several, room_for, taken_by_a_worker
from planner.job import Workers
from planner.local_cluster.embedded import NodeShape
from planner.plan import workers_on_node
from planner.runner.execute import room_warning
from planner.runner.local import LocalShape

# NPU is a resource that Ray cuts into instances of 1, as it does GPUs. Only the node under test has a `here`.
NODE = {"CPU": 1, "slot": 3, "wide": 57, "NPU": 3, "accelerator_type:A100": 1, 'a "b=:/\\': 2, "here": 1000}
TAKEN = [
    {"CPU": 0.1},
    {"CPU": 0.2},
    {"CPU": 0.3},
    {"CPU": 0.33335},
    {"slot": 0.1},
    {"slot": 0.7},
    {"slot": 1.5},
    {"wide": 0.57},
    {"wide": 1.14},
    {"NPU": 0.4},
    {"NPU": 2},
    {"CPU": 0.1, "slot": 0.4},
    {"accelerator_type:A100": 0.1, 'a "b=:/\\': 0.3},
]
_REFUSED = {"NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES"}


@pytest.mark.parametrize(
    ("markets", "waits"),
    [
        (("on-demand", "spot"), ""),
        (("spot", "spot"), "have room for 0, but workers.min is 1 (others have room for 4)"),
        (("", ""), "No node has this label"),
    ],
)
def test_a_floor_needs_room_on_on_demand_nodes(markets, waits):
    """Before a run begins, and in its dry run."""
    job = SimpleNamespace(workers=Workers(min=1, min_on="on-demand", gpus=0))
    found = room_warning(job, [({"CPU": 2}, market) for market in markets])
    assert waits in found
    assert bool(found) == bool(waits)


@pytest.fixture
def node(cluster):
    """One more node of the shared cluster."""
    before = cluster.shape
    cluster.shape = NodeShape(cpus=NODE["CPU"], resources={name: NODE[name] for name in NODE if name != "CPU"})
    try:
        found = cluster.add_node()
    finally:
        cluster.shape = before
    yield found
    cluster.kill_node(found)


@pytest.mark.ray
@pytest.mark.usefixtures("node")
def test_ray_places_as_many_workers_as_we_say_and_not_one_more():
    """Bundles, as Ray Train places workers: on a real node, for parts of CPUs, of custom resources and of units."""
    from ray.util import placement_group, placement_group_table, remove_placement_group

    def state(group):
        found = placement_group_table(group)["stats"]["scheduling_state"]
        return found in {"FINISHED", *_REFUSED} and found

    for takes in TAKEN:
        taken = {**takes, "here": 1}
        group = placement_group([taken] * workers_on_node(NODE, taken))
        assert group.wait(EVENT_S), takes  # also for what the last one gives back
        more = placement_group([taken])
        assert wait_for(lambda more=more: state(more)) in _REFUSED, takes
        remove_placement_group(group)
        remove_placement_group(more)


@pytest.mark.parametrize("gpus", [0, 4])
@pytest.mark.parametrize(
    "takes", [{}, {"cpus": 0.1}, {"cpus": 2.5}, {"cpus": 0.5, "resources": {"slot": 0.3}}, {"resources": {"slot": 2}}]
)
def test_the_local_cluster_has_room_for_as_many_workers_as_it_says(takes, gpus):
    """A node for each worker on the CPU, one node for all on GPUs; also where a worker takes parts."""
    local = LocalShape(num_workers=4, gpus=gpus, workers=Workers(gpus=int(gpus > 0), **takes))
    shape = local.shape
    node = {"CPU": shape.cpus, "GPU": shape.gpus, **shape.resources}
    taken = taken_by_a_worker(local.workers, node_each=not gpus)
    assert workers_on_node(node, taken) == local.workers_per_node


def test_a_clusters_room_is_that_of_its_nodes():
    """Also where a worker takes part of a CPU: 10 of 0.1 on each."""
    assert room_for({"CPU": 0.1}, [{"CPU": 1.0}, {"CPU": 1.0}]) == 20
    assert room_for({"CPU": 0.2}, [{"CPU": 1.0}, {"slot": 1.0}]) == 5


@pytest.mark.parametrize(
    ("gpus", "nodes", "several"),
    [
        (1, [{"GPU": 1.0}, {"GPU": 1.0}], False),
        (1, [{"GPU": 1.0}, {"GPU": 2.0}], True),
        (1, [{"CPU": 8.0}], False),
        (0, [{"CPU": 8.0, "GPU": 8.0}], False),
    ],
)
def test_workers_that_share_a_node_with_gpus_cost_new_processes(gpus, nodes, several):
    """On the CPU they keep them, however many a node has."""
    assert gpus_for_several(Workers(gpus=gpus).taken, nodes) is several
