"""Histories of spot nodes on which earlier policies lost hours."""

from simulated_cluster import Cluster


def kill_all(cluster, names):
    """In one moment, as a cloud takes back a zone."""
    for name in names:
        cluster.kill(name)


def test_after_two_hours_on_one_node_of_sixteen_all_are_used_again():
    """A step takes 60 s on 16 and 16 min on one. The growth waits for no more than two of those."""
    cluster = Cluster(16, global_batch=64, sample_s=15.0).run(3600, tick_s=1.0)
    kill_all(cluster, cluster.nodes[1:])
    cluster.run(7200, tick_s=1.0)
    assert cluster.sizes == [16, 1]
    cluster.add(15)
    cluster.run(2 * 960, tick_s=1.0)
    assert cluster.sizes == [16, 1, 16]


def test_one_worker_that_has_measured_nothing_becomes_24():
    """Its first step would take 24 min. The other nodes come 10 s after its start."""
    cluster = Cluster(1, global_batch=96, most=24, sample_s=15.0).run(10)
    cluster.add(23)
    cluster.run(60)
    assert cluster.sizes == [1, 24]
