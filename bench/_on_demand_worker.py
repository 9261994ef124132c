"""One process of `bench/on_demand.py`: it opens rows, loads the first global batch, and says what that took."""

import json
import os
import sys
import time
from pathlib import Path

import torch

from planner.data.open import open_dataset
from planner.job import ChatData, HfModel
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.batches import Loader
from planner.train.prefetch import Prefetcher
from planner.train.sample_batches import text_batch

GLOBAL_BATCH, MAX_MICRO, CONTEXT = 256, 16, 512
_WARM_STEPS, _STEPS = 4, 8
_MIB = 1024


def measured(path: str, small: str, tokenize: str, model: str, processes: tuple[int, ...]) -> dict[str, object]:
    """Seconds, MiB and rows per second of one process."""
    # Libraries and tokenizer are not the rows': a small file first.
    hf = HfModel(kind="hf", path=model, context=CONTEXT)
    open_dataset(ChatData.model_validate({"kind": "chat", "path": small, "tokenize": tokenize}), hf).sample(0)
    before = memory()
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    dataset = open_dataset(ChatData.model_validate({"kind": "chat", "path": path, "tokenize": tokenize}), hf)
    open_s, open_cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    order = Order(num_rows=dataset.num_rows, seed=0)
    plan = make_plan(BatchSizes(global_batch=GLOBAL_BATCH, max_micro=MAX_MICRO), 1)
    loader = Loader(dataset=dataset, order=order, plan=plan, rank=0, make_batch=text_batch)
    loader.load(0)
    first_batch_s = time.perf_counter() - started_s - open_s
    after = memory()
    return {
        "open_s": round(open_s, 2),
        "open_cpu_s": round(open_cpu_s, 2),
        "first_batch_s": round(first_batch_s, 2),
        **{f"{name}_mib": round((after[name] - before[name]) / _MIB) for name in ("peak", "anonymous")},
        "before_mib": round(before["resident"] / _MIB),
        **{f"{n}_processes_rows_per_s": rows_per_s(loader, n) for n in processes},
    }


def memory() -> dict[str, int]:
    """KiB of this process: now, without mapped files, and at its peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    keys = {"resident": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(status[key].split()[0]) for name, key in keys.items()}


def rows_per_s(loader: Loader, processes: int) -> int:
    """Rows per second of a loop that only loads, without the start of the processes."""
    cursors = range(0, (_WARM_STEPS + _STEPS) * GLOBAL_BATCH, GLOBAL_BATCH)
    prefetcher = Prefetcher(loader.load, cursors, processes=processes, device=torch.device("cpu"))
    try:
        for _ in range(_WARM_STEPS):
            prefetcher.start().result()
        started_s = time.perf_counter()
        for _ in range(_STEPS):
            prefetcher.start().result()
        return round(_STEPS * GLOBAL_BATCH / (time.perf_counter() - started_s))
    finally:
        prefetcher.close()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    source, little, how, folder, *counts = sys.argv[1:]
    print(json.dumps(measured(source, little, how, folder, tuple(map(int, counts)))))
