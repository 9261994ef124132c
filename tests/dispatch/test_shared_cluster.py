"""The cluster that dispatch tests share."""

import pytest
from live_runs import fit, make_job, run_of
from shared_cluster import FAILED, whole


class Recorded:
    """A cluster that notes what is asked of it."""

    def __init__(self):
        self.asked = []

    def start_anew(self):
        self.asked.append("start anew")

    def whole(self):
        self.asked.append("whole")
        return self


def test_only_after_a_failed_test_there_is_a_new_cluster():
    """The old one may not answer, or a run may hold its nodes."""
    cluster, stash = Recorded(), pytest.Stash()
    assert whole(cluster, stash) is cluster
    assert cluster.asked == ["whole"]
    stash[FAILED] = True
    whole(cluster, stash)
    whole(cluster, stash)
    assert cluster.asked == ["whole", "start anew", "whole", "whole"]


@pytest.mark.ray
@pytest.mark.slow
def test_after_a_failed_test_the_next_one_trains_on_a_new_cluster(whole_cluster, pytestconfig, tmp_path):
    """All of its nodes are others."""
    before = set(whole_cluster().nodes())
    pytestconfig.stash[FAILED] = True
    after = set(whole_cluster().nodes())
    assert len(after) == 3
    assert not before & after
    job = make_job(tmp_path, steps=3, most=3)
    fit(job)
    assert run_of(job).manifest(run_of(job).commits()[-1]).step == 3
    assert set(whole_cluster().nodes()) == after
