"""Which counts a cluster reaches, held against trying every mix of nodes."""

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.cluster.nodes import Cluster, NodeGroup
from planner.cluster.reachable_counts import Reach
from planner.job import Workers
from planner.plan.factory import MAX_WORKERS


def group(name, least, most, step=1, **resources):
    resources = {"CPU": 1000, **resources}
    return NodeGroup(name=name, min_nodes=least, max_nodes=most, resources=resources, nodes_per_step=step)


def reach(*groups, max_nodes=None, head_gpus=0, **workers):
    cluster = Cluster(
        name="test",
        head=group("head", 1, 1, GPU=head_gpus),
        groups=groups,
        max_nodes=sum(each.max_nodes for each in groups) if max_nodes is None else max_nodes,
    )
    return Reach(cluster=cluster, taken=Workers(**workers).taken)


@st.composite
def reaches(draw):
    """Up to four groups of up to four steps, whose nodes have up to five GPUs. A limit that may bind."""
    groups = []
    for name in "abcd"[: draw(st.integers(0, 4))]:
        step = draw(st.sampled_from([1, 1, 1, 2]))
        least = draw(st.integers(0, 2))
        most = draw(st.integers(least, 4))
        groups.append(group(name, least * step, most * step, step, GPU=draw(st.integers(0, 5))))
    least = sum(each.min_nodes for each in groups)
    most = sum(each.max_nodes for each in groups)
    return reach(*groups, max_nodes=draw(st.integers(least, most)), head_gpus=draw(st.sampled_from([0, 0, 1, 3])))


def every_mix(reach):
    """Count -> (nodes with workers, kinds of them that need not be there) of every mix that the cluster may have."""
    cluster = reach.cluster
    choices = [range(each.min_nodes, each.max_nodes + 1, each.nodes_per_step) for each in cluster.groups]
    found = {}
    for nodes in product(*choices):
        if sum(nodes) > cluster.max_nodes:
            continue
        used = [(num, each) for num, each in zip(nodes, cluster.groups, strict=True) if each.resources["GPU"]]
        count = sum(num * each.resources["GPU"] for num, each in used) + cluster.head.resources["GPU"]
        cost = (sum(num for num, _ in used), sum(bool(num) and not each.min_nodes for num, each in used))
        found.setdefault(int(count), []).append(cost)
    found.pop(0, None)
    return found


@given(reach=reaches())
def test_the_counts_are_those_of_all_mixes(reach):
    """Nothing that some mix has room for is missing, and nothing else is there."""
    assert list(reach.counts) == sorted(every_mix(reach))


@given(reach=reaches())
def test_each_count_is_shown_with_the_fewest_nodes_and_kinds(reach):
    """The mix has exactly that room, is one that the cluster may have, and no other is smaller or simpler."""
    groups = {each.name: each for each in reach.cluster.groups}
    for count, costs in every_mix(reach).items():
        mix = reach.mix(count)
        workers = {name: num for num, name in mix.nodes if name != "head"}
        assert all(groups[name].min_nodes <= num <= groups[name].max_nodes for name, num in workers.items())
        room = sum(num * groups[name].resources["GPU"] for name, num in workers.items())
        assert room + reach.cluster.head.resources["GPU"] == count == mix.num_workers
        kinds = sum(not groups[name].min_nodes for name in workers)
        assert (sum(workers.values()), kinds) == min(costs)


@given(reach=reaches(), least=st.integers(1, 8), more=st.integers(0, 12))
@example(reach=reach(group("a", 0, 3, GPU=4)), least=1, more=9)
def test_a_job_runs_on_the_counts_in_its_range_and_leaves_idle_what_is_more(reach, least, more):
    """Its own most is a count as soon as the cluster has more. Its nodes are the least that hold it."""
    most, counts = least + more, sorted(every_mix(reach))
    inside = {count for count in counts if least <= count <= most}
    beyond = [count for count in counts if count > most]
    assert reach.within(least, most) == sorted(inside | ({most} if beyond else set()))
    for count in reach.within(least, most):
        assert reach.mix(count).num_workers == min(room for room in counts if room >= count)


def test_a_range_that_is_empty_has_no_counts():
    """workers.min above what the global batch feeds."""
    assert reach(group("a", 0, 30, GPU=1)).within(9, 8) == []


def test_a_count_beyond_all_nodes_has_no_mix():
    """A count above all counts of the cluster."""
    with pytest.raises(ValueError, match="no room for 5 workers"):
        reach(group("a", 0, 2, GPU=2)).mix(5)


def test_two_nodes_of_one_gpu_are_no_node_of_two():
    """What a worker takes is never put together from two nodes."""
    cluster = reach(group("one", 0, 8, GPU=1), group("four", 0, 1, GPU=4)).cluster
    room = Reach(cluster=cluster, taken={"GPU": 2})
    assert room.counts == (2,)
    assert room.mix(2).nodes == ((1, "four"),)


def test_nodes_without_room_count_against_the_limit():
    """Two nodes that must be there and have no GPU leave one of three places."""
    assert reach(group("cpu", 2, 2, GPU=0), group("gpu", 0, 3, GPU=1), max_nodes=3).counts == (1,)


def test_a_type_that_is_the_heads_too_is_one_entry():
    """A head of a type that has workers as well: the nodes are alike."""
    assert reach(group("head", 0, 2, GPU=2), head_gpus=2).mix(6).nodes == ((3, "head"),)


def test_no_count_is_above_what_a_plan_may_have():
    """A cluster larger than the largest plan ends there. A large one answers for its largest count."""
    room = reach(group("one", 0, 50_000, GPU=1), group("eight", 0, 50_000, GPU=8))
    assert room.counts == tuple(range(1, MAX_WORKERS + 1))
    assert room.mix(MAX_WORKERS).nodes == ((8192, "eight"),)
    assert room.mix(MAX_WORKERS - 1).nodes == ((7, "one"), (8191, "eight"))
    assert reach(group("one", 70_000, 90_000, GPU=1)).within(1, 8) == [8]


@pytest.mark.parametrize("numbers", [(2, 1, 1), (-1, 1, 1), (0, 3, 2), (1, 2, 2), (0, 0, 0)])
def test_a_group_is_checked_at_birth(numbers):
    """The least above the most, below 0, and steps that do not fit."""
    with pytest.raises(ValueError, match="nodes in steps of"):
        group("wrong", *numbers)


def test_a_cluster_is_checked_at_birth():
    """Amounts below 0, a second head, more nodes at least than at most."""
    with pytest.raises(ValueError, match="amounts of 0 or more"):
        group("wrong", 0, 1, GPU=-1)
    with pytest.raises(ValueError, match="one head, not 0 to 1"):
        Cluster(name="wrong", head=group("head", 0, 1), groups=(), max_nodes=1)
    with pytest.raises(ValueError, match="at least 2 nodes, and the cluster at most 1"):
        reach(group("two", 2, 2), max_nodes=1)


def test_as_many_node_types_as_a_file_may_have():
    """This once took half a minute. The fewest nodes are still found: the largest types first."""
    found = reach(*(group(f"t{gpus}", 0, 1000, GPU=gpus) for gpus in range(1, 291)), gpus=1)
    assert found.counts == tuple(range(1, MAX_WORKERS + 1))
    for count in (1, 290, 291, 1000, MAX_WORKERS):
        mix = found.mix(count)
        assert sum(number * int(name[1:]) for number, name in mix.nodes) == count
        assert sum(number for number, _ in mix.nodes) == -(-count // 290)
