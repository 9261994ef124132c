"""A spot trace through Ray's real autoscaler: how much of what the cloud had became work, stock Ray and ours.

    python bench/autoscaler.py [--trace bamboo_aws_p3.csv] [--speed 6] [--since-hours 0] [--hours 1] [--most 4]

A trace is a CSV file with the columns `time_s,available_nodes`. Without one, a made-up hour is used. Nodes are
processes on this machine, `--most` of them where the trace has its largest count. A sample costs a worker 4 ms of
sleep, as if it had a GPU of its own. Each policy runs the same job on a cluster of its own, one after the other. The
trace's time begins when the policy has trained 20 steps on the trace's first count.

Scaled: the trace's time (by `--speed`) and its number of nodes (to `--most`). Not scaled: the notice, which is AWS's
two minutes in real seconds, and all that a policy does. Stock Ray looks for nodes once in 60 s: at a speed of 6 that
is ten times in an hour of the trace. At a speed of 60 it would be once, and the figure would say nothing of it.

resizes             changes of the world size between one step and the next
steps_lost          steps done again
useful_over_ideal   steps that count, over those of a run that has all nodes at each moment and never pauses, at
                    the median seconds per step of each size, over all policies
longest_pause_s     between two steps
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from _cluster import POLICIES, Log, paced_job, set_policy, train
from _results import write

sys.path += [
    str(Path(__file__).parents[1] / "tests" / name) for name in ("dispatch", "harness")
]  # the cloud of the tests
if TYPE_CHECKING:
    from spot_trace import Trace

_AWS_NOTICE_S = 120.0
_BATCH = 64
# Stock Ray looks once a minute, and waits another one for a place.
_PATIENCE_S = 240.0
# (seconds, nodes): an hour with gains, a loss of several at once, and nodes that come back.
_MADE_UP = ((0, 2), (240, 3), (600, 4), (1500, 3), (1620, 2), (2100, 4), (2700, 3), (3000, 4), (3420, 2), (3600, 2))


def trace_of(arguments: argparse.Namespace) -> "Trace":
    """What the cloud has, on this machine's scale and clock."""
    from spot_trace import Trace, read_trace

    made_up = Trace(times_s=tuple(at for at, _ in _MADE_UP), counts=tuple(count for _, count in _MADE_UP))
    whole = (read_trace(arguments.trace) if arguments.trace else made_up).scaled(arguments.most)
    return whole.window(arguments.since_hours * 3600, arguments.hours * 3600).faster(arguments.speed)


def measure(policy: str, trace: "Trace", notice_s: float, most: int) -> dict[str, Any]:
    """One policy's row."""
    from autoscaler_cluster import AutoscalerCluster

    set_policy(policy)
    row: dict[str, Any] = {"policy": policy}
    with (
        tempfile.TemporaryDirectory() as name,
        AutoscalerCluster(
            max_nodes=most, available=trace, notice_s=notice_s, quick_health_checks=policy != "stock"
        ) as cluster,
    ):

        def script(log: Log) -> None:
            first = trace.counts[0]
            log.wait_for(lambda steps: sum(size == first for _, size, _ in steps) >= 20, _PATIENCE_S)
            began_s, before = time.monotonic(), log.steps()[-1][2]
            cluster.begin()
            time.sleep(trace.end_s)
            row.update(_figures(log.steps(), began_s, time.monotonic(), before))
            row["notices"] = len(cluster.events("notice"))
            row["nodes_started"] = len(cluster.events("launched"))

        train(policy, paced_job(Path(name), most=most, every_steps=50), cluster.address, script)
    return row


def _figures(steps: list[tuple[float, int, int]], began_s: float, ended_s: float, before: int) -> dict[str, Any]:
    """Of (moment, world size, step) from `began_s` to `ended_s`, when `before` was the last step done."""
    during = [step for step in steps if began_s < step[0] <= ended_s]
    reached = during[-1][2] if during else before
    seconds = defaultdict(list)
    for (earlier_s, was, _), (later_s, size, _) in pairwise(steps):
        if was == size:
            seconds[size].append(later_s - earlier_s)
    moments = [began_s, *(at for at, _, _ in during), ended_s]
    return {
        "steps": reached - before,
        "samples_per_s": round((reached - before) * _BATCH / (ended_s - began_s), 1),
        "resizes": sum(a[1] != b[1] for a, b in pairwise(during)),
        "steps_lost": len(during) - (reached - before),
        "longest_pause_s": round(max(later - earlier for earlier, later in pairwise(moments)), 1),
        "step_seconds": {size: median(found) for size, found in seconds.items() if len(found) >= 10},
    }


def ideal_steps(trace: "Trace", rows: list[dict[str, Any]]) -> float:
    """Steps of a run that has all nodes at each moment and never pauses."""
    pooled = defaultdict(list)
    for row in rows:
        for size, seconds in row.get("step_seconds", {}).items():
            pooled[int(size)].append(seconds)
    known = {size: median(found) for size, found in pooled.items()}
    # More nodes are never slower: who has more than are useful uses fewer.
    best = {count: min(known[size] for size in known if size <= max(count, min(known))) for _, count in trace.spans()}
    return sum(span_s / best[count] for span_s, count in trace.spans() if count)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="")
    parser.add_argument("--speed", type=float, default=6.0)
    parser.add_argument("--since-hours", type=float, default=0.0)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--most", type=int, default=4)
    parser.add_argument("--policy", choices=POLICIES, help="one alone, its row to stdout")
    arguments = parser.parse_args()
    trace = trace_of(arguments)
    if arguments.policy:
        print("ROW " + json.dumps(measure(arguments.policy, trace, _AWS_NOTICE_S, arguments.most)))
        return
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        command = [sys.executable, __file__, "--policy", policy, *sys.argv[1:]]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows += [json.loads(line.removeprefix("ROW ")) for line in output.splitlines() if line.startswith("ROW ")]
    ideal = ideal_steps(trace, rows)
    about = {
        "trace": Path(arguments.trace).name or "made up",
        "trace_hours": [arguments.since_hours, arguments.since_hours + arguments.hours],
        "speed": arguments.speed,
        "nodes": [count for _, count in trace.spans()],
        "most_nodes": arguments.most,
        "notice_s": _AWS_NOTICE_S,
        "wall_s": trace.end_s,
        "scaled": ["time of the trace", "number of nodes"],
    }
    for row in rows:
        sizes = row.pop("step_seconds", {})
        row["useful_over_ideal"] = round(row.get("steps", 0) / ideal, 3)
        row["seconds_per_step"] = {size: round(seconds, 4) for size, seconds in sizes.items()}
    write("autoscaler", [about | {"ideal_steps": round(ideal)}, *rows])


if __name__ == "__main__":
    main()
