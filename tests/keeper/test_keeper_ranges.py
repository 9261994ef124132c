"""Which bytes of which copy go where, from any old world size to any new one."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keeper_copies import content, cut, make_copy

from planner.keeper.copies import Piece
from planner.keeper.errors import NotCovered
from planner.keeper.ranges import by_copy, plan_reads
from planner.keeper.whole_steps import newest_whole

SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=3).map(tuple)
TENSORS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), SHAPES, min_size=1)


def held(tensors, world_size, num_nodes, *, replicas=True, replicated=(), lost=()):
    """node -> copies, of a ring of nodes where each also has the next one's replicas; and (node, key) -> memory."""
    found, memories = {f"n{number}": [] for number in range(num_nodes)}, {}
    for rank in range(world_size):
        copy, memory = make_copy(tensors, rank=rank, world_size=world_size, replicated=replicated)
        owner = rank * num_nodes // world_size
        for node in {f"n{owner}", f"n{(owner + 1) % num_nodes}"} if replicas else {f"n{owner}"}:
            found[node].append(copy)
            memories[node, copy.key] = memory
    return {node: copies for node, copies in found.items() if node not in lost}, memories


def wanted(tensors, world_size, rank, replicated=()):
    cuts = {
        name: (0, math.prod(shape)) if name in replicated else cut(shape, world_size, rank)
        for name, shape in tensors.items()
    }
    return [
        Piece(name=name, dtype="float32", shape=shape, start=start, stop=stop, offset=0, num_bytes=4 * (stop - start))
        for name, shape in tensors.items()
        for start, stop in [cuts[name]]
    ]


def filled(reads, wants, memories):
    """What the reads put where, by name; every byte once."""
    times = {want.name: Counter() for want in wants}
    targets = {want.name: bytearray(4 * (want.stop - want.start)) for want in wants}
    for read in reads:
        memory = memories[read.node, read.key]
        assert read.num_bytes > 0
        assert read.source_offset + read.num_bytes <= len(memory)
        span = range(read.target_offset, read.target_offset + read.num_bytes)
        times[read.name].update(span)
        targets[read.name][span.start : span.stop] = memory[read.source_offset : read.source_offset + read.num_bytes]
    for want in wants:
        assert times[want.name] == Counter(range(4 * (want.stop - want.start)))
    return targets


@given(st.data(), TENSORS, st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_every_wanted_byte_is_read_once_from_the_right_place(data, tensors, old, new, num_nodes):
    """At any old and new world size, with uneven and empty shards, tensors on every rank, a lost node."""
    replicated = data.draw(st.sets(st.sampled_from(sorted(tensors))))
    lost = data.draw(st.sets(st.integers(0, num_nodes - 1).map("n{}".format), max_size=num_nodes > 1))
    found, memories = held(tensors, old, num_nodes, replicated=replicated, lost=lost)
    whole = newest_whole(found, run_id="run-1")
    for rank in range(new):
        wants = wanted(tensors, new, rank, replicated)
        reads = plan_reads(whole, wants, f"n{rank % (num_nodes + 1)}")
        targets = filled(reads, wants, memories)
        for want in wants:
            assert targets[want.name] == content(want.name, 4 * want.start, 4 * want.stop)
        assert not lost & {read.node for read in reads}


@given(TENSORS, st.integers(1, 6), st.integers(1, 4))
def test_what_a_node_has_is_not_moved(tensors, world_size, num_nodes):
    """At the same world size, with the same ranks on the same nodes, all reads are local."""
    found, _ = held(tensors, world_size, num_nodes)
    whole = newest_whole(found, run_id="run-1")
    for rank in range(world_size):
        node = f"n{rank * num_nodes // world_size}"
        assert {read.node for read in plan_reads(whole, wanted(tensors, world_size, rank), node)} <= {node}


def test_local_bytes_are_taken_also_where_a_longer_piece_is_elsewhere():
    """A tensor that is whole on one node, and in part on the reader's."""
    far, _ = make_copy({"a": (8,)}, rank=0, world_size=2, replicated={"a"})
    near, _ = make_copy({"a": (8,)}, rank=1, world_size=2)
    whole = newest_whole({"far": [far], "near": [near]}, run_id="run-1")
    reads = plan_reads(whole, wanted({"a": (8,)}, 1, 0), "near")
    assert [(read.node, read.num_bytes, read.target_offset) for read in reads] == [("far", 16, 0), ("near", 16, 16)]


def test_reads_are_spread_over_the_nodes_that_have_the_bytes():
    """A newcomer takes as many bytes from each replica; newcomers on different nodes begin with different ones."""
    tensors = {f"t{number}": (4,) for number in range(30)}
    copy, _ = make_copy(tensors)
    whole = newest_whole({"n1": [copy], "n2": [copy], "n3": [copy]}, run_id="run-1")
    firsts = set()
    for own in ("n0", "n1x", "n2x"):
        reads = plan_reads(whole, wanted(tensors, 1, 0), own)
        assert Counter(read.node for read in reads) == {"n1": 10, "n2": 10, "n3": 10}
        firsts.add(reads[0].node)
    assert firsts == {"n1", "n2", "n3"}


def test_adjacent_ranges_are_one_read():
    """Pieces of one copy that follow each other are read at once; a gap in the memory parts them."""
    copy, _ = make_copy({"a": (8,)})
    (piece,) = copy.pieces
    halves = [replace(piece, stop=4, num_bytes=16), replace(piece, start=4, num_bytes=16, offset=piece.offset + 16)]
    # Two ranks' pieces with the same cut make a boundary in the middle, and the one copy has both sides.
    other = replace(copy, key=replace(copy.key, rank=1), world_size=2, pieces=(halves[0],), facts={})
    first = replace(copy, world_size=2)
    whole = newest_whole({"n0": [first], "n1": [other]}, run_id="run-1")
    (read,) = plan_reads(whole, wanted({"a": (8,)}, 1, 0), "n0")
    assert (read.num_bytes, read.source_offset, read.target_offset) == (32, piece.offset, 0)
    assert by_copy([read]) == {("n0", first.key): [read]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dtype": "bfloat16"}, "float32 .* wanted is bfloat16"),
        ({"shape": (4, 2)}, r"wanted is float32 \(4, 2\)"),
        ({"name": "b"}, "No copy has a tensor b"),
    ],
)
def test_another_tensor_is_refused(change, says):
    """By name, dtype and shape, with what both are."""
    copy, _ = make_copy({"a": (8,)})
    whole = newest_whole({"n": [copy]}, run_id="run-1")
    (want,) = wanted({"a": (8,)}, 1, 0)
    with pytest.raises(NotCovered, match=says):
        plan_reads(whole, [replace(want, **change)], "n")


def test_what_no_copy_has_is_refused():
    """With the elements that are missing; and what is wanted wrongly is the caller's mistake."""
    copy, _ = make_copy({"a": (8,)}, rank=0, world_size=2)
    whole = newest_whole({"n": [replace(copy, world_size=1)]}, run_id="run-1")
    (want,) = wanted({"a": (8,)}, 1, 0)
    with pytest.raises(NotCovered, match="elements 4 to 8 of a"):
        plan_reads(whole, [want], "n")
    with pytest.raises(ValueError, match="twice"):
        plan_reads(whole, [want, want], "n")
    with pytest.raises(ValueError, match="4 to 9 of 8"):
        plan_reads(whole, [replace(want, start=4, stop=9)], "n")


def test_copies_with_other_element_sizes_are_refused():
    """They would be cut between elements."""
    first, _ = make_copy({"a": (8,)}, rank=0, world_size=2)
    second, _ = make_copy({"a": (8,)}, rank=1, world_size=2)
    second = replace(second, pieces=tuple(replace(piece, num_bytes=8) for piece in second.pieces))
    whole = newest_whole({"n": [first, second]}, run_id="run-1")
    with pytest.raises(NotCovered, match="elements have"):
        plan_reads(whole, wanted({"a": (8,)}, 1, 0), "n")


def sealed(copy, digest="d"):
    return replace(copy, pieces=tuple(replace(piece, digest=f"{digest}-{piece.name}") for piece in copy.pieces))


def group(world_size=2, **settings):
    return [
        sealed(make_copy({"a": (8,)}, rank=rank, world_size=world_size, **settings)[0]) for rank in range(world_size)
    ]


def test_the_newest_whole_step_is_found():
    """By generation first, and then by step, whatever the slot and the node."""
    old, new = group(generation=2, step=4, slot=1), group(generation=2, step=6, slot=0)
    found = {"n0": [old[0], new[0], *group(generation=1, step=9)], "n1": [new[1], old[1]]}
    whole = newest_whole(found, run_id="run-1")
    assert (whole.generation, whole.step, whole.world_size, whole.facts) == (2, 6, 2, {"step": 6})
    assert [[(source.node, source.key.slot) for source in of_rank] for of_rank in whole.sources] == [
        [("n0", 0)],
        [("n1", 0)],
    ]
    assert whole.digests == {"0/a": "d-a", "1/a": "d-a"}


def test_a_step_that_lacks_a_rank_is_passed_over():
    """The one before is whole in the other slots."""
    old, new = group(step=4, slot=1), group(step=6)
    assert newest_whole({"n0": [old[0], new[0]], "n1": [old[1]]}, run_id="run-1").step == 4
    assert newest_whole({"n0": [old[0], new[0]]}, run_id="run-1") is None
    assert newest_whole({}, run_id="run-1") is None


def test_all_nodes_that_have_a_rank_are_named():
    """A worker's own copy and its replica."""
    first, second = group()
    whole = newest_whole({"n1": [second, first], "n0": [first]}, run_id="run-1")
    assert [[source.node for source in of_rank] for of_rank in whole.sources] == [["n0", "n1"], ["n1"]]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda first, second: [first, replace(second, world_size=3)],
        lambda first, second: [replace(first, facts={}), second],
        lambda first, second: [replace(first, run_id="another"), second],
        lambda first, second: [first, second, replace(sealed(second, "e"), key=replace(second.key, slot=1))],
        lambda first, second: [first, second, replace(first, key=replace(first.key, slot=1), facts={"step": 99})],
    ],
    ids=["another W", "no facts", "another run", "two contents", "two facts"],
)
def test_what_does_not_fit_together_is_no_whole(spoil):
    """Then the newest durable commit is there."""
    assert newest_whole({"n": group()}, run_id="run-1") is not None
    assert newest_whole({"n": spoil(*group())}, run_id="run-1") is None
