"""Sentences for what differs between a run and its resume."""

from planner.base.text import counted
from planner.events.resuming import (
    ChangeAccepted,
    CommitNotUsed,
    EvaluationChanged,
    JobUnknown,
    ScheduleMoved,
    SettingChanged,
)
from planner.wording.sentence import text_of


@text_of.register
def _change_accepted(event: ChangeAccepted) -> str:
    if event.field == "device":
        return f"device: {event.before} -> {event.now}, accepted by name"
    if event.field == "model-files":
        return "the model's files: others, accepted by name"
    return f"{event.field}: accepted by name"


@text_of.register
def _setting_changed(event: SettingChanged) -> str:
    return f"{event.setting}: {event.before} -> {event.now}"


@text_of.register
def _evaluation_changed(event: EvaluationChanged) -> str:
    numbers = "as many" if event.before == event.now else f"{event.now} instead of {event.before}"
    sets = f" ({event.sets})" if event.sets else ""
    return f"eval.data: other samples, {numbers}{sets}. Earlier evaluations do not compare with later ones"


@text_of.register
def _schedule_moved(event: ScheduleMoved) -> str:
    return (
        f"train.schedule: {event.schedule} now ends at step {event.end_step} instead of {event.old_end_step}, "
        f"so the learning rate of step {event.step} changes from {event.old_lr:.3g} to {event.lr:.3g}"
    )


@text_of.register
def _job_unknown(event: JobUnknown) -> str:
    return f"the job of the last commit is unknown: jobs/{event.job_digest}.json is gone"


def not_used_text(event: CommitNotUsed) -> str:
    """Why a commit is not used."""
    if event.reason is None:
        return f"commit {event.commit} is lost: the ledger records it, but its manifest is gone"
    return f"commit {event.commit} was passed over: {event.reason}"


@text_of.register
def _commit_not_used(event: CommitNotUsed) -> str:
    again = f", and does {counted(event.again, 'step')} again" if event.again else ""
    return f"{not_used_text(event)}. Without it, the run resumes from step {event.resume_step}{again}"
