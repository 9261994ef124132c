"""Capacity that flaps between W and W + 1 every 10 s for five minutes: how often a run follows, and what it gets done.

    python bench/flapping.py [--minutes 5]     stock Ray and ours, each on a cluster of its own

A node is added, gets a notice of 5 s after 5 s and is killed at its end. 10 s later the next one comes. Steps
that were done again count once in the samples per second.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from _cluster import Log, demo_job, running
from _results import write

from planner.local_cluster.embedded import EmbeddedCluster

_EVERY_S, _NOTICE_S = 10.0, 5.0
_WORKERS = 2


def measure(policy: str, minutes: float) -> dict[str, object]:
    """One policy's row."""
    row: dict[str, object] = {"policy": policy, "workers": _WORKERS, "minutes": minutes}

    def script(cluster: EmbeddedCluster, log: Log) -> None:
        from planner.dispatch.ray_internal import drain_node

        log.wait_for(lambda steps: len(steps) >= 40, 240.0)
        began_s = time.monotonic()
        before = max(number for _, _, number in log.steps())
        while time.monotonic() - began_s < minutes * 60:
            node = cluster.add_node()
            time.sleep(_EVERY_S - _NOTICE_S)
            drain_node(node, _NOTICE_S, "bench")
            time.sleep(_NOTICE_S)
            if node in cluster.nodes():
                cluster.kill_node(node)
            time.sleep(_EVERY_S)
        elapsed_s = time.monotonic() - began_s
        steps = [step for step in log.steps() if step[0] >= began_s]
        reached = steps[-1][2] if steps else before
        row.update(
            resizes=sum(a[1] != b[1] for a, b in pairwise(steps)),
            samples_per_s=round((reached - before) * 64 / elapsed_s, 1),
            steps_done_again=len(steps) - (reached - before),
        )

    with tempfile.TemporaryDirectory() as name:
        job = demo_job(Path(name), steps=1_000_000, most=4, every_steps=50)
        with running(policy, job, _WORKERS, script):
            pass
    return row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--policy", help="one alone, its row to stdout")
    arguments = parser.parse_args()
    if arguments.policy:
        print("ROW " + json.dumps(measure(arguments.policy, arguments.minutes)))
        return
    rows = []
    for policy in ("stock", "stock_tuned", "ours"):
        command = [sys.executable, __file__, "--policy", policy, "--minutes", str(arguments.minutes)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows += [json.loads(line.removeprefix("ROW ")) for line in output.splitlines() if line.startswith("ROW ")]
    write("flapping", rows)


if __name__ == "__main__":
    main()
