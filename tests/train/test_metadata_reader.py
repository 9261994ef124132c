"""A checkpoint's metadata is read as pickle reads it, or refused, in memory and time that its size bounds."""

import dataclasses
import itertools
import pickle
import pickletools
import re
import tracemalloc
from hashlib import sha256
from pathlib import PosixPath
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from planner.errors import StoreError
from planner.store.records import FileDigest
from planner.store.storage import Storage
from planner.train.checkpoints.tensor_reader import tensor_reader

NAME = "000000000001-000001"
FILE_BYTES = 2**20
FILES = [f"__{rank}_0.distcp" for rank in range(8)]
MEMORY_FORMATS = [torch.contiguous_format, torch.channels_last, torch.preserve_format]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """`reader(content)` reads a commit with this metadata. Files with shards are named, and need not be there."""
    storage = Storage(str(tmp_path_factory.mktemp("run")))

    def make(content, size_bytes=None):
        storage.write(f"checkpoints/{NAME}/.metadata", content)
        size_bytes = len(content) if size_bytes is None else size_bytes
        metadata = FileDigest(name=".metadata", size_bytes=size_bytes, sha256=sha256(content).hexdigest())
        shards = [FileDigest(name=name, size_bytes=FILE_BYTES, sha256="0" * 64) for name in FILES]
        folder = f"checkpoints/{NAME}"
        return tensor_reader(storage, SimpleNamespace(name=NAME, folder=folder, files=(metadata, *shards)))

    return make


def without_load_id(metadata):
    """As it is in the file."""
    return dataclasses.replace(metadata, storage_meta=dataclasses.replace(metadata.storage_meta, load_id=None))


def made(tensors, ranks=1, checkpoint_id="/runs/a/checkpoints/b"):
    """The metadata of tensors that are sharded over rows: name -> (dtype, shape)."""
    items, places = {}, {}
    starts = dict.fromkeys(FILES, 0)
    for name, (dtype, shape) in tensors.items():
        chunks = []
        rows = -(-shape[0] // ranks) if shape else 0
        for rank in range(ranks if shape else 1):
            first = min(rank * rows, shape[0]) if shape else 0
            sizes = Size([min(rows, shape[0] - first), *shape[1:]]) if shape else Size([])
            offsets = Size([first, *(0 for _ in shape[1:])]) if shape else Size([])
            index = MetadataIndex(name, offsets, rank)
            if index not in places:
                length = sizes.numel() * dtype.itemsize + 100
                places[index] = _StorageInfo(FILES[rank], starts[FILES[rank]], length)
                starts[FILES[rank]] += length
                chunks.append(ChunkStorageMetadata(offsets, sizes))
        items[name] = TensorStorageMetadata(TensorProperties(dtype), Size(shape), chunks)
    meta = StorageMeta(checkpoint_id=checkpoint_id, save_id="a-b")
    paths = {name: (name,) for name in tensors}
    return Metadata(items, planner_data=paths, storage_data=places, storage_meta=meta, version="1.0.0")


# -- honest metadata

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
names = st.text(min_size=1, max_size=300)
honest = st.builds(
    made,
    st.dictionaries(names, st.tuples(dtypes, shapes), max_size=5),
    ranks=st.integers(1, len(FILES)),
    checkpoint_id=st.sampled_from(["s3://bucket/a", PosixPath("/runs/a b/c"), PosixPath("x"), None]),
)


@given(metadata=honest, protocol=st.integers(2, 5))
def test_it_reads_what_pickle_reads(reader, metadata, protocol):
    """Any tensors on any number of workers, in each protocol that has the opcodes of protocol 2."""
    content = pickle.dumps(metadata, protocol=protocol)
    assert without_load_id(reader(content).read_metadata()) == pickle.loads(content)


@given(data=st.data(), metadata=honest, protocol=st.integers(2, 5))
def test_altered_metadata_is_read_or_a_store_error(reader, data, metadata, protocol):
    """Never another exception, whichever bytes are changed, added, taken away or moved."""
    content = bytearray(pickle.dumps(metadata, protocol=protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content) - 1))
        stop = start + data.draw(st.integers(0, 8))
        content[start:stop] = data.draw(st.binary(max_size=8) | st.just(content[-start:][:20]))
    try:
        read = reader(bytes(content)).read_metadata()
    except StoreError as error:
        assert ".metadata: " in str(error)  # noqa: PT017  # not raising is fine, too
        assert len(str(error)) <= 500  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert type(read) is Metadata


@pytest.mark.parametrize("count", [999, 1000, 1001, 2000])
@pytest.mark.parametrize("protocol", [2, 5])
def test_a_thousand_tensors_are_read(reader, count, protocol):
    """Python writes items in batches of 1,000. After exactly 1,000, it writes a batch of none."""
    content = pickle.dumps(made({f"x{number}": (torch.uint8, (1,)) for number in range(count)}), protocol=protocol)
    assert without_load_id(reader(content).read_metadata()) == pickle.loads(content)


@pytest.mark.parametrize("count", [1000, 1001])
def test_a_thousand_workers_are_read(reader, monkeypatch, count):
    """A tensor with exactly as many shards as one batch has."""
    monkeypatch.setitem(globals(), "FILES", [f"__{rank}_0.distcp" for rank in range(count)])
    content = pickle.dumps(made({"x": (torch.uint8, (count, 1))}, ranks=count))
    assert without_load_id(reader(content).read_metadata()) == pickle.loads(content)


@pytest.mark.parametrize("number", [255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**40])
def test_integers_of_each_size_are_read(reader, number):
    """As an index in a list of chunks, which can be any."""
    metadata = made({"x": (torch.float32, (2,))})
    (place,) = metadata.storage_data.values()
    metadata.storage_data = {MetadataIndex("x", Size([0]), number): place}
    (index,) = reader(pickle.dumps(metadata)).read_metadata().storage_data
    assert index.index == number


@pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=str)
def test_memory_formats_and_layouts_are_read(reader, memory_format):
    metadata = made({"x": (torch.float32, (2,))})
    properties = TensorProperties(torch.float32, torch.sparse_coo, True, memory_format, True)
    metadata.state_dict_metadata["x"].properties = properties
    assert reader(pickle.dumps(metadata)).read_metadata().state_dict_metadata["x"].properties == properties


def test_the_file_is_read_once_for_all_callers(reader):
    """And none of them sees what another one does to its `storage_meta`."""
    one = reader(pickle.dumps(made({"x": (torch.float32, (2,))})))
    first = one.read_metadata()
    before = first.storage_meta.load_id
    one._storage = None  # it is not opened again
    one.reset()
    second = one.read_metadata()
    assert second.storage_meta.load_id == one.load_id != before == first.storage_meta.load_id
    assert second.storage_data is first.storage_data


# -- content that asks for more than it is


def text(value):
    """An opcode that pushes a text."""
    encoded = value.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def integer(value):
    """An opcode that pushes an integer of at most eight bytes."""
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def class_named(kind):
    return text(kind.__module__) + text(kind.__qualname__) + b"\x93"


def get(number):
    """An opcode that pushes a value of the memo."""
    return b"j" + number.to_bytes(4, "little")


HUGE = (2**31 - 1).to_bytes(8, "little")
M = 2**61 - 1
"""Python's hash of each multiple is 0"""


def refused(reader, content, reason):
    """Refuse it in memory of 300 bytes for each of its bytes, beside 2 MB. A list of Python has 56 bytes, a dict 64."""
    one = reader(content)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="not the metadata of a checkpoint of tensors") as caught:
            one.read_metadata()
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2_000_000 + 300 * len(content)
    assert re.search(reason, str(caught.value))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\x80\x04Nr\xff\xff\xff\x0f.", "memo number 268435455 instead of 0", id="LONG_BINPUT"),
        pytest.param(b"\x80\x04Nr\xff\xff\xff\xff.", "memo number 4294967295 instead of 0", id="LONG_BINPUT, largest"),
        pytest.param(b"\x80\x04Np268435455\n.", "the opcode PUT", id="PUT"),
        pytest.param(b"\x80\x05\x96" + HUGE + b".", "the opcode BYTEARRAY8", id="BYTEARRAY8"),
        pytest.param(b"\x80\x04\x8e" + HUGE + b".", "the opcode BINBYTES8", id="BINBYTES8"),
        pytest.param(b"\x80\x04\x8d" + HUGE + b".", "the opcode BINUNICODE8", id="BINUNICODE8"),
        pytest.param(b"\x80\x04X" + HUGE[:4] + b".", "a text that is longer than the file", id="BINUNICODE"),
        pytest.param(b"\x80\x04\x95" + HUGE + b".", "a frame that is longer than the file", id="FRAME"),
        pytest.param(b"\x80\x04\x8b" + HUGE[:4] + b".", "the opcode LONG4", id="LONG4"),
        pytest.param(b"\x80\x04\x8a\xff" + b"\x7f" * 255 + b".", "an integer of 255 bytes", id="LONG1"),
        pytest.param(b"\x80\x04I" + b"9" * 4000 + b"\n.", "the opcode INT", id="INT"),
        pytest.param(b"\x80\x04\xff.", r"the opcode '\\xff' at byte 2", id="no opcode"),
        pytest.param(b"\x80\x04Q.", "the opcode BINPERSID", id="BINPERSID"),
        pytest.param(b"\x80\x04\x82\x01.", "the opcode EXT1", id="EXT1"),
        pytest.param(
            b"\x80\x04" + text("a" * 10**6) + text("\n\x1b[31m" * 10**5) + b"\x93.", "it names aaa", id="name"
        ),
        pytest.param(b"\x80\x04c" + b"a" * 10**6, "a name without an end", id="GLOBAL"),
    ],
)
def test_a_few_bytes_ask_for_no_memory(reader, content, reason):
    """Huge lengths, huge numbers, and opcodes that no metadata has."""
    refused(reader, content, reason)


DEEP = 300_000
WIDE = b"".join(b"\x94" + get(number) + b"\x86" for number in range(1, 60))
"""Makes a pair of a value twice, and a pair of that pair twice, and so on: 2**60 values for who visits all"""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b")" + b"\x85" * DEEP, "it is a tuple", id="tuples"),
        pytest.param(b"(" * DEEP + b"t" * DEEP, "it is a tuple", id="tuples by marks"),
        pytest.param(b"]" * DEEP + b"a" * (DEEP - 1), "a list of something else", id="lists"),
        pytest.param((b"}" + text("a")) * 10**5 + b"N" + b"s" * 10**5, "it is a dict", id="dicts"),
        pytest.param(b"}\x94" + text("a") + get(0) + b"s", "it is a dict", id="a dict in itself"),
        pytest.param(b"(" * DEEP, "ends early", id="marks"),
        pytest.param(b"}" + b")" + b"\x85" * DEEP + b"Ns", "something else than names", id="a deep key"),
        pytest.param(b"})\x94h\x00\x86" + WIDE + b"Ns", "something else than names", id="a wide and deep key"),
        pytest.param(class_named(Size) + b")" + b"\x85" * DEEP + b"R", "that is not of at most 64", id="a deep shape"),
        pytest.param(class_named(Size) + b"(" + b"K\x01" * 65 + b"t\x85R", "not of at most 64", id="a long shape"),
        pytest.param(class_named(Size) + integer(-1) + b"\x85\x85R", "the number -1", id="a negative shape"),
    ],
)  # fmt: skip
def test_deep_nesting_is_refused(reader, content, reason):
    """Nothing recurs: not reading, not hashing, not the message, not what Python does with the rest."""
    refused(reader, b"\x80\x04" + content + b".", reason)


def test_keys_that_are_integers_are_refused(reader):
    """All with the same hash. pickle takes half a minute for 20,000 of them, and 25 times as long for these."""
    keys = b"".join(b"\x8a\x0a" + (number * M).to_bytes(10, "little") + b"N" for number in range(100_000))
    refused(reader, b"\x80\x04}(" + keys + b"u.", "an integer of 10 bytes")
    keys = b"".join(integer(number) + b"N" for number in range(100_000))
    refused(reader, b"\x80\x04}(" + keys + b"u.", "something else than names or places")


@pytest.mark.parametrize("one_by_one", [True, False])
def test_places_with_the_same_hash_are_refused(reader, monkeypatch, one_by_one):
    """Before they are compared with each other. pickle compares each with all before it."""
    offsets = itertools.islice(itertools.product(range(0, 5 * M, M), repeat=8), 3000)
    shapes = [b"(" + b"".join(map(integer, offset)) + b"t" for offset in offsets]
    # The memo: 0 Size, 1 MetadataIndex, 2 to 4 the names of its attributes.
    attributes = [text("fqn"), text("offset"), text("index")]
    content = b"".join(value + b"\x94" for value in [class_named(Size), class_named(MetadataIndex), *attributes])
    content += b"}" + (b"" if one_by_one else b"(")
    for shape in shapes:
        state = get(2) + text("x") + get(3) + get(0) + shape + b"\x85R" + get(4) + b"K\x00"
        content += get(1) + b")\x81}(" + state + b"ubN" + (b"s" if one_by_one else b"")
    content += b"." if one_by_one else b"u."
    compared = []
    equal = MetadataIndex.__eq__
    monkeypatch.setattr(MetadataIndex, "__eq__", lambda a, b: compared.append(None) or equal(a, b))
    with pytest.raises(StoreError, match="not the metadata") as caught:
        reader(b"\x80\x04" + content).read_metadata()
    assert len(compared) < 100
    assert "8 shards with the same hash" in str(caught.value)


def test_a_path_is_no_longer_than_the_file(reader):
    """The memo names a part of it ten thousand times, or names the whole of it ten thousand times."""
    part = text("a" * 10_000) + b"\x94"
    kind = class_named(PosixPath)
    long = kind + b"(" + part + get(0) * 10_000 + b"tR"
    refused(reader, b"\x80\x04" + long + b".", "a path that is longer than the file")
    many = kind + b"\x94" + part + b"\x85\x94R" + (get(0) + get(2) + b"R") * 10_000
    refused(reader, b"\x80\x04" + many + b".", "more than one path")


def test_a_value_that_the_memo_repeats_is_not_read_again(reader):
    """2,000 names of one tensor with 2,000 shards: four million shards in a small file."""
    metadata = made({"x": (torch.uint8, (8,))}, ranks=8)
    item = metadata.state_dict_metadata["x"]
    item.chunks *= 250
    metadata.state_dict_metadata = {f"x{number}": item for number in range(2000)}
    refused(reader, pickle.dumps(metadata), "has 2000 shards, and 0 are in files")
    metadata = made({"x": (torch.uint8, (8,))})
    metadata.planner_data = dict.fromkeys(map(str, range(2000)), tuple("a" * 2000))
    refused(reader, pickle.dumps(metadata), "planner data of another kind")


def test_metadata_of_another_size_is_not_read(reader):
    """More bytes than the manifest says, or fewer, or more than fit into memory."""
    content = pickle.dumps(made({"x": (torch.uint8, (8,))}))
    for size_bytes in (0, len(content) - 1, len(content) + 1):
        with pytest.raises(StoreError, match=r"more than \d+ bytes|bytes, and the manifest says"):
            reader(content, size_bytes).read_metadata()
    with pytest.raises(StoreError, match="planner reads metadata of at most 2147483648 bytes"):
        reader(content, 2**50).read_metadata()


# -- objects


def test_an_object_is_built_once_and_before_it_is_used(reader):
    """Otherwise a key's hash could change, or a chunk that was checked."""
    content = pickle.dumps(made({"x": (torch.uint8, (8,))}))
    where = [pos for op, _, pos in pickletools.genops(content) if op.name == "BUILD"]
    for pos in where:
        with pytest.raises(StoreError, match=r"it changes a|not the metadata"):
            reader(content[: pos + 1] + b"}b" + content[pos + 1 :]).read_metadata()
        with pytest.raises(StoreError, match=r"half-made object|other attributes|something else|not the metadata"):
            reader(content[:pos] + b"0" + content[pos + 1 :]).read_metadata()
    half = class_named(MetadataIndex) + b")\x81"
    refused(reader, b"\x80\x04}" + half + b"Ns.", "something else than names or places")
    refused(reader, b"\x80\x04" + half + b".", "it is a half-made object")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storage_meta": StorageMeta(modules=[ChunkStorageMetadata(Size([]), Size([]))])}, "it has modules"),
        ({"planner_data": {"x": (("x",),)}}, "planner data of another kind"),
        ({"storage_data": {}}, "has 1 shards, and 0 are in files"),
        ({"state_dict_metadata": {}}, "shards of 'x', but no such tensor"),
        ({"version": 1}, "sets Metadata.version to a int"),
    ],
)
def test_other_metadata_is_refused(reader, change, reason):
    metadata = dataclasses.replace(made({"x": (torch.uint8, (8,))}), **change)
    refused(reader, pickle.dumps(metadata), reason)


@pytest.mark.parametrize(
    ("path", "offset", "length", "reason"),
    [
        ("__0_0.distcp", 0, 7, "8 elements of 1 bytes in 7 bytes"),
        ("__0_0.distcp", FILE_BYTES - 7, 8, f"beyond the {FILE_BYTES} bytes of '__0_0.distcp'"),
        ("__0_0.distcp", 2**60, 8, "beyond the"),
        ("__0_0.distcp", -1, 8, "the number -1"),
        ("__0_0.distcp", 0, -1, "the number -1"),
        ("__9_0.distcp", 0, 8, "'__9_0.distcp', a file that the manifest does not know"),
        (".metadata", 0, 2**30, "beyond the"),
    ],
)
def test_a_place_outside_of_its_file_is_refused(reader, path, offset, length, reason):
    metadata = made({"x": (torch.uint8, (8,))})
    metadata.storage_data = dict.fromkeys(metadata.storage_data, _StorageInfo(path, offset, length))
    refused(reader, pickle.dumps(metadata), reason)


def test_no_byte_of_a_file_is_two_shards(reader):
    """Otherwise a small file could make any number of tensors."""
    metadata = made({"x": (torch.uint8, (8,)), "y": (torch.uint8, (8,))})
    metadata.storage_data = dict.fromkeys(metadata.storage_data, _StorageInfo(FILES[0], 0, FILE_BYTES * 2 // 3))
    refused(reader, pickle.dumps(metadata), "beyond the")


@pytest.mark.parametrize(
    "chunks",
    [
        [((0, 0), (4, 2)), ((2, 0), (4, 2))],  # rows 2 and 3 twice, 6 and 7 never
        [((0, 0), (3, 2)), ((4, 0), (4, 2))],
        [((0, 0), (8, 1))],
        [((0, 0), (4, 1)), ((0, 1), (8, 1)), ((4, 0), (4, 1))],  # along two dimensions
    ],
)
def test_a_tensor_with_a_gap_is_refused(reader, chunks):
    """An export would write what was in memory there."""
    metadata = made({"x": (torch.uint8, (8, 2))})
    metadata.state_dict_metadata["x"].chunks = [ChunkStorageMetadata(Size(at), Size(sizes)) for at, sizes in chunks]
    places = (MetadataIndex("x", Size(at)) for at, _ in chunks)
    metadata.storage_data = dict.fromkeys(places, _StorageInfo(FILES[0], 0, 16))
    refused(reader, pickle.dumps(metadata), "shards that do not make it up")


@pytest.mark.parametrize(
    ("shape", "offsets", "sizes", "reason"),
    [
        ((9,), (0,), (8,), r"of shape \(9,\) has shards that do not make it up"),
        ((8,), (1,), (8,), r"a shard of shape \(8,\) at \(1,\)"),
        ((8,), (0,), (2, 4), r"no shard at \(0,\)"),
        ((2, 4), (0,), (8,), r"no shard at \(0,\)"),
        ((2**50,), (0,), (2**50,), "elements of 1 bytes in 108 bytes"),
        ((2**40, 2**40, 0), (0, 0, 0), (2**40, 2**40, 0), r"of shape \(1099511627776"),
    ],
)
def test_a_tensor_that_its_shards_do_not_make_up_is_refused(reader, shape, offsets, sizes, reason):
    metadata = made({"x": (torch.uint8, (8,))})
    item, (place,) = metadata.state_dict_metadata["x"], metadata.storage_data.values()
    item.size, item.chunks = Size(shape), [ChunkStorageMetadata(Size(offsets), Size(sizes))]
    metadata.storage_data = {MetadataIndex("x", Size(offsets)): place}
    refused(reader, pickle.dumps(metadata), reason)
