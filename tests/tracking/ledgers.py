"""Ledgers that are written by hand, with losses from which a step's generation and number can be told."""

from planner.store.ledger import LedgerWriter
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    GenerationRecord,
    MeasurementRecord,
    StepRecord,
    TrainingIdentity,
)
from planner.store.storage import Storage

IDENTITY = TrainingIdentity(
    global_batch=12,
    seed=0,
    data="d" * 64,
    model="e" * 64,
    optimizer="adamw",
    equality="balanced",
    recipe="f" * 64,
)


def header(generation, step, *, world_size=2, time_s=1000.0, layout_version=1, max_tokens=None):
    return GenerationRecord(
        generation=generation,
        run_id="a" * 32,
        parent="",
        parent_sha256="",
        step=step,
        cursor=step * 12,
        world_size=world_size,
        max_micro=4,
        max_tokens=max_tokens,
        layout_version=layout_version,
        plan_digest="p",
        identity=IDENTITY,
        job_digest="c" * 64,
        total_steps=100,
        num_samples=1000,
        facts={},
        changed=(),
        launch_id="a",
        time_s=time_s,
    )


def loss(generation, step):
    return generation + step / 1000


def step(generation, number, seconds=2.0):
    return StepRecord(
        step=number,
        cursor=(number + 1) * 12,
        samples=12,
        tokens=100,
        checksum="0" * 16,
        loss=loss(generation, number),
        grad_norm=0.5,
        lr=0.1,
        metrics={"accuracy": 0.75},
        seconds=seconds,
    )


def evaluation(number, value=3.0):
    return EvalRecord(step=number, samples=5, tokens=50, loss=value, metrics={"accuracy": 0.5}, seconds=0.25)


def commit(generation, number, seconds=0.5):
    return CommitRecord(step=number, name=f"{number:012d}-{generation:06d}", sha256="e" * 64, seconds=seconds)


def measurement(number, num_steps, **costs):
    return MeasurementRecord(
        step=number,
        num_steps=num_steps,
        seconds=2.0 * num_steps,
        input_tokens=400 * num_steps,
        padded_tokens=500 * num_steps,
        flops=1e9 * num_steps,
        peak_flops_per_s=1e9,
        peak_memory_bytes=2**20,
        data_s=0.1 * num_steps,
        forward_s=0.5 * num_steps,
        backward_s=1.0 * num_steps,
        update_s=0.2 * num_steps,
        communication_s=0.3 * num_steps,
        time_s=1000.0,
        **costs,
    )


class Run:
    """A run's folder whose ledger grows by hand."""

    def __init__(self, folder):
        self.url = str(folder)
        self.storage = Storage(self.url)
        self._writer = None
        self.generation = self.step = 0

    def begin(self, step, **facts):
        self.generation, self.step = self.generation + 1, step
        self._writer = LedgerWriter(self.storage, header(self.generation, step, **facts), NO_HEAD)
        return self

    def write(self, record):
        self._writer.write(record)
        return self

    def steps(self, count):
        for _ in range(count):
            self.write(step(self.generation, self.step))
            self.step += 1
        return self

    def commit(self):
        return self.write(commit(self.generation, self.step))

    def evaluate(self, value=3.0):
        return self.write(evaluation(self.step, value))


def two_losses(folder):
    """16 committed steps, of which 4 were done twice. Steps that were undone have another generation's loss."""
    run = Run(folder).begin(0).evaluate().steps(4).commit().steps(2)
    run.begin(4).steps(4).commit().evaluate().steps(2)
    return run.begin(8).steps(4).commit().steps(4).commit().evaluate()
