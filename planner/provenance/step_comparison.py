"""Derives from the job and the data which samples each step should have used, and compares them with the ledger."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.base.disk import is_file, place_text
from planner.data.base import SampleDataset, SetRows
from planner.data.document_sets import DocumentSet
from planner.errors import PlanError, UserError
from planner.job import Job, OwnOptimizer, batch_sizes
from planner.job.step_schedule import StepSchedule, learning_rate, lengths
from planner.order.order import Order
from planner.order.set_counts import SetCounts
from planner.plan import Plan
from planner.plan.by_length import ByLength, placement
from planner.plan.lowered_caps import Caps, misfits
from planner.provenance.data_facts import data_facts, evaluation_changes, set_changes
from planner.provenance.identity import open_data, recorded_plan, recorded_sizes, stored_identity
from planner.provenance.lineage import Segment
from planner.provenance.set_uses import SetUse, miscount_texts, uses_of
from planner.provenance.stage import stage_of
from planner.store.data_facts import EVALUATION, SETS
from planner.store.records import EvalRecord, GenerationRecord, StepRecord, TrainingIdentity
from planner.store.run_folder import RunFolder

# A fraction of the peak rate, because the cosine of another machine may differ in its last bits.
_RATE_TOLERANCE = 1e-12
# The first format of a ledger in which bytes are ids like all others. Before, their checksums were over single bytes.
_IDS_OF_BYTES = 4


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
    sets: tuple[SetUse, ...] = ()
    """what the steps used of each set of a mixture. Empty if there is only one set"""


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
        deriver.check(segment, progress=lambda done: progress(done, segments[-1].end_step))
    return StepComparison(
        lost=deriver.lost,
        repeated=deriver.repeated,
        mismatched=deriver.mismatched,
        findings=(*deriver.findings, *(miscount_texts(deriver.sets, deriver.counts) if deriver.counts else ())),
        sets=uses_of(deriver.sets, deriver.counts) if deriver.counts else (),
    )


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """What is needed to derive the steps of one job."""

    job: Job
    lengths: StepSchedule
    dataset: SampleDataset
    order: Order
    identity: TrainingIdentity
    """of the job with the data that is there now"""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts about the data that is there now."""
        return data_facts(self.dataset, self.order)

    @cached_property
    def held_out_tokens(self) -> int:
        """The tokens that bear loss in all held-out samples."""
        rows = self.order.held_out_rows(0, self.order.num_held_out)
        return sum(self.dataset.evidence(int(row)).tokens for row in rows)


class _Deriver:
    """Takes the steps in order, and counts and records differences."""

    def __init__(self, run: RunFolder, code: str) -> None:
        self._run, self._code = run, code
        self._opened: dict[str, _Recipe] = {}
        self._cursor = 0
        self._named: set[tuple[str, str, object]] = set()
        self.lost = self.repeated = self.mismatched = 0
        self.findings: list[str] = []
        self.sets: tuple[SetRows, ...] = ()
        """of the newest mixture that the run was trained on"""
        self.counts: SetCounts | None = None

    def check(self, segment: Segment, progress: Callable[[int], None]) -> None:
        """Check a generation's header, its steps and its evaluations. `progress` is called with each completed step."""
        header = segment.header
        recipe = self._open(header)
        size = header.identity.global_batch
        differing = recipe.identity.differences(header.identity)
        plan = recorded_plan(header)
        same_data = "data" not in differing and "global_batch" not in differing
        self.findings += [
            *self._check_identity(header, differing, recipe),
            *self._check_facts(header, recipe, differing),
        ]
        for step, record in enumerate(segment.steps, header.step):
            start = header.cursor + (step - header.step) * size
            self._count(record, size)
            self._check_rate(recipe, step, record)
            if same_data:
                self._check_samples(recipe, plan, step, record, range(start, start + size), header.format)
            progress(step + 1)
        self.findings += _check_stage(header, recipe.job)
        self.findings += _check_plan(header, recipe)
        self.findings += _check_length(segment, recipe, same_data=same_data)
        # A data set of its own for evaluation may be the same where that for training is not, and the other way round.
        same_evaluated = _same_evaluation(header, recipe) if recipe.order.is_apart else same_data
        for each in segment.evals:
            self.findings += _check_evaluation(each, recipe, same_data=same_evaluated)

    def _check_identity(self, header: GenerationRecord, differing: Sequence[str], recipe: _Recipe) -> list[str]:
        """What is wrong with an identity of which these fields are not those of the job and of the data.

        Of several generations with the same job and the same wrong value, it names the first.
        """
        where, findings = f"generation {header.generation}", []
        values = {field: (field, header.job_digest, getattr(header.identity, field)) for field in differing}
        for field in (field for field, value in values.items() if value not in self._named):
            if field == "data":
                sets = f" ({'; '.join(changes)})" if (changes := set_changes(header.facts, recipe.facts)) else ""
                findings.append(
                    f"{where}: the data{_place(recipe.job)} is not what it was trained on{sets}, "
                    "so its samples cannot be checked"
                )
            else:
                findings.append(f"{where}: another {field} is on record than its job has")
        self._named.update(values.values())
        return findings

    def _check_facts(self, header: GenerationRecord, recipe: _Recipe, differing: Sequence[str]) -> list[str]:
        """What is wrong with the sets or with the data set for evaluation on record. Of several, it names the first."""
        where, findings = f"generation {header.generation}", []
        if "data" not in differing and SETS in header.facts and header.facts[SETS] != recipe.facts.get(SETS):
            findings.append(f"{where}: the sets on record are not those of its data")
        key = (EVALUATION, header.job_digest, str(header.facts.get(EVALUATION)))
        if not _same_evaluation(header, recipe) and key not in self._named:
            self._named.add(key)
            changes = [change.sets for change in evaluation_changes(header.facts, recipe.facts) if change.sets]
            findings.append(
                f"{where}: the data of eval.data is not what it was evaluated on"
                f"{f' ({changes[0]})' if changes else ''}, so its evaluations cannot be checked"
            )
        return findings

    def _count(self, record: StepRecord, size: int) -> None:
        """Count positions that were lost or repeated by the recorded numbers."""
        start = record.cursor - size
        self.lost += max(start - self._cursor, 0) + max(size - record.samples, 0)
        self.repeated += max(self._cursor - start, 0) + max(record.samples - size, 0)
        self._cursor = record.cursor

    def _check_rate(self, recipe: _Recipe, step: int, record: StepRecord) -> None:
        """Compare the learning rate with the schedule, except for the user's own training loop."""
        if recipe.job.is_own:
            return
        train = recipe.job.train
        assert not isinstance(train.optimizer, OwnOptimizer)  # checked when the job was made
        wanted = learning_rate(train, step, recipe.lengths)
        if abs(record.lr - wanted) > _RATE_TOLERANCE * train.optimizer.lr:
            self.findings.append(
                f"step {step}: its learning rate is {record.lr!r} on record, and the schedule has {wanted!r}"
            )

    def _check_samples(
        self, recipe: _Recipe, plan: Plan, step: int, record: StepRecord, positions: range, ledger_format: int
    ) -> None:
        """Compare tokens and checksum with those of the samples at these positions of the order."""
        rows = recipe.order.rows(positions.start, positions.stop)
        if counts := self._counts_of(recipe):
            counts.take(positions.start, rows)
        # Only of jobs that have the limit: the data of others may not know its lengths, whatever a header says.
        has_limit = recipe.job.batch.max_tokens is not None
        found = _placement(plan, recipe.dataset, rows.tolist()) if has_limit else ""
        if found != record.placement:
            self.mismatched += 1
            self.findings.append(
                f"step {step}: its samples were split over the workers in another way than their lengths give "
                f"({record.placement or 'nothing'} on record, {found or 'nothing'} derived)"
            )
        tokens, check_sum = _evidence(recipe, rows, ledger_format)
        # Only the user's own training loop knows the number by which it divides its loss.
        if (record.tokens if recipe.job.is_own else tokens, check_sum) != (record.tokens, record.checksum):
            self.mismatched += 1
            self.findings.append(
                f"step {step}: what entered the forward pass is not the samples at "
                f"[{positions.start}, {positions.stop})"
            )

    def _counts_of(self, recipe: _Recipe) -> SetCounts | None:
        """The counts of a mixture's sets. Another mixture starts them again. None for a single data set."""
        sets = recipe.dataset.sets
        if sets and (self.counts is None or (self.sets, self.counts.order) != (sets, recipe.order)):
            self.sets, self.counts = sets, SetCounts(recipe.order)
        return self.counts if sets else None

    def _open(self, header: GenerationRecord) -> _Recipe:
        if header.job_digest not in self._opened:
            job = self._job(header)
            dataset, order = open_data(job)
            identity = stored_identity(job, dataset, order, header.identity)
            # If the data is not the run's, the recorded number of samples is enough to check the schedule.
            samples = order.num_samples if identity.data == header.identity.data else header.num_samples
            self._opened[header.job_digest] = _Recipe(
                job=job, lengths=lengths(job, samples), dataset=dataset, order=order, identity=identity
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
        if not is_file(self._code):
            where = f"{self._code!r}{place_text(self._code)}"
            raise UserError(f"--code: no Python file at {where}. Name the file with dataset()")
        return job.model_copy(update={"data": job.data.model_copy(update={"path": self._code})})


def _evidence(recipe: _Recipe, rows: Iterable[int], ledger_format: int) -> tuple[int, str]:
    """Tokens that bear loss, and the checksum that a ledger has, of some data rows together."""
    find = recipe.dataset.evidence
    if ledger_format < _IDS_OF_BYTES and isinstance(recipe.dataset, DocumentSet) and recipe.job.model.kind == "gpt":
        find = recipe.dataset.evidence_of_bytes
    found = [find(int(row)) for row in rows]
    return sum(each.tokens for each in found), f"{sum(each.check_sum for each in found) % 2**64:016x}"


def _placement(plan: Plan, dataset: SampleDataset, rows: Sequence[int]) -> str:
    """What a record has of a step with these rows. Empty for plans that need no lengths, and if the plan cannot be."""
    if not isinstance(plan, ByLength):
        return ""
    lengths = dataset.lengths(rows)
    try:
        found = plan.assignment(lengths.tokens.tolist(), lengths.squares.tolist())
    except PlanError:  # a row is longer than the cap on record
        return ""
    total = 0
    for rank in range(plan.world_size):
        total += placement(rank, [[rows[offset] for offset in slot] for slot in found.micro_batches(rank)])
    return f"{total % 2**64:016x}"


def _check_stage(header: GenerationRecord, job: Job) -> list[str]:
    """Compare the earlier run's commit that a generation records with that of its job, and return the findings."""
    found, wanted = (each.text if each else "no run" for each in (stage_of(header.facts), job.after))
    if stage_of(header.facts) == job.after:
        return []
    return [f"generation {header.generation}: it began from {found} on record, and its job says {wanted}"]


def _check_plan(header: GenerationRecord, recipe: _Recipe) -> list[str]:
    """Compare a generation's plan with its job and its layout, and return the findings."""
    where, findings = f"generation {header.generation}", []
    is_lowered = bool(header.lowered) and header.identity.equality != "bitwise"  # there, a cap decides the bits
    batch = recipe.job.batch
    for name in ("attention_at",) if is_lowered or batch.auto_cap else ("max_micro", "max_tokens", "attention_at"):
        found, wanted = getattr(header, name), getattr(batch, name)
        if found != wanted:
            findings.append(f"{where}: batch.{name} is {found} on record, and its job says {wanted}")
    if is_lowered or batch.auto_cap:  # the group's devices decided it
        of, caps = Caps.of(batch_sizes(recipe.job)), Caps.of(recorded_sizes(header))
        lowered = [each.value for each in header.lowered]
        auto = {"is_auto": batch.max_micro == "auto", "are_tokens_auto": batch.max_tokens == "auto"}
        findings += [f"{where}: {wrong}" for wrong in misfits(of, lowered, caps, **auto)]
    elif header.lowered:
        findings.append(f"{where}: a cap was lowered on record, and batch.equality: bitwise allows none")
    if recorded_plan(header).digest != header.plan_digest:
        findings.append(f"{where}: its plan is not what layout version {header.layout_version} gives")
    return findings


def _check_length(segment: Segment, recipe: _Recipe, *, same_data: bool) -> list[str]:
    """Compare a generation's header with its job (last step and epoch length), and return the findings."""
    header, wanted = segment.header, recipe.lengths.total_steps
    where, findings = f"generation {header.generation}", []
    if segment.end_step > header.total_steps:
        findings.append(f"{where}: it went on to step {segment.end_step}, past its end at step {header.total_steps}")
    if wanted != header.total_steps:
        findings.append(f"{where}: it was to end at step {header.total_steps} on record, and its job says {wanted}")
    if same_data and header.num_samples != recipe.order.num_samples:
        findings.append(
            f"{where}: an epoch has {header.num_samples} samples on record, and {recipe.order.num_samples} in the data"
        )
    return findings


def _same_evaluation(header: GenerationRecord, recipe: _Recipe) -> bool:
    """Whether the data set of its own for evaluation is the one on record, or there is none in both."""
    return bool(header.facts.get(EVALUATION) == recipe.facts.get(EVALUATION))


def _evaluated(recipe: _Recipe, *, same_data: bool) -> int | None:
    """How many samples the job evaluates. None if only the data can tell, which is another one now."""
    job = recipe.job
    is_number = isinstance(job.eval.samples, int) and (job.eval.samples > 0 or not job.eval.is_on)
    return job.eval.num_samples(0) if is_number else recipe.order.num_held_out if same_data else None


def _place(job: Job) -> str:
    return f" at {job.data.path}" if job.data.path else ""


def _check_evaluation(record: EvalRecord, recipe: _Recipe, *, same_data: bool) -> list[str]:
    """Compare an evaluation's samples and tokens, and whether it was due, with the job, and return the findings."""
    where, job, findings = f"the evaluation before step {record.step}", recipe.job, []
    wanted = _evaluated(recipe, same_data=same_data)
    if wanted is not None and (not wanted or record.samples != wanted):
        findings.append(f"{where}: it has {record.samples} samples on record, and its job says {wanted}")
    if record.step % recipe.lengths.eval_every and record.step != recipe.lengths.total_steps:
        findings.append(f"{where}: none was due there")
    if same_data and not job.is_own and record.tokens != recipe.held_out_tokens:
        findings.append(
            f"{where}: it has {record.tokens} tokens on record, and the held-out samples {recipe.held_out_tokens}"
        )
    return findings
