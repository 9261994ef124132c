"""The on-demand floor on a real Ray cluster: losing all spot nodes at once stops nothing, and loses no held step."""

import pytest
from live_runs import INTERRUPT, Script, fit, make_job, notes, records, run_of

from planner.local_cluster.embedded import NodeShape
from planner.provenance.audit import audit

pytestmark = pytest.mark.ray

SPOT = NodeShape(cpus=1, labels={"ray.io/market-type": "spot"})


@pytest.fixture
def one_lasts(cluster):
    """The shared cluster with one on-demand node and two spot nodes. The ids of the spot nodes, oldest first."""
    for node in cluster.nodes()[1:]:
        cluster.kill_node(node)
    spot = [cluster.add_node(SPOT) for _ in range(2)]
    yield spot
    for node in set(cluster.nodes()).intersection(spot):
        cluster.kill_node(node)


def floor_job(tmp_path, **workers):
    """No commit comes before the end, and each step is copied into memory."""
    job = make_job(tmp_path, steps=2000, most=3, every_steps=1000)
    update = {"workers": {"min_on": "on-demand", **workers}, "checkpoint": {"memory": 1}}
    sections = {name: getattr(job, name).model_copy(update=values) for name, values in update.items()}
    return job.model_copy(update=sections)


def test_all_spot_nodes_are_lost_at_once(cluster, one_lasts, tmp_path):
    """3 -> 1: the on-demand node has the copies of all workers, and goes on from the newest of them."""
    job = floor_job(tmp_path)

    def lose():
        for node in one_lasts:
            cluster.kill_node(node)

    with Script(job, [(3, 20, lose), (1, 20, INTERRUPT)]) as script, pytest.raises(KeyboardInterrupt):
        fit(job)
    assert script.done == 2
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert [phase.world_size for phase in result.phases] == [3, 1]
    (loaded,) = [record for record in records(run_of(job), "event") if record["event"] == "loaded_from_memory"]
    assert loaded["facts"]["step"] >= 15
    assert result.recomputed <= 5


@pytest.mark.slow
def test_a_lost_floor_is_said_and_comes_back(cluster, one_lasts, tmp_path):
    """3 -> 2 -> 3: it goes on on spot nodes alone, and the next on-demand node is its floor again."""
    (lasting,) = set(cluster.nodes()) - set(one_lasts)
    job = floor_job(tmp_path)

    with (
        Script(
            job, [(3, 20, lambda: cluster.kill_node(lasting)), (2, 20, cluster.add_node), (3, 20, INTERRUPT)]
        ) as script,
        pytest.raises(KeyboardInterrupt),
    ):
        fit(job)
    assert script.done == 3
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert [phase.world_size for phase in result.phases] == [3, 2, 3]
    missing = [note for note in notes(job) if "on on-demand nodes, and workers.min is 1" in note]
    assert len(missing) == 1
