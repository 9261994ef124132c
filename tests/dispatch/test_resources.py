"""How many workers fit on a node: ours and Ray's own placement give one answer."""

import json
import subprocess
import sys

import pytest

from planner.dispatch.resources import gpus_for_several, room_for, taken_by_a_worker
from planner.job import Workers
from planner.plan import workers_on_node
from planner.runner.local import LocalShape

# NPU is a resource that Ray cuts into instances of 1, as it does GPUs.
NODE = {"CPU": 1, "slot": 3, "wide": 57, "NPU": 3}
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
]

# Places as many bundles as it is told, then one more. Ray Train places a worker by a bundle, too.
PLACE = """
import json, os, sys, time
from planner.local_cluster.embedded import EmbeddedCluster, NodeShape
from planner.local_cluster.environment import driver_environment
os.environ.update(driver_environment())
import ray
from planner.dispatch.connection import connected
from ray.util import placement_group, placement_group_table, remove_placement_group

REFUSED = {"NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES"}

def place(bundles):
    group = placement_group(bundles)
    for _ in range(1200):
        state = placement_group_table(group)["stats"]["scheduling_state"]
        if state in {"FINISHED", *REFUSED}:
            break
        time.sleep(0.05)
    return group, state

node, cases = json.loads(sys.argv[1])
shape = NodeShape(cpus=node.pop("CPU"), resources=node)
with EmbeddedCluster(num_nodes=1, shape=shape) as cluster, connected(cluster.address, verbose=False):
    for taken, count in cases:
        group = placement_group([taken] * count)
        fits = group.wait(60)  # it waits for what the last case gives back
        more, state = place([taken])
        print(json.dumps([taken, count, fits, state in REFUSED]), flush=True)
        remove_placement_group(group)
        remove_placement_group(more)
"""


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_ray_places_as_many_workers_as_we_say_and_not_one_more():
    """On a real node, for parts of CPUs, of custom resources and of units."""
    cases = [(taken, workers_on_node(NODE, taken)) for taken in TAKEN]
    done = subprocess.run(
        [sys.executable, "-c", PLACE, json.dumps([NODE, cases])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert found == [[taken, count, True, True] for taken, count in cases]


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
