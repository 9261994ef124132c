"""Files of a commit: their digests are taken while they are written, and a write that fails leaves nothing."""

import errno
import io
import stat
import uuid
from hashlib import sha256

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint_safety import manifest_of

from planner.errors import StoreError
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.background import Abandoned
from planner.train.checkpoints import tensor_writer
from planner.train.checkpoints.checkpoint import read
from planner.train.checkpoints.shard_plan import ShardPlan, write_metadata, write_shards
from planner.train.world import World, cpu_device

FOLDER = "checkpoints/000000000001-000001"
MIB = 2**20
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)


@pytest.fixture(scope="module")
def world(process_group):  # noqa: ARG001  # it must be there
    return World.join(cpu_device)


@pytest.fixture(params=["local", "memory"])
def storage(request, tmp_path):
    """A folder on this machine, and fsspec's in-process stand-in for an object store."""
    if request.param == "local":
        yield Storage(str(tmp_path / "run"))
        return
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    yield storage
    storage.delete("")


def write(world, storage, tensors, on_piece=lambda: None):
    plan = ShardPlan.made(world, tensors)
    written = write_shards(storage, FOLDER, plan, tensors, on_piece)
    return write_metadata(storage, FOLDER, plan, [written])


def require_digests(storage, files):
    """Every file is named, and holds what its digest says."""
    assert [file.name for file in files] == [".metadata", *storage.names(FOLDER)]
    for file in files:
        content = storage.read(f"{FOLDER}/{file.name}")
        assert (file.size_bytes, file.sha256) == (len(content), sha256(content).hexdigest())


@pytest.mark.parametrize("size_bytes", [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB])
def test_digests_are_those_of_the_files_in_pieces_too(world, storage, size_bytes):
    """Around the size of a piece. The file has a header of its own, so its size is near these."""
    pieces = []
    tensor = torch.arange(size_bytes, dtype=torch.int64).to(torch.uint8)
    files = write(world, storage, {"model/x": tensor}, lambda: pieces.append(None))
    require_digests(storage, files)
    assert len(pieces) >= -(-size_bytes // (4 * MIB))
    [(name, found)] = read(storage, manifest_of(files))
    assert name == "model/x"
    assert torch.equal(found, tensor)


@pytest.mark.parametrize("parts", [[0], [1], [4 * MIB], [4 * MIB + 1], [3, 9 * MIB, 5], [7] * 20_000])
def test_no_piece_is_larger_than_four_mib(parts):
    """Each is passed on, hashed and counted, in the order of writing. Small ones are gathered first."""
    raw, sizes, before = io.BytesIO(), [], [0]
    stream = tensor_writer._HashedStream(
        raw, lambda: sizes.append(raw.tell() - before[0]) or before.__setitem__(0, raw.tell()), is_synced=False
    )
    contents = [bytes([number % 251]) * size for number, size in enumerate(parts)]
    assert [stream.write(content) for content in contents] == parts
    stream.flush()
    assert len(sizes) <= 5
    assert raw.getvalue() == b"".join(contents)
    assert sum(sizes) == stream.tell() == sum(parts)
    assert max(sizes, default=0) <= 4 * MIB
    digest = stream.digest("x")
    assert (digest.size_bytes, digest.sha256) == (sum(parts), sha256(raw.getvalue()).hexdigest())


@given(
    kinds=st.dictionaries(
        st.sampled_from(["model/a", "model/b.c", "optimizer/a/exp_avg", "optimizer/a/step", "sums/x"]),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3).map(tuple), st.integers(0, 200)),
        min_size=1,
    )
)
def test_any_state_comes_back(world, kinds):
    """Of every type and shape: scalars, tensors without elements, bf16."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    tensors = {name: torch.full(shape, number).to(dtype) for name, (dtype, shape, number) in kinds.items()}
    files = write(world, storage, tensors)
    require_digests(storage, files)
    found = dict(read(storage, manifest_of(files)))
    storage.delete("")
    assert found.keys() == tensors.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


def test_a_view_into_larger_memory_is_written_alone(world, storage):
    """A shard may be a part of a flat buffer: its neighbours are not in the file."""
    flat = torch.arange(100_000, dtype=torch.float32)
    files = write(world, storage, {"model/x": flat[10:20]})
    assert next(file for file in files if file.name != ".metadata").size_bytes < 10_000
    [(_, found)] = read(storage, manifest_of(files))
    assert torch.equal(found, flat[10:20])


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "no room"), OSError(errno.EIO, "bad disk"), StoreError("gone"), Abandoned()],
    ids=["full", "broken", "store", "abandoned"],
)
def test_a_write_that_fails_leaves_no_file(world, storage, error):
    """After its first piece, with the error itself: torch would say `unexpected pos`."""
    pieces = []

    def fail():
        pieces.append(None)
        if len(pieces) == 2:
            raise error

    with pytest.raises(type(error)) as raised:
        write(world, storage, {"model/x": torch.zeros(9 * MIB, dtype=torch.uint8)}, fail)
    assert raised.value is error
    assert storage.names(FOLDER) == []


def test_one_altered_byte_is_found(world, storage):
    """In any file, wherever the byte is."""
    files = write(world, storage, {"model/x": torch.arange(1000)})
    run = RunFolder(storage)
    run.check_files(FOLDER, files)
    for file in files:
        name = f"{FOLDER}/{file.name}"
        honest = storage.read(name)
        for at in (0, len(honest) // 2, len(honest) - 1):
            altered = bytearray(honest)
            altered[at] ^= 1
            storage.write(name, bytes(altered))
            with pytest.raises(StoreError, match=f"^{name}: altered"):
                run.check_files(FOLDER, files)
        storage.write(name, honest)
    run.check_files(FOLDER, files)


@pytest.mark.parametrize(("mode", "expected"), [(0o700, 0o600), (0o2770, 0o660)])
def test_files_are_as_open_as_the_run_s_folder(world, tmp_path, mode, expected):
    """Shards and metadata, private or a team's."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    write(world, Storage(str(tmp_path / "run")), {"model/x": torch.zeros(3)})
    made = list((tmp_path / "run" / FOLDER).iterdir())
    assert len(made) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {expected}


def test_a_plan_is_made_once_and_serves_later_values(world, storage):
    """The second write of the same plan has the second values, in files of the same names."""
    tensors = {"model/x": torch.zeros(4), "model/y": torch.zeros((), dtype=torch.int64)}
    plan = ShardPlan.made(world, tensors)
    for number in (1, 2):
        values = {name: torch.full_like(tensor, number) for name, tensor in tensors.items()}
        files = write_metadata(storage, FOLDER, plan, [write_shards(storage, FOLDER, plan, values, lambda: None)])
        require_digests(storage, files)
        found = dict(read(storage, manifest_of(files)))
        assert all(torch.equal(found[name], value) for name, value in values.items())
