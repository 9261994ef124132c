"""Two workers on each node of a real Ray cluster: planned changes go through memory, and so does a node's death."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from events import EVENT_S
from live_runs import Script, make_job, notes, records, run_of, train, workers_of

from planner.dispatch import launch as dispatch
from planner.dispatch.ray_internal import drain_node
from planner.job import Job
from planner.local_cluster.embedded import NodeShape
from planner.provenance.audit import audit
from planner.store.commit_names import commit_of
from planner.store.run_status import RunStatus

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# The other nodes of the shared cluster have one CPU and no seats, so no worker of this job goes there.
# GPUs are logical, and CPUs stand in for them.
TWO_SEATS = NodeShape(cpus=2, gpus=2, resources={"seat": 2})


@dataclass
class Changed:
    """The run, and what was seen of each group: 4, 6, 4 and 2 workers."""

    job: Job
    nodes: list[dict[int, str]] = field(default_factory=list)
    """rank -> its node"""
    processes: list[set[int]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """the node that got notice, and the one that died"""
    acts_done: int = 0

    @property
    def on_each_node(self) -> list[list[int]]:
        """How many workers each node of each group had."""
        return [list(Counter(nodes.values()).values()) for nodes in self.nodes]


@pytest.fixture
def pairs(cluster):
    """The shared cluster with two more nodes, each for two workers. What it adds later is such a node, too."""
    before, shape = set(cluster.nodes()), cluster.shape
    cluster.shape = TWO_SEATS
    try:
        for _ in range(2):
            cluster.add_node()
        yield cluster
    finally:
        cluster.shape = shape
        for node in set(cluster.nodes()) - before:
            cluster.kill_node(node)


def trained(launch, count, wait_for):
    """Rank -> node, once so many workers train."""

    def look():
        text = dispatch.status_of(launch)
        workers = RunStatus.model_validate_json(text).workers if text else ()
        return {worker.rank: worker.node for worker in workers if worker.state == "training"}

    return wait_for(lambda: len(found := look()) == count and found)


def changed(cluster, folder, **workers):
    """A node more, a notice, a death, Ctrl-C."""
    job = make_job(folder, steps=100_000, most=6, every_steps=10_000)
    workers = job.workers.model_copy(update={"resources": {"seat": 1}, **workers})
    batch = job.batch.model_copy(update={"global_batch": 12})  # six workers are faster than four
    checkpoint = job.checkpoint.model_copy(update={"memory": 1})
    job = job.model_copy(update={"workers": workers, "batch": batch, "checkpoint": checkpoint})
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    seen = Changed(job=job)

    def look(count):
        seen.nodes.append(trained(launch, count, script.wait_for))
        seen.processes.append(set(workers_of(cluster)))

    def grow():
        look(4)
        cluster.add_node()

    def give_notice():
        look(6)
        # Of two stops in memory one after another, the second needs a commit since the first.
        script.wait_for(lambda: any(commit_of(name)[1] == 2 for name in run_of(job).commits()))
        seen.gone.append(cluster.nodes()[-1])
        drain_node(seen.gone[0], EVENT_S, "test")

    def kill():
        look(4)
        seen.gone.append(seen.nodes[-1][0])  # rank 0's: only its copies say what the step is
        cluster.kill_node(seen.gone[1])

    def end():
        look(2)
        script.interrupt()

    acts = [(4, 20, grow), (6, 20, give_notice), (4, 20, kill), (2, 20, end)]
    with Script(job, acts) as script, pytest.raises(KeyboardInterrupt):
        train(launch, eager=True)
    seen.acts_done = script.done
    return seen


@pytest.mark.parametrize(
    ("workers", "keeps_processes"),
    [({}, True), ({"keep_processes": "never"}, False), ({"gpus": 1}, False)],
    ids=["kept processes", "new processes", "two GPUs per node"],
)
def test_changes_and_a_death_go_through_memory(pairs, tmp_path, workers, keeps_processes):
    """No planned change does a step again. A dead node's steps are in the next node's memory, also those of rank 0."""
    seen = changed(pairs, tmp_path, **workers)
    assert seen.acts_done == 4, notes(seen.job)
    assert seen.on_each_node == [[2, 2], [2, 2, 2], [2, 2], [2]]
    assert seen.gone[0] not in seen.nodes[2].values()
    assert seen.gone[1] not in seen.nodes[3].values()

    headers = records(run_of(seen.job), "generation")
    assert [header["world_size"] for header in headers] == [4, 6, 4, 2], notes(seen.job)
    assert [header.get("parent_is_held", False) for header in headers] == [False, True, True, True], notes(seen.job)
    assert [commit_of(header["parent"])[1] for header in headers[1:]] == [1, 2, 3]
    result = audit(run_of(seen.job))
    assert result.clean, result.findings
    assert [phase.recomputed_before for phase in result.phases[:3]] == [0, 0, 0]

    first, grown, shrunk, last = seen.processes
    if keeps_processes:
        assert shrunk < grown
        assert first < grown
    else:
        assert not first & grown
        assert not grown & shrunk
    assert not shrunk & last
