"""Models of transformers in shards: the weights that their files hold, and the same training at every world size."""

import json
from pathlib import Path

import pytest
import torch
from worker_functions import make_job, records, run_job

from planner.errors import ResumeRefused, UserError
from planner.job import HfModel, Train

pytestmark = pytest.mark.fsdp

TRAIN = Train.model_validate({"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}})
INPUTS = torch.arange(48).view(3, 16) * 7 % 256


def hf(path, **settings):
    return HfModel.model_validate({"kind": "hf", "path": str(path), "context": 24, **settings})


def hf_job(texts, model, **sections):
    """Bytes through a model of transformers: its own data wants a tokenizer."""
    job = make_job(texts, global_batch=7, **{"steps": 3, "eval": {"samples": 3, "every": 2}, **sections})
    return job.model_copy(update={"model": model})


def logits_of(_rank, models):
    from planner.train.shard import make_model
    from planner.train.world import World, on_cpu

    world = World.join(on_cpu)
    with torch.no_grad():
        return [make_model(model, TRAIN, world).eval()(INPUTS).numpy() for model in models]


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
    from planner.train.shard import make_model
    from planner.train.world import World, on_cpu

    train = TRAIN.model_copy(update={"seed": seed})
    with torch.no_grad():
        return [make_model(model, train, World.join(on_cpu)).eval()(INPUTS).numpy()]


def test_weights_that_are_not_the_configurations_are_refused(workers, tiny_model):
    """Missing, of another shape, or too many: named, on every worker."""
    config = json.loads((tiny_model("llama") / "config.json").read_text())
    files = {name: tiny_model("llama", **changes) for name, changes in ODD.items()}
    for name, folder in files.items():
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UserError, match=rf"its weights are not those of its configuration; {name}"):
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


CONFIGURATIONS = {
    "all weights, tied": ("qwen2", {}, {}),
    "bf16, checkpointing, dropout": (
        "llama",
        {"attention_dropout": 0.1},
        {"precision": "bf16", "activation_checkpointing": True},
    ),
    "adapters with dropout": ("llama", {"lora": {"rank": 2, "dropout": 0.1}}, {"clip_norm": 0.1}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_one_hash_for_every_world_size_and_history(workers, texts, tiny_model, tmp_path, name):
    """W = 1, 2, 3, and 3 then 2 with a resume in between: one set of digests, losses and norms."""
    family, settings, train = CONFIGURATIONS[name]
    lora = {key: value for key, value in settings.items() if key == "lora"}
    folder = tiny_model(family, **{key: value for key, value in settings.items() if key != "lora"})
    job = hf_job(texts, hf(folder, **lora), train=train, batch={"equality": "bitwise"})
    results = []
    for world_size in (1, 2, 3):
        workers.run(run_job, world_size, job, str(tmp_path / str(world_size)))
        results.append(result(tmp_path / str(world_size)))
    workers.run(run_job, 3, job, str(tmp_path / "history"), 2)
    workers.run(run_job, 2, job, str(tmp_path / "history"))
    results.append(result(tmp_path / "history"))
    assert all(other == results[0] for other in results)
    trained = [tensor for tensor in results[0][0] if tensor.startswith("model/")]
    assert trained
    assert all("lora_" in tensor for tensor in trained) == bool(lora)
    assert all(tensor.startswith("model/hf.") for tensor in trained)


def test_other_files_under_the_same_path_are_noticed(workers, texts, tiny_model, tmp_path):
    """Frozen weights are in no checkpoint: a run that goes on from others would be another one."""
    folder = tiny_model("llama")
    job = hf_job(texts, hf(folder, lora={"rank": 2}))
    workers.run(run_job, 2, job, str(tmp_path), 1)
    other = tiny_model("llama", initializer_range=0.1)
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(ResumeRefused, match=r"the model's files .* are not those that the run was made with"):
        workers.run(run_job, 3, job, str(tmp_path))
    workers.run(run_job, 3, job, str(tmp_path), None, ("model",))
    assert len(records(tmp_path)) == 3
