"""A short notice on a real cluster: a newcomer starts on the free node while the group uses the notice."""

import time

import pytest
from live_runs import Script, make_job, notes, records, run_of, train, workers_of

from planner.dispatch import launch as dispatch
from planner.dispatch.ray_internal import drain_node
from planner.provenance.audit import audit
from planner.store.run_status import RunStatus

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# A stop in memory, with what is to spare.
_STOP_S = 30.0
# Longer notices are not used, and a newcomer is not expected to take longer than this machine's first start.
_NOTICE_MOST_S = 145.0


def nodes_of(launch, state):
    """The nodes of all workers in this state, by the live status."""
    text = dispatch.status_of(launch)
    workers = RunStatus.model_validate_json(text).workers if text else ()
    return [worker.node for worker in workers if worker.state == state]


def test_a_newcomer_is_ready_when_the_node_with_notice_goes(cluster, tmp_path):
    """Two workers of three nodes: one gets notice, the third node's process is warm when the group stops."""
    job = make_job(tmp_path, steps=1_000_000, most=2, every_steps=20)
    launch = dispatch.new_launch(job, job.run_path, frozenset())
    began_s, nodes, seen = time.monotonic(), set(cluster.nodes()), {}

    def give_notice():
        start_s = time.monotonic() - began_s
        group = script.wait_for(lambda: len(found := nodes_of(launch, "training")) == 2 and found)
        script.wait_for(lambda: len(run_of(job).commits()) > 1)
        seen["gone"], seen["third"], seen["before"] = group[1], (nodes - set(group)).pop(), set(workers_of(cluster))
        seen["notice_s"] = min(_STOP_S + 2 * start_s, _NOTICE_MOST_S)
        drain_node(seen["gone"], seen["notice_s"], "test")
        script.wait_for(lambda: nodes_of(launch, "warming") == [seen["third"]], lambda: notes(job))
        assert len(nodes_of(launch, "leaving")) == 1
        seen["warming"] = script.wait_for(lambda: len(found := set(workers_of(cluster))) == 3 and found)

    def end():
        script.wait_for(lambda: len(records(run_of(job), "generation")) == 2)
        group = script.wait_for(lambda: len(found := nodes_of(launch, "training")) == 2 and found)
        seen["group"], seen["after"] = set(group), set(workers_of(cluster))
        script.interrupt()

    # The steps of `end` may be the first group's, which trains on.
    with Script(job, [(2, 20, give_notice), (2, 1, end)]) as script, pytest.raises(KeyboardInterrupt):
        train(launch)
    cluster.kill_node(seen["gone"])
    assert script.done == 2, notes(job)
    assert seen["group"] == nodes - {seen["gone"]}
    assert seen["after"] < seen["warming"]
    assert len(seen["after"] - seen["before"]) == 1
    events = [record["event"] for record in records(run_of(job), "event")]
    assert [name for name in events if name in {"uses_notice", "replacements_start", "notice"}] == [
        "uses_notice",
        "replacements_start",
        "notice",
    ]
    assert "newcomers_called_off" not in events
    result = audit(run_of(job))
    assert result.clean, result.findings
    assert ([phase.world_size for phase in result.phases], result.recomputed) == ([2, 2], 0)
