"""What differs between a run and its resume: accepted changes, other settings, and commits that are not used."""

from planner.events.event import Event


class ChangeAccepted(Event, name="change_accepted"):
    """Something that makes a run the same run differs, and the user accepts it by name (`--accept`)."""

    field: str
    """of `planner.store.records.TrainingIdentity`, or `device`, or `model-files`"""
    before: str
    now: str


class SettingChanged(Event, name="setting_changed"):
    """A setting of the job file differs from the one that the run was made with."""

    setting: str
    """dotted, as in a job file"""
    before: str
    now: str


class EvaluationChanged(Event, name="evaluation_changed"):
    """The samples of a data set of its own for evaluation differ, so losses on them before and after do not compare."""

    before: int
    """how many there were"""
    now: int
    sets: str | None
    """which sets of a mixture differ, as text. None if that is not known"""


class ScheduleMoved(Event, name="schedule_moved"):
    """Another number of steps changes the learning rate of the next step."""

    schedule: str
    """its kind"""
    end_step: int
    old_end_step: int
    step: int
    """the next one"""
    lr: float
    old_lr: float


class JobUnknown(Event, name="job_unknown"):
    """The job that a commit was made with is gone, so no setting is compared."""

    job_digest: str


class CommitNotUsed(Event, name="commit_not_used"):
    """A newer commit is lost or damaged, so the run resumes from an older one."""

    commit: str
    reason: str | None
    """why it was passed over. None: the ledger records it, and its manifest is gone"""
    resume_step: int
    again: int
    """steps that the run does again"""
