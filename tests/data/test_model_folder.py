"""What can be told of a model from its folder, without torch: every mistake in words, before anything is started."""

import json
import re
import shutil
import struct
from fnmatch import fnmatch

import pytest

from planner.data import model_checks
from planner.data.job_folders import JobFolders, check_here
from planner.data.model_checks import require_fit
from planner.data.model_folder import INDEX, ModelFolder
from planner.errors import ResumeRefused, UserError
from planner.job import HfModel, Job
from planner.provenance.identity import require_same_first_weights, require_same_model
from planner.store.records import TrainingIdentity

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}


def write_tensors(file, **tensors):
    """A safetensors file, by the specification: float32 values, a list for each name."""
    header, offset = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    content = json.dumps(header).encode()
    values = [value for values in tensors.values() for value in values]
    file.write_bytes(len(content).to_bytes(8, "little") + content + struct.pack(f"<{len(values)}f", *values))


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(CONFIG))
    write_tensors(place / "model.safetensors", **{"a.weight": [1.0] * 1000, "b.weight": [2.0] * 10})
    return place


def model(path, **settings):
    return HfModel.model_validate({"kind": "hf", "path": str(path), "context": 64, **settings})


def check(model):
    """Find and check the folder of a model."""
    found = ModelFolder.find(model)
    require_fit(found)
    return found


def test_a_whole_folder_passes(folder):
    """And every tensor is found, with its place in the file."""
    found = check(model(folder))
    assert found.path == folder
    tensors = found.tensors
    assert {name: (t.shape, t.end - t.start) for name, t in tensors.items()} == {
        "a.weight": ((1000,), 4000),
        "b.weight": ((10,), 40),
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["LlamaForSequenceClassification"]}, "is not a causal language model with a head"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantized"),
        ({"max_position_embeddings": 1}, "it knows 1 positions, too few for a sample. Copy the file again"),
        ({"max_position_embeddings": 32}, "model.context is 64, and .* knows 32 positions. Write model.context: 32"),
        (
            {"max_position_embeddings": 32, "rope_parameters": {"rope_type": "dynamic", "factor": 4.0}},
            "knows 32 positions at which rope 'dynamic' is the same for all samples",
        ),
        *(
            ({"model_type": value}, rf"config.json: model_type is {re.escape(shown)}, which neither .* Copy the file")
            for value, shown in [
                (None, "null"),
                (5, "5 (a number)"),
                ("", '"" (a string)'),
                ([], "[] (an array)"),
                ({"model_type": "llama"}, '{"model_type": "llama"} (an object)'),
                ("lla\x00\x1b[2Jma", r'"lla\u0000\u001b[2Jma" (a string)'),
                ("\ud800", r'"\ud800" (a string)'),
                ("l" * 10**5, f'"{"l" * 59}... (a string)'),
            ]
        ),
    ],
)
def test_a_configuration_that_cannot_be_trained_is_refused(folder, change, words):
    """By the file, with what it says."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(UserError, match=words):
        check(model(folder))


def test_a_configuration_without_a_model_type_is_said_to_have_none(folder):
    (folder / "config.json").write_text(json.dumps({"architectures": CONFIG["architectures"]}))
    with pytest.raises(UserError, match="it has no model_type, so it is not the file of a Hugging Face model"):
        check(model(folder))


@pytest.mark.parametrize(
    ("index", "found"),
    [({}, "missing"), ({"weight_map": None}, "null"), ({"weight_map": ["\x1b"]}, r'["\u001b"] (an array)')],
)
def test_a_weight_map_that_is_no_map_is_shown(folder, index, found):
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(UserError, match=f"its weight_map is {re.escape(found)}, and must be an object"):
        check(model(folder))


def test_a_stretched_rope_knows_more_positions(folder):
    """By its factor, from the positions that it was trained for."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 16, "rope_scaling": rope}))
    check(model(folder))


def test_files_that_are_not_there_or_torn_are_named(folder, tmp_path):
    """Folder, configuration, weights."""
    with pytest.raises(UserError, match="no such folder"):
        check(model(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"not the folder of a Hugging Face model: it has no config\.json"):
        check(model(tmp_path))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match="torn"):
        check(model(folder))
    weights.write_bytes(b"pickle")
    with pytest.raises(UserError, match="not a safetensors file"):
        check(model(folder))
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="Its weights are pickles"):
        check(model(folder))
    check(model(folder, weights="random"))
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a.weight": "gone.safetensors"}}))
    with pytest.raises(UserError, match=r"gone\.safetensors: cannot be read"):
        check(model(folder))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache with `org/tiny`, whose files `hub(*names)` takes from a whole model, and what is asked of the hub."""
    import huggingface_hub

    snapshot = tmp_path / "cache" / "models--org--tiny" / "snapshots" / ("0" * 40)
    whole = {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "model.safetensors": struct.pack("<Q", 2) + b"{}",
        INDEX: json.dumps({"weight_map": {"a": "model.safetensors", "b": "second.safetensors"}}).encode(),
        "second.safetensors": struct.pack("<Q", 2) + b"{}",
        "pytorch_model.bin": b"pickles",
    }
    asked = []

    def keep(*names):
        snapshot.mkdir(parents=True, exist_ok=True)
        for name in names:
            (snapshot / name).write_bytes(whole[name])
        return snapshot, asked

    def download(name, *, revision, allow_patterns, local_files_only=False):
        wanted = [file for file in whole if any(fnmatch(file, pattern) for pattern in allow_patterns)]
        if not local_files_only:
            asked.append((name, revision))
            keep(*wanted)
        elif not all((snapshot / file).exists() for file in wanted):
            raise huggingface_hub.errors.LocalEntryNotFoundError("incomplete")
        return str(snapshot)

    (snapshot.parent.parent / "refs").mkdir(parents=True)
    (snapshot.parent.parent / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return keep


FIRST, BOTH = ["model.safetensors"], ["model.safetensors", "second.safetensors"]


@pytest.mark.parametrize(
    ("files", "weights", "is_here"),
    [
        ([], "pretrained", False),
        (["config.json"], "random", True),
        (["config.json"], "pretrained", False),
        (["config.json", "tokenizer.json"], "pretrained", False),
        (["config.json", *FIRST], "pretrained", True),
        (["config.json", INDEX, *FIRST], "pretrained", False),
        (["config.json", INDEX, *BOTH], "pretrained", True),
        (["config.json", "pytorch_model.bin"], "pretrained", True),  # refused, and the hub has nothing better
    ],
)
def test_what_the_cache_lacks_is_downloaded_and_nothing_else(hub, files, weights, is_here):
    """Such as the weights of a model whose tokenizer is in the cache. The driver's look downloads nothing."""
    snapshot, asked = hub(*files)
    tiny = model("org/tiny", weights=weights)
    assert (ModelFolder.here(tiny) is not None) == is_here
    assert asked == []
    assert ModelFolder.find(tiny).path == snapshot
    assert asked == [("org/tiny", None)] * (not is_here)
    assert ModelFolder.here(tiny) is not None


TOKENIZER = {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("files", [[], ["config.json"], ["config.json", "tokenizer.json"]])
def test_a_tokenizer_is_downloaded_once_and_without_weights(hub, files):
    """Also if another process has just begun to."""
    snapshot, asked = hub(*files)
    tiny = model("org/tiny")
    assert ModelFolder.find_tokenizer(tiny).path == ModelFolder.find_tokenizer(tiny).path == snapshot
    assert asked == [("org/tiny", None)]
    assert {file.name for file in snapshot.iterdir()} == TOKENIZER


def test_a_tokenizer_in_the_cache_needs_no_network(hub, monkeypatch):
    """Nor do all the files that the hub has."""
    import huggingface_hub

    def offline(*_, **__):
        raise huggingface_hub.errors.OfflineModeIsEnabled

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", offline)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        ModelFolder.find_tokenizer(model("org/tiny"))
    snapshot, _ = hub("config.json", "tokenizer.json")
    assert ModelFolder.find_tokenizer(model("org/tiny")).path == snapshot


def test_a_missing_library_is_named_with_its_extra(folder, monkeypatch):
    """peft only where adapters are asked for."""
    find = model_checks.importlib.util.find_spec
    monkeypatch.setattr(model_checks.importlib.util, "find_spec", lambda name: None if name == "peft" else find(name))
    check(model(folder))
    with pytest.raises(UserError, match=r"model.kind hf needs peft: pip install '\.\[hf\]' in planner's checkout, or"):
        check(model(folder, lora={}))


def test_a_fingerprint_tells_weights_apart(folder, tmp_path):
    """A copy has the same one. Other values of the same shapes, or another configuration, have another."""

    def fingerprint(of=folder, *, weights=True):
        return ModelFolder.find(model(of, weights="pretrained" if weights else "random")).fingerprint()

    first, config = fingerprint(), fingerprint(weights=False)
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(tmp_path / "copy") == first
    write_tensors(folder / "model.safetensors", **{"a.weight": [1.0] * 1000, "b.weight": [3.0] * 10})
    assert fingerprint() != first
    assert fingerprint(weights=False) == config
    (folder / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 1e-5}))
    assert fingerprint(weights=False) != config


def test_other_files_than_the_runs_are_accepted_by_name_alone():
    """And what is not known is not compared."""
    assert require_same_model("a", "a", frozenset(), "runs/x") == []
    assert require_same_model("", "b", frozenset(), "runs/x") == []
    with pytest.raises(ResumeRefused, match=r"runs/x: the run was made with other model files .* --accept model"):
        require_same_model("a", "b", frozenset({"data"}), "runs/x")
    assert require_same_model("a", "b", frozenset({"model"}), "runs/x") != []


def identity(seed):
    digests = dict.fromkeys(("data", "model", "recipe"), "0" * 64)
    return TrainingIdentity(global_batch=8, seed=seed, optimizer="adamw", equality="balanced", **digests)


def preference_job(model, objective):
    return Job.model_validate(
        {
            "name": "tiny",
            "model": model,
            "data": {"kind": "pairs", "path": "rows.jsonl"},
            "objective": objective,
            "batch": {"global": 8, "max_micro": 4},
            "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 0.1}},
        }
    )


GPT = {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8}
DRAWN = {"kind": "hf", "path": "x", "context": 8, "weights": "random"}
READ = {"kind": "hf", "path": "x", "context": 8}


@pytest.mark.parametrize(
    ("model", "objective", "is_refused"),
    [
        (GPT, {"kind": "dpo"}, True),
        (GPT, {"kind": "dpo", "reference": "cached"}, True),
        (GPT, {"kind": "dpo", "reference": "none"}, False),
        (GPT, {"kind": "simpo"}, False),
        (DRAWN, {"kind": "ipo"}, True),
        (DRAWN, {"kind": "ipo", "reference_model": "y"}, False),
        ({**DRAWN, "lora": {"rank": 2}}, {"kind": "simpo"}, True),
        (READ, {"kind": "dpo"}, False),
        ({**READ, "lora": {"rank": 2}}, {"kind": "dpo"}, False),
    ],
)
def test_what_is_drawn_in_every_generation_keeps_its_seed(model, objective, is_refused):
    """Also where another seed was accepted for the order of the data."""
    job = preference_job(model, objective)
    require_same_first_weights(identity(3), identity(3), job, "runs/x")
    if not is_refused:
        require_same_first_weights(identity(3), identity(4), job, "runs/x")
        return
    with pytest.raises(ResumeRefused, match=r"train.seed 3, .* seed 4 would give another model"):
        require_same_first_weights(identity(3), identity(4), job, "runs/x")


def test_a_policy_is_held_to_a_model_with_its_tokens(folder, tmp_path):
    """Of the same number, and the same ones. A template of its own is no other token."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    job = preference_job({**READ, "path": str(folder), "context": 64}, {"kind": "dpo", "reference_model": str(other)})

    def write(place, vocabulary, size=4, **more):
        tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": 3, "content": "</s>"}], **more}
        (place / "tokenizer.json").write_text(json.dumps(tokenizer))
        (place / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": size}))

    write(folder, {"a": 0, "b": 1})
    write(other, {"a": 0, "b": 1}, post_processor=None)
    JobFolders.of(job, ModelFolder.find).require_same_tokens()
    write(other, {"b": 0, "a": 1})
    with pytest.raises(UserError, match="has other tokens than that of"):
        check_here(job)
    write(other, {"a": 0, "b": 1}, size=5)
    with pytest.raises(UserError, match=r"knows 5 tokens and .* 4"):
        check_here(job)
