"""Drafts a job's trackers from the monitors of a DeepSpeed file (deepspeed/monitor/config.py)."""

from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.trackers import NO_SUCH_TRACKER, TrackerDraft

_MONITORS = {
    "wandb": ("project", "team", "group"),
    "tensorboard": ("output_path", "job_name"),
    "csv_monitor": ("output_path", "job_name"),
    "comet": ("project", "workspace", "api_key", "experiment_name", "experiment_key", "online", "mode"),
}
_NOT_CARRIED = {
    "csv_monitor": "planner writes no CSV. `{kind: jsonl}` in tracking writes a file with one JSON object per step",
    "comet": NO_SUCH_TRACKER,
}


def set_trackers(draft: Draft, keys: KeyReader) -> None:
    """Sets `tracking` to the monitors that are enabled, of the kinds that planner has."""
    made = TrackerDraft(draft=draft, keys=keys, environment={})
    for monitor, names in _MONITORS.items():
        if not any(key.startswith(f"{monitor}.") for key in keys.entries):
            continue
        is_on = keys.flag(f"{monitor}.enabled", default=False)
        if is_on and monitor not in _NOT_CARRIED:
            made.add(monitor)
            made.use(f"{monitor}.enabled", f"tracking: {monitor}")
            (_set_wandb if monitor == "wandb" else _set_tensorboard)(made, keys)
            made.say(f"the x axis of {monitor}: optimizer steps in planner, samples in DeepSpeed")
            continue
        why = _NOT_CARRIED[monitor] if is_on else f"{monitor} is not enabled"
        for name in ("enabled", *names):
            made.leave(f"{monitor}.{name}", why)
    made.close()


def _set_wandb(made: TrackerDraft, keys: KeyReader) -> None:
    del keys
    made.take("project", "wandb.project", default="deepspeed", why="the default of wandb.project in DeepSpeed")
    made.take("entity", "wandb.team")
    made.take("group", "wandb.group")


def _set_tensorboard(made: TrackerDraft, keys: KeyReader) -> None:
    """The folder is output_path/job_name. Without output_path planner's own default is the nearest."""
    path, name = (keys.scalar_text(f"tensorboard.{each}") for each in ("output_path", "job_name"))
    if path:
        made.trackers[-1]["folder"] = folder = f"{path.rstrip('/')}/{name or 'DeepSpeedJobName'}"
        made.use("tensorboard.output_path", f"tracking.tensorboard.folder: {folder}")
        if name:
            made.use("tensorboard.job_name", f"tracking.tensorboard.folder: {folder}")
    else:
        made.leave("tensorboard.job_name", "without output_path the events go to the run's folder")
