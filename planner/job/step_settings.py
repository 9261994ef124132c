"""The settings of a job that the time of its steps depends on, so that measured times are not used for another job."""

from typing import Any

from planner.job.job import Job

Settings = dict[str, str | int | float | bool | None]

_SECTIONS = ("model.", "data.kind", "objective.kind", "train.", "batch.equality", "workers.gpus")
# Settings of these sections that do not change what a sample costs, or whose change is told and not refused.
_FREE = (
    "model.chat_template",
    "model.dropout",
    "model.path",
    "model.revision",
    "train.clip_norm",
    "train.epochs",
    "train.examples",
    "train.non_finite",
    "train.optimizer.",
    "train.schedule.",
    "train.seed",
    "train.steps",
)
_PLACES = ("model.path", "model.revision", "data.path")


def step_settings(job: Job) -> Settings:
    """Dotted key -> value of the settings that decide what a sample costs, and `train.optimizer.kind`."""
    flat = _flat(job.model_dump(mode="json", by_alias=True))
    chosen = {key: value for key, value in flat.items() if key.startswith(_SECTIONS) and not key.startswith(_FREE)}
    return {
        **chosen,
        "train.optimizer.kind": job.train.optimizer.kind,
        "batch.by_length": job.batch.max_tokens is not None,
    }


def place_settings(job: Job) -> Settings:
    """Dotted key -> value of the settings that name files. Equal files may have other paths elsewhere."""
    flat = _flat(job.model_dump(mode="json", by_alias=True))
    return {key: value for key, value in flat.items() if key in _PLACES}


def _flat(value: dict[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(_flat(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, item)) if isinstance(item, list | tuple) else item
    return flat
