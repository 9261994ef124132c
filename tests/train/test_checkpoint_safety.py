"""Checkpoints come back to the bit, from a folder and from an object store; and nothing in one is ever executed."""

import builtins
import dataclasses
import enum
import io
import os
import pickle
import stat
import uuid
from functools import partial
from hashlib import sha256
from pathlib import PosixPath

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from planner.errors import ManifestMismatch, StoreError
from planner.job import Job
from planner.provenance.audit import audit
from planner.store.ledger import read_segment, segment_name
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    FileDigest,
    Manifest,
    StepRecord,
    TrainingIdentity,
    digest_of,
    seal,
)
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage
from planner.train.checkpoints import checkpoint
from planner.train.checkpoints.shard_plan import ShardPlan, write_metadata, write_shards
from planner.train.collectives import shard_of
from planner.train.exact.gradient_sums import FloatSums
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.optimize import make_optimizer
from planner.train.setup import Launch
from planner.train.shard import build_model, shard
from planner.train.state import TrainState
from planner.train.world import World, cpu_device

NAME = commit_name(1, 1)
FOLDER = f"checkpoints/{NAME}"
OPTIMIZERS = [
    {"kind": "adamw", "lr": 1e-3},
    {"kind": "rmsprop", "lr": 1e-3},
    {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    {"kind": "sgd", "lr": 0.1},
]


@pytest.fixture(scope="module", autouse=True)
def world(process_group):  # noqa: ARG001  # it must be there
    """This process, alone."""
    return World.join(cpu_device)


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path):
    """A folder on this machine, and fsspec's in-process stand-in for an object store."""
    if request.param == "local":
        yield str(tmp_path / "run")
        return
    address = f"memory://{uuid.uuid4().hex}"
    yield address
    Storage(address).delete("")


def make_job(path="", steps=4, optimizer=OPTIMIZERS[0], **sections):
    """The smallest that has a block."""
    job = {
        "name": "test",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8},
        "data": {"kind": "text", "path": str(path) or "nowhere"},
        "batch": {"global": 5, "max_micro": 2},
        "train": {"steps": steps, "seed": 3, "optimizer": optimizer},
        "workers": {"gpus": 0},
    }
    return Job.model_validate({**job, **sections})


def make_state(world, optimizer=OPTIMIZERS[0], seed=3, steps=0):
    """A sharded model and its optimizer, after some steps."""
    job = make_job(optimizer=optimizer)
    model = shard(build_model(job.model, job.train.model_copy(update={"seed": seed})), world, job.train)
    state = TrainState.of(model, make_optimizer(job.train.optimizer, model), FloatSums(model))
    for number in range(steps):
        model(torch.full((1, 4), number)).square().sum().backward()
        state.step()
        model.zero_grad(set_to_none=True)
    return state


def tensors(state):
    """Every weight and every tensor of the optimizer's state, whole, by name."""
    return {name: getattr(t, "full_tensor", lambda t=t: t)().clone() for name, t in state.tensors().items()}


def manifest_of(files, optimizer="adamw", **changes):
    fields = {
        "run_id": "run",
        "name": NAME,
        "generation": 1,
        "parent": "",
        "step": 1,
        "cursor": 5,
        "total_steps": 4,
        "identity": TrainingIdentity(
            global_batch=5,
            seed=3,
            data="a" * 64,
            model="b" * 64,
            optimizer=optimizer,
            recipe="c" * 64,
            equality="balanced",
        ),
        "plan_digest": "p",
        "world_size": 1,
        "facts": {},
        "job_digest": "c" * 64,
        "ledger_head": "d" * 64,
        "files": files,
        "tensors": {},
        "versions": {},
        "time_s": 1.0,
    }
    return Manifest(**{**fields, **changes})


def saved(world, storage, optimizer=OPTIMIZERS[0], steps=2):
    """A checkpoint in the store; the state that it holds, and a manifest that names its files."""
    state = make_state(world, optimizer, steps=steps)
    plan = ShardPlan.made(world, state.tensors())
    shards = {name: shard_of(tensor) for name, tensor in state.tensors().items()}
    written = write_shards(storage, FOLDER, plan, shards, lambda: None)
    return state, manifest_of(write_metadata(storage, FOLDER, plan, [written]), optimizer["kind"])


def require_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# -- there and back


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["adamw", "rmsprop", "sgd, momentum", "sgd"])
def test_what_is_saved_is_loaded(world, url, optimizer):
    """Weights and optimizer state to the bit, into a model that began elsewhere; the next step agrees to the bit."""
    storage = Storage(url)
    state, manifest = saved(world, storage, optimizer)
    other = make_state(world, optimizer, seed=4)
    weights = zip(state.model.parameters(), other.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights)
    checkpoint.load(world, storage, manifest, other, manifest.identity)
    require_equal(tensors(state), tensors(other))
    for each in (state, other):
        each.model(torch.full((1, 4), 7)).square().sum().backward()
        each.step()
    require_equal(tensors(state), tensors(other))


def test_the_digests_are_those_of_the_files(world, url):
    """Every file is named, DCP's hidden metadata too, and none else is there."""
    storage = Storage(url)
    _, manifest = saved(world, storage)
    assert {file.name for file in manifest.files} == {".metadata", *storage.names(FOLDER)} >= {"__0_0.distcp"}
    for file in manifest.files:
        content = storage.read(f"{FOLDER}/{file.name}")
        assert (file.size_bytes, file.sha256) == (len(content), sha256(content).hexdigest())


def test_another_kind_of_optimizer_begins_anew(world, url):
    """The weights are loaded, the foreign state is not."""
    storage = Storage(url)
    state, manifest = saved(world, storage)
    other = make_state(world, OPTIMIZERS[1], seed=4)
    checkpoint.load(world, storage, manifest, other, manifest.identity.model_copy(update={"optimizer": "rmsprop"}))
    assert not any(other.optimizer.state.values())
    require_equal(dict(state.model.named_parameters()), dict(other.model.named_parameters()))


def test_another_model_is_refused(world, url):
    """With the names that differ, or the shapes."""
    storage = Storage(url)
    _, manifest = saved(world, storage)
    deeper = make_job(model={"kind": "gpt", "layers": 2, "width": 8, "heads": 1, "context": 8})
    wider = make_job(model={"kind": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 8})
    for job, message in [(deeper, r"differ in model/blocks\.1"), (wider, "shape")]:
        model = shard(build_model(job.model, job.train), world, job.train)
        state = TrainState.of(model, make_optimizer(job.train.optimizer, model), FloatSums(model))
        with pytest.raises(StoreError, match=message):
            checkpoint.load(world, storage, manifest, state, manifest.identity)


# -- a whole run


def steps_of(run, generation):
    """Losses and checksums in a segment."""
    head = NO_HEAD if generation == 1 else run.manifest(run.commits()[0]).ledger_head
    records = [link.record for link in read_segment(run.storage, generation, head)]
    return [(r.step, r.loss, r.checksum) for r in records if isinstance(r, StepRecord)], records


def test_a_run_trains_resumes_and_is_audited(url, tmp_path):
    """Stopped after 3 of 7 steps and resumed, it is what an undisturbed one is; the last records are in the store."""
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    job = make_job(
        tmp_path / "corpus.txt",
        steps=7,
        eval={"samples": 3, "every": 2},
        checkpoint={"every": 2, "keep": 1},
    )
    asked = []

    def should_stop(_step):
        asked.append(None)
        return len(asked) > 3

    stopped = train(Launch(job=job, url=url), cpu_device, Hooks(should_stop=should_stop))
    assert (stopped.step, stopped.finished) == (3, False)
    assert train(Launch(job=job, url=url), cpu_device, Hooks()).finished
    whole = f"{url}-whole"
    train(Launch(job=job, url=whole), cpu_device, Hooks())

    run, undisturbed = RunFolder(Storage(url)), RunFolder(Storage(whole))
    cut = steps_of(run, 1)[0]
    head = run.manifest(commit_name(3, 1)).ledger_head
    later = [link.record for link in read_segment(run.storage, 2, head)]
    measured = cut + [(r.step, r.loss, r.checksum) for r in later if isinstance(r, StepRecord)]
    assert measured == steps_of(undisturbed, 1)[0]
    assert [r.step for r in later if isinstance(r, EvalRecord)][-1] == 7
    assert [r.step for r in later if isinstance(r, CommitRecord)] == [4, 6, 7]
    assert run.storage.names("checkpoints") == [commit_name(7, 2)]
    result = audit(run)
    assert result.clean, result.findings
    assert (result.steps, result.samples, result.recomputed, result.uncommitted) == (7, 35, 0, 0)
    undisturbed.storage.delete("")


def test_an_accepted_change_of_optimizer_trains_on(url, tmp_path):
    """From the same weights, with a fresh state; the ledger says so."""
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    train(Launch(job=make_job(tmp_path / "corpus.txt", steps=2), url=url), cpu_device, Hooks())
    changed = make_job(tmp_path / "corpus.txt", steps=4, optimizer=OPTIMIZERS[1])
    assert train(Launch(job=changed, url=url, accept=frozenset({"optimizer", "recipe"})), cpu_device, Hooks()).finished
    run = RunFolder(Storage(url))
    head = run.manifest(commit_name(2, 1)).ledger_head
    header = next(iter(read_segment(run.storage, 2, head))).record
    assert "optimizer: accepted by name" in header.changed
    assert "train.optimizer.kind: adamw -> rmsprop" in header.changed


# -- who may look


def modes(folder):
    """Of a folder and of all within: those of folders, and those of files."""
    found = {True: set(), False: set()}
    for place in (folder, *folder.rglob("*")):
        found[place.is_dir()].add(oct(stat.S_IMODE(place.stat().st_mode)))
    return found[True], found[False]


@pytest.mark.parametrize("umask", [0o022, 0o077])
@pytest.mark.parametrize(("shared", "expected"), [(None, ({"0o700"}, {"0o600"})), (0o2770, ({"0o2770"}, {"0o660"}))])
def test_a_run_is_its_owners_or_its_teams(tmp_path, umask, shared, expected):
    """Ledger, manifests, claims, DCP's files, whatever the umask: private, or as open as a folder that was there."""
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    run = tmp_path / "runs" / "run"
    if shared is not None:
        run.mkdir(parents=True)
        run.chmod(shared)
    before = os.umask(umask)
    try:
        train(Launch(job=make_job(tmp_path / "corpus.txt", steps=1), url=str(run)), cpu_device, Hooks())
    finally:
        os.umask(before)
    assert (run / "checkpoints" / commit_name(1, 1) / ".metadata").exists()
    assert modes(run) == expected


# -- metadata that would run code


class Call:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def calls(marker):
    """Pickles of calls that make `marker`; each is truly dangerous (see below)."""
    touch = f"open({str(marker)!r}, 'w').close()"
    return {
        "os.system": Call(os.system, f"touch '{marker}'"),
        "builtins.exec": Call(builtins.exec, touch),
        "builtins.eval": Call(builtins.eval, touch),
        "open": Call(open, str(marker), "w"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "import": Call(__import__, "antigravity"),
        "torch.load": Call(torch.load, str(marker)),
    }


def hidden(metadata, call):
    """The call in every place of honest metadata where an object can stand."""
    name = next(iter(metadata.state_dict_metadata))
    index = next(iter(metadata.storage_data))
    return {
        "alone": call,
        "in a list": [call],
        "as planner data": dataclasses.replace(metadata, planner_data=call),
        "as a tensor": dataclasses.replace(
            metadata, state_dict_metadata={**metadata.state_dict_metadata, name: {"x": [call]}}
        ),
        "as a place": dataclasses.replace(metadata, storage_data={**metadata.storage_data, index: call}),
        "as a file's name": dataclasses.replace(
            metadata, storage_data={**metadata.storage_data, index: _StorageInfo(call, 0, 1)}
        ),
    }


@pytest.fixture(scope="module", params=["local", "memory"])
def harmed(request, world, tmp_path_factory):
    """Puts other metadata into an honest checkpoint, with a manifest to match, and loads it."""
    folder = tmp_path_factory.mktemp("harmed")
    storage = Storage(str(folder) if request.param == "local" else f"memory:/{folder}")
    _, manifest = saved(world, storage)
    honest, honest_shards = storage.read(f"{FOLDER}/.metadata"), storage.read(f"{FOLDER}/__0_0.distcp")
    state = make_state(world, seed=4)

    def put(content, shards=honest_shards):
        """The manifest that names both files."""
        files = {".metadata": content, "__0_0.distcp": shards}
        for name, written in files.items():
            storage.write(f"{FOLDER}/{name}", written)
        digests = tuple(
            FileDigest(name=name, size_bytes=len(written), sha256=sha256(written).hexdigest())
            for name, written in files.items()
        )
        return manifest.model_copy(update={"files": digests})

    def load(*contents):
        checkpoint.load(world, storage, put(*contents), state, manifest.identity)

    load(honest)
    load.put = put
    load.honest = honest
    load.storage = storage
    yield load
    storage.delete("")


@pytest.mark.parametrize("function", ["os.system", "builtins.exec", "builtins.eval", "open"])
def test_the_planted_calls_are_dangerous(tmp_path, function):
    """Python's own unpickler runs them: the tests below prove something."""
    pickle.loads(pickle.dumps(calls(tmp_path / "ran")[function]))
    assert (tmp_path / "ran").exists()


def test_metadata_never_runs_code(harmed, tmp_path):
    """Whatever the call, wherever it hides, in every pickle protocol: refused, and it never ran."""
    marker = tmp_path / "ran"
    for function, call in calls(marker).items():
        for place, planted in hidden(pickle.loads(harmed.honest), call).items():
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1) if place == "alone" else [4]:
                with pytest.raises(StoreError, match="not the metadata of a checkpoint of tensors") as caught:
                    harmed(pickle.dumps(planted, protocol=protocol))
                assert "it names" in str(caught.value), (function, place, protocol)
                assert not marker.exists(), (function, place, protocol)


def torch_saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


@pytest.mark.parametrize("as_saved", [partial(pickle.dumps, protocol=2), torch_saved], ids=["a pickle", "torch.save"])
def test_a_shard_never_runs_code(harmed, tmp_path, as_saved):
    """In the place of a tensor's bytes, in either form that torch reads; in a load and in an export's read."""
    metadata = pickle.loads(harmed.honest)
    for function, call in calls(tmp_path / "ran").items():
        shard = as_saved([call, "as long as the longest tensor" * 500])
        places = {
            index: _StorageInfo("__0_0.distcp", len(shard) * number, len(shard))
            for number, index in enumerate(metadata.storage_data)
        }
        content = pickle.dumps(dataclasses.replace(metadata, storage_data=places))
        contents = content, shard * len(places)
        with pytest.raises(StoreError, match="cannot load: worker 0: UnpicklingError"):
            harmed(*contents)
        with pytest.raises(StoreError, match=r"cannot load .*UnpicklingError"):
            list(checkpoint.read(harmed.storage, harmed.put(*contents)))
        assert not (tmp_path / "ran").exists(), function
    harmed(harmed.honest)


@pytest.mark.parametrize("size", [[2**50], [2**62, 2**62], [2**62, 2**62, 0]])
def test_a_tensor_without_end_is_refused(harmed, size):
    """Where there is no model to hold it against, as in an export."""
    metadata = pickle.loads(harmed.honest)
    for item in metadata.state_dict_metadata.values():
        item.size = torch.Size(size)
    content = pickle.dumps(metadata)
    with pytest.raises(StoreError, match="not the metadata of a checkpoint of tensors"):
        harmed(content)
    with pytest.raises(StoreError, match="not the metadata of a checkpoint of tensors"):
        list(checkpoint.read(harmed.storage, harmed.put(content)))
    harmed(harmed.honest)


def named(module, name):
    """A pickle that only looks a name up, as protocol 4 does, dots and all."""
    parts = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    return b"\x80\x04" + b"".join(parts) + b"\x93."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "serialization.os.system"),
        ("torch", "load"),
        ("torch", "float32.__class__"),
        ("torch.serialization", "os.system"),
        ("torch.serialization", "_get_layout.__globals__"),
        ("torch.distributed.checkpoint.metadata", "os"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__init__"),
        ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
        ("pathlib", "Path"),
        ("pathlib", "os.system"),
        ("builtins", "object"),
        ("copyreg", "_reconstructor"),
        ("collections", "OrderedDict"),
        ("nowhere", "nothing"),
        ("", ""),
    ],
)
def test_only_the_names_of_a_tensor_checkpoint_are_looked_up(harmed, module, name):
    """A dot in a name does not lead out of the list."""
    with pytest.raises(StoreError, match="it names"):
        harmed(named(module, name))


class OldPython(pickle.Pickler):
    """Writes a member of an enumeration as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value):
        return (getattr, (type(value), value.name)) if isinstance(value, enum.Enum) else NotImplemented


def test_what_an_older_python_wrote_is_read(harmed):
    """Debian's 3.11.2, for one: its checkpoints name getattr."""
    stream = io.BytesIO()
    OldPython(stream).dump(pickle.loads(harmed.honest))
    assert b"getattr" in stream.getvalue()
    harmed(stream.getvalue())


class Attribute:
    def __init__(self, owner, name):
        self.arguments = (owner, name)

    def __reduce__(self):
        return getattr, self.arguments


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Metadata, "__init__"),
        (_MEM_FORMAT_ENCODING, "__class__"),
        (_MEM_FORMAT_ENCODING, "name"),
        (torch.Size, "numel"),
    ],
)
def test_a_pickle_gets_no_other_attribute(harmed, owner, name):
    """An attribute of an attribute leads anywhere."""
    with pytest.raises(StoreError, match=r"it names builtins\.getattr"):
        harmed(pickle.dumps(Attribute(owner, name)))


def built(target, state):
    """A pickle of something that is already there, and of a state that BUILD puts onto it."""
    begin = pickle.dumps(target, protocol=3)
    return begin[:-1] + pickle.dumps(state, protocol=3)[2:-1] + b"b."


SHARED = [
    PosixPath,
    _StorageInfo,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _MEM_FORMAT_ENCODING,
    _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT,
    torch.serialization._get_layout,
    torch.Size,
    torch.float32,
]


def attributes(target):
    """Those that a BUILD could have changed, by name."""
    return {name: getattr(target, name, None) for name in ("planted", "__defaults__", "_value_")}


@pytest.mark.parametrize("target", SHARED, ids=lambda target: getattr(target, "__name__", str(target)))
@pytest.mark.parametrize("name", ["planted", "__defaults__", "_value_"])
@pytest.mark.parametrize("is_slots", [False, True], ids=["dict", "slots"])
def test_nothing_that_outlives_the_pickle_is_changed(harmed, target, name, is_slots):
    """BUILD sets attributes on whatever stands before it: a class, a function, a member of an enumeration."""
    values = {name: (3,)}
    content = built(target, (None, values) if is_slots else values)
    before = attributes(target)
    with pytest.raises(StoreError, match=NAME):
        harmed(content)
    assert attributes(target) == before


class Victim:
    """Stands for a class that is used elsewhere."""


def test_the_planted_state_is_dangerous():
    """Python's own unpickler sets it: the test above proves something."""
    pickle.loads(built(Victim, (None, {"planted": (3,)})))
    assert Victim.planted == (3,)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"garbage, and more than a word of it", id="garbage"),
        pytest.param(b"\0" * 1000, id="zeros"),
        pytest.param(pickle.dumps(None), id="None"),
        pytest.param(pickle.dumps({"state_dict_metadata": {}}), id="a dict"),
        pytest.param(pickle.dumps(torch.Size([1])), id="a shape"),
        pytest.param(pickle.dumps(Metadata({"x": torch.Size([1])})), id="a shape for a tensor"),
        pytest.param(pickle.dumps(Metadata([], storage_data={})), id="a list of tensors"),
        pytest.param(pickle.dumps(Metadata({}, storage_data=None)), id="no places"),
        pytest.param(pickle.dumps(Metadata({}, storage_data={"x": 1})), id="a number for a place"),
        pytest.param(pickle.dumps(Metadata({}, storage_data={}, storage_meta=1)), id="a number for the rest"),
        pytest.param(pickle.dumps(Metadata({}, storage_data={})), id="no tensors"),
        pytest.param(pickle.dumps(Metadata({"x": BytesStorageMetadata()}, storage_data={})), id="bytes for a tensor"),
        pytest.param(
            pickle.dumps(Metadata({"x": TensorStorageMetadata(None, None, [])}, storage_data={})), id="half a tensor"
        ),
        pytest.param(b"\x80\x04\x8c\x07pathlib\x8c\x0bWindowsPath\x93)R.", id="a path of another system"),
        pytest.param(b"\x80\x04\x8c\x13torch.serialization\x8c\x0b_get_layout\x93\x8c\x01x\x85R.", id="no layout"),
        pytest.param(
            b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x08Metadata\x93)\x81.", id="half-made"
        ),
        pytest.param(b"\x80\x04h\x07.", id="a memo that is not there"),
        pytest.param(b"\x80\x04Pname\n.", id="a persistent name"),
    ],
)
def test_metadata_of_another_kind_is_refused(harmed, content):
    """Bytes, values, and half-made objects: each a StoreError with the path."""
    with pytest.raises(StoreError, match=NAME):
        harmed(content)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "unknown.distcp", "", ".", "./__0_0.distcp", 7])
def test_only_files_of_the_manifest_are_opened(harmed, name):
    """A place outside the folder, or a file whose digest was not checked, is refused before it is opened."""
    harmed.storage.write("checkpoints/x", b"a secret")
    metadata = pickle.loads(harmed.honest)
    index = next(iter(metadata.storage_data))
    metadata.storage_data[index] = dataclasses.replace(metadata.storage_data[index], relative_path=name)
    with pytest.raises(StoreError, match=r"that the manifest does not know|not the metadata"):
        harmed(pickle.dumps(metadata))


def test_missing_metadata_is_named(world, url):
    """As if it were removed between the check and the load."""
    storage = Storage(url)
    _, manifest = saved(world, storage)
    storage.delete(f"{FOLDER}/.metadata")
    with pytest.raises(StoreError, match=r"\.metadata"):
        checkpoint.load(world, storage, manifest, make_state(world), manifest.identity)


def test_an_optimizer_state_of_another_shape_is_refused(harmed):
    """Neither a shard of its parameter nor a scalar: nothing is allocated for it."""
    metadata = pickle.loads(harmed.honest)
    name = next(name for name in metadata.state_dict_metadata if name.endswith("exp_avg"))
    item = metadata.state_dict_metadata[name]
    assert item.size == (256, 8)
    item.size = item.chunks[0].sizes = torch.Size([8, 256])
    with pytest.raises(StoreError, match=r"exp_avg has shape \(8, 256\)"):
        harmed(pickle.dumps(metadata))


def test_a_forged_commit_never_runs_code(url, tmp_path):
    """Metadata and manifest are forged to match. Training refuses them, and the code never runs."""
    (tmp_path / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog. " * 6)
    job = make_job(tmp_path / "corpus.txt", steps=2)
    train(Launch(job=job, url=url), cpu_device, Hooks())
    run = RunFolder(Storage(url))
    name = run.commits()[-1]
    content = pickle.dumps(Call(os.system, f"touch '{tmp_path / 'ran'}'"))
    run.storage.write(f"checkpoints/{name}/.metadata", content)
    altered = FileDigest(name=".metadata", size_bytes=len(content), sha256=sha256(content).hexdigest())
    manifest = run.manifest(name)
    files = tuple(altered if file.name == ".metadata" else file for file in manifest.files)
    forged = manifest.model_copy(update={"files": files})
    run.storage.write(f"manifests/{name}.json", seal(forged))
    with pytest.raises(ManifestMismatch, match="was replaced: its digest is"):
        train(Launch(job=job, url=url), cpu_device, Hooks())
    ledger = run.storage.read(segment_name(1)).decode().replace(digest_of(manifest), digest_of(forged))
    run.storage.write(segment_name(1), ledger.encode())
    with pytest.raises(StoreError, match=r"it names (posix|nt)\.system"):
        train(Launch(job=job, url=url), cpu_device, Hooks())
    assert not (tmp_path / "ran").exists()
