"""The sentences for what workers note."""

from dataclasses import replace

import pytest

from planner.events import resuming, saves, sizing, training
from planner.wording.event_text import text_of
from planner.wording.training import repeat_text

MEASURED = saves.MeasuredInterval(
    steps=168, work_s=84.0, save_s=1.0, write_s=0.0, between_losses_s=3600.0, losses=0, observed_s=0.0
)
WRITTEN = saves.MeasuredInterval(
    steps=84, work_s=84.0, save_s=1.0, write_s=21.0, between_losses_s=7200.0, losses=2, observed_s=36000.0
)
ABOUT = (
    "about every 84 s, 168 steps now: a save costs 1 s, 1.2% of the time, and a loss without notice undoes 42 s on "
    "average. One in 60 min is expected (0 in 0 s so far, and one an hour assumed beforehand)"
)
TEXTS = [
    (saves.CommitInterval(steps=168, work_s=84.0, measured=MEASURED, steps_left=None), f"commits {ABOUT}"),
    (
        saves.CommitInterval(steps=100, work_s=50.0, measured=MEASURED, steps_left=None),
        "commits about every 50 s, 100 steps now, the limit of work at risk. The measured interval would be " + ABOUT,
    ),
    (
        saves.CommitInterval(steps=168, work_s=84.0, measured=MEASURED, steps_left=1),
        f"commits only at the end, in 1 step, since the measured interval is {ABOUT}",
    ),
    (
        WRITTEN,
        (
            "about every 84 s, 84 steps now: a save costs 1 s, 1.2% of the time and is durable after 21 s, and a loss "
            "without notice undoes 62 s on average. One in 2 h is expected (2 in 10 h so far, and one an hour assumed "
            "beforehand)"
        ),
    ),
    (
        saves.OldFilesLeft(step=4, reason="no room"),
        (
            "step 4 is durable, but files of older commits could not be removed: no room. This is tried again after "
            "the next commit"
        ),
    ),
    (saves.CopyInterval(steps=1, copy_s=0.04), "copies in memory every step: one takes 40 ms"),
    (saves.CopyInterval(steps=5, copy_s=0.1), "copies in memory every 5 steps: one takes 100 ms"),
    (
        saves.HostRoomLacking(
            copies=1, host="a", needed_bytes=6 * 10**9, available_bytes=8 * 10**9, training_bytes=2 * 10**9
        ),
        (
            "training goes on with synchronous commits: a copy of the state on a needs 6.0 GB of host memory, and of "
            "8.0 GB available, training takes 2.0 GB and a fifth is left free"
        ),
    ),
    (
        saves.HostRoomLacking(
            copies=2, host="a", needed_bytes=6 * 10**9, available_bytes=8 * 10**9, training_bytes=2 * 10**9
        ),
        (
            "training goes on without copies for resizes, which then go through storage: 2 copies of the state on a "
            "need 6.0 GB of host memory, and of 8.0 GB available, training takes 2.0 GB and a fifth is left free"
        ),
    ),
    (
        saves.FloorRoomLacking(host="a", needed_bytes=7 * 10**9, available_bytes=8 * 10**9),
        (
            "if all spot nodes are lost at once, training resumes from the last commit: the on-demand node a needs "
            "7.0 GB of host memory for the copies of all others, and may take four fifths of 8.0 GB"
        ),
    ),
    (
        saves.LoadedFromMemory(step=9, generation=2, workers=4, nodes=1),
        "loaded from memory: step 9 of generation 2, copies of 4 workers on 1 node",
    ),
    (saves.KeeperLost(is_full=False, reason="it is gone"), "no copies in memory for now: it is gone"),
    (saves.KeeperLost(is_full=True, reason="it is full"), "no copies in memory: it is full"),
    (saves.KeeperFound(), "copies in memory again"),
    (saves.ReplicaLost(node="b", reason="it is gone"), "no copies on node b for now: it is gone"),
    (training.DataNote(text="2 rows were cut"), "data: 2 rows were cut"),
    (
        training.SamplesRepeat(global_batch=64, num_samples=35, steps=9, more=None),
        "data: batch.global 64 is larger than an epoch of 35 samples, so every step repeats some of them",
    ),
    (
        training.SamplesRepeat(global_batch=64, num_samples=35, steps=2, more=0.219),
        (
            "data: batch.global 64 is larger than an epoch of 35 samples, so every step repeats some of them. 2 steps "
            "use 128 samples, 22% more than train.epochs asks for"
        ),
    ),
    (
        training.DurationConverted(duration="warmup", given="10%", steps=1, examples=64),
        "warmup 10% = 1 step (64 examples)",
    ),
    (
        training.DurationConverted(duration="train", given="3 epochs", steps=None, examples=None),
        "train 3 epochs, in steps once the data is open",
    ),
    (training.AdaptersPlaced(adapted=4, layers=14), "model: adapters on 4 of 14 layers"),
    (training.AttentionChosen(attention="varlen"), "model: varlen attention"),
    (
        training.AttentionChosen(attention="sdpa", passed_over=("varlen: no", "flash: no"), before="varlen"),
        "model: sdpa attention instead of varlen (varlen: no; flash: no)",
    ),
    (
        training.MicroBatchFitted(max_micro=8, device="H100", needed_bytes=61 * 10**9, device_bytes=85 * 10**9),
        "micro-batches have at most 8 samples (auto): 61.0 GB of 85.0 GB (H100)",
    ),
    (
        training.MicroBatchFitted(
            max_micro=64, max_tokens=16384, device="H100", needed_bytes=61 * 10**9, device_bytes=85 * 10**9
        ),
        "micro-batches have at most 16,384 tokens (auto): 61.0 GB of 85.0 GB (H100)",
    ),
    (
        training.StepSkipped(step=3, norm="nan", tensor="head.weight"),
        "step 3: the gradient's norm is nan, in head.weight. The step was skipped (train.non_finite: skip)",
    ),
    (
        training.StepSkipped(step=3, norm="inf", tensor=""),
        (
            "step 3: the gradient's norm is inf, in no single tensor (the norm itself overflows). The step was skipped "
            "(train.non_finite: skip)"
        ),
    ),
    (training.ObjectiveRemark(step=3, text="no pair"), "step 3: no pair"),
    (training.HeldOutNotFinite(step=3), "step 3: the held-out loss is not finite"),
    (training.ReferenceDamaged(reason="torn"), "reference log-probabilities: torn. It is computed again"),
    (
        training.ReferenceProgress(done=3, rows=9),
        "reference log-probabilities of 3 of 9 rows are computed",
    ),
    (training.ReferenceComputed(rows=1, seconds=2.0), "reference log-probabilities of 1 row computed in 2 s"),
    (
        training.ReferenceStopped(done=3, rows=9),
        "stopped at 3 of 9 rows whose reference log-probabilities were missing",
    ),
    (training.GenerationStopped(error="DataError", reason="the data changed"), "stopped: the data changed"),
    (sizing.Waited(waited_s=40.0), "no group could start for 40 s: too little room"),
    (resuming.ChangeAccepted(field="seed", before="0", now="1"), "seed: accepted by name"),
    (resuming.ChangeAccepted(field="device", before="a", now="b"), "device: a -> b, accepted by name"),
    (
        resuming.ChangeAccepted(field="model-files", before="a", now="b"),
        "the model's files: others, accepted by name",
    ),
    (resuming.SettingChanged(setting="train.seed", before="0", now="1"), "train.seed: 0 -> 1"),
    (
        resuming.ScheduleMoved(schedule="cosine", end_step=400, old_end_step=160, step=160, lr=2.5e-4, old_lr=3e-5),
        (
            "train.schedule: cosine now ends at step 400 instead of 160, so the learning rate of step 160 changes from "
            "3e-05 to 0.00025"
        ),
    ),
    (
        resuming.JobUnknown(job_digest="abc"),
        "the job of the last commit is unknown: jobs/abc.json is gone",
    ),
    (
        resuming.CommitNotUsed(commit="000000000004-000001", reason=None, resume_step=2, again=2),
        (
            "commit 000000000004-000001 is lost: the ledger records it, but its manifest is gone. Without it, the run "
            "resumes from step 2, and does 2 steps again"
        ),
    ),
    (
        resuming.CommitNotUsed(commit="000000000004-000001", reason="torn", resume_step=4, again=0),
        "commit 000000000004-000001 was passed over: torn. Without it, the run resumes from step 4",
    ),
]


@pytest.mark.parametrize(("event", "text"), TEXTS, ids=lambda value: getattr(value, "name", None))
def test_the_sentence_of_an_event(event, text):
    """Exactly this one."""
    assert text_of(event) == text


def test_a_dry_run_names_the_data_by_itself():
    """So its note has no `data:` before it."""
    event = training.SamplesRepeat(global_batch=64, num_samples=35, steps=9, more=None)
    assert repeat_text(event).startswith("batch.global 64 is larger")


def test_an_interval_of_nonsense_has_a_sentence():
    """`planner show` makes it from a ledger that anybody may have written."""
    assert "0.0% of the time" in text_of(replace(MEASURED, work_s=-1.0, save_s=1.0))
