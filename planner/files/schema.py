"""The job file's JSON Schema, for editors and scripts."""

import json
from typing import Any

from planner.job import Job

SCHEMA_FILE = "job.schema.json"
"""file name in the first line of a job file"""
EDITOR_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}"
"""first line of a job file whose schema is in the same folder"""


def job_schema() -> dict[str, Any]:
    """The model's JSON Schema, with the short forms that a job file may use.

    A file that satisfies it may still be wrong: only `read_job` checks how fields depend on each other.
    """
    schema = Job.model_json_schema()
    schema["title"] = "planner job"
    # `objective: lm` stands for `objective: {kind: lm}`.
    objective = schema["properties"]["objective"]
    schema["properties"]["objective"] = {
        "anyOf": [{"enum": sorted(objective["discriminator"]["mapping"])}, {"oneOf": objective["oneOf"]}],
        "default": objective["default"],
        "description": "the loss to minimise",
    }
    # `after: runs/sft` stands for `after: {run: runs/sft}`.
    schema["properties"]["after"]["anyOf"].insert(0, {"type": "string", "minLength": 1})
    # `tracking: wandb` stands for `tracking: [{kind: wandb}]`.
    tracking = schema["properties"]["tracking"]
    trackers = tracking["items"]
    one = [{"enum": sorted(trackers["discriminator"]["mapping"])}, {"oneOf": trackers["oneOf"]}]
    schema["properties"]["tracking"] = {
        "anyOf": [*one, {"type": "array", "items": {"anyOf": one}}],
        "default": tracking["default"],
        "description": tracking["description"],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """The schema as the text of a file."""
    return json.dumps(job_schema(), indent=2) + "\n"
