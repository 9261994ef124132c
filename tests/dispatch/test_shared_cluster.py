"""The cluster that dispatch tests share."""

import pytest
from live_runs import fit, make_job, run_of
from shared_cluster import FAILED

pytestmark = pytest.mark.ray


def test_after_a_failed_test_there_is_a_new_cluster(whole_cluster, pytestconfig, tmp_path):
    """The old one may not answer, or a run may hold its nodes. The next test trains on the new one."""
    before = set(whole_cluster().nodes())
    pytestconfig.stash[FAILED] = True
    after = set(whole_cluster().nodes())
    assert len(after) == 3
    assert not before & after
    job = make_job(tmp_path, steps=3, most=3)
    fit(job)
    assert run_of(job).manifest(run_of(job).commits()[-1]).step == 3
    assert set(whole_cluster().nodes()) == after
