"""Where figures go: `bench/results/<name>.json`, with the machine and the date they were measured on.

A bench that `bench/gpu.py` has started hands its rows to it instead.
"""

import json
import os
import platform
import time
from pathlib import Path


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


ROWS = "PLANNER_BENCH_ROWS"
"""environment: the file to write rows into, and nothing else"""


def document(rows: list[dict[str, object]]) -> dict[str, object]:
    """What a file of results holds."""
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "rows": rows}


def write(name: str, rows: list[dict[str, object]]) -> None:
    """Write the figures and print them."""
    keep(name, rows)
    for row in rows:
        print(name, json.dumps(row))


def keep(name: str, rows: list[dict[str, object]]) -> None:
    """Write the figures."""
    if ROWS in os.environ:
        Path(os.environ[ROWS]).write_text(json.dumps(rows))
    else:
        path = Path(__file__).parent / "results" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document(rows), indent=1) + "\n")


def kept(name: str) -> list[dict[str, object]]:
    """The rows of the last measurement. Empty if there is none."""
    path = Path(__file__).parent / "results" / f"{name}.json"
    rows: list[dict[str, object]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def hand_over(name: str, rows: list[dict[str, object]]) -> None:
    """Write what there is so far, and print the newest: a piece that is ended early leaves its first rows."""
    keep(name, rows)
    print(name, json.dumps(rows[-1]), flush=True)


def best_of(repeats: int, work: object) -> float:
    """Seconds of the fastest of some calls: the one that the rest of the machine disturbed least."""
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - started_s)
    return min(times)
