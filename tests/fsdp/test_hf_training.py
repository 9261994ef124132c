"""Models of transformers in shards: the weights that their files hold, and the same training at every world size."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from worker_functions import make_job, records, run_job

from planner.data.model_folder import ModelFolder
from planner.errors import ResumeRefused, StoreError, UserError
from planner.job import HfModel, Job, Train
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.export import commit_at, export

pytestmark = pytest.mark.fsdp

TRAIN = Train.model_validate({"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}})
INPUTS = torch.arange(48).view(3, 16) * 7 % 256


def hf(path, **settings):
    return HfModel.model_validate({"kind": "hf", "path": str(path), "context": 24, **settings})


def hf_job(texts, model, **sections):
    """Supervised fine-tuning on texts, all of whose tokens bear loss."""
    settings = {
        "model": model.model_dump(),
        "data": {"kind": "chat", "path": texts, "loss_on": "all"},
        "objective": {"kind": "sft"},
        "eval": {"samples": 3, "every": 2},
    }
    job = make_job(texts, global_batch=7, steps=3).model_dump(by_alias=True, mode="json", exclude={"model", "data"})
    for name, section in (*settings.items(), *sections.items()):
        job[name] = section if "kind" in section else {**job.get(name, {}), **section}
    return Job.model_validate(job)


def run_hf(rank, job, url, stop_at=None, accept=()):
    """One generation, over the bytes of the texts: a model of random weights has no tokenizer."""
    from planner.data import ahead_sets
    from planner.data.tokenizer import ByteTokenizer

    ahead_sets.tokenizer_of = lambda _model: ByteTokenizer()
    return run_job(rank, job, url, stop_at, accept)


def make(model, train, world):
    from planner.train.shard import make_model

    return make_model(ModelFolder.find(model), train, world)


def logits_of(_rank, models):
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    with torch.no_grad():
        return [make(model, TRAIN, world).eval()(INPUTS).numpy() for model in models]


def logits_by_transformers(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return torch.tensor(model(INPUTS).logits.numpy())


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    **YARN,
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
VARIANTS = [
    ("llama", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("gpt_neox", {}),
    ("llama", {"dtype": "bfloat16"}),
    ("qwen2", {"dtype": "float16"}),
    ("llama", {"max_shard_size": "20KB"}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("qwen3", {"rope_parameters": YARN}),
    ("gpt_neox", {"tie_word_embeddings": True}),
    ("llama", {"vocab_size": 257, "attention_bias": True}),
]


def test_shards_hold_what_the_files_hold(workers, tiny_model):
    """Every family, float type, rope and way of cutting files: logits of plain transformers, on 1 and on 3 workers."""
    folders = [tiny_model(family, **changes) for family, changes in VARIANTS]
    assert len(list(folders[6].glob("*.safetensors"))) > 3
    expected = [logits_by_transformers(folder) for folder in folders]
    for world_size in (1, 3):
        for found in workers.run(logits_of, world_size, [hf(folder) for folder in folders]):
            for logits, wanted, variant in zip(found, expected, VARIANTS, strict=True):
                assert float((torch.from_numpy(logits) - wanted).abs().max()) <= 1e-6, variant


def test_random_weights_depend_on_the_seed_alone(workers, tiny_model):
    """The same bits on 1, 2 and 3 workers, with adapters and without, whose first value changes nothing."""
    folder = tiny_model("gpt_neox")
    models = [hf(folder, weights="random"), hf(folder, weights="random", lora={}), hf(folder)]
    found = [workers.run(logits_of, world_size, models)[0] for world_size in (1, 2, 3)]
    for drawn, adapted, read in found:
        assert (drawn == found[0][0]).all()
        assert abs(drawn - adapted).max() <= 1e-6
        assert abs(drawn - read).max() > 0.1
    (other,) = workers.run(logits_of_seed, 2, models[0], 1)[0]
    assert abs(other - found[0][0]).max() > 0.1


def logits_of_seed(_rank, model, seed):
    from planner.train.world import World, cpu_device

    train = TRAIN.model_copy(update={"seed": seed})
    with torch.no_grad():
        return [make(model, train, World.join(cpu_device)).eval()(INPUTS).numpy()]


def test_weights_that_are_not_the_configurations_are_refused(workers, tiny_model):
    """Missing, of another shape, or too many: named, on every worker."""
    config = json.loads((tiny_model("llama") / "config.json").read_text())
    files = {name: tiny_model("llama", **changes) for name, changes in ODD.items()}
    for name, folder in files.items():
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=rf"its weights do not match its configuration \({name}"):
            workers.run(logits_of, 2, [hf(folder)])


ODD = {
    r"missing: model.layers.1.input_layernorm.weight, .* and 6 more": {"num_hidden_layers": 1},
    r"of another shape: .*\(40, 32\) instead of \(48, 32\)": {"intermediate_size": 40},
    r"not the model's: model.layers.2.": {"num_hidden_layers": 3},
}


def result(url):
    """Every digest of the final commit, every loss and every norm."""
    commits = sorted(Path(url, "manifests").iterdir())
    tensors = json.loads(commits[-1].read_text())["value"]["tensors"]
    steps = [(s["step"], s["loss"], s["grad_norm"], s["checksum"]) for s in records(url)]
    return tensors, sorted(set(steps)), sorted({(e["step"], e["loss"]) for e in records(url, "eval")})


# Of the model's files, of the job's model, and of its other sections.
CONFIGURATIONS = {
    "all weights, tied": ("qwen2", {}, {}, {}),
    "bf16, checkpointing, dropout": (
        "llama",
        {"attention_dropout": 0.1},
        {},
        {"train": {"precision": "bf16", "activation_checkpointing": True}},
    ),
    "adapters with dropout": ("llama", {}, {"lora": {"rank": 2, "dropout": 0.1}}, {"train": {"clip_norm": 0.1}}),
    "packed rows": ("qwen3", {}, {}, {"data": {"packing": True}}),
    "adapters over four bits": ("llama", {}, {"lora": {"rank": 2, "dropout": 0.1}, "frozen": "nf4"}, {}),
}
QUICK = ("packed rows", "adapters over four bits")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in CONFIGURATIONS],
)
def test_one_hash_for_every_world_size_and_history(workers, texts, tiny_model, tmp_path, name):
    """W = 1, 2, 3, and 3 then 2 with a resume in between: one set of digests, losses and norms."""
    family, of_files, of_model, sections = CONFIGURATIONS[name]
    model = hf(tiny_model(family, **of_files), **of_model)
    job = hf_job(texts, model, **sections, batch={"equality": "bitwise"})
    results = []
    for world_size in (1, 2, 3):
        workers.run(run_hf, world_size, job, str(tmp_path / str(world_size)))
        results.append(result(tmp_path / str(world_size)))
    workers.run(run_hf, 3, job, str(tmp_path / "history"), 2)
    workers.run(run_hf, 2, job, str(tmp_path / "history"))
    results.append(result(tmp_path / "history"))
    assert all(other == results[0] for other in results)
    trained = [tensor for tensor in results[0][0] if tensor.startswith("model/")]
    assert trained
    assert all("lora_" in tensor for tensor in trained) == ("lora" in of_model)
    notes = [event["message"] for event in records(tmp_path / "1", "event")]
    assert ("model: adapters on 14 of 14 layers" in notes) == ("lora" in of_model)
    assert all(tensor.startswith("model/hf.") for tensor in trained)


def test_other_files_under_the_same_path_are_noticed(workers, texts, tiny_model, tmp_path):
    """Frozen weights are in no checkpoint: a run that goes on from others would be another one."""
    folder = tiny_model("llama")
    job = hf_job(texts, hf(folder, lora={"rank": 2}))
    workers.run(run_hf, 2, job, str(tmp_path), 1)
    other = tiny_model("llama", initializer_range=0.1)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ResumeRefused, match=r"the run was made with other model files"):
        workers.run(run_hf, 3, job, str(tmp_path))
    workers.run(run_hf, 3, job, str(tmp_path), None, ("model",))
    assert len(records(tmp_path)) == 3


@pytest.fixture(scope="module")
def trained(workers, texts, tiny_model, tmp_path_factory):
    """`trained(family, **settings)` -> a run of three steps on 3 and then 2 workers; made once each."""
    made = {}

    def train(family, **settings):
        key = f"{family} {settings}"
        if key not in made:
            job = hf_job(texts, hf(tiny_model(family), **settings))
            url = tmp_path_factory.mktemp("run")
            workers.run(run_hf, 3, job, str(url), 2)
            workers.run(run_hf, 2, job, str(url))
            made[key] = RunFolder(Storage(str(url))), job
        return made[key]

    return train


def logits_of_commit(_rank, job, url):
    """Of the training model itself, in shards, with a commit loaded."""
    from planner.train.checkpoints import checkpoint
    from planner.train.exact.gradient_sums import FloatSums
    from planner.train.optimize import make_optimizer
    from planner.train.state import TrainState
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    model = make(job.model, job.train, world)
    optimizer = make_optimizer(job.train.optimizer, model)
    state = TrainState.of(model, optimizer, FloatSums(model), only_trained=True)
    run = RunFolder(Storage(url))
    manifest = run.manifest(run.commits()[-1])
    checkpoint.load(world, run.storage, manifest, state, manifest.identity)
    with torch.no_grad():
        return model.eval()(INPUTS).numpy()


def logits_trained(workers, run, job):
    return torch.from_numpy(workers.run(logits_of_commit, 2, job, run.storage.url)[0])


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox"])
def test_an_exported_model_is_the_trained_one(workers, trained, tmp_path, family):
    """Loaded by plain transformers: the same logits; and by planner, as the first weights of another run."""
    run, job = trained(family)
    done = export(run, commit_at(run, None), tmp_path / "out")
    expected = logits_trained(workers, run, job)
    assert torch.equal(logits_by_transformers(tmp_path / "out"), expected)
    assert float((logits_by_transformers(job.model.path) - expected).abs().max()) > 1e-3
    again = workers.run(logits_of, 3, [hf(tmp_path / "out")])[0][0]
    assert float((torch.from_numpy(again) - expected).abs().max()) <= 1e-6
    assert (done.step, done.what) == (3, "model")
    before, after = (sorted(ModelFolder.find(hf(folder)).tensors) for folder in (job.model.path, tmp_path / "out"))
    assert before == after  # names of files, not of modules
    places = [tmp_path / "out", *(tmp_path / "out").iterdir()]
    assert not any(place.stat().st_mode & 0o077 for place in places)
    assert not list(tmp_path.glob(".out*"))


def test_an_export_in_bf16_and_in_many_files(trained, tmp_path, monkeypatch):
    """Half the bytes, rounded; files with an index that transformers follows."""
    from planner.train.export import tensor_files

    run, _ = trained("llama")
    export(run, commit_at(run, 2), tmp_path / "whole")
    real = tensor_files.write
    monkeypatch.setattr(tensor_files, "write", lambda *arguments: real(*arguments, most_bytes=20_000))
    done = export(run, commit_at(run, 2), tmp_path / "out", dtype="bf16")
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 2
    assert done.step == 2
    whole, rounded = logits_by_transformers(tmp_path / "whole"), logits_by_transformers(tmp_path / "out")
    assert 0 < float((whole - rounded).abs().max()) < 0.05
    assert {t.dtype for t in ModelFolder.find(hf(tmp_path / "out")).tensors.values()} == {"BF16"}


def test_exported_adapters_are_the_trained_ones(workers, trained, tmp_path):
    """By plain peft over the base, and merged into it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run, job = trained("qwen2", lora={"rank": 2})
    expected = logits_trained(workers, run, job)
    assert export(run, commit_at(run, None), tmp_path / "adapter").what == "adapter"
    base = AutoModelForCausalLM.from_pretrained(job.model.path, dtype=torch.float32)
    with torch.no_grad():
        found = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(INPUTS).logits
    assert float((found - expected).abs().max()) <= 1e-6
    assert export(run, commit_at(run, None), tmp_path / "merged", merge=True).what == "merged model"
    assert float((logits_by_transformers(tmp_path / "merged") - expected).abs().max()) <= 1e-5
    assert float((logits_by_transformers(job.model.path) - expected).abs().max()) > 1e-3


def test_adapters_over_four_bits_are_exported(workers, trained, tmp_path):
    """Plain peft computes the same over the weights that they were trained with, and merged into them."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from planner.train.models.four_bit import pack, quantizable, unpack

    run, job = trained("llama", lora={"rank": 2}, frozen="nf4")
    expected = logits_trained(workers, run, job)
    assert export(run, commit_at(run, None), tmp_path / "adapter").what == "adapter"
    base = AutoModelForCausalLM.from_pretrained(job.model.path, dtype=torch.float32)
    with torch.no_grad():
        whole = base(INPUTS).logits
        for name in quantizable(base):
            weight = base.get_submodule(name).weight
            weight.copy_(unpack(pack(weight), weight.shape[1], torch.float32))
        assert float((base(INPUTS).logits - whole).abs().max()) > 1e-3
        found = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(INPUTS).logits
    assert float((found - expected).abs().max()) <= 1e-6
    assert export(run, commit_at(run, None), tmp_path / "merged", merge=True).what == "merged model"
    assert float((logits_by_transformers(tmp_path / "merged") - expected).abs().max()) <= 1e-5


def test_an_adapter_at_a_tied_weight_is_not_merged(trained, tmp_path):
    """The other layer that computes with the weight would change, too."""
    for target, other in (("embed_tokens", "lm_head"), ("lm_head", "model.embed_tokens")):
        run, _ = trained("qwen2", lora={"rank": 2, "targets": [target]})
        with pytest.raises(UserError, match=rf"--merge: .*{target}.weight has an adapter and is also {other}.weight"):
            export(run, commit_at(run, None), tmp_path / "merged", merge=True)
        assert not [*tmp_path.glob("*merged*")]


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(workers, texts, trained, tmp_path):
    """A folder that is there, no commit, no such step, adapters of a run without, another kind, a damaged commit."""
    run, _ = trained("llama")
    newest = commit_at(run, None)
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match=r"out: the folder exists already"):
        export(run, newest, tmp_path / "out")
    (tmp_path / "out").rmdir()
    with pytest.raises(StoreError, match=r"no commit at step 7\. Its commits are at step 2, 3"):
        commit_at(run, 7)
    with pytest.raises(StoreError, match="no run here"):
        commit_at(RunFolder(Storage(str(tmp_path / "none"))), None)
    with pytest.raises(UserError, match="--merge puts adapters into the weights, and the run has none"):
        export(run, newest, tmp_path / "out", merge=True)
    link = Path(run.job(newest.job_digest).model.path) / "tokenizer_x.json"
    link.symlink_to("/etc/hostname")
    with pytest.raises(UserError, match=r"tokenizer_x\.json: a link that leads out of the model's folder"):
        export(run, newest, tmp_path / "out")
    link.unlink()
    gpt = RunFolder(Storage(str(tmp_path / "gpt")))
    workers.run(run_job, 1, make_job(texts, steps=1), gpt.storage.url)
    with pytest.raises(UserError, match=r"its model\.kind is gpt"):
        export(gpt, commit_at(gpt, None), tmp_path / "out")
    shutil.copytree(run.storage.url, tmp_path / "damaged")
    damaged = RunFolder(Storage(str(tmp_path / "damaged")))
    file = max((tmp_path / "damaged" / "checkpoints" / newest.name).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreError, match="altered since it was written"):
        export(damaged, newest, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged", "gpt"]


def test_a_failure_halfway_leaves_no_folder(trained, tmp_path, monkeypatch):
    """Neither the folder nor the half one."""
    from planner.train.models import private

    run, _ = trained("llama")
    monkeypatch.setattr(private, "name_in_files", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export(run, commit_at(run, None), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_fine_tuning_then_preferences_then_plain_transformers(workers, texts, trained, tmp_path):
    """SFT on 3 and 2 workers, exported; DPO from there on 3 and 2; exported: transformers computes what we trained."""
    sft, _ = trained("llama")
    export(sft, commit_at(sft, None), tmp_path / "sft")
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{n}?", "chosen": " yes" * (n % 3 + 1), "rejected": " no"} for n in range(40)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {"data": {"kind": "pairs", "path": str(pairs)}, "objective": {"kind": "dpo"}, "eval": {"samples": 0}}
    job = hf_job(texts, hf(tmp_path / "sft"), **sections, train={"optimizer": {"kind": "adamw", "lr": 1e-2}})
    workers.run(run_hf, 3, job, str(tmp_path / "dpo"), 2)
    workers.run(run_hf, 2, job, str(tmp_path / "dpo"))
    assert records(tmp_path / "dpo")[0]["loss"] == pytest.approx(0.693147, abs=1e-6)  # the policy is its reference
    assert records(tmp_path / "dpo")[-1]["loss"] < 0.69
    run = RunFolder(Storage(str(tmp_path / "dpo")))
    export(run, commit_at(run, None), tmp_path / "out")
    assert torch.equal(logits_by_transformers(tmp_path / "out"), logits_trained(workers, run, job))


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_what_files_hold_beside_the_weights_outlives_a_resume(workers, texts, tiny_model, tmp_path, weights):
    """A fixed scale of Gemma 4's layers is in no checkpoint; it is the same in every generation, and in the export."""
    folder, whole, resumed = tiny_model("gemma4_text"), tmp_path / "whole", tmp_path / "resumed"
    stored = load_file(folder / "model.safetensors")
    scales = {name: tensor.fill_(0.5) for name, tensor in stored.items() if name.endswith("layer_scalar")}
    assert len(scales) == 2
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    job = hf_job(texts, hf(folder, weights=weights), batch={"equality": "bitwise"})
    workers.run(run_hf, 1, job, str(whole))
    workers.run(run_hf, 1, job, str(resumed), 1)
    workers.run(run_hf, 2, job, str(resumed))
    assert [step["loss"] for step in records(resumed)] == [step["loss"] for step in records(whole)]
    if weights == "pretrained":
        run = RunFolder(Storage(str(resumed)))
        export(run, commit_at(run, None), tmp_path / "exported")
        exported = load_file(tmp_path / "exported" / "model.safetensors")
        assert all(torch.equal(exported[name], tensor) for name, tensor in scales.items())
