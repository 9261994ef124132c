"""Ledger records that no run has written."""

from planner.store.records import (
    CommitRecord,
    GenerationRecord,
    MeasurementRecord,
    StepRecord,
    TrainingIdentity,
)

IDENTITY = TrainingIdentity(
    global_batch=13, seed=0, data="d" * 64, model="e" * 64, optimizer="adamw", equality="balanced", recipe="f" * 64
)


def header(number, *, world_size, step=0, launch="ours", time_s=1000.0):
    return GenerationRecord(
        generation=number,
        run_id="r",
        parent="",
        parent_sha256="",
        step=step,
        cursor=step * 13,
        world_size=world_size,
        max_micro=4,
        layout_version=1,
        plan_digest="p",
        identity=IDENTITY,
        job_digest="c" * 64,
        total_steps=100,
        num_samples=1000,
        facts={},
        changed=(),
        launch_id=launch,
        launched_s=990.0,
        time_s=time_s,
    )


def step(number, *, seconds=2.0, loss=1.5, **metrics):
    return StepRecord(
        step=number,
        cursor=(number + 1) * 13,
        samples=13,
        tokens=100,
        checksum="0" * 16,
        loss=loss,
        grad_norm=0.5,
        lr=0.1,
        metrics=metrics,
        seconds=seconds,
    )


def commit(number, seconds=1.0):
    return CommitRecord(step=number, name=f"{number:012d}-000001", sha256="e" * 64, seconds=seconds)


def measurement(**values):
    known = {
        "step": 4,
        "num_steps": 4,
        "seconds": 8.0,
        "input_tokens": 4000,
        "padded_tokens": 5000,
        "flops": 8e9,
        "peak_flops_per_s": 4e9,
        "peak_memory_bytes": 2**30,
        "data_s": 0.4,
        "forward_s": 2.0,
        "backward_s": 4.0,
        "update_s": 0.8,
        "communication_s": 1.2,
        "time_s": 1010.0,
    }
    return MeasurementRecord(**(known | values))
