"""Predicted memory of a worker (`planner.runner.memory`) beside what training takes: on the CPU, or on one GPU.

    python bench/memory.py                 9 configurations on the CPU, in one or two workers (ten minutes)
    python bench/memory.py --device cuda   more on one GPU. A piece of `bench/gpu.py`

Every sample fills the context. A row's figures are of its worker with the most.

predicted_mb   on the CPU all tensors at the moment that needs the most, on a GPU also what cuBLAS keeps
measured_mb    on the CPU the peak of the resident set (VmHWM) less what the process had after a tiny run, which loads
               all code. malloc takes pages of their own for all but small tensors (MALLOC_MMAP_THRESHOLD_), and gives
               them back. By default it keeps many, which no tensor has. On a GPU the most that torch's tensors had
default_mb     on the CPU: measured_mb with malloc's own settings
error          (predicted - measured) / measured. Beyond 10 % the script fails
moment         of the prediction
reserved_mb    on a GPU: what torch's allocator held at most
outside_mb     on a GPU: what the process held beside that: CUDA's own
`auto` rows    on a GPU: the largest micro-batch that is predicted to fit, whether it ran, and whether one ran that is
               20 % larger
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _plain import train_plainly
from _results import hand_over

from planner.job import Job, batch_sizes
from planner.job.memory import gpu_need, largest_micro, tensors_of
from planner.plan import make_plan
from planner.plan.factory import MAX_GLOBAL_BATCH
from planner.rehearsal.local_workers import LocalWorkers
from planner.runner.memory import job_memory_here
from planner.train.setup import Launch

_STEPS, _BOUND = 1, 0.1  # a second one begins, in which the optimizer has its state
_BEYOND = 1.2
_MALLOC = "MALLOC_MMAP_THRESHOLD_"
_LORA = {"rank": 16, "alpha": 32}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration: planner's own model of a shape, or a Llama's."""

    name: str
    shape: dict[str, Any]
    context: int
    micro: int
    rounds: int = 2
    workers: int = 1
    model: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    objective: Any = "lm"
    data: str = "text"

    @property
    def is_llama(self) -> bool:
        """Whether it is a model of transformers."""
        return "hidden_size" in self.shape


def _gpt(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"layers": layers, "width": width, "heads": heads}


def _llama(layers: int, width: int, inner: int, heads: int, kv: int, words: int, *, tied: bool) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width // heads,
        "vocab_size": words,
        "tie_word_embeddings": tied,
    }


_SFT: dict[str, Any] = {"objective": "sft", "data": "chat"}
_BIG = _llama(16, 2048, 8192, 32, 8, 128_256, tied=True)
_MIDDLE = _llama(16, 1536, 4096, 12, 4, 32_768, tied=False)
_GPU_CASES = (
    Case(name="gpt 0.8 B, bf16", shape=_gpt(16, 2048, 32), context=2048, micro=8),
    Case(name="gpt 0.4 B, fp32", shape=_gpt(24, 1152, 16), context=1024, micro=16, train={"precision": "fp32"}),
    Case(
        name="gpt 0.8 B, bf16, all recomputed, one round",
        shape=_gpt(16, 2048, 32),
        context=2048,
        micro=32,
        rounds=1,
        train={"activation_checkpointing": True},
    ),
    Case(
        name="gpt 0.4 B, bf16, bitwise", shape=_gpt(24, 1152, 16), context=1024, micro=8, batch={"equality": "bitwise"}
    ),
    Case(
        name="Llama 1.2 B, sft, bf16, selective",
        shape=_BIG,
        context=4096,
        micro=4,
        train={"activation_checkpointing": "selective"},
        **_SFT,
    ),
    Case(name="Llama 1.2 B, sft, bf16, SGD", shape=_BIG, context=2048, micro=2, train={"optimizer": "sgd"}, **_SFT),
    Case(
        name="Llama 0.5 B, sft, bf16, eager", shape=_MIDDLE, context=1024, micro=4, model={"attention": "eager"}, **_SFT
    ),
    Case(
        name="Llama 1.2 B, sft, bf16, 4-bit LoRA",
        shape=_BIG,
        context=2048,
        micro=4,
        model={"lora": _LORA, "frozen": "nf4"},
        **_SFT,
    ),
    Case(
        name="Llama 0.5 B, sft, bf16, by length",
        shape=_MIDDLE,
        context=2048,
        micro=8,
        batch={"max_tokens": 16_384},
        **_SFT,
    ),
    Case(
        name="Llama 0.5 B, dpo with a reference, bf16",
        shape=_MIDDLE,
        context=1024,
        micro=4,
        objective={"kind": "dpo", "beta": 0.1, "reference": "model"},
        data="pairs",
    ),
)
_SMALL = _llama(8, 512, 1408, 8, 4, 8192, tied=False)
_CPU_CASES = (
    Case(name="gpt 38 M", shape=_gpt(12, 512, 8), context=256, micro=6),
    Case(name="gpt 38 M, two workers", shape=_gpt(12, 512, 8), context=256, micro=12, rounds=1, workers=2),
    Case(
        name="gpt 76 M, all recomputed",
        shape=_gpt(24, 512, 8),
        context=256,
        micro=6,
        train={"activation_checkpointing": True},
    ),
    Case(
        name="gpt 38 M, selective",
        shape=_gpt(12, 512, 8),
        context=256,
        micro=12,
        train={"activation_checkpointing": "selective"},
    ),
    Case(name="gpt 38 M, bitwise", shape=_gpt(12, 512, 8), context=256, micro=6, batch={"equality": "bitwise"}),
    Case(name="Llama 29 M, sft", shape=_SMALL, context=256, micro=8, **_SFT),
    Case(name="Llama 29 M, sft, two workers", shape=_SMALL, context=256, micro=16, rounds=1, workers=2, **_SFT),
    Case(name="Llama 29 M, LoRA", shape=_SMALL, context=256, micro=12, model={"lora": _LORA}, **_SFT),
    Case(
        name="Llama 29 M, dpo with a reference",
        shape=_SMALL,
        context=128,
        micro=8,
        objective={"kind": "dpo", "beta": 0.1, "reference": "model"},
        data="pairs",
    ),
)


def _tiny(case: Case) -> Case:
    shape = _llama(2, 32, 64, 4, 2, 512, tied=False) if case.is_llama else _gpt(2, 32, 4)
    return replace(case, shape=shape, context=32, micro=2)


def write_files(folder: Path, case: Case) -> None:
    """The data, of which each sample is longer than the context, and a Llama's configuration and tokenizer."""
    folder.mkdir(parents=True)
    num_rows = 3 * case.micro * case.rounds * case.workers
    if not case.is_llama:
        (folder / "corpus").write_bytes(bytes(range(1, 127)) * (num_rows * (case.context + 1) // 126 + 2))
        return
    sys.path.append(str(Path(__file__).parent.parent / "jobs"))
    from make_llama import make_tokenizer
    from transformers import LlamaConfig

    make_tokenizer(Path(__file__).read_text().splitlines()).save_pretrained(folder / "llama")
    LlamaConfig(**case.shape, architectures=["LlamaForCausalLM"], max_position_embeddings=8192).save_pretrained(
        folder / "llama"
    )
    texts = (" ".join(str(row * place % 997) for place in range(case.context)) for row in range(1, num_rows + 1))
    rows = ({"text": text} if case.data == "chat" else _pair(text) for text in texts)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _pair(text: str) -> dict[str, str]:
    return {"prompt": "1", "chosen": f"2 {text}", "rejected": f"3 {text}"}


def job_for(folder: Path, case: Case, device: str, micro: int) -> Job:
    """The job of a configuration, with another micro-batch."""
    train = {"precision": "bf16" if device == "cuda" else "fp32", **case.train}
    kind = train.pop("optimizer", "adamw")
    own = {"kind": "gpt", **case.shape}
    hf = {"kind": "hf", "path": str(folder / "llama"), "weights": "random"}
    data = {
        "text": {"kind": "text", "path": str(folder / "corpus")},
        "chat": {"kind": "chat", "path": str(folder / "rows.jsonl"), "loss_on": "all"},
        "pairs": {"kind": "pairs", "path": str(folder / "rows.jsonl")},
    }
    return Job.model_validate(
        {
            "name": "memory",
            "model": {**(hf if case.is_llama else own), "context": case.context, **case.model},
            "data": data[case.data],
            "objective": case.objective,
            "batch": {"global": micro * case.rounds * case.workers, "max_micro": micro, **case.batch},
            "train": {"steps": _STEPS + 1, "optimizer": {"kind": kind, "lr": 1e-5}, **train},
            "workers": {"gpus": 0, "max": case.workers},
            "checkpoint": {"every": 1_000_000, "memory": "off"},
        }
    )


def measured(rank: int, launch: Launch, device: str, tiny: Launch) -> dict[str, int]:
    """Run in each worker: train. Bytes at most, less those after a tiny run."""
    import torch
    import transformers  # noqa: F401  what a worker loads is no memory of the model

    train_plainly(rank, tiny, _STEPS, device)
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        train_plainly(rank, launch, _STEPS, device)
        free, total = torch.cuda.mem_get_info()
        return {
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "outside": total - free - torch.cuda.memory_reserved(),
        }
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    train_plainly(rank, launch, _STEPS, device)
    return {"peak": _resident("VmHWM") - before}


def _resident(name: str) -> int:
    """Bytes of this process, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def tiny_run(folder: Path) -> Launch:
    """A run of planner's own model, so small that it takes no memory."""
    case = Case(name="tiny", shape=_gpt(1, 8, 2), context=8, micro=2, workers=2)
    files = folder / "tiny"
    if not files.exists():
        write_files(files, case)
    # Each has a folder of its own, since a finished run would not train again.
    job = job_for(files, case, "cpu", case.micro)
    return Launch(job=job, url=str(files / f"run-{len(list(files.iterdir()))}"))


def start(device: str, workers: int, *, has_default_malloc: bool = False) -> LocalWorkers:
    """The processes that train."""
    if device == "cpu" and not has_default_malloc:
        os.environ[_MALLOC] = str(2**16)  # read when a process starts
    else:
        os.environ.pop(_MALLOC, None)
    return LocalWorkers(workers, "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")


def predicted(job: Job, case: Case, device: str, room: int) -> tuple[int, str]:
    """Bytes at most, and the moment."""
    memory = job_memory_here(job, "cuda" if device == "cuda" else "cpu", print)
    plan = make_plan(batch_sizes(job), case.workers)
    if device == "cuda":
        need = gpu_need(memory, plan, room)
        return need.allocated, need.tensors.moment
    tensors = tensors_of(memory, plan, room)
    return tensors.peak_bytes, tensors.moment


def row_of(folder: Path, case: Case, device: str, workers: LocalWorkers, room: int, run: str = "run") -> dict[str, Any]:
    """Train a configuration and compare."""
    job = job_for(folder, case, device, case.micro)
    guess, moment = predicted(job, case, device, room)
    found = workers.run(measured, case.workers, Launch(job=job, url=str(folder / run)), device, tiny_run(folder))
    most = max(each["peak"] for each in found)
    return {
        "configuration": case.name,
        "predicted_mb": round(guess / 1e6, 1),
        "measured_mb": round(most / 1e6, 1),
        "error": round((guess - most) / most, 3),
        "moment": moment,
        "workers": case.workers,
        **{f"{name}_mb": round(found[0][name] / 1e6, 1) for name in ("reserved", "outside") if name in found[0]},
    }


def compare(cases: tuple[Case, ...], device: str, where: str, room: int) -> Iterator[dict[str, Any]]:
    """A row for each configuration."""
    shared = start(device, 1) if device == "cuda" else None
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "files"
            write_files(folder, case)
            # What malloc keeps of a run before would count as the next one's, so a CPU's processes are new.
            workers = shared or start(device, case.workers)
            row: dict[str, Any] = {"configuration": case.name, "where": where}
            try:
                row |= row_of(folder, case, device, workers, room)
            except Exception as error:  # noqa: BLE001  contract: what fails on this machine is a row
                row["failure"] = " ".join(str(error).split())[-400:]
                if shared is not None:
                    shared.close()
                    shared = start(device, 1)
            if workers is not shared:
                workers.close()
            if device == "cpu" and "failure" not in row:
                with start(device, case.workers, has_default_malloc=True) as others:
                    again = row_of(folder, case, device, others, room, "run-2")
                row["default_mb"] = again["measured_mb"]
        yield row
    if shared is not None:
        shared.close()


def auto(case: Case, where: str, room: int) -> dict[str, Any]:
    """Whether the largest micro-batch that is predicted to fit runs, and whether a larger one does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        write_files(folder, case)
        job = job_for(folder, case, "cuda", case.micro)
        sizes = replace(batch_sizes(job), global_batch=MAX_GLOBAL_BATCH)  # so that the share is no limit
        most = largest_micro(job_memory_here(job, "cuda", print), sizes, 1, room)
        row: dict[str, Any] = {"configuration": f"auto: {case.name}", "where": where, "largest": most}
        for key, micro in (("ran", most), ("larger_ran", int(most * _BEYOND) + 1)):
            with start("cuda", 1) as workers:
                try:
                    launch = Launch(job=job_for(folder, case, "cuda", micro), url=str(folder / f"run-{micro}"))
                    found = workers.run(measured, 1, launch, "cuda", tiny_run(folder))
                    row[f"{key}_mb"] = round(found[0]["peak"] / 1e6, 1)
                    row[key] = True
                except Exception as error:  # noqa: BLE001  contract: out of memory is a finding
                    row[key], row[f"{key}_because"] = False, " ".join(str(error).split())[-300:]
        return row


def beside_tracker() -> Iterator[dict[str, Any]]:
    """Rows of models too large for this machine, beside torch's own count. Each in a process of its own."""
    script = Path(__file__).parent / "_memory_tracker.py"
    from _memory_tracker import TRACKED

    for each in TRACKED:
        done = subprocess.run([sys.executable, script, each.case.name], stdout=subprocess.PIPE, text=True, check=True)
        yield json.loads(done.stdout.splitlines()[-1])


def gpu_room() -> tuple[str, int]:
    """The GPU's name and bytes, asked in a process of its own."""
    with start("cuda", 1) as workers:
        ((name, num_bytes),) = workers.run(_device, 1)
    return name, num_bytes


def _device(rank: int) -> tuple[str, int]:
    import torch

    return torch.cuda.get_device_name(rank), torch.cuda.get_device_properties(rank).total_memory


def main() -> None:
    """Measure, and fail if a prediction is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--toy", action="store_true", help="small ones on the CPU, without a bound")
    parser.add_argument("--only", default="", help="configurations whose name has this")
    options = parser.parse_args()
    is_gpu = options.device == "cuda"
    where, room = gpu_room() if is_gpu else ("CPU", 0)
    cases = _GPU_CASES if is_gpu else _CPU_CASES
    if options.toy:
        cases = tuple(map(_tiny, _CPU_CASES[::3]))
    cases = tuple(case for case in cases if options.only in case.name)
    name, rows = "gpu-memory" if is_gpu else "memory", list[dict[str, Any]]()
    for row in compare(cases, options.device, where, room):
        rows.append(row)
        if options.toy:
            print(name, json.dumps(row))
        else:
            hand_over(name, rows)
    if is_gpu and not options.only:
        for case in (_GPU_CASES[0], _GPU_CASES[4]):
            rows.append(auto(case, where, room))
            hand_over(name, rows)
    if not is_gpu and not options.toy and not options.only:
        for row in beside_tracker():
            rows.append(row)
            hand_over(name, rows)
    wrong = [row for row in rows if _is_wrong(row)] if not options.toy else [row for row in rows if "failure" in row]
    if wrong:
        sys.exit(f"wrong: {json.dumps(wrong)}")


def _is_wrong(row: dict[str, Any]) -> bool:
    if "largest" in row:
        return not row["ran"] or row["larger_ran"]
    return "failure" in row or abs(row.get("error", 0.0)) > _BOUND


if __name__ == "__main__":
    main()
