"""Drafts a job's trackers from the keys of a recipe on the Trainer and the environment variables of its command.

transformers 4 reports to all installed trackers if `report_to` is missing, transformers 5 to none. A recipe does not
say which of them it is for. Read in transformers 4.53.3, 4.57.3 and 5.23.0 (training_args.py, integration_utils.py).
"""

import re
from collections.abc import Mapping

from planner.base.plugins import installed
from planner.files.messages import cut
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.scalars import Unresolved
from planner.recipes.trackers import GROUP, NO_SUCH_TRACKER, TrackerDraft, kind_of, take_wandb_mode, wandb_is_disabled

# Keys that belong to one tracker. Where `report_to` does not name the trackers, they do.
_KEYS = {
    "wandb_project": "wandb",
    "wandb_entity": "wandb",
    "wandb_run_group": "wandb",
    "logging_dir": "tensorboard",
    "trackio_space_id": "trackio",
}
_DEFAULT_PROJECT = "huggingface"
# `http://user:password@host`
_PASSWORD = re.compile(r"\w+://[^/]*@")
_PROJECT_OF_TRANSFORMERS = "transformers' default"


def set_trackers(draft: Draft, keys: KeyReader, environment: Mapping[str, str]) -> None:
    """Sets `tracking`. `environment` has the variables that the recipe's command or `--env` sets."""
    made = TrackerDraft(draft=draft, keys=keys, environment=environment)
    for kind in _kinds(made, keys):
        if kind == "wandb" and (variable := wandb_is_disabled(made)):
            draft.drop("report_to", f"wandb: {variable} turns it off")
        elif kind in _SETTERS:
            made.add(kind)
            _SETTERS[kind](made)
        elif kind in installed(GROUP):
            made.add(kind)
            draft.ask(f"tracking.{kind}: its package is not planner's, so write the settings that it needs")
        else:
            draft.drop("report_to", f"{cut(kind)}: {NO_SUCH_TRACKER}")
    for key, kind in {**_KEYS, "project": "trackio"}.items():
        if kind not in made.kinds:
            made.leave(key, f"only {kind} reads it, and the job has no such tracker")
    made.close()


def _kinds(made: TrackerDraft, keys: KeyReader) -> list[str]:
    """The names of the recipe's trackers, in their order. Notes how they were chosen."""
    names, key = _named(keys), keys.shown("report_to")
    told = _told_by_settings(made)
    if names is None:
        given = keys.entries.get("report_to")
        if given is not None and isinstance(given.value, Unresolved):
            made.draft.drop("report_to", f"{cut(given.value.text)} ({given.value.why}): write tracking in the job")
        elif told:
            made.say(f"tracking {', '.join(told)}: {key} is not set, but {', '.join(told.values())}")
        else:
            made.say("tracking none: report_to is not set (all installed trackers in transformers 4, none in 5)")
        return list(told)
    if names == ["all"]:
        kinds = list(dict.fromkeys(["tensorboard", *told]))
        made.use("report_to", f"tracking: {', '.join(kinds)}")
        made.draft.ask(
            f"tracking: report_to all means all trackers that are installed. The job has {' and '.join(kinds)} (files "
            "in the run's folder, and those for which the recipe has settings). Add the others that you use"
        )
        return kinds
    if names in ([], ["none"]):
        made.say(f"tracking none: {key} {'none' if names else 'is empty'}", "report_to")
        return []
    if known := [name for name in names if name in _SETTERS or name in installed(GROUP)]:
        made.use("report_to", f"tracking: {', '.join(known)}")
    return names


def _named(keys: KeyReader) -> list[str] | None:
    """The names in `report_to` without repetitions, None if it is missing or unknown."""
    value = keys.value("report_to")
    if value is None:
        return None
    return list(dict.fromkeys(str(each).strip() for each in (value if isinstance(value, list) else [value])))


def _told_by_settings(made: TrackerDraft) -> dict[str, str]:
    """The trackers that the recipe has settings for, and by which key or variable."""
    variables = {name: kind_of(name) for name in ("WANDB_PROJECT", "WANDB_ENTITY", "MLFLOW_TRACKING_URI")}
    variables |= {"MLFLOW_EXPERIMENT_NAME": "mlflow", "TRACKIO_SPACE_ID": "trackio"}
    found: dict[str, str] = {}
    for name, kind in {**_KEYS, **variables, "TENSORBOARD_LOGGING_DIR": "tensorboard"}.items():
        if made.has(name) and not (kind == "wandb" and wandb_is_disabled(made)):
            found.setdefault(kind, f"{name} is")
    return found


def _set_wandb(made: TrackerDraft) -> None:
    why = f"{_PROJECT_OF_TRANSFORMERS} where WANDB_PROJECT is not set (--env WANDB_PROJECT=NAME)"
    made.take("project", "wandb_project", "WANDB_PROJECT", default=_DEFAULT_PROJECT, why=why)
    made.take("entity", "wandb_entity", "WANDB_ENTITY")
    made.take("group", "wandb_run_group", "WANDB_RUN_GROUP")
    made.take("name", "run_name", "WANDB_NAME")
    made.take("tags", "WANDB_TAGS")
    take_wandb_mode(made)


def _set_tensorboard(made: TrackerDraft) -> None:
    made.take("folder", "logging_dir", "TENSORBOARD_LOGGING_DIR")


def _set_mlflow(made: TrackerDraft) -> None:
    if _PASSWORD.match(made.variable("MLFLOW_TRACKING_URI")):
        made.leave("MLFLOW_TRACKING_URI", "it has a password, so set it where you start the run")
    else:
        made.take("uri", "MLFLOW_TRACKING_URI")
    made.take("experiment", "MLFLOW_EXPERIMENT_NAME", default="Default", why="MLflow's default")
    made.take("name", "run_name")


def _set_trackio(made: TrackerDraft) -> None:
    made.take("project", "project", default=_DEFAULT_PROJECT, why=_PROJECT_OF_TRANSFORMERS)
    made.take("name", "run_name")
    if made.has("trackio_space_id") or made.has("TRACKIO_SPACE_ID"):
        made.take("space", "trackio_space_id", "TRACKIO_SPACE_ID")
    else:
        made.say(
            "tracking.trackio.space empty, a local database: trackio_space_id is not set. transformers 4.57 sends to a "
            "public Space named trackio then, transformers 5 to none"
        )


_SETTERS = {"wandb": _set_wandb, "tensorboard": _set_tensorboard, "mlflow": _set_mlflow, "trackio": _set_trackio}
