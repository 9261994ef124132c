"""What the controller sees and decides, in the cluster's key-value store, for the driver and `planner watch`.

It is advisory: a failure here never reaches the controller or the driver.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from planner.dispatch import mailbox
from planner.dispatch.ray_internal import kv_get, kv_put
from planner.elastic.controller import ElasticController
from planner.elastic.next_decision import worker_states
from planner.elastic.view import View
from planner.store.records import canonical
from planner.store.run_status import NodeStatus, RunStatus, WorkerStatus
from planner.wording.event_text import text_of, text_of_all

_log = logging.getLogger(__name__)

_LEAST_S = 1.0
# An unchanged status is published again after this long, so that its age shows that the controller lives.
_REFRESH_S = 5.0
# A status of 500 workers has about 40 KB. Larger groups publish less often.
_WORKERS_PER_S = 500


class StatusPublisher:
    """The controller's side of `planner.store.run_status`."""

    def __init__(self, controller: ElasticController, launch_id: str) -> None:
        self._controller, self._launch_id = controller, launch_id
        self._published_s = -math.inf
        self._last: RunStatus | None = None

    def publish(
        self,
        view: View,
        *,
        newcomers: Callable[[], Sequence[str]],
        hosts: Mapping[str, str],
        why: str,
        at_once: bool,
    ) -> None:
        """Publish the status if it has changed, at most once a second.

        Args:
            view: what the controller has decided on.
            newcomers: returns the node of each newcomer, empty if it has no place yet.
            hosts: node -> name or address.
            why: what the controller does while no worker writes the ledger.
            at_once: publish also within a second of the last time, because the caller acts now.
        """
        passed_s = time.monotonic() - self._published_s
        if not at_once and passed_s < max(_LEAST_S, len(view.nodes) / _WORKERS_PER_S):
            return
        try:
            status = self._status(view, newcomers(), hosts, why)
            if not at_once and passed_s < _REFRESH_S and self._is_known(status):
                return
            kv_put(mailbox.status_key(self._launch_id), canonical(status))
            self._last, self._published_s = status, time.monotonic()
        except Exception:  # noqa: BLE001  # the status is only shown, and must not end a run
            _log.warning("the live status could not be published", exc_info=True)

    def _is_known(self, status: RunStatus) -> bool:
        """Whether it says what was published last. A stop's usual time changes with each step, and does not count."""
        if self._last is None:
            return False
        return self._last.model_copy(update={"time_s": status.time_s, "stop": status.stop}) == status

    def _status(self, view: View, newcomers: Sequence[str], hosts: Mapping[str, str], why: str) -> RunStatus:
        controller, now_s, state = self._controller, time.time(), self._controller.state
        decision, rules = controller.next_decision(view), state.known.rules
        due_s = now_s + decision.due_s - time.monotonic()
        return RunStatus(
            launch=self._launch_id,
            time_s=now_s,
            state=type(state).__name__,  # type: ignore[arg-type]  # checked when it is built
            why=why,
            next=text_of_all(decision.events),
            # Rounded, because an unchanged time must not look like a change.
            next_s=round(due_s) if math.isfinite(due_s) else None,
            least=rules.workers.least,
            most=rules.useful(rules.workers.most),
            held_step=controller.held_step,
            durable_step=controller.durable_step,
            stop=text_of(controller.driver_stop),
            nodes=_nodes(view, hosts, now_s),
            workers=(
                *(
                    WorkerStatus(rank=rank, node=node, state=doing)
                    for rank, (node, doing) in enumerate(zip(view.nodes, worker_states(state, view), strict=True))
                ),
                *(WorkerStatus(rank=None, node=node, state="warming") for node in newcomers),
            ),
        )


def published(launch_id: str, key: Callable[[str], str]) -> str:
    """What the controller has published under this key. Empty if it has not, or if the cluster does not answer."""
    with suppress(Exception):  # Ray may be ending, and texts are only shown
        return kv_get(key(launch_id))
    return ""


def live_status(launch_id: str) -> RunStatus | None:
    """The controller's live status, None if it is not known."""
    with suppress(Exception):  # it is only shown
        if text := published(launch_id, mailbox.status_key):
            return RunStatus.model_validate_json(text)
    return None


def _nodes(view: View, hosts: Mapping[str, str], now_s: float) -> tuple[NodeStatus, ...]:
    """All nodes that have room, workers of the group or a notice."""
    nodes = dict.fromkeys((*view.nodes, *view.room, *view.draining))
    leaves_s = {node: now_s + in_s for node, in_s in view.draining.items()}
    return tuple(
        NodeStatus(
            node=node,
            host=hosts.get(node, ""),
            room=view.room.get(node, 0),
            has_notice=node in view.draining,
            leaves_s=round(leaves_s[node]) if math.isfinite(leaves_s.get(node, math.inf)) else None,
        )
        for node in nodes
        if node in view.nodes or node in view.draining or view.room[node]
    )
