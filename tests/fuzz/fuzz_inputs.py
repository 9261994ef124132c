"""Valid inputs of every reader, written into a folder: `python fuzz_inputs.py FOLDER` -> FOLDER/<reader>/<name>/..."""

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [
    str(TESTS),
    str(TESTS / "fuzz"),
    *(str(TESTS / name) for name in ("data", "files", "harness", "recipes")),
]

JOB = """\
name: tiny
model: {kind: gpt, layers: 1, width: 16, heads: 2, context: 16}
data: {kind: text, path: "TEXT"}
batch: {global: 6, max_micro: 4}
train:
  steps: 4
  optimizer: {kind: adamw, lr: 1e-3}
eval: {samples: 5, every: 2}
workers: {gpus: 0}
checkpoint: {path: "RUN", every: 2}
"""
DEEPSPEED = json.dumps({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0})
TRL = """\
model_name_or_path: m
dataset_name: d
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
per_device_eval_batch_size: 2
loss_type: null
learning_rate: 5e-7
num_train_epochs: 1
attn_implementation: sdpa
use_peft: true
lora_r: 8
lora_alpha: 16
lora_target_modules: [q_proj]
warmup_ratio: 0.1
lr_scheduler_type: cosine
optim: adamw_torch
eval_strategy: steps
eval_steps: 10
max_length: 512
"""
HYDRA = """\
defaults:
- _self_
- model: m
- loss: dpo
datasets: [hh]
seed: 0
batch_size: 8
eval_batch_size: 8
trainer: FSDPTrainer
lr: 5e-7
exp_name: ${loss.name}-x
optimizer: RMSprop
gradient_accumulation_steps: 2
max_length: 64
max_prompt_length: 32
n_epochs: 1
"""
TEXT = "the quick brown fox jumps over the lazy dog\n" * 40
HI = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "I am fine"}]
ROWS = {
    "text": {"text": "hello there"},
    "chat": {"messages": HI},
    "pairs": {"prompt": "hello", "chosen": "there", "rejected": "you"},
    "feedback": {"prompt": "hello", "completion": "there", "label": True},
}


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def _jobs(out: Path) -> None:
    for job in (*sorted((ROOT / "jobs").glob("*.yaml")), *sorted((ROOT / "jobs" / "full").glob("*.yaml"))):
        _write(out / job.stem / "job.yaml", job.read_text())


def _clusters(out: Path) -> None:
    import test_cluster_files as known

    texts = {"ray-up": known.RAY_UP, "aws": known.ON_AWS, "kuberay": known.KUBERAY}
    texts |= {file.stem: file.read_text() for file in (*known.RAY_UP_FILES, known.KUBERAY_FILE)}
    node = {"max_workers": 1000, "node_config": {}}
    types = {f"t{number}": {"resources": {"CPU": 8, "GPU": number}, **node} for number in range(1, 291)}
    head = {"head": {"resources": {"CPU": 0}, "node_config": {}}}
    large = {"cluster_name": "c", "max_workers": 100_000, "provider": {"type": "aws"}, "head_node_type": "head"}
    texts["large"] = json.dumps({**large, "available_node_types": {**head, **types}})
    for name, text in texts.items():
        _write(out / name / "cluster.yaml", text)
        _write(out / name / "sound" / "job.yaml", JOB.replace("TEXT", "text.txt").replace("RUN", "run"))


def _recipes(out: Path) -> None:
    import recipes

    for row in recipes.rows()[:: max(len(recipes.rows()) // 12, 1)]:
        folder = out / row["id"].replace("/", "-").replace(" ", "-")
        folder.mkdir(parents=True)
        shipped = recipes.write(row, folder)
        file = str(Path(shipped.path).relative_to(folder))
        told = {"file": file, "words": shipped.arguments, "check": shipped.check_options, "convert": shipped.options}
        _write(folder / "sound" / "words.json", json.dumps(told))
    _recipe(out / "deepspeed", "deepspeed.json", DEEPSPEED, ["--tuned-for", "8"], ["--gpus", "8"])
    for method in ("sft", "dpo", "kto"):
        options = ["--method", method]
        _recipe(out / f"trl-{method}", "recipe.yaml", TRL, ["--tuned-for", "4", *options], ["--gpus", "4", *options])
    hydra = out / "hydra"
    _write(hydra / "model" / "m.yaml", "name_or_path: gpt2\npolicy_dtype: float32\n")
    _write(hydra / "loss" / "dpo.yaml", "name: dpo\nbeta: 0.1\nreference_free: false\n")
    _recipe(hydra, "config.yaml", HYDRA, ["--tuned-for", "4"], ["--gpus", "4"])


def _recipe(folder: Path, name: str, text: str, check: list[str], convert: list[str]) -> None:
    _write(folder / name, text)
    told = {"file": name, "words": [], "check": check, "convert": convert}
    _write(folder / "sound" / "words.json", json.dumps(told))


def _rewrites(recipes: Path, out: Path) -> None:
    """Each recipe with each system that it can be said to."""
    from planner.recipes import TARGETS

    for recipe in sorted(recipes.iterdir()):
        for target in TARGETS:
            folder = out / f"{recipe.name}-{target}"
            shutil.copytree(recipe, folder)
            told = json.loads((folder / "sound" / "words.json").read_text())
            _write(folder / "sound" / "words.json", json.dumps({**told, "to": target}))


def _models(out: Path, *, with_weights: bool) -> None:
    import tiny_tokenizers

    for name, make in (("bytes", tiny_tokenizers.byte_level), ("pieces", tiny_tokenizers.sentence_piece)):
        folder = out / name / "model"
        folder.mkdir(parents=True)
        make(folder)
        config = json.loads((folder / "config.json").read_text())
        more = {"intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 2}
        more |= {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
        more |= {"torch_dtype": "float32", "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
        _write(folder / "config.json", json.dumps({**config, **more}))
        if with_weights:
            _weights(folder, name == "pieces")
        _write(out / name / "sound" / "rows.jsonl", f"{json.dumps(ROWS['chat'])}\n" * 4)


def _weights(folder: Path, has_index: bool) -> None:
    from test_model_folder import write_tensors

    if not has_index:
        write_tensors(folder / "model.safetensors", **{"a.weight": [1.0] * 100, "b.weight": [2.0] * 10})
        return
    write_tensors(folder / "model-1.safetensors", **{"a.weight": [1.0] * 100})
    write_tensors(folder / "model-2.safetensors", **{"b.weight": [1.0] * 10})
    index = {"weight_map": {"a.weight": "model-1.safetensors", "b.weight": "model-2.safetensors"}}
    _write(folder / "model.safetensors.index.json", json.dumps(index))


def _rows(out: Path) -> None:
    for name, row in ROWS.items():
        _write(out / name / f"{name}-rows.jsonl", f"{json.dumps(row)}\n" * 20)
    _write(out / "array" / "chat-rows.json", json.dumps([ROWS["chat"]] * 20))


def _parquet(out: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for name in ("chat", "pairs", "feedback"):
        (out / name).mkdir(parents=True)
        table = pa.Table.from_pylist([{**ROWS[name], "number": number} for number in range(20)])
        parquet.write_table(table, out / name / f"{name}-rows.parquet")


def _tokens(out: Path) -> None:
    from planner.data.prepare_tokens import prepare
    from planner.job import JsonlData, TextData

    for name, kind in (("stream", TextData), ("rows", JsonlData)):
        source = out / name / "source"
        _write(source, TEXT if name == "stream" else f"{json.dumps(ROWS['text'])}\n" * 20)
        prepare(kind(kind="text" if name == "stream" else "jsonl", path=str(source)), out / name / "file.tokens")
        source.unlink()


def _runs(out: Path) -> None:
    """Real runs by one worker, each with its data and its job beside it. Paths of data begin in that folder."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{out.parent / 'rendezvous'}", rank=0, world_size=1)
    exact = {"global": 6, "max_micro": 4, "equality": "bitwise"}
    rows = "".join(f"{json.dumps({'text': f'{number} hello there'})}\n" for number in range(20))
    _write(out / "memory" / "rows.jsonl", rows)
    _train(out / "memory", {"kind": "jsonl", "path": "rows.jsonl"}, (3, 5, 8), batch=exact)
    _hold(out / "memory" / "run", "000000000005-000002")
    shutil.copytree(out.parent / "tokens" / "rows", out / "tokens")
    _train(out / "tokens", {"kind": "tokens", "path": "file.tokens"}, (2, 4))
    folder = out / "hf"
    shutil.copytree(out.parent / "tokenizer" / "bytes", folder)
    (folder / "sound" / "rows.jsonl").rename(folder / "rows.jsonl")
    _write(folder / "rows.jsonl", f"{json.dumps(ROWS['chat'])}\n" * 20)
    model = {"kind": "hf", "path": "model", "context": 32, "weights": "random"}
    _train(folder, {"kind": "chat", "path": "rows.jsonl"}, (2, 4), model=model, objective="sft")
    dist.destroy_process_group()
    (out.parent / "rendezvous").unlink(missing_ok=True)


def _train(folder: Path, data: dict[str, str], ends: tuple[int, ...], **sections: Any) -> None:
    """Train a run in generations that end at these steps."""
    import yaml

    from planner.files import read_job
    from planner.rehearsal.observe import StepRecorder
    from planner.store.storage import Storage
    from planner.train.generation import train
    from planner.train.hooks import Hooks
    from planner.train.setup import Launch
    from planner.train.world import cpu_device

    job = {**yaml.safe_load(JOB), "data": data, **sections}
    job["train"]["steps"] = ends[-1]
    job["checkpoint"]["path"] = "run"
    _write(folder / "sound" / "job.yaml", yaml.safe_dump(job))
    with contextlib.chdir(folder):
        launch = Launch(job=read_job("sound/job.yaml"), url=str(folder / "run"), launch_id="a", launched_s=1e9)
        for end in ends:
            observe = StepRecorder(Storage(launch.url))
            train(launch, cpu_device, Hooks(should_stop=lambda step, end=end: step >= end, observe=observe))
    (folder / "run" / "observed.jsonl").rename(folder / "sound" / "observed.jsonl")


def _hold(run: Path, name: str) -> None:
    """Make a run as if the commit, from which a generation resumed, had only been held in memory."""
    from fuzz_seals import Opened

    from planner.base.format_versions import STORED

    opened = Opened(run)
    for each in opened.described:
        if each.name == name:
            each.folder = "held"
            shards = {f"0/{tensor}": f"{number:032x}" for number, tensor in enumerate(("model/a", "model/b"))}
            each.value.update(files=[], tensors={}, shards=shards, format=STORED["held"])
    for line in opened.lines:
        record = line.bodies[0]
        if record["kind"] == "commit" and record["name"] == name:
            line.bodies = []
        if record["kind"] == "generation" and record["parent"] == name:
            record["parent_is_held"] = True
    opened.close()
    shutil.rmtree(run / "checkpoints" / name, ignore_errors=True)  # perhaps pruned


def write_all(out: Path) -> None:
    """Everything."""
    _jobs(out / "job")
    _clusters(out / "cluster")
    _recipes(out / "recipe")
    _rewrites(out / "recipe", out / "rewrite")
    _models(out / "model", with_weights=True)
    _models(out / "tokenizer", with_weights=False)
    _parquet(out / "parquet")
    _rows(out / "jsonl")
    _tokens(out / "tokens")
    _runs(out / "run")


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    write_all(Path(sys.argv[1]))
