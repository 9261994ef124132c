"""MLflow."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from planner.errors import TrackerUnavailable
from planner.job.tracking import MlflowTracking
from planner.tracking.row import Row
from planner.tracking.tracker import TrackedRun

_RUN_TAG = "planner.run_id"
# Limits of the server's interface, per request.
_MOST_METRICS, _MOST_PARAMS, _MOST_PARAM_CHARS, _MOST_NAME_CHARS = 1000, 100, 6000, 250
# planner tries again by itself, so a request that fails should say so soon.
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}


class MlflowRun:
    """One run of MLflow. Its server gives it an id. A tag of the run has planner's own."""

    def __init__(self, section: MlflowTracking, run: TrackedRun, uri: str) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        self._has: dict[str, int] = {}
        self.tracker_id = run.tracker_id or self._found(section.experiment or run.name, run)
        if self.tracker_id:
            self._client.update_run(self.tracker_id, status="RUNNING")
            metrics = self._client.get_run(self.tracker_id).data._metric_objs  # noqa: SLF001 `metrics` has no steps
            self._has = {metric.key: int(metric.step) for metric in metrics}
        else:
            self.tracker_id = self._made(section.name or run.name, run)

    def _found(self, experiment: str, run: TrackedRun) -> str:
        """The id of the run in an experiment, or empty. The experiment is made if it does not exist."""
        known = self._client.get_experiment_by_name(experiment)
        self._place = known.experiment_id if known else self._client.create_experiment(experiment)
        runs = self._client.search_runs([self._place], f"tags.`{_RUN_TAG}` = '{run.run_id}'", max_results=1)
        return str(runs[0].info.run_id) if runs else ""

    def _made(self, name: str, run: TrackedRun) -> str:
        made = self._client.create_run(self._place, tags={_RUN_TAG: run.run_id}, run_name=name)
        self._log_params(str(made.info.run_id), run.config)
        return str(made.info.run_id)

    def _log_params(self, run_id: str, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = (
            Param(allowed_name(key), "" if value is None else str(value)[:_MOST_PARAM_CHARS])
            for key, value in config.items()
        )
        while some := list(islice(params, _MOST_PARAMS)):
            self._client.log_batch(run_id, params=some)

    def last_step(self) -> int:
        """The highest step that has a loss, or -1. `log` leaves out what the server has of later ones."""
        return max((self._has.get(name, -1) for name in ("train/loss", "eval/loss")), default=-1)

    def log(self, rows: Sequence[Row]) -> None:
        """Send the rows in requests of up to 1,000 values."""
        from mlflow.entities import Metric

        metrics = (Metric(name, value, int(1000 * row.time_s), row.step) for row, name, value in self._fresh(rows))
        while some := list(islice(metrics, _MOST_METRICS)):
            self._client.log_batch(self.tracker_id, metrics=some)
            self._has.update((metric.key, metric.step) for metric in some)

    def _fresh(self, rows: Sequence[Row]) -> Iterator[tuple[Row, str, float]]:
        """The values that the server lacks. A loss comes last, because it shows that its row is complete."""
        for row in rows:
            for name in sorted(row.values, key=lambda name: (name in {"train/loss", "eval/loss"}, name)):
                if row.step > self._has.get(known := allowed_name(name), -1):
                    yield row, known, row.values[name]

    def live(self, values: Mapping[str, float]) -> None:
        """Replace the tags with these names."""
        for name, value in values.items():
            self._client.set_tag(self.tracker_id, name.replace("/", "."), f"{value:g}")

    def close(self) -> None:
        """Say that the run has ended. It may be continued."""
        self._client.set_terminated(self.tracker_id)


def allowed_name(name: str) -> str:
    """A name that MLflow takes: of letters, digits and `_-. :/`, and a path that stays where it is."""
    words = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join(word if word.strip(".") else "_" for word in words)[:_MOST_NAME_CHARS]


def check(section: MlflowTracking, url: str) -> None:
    """Check that a server is named.

    Raises:
        TrackerUnavailable: neither the section nor the environment names one.
    """
    del url
    if not _uri(section):
        raise TrackerUnavailable(
            "tracking: mlflow does not know its server. Write tracking.uri, or set the variable MLFLOW_TRACKING_URI"
        )


def _uri(section: MlflowTracking) -> str:
    return section.uri or os.environ.get("MLFLOW_TRACKING_URI", "")


def open_tracker(section: MlflowTracking, run: TrackedRun) -> MlflowRun:
    """Open or continue the run of MLflow.

    Raises:
        mlflow.exceptions.MlflowException: the server does not answer, or refuses.
    """
    for name, value in _REQUESTS.items():
        os.environ.setdefault(name, value)
    uri = _uri(section)
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the user asks for a folder
    return MlflowRun(section, run, uri)
