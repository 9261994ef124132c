"""Derives from the job and the data which samples each step should have used, and compares them with the ledger."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.data.base import AnyDataset
from planner.errors import UserError
from planner.job import Job, OwnOptimizer
from planner.job.step_schedule import StepSchedule, learning_rate, lengths
from planner.order.order import Order
from planner.provenance.identity import identity_of, open_data, recorded_plan
from planner.provenance.lineage import Segment
from planner.store.records import GenerationRecord, StepRecord
from planner.store.run_folder import RunFolder

# A fraction of the peak rate, because the cosine of another machine may differ in its last bits.
_RATE_TOLERANCE = 1e-12


@dataclass(frozen=True, kw_only=True)
class StepComparison:
    """How the steps of a lineage differ from the derived ones."""

    lost: int
    """positions of the order that no committed step computed, by the recorded counts"""
    repeated: int
    """positions that committed steps computed more than once, by the recorded counts"""
    mismatched: int
    """steps whose checksum differs from that of the samples that they should have used"""
    findings: tuple[str, ...]
    """what is wrong, one sentence each"""


def derive(
    run: RunFolder, segments: Sequence[Segment], code: str, progress: Callable[[int, int], None]
) -> StepComparison:
    """Derive every step of the segments, and compare it with the ledger.

    Args:
        run: the run, which holds the jobs.
        segments: the committed segments, oldest first.
        code: the Python file with the `dataset()` of a run with the user's own training loop, else empty.
        progress: called with `(done, of)` after each step.

    Raises:
        StoreError: a job's file is gone or altered.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and `code` names none.
    """
    deriver = _Deriver(run, code)
    for segment in segments:
        for step in segment.steps:
            deriver.check(segment.header, step)
            progress(step.step + 1, segments[-1].end_step)
        deriver.close(segment)
    return StepComparison(
        lost=deriver.lost,
        repeated=deriver.repeated,
        mismatched=deriver.mismatched,
        findings=tuple(deriver.findings),
    )


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What is needed to derive the steps of one job."""

    job: Job
    lengths: StepSchedule
    dataset: AnyDataset
    order: Order
    same_data: bool
    """whether the run was trained on this data"""


class _Deriver:
    """Takes the steps in order, and counts and records differences."""

    def __init__(self, run: RunFolder, code: str) -> None:
        self._run, self._code = run, code
        self._opened: dict[str, _Recipe] = {}
        self._cursor = 0
        self.lost = self.repeated = self.mismatched = 0
        self.findings: list[str] = []

    def check(self, header: GenerationRecord, step: StepRecord) -> None:
        """Check one step's position in the order, counts, checksum and learning rate."""
        start = step.cursor - header.identity.global_batch
        self._check_place(step, start, header.identity.global_batch)
        recipe = self._open(header)
        self._check_rate(recipe, step)
        derived = _evidence(recipe, step, start)
        if derived is not None and derived != (step.tokens, step.checksum):
            self.mismatched += 1
            self.findings.append(
                f"step {step.step}: what entered the forward pass is not the samples at [{start}, {step.cursor})"
            )

    def _check_place(self, step: StepRecord, start: int, global_batch: int) -> None:
        self.lost += max(start - self._cursor, 0) + max(global_batch - step.samples, 0)
        self.repeated += max(self._cursor - start, 0) + max(step.samples - global_batch, 0)
        if start != self._cursor:
            self.findings.append(f"step {step.step}: begins at sample {start}, the one before ended at {self._cursor}")
        if step.samples != global_batch:
            self.findings.append(f"step {step.step}: computed {step.samples} samples instead of {global_batch}")
        self._cursor = step.cursor

    def _check_rate(self, recipe: _Recipe, step: StepRecord) -> None:
        """Compare the learning rate with the schedule, except for the user's own training loop."""
        if recipe.job.is_own:
            return
        train = recipe.job.train
        assert not isinstance(train.optimizer, OwnOptimizer)  # checked when the job was made
        wanted = learning_rate(train, step.step, recipe.lengths)
        if abs(step.lr - wanted) > _RATE_TOLERANCE * train.optimizer.lr:
            self.findings.append(
                f"step {step.step}: its learning rate is {step.lr!r} on record, and the schedule has {wanted!r}"
            )

    def close(self, segment: Segment) -> None:
        """Check a generation's number of steps, length and plan, after its last step."""
        self.findings += _check_record(segment)
        recipe = self._open(segment.header)
        self.findings += _check_length(segment, recipe)

    def _open(self, header: GenerationRecord) -> _Recipe:
        if header.job_digest not in self._opened:
            job = self._job(header)
            dataset, order = open_data(job)
            same_data = identity_of(job, dataset, order) == header.identity
            if not same_data:
                self.findings.append(
                    f"generation {header.generation}: the data at {job.data.path} is not what it was trained on, "
                    "so its samples cannot be checked"
                )
            self._opened[header.job_digest] = _Recipe(
                job=job,
                # If the data is not the run's, the recorded number of samples is enough to check the schedule.
                lengths=lengths(job, order.num_samples if same_data else header.num_samples),
                dataset=dataset,
                order=order,
                same_data=same_data,
            )
        return self._opened[header.job_digest]

    def _job(self, header: GenerationRecord) -> Job:
        """The generation's job. If its samples come from code, `data.path` is the file that the user trusts.

        Raises:
            UserError: the user named no code for such a run, or named code for another run.
        """
        job = self._run.job(header.job_digest)
        if not job.is_own:
            if self._code:
                raise UserError(f"--code {self._code}: this run's samples do not come from code. Leave --code out")
            return job
        if not self._code:
            raise UserError(
                f"{self._run.storage.url}: its samples come from Python code, which planner runs only if you name it. "
                f"Add the file that you trust: --code {job.data.path} or another"
            )
        return job.model_copy(update={"data": job.data.model_copy(update={"path": self._code})})


def _evidence(recipe: _Recipe, step: StepRecord, start: int) -> tuple[int, str] | None:
    """Tokens and checksum of the samples from `start` to the step's cursor. None if the data is not the run's."""
    if not recipe.same_data:
        return None
    found = [recipe.dataset.evidence(int(row)) for row in recipe.order.rows(start, step.cursor)]
    # Only the user's own training loop knows the number by which it divides its loss.
    tokens = step.tokens if recipe.job.is_own else sum(each.tokens for each in found)
    return tokens, f"{sum(each.check_sum for each in found) % 2**64:016x}"


def _check_record(segment: Segment) -> list[str]:
    """Compare a generation's header with its steps, and return the findings."""
    header = segment.header
    expected = segment.end_step - header.step
    where, findings = f"generation {header.generation}", []
    if len(segment.steps) != expected:
        findings.append(f"{where}: {len(segment.steps)} steps on record, {expected} committed")
    if recorded_plan(header).digest != header.plan_digest:
        findings.append(f"{where}: its plan is not what layout version {header.layout_version} gives")
    return findings


def _check_length(segment: Segment, recipe: _Recipe) -> list[str]:
    """Compare a generation's header with its job (last step and epoch length), and return the findings."""
    header, wanted = segment.header, recipe.lengths.total_steps
    where, findings = f"generation {header.generation}", []
    if segment.end_step > header.total_steps:
        findings.append(f"{where}: it went on to step {segment.end_step}, past its end at step {header.total_steps}")
    if wanted != header.total_steps:
        findings.append(f"{where}: it was to end at step {header.total_steps} on record, and its job says {wanted}")
    if recipe.same_data and header.num_samples != recipe.order.num_samples:
        findings.append(
            f"{where}: an epoch has {header.num_samples} samples on record, and {recipe.order.num_samples} in the data"
        )
    return findings
