"""The same recipe in TRL at its native number of workers, and here at that number, at seven, and through 4, 3, 5.

    python bench/same_as_trl.py [PYTHON]

PYTHON is that of a virtual environment with TRL. Without it, one is made in .venv-trl. Takes four minutes.

Twenty optimizer steps of SFT and of DPO from one tiny Llama (jobs/make_llama.py), rows in one order (ours, which TRL
reads sequentially), each with its own tokenizing, templates, batching and losses. What is measured is the largest
difference of a step's loss. TRL's recipe is 2 processes of 4 rows, accumulated twice. In float32, on this CPU.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _results import write

from planner.job import Job
from planner.order.order import Order
from planner.provenance.lineage import whole_lineage
from planner.rehearsal.local_workers import LocalWorkers
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

_STEPS, _PROCESSES, _MICRO, _ACCUMULATION = 20, 2, 4, 2
_GLOBAL = _PROCESSES * _MICRO * _ACCUMULATION
_ROWS = _STEPS * _GLOBAL
_LR, _CLIP_NORM, _BETA, _CONTEXT, _SEED = 1e-3, 1.0, 0.1, 64, 0
_HISTORIES = {"native": (_PROCESSES,), "7": (7,), "4-3-5": (4, 3, 5)}
_ROOT = Path(__file__).parent.parent


def rows_of(method: str) -> list[dict[str, object]]:
    """Conversations of unequal lengths."""
    rows: list[dict[str, object]] = []
    for i in range(_ROWS):
        word = "abcdefghij"[: i % 9 + 1]
        prompt = [{"role": "user", "content": f"say {word} {i}"}]
        good = [{"role": "assistant", "content": f"{word.upper()} {'x' * (i % 7)}"}]
        bad = [{"role": "assistant", "content": f"{word[::-1]} no"}]
        rows.append(
            {"prompt": prompt, "completion": good}
            if method == "sft"
            else {"prompt": prompt, "chosen": good, "rejected": bad}
        )
    return rows


def job_for(method: str, folder: Path) -> Job:
    """The recipe in planner's words."""
    objective = {"kind": "sft"} if method == "sft" else {"kind": "dpo", "beta": _BETA}
    return Job.model_validate(
        {
            "name": f"trl-{method}",
            "model": {"kind": "hf", "path": str(folder / "llama"), "context": _CONTEXT},
            "data": {"kind": "chat" if method == "sft" else "pairs", "path": str(folder / f"{method}.jsonl")},
            "objective": objective,
            "batch": {"global": _GLOBAL, "max_micro": _MICRO},
            "train": {
                "steps": _STEPS,
                "seed": _SEED,
                "optimizer": {"kind": "adamw", "lr": _LR},
                "clip_norm": _CLIP_NORM,
            },
            "workers": {"gpus": 0},
        }
    )


def losses_there(python: str, method: str, folder: Path) -> list[float]:
    """TRL's losses, step by step, on rows in planner's order."""
    rows = rows_of(method)
    order = Order(num_rows=_ROWS, num_held_out=0, seed=_SEED).rows(0, _ROWS)
    (folder / "there.jsonl").write_text("".join(json.dumps(rows[i]) + "\n" for i in order))
    settings = {
        "method": method,
        "data": str(folder / "there.jsonl"),
        "folder": str(folder / "trl"),
        "out": str(folder / "losses.json"),
        "model": str(folder / "llama"),
        "micro": _MICRO,
        "accumulation": _ACCUMULATION,
        "steps": _STEPS,
        "lr": _LR,
        "clip_norm": _CLIP_NORM,
        "context": _CONTEXT,
        "beta": _BETA,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    script = str(Path(__file__).parent / "_trl_side.py")
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={_PROCESSES}", script]
    subprocess.run([*command, str(folder / "settings.json")], check=True, capture_output=True)
    found: list[float] = json.loads((folder / "losses.json").read_text())["losses"]
    return found


def losses_here(workers: LocalWorkers, method: str, folder: Path, sizes: Sequence[int]) -> list[float]:
    """Ours, from the run's ledger."""
    job = job_for(method, folder)
    url = str(folder / f"{method}-{'-'.join(map(str, sizes))}")
    (folder / f"{method}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(method)))
    rehearse(workers, Launch(job=job, url=url), stages(sizes, _STEPS), train_observed)
    records = whole_lineage(RunFolder(Storage(url))).steps
    assert [r.step for r in records] == list(range(_STEPS))
    return [r.loss for r in records]


def environment_with_trl() -> str:
    """The Python of a virtual environment of its own: what TRL wants must not decide what planner gets."""
    folder = _ROOT / ".venv-trl"
    python, pins = folder / "bin" / "python", ["--constraint", str(_ROOT / "constraints.txt")]
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for package in ("torch", "trl"):
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pins, package], check=True)
        (folder / "ready").touch()
    return str(python)


def versions(python: str) -> str:
    """What was measured against."""
    code = "import trl, transformers; print(f'TRL {trl.__version__}, transformers {transformers.__version__}')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def main() -> None:
    """Measure and write."""
    python, result = sys.argv[1] if len(sys.argv) > 1 else environment_with_trl(), []
    most = max(max(sizes) for sizes in _HISTORIES.values())
    with tempfile.TemporaryDirectory() as name, LocalWorkers(most) as workers:
        folder = Path(name)
        subprocess.run([sys.executable, str(_ROOT / "jobs" / "make_llama.py"), str(folder / "llama")], check=True)
        for method in ("sft", "dpo"):
            theirs = losses_there(python, method, folder)
            assert len(theirs) == _STEPS
            row: dict[str, object] = {
                "method": method,
                "beside": versions(python),
                "steps": _STEPS,
                "global_batch": _GLOBAL,
                "their_world_size": _PROCESSES,
                "first_loss": round(theirs[0], 6),
                "last_loss": round(theirs[-1], 6),
            }
            for words, sizes in _HISTORIES.items():
                ours = losses_here(workers, method, folder, sizes)
                difference = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
                row[f"largest_difference_{words}"] = float(f"{difference:.2g}")
            result.append(row)
    write("same_as_trl", result)


if __name__ == "__main__":
    main()
