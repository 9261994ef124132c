"""The metrics of `planner.dispatch.run_metrics` as Ray's gauges and counters. Ray's agent on this node exports them."""

from collections.abc import Mapping
from typing import Any

from planner.dispatch.run_metrics import METRICS, Metric, SeriesKey


class RayMetrics:
    """Sets Ray's metrics for one run. Make it while connected. Ray exports them every 10 s by default."""

    def __init__(self, run: str) -> None:
        self._made = {each.name: (each, _made(each, run)) for each in METRICS}
        self._counted: dict[SeriesKey, float] = {}

    def set(self, values: Mapping[SeriesKey, float]) -> None:
        """Set all series. Set them again and again: Ray forgets a gauge that was not set for two exports."""
        for key, value in values.items():
            metric, made = self._made[key[0]]
            tags = {metric.label: _ascii(key[1])} if metric.label else None
            if metric.kind == "gauge":
                made.set(value, tags=tags)
            else:
                self._raise(key, value, made)

    def _raise(self, key: SeriesKey, value: float, counter: Any) -> None:
        before = self._counted.get(key)
        self._counted[key] = value
        if before is None and value == 0:
            counter._record(0.0)  # otherwise the series begins with its first event, which `increase` does not see
        elif value > (before or 0.0):
            counter.inc(value - (before or 0.0))


def _made(metric: Metric, run: str) -> Any:
    from ray.util.metrics import Counter, Gauge

    kind = Gauge if metric.kind == "gauge" else Counter
    labels = ("run", *filter(None, [metric.label]))
    return kind(metric.name, description=metric.help, tag_keys=labels).set_default_tags({"run": run})


def _ascii(text: str) -> str:
    """Ray takes only ASCII as a label's value."""
    return text.encode("ascii", "backslashreplace").decode()
