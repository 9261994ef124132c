"""Chooses the best trainer for this Ray: planner's policy, Ray's policy with our callback, or Ray's policy alone."""

import warnings
from collections.abc import Callable

from planner.dispatch.keeper_census import Census
from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.compatibility import missing
from planner.dispatch.ray_internal.private_api import Tier
from planner.elastic.controller import ElasticController

# Processes are kept only on Ray versions that were tested (docs/elastic.md).
KEEPS_PROCESSES_ON = frozenset({"2.60.0"})

# The files in `contract.CONTRACT` that our policy needs. Below: those that the callback needs.
_OURS = (
    "dispatch/ray_internal/policy.py",
    "dispatch/ray_internal/elastic_trainer.py",
    "dispatch/ray_internal/groups.py",
    "dispatch/ray_internal/hand_over.py",
    "dispatch/ray_internal/kept_worker.py",
    "dispatch/ray_internal/autoscaler.py",
    "dispatch/ray_internal/diagnosis.py",
    "dispatch/ray_internal/worker_progress.py",
)
_CALLBACKS = ("dispatch/ray_internal/fallback_callback.py", "dispatch/ray_internal/worker_progress.py")


def make_trainer(
    controller: ElasticController,
    *arguments: object,
    run: str,
    launch_id: str,
    warm_up: Callable[[], None],
    keep_processes: bool,
    make_census: Callable[[], Census | None],
    soften: Callable[[shapes.SignalHandler], Callable[..., None]],
    listen_to: Callable[[Callable[[], None]], None],
    run_config: shapes.RunConfig,
    **options: object,
) -> shapes.Trainer:
    """The best trainer that this Ray allows. Warns if it does not use planner's policy.

    Args:
        controller: decides when to resize.
        arguments: for Ray's `TorchTrainer`, as `options` are.
        run: URL of the run's folder.
        launch_id: id of the launch.
        warm_up: called in newcomers while the group still trains.
        keep_processes: whether surviving workers keep their processes at a resize.
        make_census: called in the controller's process. Returns what looks after the launch's keepers.
        soften: wraps Ray's SIGINT handler, which would end the workers at once.
        listen_to: receives a function that ends the controller (`planner.dispatch.controller_heartbeat`).
        run_config: Ray's `RunConfig`.
        options: for Ray's `TorchTrainer`.
    """
    tier, reason = best_trainer()
    if tier == "ours":
        from planner.dispatch.ray_internal.elastic_trainer import ElasticTrainer

        ours: shapes.Trainer = ElasticTrainer(
            *arguments,
            controller=controller,
            run=run,
            launch_id=launch_id,
            warm_up=warm_up,
            keep_processes=keep_processes and can_keep_processes(),
            make_census=make_census,
            soften=soften,
            listen_to=listen_to,
            run_config=run_config,
            **options,
        )
        return ours
    from ray.train.torch import TorchTrainer

    if tier == "callbacks":
        from planner.dispatch.ray_internal.fallback_callback import CommitBeforeResize

        run_config.callbacks = [*(run_config.callbacks or []), CommitBeforeResize()]
        text = f"every change of capacity resizes the run, even if that does not pay: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    else:
        warnings.warn(f"resizes lose the steps since the last commit: {reason}", RuntimeWarning, stacklevel=2)
    stock: shapes.Trainer = TorchTrainer(*arguments, run_config=run_config, **options)
    return stock


def best_trainer() -> tuple[Tier, str]:
    """The best trainer that this Ray allows, and which name a better one needs (empty for our own)."""
    if not (reason := _first_missing(*_OURS)):
        return "ours", ""
    return ("stock", lacking) if (lacking := _first_missing(*_CALLBACKS)) else ("callbacks", reason)


def _first_missing(*files: str) -> str:
    """A text about the first name that these files use and this Ray lacks. Empty if there is none."""
    found = next(missing(*files), "")
    return found and f"Ray's internals are not those of {', '.join(sorted(KEEPS_PROCESSES_ON))} ({found})"


def can_keep_processes() -> bool:
    """Whether surviving workers may keep their processes at a resize on this Ray version."""
    import ray

    return ray.__version__ in KEEPS_PROCESSES_ON
