"""A worker's copy of its shards: what training changes later does not reach it, and its memory is used again."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.events.saves import HostRoomLacking
from planner.train.checkpoints.held_copy import HeldCopy
from planner.train.host_room import HostNeed, room_of

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
states = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from(DTYPES), shapes), max_size=5)
CPU = torch.device("cpu")


def made(kinds, number=1):
    """Tensors of these types and shapes, all elements equal."""
    return {name: torch.full(shape, number).to(dtype) for name, (dtype, shape) in kinds.items()}


@given(states)
def test_later_changes_do_not_reach_the_copy(kinds):
    """For every type and shape: scalars, and shards without elements, too."""
    tensors = made(kinds)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    copy = HeldCopy(CPU).take(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert copy.keys() == before.keys()
    for name, tensor in copy.items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


@given(states)
def test_the_second_copy_is_in_the_same_memory(kinds):
    """With the values of the second take."""
    held = HeldCopy(CPU)
    first = {name: tensor.data_ptr() for name, tensor in held.take(made(kinds)).items()}
    second = held.take(made(kinds, 0))
    assert {name: tensor.data_ptr() for name, tensor in second.items()} == first
    assert all(torch.equal(tensor, made(kinds, 0)[name]) for name, tensor in second.items())


@pytest.mark.parametrize(
    "after",
    [
        {"a": torch.ones(4, dtype=torch.float64)},
        {"a": torch.ones(2, 2)},
        {"b": torch.ones(4)},
    ],
    ids=["type", "shape", "name"],
)
def test_a_changed_tensor_gets_another_buffer(after):
    """And what is not needed any more is dropped."""
    held = HeldCopy(CPU)
    held.take({"a": torch.zeros(4)})
    [now] = held.take(after).values()
    assert torch.equal(now, next(iter(after.values())))
    assert held._buffers.keys() == after.keys()


def test_what_is_not_needed_is_dropped():
    """Its memory is free again."""
    held = HeldCopy(CPU)
    held.take({"a": torch.zeros(4), "b": torch.zeros(4)})
    now = held.take({"b": torch.ones(4)})
    assert held._buffers.keys() == now.keys() == {"b"}
    assert torch.equal(now["b"], torch.ones(4))


def test_on_the_cpu_nothing_waits():
    """The copy is complete when `take` returns."""
    held = HeldCopy(CPU)
    held.guard()
    held.wait()
    held.take({"a": torch.zeros(4)})
    held.guard()
    held.wait()


# -- on a GPU, with a double of CUDA


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says that it is on a GPU."""

    is_cuda = True


class Cuda:
    """Notes in `log` what is asked of CUDA, in order. Memory is page-locked if `locks`."""

    def __init__(self, patch, *, locks=True):
        self.log, self._current = [], "training"
        self.patch, self.locks = patch, locks
        patch.setattr(torch.cuda, "Stream", lambda _device: self._stream("side"))
        patch.setattr(torch.cuda, "current_stream", lambda _device: self._stream("training"))
        patch.setattr(torch.cuda, "stream", lambda stream: self._inside(f"in {stream.name}"))
        patch.setattr(torch.cuda, "device", lambda device: self._inside(f"on {device}"))
        patch.setattr(torch.cuda, "cudart", lambda: self)
        patch.setattr(torch.Tensor, "copy_", self._copied(torch.Tensor.copy_))

    def _stream(self, name):
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.log.append(f"{name} waits for {other.name}"),
            wait_event=lambda _event: self.log.append(f"{name} waits for the copy"),
            record_event=lambda: SimpleNamespace(synchronize=lambda: self.log.append("Python waits for the copy")),
        )

    @contextmanager
    def _inside(self, what):
        self.log.append(what)
        yield

    def _copied(self, copy):
        def noted(target, source, **options):
            self.log.append("copy" if options.get("non_blocking") else "copy at once")
            return copy(target, source.as_subclass(torch.Tensor), **options)

        return noted

    def _lock(self, _address, num_bytes, _flags):
        self.log.append(f"lock {num_bytes} bytes")
        return 0 if self.locks else 712

    def _unlock(self, _address):
        self.log.append("unlock")

    cudaHostRegister, cudaHostUnregister = _lock, _unlock  # noqa: N815  the names of CUDA's runtime


def shards(number, size=4):
    return {"w": torch.full((size,), float(number)).as_subclass(OnGpu), "step": torch.tensor(float(number))}


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def test_the_copy_is_between_the_last_update_and_the_next(cuda):
    """On another stream. What lies on the CPU is copied at once, because no stream could wait for its change."""
    held = HeldCopy(torch.device("cuda", 1))
    copy = held.take(shards(3))
    held.guard()
    assert cuda.log == [
        "lock 16 bytes", "copy at once", "side waits for training", "in side", "copy", "training waits for the copy",
    ]  # fmt: skip
    assert all(bool((tensor == 3).all()) for tensor in copy.values())


def test_a_thread_waits_on_the_workers_own_device(cuda):
    """Device 0, the default of a new thread, would hold a second context of CUDA."""
    held = HeldCopy(torch.device("cuda", 1))
    held.take(shards(3))
    cuda.log.clear()
    held.wait()
    assert cuda.log == ["on cuda:1", "Python waits for the copy"]


@pytest.mark.parametrize("how", ["drop", "take"])
def test_memory_that_a_gpu_still_writes_is_not_freed(cuda, how):
    """Neither when the copies are dropped nor when the next one needs other memory."""
    held = HeldCopy(torch.device("cuda", 0))
    held.take(shards(1))
    cuda.log.clear()
    held.drop() if how == "drop" else held.take(shards(2, size=5))
    assert cuda.log[:3] == ["on cuda:0", "Python waits for the copy", "unlock"]


def test_memory_that_cannot_be_locked_still_gets_the_copy(monkeypatch):
    """CUDA keeps its error until a kernel is launched, which is done at once, so that no later one is blamed."""
    cuda = Cuda(monkeypatch, locks=False)

    def launch(*_size, device):
        cuda.log.append(f"launch on {device}")
        raise RuntimeError("CUDA error: part or all of the requested memory range is already mapped")

    with monkeypatch.context() as patch:
        held, first = HeldCopy(torch.device("cuda", 0)), shards(7)
        patch.setattr(torch, "zeros", launch)
        copy = held.take(first)
    assert cuda.log[:2] == ["lock 16 bytes", "launch on cuda"]
    assert bool((copy["w"] == 7).all())
    del copy
    held.drop()
    assert "unlock" not in cuda.log


# -- whether the copies fit


def need(host, copy, training=0, available=1000, node="", earlier=0, on_floor=False):
    sizes = {"copy_bytes": copy, "training_bytes": training, "available_bytes": available, "earlier_bytes": earlier}
    return HostNeed(host=host, node=node, is_on_floor=on_floor, **sizes)


@pytest.mark.parametrize(
    ("available", "copies", "has_floor"), [(1000, 4, True), (999, 4, False), (500, 4, False), (499, 2, True)]
)
def test_the_copies_of_all_nodes_are_on_the_floor_if_it_has_room(available, copies, has_floor):
    """Two copies of its own and two of each of three others: 800 bytes. Else each node has those of one other: 400."""
    hosts = [need("a", 100, available=available, node="a", on_floor=True)]
    hosts += [need(name, 100, node=name) for name in "bcd"]
    found = room_of(hosts, 4)
    assert (found.copies, found.has_floor) == (copies, has_floor)
    is_whole = copies == 4 and has_floor
    assert [lacking.host for lacking in found.lacking] == ([] if is_whole else ["a"])


@pytest.mark.parametrize(
    ("needs", "host"),
    [
        pytest.param([], "", id="nobody"),
        pytest.param([need("a", 800)], "", id="exactly at the limit"),
        pytest.param([need("a", 801)], "a", id="one byte above it"),
        pytest.param([need("a", 400), need("a", 400)], "", id="two workers of one host that fit"),
        pytest.param([need("a", 400), need("a", 401)], "a", id="two workers of one host"),
        pytest.param([need("a", 800), need("b", 800)], "", id="two hosts"),
        pytest.param([need("a", 800), need("b", 400), need("b", 401)], "b", id="the second host"),
        pytest.param([need("b", 801), need("a", 801)], "b", id="the first of two"),
        pytest.param([need("a", 400, 400)], "", id="with what training takes"),
        pytest.param([need("a", 400, 401)], "a", id="with more than training may take"),
        pytest.param([need("a", 300, 0, 1000), need("a", 300, 0, 700)], "a", id="the lower of two measurements"),
        pytest.param([need("a", 0, 0, 0)], "", id="nothing to copy"),
    ],
)
def test_commits_are_synchronous_where_copies_do_not_fit(needs, host):
    """Four fifths of a host's available memory are for its workers' copies, and for what training will take."""
    room = room_of(needs, 1)
    assert room.copies == (0 if host else 1)
    assert [(lacking.copies, lacking.host) for lacking in room.lacking] == ([(1, host)] if host else [])


def test_what_keepers_hold_of_earlier_generations_counts_as_available():
    """Once for each node, though all workers of the node say it."""
    for size, copies in ((400, 1), (401, 0)):
        assert room_of([need("a", size, available=700, node="1", earlier=300)] * 2, 1).copies == copies
    one, other = (need("a", 400, available=500, node=node, earlier=250) for node in ("1", "2"))
    assert room_of([one, other], 1).copies == 1


def test_the_event_has_the_numbers():
    """Of both workers of the host together."""
    assert room_of([need("node-1", 3 * 10**9, 10**9, 8 * 10**9)] * 2, 1).lacking == (
        HostRoomLacking(
            copies=1, host="node-1", needed_bytes=6 * 10**9, available_bytes=8 * 10**9, training_bytes=2 * 10**9
        ),
    )


@pytest.mark.parametrize(("copy", "copies"), [(200, 4), (201, 2), (400, 2), (401, 1), (800, 1), (801, 0)])
def test_the_copies_of_other_nodes_go_first(copy, copies):
    """Then those for resizes, then the one for commits. Each has its event."""
    room = room_of([need("a", copy, node="1"), need("b", copy, node="2")], 4)
    assert room.copies == copies
    assert len(room.lacking) == {4: 0, 2: 1, 1: 2, 0: 3}[copies]


@pytest.mark.parametrize(
    ("workers", "available", "copies"),
    [
        pytest.param(["a1", "a1", "b2"], 600, 4, id="the node with one gets the copies of two"),
        pytest.param(["a1", "a1", "b2"], 599, 2, id="one byte less than that"),
        pytest.param(["b2", "a1", "a1"], 600, 4, id="in another order"),
        pytest.param(["a1", "b2", "b2", "c3"], 599, 2, id="three nodes"),
        pytest.param(["a1", "a1"], 400, 4, id="one node: nobody sends it any"),
        pytest.param(["a1", "a1"], 399, 1, id="its own do not fit"),
        pytest.param(["a1", "a2"], 800, 4, id="two nodes on one host send each other theirs"),
        pytest.param(["a1", "a2"], 799, 2, id="one byte less for both"),
        pytest.param(["a1", "b"], 200, 4, id="a node without a keeper sends none and gets none"),
    ],
)
def test_a_node_has_room_for_the_copies_that_it_gets(workers, available, copies):
    """Each worker is its host and its node, and has copies of 80 bytes. Four fifths are for copies."""
    needs = [need(name[0], 80, available=available, node=name[1:]) for name in workers]
    assert room_of(needs, 4).copies == copies
