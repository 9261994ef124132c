"""Ray's trainer with planner's policy instead of its own."""

import signal
from collections.abc import Callable
from functools import partial

import ray
from ray.train.torch import TorchTrainer

from planner.dispatch.keeper_census import Census
from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.policy import Policy
from planner.elastic.controller import ElasticController


class ElasticTrainer(TorchTrainer):  # type: ignore[misc]
    """Ray's trainer with planner's policy instead of its own."""

    def __init__(
        self,
        *arguments: object,
        controller: ElasticController,
        run: str,
        launch_id: str,
        warm_up: Callable[[], None],
        keep_processes: bool,
        make_census: Callable[[], Census | None],
        soften: Callable[[shapes.SignalHandler], Callable[..., None]],
        listen_to: Callable[[Callable[[], None]], None],
        **options: object,
    ) -> None:
        super().__init__(*arguments, **options)
        self._soften, self._listen_to = soften, listen_to
        self._policy = Policy(
            self.scaling_config,
            controller,
            run=run,
            launch_id=launch_id,
            warm_up=warm_up,
            keep_processes=keep_processes,
            make_census=make_census,
        )

    def _initialize_and_run_controller(self, **arguments: object) -> object:
        arguments["scaling_policy"] = self._policy
        return super()._initialize_and_run_controller(**arguments)

    def _register_sigint_handler(self, controller: object) -> None:
        super()._register_sigint_handler(controller)
        self._listen_to(partial(ray.kill, controller))
        signal.signal(signal.SIGINT, self._soften(signal.getsignal(signal.SIGINT)))
