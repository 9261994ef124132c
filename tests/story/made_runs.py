"""Made-up ledgers: what rank 0 writes, without training."""

from pathlib import Path

from planner.plan import BatchSizes, make_plan
from planner.store.ledger import segment_name
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    MeasurementRecord,
    StepRecord,
    TrainingIdentity,
    canonical,
    chained,
)
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.teller import StoryTeller

GLOBAL_BATCH = 64
BEGAN_S = 1_700_000_000.0
IDENTITY = TrainingIdentity(
    global_batch=GLOBAL_BATCH,
    seed=0,
    data="0" * 64,
    model="1" * 64,
    optimizer="adamw",
    recipe="2" * 64,
    equality="balanced",
)


def header(number, workers, first_step, *, time_s=BEGAN_S, total_steps=160, **changed):
    """The header of a generation."""
    values = {
        "generation": number,
        "run_id": "r",
        "parent": "",
        "parent_sha256": "",
        "step": first_step,
        "cursor": GLOBAL_BATCH * first_step,
        "world_size": workers,
        "max_micro": 8,
        "layout_version": 1,
        "plan_digest": make_plan(BatchSizes(global_batch=GLOBAL_BATCH, max_micro=8), workers).digest,
        "identity": IDENTITY,
        "job_digest": "3" * 64,
        "total_steps": total_steps,
        "num_samples": 1000,
        "facts": {},
        "changed": (),
        "time_s": time_s,
    }
    return GenerationRecord(**{**values, **changed})


def step(number, *, seconds=1.0, loss=None, **changed):
    """A step's record. The loss falls by default."""
    values = {
        "step": number,
        "cursor": GLOBAL_BATCH * (number + 1),
        "samples": GLOBAL_BATCH,
        "tokens": 100,
        "checksum": "0" * 16,
        "loss": 5.0 / (1 + number / 50) if loss is None else loss,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "seconds": seconds,
    }
    return StepRecord(**{**values, **changed})


def commit(number, *, seconds=0.5, generation=1):
    """A commit's record."""
    return CommitRecord(step=number, name=f"{number:012d}-{generation:06d}", sha256="4" * 64, seconds=seconds)


def evaluation(number, loss=2.0):
    """A record of an evaluation."""
    return EvalRecord(step=number, samples=3, tokens=9, loss=loss, metrics={"accuracy": 0.5}, seconds=0.25)


def event(message, time_s, name=""):
    """An event's record."""
    return EventRecord(event=name, message=message, time_s=time_s)


def measurement(number, time_s, **changed):
    """A measurement of the ten steps before a step."""
    values = {
        "step": number,
        "num_steps": 10,
        "seconds": 10.0,
        "input_tokens": 5000,
        "padded_tokens": 6000,
        "flops": 4e12,
        "peak_flops_per_s": 1e12,
        "peak_memory_bytes": 3 * 2**30,
        "data_s": 1.0,
        "forward_s": 3.0,
        "backward_s": 5.0,
        "update_s": 0.5,
        "communication_s": 2.0,
        "time_s": time_s,
    }
    return MeasurementRecord(**{**values, **changed})


def eventful():
    """4, 3, 5 and 4 workers: a notice, two that join, a node lost after two steps without a commit."""
    at = BEGAN_S
    yield header(1, 4, 0, time_s=at + 10, launched_s=at, launch_id="a")
    yield evaluation(0, 5.5)
    yield from map(step, range(35))
    yield event("a node will be taken", at + 44)
    yield event("resize: notice for 1 worker of 4, 28 s left; room for 3", at + 45, "notice")
    yield commit(35)
    yield header(2, 3, 35, time_s=at + 60, launched_s=at, launch_id="a", parent="x")
    yield from map(step, range(35, 84))
    yield event("resize: 3 -> 5, 0.38 s per step instead of 0.64 s", at + 109, "resizes")
    yield commit(84)
    yield header(3, 5, 84, time_s=at + 120, launched_s=at, launch_id="a", parent="x")
    yield from map(step, range(84, 110))
    yield commit(110)
    yield from (step(number, loss=99.0) for number in (110, 111))
    yield header(4, 4, 110, time_s=at + 180, launched_s=at, launch_id="a", parent="x")
    yield event("1 node lost: training resumes from the last commit", at + 181, "nodes_lost")
    yield from map(step, range(110, 160))
    yield commit(160)
    yield evaluation(160, 2.5)


def measured():
    """One generation with measurements."""
    yield header(1, 2, 0, total_steps=40)
    for number in range(40):
        yield step(number)
        if number % 10 == 9:
            yield measurement(number + 1, BEGAN_S + number + 1)
    yield commit(40)


def write_run(folder, records):
    """A run's folder with these records. It has no manifest, so there is nothing to audit."""
    run = RunFolder(Storage(str(folder)))
    run_id = run.ensure_identity().run_id
    (Path(folder) / "ledger").mkdir()
    for generation, group in enumerate(_generations(records), start=1):
        head, lines = NO_HEAD, []
        for record in group:
            named = record.model_copy(update={"run_id": run_id}) if isinstance(record, GenerationRecord) else record
            line = canonical(named)
            head = chained(head, line)
            lines.append(f'{{"head":"{head}","record":{line}}}\n')
        (Path(folder) / segment_name(generation)).write_text("".join(lines))
    return run


def _generations(records):
    group = []
    for record in records:
        if isinstance(record, GenerationRecord) and group:
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def long(num_steps, num_generations=10, commit_every=1000):
    """A run of many steps, with metrics, in several generations of equal length."""
    size = num_steps // num_generations
    for number in range(num_generations):
        begun_s = BEGAN_S + number * (size + 30)
        yield header(number + 1, 4 + number % 3, number * size, time_s=begun_s, total_steps=num_steps)
        for at in range(number * size, (number + 1) * size):
            yield step(at, loss=3 + (at * 7919 % 1000) / 1000, metrics={"accuracy": at % 7 / 7, "margin": 1.0})
            if at % commit_every == commit_every - 1:
                yield commit(at + 1, generation=number + 1)


def story_of(records, name="made"):
    """The story of made-up records."""
    teller = StoryTeller()
    for record in records:
        teller.add(record)
    return teller.story(f"runs/{name}", name)
