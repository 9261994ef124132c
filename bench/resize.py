"""What a resize costs: a node more, a node that gives notice, a node that dies. Stock Ray, tuned stock Ray, ours.

    python bench/resize.py [--repeats N]     each policy in a process and on a cluster of its own (ten minutes)

Each run starts with 2 workers: one node is added (-> 3), then one gets a drain notice of 20 s and is killed at its
deadline or when its worker has gone (-> 2), then one is killed (-> 1).

seconds_to_first_step   from the event (node registered, notice given, or node dead) to the first step
                        at the new size
pause_s                 the longest time without a step between the event and that first step
steps_lost              steps done before the change and done again after it
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from _cluster import POLICIES, Log, demo_job, running
from _results import write

from planner.local_cluster.embedded import EmbeddedCluster

NOTICE_S = 20.0
# The stock policy waits out a minute before it looks, and another for a place on a node that is gone.
_PATIENCE_S = 240.0
_EVERY_STEPS = 50


def measure(event: str, policy: str, log: Log, at_s: float, before: int, after: int) -> dict[str, object]:
    """One row, when the first steps at the new size have been seen."""
    log.wait_for(lambda steps: sum(at > at_s and size == after for at, size, _ in steps) >= 5, _PATIENCE_S)
    steps = log.steps()
    first_s, _, first = next(step for step in steps if step[0] > at_s and step[1] == after)
    old = [step for step in steps if step[0] < first_s and step[1] == before]
    moments = [max((at for at, _, _ in old if at <= at_s), default=at_s)]
    moments += [*(at for at, _, _ in old if at > at_s), first_s]
    return {
        "event": event,
        "policy": policy,
        "seconds_to_first_step": round(first_s - at_s, 2),
        "pause_s": round(max(later - earlier for earlier, later in pairwise(moments)), 2),
        "steps_lost": max(0, max(number for _, _, number in old) + 1 - first),
    }


def measure_policy(policy: str) -> list[dict[str, object]]:
    """All three events under one policy."""
    rows: list[dict[str, object]] = []

    def settle(log: Log, size: int, since_s: float) -> None:
        log.wait_for(lambda steps: sum(s == size and at > since_s for at, s, _ in steps) >= 25, _PATIENCE_S)

    def script(cluster: EmbeddedCluster, log: Log) -> None:
        from planner.dispatch.ray_internal import drain_node

        settle(log, 2, 0.0)
        cluster.add_node()
        rows.append(measure("grow", policy, log, time.monotonic(), 2, 3))
        settle(log, 3, 0.0)
        time.sleep(2)

        node = cluster.nodes()[-1]
        at_s = time.monotonic()
        drain_node(node, NOTICE_S, "bench")
        deadline_s = at_s + NOTICE_S
        while time.monotonic() < deadline_s and not any(at > at_s and size == 2 for at, size, _ in log.steps()):
            time.sleep(0.05)
        if node in cluster.nodes():
            cluster.kill_node(node)
        rows.append(measure("preempt", policy, log, at_s, 3, 2))
        settle(log, 2, at_s)

        # Each policy loses what it did since its last commit: all are killed half way to the next one.
        step = log.steps()[-1][2]
        halfway = step - step % _EVERY_STEPS + _EVERY_STEPS * 3 // 2
        log.wait_for(lambda steps: steps[-1][2] >= halfway, _PATIENCE_S)
        at_s = time.monotonic()
        cluster.kill_node(cluster.nodes()[-1])
        rows.append(measure("kill", policy, log, at_s, 2, 1))

    with tempfile.TemporaryDirectory() as name:
        job = demo_job(Path(name), steps=1_000_000, most=4, every_steps=_EVERY_STEPS)
        with running(policy, job, 2, script):
            pass
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, help="one alone, its rows to stdout")
    arguments = parser.parse_args()
    if arguments.policy:
        print("ROWS " + json.dumps(measure_policy(arguments.policy)))
        return
    rows = []
    for _ in range(arguments.repeats):
        for policy in POLICIES:
            command = [sys.executable, __file__, "--policy", policy]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            found = [line for line in output.splitlines() if line.startswith("ROWS ")]
            rows += json.loads(found[-1].removeprefix("ROWS "))
    write("resize", rows)


if __name__ == "__main__":
    main()
