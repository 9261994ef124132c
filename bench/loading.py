"""What data cost before the first step and during each: text, jsonl and the token files that `planner prepare` makes.

Opening: seconds until a row can be read, of sparse files but for jsonl, whose every line is parsed. Reading: samples a
second that one worker's loader hands out, of a corpus in memory, on a thread and in a process of its own. It trains
nothing, so this is an upper bound for training.
"""

import json
import tempfile
import time
from pathlib import Path

import torch
from _results import best_of, write

from planner.data.base import SampleDataset
from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.data.tokens import HEADER_BYTES, Header, blocks_digest
from planner.job import GptModel, JsonlData, TextData, TokensData
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.batches import Loader
from planner.train.prefetch import Prefetcher
from planner.train.sample_batches import text_batch

MB, GB = 10**6, 10**9
CONTEXT, GLOBAL_BATCH, MAX_MICRO, STEPS = 1024, 256, 16, 40
MODEL = GptModel(kind="gpt", layers=1, width=2, heads=1, context=CONTEXT)


def sparse_text(path: Path, num_bytes: int) -> TextData:
    """Nothing but zeros, and no disk behind them."""
    with path.open("wb") as stream:
        stream.truncate(num_bytes)
    return TextData(kind="text", path=str(path))


def sparse_tokens(path: Path, num_bytes: int) -> TokensData:
    """A token file of the corpus, with a made-up digest that this benchmark does not check."""
    num_bytes -= num_bytes % 8
    with path.open("w+b") as stream:
        stream.truncate(HEADER_BYTES + num_bytes)
        blocks = blocks_digest(stream, HEADER_BYTES + num_bytes)
        facts = {"num_tokens": num_bytes, "num_rows": 0, "sha256": "0" * 64, "blocks_sha256": blocks}
        stream.write(Header(kind="stream", dtype="uint8", **facts).encode())
    return TokensData(kind="tokens", path=str(path))


def words(path: Path, num_bytes: int) -> JsonlData:
    """Rows of 2 kB each."""
    line = json.dumps({"text": "the quick brown fox jumps over the lazy dog " * 45}) + "\n"
    path.write_text(line * (num_bytes // len(line)))
    return JsonlData(kind="jsonl", path=str(path))


def open_ms(data: TextData | JsonlData | TokensData, repeats: int) -> float:
    """Milliseconds until the first row can be read."""
    return round(best_of(repeats, lambda: open_dataset(data, MODEL)) * 1e3, 2)


def samples_per_s(dataset: SampleDataset, processes: int) -> int:
    """Samples per second of a loop that only loads, without the start of the processes."""
    order = Order(num_rows=dataset.num_rows, seed=0)
    plan = make_plan(BatchSizes(global_batch=GLOBAL_BATCH, max_micro=MAX_MICRO), 1)
    loader = Loader(dataset=dataset, order=order, plan=plan, rank=0, make_batch=text_batch)
    first = 8  # steps that may have been loaded while the processes started
    cursors = range(0, (first + STEPS) * GLOBAL_BATCH, GLOBAL_BATCH)
    prefetcher = Prefetcher(loader.load, cursors, processes=processes, device=torch.device("cpu"))
    try:
        for _ in range(first):
            prefetcher.start().result()
        started_s = time.perf_counter()
        for _ in range(STEPS):
            prefetcher.start().result()
        return round(STEPS * GLOBAL_BATCH / (time.perf_counter() - started_s))
    finally:
        prefetcher.close()


def main() -> None:
    """Measure and write `bench/results/loading.json`."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="planner-bench-") as name:
        folder = Path(name)
        for num_bytes in (100 * MB, GB, 100 * GB):
            text = sparse_text(folder / "text", num_bytes)
            tokens = sparse_tokens(folder / "tokens", num_bytes)
            size = {"open": f"{num_bytes / GB:g} GB"}
            rows += [
                {**size, "kind": "text", "ms": open_ms(text, 2)},
                {**size, "kind": "tokens", "ms": open_ms(tokens, 5)},
            ]
        source = words(folder / "rows.jsonl", 100 * MB)
        started_s = time.perf_counter()
        header = prepare(source, folder / "rows.tokens")
        rows.append({"prepare": "jsonl", "mb_per_s": round(header.num_tokens / MB / (time.perf_counter() - started_s))})
        rows.append({"open": "0.1 GB", "kind": "jsonl", "ms": open_ms(source, 1)})
        text = TextData(kind="text", path=source.path)
        started_s = time.perf_counter()
        header = prepare(text, folder / "text.tokens")
        rows.append({"prepare": "text", "mb_per_s": round(header.num_tokens / MB / (time.perf_counter() - started_s))})
        for kind, data in {
            "text": text,
            "text as tokens": TokensData(kind="tokens", path=str(folder / "text.tokens")),
            "jsonl": source,
            "jsonl as tokens": TokensData(kind="tokens", path=str(folder / "rows.tokens")),
        }.items():
            dataset = open_dataset(data, MODEL)
            rates = {f"{n}_processes_samples_per_s": samples_per_s(dataset, n) for n in (0, 1)}
            rows.append({"read": kind, "context": CONTEXT, **rates})
    write("loading", rows)


if __name__ == "__main__":
    main()
