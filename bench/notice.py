"""From a cloud's notice to the commit: every kind of notice, by the agent that users start, on three nodes.

    python bench/notice.py      about five minutes

The demo's model trains on 3 workers. The agent of the newest node asks a metadata server on loopback, which begins to
answer as the cloud does when it takes a machine. The node is killed when its worker has gone, and another one is added.

seconds_to_drain        from the notice to Ray's having taken it: at most the time between two looks
seconds_to_commit       from the notice to a commit of the whole run (null: no time for one)
seconds_to_first_step   from the notice to the first step of 2 workers
steps_lost              steps done before that and done again after it
notice_s                what the cloud gives
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _cluster import Log, demo_job, running
from _results import write

from planner.local_cluster.embedded import EmbeddedCluster
from planner.store.records import CommitRecord

sys.path.append(str(Path(__file__).parents[1] / "tests" / "notice"))  # the metadata servers are those of the tests
_PATIENCE_S = 120.0


class Agent:
    """`planner notice-agent` for one node, and the moments at which it said something."""

    def __init__(self, cluster: EmbeddedCluster, node: str, url: str, options: list[str]) -> None:
        where = ["--address", cluster.address, "--node-id", node, "--endpoint", url, *options]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "planner.cli", "notice-agent", *where], stdout=subprocess.PIPE, text=True
        )
        self.said: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.said.extend((time.monotonic(), line) for line in self._process.stdout)

    def wait_for(self, words: str) -> float:
        """The moment at which it said so."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            for at_s, line in list(self.said):
                if words in line:
                    return at_s
            time.sleep(0.02)
        raise TimeoutError(f"the agent never said {words}: {self.said}")

    def end(self) -> int:
        """Its exit code, when its node has gone."""
        return self._process.wait(_PATIENCE_S)


def cases() -> list[tuple[str, type, list[str], Callable[[Any], None], float | None]]:
    """What, the metadata server, options of the agent, how notice is given, and how many seconds of it."""
    from metadata_server import AwsMetadata, AzureMetadata, GcpMetadata

    return [
        ("AWS, terminate", AwsMetadata, [], lambda server: server.take(120), 120),
        ("AWS, stop", AwsMetadata, [], lambda server: server.take(120, "stop"), 120),
        ("AWS, hibernate", AwsMetadata, [], lambda server: server.take(0, "hibernate"), 0),
        ("AWS, rebalance", AwsMetadata, ["--rebalance"], lambda server: server.recommend(), None),
        ("Google Cloud, preempted", GcpMetadata, [], lambda server: server.take(), 30),
        ("Azure, Preempt", AzureMetadata, [], lambda server: server.take(30), 30),
        ("Azure, Terminate", AzureMetadata, [], lambda server: server.take(300, "Terminate"), 300),
    ]


def measure(cluster: EmbeddedCluster, log: Log, case: tuple[Any, ...]) -> dict[str, object]:
    """One kind of notice, from three workers to two."""
    what, make, options, give, notice_s = case
    began_s = time.monotonic()
    log.wait_for(lambda steps: sum(size == 3 and at > began_s for at, size, _ in steps) >= 10, _PATIENCE_S)
    node = cluster.nodes()[-1]
    with make() as server:
        agent = Agent(cluster, node, server.url, options)
        agent.wait_for("watching")
        time.sleep(1.0)  # somewhere between two looks
        at_s = time.monotonic()
        give(server)
        drained_s = agent.wait_for("passed on to Ray")
        log.wait_for(lambda steps: sum(size == 2 and at > at_s for at, size, _ in steps) >= 3, _PATIENCE_S)
        first_s, _, first = next(s for s in log.steps() if s[0] > at_s and s[1] == 2)
        commits = [at for at, _, record in log.seen if at_s < at < first_s and isinstance(record, CommitRecord)]
        last = max(step for at, size, step in log.steps() if at < first_s and size == 3)
        if node in cluster.nodes():
            cluster.kill_node(node)
        exit_code = agent.end()
    return {
        "notice": what,
        "notice_s": notice_s,
        "seconds_to_drain": round(drained_s - at_s, 2),
        "seconds_to_commit": round(commits[0] - at_s, 2) if commits else None,
        "seconds_to_first_step": round(first_s - at_s, 2),
        "steps_lost": max(0, last + 1 - first),
        "agent_exit_code": exit_code,
    }


def main() -> None:
    """The command line."""
    rows: list[dict[str, object]] = []

    def script(cluster: EmbeddedCluster, log: Log) -> None:
        for case in cases():
            rows.append(measure(cluster, log, case))
            print(rows[-1], flush=True)
            cluster.add_node()

    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    with tempfile.TemporaryDirectory() as name:
        # Commits are those of the notices alone.
        job = demo_job(Path(name), steps=1_000_000, most=3, every_steps=1_000_000)
        with running("ours", job, 3, script):
            pass
    if len(rows) == len(cases()):
        write("notice", rows)


if __name__ == "__main__":
    main()
