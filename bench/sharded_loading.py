"""What a worker's memory holds while a model is loaded: its shard and little more, never the whole model.

A model of transformers in one safetensors file, loaded by `make_model` on W workers in processes of their own. Each
says how much its resident memory grew from before the model was built to its peak (`VmHWM` of /proc/self/status,
cleared before), against its shard in float32 and against the whole model. glibc is told to give freed memory back at
once: it keeps some 200 MiB otherwise, of any model.

    python bench/sharded_loading.py [--workers 4] [--width 1024] [--layers 12]
"""

import argparse
import gc
import os
import tempfile
from pathlib import Path

from planner.data.model_folder import ModelFolder
from planner.job import HfModel, Train
from planner.rehearsal.local_workers import LocalWorkers

_MB = 2**20


def load(rank: int, model: HfModel, tiny: str, train: Train) -> tuple[float, float, float]:
    """MiB: growth to the peak, shard, whole model in float32."""
    del rank
    from planner.train.shard import make_model
    from planner.train.world import World, cpu_device

    world = World.join(cpu_device)
    # The libraries' own memory is not the model's: a tiny one first.
    make_model(ModelFolder(model=model, path=Path(tiny)), train, world)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _kib("VmRSS")
    loaded = make_model(ModelFolder.find(model), train, world)
    shard = sum(p.to_local().numel() for p in loaded.parameters()) * 4  # type: ignore[attr-defined]
    whole = sum(p.numel() for p in loaded.parameters()) * 4
    return (_kib("VmHWM") - before) / 1024, shard / _MB, whole / _MB


def _kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    """Print one line for each way of getting first weights."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**20)  # the workers', which are started below
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    given = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=16_000,
        hidden_size=given.width,
        intermediate_size=3 * given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=16,
        max_position_embeddings=2048,
    )
    train = Train.model_validate({"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}})
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 16}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        config.update(tiny)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(other)
        for weights in ("pretrained", "random"):
            model = HfModel(kind="hf", path=folder, context=128, weights=weights)
            with LocalWorkers(given.workers) as workers:
                found = workers.run(load, given.workers, model, other, train)
            peak = max(peak for peak, _, _ in found)
            _, shard, whole = found[0]
            print(
                f"{weights:<10} W = {given.workers}: grew by {peak:6.0f} MiB at its peak; shard {shard:6.0f} MiB, "
                f"whole model {whole:6.0f} MiB"
            )


if __name__ == "__main__":
    main()
