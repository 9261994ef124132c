"""What the controller decides when workers run out of memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import Cluster

from planner.elastic.controller import ElasticController
from planner.elastic.mistakes import GaveUp
from planner.elastic.states import Rules
from planner.events.failures import CapLowered, NodeLeftOut, OutOfMemory, StopsForMemory, WorkersFailed
from planner.plan import BatchSizes, WorkerRange
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps, least_caps

IN_A_MICRO_BATCH = ("forward", "loss", "backward", "evaluation")
ELSEWHERE = ("start", "data", "reference", "saving")


def lacking(place="forward", *, device="CPU", max_micro=8, samples=None, max_tokens=None, longest=None):
    """Of worker 0. The largest micro-batch is the cap."""
    return OutOfMemory(
        rank=0,
        node="n0",
        device=device,
        place=place,
        max_micro=max_micro,
        max_tokens=max_tokens,
        samples=max_micro if samples is None else samples,
        tokens=None,
        longest=longest,
        asked_bytes=2**30,
        error="no room",
    )


def fail(cluster, *failures):
    cluster.fail(reason=failures[0], blamed=("n0",), out_of_memory=failures)


def ends(cluster, failure, why, max_micro=None, max_tokens=None):
    with pytest.raises(GaveUp) as caught:
        fail(cluster, failure)
    assert caught.value.event == StopsForMemory(reason=failure, why=why, max_micro=max_micro, max_tokens=max_tokens)


def caps_of(cluster, *devices):
    caps = cluster.controller.caps
    return least_caps(caps.of, caps.where(devices or {"CPU"}))


@pytest.mark.parametrize("place", IN_A_MICRO_BATCH)
def test_the_cap_becomes_half_of_the_largest_micro_batch(place):
    """The next group is told, trains on, and writes it into its ledger."""
    cluster = Cluster(2).run(30)
    failure = lacking(place, samples=6)
    fail(cluster, failure)
    assert caps_of(cluster) == Caps(max_micro=3)
    cluster.run(30)
    assert cluster.group
    assert cluster.told(CapLowered) == [CapLowered(reason=failure, max_micro=3, max_tokens=None)]
    assert not cluster.told(WorkersFailed)


def test_it_is_lowered_until_one_sample_is_left():
    cluster = Cluster(2).run(30)
    for cap in (8, 4, 2):
        fail(cluster, lacking(max_micro=cap))
        cluster.run(10)
    ends(cluster, lacking(max_micro=1), "one_sample")


def test_lowering_is_no_fruitless_failure_and_blames_no_node():
    """Neither counts towards the six in a row, nor towards the three of a node."""
    cluster = Cluster(2, global_batch=2048)
    cluster.controller = controller(max_micro=1024)
    cluster.run(30)
    for power in range(10, 0, -1):
        fail(cluster, lacking(max_micro=2**power))
        cluster.run(1)
    assert not cluster.told(NodeLeftOut)
    assert cluster.controller.bad_nodes == ()
    assert len(cluster.told(CapLowered)) == 10


def controller(caps=None, **sizes):
    rules = Rules(
        sizes=BatchSizes(**{"global_batch": 48, "max_micro": 8, **sizes}),
        workers=WorkerRange(least=1, most=16),
        has_eval=False,
    )
    return ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0, caps=caps)


def test_two_kinds_that_fail_at_once_are_lowered_each():
    """A group takes the least of its devices' caps."""
    cluster = Cluster(2).run(30)
    fail(cluster, lacking(device="A", samples=8), lacking(device="B", samples=4))
    assert caps_of(cluster, "A") == Caps(max_micro=4)
    assert caps_of(cluster, "A", "B") == Caps(max_micro=2)
    assert caps_of(cluster, "C") == Caps(max_micro=8)


def test_with_a_cap_on_tokens_both_are_lowered():
    """Not below the longest sample."""
    found = controller(max_tokens=1000)
    found.failed(frozenset(), frozenset(), failure := lacking(max_tokens=1000, longest=700), None, (failure,))
    assert found.caps.lowered[0].now == Caps(max_micro=4, max_tokens=700)


def test_a_bitwise_run_ends_and_names_the_cap():
    """Its micro-batches decide the bits."""
    found, failure = controller(equality="bitwise"), lacking("backward")
    with pytest.raises(GaveUp) as caught:
        found.failed(frozenset(), frozenset(), failure, None, (failure,))
    assert caught.value.event == StopsForMemory(reason=failure, why="bitwise", max_micro=4, max_tokens=None)


def test_in_the_optimizer_the_cap_is_lowered_once():
    """At a second failure there without a new step, a lower cap has not helped."""
    cluster = Cluster(2).run(30)
    fail(cluster, lacking("optimizer"))
    assert caps_of(cluster) == Caps(max_micro=4)
    cluster.run(5)  # the group does old steps again
    ends(cluster, lacking("optimizer", max_micro=4), "again")


def test_in_the_optimizer_it_is_tried_again_after_new_steps():
    """With the same cap: weeks of training have shown that it suffices. It counts as other failures do."""
    cluster = Cluster(2).run(30)
    for _ in range(4):
        cluster.committed = cluster.step
        fail(cluster, lacking("optimizer", max_micro=caps_of(cluster).max_micro))
        cluster.run(60)
        assert caps_of(cluster) == Caps(max_micro=4)
    assert len(cluster.told(CapLowered)) == 1
    assert len(cluster.told(WorkersFailed)) == 3


def test_in_the_optimizer_each_kind_of_device_has_its_own_lowering():
    """What one kind has lowered says nothing of another. Two kinds that fail in turn without a step do not go on."""
    cluster = Cluster(2).run(30)
    fail(cluster, lacking("optimizer", device="A"))
    cluster.run(2)
    fail(cluster, lacking("optimizer", device="B", max_micro=4))
    assert (caps_of(cluster, "A"), caps_of(cluster, "B")) == (Caps(max_micro=4), Caps(max_micro=2))
    cluster.run(2)
    ends(cluster, lacking("optimizer", device="A", max_micro=2), "again")


def test_a_new_launch_does_not_end_at_the_first_one_in_the_optimizer():
    """The lowering of an earlier launch is kept, and the failure is tried once more."""
    of, now = Caps(max_micro=8), Caps(max_micro=4)
    lowered = LoweredCap(device="CPU", place="optimizer", was=of, now=now)
    found = controller(LoweredCaps(of=of, lowered=(lowered,)))
    failure = lacking("optimizer", max_micro=4)
    found.failed(frozenset(), frozenset(), failure, None, (failure,))
    assert found.caps.lowered == (lowered,)


@pytest.mark.parametrize("place", ELSEWHERE)
def test_where_no_cap_matters_it_is_tried_once_more(place):
    """As after other failures. The second one there without a new step is the last."""
    cluster = Cluster(2).run(30)
    fail(cluster, lacking(place))
    assert caps_of(cluster) == Caps(max_micro=8)
    cluster.run(0.5)
    assert cluster.told(WorkersFailed) or cluster.controller.events
    ends(cluster, lacking(place), "again")


def test_after_a_new_step_it_is_tried_again():
    """Another process may have had the memory."""
    cluster = Cluster(2).run(30)
    for _ in range(4):
        cluster.committed = cluster.step
        fail(cluster, lacking("start"))
        cluster.run(60)
    assert cluster.group


def test_a_group_that_ignores_its_caps_fails_as_any_other():
    """The key-value store did not answer, say: lowering again and again would not end."""
    cluster = Cluster(2).run(1)
    fail(cluster, lacking(max_micro=8))
    for _ in range(5):
        cluster.run(0.5)
        fail(cluster, lacking(max_micro=8))
    cluster.run(0.5)
    with pytest.raises(GaveUp) as caught:
        fail(cluster, lacking(max_micro=8))
    assert caught.value.event.why == "no_progress"


def test_a_lost_node_explains_the_failure():
    """What other workers said meanwhile is not judged. If memory lacks, it will be said again."""
    cluster = Cluster(3).run(30)
    node = cluster.group[0]
    cluster.nodes.remove(node)
    cluster.fail(dead={node}, reason=lacking(), out_of_memory=(lacking(),))
    assert caps_of(cluster) == Caps(max_micro=8)
    assert cluster.run(30).group


def lowered_before(of, now):
    return LoweredCaps(of=of, lowered=(LoweredCap(device="CPU", place="forward", was=of, now=now),))


def test_a_new_controller_begins_with_what_was_lowered():
    """Unless the job file has another cap by now."""
    caps = lowered_before(Caps(max_micro=8), Caps(max_micro=4))
    assert controller(caps).caps == caps
    assert controller(caps, max_micro=6).caps == LoweredCaps(of=Caps(max_micro=6))
    assert controller(caps, max_tokens=99).caps.lowered == ()


def test_speeds_are_measured_anew():
    """Those before had fewer rounds."""
    cluster = Cluster(2).run(30)
    assert cluster.controller.history.is_speed_measured
    fail(cluster, lacking())
    assert not cluster.controller.history.is_speed_measured
    assert cluster.controller.state.known.sizes_at(2) == BatchSizes(global_batch=48, max_micro=4)


@given(st.lists(st.tuples(st.sampled_from(["A", "B"]), st.sampled_from([*IN_A_MICRO_BATCH, "optimizer"])), max_size=40))
def test_any_sequence_of_failures_ends(failures):
    """Each group fails with the caps that it was told: after at most log2 of the cap for each kind, the run ends."""
    found, lowered = controller(max_micro=64), 0
    for device, place in failures:
        caps = found.caps
        was = least_caps(caps.of, caps.where({"A", "B"}))
        failure = lacking(place, device=device, max_micro=was.max_micro)
        try:
            found.failed(frozenset(), frozenset(), failure, None, (failure,))
        except GaveUp:
            break
        lowered += 1
    assert lowered <= 6
