"""Writes a job's trackers in the options, variables and files of other systems.

wandb itself reads WANDB_ENTITY, WANDB_RUN_GROUP, WANDB_TAGS and WANDB_MODE where a system has no option for them.
"""

import re
import shlex
from collections.abc import Mapping

from planner.job import Job
from planner.job.tracking import MlflowTracking, TensorboardTracking, TrackioTracking, WandbTracking
from planner.recipes.hydra.grammar import is_plain_text
from planner.recipes.rendering import Rendering

UNNAMED = "exp_name=NAME"
"""the override for a name that the user has yet to write"""
# Hydra quotes with either sign. `$` begins an interpolation, and a space with `=` would look like a second override.
_BARE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:-]*")
_NO_HYDRA = re.compile(r"[\\$\x00-\x1f]|'.*\"|\".*'|\s\S*=")


def trackers_to_trl(rendering: Rendering) -> None:
    """Write the job's trackers as `--report_to`, other options and variables.

    The command line takes one name. Several are written into a file for `--config`. transformers knows one name for
    all trackers (`--run_name`), so other names are listed.
    """
    job, kinds = rendering.job, []
    wandb, tensorboard, mlflow, trackio = _wandb(job), _tensorboard(job), _mlflow(job), _trackio(job)
    if wandb:
        kinds.append("wandb")
        rendering.environment["WANDB_PROJECT"] = wandb.project or job.name
        _set(rendering, {"WANDB_ENTITY": wandb.entity})
        _wandb_variables(rendering, wandb)
        rendering.write("tracking.wandb.kind tracking.wandb.project tracking.wandb.entity")
    if tensorboard:
        kinds.append("tensorboard")
        rendering.write("tracking.tensorboard.kind tracking.tensorboard.folder")
        if tensorboard.folder:
            rendering.environment["TENSORBOARD_LOGGING_DIR"] = tensorboard.folder
            folder = f"--logging_dir {shlex.quote(tensorboard.folder)}"
            rendering.remark(f"TENSORBOARD_LOGGING_DIR is for transformers 5, for transformers 4 write {folder}")
    if mlflow:
        kinds.append("mlflow")
        rendering.environment["MLFLOW_EXPERIMENT_NAME"] = mlflow.experiment or job.name
        _set(rendering, {"MLFLOW_TRACKING_URI": mlflow.uri})
        rendering.write("tracking.mlflow.kind tracking.mlflow.uri tracking.mlflow.experiment")
    if trackio:
        kinds.append("trackio")
        space = [f"--trackio_space_id={shlex.quote(trackio.space)}"] if trackio.space else []
        project = f"--project={shlex.quote(trackio.project or job.name)}"
        rendering.write("tracking.trackio.kind tracking.trackio.project tracking.trackio.space", project, *space)
        if not space:
            rendering.remark("tracking.trackio.space: transformers 4.57 sends to a public Space named trackio")
    _report_to(rendering, kinds)
    named = {each.kind: each.name or job.name for each in (wandb, mlflow, trackio) if each}
    if named:
        name = next(iter(named.values()))
        same = [f"tracking.{kind}.name" for kind, its in named.items() if its == name]
        rendering.write(" ".join(same), f"--run_name={shlex.quote(name)}")
    rendering.leave("tracking", "TRL has report_to for one tracker of a kind, with one run_name for all")


def _report_to(rendering: Rendering, kinds: list[str]) -> None:
    if len(kinds) > 1:
        rendering.file += f"report_to: [{', '.join(kinds)}]\n"
    else:
        rendering.write("", f"--report_to {kinds[0] if kinds else 'none'}")


def trackers_to_hydra(rendering: Rendering, sign: str) -> None:
    """Write the job's tracker as `wandb.*` of the DPO repository or of HALOs. `sign` is that of their overrides.

    Both have only wandb, and name the run by `exp_name`, which `experiment` writes.
    """
    wandb = _wandb(rendering.job)
    if wandb is None:
        rendering.write("", f"{sign}wandb.enabled=false")
    else:
        rendering.write("tracking.wandb.kind", f"{sign}wandb.enabled=true")
        for name, value in (("project", wandb.project or rendering.job.name), ("entity", wandb.entity)):
            if not _NO_HYDRA.search(value):
                typed = [_override(f"{sign}wandb.{name}", value)] if value else []
                rendering.write(f"tracking.wandb.{name}", *typed)
        if experiment(rendering.job) != UNNAMED:
            rendering.write("tracking.wandb.name")
        _wandb_variables(rendering, wandb)
        rendering.leave("tracking.wandb", "write it in quotes that Hydra reads")
    rendering.leave("tracking", "that system logs to wandb only, once")


def experiment(job: Job) -> str:
    """The override of `exp_name`: the name of the run in wandb, or a placeholder if the job has no such tracker."""
    wandb = _wandb(job)
    name = wandb and (wandb.name or job.name)
    return _override("exp_name", name) if name and not _NO_HYDRA.search(name) else UNNAMED


def trackers_to_torchtitan(rendering: Rendering) -> None:
    """Write the job's trackers as options of torchtitan's metrics, and as its variables of wandb."""
    job = rendering.job
    if tensorboard := _tensorboard(job):
        folder = [f"--metrics.save_tb_folder={shlex.quote(tensorboard.folder)}"] if tensorboard.folder else []
        names = "tracking.tensorboard.kind tracking.tensorboard.folder"
        rendering.write(names, "--metrics.enable_tensorboard", *folder)
    if wandb := _wandb(job):
        rendering.environment["WANDB_PROJECT"] = wandb.project or job.name
        rendering.environment["WANDB_RUN_NAME"] = wandb.name or job.name
        _set(rendering, {"WANDB_TEAM": wandb.entity})
        _wandb_variables(rendering, wandb)
        rendering.write("tracking.wandb", "--metrics.enable_wandb")
    rendering.leave("tracking", "torchtitan logs to TensorBoard and wandb only, once each")


def _wandb_variables(rendering: Rendering, wandb: WandbTracking) -> None:
    """Sets the variables of those values that no system has an option for."""
    _set(rendering, {"WANDB_RUN_GROUP": wandb.group, "WANDB_MODE": "offline" if wandb.mode == "offline" else ""})
    rendering.write("tracking.wandb.group tracking.wandb.mode")
    if not any("," in tag or tag != tag.strip() for tag in wandb.tags):
        _set(rendering, {"WANDB_TAGS": ",".join(wandb.tags)})
        rendering.write("tracking.wandb.tags")
    rendering.leave("tracking.wandb.tags", "WANDB_TAGS separates tags by commas and cuts spaces around them")


def _set(rendering: Rendering, variables: Mapping[str, str]) -> None:
    """Sets the variables that are not empty."""
    rendering.environment |= {name: value for name, value in variables.items() if value}


def _override(key: str, value: str) -> str:
    """`key=value` as one word of a shell, with Hydra's quotes where the value would not be a text without them."""
    if not _BARE.fullmatch(value) or not is_plain_text(value):
        value = f"'{value}'" if '"' in value else f'"{value}"'
    return shlex.quote(f"{key}={value}")


# The first tracker of each kind, None if the job has none. No other system logs to two of a kind.


def _wandb(job: Job) -> WandbTracking | None:
    return next((each for each in job.tracking if isinstance(each, WandbTracking)), None)


def _tensorboard(job: Job) -> TensorboardTracking | None:
    return next((each for each in job.tracking if isinstance(each, TensorboardTracking)), None)


def _mlflow(job: Job) -> MlflowTracking | None:
    return next((each for each in job.tracking if isinstance(each, MlflowTracking)), None)


def _trackio(job: Job) -> TrackioTracking | None:
    return next((each for each in job.tracking if isinstance(each, TrackioTracking)), None)
