"""Requests nodes from the cluster's autoscaler, reads whether it accepts the request, and which places are ours.

Requests go to Ray's coordinator actor. It collects the requests of all jobs in the GCS, and assigns places to jobs. The
autoscaler reads the requests there. Its newer version (v2) publishes its verdict there, too.
"""

import logging
import math
import time
from typing import Literal

import ray
from ray.core.generated import autoscaler_pb2
from ray.data._internal.cluster_autoscaler.base_autoscaling_coordinator import ResourceRequestPriority
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
    get_or_create_autoscaling_coordinator,
)
from ray.train._internal.autoscaling_coordinator_client import build_train_resource_request

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.dispatch.ray_internal import cluster_names as names
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.dispatch.ray_internal.group_names import ScalingConfig
from planner.dispatch.ray_internal.train_names import Coordinator
from planner.events.failures import NoNodes
from planner.plan import workers_on_node

_log = logging.getLogger(__name__)

# The same values as in Ray Train. A request expires after the first time, and is repeated after the second.
_EXPIRE_S, _AGAIN_S = 180.0, 20.0
_ASK_TIMEOUT_S = 5.0
# By default the autoscaler reads requests every 5 s.
_LOOK_S = 2.0
# Older failed launches say nothing about the present.
_RECENT_S = 60.0


class Autoscaler:
    """The last request of a run, its outcome, and the places that the run has."""

    def __init__(self, scaling_config: ScalingConfig, run: str) -> None:
        self._scaling_config = scaling_config
        self._requester_key = f"requester-{run}"
        self.asked = 0
        """workers in the last request. 0 before the first request"""
        self._on_demand = 0
        self.shortage: NoNodes | None = None
        """why nodes do not come, if the autoscaler says so"""
        self._asked_s = self._looked_s = float("-inf")
        # The request is visible in versions of the cluster's state after this one. Infinite until it is known.
        self._seen_from = math.inf

    def cancel_earlier(self) -> None:
        """Cancel the request of a killed driver. It would reserve places for three minutes."""
        if requester := kv_get(self._requester_key):
            try:
                get_or_create_autoscaling_coordinator().cancel_request.remote(requester_id=requester)
            except Exception:  # noqa: BLE001  # the request will expire
                _log.warning("the request of an earlier launch could not be cancelled", exc_info=True)

    def connect(self, coordinator: Coordinator, requester_id: str) -> None:
        """Use this coordinator, under this name. Call it before the methods below."""
        self._coordinator, self._requester_id = coordinator, requester_id

    def remember(self) -> None:
        """Leave our name for the next launch of the run, which may have to cancel our request."""
        kv_put(self._requester_key, self._requester_id)

    def room(self) -> dict[str, int]:
        """Node -> workers that fit into what the coordinator reserves for us there.

        Raises:
            Exception: it does not answer.
        """
        reserved = ray.get(
            # `recompute`: by itself, the coordinator updates only every 20 s.
            self._coordinator.get_reserved_resources.remote(self._requester_id, recompute=True),
            timeout=_ASK_TIMEOUT_S,
        )
        # Ray's own `_count_possible_workers` divides floats, so that 0.1 fits 9 times into 1.
        taken = self._scaling_config._resources_per_worker_not_none
        return {node: workers_on_node(found, taken) for node, found in reserved.items()}

    def ask(self, num_workers: int, on_demand: int = 0) -> None:
        """Request `num_workers` in all, if a number changed, and every 20 s: a request expires after 180 s.

        At least `on_demand` of them on on-demand nodes. Ray's older autoscaler (v1) ignores that.
        Unlike Ray's own request, it also shows free places that were not requested. A failure is logged. The caller
        tries again soon.
        """
        is_another = (num_workers, on_demand) != (self.asked, self._on_demand)
        if not is_another and time.monotonic() - self._asked_s <= _AGAIN_S:
            return
        bundles, selectors = build_train_resource_request(self._scaling_config, num_workers)
        if on_demand:
            first = min(on_demand, num_workers)
            selectors = [{MARKET_LABEL: ON_DEMAND}] * first + [{}] * (num_workers - first)
        try:
            ray.get(
                self._coordinator.request_resources.remote(
                    requester_id=self._requester_id,
                    resources=bundles,
                    label_selectors=selectors,
                    expire_after_s=_EXPIRE_S,
                    priority=ResourceRequestPriority.HIGH,
                    # Without this, places on good nodes stay hidden while the request's places are on draining nodes.
                    request_remaining=sorted(self._scaling_config._resources_per_worker_not_none),
                ),
                timeout=_ASK_TIMEOUT_S,
            )
        except Exception:  # noqa: BLE001  # no error here may end a group that trains
            _log.warning("the request for %d workers failed", num_workers, exc_info=True)
            return
        self.asked, self._on_demand, self._asked_s = num_workers, on_demand, time.monotonic()
        if is_another:
            self._seen_from = math.inf
            self._read_status()

    def verdict(self) -> Literal["accepted", "rejected", ""]:
        """The autoscaler's answer to the request. Empty if there is none yet. Its older version gives none."""
        if time.monotonic() - self._looked_s < _LOOK_S:
            return ""
        self._looked_s = time.monotonic()
        if (status := self._read_status()) is None:
            return ""
        state = status.autoscaling_state
        # The cluster's state has a version. The autoscaler has seen the request if it saw a later version.
        if state.last_seen_cluster_resource_state_version <= self._seen_from:
            return ""
        if state.infeasible_cluster_resource_constraints:
            return "rejected"
        self.shortage = self._failure(state)
        return "accepted"

    def _read_status(self) -> names.ClusterStatus | None:
        """The cluster's status, None if it could not be read. The first read after a request sets `_seen_from`."""
        try:
            status = _status()
        except Exception:  # noqa: BLE001  # no error here may end a group that trains
            _log.warning("the autoscaler's state could not be read", exc_info=True)
            return None
        if math.isinf(self._seen_from):
            self._seen_from = status.cluster_resource_state.cluster_resource_state_version
        return status

    def _failure(self, state: names.AutoscalingState) -> NoNodes | None:
        """The last node launch that failed. The cloud's own error is only in the autoscaler's log."""
        recent = [f for f in state.failed_instance_requests if time.time() - f.failed_ts < _RECENT_S]
        if not recent:
            return None
        last = max(recent, key=lambda failed: failed.failed_ts)
        return NoNodes(workers=self.asked, node_type=last.ray_node_type_name, reason=last.reason)


def _status() -> names.ClusterStatus:
    client: names.GcsClient = ray._private.worker.global_worker.gcs_client
    answer = client.get_cluster_status(timeout_s=_ASK_TIMEOUT_S)
    status: names.ClusterStatus = autoscaler_pb2.GetClusterStatusReply.FromString(answer)
    return status
