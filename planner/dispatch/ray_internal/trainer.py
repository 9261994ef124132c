"""Which trainer this Ray allows: ours, Ray's with a callback that makes its resizes graceful, or Ray's alone."""

import warnings
from collections.abc import Callable

from planner.dispatch.ray_internal import shapes
from planner.dispatch.ray_internal.contract import Tier
from planner.dispatch.ray_internal.presence import missing
from planner.elastic.controller import ElasticController

# Processes are kept only on releases that were run (docs/elastic.md).
KEEPS_PROCESSES_ON = frozenset({"2.60.0"})

# The files in `contract.CONTRACT` that our policy needs, and those that callbacks need.
_OURS = (
    "dispatch/ray_internal/policy.py",
    "dispatch/ray_internal/groups.py",
    "dispatch/ray_internal/hand_over.py",
    "dispatch/ray_internal/kept_worker.py",
    "dispatch/ray_internal/autoscaler.py",
    "dispatch/ray_internal/diagnosis.py",
    "dispatch/ray_internal/worker_progress.py",
)
_CALLBACKS = ("dispatch/ray_internal/callback.py", "dispatch/ray_internal/worker_progress.py")


def make_trainer(
    controller: ElasticController,
    *arguments: object,
    run: str,
    launch_id: str,
    warm_up: Callable[[], None],
    keep_processes: bool,
    soften: Callable[[shapes.SignalHandler], Callable[..., None]],
    listen_to: Callable[[Callable[[], None]], None],
    run_config: shapes.RunConfig,
    **options: object,
) -> shapes.Trainer:
    """The best trainer that Ray's internals allow, with a warning where that is not ours.

    `run` and `launch_id` name what is run. `warm_up` is called in newcomers while the others still train. `soften`
    stands between Ctrl-C and Ray, which ends the workers at once. `listen_to` is told how to end the controller, which
    beats from then on (`planner.dispatch.heartbeat`).
    """
    tier, why = best_trainer()
    if tier == "ours":
        from planner.dispatch.ray_internal.policy import ElasticTrainer

        ours: shapes.Trainer = ElasticTrainer(
            *arguments,
            controller=controller,
            run=run,
            launch_id=launch_id,
            warm_up=warm_up,
            keep_processes=keep_processes and can_keep_processes(),
            soften=soften,
            listen_to=listen_to,
            run_config=run_config,
            **options,
        )
        return ours
    from ray.train.torch import TorchTrainer

    if tier == "callbacks":
        from planner.dispatch.ray_internal.callback import GracefulResize

        run_config.callbacks = [*(run_config.callbacks or []), GracefulResize()]
        warnings.warn(f"every change of capacity resizes the run, worth it or not: {why}", RuntimeWarning, stacklevel=2)
    else:
        warnings.warn(f"resizes lose the steps since the last commit: {why}", RuntimeWarning, stacklevel=2)
    stock: shapes.Trainer = TorchTrainer(*arguments, run_config=run_config, **options)
    return stock


def best_trainer() -> tuple[Tier, str]:
    """The best trainer that this Ray allows, and what it lacks for a better one; empty if nothing."""
    if not (why := _first_missing(*_OURS)):
        return "ours", ""
    return ("stock", lacking) if (lacking := _first_missing(*_CALLBACKS)) else ("callbacks", why)


def _first_missing(*files: str) -> str:
    found = next(missing(*files), "")
    return found and f"Ray's internals are not those of {', '.join(sorted(KEEPS_PROCESSES_ON))} ({found})"


def can_keep_processes() -> bool:
    """Whether survivors of a resize may keep their processes."""
    import ray

    return ray.__version__ in KEEPS_PROCESSES_ON
