"""TRL's losses at its own number of workers, and at others: with planner.trl, and without it.

    python bench/trl_plug.py          # ten minutes, in an environment with the `trl` extra

Twenty optimizer steps of SFT and of DPO from one tiny Llama (jobs/make_llama.py). TRL's recipe is 2 processes of 4
rows, accumulated twice: 16 rows. What is measured is the largest difference of a step's loss from that run's. The same
recipe runs at W = 2, 3 and 5 by torchrun, and through W = 4, 3 and 5 by Ray Train, from the trainer's checkpoints.
Without planner.trl TRL takes another batch at each W, and its history is by torchrun. In float32, on this CPU.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _results import write
from same_as_trl import rows_of

from planner.order.order import Order

_STEPS, _PROCESSES, _MICRO, _ACCUMULATION = 20, 2, 4, 2
_GLOBAL = _PROCESSES * _MICRO * _ACCUMULATION
_SEED = 0
_HISTORY = ((4, 7), (3, 14), (5, _STEPS))
"""(workers, the step at which they stop)"""
_HERE = Path(__file__).parent


def settings_of(folder: Path, method: str, name: str, *, plug: bool) -> dict[str, Any]:
    """What one run is told. Without planner.trl the rows are in planner's order, and TRL reads them one by one."""
    return {
        "method": method,
        "plug": plug,
        "data": str(folder / f"{method}-{'rows' if plug else 'in_order'}.jsonl"),
        "folder": str(folder / f"{method}-{name}"),
        "out": str(folder / f"{method}-{name}.losses"),
        "model": str(folder / "llama"),
        "micro": _MICRO,
        "accumulation": _ACCUMULATION,
        "global_batch": _GLOBAL,
        "steps": _STEPS,
        "upto": _STEPS,
        "lr": 1e-3,
        "clip_norm": 1.0,
        "context": 64,
        "beta": 0.1,
        "seed": _SEED,
        "resume": None,
    }


def torchrun(settings: dict[str, Any], workers: int) -> None:
    """Run processes of this machine to their end."""
    file = Path(settings["folder"] + ".json")
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    done = subprocess.run(
        [*command, str(_HERE / "_trl_plug_side.py"), str(file)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])


def losses_of(settings: dict[str, Any]) -> list[float]:
    """The losses of a run, step by step."""
    lines = [json.loads(line) for line in Path(settings["out"]).read_text().splitlines()]
    assert [step for step, _ in lines] == list(range(1, _STEPS + 1)), "a step is missing or was repeated"
    return [loss for _, loss in lines]


def history_by_torchrun(settings: dict[str, Any]) -> None:
    """TRL's own resumes, at the same sizes."""
    for workers, upto in _HISTORY:
        torchrun({**settings, "upto": upto, "resume": None if workers == _HISTORY[0][0] else True}, workers)


def history_by_ray(runs: Sequence[dict[str, Any]]) -> None:
    """Ray Train, once for each size, on a cluster of several nodes on this machine."""
    from planner.dispatch import launch
    from planner.dispatch.connection import connected
    from planner.dispatch.ray_internal.loopback import loopback_torch_config
    from planner.local_cluster.embedded import EmbeddedCluster, NodeShape

    launch.set_environment(launch.EMBEDDED, embedded=True)
    most = max(workers for workers, _ in _HISTORY)
    with EmbeddedCluster(most, NodeShape(cpus=1)) as cluster, connected(cluster.address, verbose=False):
        from _trl_plug_side import train
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        for settings in runs:
            for workers, upto in _HISTORY:
                TorchTrainer(
                    train,
                    train_loop_config={**settings, "upto": upto, "resume": "newest"},
                    scaling_config=ScalingConfig(num_workers=workers),
                    run_config=RunConfig(storage_path=settings["folder"] + "-ray"),
                    torch_config=loopback_torch_config("gloo", 300.0),
                ).fit()


def main() -> None:
    """Measure and write."""
    # For the workers of torchrun and of Ray.
    paths = (str(_HERE), str(_HERE.parent), os.environ.get("PYTHONPATH", ""))
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}
    import transformers
    import trl

    methods, result = ("sft", "dpo"), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            [sys.executable, str(_HERE.parent / "jobs" / "make_llama.py"), str(folder / "llama")], check=True
        )
        for method in methods:
            rows = rows_of(method)
            order = Order(num_rows=len(rows), seed=_SEED).rows(0, len(rows))
            for kind, order_of in (("rows", range(len(rows))), ("in_order", order)):
                lines = (json.dumps(rows[i]) + "\n" for i in order_of)
                (folder / f"{method}-{kind}.jsonl").write_text("".join(lines))
        by_ray = {method: settings_of(folder, method, "exact-4-3-5", plug=True) for method in methods}
        history_by_ray(list(by_ray.values()))
        for method in methods:
            native = settings_of(folder, method, "native", plug=False)
            torchrun(native, _PROCESSES)
            theirs = losses_of(native)
            row: dict[str, object] = {
                "method": method,
                "beside": f"TRL {trl.__version__}, transformers {transformers.__version__}",
                "steps": _STEPS,
                "global_batch": _GLOBAL,
                "their_world_size": _PROCESSES,
                "first_loss": round(theirs[0], 6),
                "last_loss": round(theirs[-1], 6),
            }
            for plug, word in ((True, "exact"), (False, "without")):
                for workers in (2, 3, 5):
                    run = settings_of(folder, method, f"{word}-{workers}", plug=plug)
                    torchrun(run, workers)
                    row[f"{word}_{workers}"] = _difference(losses_of(run), theirs)
                    if not plug:
                        row[f"batch_without_{workers}"] = workers * _MICRO * _ACCUMULATION
            row["exact_4-3-5"] = _difference(losses_of(by_ray[method]), theirs)
            without = settings_of(folder, method, "without-4-3-5", plug=False)
            history_by_torchrun(without)
            row["without_4-3-5"] = _difference(losses_of(without), theirs)
            result.append(row)
    write("trl_plug", result)


def _difference(losses: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference of a step's loss, to two digits."""
    return float(f"{max(abs(a - b) for a, b in zip(losses, theirs, strict=True)):.2g}")


if __name__ == "__main__":
    main()
