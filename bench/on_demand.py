"""What rows that are tokenized on demand cost before the first step and during each, beside rows tokenized ahead.

    python bench/on_demand.py [--rows 1000000] [--ahead-rows 100000]

Conversations of four messages and 1 kB each, as JSON lines, parquet and a folder of `save_to_disk`, with the tokenizer
and chat template of `jobs/make_llama.py`. Each figure is of a process of its own. The first one on a machine indexes or
tokenizes the rows, the second one finds the result on disk.

open_s, open_cpu_s       until the data set is open, and the seconds of CPU that this took
first_batch_s            from then on until 256 rows are tensors
peak_mib, anonymous_mib  what the process grew by at its peak, and after the first batch without mapped files
N_processes_rows_per_s   of a loop that only loads, on a thread (0) or in N loader processes
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from _results import hand_over

_ROOT = Path(__file__).parent.parent
_SMALL = 300
_WORDS = "the quick brown fox jumps over a lazy dog while many people read long books about science".split()  # noqa: SIM905


def write_rows(path: Path, num_rows: int) -> None:
    """Conversations of four messages."""
    dice = random.Random(0)
    texts = [" ".join(dice.choices(_WORDS, k=40)) for _ in range(1000)]
    with path.open("w") as stream:
        for number in range(num_rows):
            messages = [
                {"role": role, "content": f"{number} {dice.choice(texts)}"} for role in ("user", "assistant") * 2
            ]
            stream.write(json.dumps({"messages": messages}) + "\n")


def write_tables(path: Path, folder: Path) -> None:
    """The rows of a file of JSON lines as a parquet file and as a folder of `save_to_disk`."""
    from datasets import load_dataset

    table = load_dataset("json", data_files=str(path), split="train", cache_dir=str(folder / "made"))
    table.to_parquet(str(folder / "rows.parquet"))
    table.save_to_disk(str(folder / "rows"))


def small_like(path: Path) -> Path:
    """The place of a few rows in the same form."""
    return path.parent / "small" / path.name


def measure(path: Path, tokenize: str, model: Path, cache: Path, processes: tuple[int, ...] = ()) -> dict[str, object]:
    """The figures of a process of its own."""
    worker = [sys.executable, str(_ROOT / "bench" / "_on_demand_worker.py")]
    environment = {**os.environ, "PLANNER_CACHE": str(cache / "planner"), "HF_DATASETS_CACHE": str(cache / "datasets")}
    command = [*worker, str(path), str(small_like(path)), tokenize, str(model), *map(str, processes)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    figures: dict[str, object] = json.loads(found.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measure and write `bench/results/on_demand.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ahead-rows", type=int, default=100_000)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="planner-bench-") as name:
        folder = Path(name)
        model = folder / "model"
        subprocess.run([sys.executable, str(_ROOT / "jobs" / "make_llama.py"), str(model)], check=True)
        (folder / "small").mkdir()
        for num_rows, ways in (
            (given.rows, (("jsonl", "on_demand"), ("folder", "on_demand"), ("parquet", "on_demand"))),
            (given.ahead_rows, (("jsonl", "on_demand"), ("jsonl", "ahead"))),
        ):
            paths = {}
            for place, count in ((folder / "small", _SMALL), (folder, num_rows)):
                lines = place / f"rows-{num_rows}.jsonl"
                write_rows(lines, count)
                paths = {"jsonl": lines, "parquet": place / "rows.parquet", "folder": place / "rows"}
                if len(ways) > 2:
                    write_tables(lines, place)
            for form, tokenize in ways:
                cache = folder / f"cache-{num_rows}-{form}-{tokenize}"
                what = {"rows": num_rows, "form": form, "tokenize": tokenize}
                first = measure(paths[form], tokenize, model, cache)
                rows.append({**what, "process": "first", **first})
                hand_over("on_demand", rows)
                second = measure(paths[form], tokenize, model, cache, (0, 1))
                rows.append({**what, "process": "second", **second})
                hand_over("on_demand", rows)


if __name__ == "__main__":
    main()
