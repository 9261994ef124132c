"""Drafts a job's tracker from the keys of the DPO repository or of HALOs, which log to wandb by default."""

from collections.abc import Mapping

from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.trackers import TrackerDraft, take_wandb_mode, wandb_is_disabled

_KEYS = ("wandb.project", "wandb.entity")


def set_trackers(
    draft: Draft, keys: KeyReader, environment: Mapping[str, str], *, title: str, debug_is_silent: bool
) -> None:
    """Sets `tracking`, unless the recipe turns wandb off.

    Args:
        draft: the job in the making.
        keys: the recipe's keys. Mistakes are added to it.
        environment: variables that the recipe's command or `--env` sets.
        title: the system's name in notes.
        debug_is_silent: whether `debug: true` turns wandb off in that system.
    """
    made = TrackerDraft(draft=draft, keys=keys, environment=environment)
    if off := _off(made, keys, debug_is_silent=debug_is_silent):
        made.say(f"tracking none: {off} turns wandb off")
        for key in _KEYS:
            made.leave(key, f"{off} turns wandb off")
        made.close()
        return
    made.add("wandb")
    if made.has("wandb.enabled"):
        made.use("wandb.enabled", "tracking: wandb")
    else:
        made.say(f"tracking wandb: wandb.enabled is true by default in {title}")
    if "wandb.project" in keys.entries:
        made.take("project", "wandb.project", "WANDB_PROJECT")
    else:
        project = keys.rules["wandb.project"].default
        made.take("project", "WANDB_PROJECT", default=project, why=f"the default of wandb.project in {title}")
    made.take("entity", "wandb.entity", "WANDB_ENTITY")
    made.take("name", "exp_name", "WANDB_NAME")
    made.take("group", "WANDB_RUN_GROUP")
    made.take("tags", "WANDB_TAGS")
    take_wandb_mode(made)
    made.say(f"the x axis of wandb: optimizer steps in planner, examples in {title}")
    made.close()


def _off(made: TrackerDraft, keys: KeyReader, *, debug_is_silent: bool) -> str:
    """The setting that turns wandb off, empty if none does."""
    if not keys.read("wandb.enabled"):
        return "wandb.enabled false"
    if debug_is_silent and keys.value("debug") is True:
        made.draft.told.add("debug")
        return "debug true"
    # wandb itself reads WANDB_MODE. Only transformers reads WANDB_DISABLED.
    return "WANDB_MODE disabled" if wandb_is_disabled(made) == "WANDB_MODE" else ""
