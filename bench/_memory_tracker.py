"""Predicted memory of a worker beside what torch's FSDPMemTracker counts, for models too large for this machine.

    python bench/_memory_tracker.py NAME      one row of `bench/memory.py` as JSON

The tracker runs FSDP2 itself on tensors without values, as one of W workers of a group that sends nothing. It counts
no optimizer (it is wrong there: 27 times the state of AdamW), so both sides are without.
"""

import json
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory import Case, _llama, job_for

from planner.data.model_folder import ModelFolder
from planner.job.memory import job_memory, sample_size
from planner.plan.memory import worker_memory
from planner.train.footprint import _fake, _model, footprint
from planner.train.models import private
from planner.train.models.four_bit import own_tables
from planner.train.models.head import Targets, sized_for
from planner.train.shard import blocks_of

_8B = _llama(32, 4096, 14_336, 32, 8, 128_256, tied=False)
_7B = _llama(32, 4096, 11_008, 32, 32, 32_000, tied=False)
_BF16: dict[str, Any] = {"precision": "bf16"}


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """A configuration of W workers."""

    case: Case
    workers: int
    has_whole_logits: bool = False
    """whether the loss is torch's over whole float32 logits, as in torchtitan. planner's has chunks"""


def _case(
    name: str, shape: dict[str, Any], context: int, micro: int, *, model: dict[str, Any] | None = None, **train: Any
) -> Case:
    settings, train = model or {}, {**_BF16, **train}
    return Case(
        name=name, shape=shape, context=context, micro=micro, model=settings, train=train, objective="sft", data="chat"
    )


_LORA: dict[str, Any] = {"lora": {"rank": 16, "alpha": 32}}
_NF4 = {**_LORA, "frozen": "nf4"}
_SELECTIVE = {"activation_checkpointing": "selective"}
TRACKED = (
    Tracked(case=_case("Llama 8 B, 1 x 2,048", _8B, 2048, 1), workers=8),
    Tracked(case=_case("Llama 7 B, 1 x 4,096", _7B, 4096, 1), workers=8),
    Tracked(
        case=_case("Llama 7 B, 4 x 2,048, all recomputed", _7B, 2048, 4, activation_checkpointing=True), workers=64
    ),
    Tracked(case=_case("Llama 8 B, 2 x 8,192, selective", _8B, 8192, 2, **_SELECTIVE), workers=8),
    Tracked(case=_case("Llama 8 B, 2 x 8,192, selective, LoRA", _8B, 8192, 2, model=_LORA, **_SELECTIVE), workers=8),
    Tracked(
        case=_case("Llama 8 B, 2 x 8,192, selective, 4-bit LoRA", _8B, 8192, 2, model=_NF4, **_SELECTIVE), workers=8
    ),
    Tracked(
        case=_case("Llama 8 B, 2 x 8,192, selective, whole logits", _8B, 8192, 2, **_SELECTIVE),
        workers=8,
        has_whole_logits=True,
    ),
)


def row_of(what: Tracked) -> dict[str, Any]:
    """Both figures, in a step of one round and in one of two rounds."""
    with tempfile.TemporaryDirectory() as name:
        from transformers import LlamaConfig

        LlamaConfig(
            **what.case.shape, architectures=["LlamaForCausalLM"], max_position_embeddings=8192
        ).save_pretrained(Path(name) / "llama")
        job = job_for(Path(name), what.case, "cuda", what.case.micro)
        folder = ModelFolder.here(job.model)  # type: ignore[arg-type]
        assert folder is not None
        row: dict[str, Any] = {"configuration": what.case.name, "where": "FSDPMemTracker", "workers": what.workers}
        tracked = tracked_bytes(what, job, folder)
        state = 8 * 8_030_261_248 // what.workers if what.case.shape is _8B else 8 * 6_738_415_616 // what.workers
        row["measured_mb"] = round(tracked / 1e6, 1)
        if what.has_whole_logits:
            # torchtitan: 82.4 GiB that the allocator reserved, on 8 H100 (llama3_h100_202412). State of AdamW added.
            return {**row, "with_adamw_gib": round((tracked + state) / 2**30, 1), "published_gib": 82.4}
        found = footprint(job, folder, None, sample_size(job), "cuda")
        rules = replace(job_memory(job, found, "cuda").rules, optimizer_numbers=0)
        memory = worker_memory(
            found, rules, world_size=what.workers, samples=what.case.micro, rounds=1, placement="sharded"
        )
        error = (memory.peak_bytes - tracked) / tracked
        return {
            **row,
            "predicted_mb": round(memory.peak_bytes / 1e6, 1),
            "error": round(error, 4),
            "moment": memory.moment,
        }


def tracked_bytes(what: Tracked, job: Any, folder: ModelFolder) -> int:
    """The most that the tracker counts in a step of one round: a forward and a backward pass."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn import functional
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from planner.train.collectives import let_fsdp_sum_gradients

    dist.init_process_group("fake", rank=0, world_size=what.workers, store=FakeStore())
    mesh = init_device_mesh("cpu", (what.workers,))
    model = _model(folder, job.train)
    case = what.case
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    modes = FakeTensorMode(allow_non_fake_inputs=True), own_tables(), private.without_packed_rows(), sized_for("cuda")
    with modes[0], modes[1], modes[2], modes[3]:
        _fake(model, job.train.model_copy(update={"precision": "fp32"}))
        for block in blocks_of(model).values():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        let_fsdp_sum_gradients(model)
        tracker = FSDPMemTracker(model)
        tracker.track_inputs(())
        with tracker:
            tokens = torch.zeros(case.micro, case.context, dtype=torch.int64)
            places = torch.arange(tokens.numel())
            if what.has_whole_logits:
                logits = model(tokens)
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), torch.zeros_like(places))
                del logits
            else:
                loss = model(tokens, None, Targets(places=places, tokens=torch.zeros_like(places), is_summed=True))
            loss.backward()
    (of_device,) = tracker.get_tracker_snapshot("peak").values()
    dist.destroy_process_group()
    return int(of_device["Total"])


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        found = row_of(next(each for each in TRACKED if each.case.name == sys.argv[1]))
    print(json.dumps(found))
