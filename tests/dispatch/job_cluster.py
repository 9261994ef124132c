"""`python job_cluster.py`: a Ray cluster that takes jobs, every port of its own on 127.0.0.1, until stdin closes.

One node: several on one machine share the folder that working directories are unpacked into, and the second one to
need a job's files deletes them under the first. One JSON line on stdout says where the cluster is. Like
`planner.local_cluster.supervisor` it leads a session, and what it started is what lives in it or below it.
"""

import json
import os
import select
import sys

from planner.local_cluster.embedded import ONE_CPU
from planner.local_cluster.environment import LOOPBACK
from planner.local_cluster.link import CLOSE_DEADLINE_S, HEARTBEAT_S
from planner.local_cluster.processes import kill_all, reap
from planner.local_cluster.supervisor import _adopt_orphans, _handle_signals, _loopback_arguments


def serve(**head):
    """Start a head with a dashboard, say where they are, and end everything when stdin closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _adopt_orphans()
    try:
        from ray.cluster_utils import Cluster

        arguments = {
            "object_store_memory": ONE_CPU.object_store_bytes,
            "include_dashboard": True,
            "dashboard_host": LOOPBACK,
            **head,
            **_loopback_arguments(),
        }
        cluster = Cluster(initialize_head=True, head_node_args=arguments)
        _handle_signals()
        answers.write(json.dumps({"dashboard": cluster.webui_url, "gcs": cluster.address}) + "\n")
        answers.flush()
        while not select.select([0], [], [], HEARTBEAT_S)[0]:
            reap()
    finally:
        kill_all(os.getpid(), CLOSE_DEADLINE_S)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # nodes know what is installed and what is sent to them, not this checkout
    serve(num_cpus=2, dashboard_port=int(sys.argv[1]))
