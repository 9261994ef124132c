"""Ray's metrics endpoint, scraped by HTTP: every series that the documentation names, with the ledger's values."""

import json
import urllib.error
import urllib.request
from itertools import pairwise

import pytest
from autoscaler_cluster import AutoscalerCluster
from events import EVENT_S, wait_for
from live_runs import make_job, run_of
from made_up_records import commit, header, measurement, step
from spot_trace import Trace
from test_autoscaler import driven

from planner.dispatch.metrics_exporter import MetricsExporter
from planner.dispatch.run_metrics import METRICS
from planner.job import Job
from planner.provenance.run_times import RunClock
from planner.store.follow import WholeLedger
from planner.store.ledger import LedgerWriter
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    GenerationRecord,
    MeasurementRecord,
    StepRecord,
)
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.ray

# What Ray adds to the labels, or the exporter of its agent.
_RAYS = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}
# Not the value of one record, or 0 while no group trains.
_NOT_EXACT = {"samples_per_second", "tokens_per_second", "mfu_ratio", "commit_timestamp_seconds", "workers"}
_PARTS = ("data", "forward", "backward", "update", "communication")


class Endpoint:
    """The endpoints of a cluster's nodes, and what the ledger of a run has."""

    def __init__(self, run, targets, name="test"):
        self._follower, self._targets, self._name = WholeLedger(run), targets, name
        self.records = []
        self._shown = 0
        self._counters = {}
        self.types = {}

    def scrape(self):
        """`name` or `name/label` -> value, of all series of this run."""
        from prometheus_client.parser import text_string_to_metric_families

        found = {}
        for target in self._targets():
            for family in text_string_to_metric_families(text_of(target)):
                for sample in family.samples if family.name.startswith("ray_planner_") else ():
                    labels = {key: value for key, value in sample.labels.items() if not key.startswith("otel_")}
                    assert labels.keys() >= _RAYS
                    assert labels.pop("run") == self._name
                    rest = [value for key, value in labels.items() if key not in _RAYS]
                    key = "/".join([sample.name.removeprefix("ray_planner_"), *rest])
                    assert key not in found
                    found[key] = sample.value
                    self.types[sample.name.removeprefix("ray_")] = family.type
        counters = {key: value for key, value in found.items() if key.endswith("_total")}
        assert all(counters.get(key, value) >= value for key, value in self._counters.items())
        self._counters |= counters
        return found

    def await_scrape(self, fits):
        """A scrape that fits."""
        seen = {}

        def is_there():
            nonlocal seen
            return fits(seen := self.scrape())

        wait_for(is_there, lambda: seen)
        self._hear()
        return seen

    def _hear(self):
        while records := [record for _, record in self._follower.new_records()]:
            self.records += records

    def await_moment(self, fits):
        """A scrape that fits, and agrees with the ledger at one moment between the last such scrape and now."""
        seen = {}

        def is_there():
            nonlocal seen
            seen = self.scrape()
            self._hear()
            counts = range(self._shown, len(self.records) + 1) if fits(seen) else ()
            found = next((count for count in counts if agrees(seen, expected(self.records[:count]))), None)
            self._shown = self._shown if found is None else found
            return found is not None

        wait_for(is_there, lambda: difference(seen, self.records))
        return seen


def text_of(target):
    """What an endpoint says. Nothing if a node is just coming or going: Prometheus would take that target for down."""
    try:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=EVENT_S) as answer:
            return answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return ""


def expected(records):
    """What a ledger with these records means, each value computed in the plainest way."""
    headers, steps = of_kind(records, GenerationRecord), of_kind(records, StepRecord)
    commits, evaluations = of_kind(records, CommitRecord), of_kind(records, EvalRecord)
    found = {
        "steps_done_total": len(steps),
        "steps_redone_total": len(steps) - len({each.step for each in steps}),
        "samples_total": sum(each.samples for each in steps),
        "loss_tokens_total": sum(each.tokens for each in steps),
        "resizes_total": sum(one.world_size != other.world_size for one, other in pairwise(headers)),
        "commits_total": len(commits),
    }
    if headers:
        last, size = headers[-1], headers[-1].world_size
        newest = [each for each in records if isinstance(each, (CommitRecord, GenerationRecord))][-1]
        current = [each for each in records if isinstance(each, (StepRecord, GenerationRecord))][-1]
        found |= {
            "step": current.step + isinstance(current, StepRecord),
            "total_steps": last.total_steps,
            "committed_step": newest.step,
            "generation": last.generation,
            "global_batch_samples": 4,
            # Of 4 samples, one after another.
            "rounds": 4 / size,
            "largest_share_samples": 4 / size,
            "smallest_share_samples": 4 / size,
            "plan_efficiency_ratio": 1.0,
        }
    if commits:
        found["commit_seconds"] = commits[-1].seconds
        if writes := [each.write_s for each in commits if each.write_s]:
            found["commit_write_seconds"] = writes[-1]
    if steps:
        last = steps[-1]
        found |= {"loss": last.loss, "grad_norm": last.grad_norm, "learning_rate": last.lr}
        found |= {"step_seconds": last.seconds}
        found |= {f"objective_metric/{name}": value for each in steps for name, value in each.metrics.items()}
    if measurements := of_kind(records, MeasurementRecord):
        last = measurements[-1]
        found |= {f"step_{part}_seconds": getattr(last, f"{part}_s") / last.num_steps for part in _PARTS}
        if peaks := [each.peak_memory_bytes for each in measurements if each.peak_memory_bytes]:
            found["peak_memory_bytes"] = peaks[-1]
    if evaluations:
        found |= {"eval_loss": evaluations[-1].loss}
        found |= {f"eval_metric/{name}": value for each in evaluations for name, value in each.metrics.items()}
    clock = RunClock()
    for each in records:
        clock.add(each)
    times = vars(clock.times)
    return found | {f"time_seconds/{name.removesuffix('_s')}": seconds for name, seconds in times.items()}


def of_kind(records, kind):
    return [each for each in records if isinstance(each, kind)]


def exact(seen):
    return {key: value for key, value in seen.items() if key not in _NOT_EXACT}


def agrees(seen, wanted):
    return exact(seen) == pytest.approx(wanted, rel=1e-9, abs=1e-6)


def difference(seen, records):
    """What of a scrape is not the ledger's at its end."""
    wanted, found = expected(records), exact(seen)
    keys = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
    return {key: (found.get(key), wanted.get(key)) for key in keys}, seen.get("workers")


def names(seen):
    return {f"planner_{key.partition('/')[0]}" for key in seen}


def preferences(tmp_path):
    """A job whose objective has metrics: 4 samples a step, each by itself, on at most two workers."""
    rows = [{"prompt": f"p{n}", "chosen": "good" * (1 + n % 3), "rejected": "bad" * (1 + n % 2)} for n in range(90)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = make_job(tmp_path, steps=1_000_000, most=2).model_dump(mode="json", by_alias=True, exclude_none=True)
    job |= {
        "data": {"kind": "pairs", "path": str(tmp_path / "pairs.jsonl")},
        "objective": {"kind": "dpo"},
        "batch": {"global": 4, "max_micro": 1},
        "eval": {"samples": 5, "every": 15},
    }
    job["checkpoint"]["every"] = 10
    return Job.model_validate(job)


def targets_of(cluster):
    """As Prometheus finds them: by the file that Ray's head writes."""
    files = sorted(cluster.home.glob("ray/session_2*/**/prom_metrics_service_discovery.json"))
    return [target for file in files for entry in json.loads(file.read_text()) for target in entry["targets"]]


@pytest.mark.slow  # `make trackers` has it; CI reads the endpoint with a ledger that was made up, and takes nodes away
def test_every_series_is_there_with_the_ledgers_values_while_a_run_resizes(tmp_path):
    """Two workers, then a node is taken: one. All values are those of one moment of the ledger, and counters only rise.

    When the driver has ended, the counters say all that it has done, and the gauges go.
    """
    job = preferences(tmp_path)
    trace = Trace(times_s=(0.0, 1.0), counts=(2, 1))
    calm = {"notice_s": 300.0, "quick_health_checks": False, "environment": {"RAY_metrics_report_interval_ms": "1000"}}
    with AutoscalerCluster(max_nodes=2, available=trace, **calm) as cluster:
        endpoint = Endpoint(run_of(job), lambda: targets_of(cluster))
        with driven(job, tmp_path, cluster):
            endpoint.await_moment(lambda seen: seen.get("workers") == 0)
            before = endpoint.await_moment(lambda seen: seen.get("workers") == 2 and seen["commits_total"] > 1)
            cluster.begin()
            after = endpoint.await_moment(lambda seen: seen.get("workers") == 1 and seen["step"] > before["step"] + 20)
        left = endpoint.await_scrape(lambda seen: seen and all(key.endswith("_total") for key in seen))
    assert names(before) == names(after) == {each.name for each in METRICS} - unknown(endpoint.records)
    assert endpoint.types.items() <= {each.name: each.kind for each in METRICS}.items()
    assert after["resizes_total"] == before["resizes_total"] + 1
    for seen, size in ((before, 2), (after, 1)):
        rates = rates_at(endpoint.records, size)
        assert min(rates) <= seen["samples_per_second"] <= max(rates)
        measured = of_kind(endpoint.records, MeasurementRecord)
        assert seen.get("tokens_per_second", 0) in {0, *(each.tokens_per_s for each in measured)}
        assert seen.get("mfu_ratio", 0) in {0, *(each.mfu for each in measured)}
    newest = [run_of(job).manifest(name).time_s for name in run_of(job).commits()]
    assert before["commit_timestamp_seconds"] < after["commit_timestamp_seconds"] < max(newest) + 60
    assert before["commit_timestamp_seconds"] == pytest.approx(min(newest), abs=EVENT_S)
    assert left == {key: value for key, value in expected(endpoint.records).items() if key.endswith("_total")}


@pytest.mark.usefixtures("cluster")
def test_a_local_cluster_exports_every_series_there_is(tmp_path):
    """From a ledger that was made up, with a record of each kind, at the endpoint of the driver's own node."""
    import ray

    run = RunFolder(Storage(str(tmp_path / "run")))
    run.claim_generation({})
    ledger = LedgerWriter(run.storage, header(1, world_size=2, launch="theirs"), NO_HEAD)
    evaluation = EvalRecord(step=1, samples=5, tokens=50, loss=2.5, metrics={"margin": 0.125}, seconds=1.0)
    written = commit(1).model_copy(update={"write_s": 2.0})
    for record in (step(0, loss=0.5, margin=0.25), evaluation, written, measurement(), step(1, accuracy=0.75)):
        ledger.write(record)
    here = ray.get_runtime_context().get_node_id()
    port = next(node["MetricsExportPort"] for node in ray.nodes() if node["NodeID"] == here)
    endpoint = Endpoint(run, lambda: [f"127.0.0.1:{port}"], name="made-up")
    said = []
    launch = Launch(
        job=make_job(tmp_path, steps=9, most=1).model_copy(update={"name": "made-up"}), url="", launch_id="ours"
    )
    with MetricsExporter(run, launch, said.append):
        seen = endpoint.await_scrape(lambda seen: names(seen) == {each.name for each in METRICS})
    assert (seen["step"], seen["loss"], seen["eval_loss"]) == (2, 1.5, 2.5)
    assert (seen["objective_metric/margin"], seen["objective_metric/accuracy"]) == (0.25, 0.75)
    assert seen["eval_metric/margin"] == 0.125
    assert seen["peak_memory_bytes"] == 2**30
    assert seen["commit_write_seconds"] == 2.0
    assert seen["step_communication_seconds"] == pytest.approx(0.3)
    assert seen["workers"] == seen["tokens_per_second"] == 0  # another launch's group
    assert said == []


def unknown(records):
    """Metrics that no record of a run has: the utilization of a CPU, for example, whose peak is in no table."""
    measured = of_kind(records, MeasurementRecord)
    parts = set() if measured else {f"planner_step_{part}_seconds" for part in _PARTS}
    known = {
        "planner_tokens_per_second": any(each.tokens_per_s for each in measured),
        "planner_mfu_ratio": any(each.mfu for each in measured),
        "planner_peak_memory_bytes": any(each.peak_memory_bytes for each in measured),
    }
    return parts | {name for name, is_known in known.items() if not is_known}


def rates_at(records, size):
    """Samples per second of each step that was done at this world size."""
    found, current = [], 0
    for each in records:
        if isinstance(each, GenerationRecord):
            current = each.world_size
        elif isinstance(each, StepRecord) and current == size:
            found.append(each.samples / each.seconds)
    return found
