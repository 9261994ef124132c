"""All measurements on one GPU, in pieces, the most important first.

    python bench/gpu.py                  the pieces without a result, on this machine's GPU (without a GPU: toy sizes)
    python bench/gpu.py --list           the pieces, what each needs, and why one is left out here
    python bench/gpu.py sums step        some of them
    python bench/gpu.py --again          those with a result, too
    python bench/gpu.py --minutes 9      stop after this time in total. Another call resumes
    python bench/gpu.py --toy            toy sizes on the CPU, over gloo. Writes nothing

Each piece is a process of its own. When it ends its figures are in `bench/results/gpu.json` (or in `--out`), with the
GPU, the driver, torch and a digest of the code. A piece with a result of the same code here is skipped. A piece is
ended when it has taken twice as long as `--list` says, and keeps the rows that it has by then.
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
from pathlib import Path
from typing import Any

from _gpu_pieces import PIECES, Piece
from _results import ROWS, document

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
FILE = "gpu.json"


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


def results_in(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """The results that there are, by piece. An earlier folder's count more than a later one's."""
    found: dict[str, dict[str, Any]] = {}
    for folder in reversed(folders):
        if (folder / FILE).exists():
            found |= json.loads((folder / FILE).read_text())
    return found


def is_done(piece: Piece, facts: dict[str, Any], folders: list[Path]) -> bool:
    """Whether there is a result of this code on this machine, and it is a good one."""
    return key_of(results_in(folders).get(piece.name, {})) == key_of({**facts, "passed": True})


def run(
    piece: Piece, device: str, rows_file: Path, *, toy: bool, limit_s: float
) -> tuple[bool, list[dict[str, object]], float]:
    """Whether it passed, its rows (which it may have even so), and its seconds.

    The piece writes its rows into `rows_file` as it gets them. The file is then removed.
    """
    rows_file.unlink(missing_ok=True)  # of a call that was ended
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), ROWS: str(rows_file)}
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
    rows_file.unlink(missing_ok=True)
    return passed and bool(rows), rows, time.monotonic() - began_s


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and the workers that it started: a session of their own, and so a group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait()


def listing(facts: dict[str, Any], folders: list[Path]) -> str:
    """The pieces, each with its estimate in seconds."""
    lines = [f"{'piece':12} {'s':>4}  what it measures, what it needs, and whether it runs here"]
    for piece in PIECES:
        lacking = missing(piece)
        state = f"left out: no {', '.join(lacking)} here" if lacking else "to be run"
        if not lacking and is_done(piece, facts, folders):
            state = "has a result of this code on this machine"
        lines += [f"{piece.name:12} {piece.seconds:4}  {piece.what}"]
        lines += [f"{'':12} {'':4}  needs {', '.join(piece.needs)}; {state}"]
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
    if options.toy:
        with tempfile.TemporaryDirectory() as folder:
            passed, _, seconds = run(piece, "cpu", Path(folder) / "rows.json", toy=True, limit_s=limit_s)
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        # Beside the results: if this process is ended, the rows of the piece that it was at are still there.
        rows_file = options.out / f"gpu-{piece.name}-unfinished.json"
        passed, rows, seconds = run(piece, "cuda", rows_file, toy=False, limit_s=limit_s)
        if rows:
            about = {"what": piece.what, "passed": passed, "commit": commit(), **facts, "seconds": round(seconds, 1)}
            keep(piece, {**about, **document(rows)}, folders_of(options))
    print(f"{piece.name}: {'passed' if passed else 'FAILED'} after {seconds:.0f} s", flush=True)
    return passed


def keep(piece: Piece, result: dict[str, Any], folders: list[Path]) -> None:
    """Write a result into the first folder, with all others that are known: its file can replace any older one."""
    file = folders[0] / FILE
    half = file.with_suffix(".half")  # a machine that is taken away leaves a whole file or the one before
    half.write_text(json.dumps({**results_in(folders), piece.name: result}, indent=1) + "\n")
    half.replace(file)


def run_all(facts: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """Run the pieces. Returns the names of those that failed."""
    deadline_s = time.monotonic() + 60 * options.minutes
    failed = []
    for piece in PIECES:
        if options.pieces and piece.name not in options.pieces:
            continue
        left_s = deadline_s - time.monotonic()
        reason = why_not(piece, facts, options)
        if not reason and left_s < piece.seconds:
            reason = f"left for another call: it takes about {piece.seconds} s, and {max(left_s, 0):.0f} s are left"
        if reason:
            print(f"{piece.name}: {reason}", flush=True)
        elif not run_and_keep(piece, facts, options, min(piece.limit_s, left_s)):
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
