"""What a resize costs: a node more, a node that gives notice, a node that dies. Stock Ray, tuned stock Ray, ours.

    python bench/resize.py [--repeats 5]               all rows (hours: see --only)
    python bench/resize.py --only demo|3|42|151 --storage local|slow --path memory|storage
    python bench/resize.py --only 42 --repeats 1 --spans --dry   where the time of a pause goes. Nothing is written

Each run has a process and a cluster of its own, and starts with 2 workers: one node is added (-> 3), then one gets a
drain notice of 20 s (longer on slow storage, by three commits) and is killed at its deadline or when its worker has
gone (-> 2). At the smallest sizes one is killed then (-> 1). Paths take turns. A row is the median of its repeats.

seconds_to_first_step   from the event (node registered, notice given, or node dead) to the first step
                        at the new size
pause_s                 the longest time without a step between the event and that first step, and its range
steps_lost              steps done before the change and done again after it
step_s                  a step at the new size (median of the next ones)
net_pause_s             from the last step at the old size to the first one at the new size, less step_s: between two
                        steps there is always one. At 151 M it takes seconds, since two cores gather all weights
from_memory             of the repeats, those whose new workers did load from memory
parameters_m            of the model, in millions
storage                 of the run's folder: local disk, or 20 MB/s for all processes together and 20 ms per call
path                    how workers pass the state on at a planned change: memory (`checkpoint.memory: auto`) or
                        storage (`off`). Ray's own policies have only storage
bound_s                 of a net pause from memory at 42 and 151 M: the median one at 3 M, and 1.5 times the
                        time in which `moved_mb` pass one socket of this machine (`loopback_mb_s`, measured in
                        the same run). On slow storage: 1.2 times the median net pause on local disk. Of a kill
                        at 3 M: 8 s to the first step

Before an event the bench holds twice the state's size of memory, until the new workers begin (`_ballast.py` says why).
Rows that were not measured stay in bench/results/resize.json. It exits with 1 if a bound is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _cluster import POLICIES
from _loopback import loopback_mb_s, moved_bytes
from _resize_case import LOCAL, SIZES, SLOW, Case, environment, parameters_m, state_bytes
from _results import kept, write

_KEY = ("event", "policy", "parameters_m", "storage", "path")
_KILL_BOUND_S = 8.0
_WORLD_SIZES = {"grow": (2, 3), "preempt": (3, 2)}


def all_cases() -> list[Case]:
    """Every run of one repeat: paths in turns."""
    stock = [Case(size=size, policy=policy, path="storage") for size in ("demo", "3") for policy in POLICIES[:2]]
    ours = [
        Case(size=size, storage=storage, path=path)
        for storage in (LOCAL, SLOW)
        for size in SIZES
        for path in ("memory", "storage")
        if not (size == "demo" and storage == SLOW)
    ]
    return [*stock, *ours]


def measured(case: Case, *, spans: bool) -> list[dict[str, Any]]:
    """The rows of one run. Fewer than its events if it failed, which it says."""
    with tempfile.TemporaryDirectory(prefix="planner-bench-") as name:
        command = [sys.executable, str(Path(__file__).with_name("_resize_case.py")), json.dumps(asdict(case))]
        env = environment(Path(name), spans=spans)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    found = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    rows: list[dict[str, Any]] = json.loads(found[-1].removeprefix("ROWS ")) if found else []
    if len(rows) < len(case.events):
        print(f"{case}: only {[row['event'] for row in rows]} of {case.events}", file=sys.stderr)
    for row in rows:
        if case.path == "memory" and not row["from_memory"]:
            print(f"{case}: {row['event']} did not resume from memory", file=sys.stderr)
    return rows


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each event and case, of all repeats."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_key(row), []).append(row)
    return [_median(key, group) for key, group in groups.items()]


def _median(key: tuple[Any, ...], group: list[dict[str, Any]]) -> dict[str, Any]:
    def of(name: str) -> Any:
        return statistics.median(row[name] for row in group)

    def spread(name: str) -> list[float]:
        return [min(row[name] for row in group), max(row[name] for row in group)]

    return {
        **dict(zip(_KEY, key, strict=True)),
        "repeats": len(group),
        "seconds_to_first_step": round(of("seconds_to_first_step"), 2),
        "seconds_range": spread("seconds_to_first_step"),
        "pause_s": round(of("pause_s"), 3),
        "pause_range_s": spread("pause_s"),
        "net_pause_s": round(of("net_pause_s"), 3),
        "steps_lost": round(of("steps_lost")),
        "steps_lost_range": spread("steps_lost"),
        "step_s": round(of("step_s"), 3),
        "from_memory": sum(row["from_memory"] for row in group),
    }


def bounded(rows: list[dict[str, Any]], loopback: float) -> list[dict[str, Any]]:
    """The rows with their bounds, as far as the rows for those were measured."""
    known = {_key(row): row for row in rows}
    names = {parameters_m(size): size for size in SIZES}

    def with_bound(row: dict[str, Any]) -> dict[str, Any]:
        if row["path"] != "memory":
            return row
        if row["event"] == "kill":
            return {**row, "bound_s": _KILL_BOUND_S} if row["parameters_m"] == parameters_m("3") else row
        moved_mb = moved_bytes(state_bytes(names[row["parameters_m"]]), *_WORLD_SIZES[row["event"]]) / 1e6
        row = {**row, "moved_mb": round(moved_mb, 1), "loopback_mb_s": loopback}
        local = known.get((row["event"], row["policy"], row["parameters_m"], LOCAL, "memory"))
        small = known.get((row["event"], row["policy"], parameters_m("3"), LOCAL, "memory"))
        if row["storage"] == SLOW and local:
            return {**row, "bound_s": round(1.2 * local["net_pause_s"], 3)}
        if row["storage"] == LOCAL and small and row["parameters_m"] > small["parameters_m"]:
            return {**row, "bound_s": round(small["net_pause_s"] + 1.5 * moved_mb / loopback, 3)}
        return row

    return [with_bound(row) for row in rows]


def missed(rows: list[dict[str, Any]]) -> list[str]:
    """The bounds that these rows miss, one sentence each. A kill counts by its time to the first step."""
    found = []
    for row in (row for row in rows if "bound_s" in row):
        seconds = row["seconds_to_first_step" if row["event"] == "kill" else "net_pause_s"]
        if seconds > row["bound_s"]:
            where = f"{row['event']}, {row['parameters_m']} M parameters, {row['storage']}, {row['path']}"
            found.append(f"{where}: {seconds} s, bound {row['bound_s']} s")
    return found


def merged(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of both, new ones in the place of old ones. Rows from before these keys are of the demo."""
    old = {"parameters_m": parameters_m("demo"), "storage": LOCAL, "path": "storage"}
    rows = {_key(row): row for row in ({**old, **row} for row in before)}
    return list((rows | {_key(row): row for row in now}).values())


def show_spans(rows: list[dict[str, Any]]) -> None:
    """Where each pause went."""
    for row in rows:
        print(f"{row['event']}, {row['parameters_m']} M, {row['storage']}, {row['path']}: pause {row['pause_s']} s")
        for name, (begins_s, seconds) in row.get("spans", {}).items():
            print(f"  {begins_s:8.3f}  {seconds:8.3f}  {name}")


def main() -> int:
    """Measure and write. 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=SIZES, action="append", help="sizes, may be given more than once")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--storage", choices=("local", "slow"))
    parser.add_argument("--path", choices=("memory", "storage"))
    parser.add_argument("--spans", action="store_true", help="print where the time of each pause goes")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    cases = [
        case
        for case in all_cases()
        if case.size in (options.only or SIZES)
        and case.policy in (options.policy or POLICIES)
        and case.storage in ({"local": [LOCAL], "slow": [SLOW]}.get(options.storage) or [LOCAL, SLOW])
        and case.path in ([options.path] if options.path else ["memory", "storage"])
    ]
    loopback = loopback_mb_s()
    print(f"one socket on loopback: {loopback} MB/s", flush=True)
    rows: list[dict[str, Any]] = []
    for _ in range(options.repeats):
        for case in cases:
            found = measured(case, spans=options.spans)
            rows += found
            for row in found:
                print(json.dumps({name: value for name, value in row.items() if name != "spans"}), flush=True)
            show_spans(found if options.spans else [])
    done = bounded(merged(kept("resize"), medians(rows)), loopback)
    if not options.dry:
        write("resize", done)
    now = {_key(row) for row in rows}
    failures = missed([row for row in done if _key(row) in now])
    print(*(f"missed: {failure}" for failure in failures), sep="\n", file=sys.stderr)
    return int(bool(failures))


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in _KEY)


if __name__ == "__main__":
    sys.exit(main())
