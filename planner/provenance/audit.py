"""What a run should have fed to the model, derived anew, against what its ledger says entered the forward pass.

Walks the committed lineage from the newest commit back to the start: each generation's segment must chain into
the next through a manifest. No torch, no Ray; it needs the run's folder and the data.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from planner.data.base import AnyDataset
from planner.errors import NewerFormat, StoreError, UserError
from planner.job import Job, OwnOptimizer
from planner.job.lengths import Lengths, learning_rate, lengths
from planner.order.order import Order
from planner.provenance.identity import identity_of, open_data, recorded_plan
from planner.store.ledger import Link, read_segment, recorded_commits, segment_name
from planner.store.records import (
    NO_HEAD,
    EvalRecord,
    GenerationRecord,
    Manifest,
    Record,
    StepRecord,
)
from planner.store.run import Run, commit_of
from planner.store.storage import Storage

# A fraction of the peak rate. Another machine's cosine may differ in its last bits.
_RATE_TOLERANCE = 1e-12
# A broken sampler breaks every step; the first few say what is wrong.
_MOST_FINDINGS = 20


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Committed steps of one generation: one world size, one plan."""

    generation: int
    world_size: int
    shares: tuple[tuple[int, int], ...]
    accumulation_steps: int
    first_step: int
    end_step: int
    """half open: the first step that is not the phase's"""
    recomputed_before: int
    """steps done since the commit that it began from, and thrown away: it did them again"""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The verdict. Clean means: every committed step used exactly its samples and its learning rate, unaltered since.

    docs/security.md says what is taken on trust.
    """

    steps: int
    samples: int
    lost: int
    """positions of the order that no committed step computed, as far as counts show"""
    repeated: int
    """positions that committed steps computed more than once, as far as counts show"""
    mismatched: int
    """steps whose checksum is not that of the samples they should have used"""
    recomputed: int
    """steps done after a commit that a later generation went back to: work done again, counted once"""
    uncommitted: int
    """steps of the newest generation after its last commit; a crash now would do them again"""
    global_batches: tuple[int, ...]
    """every global batch in use along the lineage, in order; one entry if it never changed"""
    phases: tuple[Phase, ...]
    total_steps: int
    held_out: tuple[tuple[int, float], ...]
    """`(step, held-out loss)` along the lineage, ascending"""
    weights: str
    """one SHA-256 over the final weights, 64 hex digits; empty unless a `bitwise` run has finished"""
    findings: tuple[str, ...]
    """what is wrong, one sentence each; empty if clean"""

    @property
    def clean(self) -> bool:
        """Whether the run is what it claims to be."""
        return not self.findings


@dataclass(frozen=True, kw_only=True)
class _Segment:
    """One generation's records, as far as the lineage goes."""

    header: GenerationRecord
    end_step: int
    steps: tuple[StepRecord, ...]
    evals: tuple[EvalRecord, ...]
    tail_steps: int
    """steps after the commit"""


TensorDigests = Callable[[Storage, Manifest], Mapping[str, str]]
"""name -> digest of every whole tensor of a commit, taken from its files"""


def audit(
    run: Run,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    tensor_digests: TensorDigests | None = None,
    code: str = "",
) -> Audit:
    """Audit a run. `progress(done, of)` is called after each step.

    With `tensor_digests` (`planner.train.checkpoints.checkpoint.read_digests`; this room holds no tensor), the
    certificate of a finished `bitwise` run is held against the tensors in the checkpoint. `code` is the Python file
    with the `dataset()` of a run with a loop of the user's own; the path on record is never run.

    Raises:
        StoreError: there is no run, or no commit to audit.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and none was named.
    """
    run.identity()
    findings: list[str] = []
    newest = _newest(run, findings)
    segments = _lineage(run, newest, findings)
    deriver = _Deriver(run, findings, code)
    for segment in segments:
        for step in segment.steps:
            deriver.check(segment.header, step)
            progress(step.step + 1, newest.step)
        deriver.close(segment)
    _check_identity(segments, findings)
    _check_records(run, findings)
    if not newest.files:
        findings.append(f"commit {newest.name}: it names no files, so there are no weights")
    # The header's total: a manifest could be altered to look unfinished.
    if segments and _must_be_certified(segments[-1], newest):
        findings.append(f"commit {newest.name}: a finished bitwise run has a certificate, and this one has none")
    if tensor_digests is not None:
        _check_certificate(run, newest, tensor_digests, findings)
    discarded, uncommitted = _discarded(run, segments)
    batches = [segment.header.identity.global_batch for segment in segments]
    return Audit(
        steps=sum(len(segment.steps) for segment in segments),
        samples=sum(step.samples for segment in segments for step in segment.steps),
        lost=deriver.lost,
        repeated=deriver.repeated,
        mismatched=deriver.mismatched,
        recomputed=sum(discarded.values()),
        uncommitted=uncommitted,
        global_batches=tuple(b for i, b in enumerate(batches) if i == 0 or b != batches[i - 1]),
        phases=_phases(segments, discarded),
        total_steps=newest.total_steps,
        held_out=tuple(sorted({e.step: e.loss for segment in segments for e in segment.evals}.items())),
        weights=newest.weights_digest,
        findings=_shortened(findings),
    )


def committed_records(run: Run) -> list[Record]:
    """Steps and evaluations along the committed lineage, oldest first, the chain checked on the way.

    Raises:
        StoreError: there is no commit, or the chain breaks.
    """
    findings: list[str] = []
    segments = _lineage(run, _newest(run, findings), findings)
    if findings:
        raise StoreError(findings[0])
    records: list[Record] = []
    for segment in segments:
        records += [*segment.steps, *segment.evals]
    return records


def _newest(run: Run, findings: list[str]) -> Manifest:
    """The newest commit whose manifest can be read; its files are checked.

    Raises:
        NewerFormat: a newer one was written by another version of planner.
        StoreError: there is none.
    """
    for name in reversed(run.commits()):
        try:
            manifest = run.manifest(name)
        except NewerFormat:
            raise
        except StoreError as error:
            findings.append(str(error))
            continue
        try:
            run.check_files(manifest, manifest.files)
        except StoreError as error:
            findings.append(str(error))
        return manifest
    if lost := run.lost_commits():
        raise StoreError(f"{run.storage.url}: the ledger records {len(lost)} commits, and no manifest can be read")
    why = f" ({findings[0]})" if findings else ""
    raise StoreError(f"{run.storage.url}: nothing was committed yet, so there is nothing to audit{why}")


# -- the lineage


def _lineage(run: Run, newest: Manifest, findings: list[str]) -> list[_Segment]:
    """The generations that led to the newest commit, oldest first."""
    segments: list[_Segment] = []
    end: Manifest | None = newest
    while end is not None:
        try:
            parent = run.manifest(end.parent) if end.parent else None
            segments.append(_segment(run, end, parent, findings))
        except NewerFormat:
            raise
        except StoreError as error:
            findings.append(str(error))
            break
        end = parent
    return segments[::-1]


def _segment(run: Run, end: Manifest, parent: Manifest | None, findings: list[str]) -> _Segment:
    """The records from a generation's start to the commit `end`.

    Raises:
        StoreError: the segment is missing, or the chain breaks before the commit's head.
    """
    where = f"ledger of generation {end.generation}"
    links = read_segment(run.storage, end.generation, parent.ledger_head if parent else NO_HEAD)
    records: list[Record] = []
    for link in links:
        records.append(link.record)
        if link.head == end.ledger_head:
            break
    else:
        raise StoreError(f"{where}: it does not reach the head that commit {end.name} names; lines are missing")
    header = records[0]
    if not isinstance(header, GenerationRecord):
        raise StoreError(f"{where}: it does not begin with a header")
    if parent and header.parent_sha256 != run.manifest_digest(parent.name):
        findings.append(
            f"commit {parent.name}: its manifest is not the one that generation {header.generation} went on from"
        )
    start = (parent.name, parent.step, parent.cursor) if parent else ("", 0, 0)
    if (header.parent, header.step, header.cursor) != start:
        findings.append(f"{where}: it begins at step {header.step}, not where commit {start[0] or 'none'} ended")
    steps = tuple(record for record in records if isinstance(record, StepRecord))
    promised = (header.world_size, header.plan_digest, header.total_steps, header.identity, header.facts, header.run_id)
    if (end.world_size, end.plan_digest, end.total_steps, end.identity, end.facts, end.run_id) != promised:
        findings.append(f"commit {end.name}: its plan, length, machine or run is not what its ledger's header names")
    done = (steps[-1].step + 1, steps[-1].cursor) if steps else (header.step, header.cursor)
    if (end.step, end.cursor) != done:
        findings.append(
            f"commit {end.name}: it says step {end.step} and sample {end.cursor}, "
            f"and its ledger step {done[0]} and sample {done[1]}"
        )
    tail = _tail(links, where, findings)
    return _Segment(
        header=header,
        end_step=end.step,
        steps=steps,
        # The evaluation that belongs to a commit is written after it.
        evals=tuple(r for r in (*records, *tail) if isinstance(r, EvalRecord) and r.step <= end.step),
        tail_steps=sum(isinstance(record, StepRecord) for record in tail),
    )


def _tail(links: Iterator[Link], where: str, findings: list[str]) -> list[Record]:
    tail: list[Record] = []
    try:
        tail.extend(link.record for link in links)
    except StoreError as error:
        findings.append(f"{where}, after its last commit: {error}")
    return tail


def _discarded(run: Run, segments: list[_Segment]) -> tuple[dict[int, int], int]:
    """Generation -> steps that were done again since; and the newest generation's steps after its last commit."""
    tails = {segment.header.generation: segment.tail_steps for segment in segments}
    numbers = {*run.generations(), *run.segments()}
    counts = {n: tails[n] if n in tails else _count_steps(run, n) for n in numbers}
    uncommitted = counts.pop(max(counts), 0) if counts else 0
    return counts, uncommitted


def _count_steps(run: Run, generation: int) -> int:
    """Steps in a segment that led nowhere; it may be torn, or never have begun."""
    return run.storage.read_from(segment_name(generation), 0).count(b'"kind":"step"')


def _check_identity(segments: list[_Segment], findings: list[str]) -> None:
    """A run's identity may change only where its header says that the user named the change."""
    for before, after in pairwise(segment.header for segment in segments):
        findings.extend(
            f"generation {after.generation}: another {field} than before, and nobody accepted it"
            for field in before.identity.differences(after.identity)
            if not any(words.startswith(f"{field}: ") for words in after.changed)
        )


def _check_records(run: Run, findings: list[str]) -> None:
    """Check that every recorded commit still has the manifest that the ledger names. Manifests are never removed.

    Every commit must also be recorded, except the last one of a generation: its worker may have died before that.
    """
    recorded = {
        name: digest for number in run.segments() for name, digest in recorded_commits(run.storage, number).items()
    }
    for name, digest in recorded.items():
        try:
            run.manifest(name)
        except StoreError as error:
            # The walk along the lineage may have met it already.
            if str(error) not in findings:
                findings.append(f"commit {name} is on record, and its manifest is no good: {error}")
            continue
        if run.manifest_digest(name) != digest:
            findings.append(f"commit {name}: its manifest is not the one that the ledger records")
    for name, after in pairwise(run.commits()):
        if name not in recorded and commit_of(name)[1] == commit_of(after)[1]:
            findings.append(f"commit {name}: the ledger has no record of it, and its generation went on")


def _must_be_certified(last: _Segment, newest: Manifest) -> bool:
    header = last.header
    return header.identity.equality == "bitwise" and newest.step == header.total_steps and not newest.tensors


def _check_certificate(run: Run, newest: Manifest, tensor_digests: TensorDigests, findings: list[str]) -> None:
    """The digests were taken from the tensors in memory: the files must hold the very same ones."""
    if not newest.tensors:
        return
    if not newest.weights_digest:
        findings.append(f"commit {newest.name}: its certificate names no weights")
    try:
        found = tensor_digests(run.storage, newest)
    except StoreError as error:
        findings.append(f"commit {newest.name}: its tensors cannot be held against its certificate: {error}")
        return
    differing = sorted(n for n in {*found, *newest.tensors} if found.get(n) != newest.tensors.get(n))
    if differing:
        findings.append(
            f"commit {newest.name}: {len(differing)} tensors are not those of its certificate, first {differing[0]}"
        )


def _phases(segments: list[_Segment], discarded: dict[int, int]) -> tuple[Phase, ...]:
    phases = []
    before = 0
    for segment in segments:
        header = segment.header
        plan = recorded_plan(header)
        phases.append(
            Phase(
                generation=header.generation,
                world_size=header.world_size,
                shares=plan.shares,
                accumulation_steps=plan.accumulation_steps,
                first_step=header.step,
                end_step=segment.end_step,
                recomputed_before=sum(n for g, n in discarded.items() if before <= g < header.generation),
            )
        )
        before = header.generation
    return tuple(phases)


# -- what should have been fed


@dataclass(frozen=True, kw_only=True)
class _Recipe:
    """All that is needed to derive the steps of one job."""

    job: Job
    lengths: Lengths
    dataset: AnyDataset
    order: Order
    same_data: bool
    """whether the data is what the run was trained on"""


class _Deriver:
    """Derives each step's samples and learning rate from the job and the data alone, and compares."""

    def __init__(self, run: Run, findings: list[str], code: str) -> None:
        self._run, self._findings, self._code = run, findings, code
        self._opened: dict[str, _Recipe] = {}
        self._cursor = 0
        self.lost = self.repeated = self.mismatched = 0

    def check(self, header: GenerationRecord, step: StepRecord) -> None:
        """One step: its place in the order, its counts, its checksum, its learning rate."""
        global_batch = header.identity.global_batch
        start = step.cursor - global_batch
        self.lost += max(start - self._cursor, 0) + max(global_batch - step.samples, 0)
        self.repeated += max(self._cursor - start, 0) + max(step.samples - global_batch, 0)
        if start != self._cursor:
            self._findings.append(f"step {step.step}: begins at sample {start}, the one before ended at {self._cursor}")
        if step.samples != global_batch:
            self._findings.append(f"step {step.step}: computed {step.samples} samples instead of {global_batch}")
        self._cursor = step.cursor
        recipe = self._open(header)
        self._check_rate(recipe, step)
        derived = self._derive(recipe, step, start)
        if derived is not None and derived != (step.tokens, step.checksum):
            self.mismatched += 1
            self._findings.append(
                f"step {step.step}: what entered the forward pass is not the samples at [{start}, {step.cursor})"
            )

    def _check_rate(self, recipe: _Recipe, step: StepRecord) -> None:
        """Compare the learning rate with the schedule, except for a training loop of the user's own."""
        if recipe.job.is_own:
            return
        train = recipe.job.train
        assert not isinstance(train.optimizer, OwnOptimizer)  # the job was checked at birth
        wanted = learning_rate(train, step.step, recipe.lengths)
        if abs(step.lr - wanted) > _RATE_TOLERANCE * train.optimizer.lr:
            self._findings.append(
                f"step {step.step}: its learning rate is {step.lr!r} on record, and the schedule has {wanted!r}"
            )

    def close(self, segment: _Segment) -> None:
        """After a generation's last step: check the number of its steps, its length and its plan."""
        header = segment.header
        expected = segment.end_step - header.step
        if len(segment.steps) != expected:
            self._findings.append(
                f"generation {header.generation}: {len(segment.steps)} steps on record, {expected} committed"
            )
        if recorded_plan(header).digest != header.plan_digest:
            self._findings.append(
                f"generation {header.generation}: its plan is not what layout version {header.layout_version} gives"
            )
        recipe = self._open(header)
        if segment.end_step > header.total_steps:
            self._findings.append(
                f"generation {header.generation}: it went on to step {segment.end_step}, behind its end at step "
                f"{header.total_steps}"
            )
        if (wanted := recipe.lengths.total_steps) != header.total_steps:
            self._findings.append(
                f"generation {header.generation}: it was to end at step {header.total_steps} on record, "
                f"and its job says {wanted}"
            )
        if recipe.same_data and header.num_samples != recipe.order.num_samples:
            self._findings.append(
                f"generation {header.generation}: an epoch has {header.num_samples} samples on record, "
                f"and {recipe.order.num_samples} in the data"
            )

    def _derive(self, recipe: _Recipe, step: StepRecord, start: int) -> tuple[int, str] | None:
        """Tokens and checksum of the samples from `start` to the step's cursor; none if the data is not the run's."""
        if not recipe.same_data:
            return None
        found = [recipe.dataset.evidence(int(row)) for row in recipe.order.rows(start, step.cursor)]
        # A training loop of the user's own divides its loss by a number that only it knows.
        tokens = step.tokens if recipe.job.is_own else sum(each.tokens for each in found)
        return tokens, f"{sum(each.check_sum for each in found) % 2**64:016x}"

    def _open(self, header: GenerationRecord) -> _Recipe:
        if header.job_digest not in self._opened:
            job = self._job(header)
            dataset, order = open_data(job)
            same_data = identity_of(job, dataset, order) == header.identity
            if not same_data:
                self._findings.append(
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
        """The generation's; where its samples come from code, from the code that the user trusts.

        Raises:
            UserError: he has named none.
        """
        job = self._run.job(header.job_digest)
        if not job.is_own:
            if self._code:
                raise UserError(f"--code {self._code}: this run's samples do not come from code; leave it out")
            return job
        if not self._code:
            raise UserError(
                f"{self._run.storage.url}: its samples come from Python code, and code is run only if you say so: name "
                f"the file that you trust, --code {job.data.path} or another"
            )
        return job.model_copy(update={"data": job.data.model_copy(update={"path": self._code})})


def _shortened(findings: list[str]) -> tuple[str, ...]:
    more = len(findings) - _MOST_FINDINGS
    return (*findings[:_MOST_FINDINGS], *([f"... and {more} more"] if more > 0 else []))
