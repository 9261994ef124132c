"""All measurements on one GPU, in pieces of at most nine minutes, the most important first.

    python bench/gpu.py                  the pieces without a result, on this machine's GPU (without a GPU: toy sizes)
    python bench/gpu.py --list           the pieces, what each needs, and why one is left out here
    python bench/gpu.py sums step        some of them
    python bench/gpu.py --again          those with a result, too
    python bench/gpu.py --minutes 9      stop after this time in total. Another call resumes
    python bench/gpu.py --toy            toy sizes on the CPU, over gloo. Writes nothing

Each piece is a process of its own. When it ends its figures are in `bench/results/gpu-<piece>.json` (or `--out`), with
the GPU, the driver, torch and a digest of the code. A piece with a result of the same code here is skipped.
This file needs Python alone, its first pieces torch. docs/gpu.md says how to run it on a machine without network.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _results import ROWS, document

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
LIMIT_S = 540.0
# With less than this left of `--minutes` no piece is begun.
_WORTH_BEGINNING_S = 60.0
_PLANNER = ("torch", "numpy", "pydantic", "fsspec", "yaml")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One question, and the script that answers it."""

    name: str
    what: str
    script: str
    needs: tuple[str, ...]
    """packages that must be there"""
    arguments: tuple[str, ...] = ()

    def command(self, device: str, *, toy: bool) -> list[str]:
        """What is run."""
        return [
            *(sys.executable, str(BENCH / self.script), "--device", device),
            *self.arguments,
            *(("--toy",) if toy else ()),
        ]


PIECES = (
    Piece(
        name="sums",
        what="one hash of the weights at 1, 2 and 3 ranks on one GPU: FSDP2 and the fixed-point sums alone",
        script="_gpu_sums.py",
        needs=("torch",),
    ),
    Piece(
        name="optimizers",
        what="which optimizers give the same bits on shards as on whole tensors",
        script="_gpu_optimizers.py",
        needs=("torch",),
    ),
    Piece(
        name="collectives",
        what="which of gloo's collectives take this device's tensors, and that the way through the CPU is right",
        script="_gpu_collectives.py",
        needs=("torch",),
    ),
    Piece(
        name="loss",
        what="losses over 128,256 words in chunks beside whole logits: time and memory",
        script="loss.py",
        needs=("torch",),
    ),
    Piece(
        name="packed",
        what="attention within the documents of a packed row: a mask, a call per document, flex and varlen",
        script="packed.py",
        needs=("torch",),
    ),
    Piece(
        name="resize",
        what="a whole run through 2, 1, 2, 3 ranks on one GPU: the bits of an undisturbed one, audit clean",
        script="_gpu_resize.py",
        needs=_PLANNER,
    ),
    Piece(
        name="step",
        what="our loop beside a minimal hand-written FSDP2 loop",
        script="step.py",
        needs=_PLANNER,
    ),
    Piece(
        name="compiled",
        what="the same with compiled blocks and 0.8 B parameters on both sides, with MFU",
        script="step.py",
        needs=_PLANNER,
        arguments=("--size", "1b", "--compile"),
    ),
    Piece(
        name="commit",
        what="how long a commit of 0.8 B parameters stops training, and copies between GPU and host",
        script="_gpu_large.py",
        needs=_PLANNER,
        arguments=("--size", "1b"),
    ),
    Piece(
        name="large",
        what="a step of 3.2 B parameters: time, MFU, memory",
        script="_gpu_large.py",
        needs=_PLANNER,
        arguments=("--size", "3b"),
    ),
    Piece(
        name="hf",
        what="steps of a Llama by attention, kernels, compiled blocks, checkpointing and 4-bit weights: time, memory",
        script="_gpu_hf.py",
        needs=(*_PLANNER, "transformers", "peft", "datasets"),
    ),
    Piece(
        name="dpo",
        what="DPO at equal settings in TRL and here",
        script="dpo_beside_trl.py",
        needs=(*_PLANNER, "transformers", "datasets"),
    ),
    Piece(
        name="bitwise",
        what="what exact sums cost beside FSDP's own: time, bytes, memory",
        script="bitwise.py",
        needs=_PLANNER,
    ),
    Piece(
        name="ray",
        what="the same through Ray, whose nodes go 2, 1, 2",
        script="_gpu_resize.py",
        needs=(*_PLANNER, "ray"),
        arguments=("--ray",),
    ),
)


def missing(piece: Piece) -> list[str]:
    """The packages that it lacks here."""
    return [name for name in piece.needs if importlib.util.find_spec(name) is None]


def code_digest() -> str:
    """16 hex digits over planner and bench: results of the same code have the same."""
    digest = hashlib.sha256()
    for file in sorted([*(ROOT / "planner").rglob("*.py"), *BENCH.glob("*.py")]):
        digest.update(f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def commit() -> str:
    """Of the working tree, if git is there to say."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else "unknown"


_PROBE = """
import json, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"gpus": gpus, "torch": torch.__version__, "cuda": torch.version.cuda}))
"""


def probe() -> dict[str, Any]:
    """GPUs, torch and driver, asked in a process of its own: this one shall hold no memory of a GPU."""
    found: dict[str, Any] = {"gpus": [], "torch": None, "cuda": None, "driver": None}
    asked = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if asked.returncode == 0:
        found |= json.loads(asked.stdout.splitlines()[-1])
    if found["gpus"]:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError):
            said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
            found["driver"] = said.partition("\n")[0].strip() or None
    return found


def key_of(result: dict[str, Any]) -> tuple[object, ...]:
    """What makes two results the same measurement."""
    return tuple(result.get(name) for name in ("code", "gpus", "torch", "cuda", "driver", "passed"))


def is_done(piece: Piece, facts: dict[str, Any], folders: list[Path]) -> bool:
    """Whether there is a result of this code on this machine, and it is a good one."""
    for folder in folders:
        file = folder / f"gpu-{piece.name}.json"
        if file.exists() and key_of(json.loads(file.read_text())) == key_of({**facts, "passed": True}):
            return True
    return False


def run(piece: Piece, device: str, *, toy: bool, limit_s: float) -> tuple[bool, list[dict[str, object]], float]:
    """Whether it passed, its rows (which it may have even so), and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        rows_file = Path(folder) / "rows.json"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            ROWS: str(rows_file),
        }
        began_s = time.monotonic()
        process = subprocess.Popen(piece.command(device, toy=toy), cwd=ROOT, env=environment, start_new_session=True)
        try:
            passed = process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            print(f"{piece.name}: not done after {limit_s:.0f} s, ended", flush=True)
            passed = False
        finally:
            _end(process)
        rows = json.loads(rows_file.read_text()) if rows_file.exists() else []
    return passed and bool(rows), rows, time.monotonic() - began_s


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and the workers that it started: a session of their own, and so a group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def listing(facts: dict[str, Any], folders: list[Path]) -> str:
    """The pieces, one a line or two."""
    lines = []
    for piece in PIECES:
        lacking = missing(piece)
        state = f"left out: no {', '.join(lacking)} here" if lacking else "to be run"
        if not lacking and is_done(piece, facts, folders):
            state = "has a result of this code on this machine"
        lines += [f"{piece.name:12} {piece.what}", f"{'':12} needs {', '.join(piece.needs)}; {state}"]
    return "\n".join(lines)


def why_not(piece: Piece, facts: dict[str, Any], options: argparse.Namespace) -> str:
    """Why a piece is skipped. Empty if it runs."""
    if lacking := missing(piece):
        return f"left out, no {', '.join(lacking)} here"
    if options.toy or options.again or not is_done(piece, facts, folders_of(options)):
        return ""
    return "has a result of this code on this machine (--again runs it again)"


def folders_of(options: argparse.Namespace) -> list[Path]:
    """Where results may lie."""
    return [options.out, BENCH / "results"]


def run_and_keep(piece: Piece, facts: dict[str, Any], options: argparse.Namespace, limit_s: float) -> bool:
    """Run one piece and write its result, if it has one. Returns whether it passed."""
    print(f"{piece.name}: {piece.what}", flush=True)
    passed, rows, seconds = run(piece, "cpu" if options.toy else "cuda", toy=options.toy, limit_s=limit_s)
    print(f"{piece.name}: {'passed' if passed else 'FAILED'} after {seconds:.0f} s", flush=True)
    if rows and not options.toy:
        about = {"piece": piece.name, "what": piece.what, "passed": passed, "commit": commit(), **facts}
        options.out.mkdir(parents=True, exist_ok=True)
        file = options.out / f"gpu-{piece.name}.json"
        half = file.with_suffix(".half")  # a machine that is taken away leaves a whole result or none
        half.write_text(json.dumps({**about, "seconds": round(seconds, 1), **document(rows)}, indent=1) + "\n")
        half.replace(file)
        print(f"{piece.name}: {file}", flush=True)
    return passed


def run_all(facts: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Run the pieces. Returns the names of those that failed."""
    deadline_s = time.monotonic() + 60 * options.minutes
    failed = []
    for piece in PIECES:
        if options.pieces and piece.name not in options.pieces:
            continue
        left_s = deadline_s - time.monotonic()
        reason = why_not(piece, facts, options)
        if not reason and left_s < _WORTH_BEGINNING_S:
            reason = f"left for another call, {max(left_s, 0):.0f} s are left of this one"
        if reason:
            print(f"{piece.name}: {reason}", flush=True)
        elif not run_and_keep(piece, facts, options, min(LIMIT_S, left_s)):
            failed.append(piece.name)
    return failed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help="the pieces to run (default: all)")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--again", action="store_true", help="those too that have a result")
    parser.add_argument("--toy", action="store_true", help="toy sizes on the CPU, without results")
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="of all pieces together")
    parser.add_argument("--out", type=Path, default=BENCH / "results", help="where results go")
    options = parser.parse_args()
    if unknown := sorted(set(options.pieces) - {piece.name for piece in PIECES}):
        parser.error(f"no piece {', '.join(unknown)}. The pieces are {', '.join(piece.name for piece in PIECES)}")

    facts = {"code": code_digest(), **probe()}
    if options.list:
        print(listing(facts, folders_of(options)))
        return 0
    if not facts["gpus"] and not options.toy:
        print(f"no GPU here: torch {facts['torch']} sees none. Running toy sizes on the CPU, without results")
        options.toy = True
    failed = run_all(facts, options)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
