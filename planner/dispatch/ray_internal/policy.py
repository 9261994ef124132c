"""planner's scaling policy in Ray Train's controller: Ray's calls, in the order in which Ray makes them.

    controller.py:234   after_controller_start                       once, in the controller's constructor
    scaling_policy.py:130, 139    _get_num_workers_for_resource_request, then _send_resource_request
    controller.py:620   make_decision_for_non_running_worker_group   in a loop, until it decides on a size
    controller.py:456   on_controller_start_worker_group             then the group starts:
    controller.py:486   GroupFactory.create                              Observer.started, start_failed or unplaced
    controller.py:436   NewProcessesGroup.poll_status                in a loop. With errors: Observer.failed, and again
                                                                     from line 620
    controller.py:690   make_decision_for_running_worker_group       after each poll without errors. If it decides on a
                                                                     size, Ray ends the group (line 560), and starts the
                                                                     next one from line 456
    controller.py:522   before_controller_shutdown                   once. Ray's own, which cancels our request

Lines are those of Ray 2.60 in ray/train/v2/_internal/execution (`controller/` and `scaling_policy/`). All of this runs
in the controller's process, in the thread of its loop. The heartbeat and the census have their own. Each decision is
made in one way:

    Ray -> observer (what is seen) -> `ElasticController.step` (what to do) -> actuator (do it) -> Ray
                                                                               reporter (tell it)
"""

import logging
import os
import time
from collections.abc import Callable

from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy, NoopDecision, ResizeDecision

from planner.dispatch.keeper_census import Census
from planner.dispatch.ray_internal.actuator import Actuator
from planner.dispatch.ray_internal.autoscaler import Autoscaler
from planner.dispatch.ray_internal.group_names import PollStatus, ScalingConfig, TrainRunContext, WorkerGroupState
from planner.dispatch.ray_internal.groups import GroupFactory
from planner.dispatch.ray_internal.observer import Observer
from planner.dispatch.ray_internal.reporter import Reporter
from planner.elastic.controller import ElasticController
from planner.elastic.view import Act
from planner.errors import PlannerError

_log = logging.getLogger(__name__)

# Ray's controller loops without a pause while no group runs.
_IDLE_S = 0.2


class Policy(ElasticScalingPolicy):  # type: ignore[misc]
    """Ray's calls, passed on. The driver makes it, and Ray pickles it for the controller's process."""

    def __init__(
        self,
        scaling_config: ScalingConfig,
        controller: ElasticController,
        *,
        run: str,
        launch_id: str,
        warm_up: Callable[[], None],
        keep_processes: bool,
        make_census: Callable[[], Census | None],
    ) -> None:
        """A policy for one controller.

        Args:
            scaling_config: Ray's, with the resources of a worker.
            controller: decides when to resize.
            run: URL of the run's folder.
            launch_id: id of the launch.
            warm_up: called in newcomers while the group still trains.
            keep_processes: whether surviving workers keep their processes at a resize.
            make_census: called in the controller's process. Returns what looks after the launch's keepers.
        """
        super().__init__(scaling_config)
        self._controller, self._make_census = controller, make_census
        self._autoscaler = Autoscaler(scaling_config, run)
        self._reporter = Reporter(controller, launch_id, run)
        self._observer = Observer(controller, self._reporter, self._autoscaler, launch_id)
        self.groups = GroupFactory(
            listener=self._observer,
            places_name=f"planner-{launch_id}-",
            warm_up=warm_up,
            keeps_processes=keep_processes,
        )
        """what Ray's controller creates groups with"""
        self._actuator = Actuator(controller, self._observer, self._reporter, self._autoscaler)

    def after_controller_start(self, train_run_context: TrainRunContext) -> None:
        """Prepare the launch."""
        # Start the heartbeat first: if the calls below hang, it stops after a while and the driver notices.
        self._reporter.heartbeat.start()
        # How long Ray waits for the processes of a group to leave it before it kills them.
        os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "5")
        self._actuator.clear_up(self.groups.places_name)
        super().after_controller_start(train_run_context)
        self._autoscaler.remember()
        self._observer.census = self._make_census()

    def _get_num_workers_for_resource_request(self) -> int:
        return self._actuator.num_requested()

    def _send_resource_request(self) -> None:
        # Ray has given us a coordinator and a name only now.
        assert self._requester_id is not None
        self._autoscaler.connect(self._autoscaling_coordinator, self._requester_id)
        self._actuator.request_nodes()

    def make_decision_for_non_running_worker_group(self) -> NoopDecision | ResizeDecision:
        """Start a group, or wait for nodes."""
        self._reporter.heartbeat.turned()
        self._observer.set_group(None)
        self._actuator.request_nodes()
        if self._observer.look() and (act := self._act_without_group()).kind == "resize":
            return self._get_resize_decision(act.world_size)
        time.sleep(_IDLE_S)
        return NoopDecision()

    def _act_without_group(self) -> Act:
        self._actuator.hear_autoscaler()
        view = self._observer.view()
        self._reporter.note_capacity(view)
        act = self._controller.step(view)
        self._actuator.order_keepers(view)
        self._reporter.tell_without_group(act, self._autoscaler.shortage)
        self._reporter.publish(view, act, None, self._observer.hosts)
        return act

    def on_controller_start_worker_group(self, *, scaling_config: object, num_workers: int) -> dict[str, str] | None:  # noqa: ARG002
        """Tell the group how long it may wait. It asks for its nodes' labels itself: Ray has one for all workers."""
        self._reporter.tell_next_group(self._controller.first_collectives_s(num_workers))
        return None

    def make_decision_for_running_worker_group(
        self, worker_group_state: WorkerGroupState, worker_group_status: PollStatus
    ) -> NoopDecision | ResizeDecision:
        """Keep the group, prepare a change, or make it."""
        self._reporter.heartbeat.turned()
        self._actuator.request_nodes()
        self._observer.hear(worker_group_status)
        if self._observer.is_due(worker_group_state.num_workers) and self._observer.look():
            act = self._act_on_group(worker_group_state)
            if act.kind == "resize":
                return self._get_resize_decision(act.world_size)
        return NoopDecision()

    def _act_on_group(self, state: WorkerGroupState) -> Act:
        self._actuator.hear_autoscaler()
        view = self._observer.view(state.workers)
        self._reporter.note_capacity(view)
        try:
            with self._reporter.verdict():
                act = self._controller.step(view)
        except PlannerError:
            raise
        except Exception:  # noqa: BLE001
            # A bug in the controller must not end a group that trains.
            _log.exception("the elastic controller made no decision")
            return Act()
        self._actuator.order_keepers(view)
        self._actuator.do(act, state.workers)
        self._reporter.publish(view, act, self._observer.group, self._observer.hosts)
        return act
