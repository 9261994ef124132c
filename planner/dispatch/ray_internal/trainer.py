"""Ray's trainer with planner's controller and policy in place of its own."""

import signal
from collections.abc import Callable
from functools import partial

import ray
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.constants import get_env_vars_to_propagate
from ray.train.v2._internal.execution.controller import TrainController

from planner.dispatch.ray_internal import train_names as names
from planner.dispatch.ray_internal.groups import GroupFactory
from planner.dispatch.ray_internal.observer import NODE_ID_LABEL
from planner.dispatch.ray_internal.policy import Policy


class PolicyTrainController(TrainController):  # type: ignore[misc]
    """Ray's controller, which creates worker groups with its policy's factory."""

    @property
    def worker_group_cls(self) -> GroupFactory:
        """Ray calls `create` on it. In Ray, all controllers of a process share one class here."""
        return self._scaling_policy.groups  # type: ignore[no-any-return]


class ElasticTrainer(TorchTrainer):  # type: ignore[misc]
    """Ray's trainer with planner's controller and policy in place of its own."""

    def __init__(
        self,
        *arguments: object,
        policy: Policy,
        soften: Callable[[names.SignalHandler], Callable[..., None]],
        listen_to: Callable[[Callable[[], None]], None],
        **options: object,
    ) -> None:
        """A trainer for one controller.

        Args:
            arguments: for Ray's `TorchTrainer`, as `options` are.
            policy: decides when to resize. It has the trainer's `scaling_config`.
            soften: wraps Ray's SIGINT handler, which would end the workers at once.
            listen_to: receives a function that ends the controller (`planner.dispatch.controller_heartbeat`).
            options: for Ray's `TorchTrainer`.
        """
        super().__init__(*arguments, **options)
        self._policy, self._soften, self._listen_to = policy, soften, listen_to

    def _initialize_and_run_controller(self, **arguments: object) -> object:
        """Run the controller in an actor on the driver's node, and wait for it.

        Ray's method names its controller's class in its body and takes no other
        (ray/train/v2/api/data_parallel_trainer.py:267, Ray 2.60), so this repeats its few lines with ours. Ray gets
        here in the main thread, since `planner.dispatch.launch` calls `fit` there.
        """
        here = ray.get_runtime_context().get_node_id()
        # The controller blocks in its event loop, and Ray would warn of that.
        variables = {"RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0", **get_env_vars_to_propagate()}
        actor = ray.remote(num_cpus=0, label_selector={NODE_ID_LABEL: here}, runtime_env={"env_vars": variables})
        controller = actor(PolicyTrainController).remote(**{**arguments, "scaling_policy": self._policy})
        self._register_sigint_handler(controller)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())

    def _register_sigint_handler(self, controller: object) -> None:
        super()._register_sigint_handler(controller)
        self._listen_to(partial(ray.kill, controller))
        signal.signal(signal.SIGINT, self._soften(signal.getsignal(signal.SIGINT)))
