"""Every error that a user can meet.

PlannerError              what it says is for the user: no traceback, a non-zero exit
+-- UserError             the input is wrong (exit code 2)
|   +-- JobError          a job file
|   +-- ClusterError      a cluster file
|   +-- RecipeError       another system's recipe
|   +-- PlanError         batch sizes or a world size that no plan can serve
|   +-- DataError         a data set
+-- NotExact              another system cannot train this batch at that count (exit code 1)
+-- RunError              the run cannot go on (exit code 1)
    +-- StoreError        the run directory: unreachable, torn, foreign
    |   +-- StaleGeneration   another driver has taken the run over
    |   +-- NewerFormat       another version of planner wrote it
    |   +-- DiskFull          no room is left where it lies
    +-- AnotherDriver     the run is another driver's, from the start or since it was taken over
    +-- ResumeRefused     what the job says now is not what the run was made with
    +-- ClusterLost       the Ray cluster ended under the run
    +-- TrainingFailed    training stopped and will not go on by itself
"""


class PlannerError(Exception):
    """A sentence for the user: what, with which numbers, and what to do."""

    exit_code = 1


class UserError(PlannerError):
    """The input is wrong; nothing was started."""

    exit_code = 2


class JobError(UserError):
    """A job file is wrong. The message has one line per mistake."""


class ClusterError(UserError):
    """A cluster file is wrong, or not one. The message has one line per mistake."""


class RecipeError(UserError):
    """Another system's recipe is wrong, or does not say enough. The message has one line per mistake."""


class PlanError(UserError):
    """No plan serves these numbers."""


class DataError(UserError):
    """The data set cannot be read, or is too small for what is asked of it."""


class NotExact(PlannerError):
    """Another system has no setting that trains exactly this batch at that GPU count."""


class RunError(PlannerError):
    """The run cannot go on."""


class StoreError(RunError):
    """The run directory cannot be reached, or what lies there cannot be trusted."""


class StaleGeneration(StoreError):
    """A newer generation has claimed the run; this one must not commit."""


class NewerFormat(StoreError):
    """What lies there is whole, but of a format that this version of planner does not read."""


class DiskFull(StoreError):
    """No room is left where the run lies; what was committed stays."""


class AnotherDriver(RunError):
    """Another driver holds the run, or has taken it over meanwhile; this one must not go on."""


class ResumeRefused(RunError):
    """The job's identity (global batch, seed, data, model, optimizer) differs from the run's."""


class ClusterLost(RunError):
    """The Ray cluster ended under the run; the same command resumes it on another one."""


class TrainingFailed(RunError):
    """Training stopped for a reason that trying again would not mend."""
