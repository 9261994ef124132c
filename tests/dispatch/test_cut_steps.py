"""A notice that leaves no time for the rest of a long step, on a real cluster."""

from functools import partial

import pytest
from live_runs import Script, fit, make_job, notes, run_of
from slow_rounds import slow_rounds

from planner.dispatch.ray_internal import drain_node
from planner.provenance.audit import audit

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_step_that_a_notice_leaves_no_time_for_is_cut_and_nothing_before_it_is_lost(cluster, tmp_path):
    """10 s of notice, and steps of 16 s. What is done can be committed within a second or so."""
    job = make_job(tmp_path, steps=1000, most=3, every_steps=1)
    batch = job.batch.model_copy(update={"global_batch": 48, "max_micro": 1})
    job = job.model_copy(update={"batch": batch})
    node = cluster.nodes()[-1]

    def leave():
        cluster.kill_node(node)
        script.interrupt()

    acts = [(3, 3, lambda: drain_node(node, 10, "test")), (2, 1, leave)]
    with Script(job, acts) as script, pytest.raises(KeyboardInterrupt):
        fit(job, hooks=partial(slow_rounds, 1.0))
    assert script.done == 2
    result = audit(run_of(job))
    assert (result.findings, result.recomputed) == ((), 0)
    assert [phase.world_size for phase in result.phases] == [3, 2]
    (said,) = [note for note in notes(job) if "is given up" in note]
    assert "left to save what is done" in said
