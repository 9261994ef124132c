"""The metrics of a run: a table of their names and units, and their values, which follow from the run's story.

`metrics_exporter.py` hands the values to Ray, which exports them to Prometheus with `ray_` in front of each name.
docs/reference/metrics.md has the table. This module is pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from planner.store.records import GenerationRecord, Record, StepRecord
from planner.story.run_story import Counts, RunStory, StoryFold
from planner.tracking.row import commit_values, eval_values, measured_values, plan_values, step_values


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric. Each of its series has the label `run`, and one label more if `label` names one."""

    name: str
    """as planner gives it to Ray, without `ray_`"""
    value: str
    """which value it is: that of a tracker's row, or of a story"""
    kind: Literal["gauge", "counter"]
    unit: str
    """in words, such as `seconds`. Empty for a number without a unit"""
    help: str
    label: str = ""


def _gauge(name: str, value: str, unit: str, text: str, label: str = "") -> Metric:
    return Metric(name=f"planner_{name}", value=value, kind="gauge", unit=unit, help=text, label=label)


def _counter(name: str, value: str, unit: str, text: str) -> Metric:
    return Metric(name=f"planner_{name}_total", value=value, kind="counter", unit=unit, help=text)


_OBJECTIVE = "planner_objective_metric"
METRICS = (
    _gauge("step", "step", "steps", "Optimizer steps done. It falls when steps were lost and are done again"),
    _gauge("total_steps", "total_steps", "steps", "Optimizer steps of the whole job"),
    _gauge("committed_step", "committed_step", "steps", "Optimizer steps in the newest durable commit"),
    _gauge("commit_timestamp_seconds", "last_commit_s", "seconds since 1970", "When the newest commit was durable"),
    _gauge("commit_seconds", "speed/commit_s", "seconds", "How long the newest commit paused training"),
    _gauge(
        "commit_write_seconds",
        "speed/commit_write_s",
        "seconds",
        "From the begin of the newest commit until it was durable",
    ),
    _gauge("workers", "batch/world_size", "workers", "World size of the group that trains. 0 while no group trains"),
    _gauge("generation", "batch/generation", "", "Number of the newest generation"),
    _gauge("global_batch_samples", "global_batch", "samples", "Samples per optimizer step, over all workers"),
    _gauge("rounds", "batch/rounds", "rounds", "Forward and backward rounds per optimizer step"),
    _gauge(
        "largest_share_samples", "batch/largest_share", "samples", "The largest share of a global batch on one worker"
    ),
    _gauge("smallest_share_samples", "batch/smallest_share", "samples", "The smallest share. 0 if a worker is idle"),
    _gauge(
        "plan_efficiency_ratio",
        "batch/efficiency",
        "0 to 1",
        "Fraction of the workers' time that computes samples, by the plan or by measured costs of samples",
    ),
    _gauge("loss", "train/loss", "", "Mean loss over the last global batch"),
    _gauge("grad_norm", "train/grad_norm", "", "Norm of the last gradient, before clipping"),
    _gauge("learning_rate", "train/lr", "", "Learning rate of the last step"),
    _gauge(
        "objective_metric", "metrics", "", "What the objective measures besides the loss, at the last step", "metric"
    ),
    _gauge("eval_loss", "eval/loss", "", "Mean loss over the held-out samples"),
    _gauge("eval_metric", "eval_metrics", "", "What the objective measures besides the held-out loss", "metric"),
    _gauge(
        "samples_per_second",
        "samples_per_s",
        "samples per second",
        "Moving average over steps. 0 while no group trains",
    ),
    _gauge(
        "tokens_per_second",
        "speed/tokens_per_s",
        "tokens per second",
        "Input tokens, without padding. 0 while no group trains",
    ),
    _gauge(
        "mfu_ratio",
        "speed/mfu",
        "0 to 1",
        "Model FLOPs utilization, if the devices' peak is known. 0 while no group trains",
    ),
    _gauge(
        "peak_memory_bytes",
        "speed/peak_memory_bytes",
        "bytes",
        "The most memory of any worker: allocated on CUDA, resident on the CPU",
    ),
    _gauge("step_seconds", "speed/step_s", "seconds", "Duration of the last step"),
    _gauge(
        "step_data_seconds", "speed/data_s", "seconds", "Part of a step: waiting for samples, as a mean over workers"
    ),
    _gauge("step_forward_seconds", "speed/forward_s", "seconds", "Part of a step: forward passes"),
    _gauge("step_backward_seconds", "speed/backward_s", "seconds", "Part of a step: backward passes"),
    _gauge("step_update_seconds", "speed/update_s", "seconds", "Part of a step: clipping and the optimizer"),
    _gauge(
        "step_communication_seconds",
        "speed/communication_s",
        "seconds",
        "Collectives of a step. They overlap with its other parts",
    ),
    _gauge("time_seconds", "times", "seconds", "Time of the whole run by its use, at the newest record", "use"),
    _counter("steps_done", "steps_done", "steps", "Steps done, those done again included"),
    _counter("steps_redone", "steps_redone", "steps", "Steps done again, because they were lost before a commit"),
    _counter("samples", "samples", "samples", "Samples of the steps done"),
    _counter("loss_tokens", "tokens", "tokens", "Loss-bearing tokens of the steps done"),
    _counter("resizes", "resizes", "resizes", "Changes of the number of workers"),
    _counter("commits", "commits", "commits", "Commits that became durable"),
)
"""all metrics, in the order of the documentation"""

_WITHOUT_A_GROUP = tuple(
    (f"planner_{name}", "") for name in ("workers", "samples_per_second", "tokens_per_second", "mfu_ratio")
)
"""series that are 0 while no group trains"""

_OF_THE_PLAN = tuple(
    (f"planner_{name}", "")
    for name in ("rounds", "largest_share_samples", "smallest_share_samples", "plan_efficiency_ratio")
)
"""series that end with a generation. The next one's plan may have none of them, or not before it is measured"""

SeriesKey = tuple[str, str]
"""a metric's name, and the value of its label (empty if it has none)"""


class RunMetrics:
    """The values of a run's metrics. Give it all records of all generations, oldest first.

    Gauges describe the whole run. Counters begin at 0 with each launch, so that their sum over launches is the run's.
    """

    def __init__(self, launch_id: str) -> None:
        self._launch_id, self._fold = launch_id, StoryFold()
        # Counters begin with a 0, so that their first event is a rise. A series without news keeps its last value.
        self._known = dict(_series({**vars(Counts()), "times": _uses(RunStory()), "batch/world_size": 0}))

    def values(self, *, is_training: bool) -> Mapping[SeriesKey, float]:
        """The value of each series. A series without a value yet is left out.

        Args:
            is_training: whether a group trains. If not, the run has no workers and no speed.
        """
        self._look()
        is_without = not (is_training and self._is_ours)
        return self._known | {key: 0.0 for key in _WITHOUT_A_GROUP if is_without and key in self._known}

    def add(self, record: Record) -> None:
        """Add one more record."""
        # Before what may end a launch or its measurements. Steps in a row need none: each has all values of the one
        # before, but for those of the objective.
        if not isinstance(record, StepRecord):
            self._look()
        elif record.metrics:
            self._known.update(((_OBJECTIVE, label), value) for label, value in record.metrics.items())
        self._fold.add(record)
        if isinstance(record, GenerationRecord):
            for key in _OF_THE_PLAN:
                self._known.pop(key, None)

    @property
    def _is_ours(self) -> bool:
        """Whether this launch wrote the newest header."""
        return self._fold.header is not None and self._fold.header.launch_id == self._launch_id

    def _look(self) -> None:
        story = self._fold.story
        self._known.update(_series(_gauges(story) | (vars(story.counts) if self._is_ours else {})))


def _series(values: Mapping[str, object]) -> Iterator[tuple[SeriesKey, float]]:
    """The series of these values."""
    for metric in METRICS:
        value = values.get(metric.value)
        if isinstance(value, Mapping):
            yield from (((metric.name, label), float(each)) for label, each in value.items())
        elif isinstance(value, int | float):
            yield (metric.name, ""), float(value)


def _gauges(story: RunStory) -> dict[str, object]:
    """What is known of a run, by the names in `METRICS`."""
    header, commit, evaluation, step = story.header, story.last_commit, story.last_eval, story.last_step
    if header is None:
        return {}
    return {
        "step": story.step,
        "total_steps": story.total_steps,
        "committed_step": story.committed_step,
        "global_batch": header.identity.global_batch,
        "samples_per_s": story.samples_per_s,
        "times": _uses(story),
        **plan_values(header, story.plan),
        **(measured_values(story.measured[-1]) if story.measured else {}),
        **({**step_values(step), "metrics": step.metrics} if step else {}),
        **({**eval_values(evaluation), "eval_metrics": evaluation.metrics} if evaluation else {}),
        **({**commit_values(commit), "last_commit_s": story.last_commit_s} if commit else {}),
    }


def _uses(story: RunStory) -> dict[str, float]:
    """Seconds by the uses of time."""
    return {name.removesuffix("_s"): seconds for name, seconds in asdict(story.times).items()}
