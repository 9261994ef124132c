"""What each tracker's own files say: series -> [(step, value)], in the order in which they were written."""

import json
import os
import sqlite3
from collections import defaultdict
from pathlib import Path

KINDS = ("jsonl", "tensorboard", "wandb", "mlflow", "trackio")


def trackers(run):
    """The job's section for all five, offline, with their files in the run's folder."""
    return [
        "jsonl",
        "tensorboard",
        {"kind": "wandb", "mode": "offline"},
        {"kind": "mlflow", "uri": f"{run}/mlruns"},
        "trackio",
    ]


def offline(run):
    """The environment in which trackio writes to the run's folder too, and no library calls home."""
    return {
        **os.environ,
        "TRACKIO_DIR": f"{run}/trackio",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_ERROR_REPORTING": "false",
    }


def series(kind, run):
    return {"jsonl": jsonl, "tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow, "trackio": trackio}[kind](
        Path(run)
    )


def jsonl(run):
    found = defaultdict(list)
    for line in (run / "tracking.jsonl").read_text().splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if "/" in name:
                found[name].append((row["step"], value))
    return found


def tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wandb(run):
    from wandb.proto import wandb_internal_pb2

    from planner.tracking.wandb import _records

    found = defaultdict(list)
    for file in sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.parent.name):
        for content in _records(file):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            for item in record.history.item:
                name = item.key or ".".join(item.nested_key)
                if "/" in name:
                    found[name].append((record.history.step.num, json.loads(item.value_json)))
    return found


def mlflow(run):
    """The lines of the file store as they were written: timestamp, value, step."""
    found = {}
    for file in (run / "mlruns").glob("*/*/metrics/**/*"):
        if file.is_file():
            words = [line.split() for line in file.read_text().splitlines()]
            name = str(file).partition("/metrics/")[2]
            found[name] = [(int(step), float(value)) for _, value, step, *_ in words]
    return found


def trackio(run):
    (file,) = (run / "trackio").glob("*.db")
    found = defaultdict(list)
    with sqlite3.connect(file) as database:
        for step, metrics in database.execute("SELECT step, metrics FROM metrics ORDER BY id"):
            for name, value in json.loads(metrics).items():
                found[name].append((step, value))
    return found
