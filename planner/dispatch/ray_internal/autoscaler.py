"""What is asked of the cluster's autoscaler, and what it says to that.

Requests go to an actor of Ray's, the coordinator, which hands all jobs' requests together to the GCS, and says which
places are whose. The autoscaler fetches them there, and its newer version (v2) leaves what it makes of them.
"""

import logging
import math
import time
from typing import Literal

import ray
from ray.core.generated import autoscaler_pb2
from ray.data._internal.cluster_autoscaler.base_autoscaling_coordinator import ResourceRequestPriority
from ray.train._internal.autoscaling_coordinator_client import build_train_resource_request

from planner.base.text import counted
from planner.dispatch.ray_internal import shapes

_log = logging.getLogger(__name__)

# As Ray Train does: a request is forgotten after the one, and said again after the other.
_EXPIRE_S, _AGAIN_S = 180.0, 20.0
_ASK_TIMEOUT_S = 5.0
# The autoscaler looks at requests every 5 s, if nobody has set it otherwise.
_LOOK_S = 2.0
# A launch that failed longer ago says nothing of now.
_RECENT_S = 60.0


class Autoscaler:
    """The last request, and what became of it."""

    def __init__(self) -> None:
        self.asked = 0
        """workers; 0 before the first request"""
        self.words: tuple[str, ...] = ()
        """why nodes do not come, as far as it says so"""
        self._asked_s = self._looked_s = float("-inf")
        # The number of the look at the cluster from which on the request is seen; infinite until it is known.
        self._seen_from = math.inf

    @property
    def is_due(self) -> bool:
        """Whether the request is to be said again."""
        return time.monotonic() - self._asked_s > _AGAIN_S

    def ask(
        self, coordinator: shapes.Coordinator, requester_id: str, scaling_config: shapes.ScalingConfig, num_workers: int
    ) -> None:
        """Ask for so many in all; a failure is logged, and the next time is soon."""
        bundles, selectors = build_train_resource_request(scaling_config, num_workers)
        try:
            ray.get(
                coordinator.request_resources.remote(
                    requester_id=requester_id,
                    resources=bundles,
                    label_selectors=selectors,
                    expire_after_s=_EXPIRE_S,
                    priority=ResourceRequestPriority.HIGH,
                    # Else places on good nodes would stay unseen while those of the request lie on nodes that drain.
                    request_remaining=sorted(scaling_config._resources_per_worker_not_none),
                ),
                timeout=_ASK_TIMEOUT_S,
            )
        except Exception:  # noqa: BLE001  # whatever it is, the group that trains goes on
            _log.warning("the cluster could not be asked for %d workers", num_workers, exc_info=True)
            return
        is_another = num_workers != self.asked
        self.asked, self._asked_s = num_workers, time.monotonic()
        if is_another:
            self._seen_from = math.inf
            self._read_status()

    def verdict(self) -> Literal["taken", "refused", ""]:
        """What the autoscaler makes of the request; empty as long as it says nothing, as its older version does."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return ""
        self._looked_s = time.monotonic()
        if (status := self._read_status()) is None:
            return ""
        state = status.autoscaling_state
        # Every look at the cluster's state has a number: it has seen the request if its own came after ours.
        if state.last_seen_cluster_resource_state_version <= self._seen_from:
            return ""
        if state.infeasible_cluster_resource_constraints:
            return "refused"
        self.words = self._failure(state)
        return "taken"

    def _read_status(self) -> shapes.ClusterStatus | None:
        """The cluster's; None if it could not be read. The first after a request tells what came before that."""
        try:
            status = _status()
        except Exception:  # noqa: BLE001  # as above
            _log.warning("the autoscaler's state could not be read", exc_info=True)
            return None
        if math.isinf(self._seen_from):
            self._seen_from = status.cluster_resource_state.cluster_resource_state_version
        return status

    def _failure(self, state: shapes.AutoscalingState) -> tuple[str, ...]:
        """The last launch that failed, in words. The cloud's own error is in the autoscaler's log only."""
        recent = [f for f in state.failed_instance_requests if time.time() - f.failed_ts < _RECENT_S]
        if not recent:
            return ()
        last = max(recent, key=lambda failed: failed.failed_ts)
        why = f": {last.reason}" if last.reason else ""
        return (
            f"asked for {counted(self.asked, 'worker')}, and the cloud gives no {last.ray_node_type_name} node{why}",
        )


def _status() -> shapes.ClusterStatus:
    client: shapes.GcsClient = ray._private.worker.global_worker.gcs_client
    answer = client.get_cluster_status(timeout_s=_ASK_TIMEOUT_S)
    status: shapes.ClusterStatus = autoscaler_pb2.GetClusterStatusReply.FromString(answer)
    return status
