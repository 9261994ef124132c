"""The audit of a run: which samples each step should have used, compared with what the ledger records.

`lineage` reads the committed records, `record_numbers` derives their numbers, `run_checks` looks at all generations,
`step_comparison` derives the samples and learning rates, `certificate` compares tensors with their digests. This module
makes the verdict. It needs the run's folder and the data, no torch and no Ray.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.plan.by_length import ByLength
from planner.provenance.certificate import TensorDigests, check_certificate
from planner.provenance.identity import recorded_plan
from planner.provenance.lineage import Segment, read_lineage
from planner.provenance.run_checks import check_formats, check_identity, check_outside, check_records, count_discarded
from planner.provenance.set_uses import SetUse
from planner.provenance.stage import now_text, stage_of
from planner.provenance.step_comparison import derive
from planner.store.run_folder import RunFolder

# A broken sampler breaks every step, and the first findings show the mistake.
_MOST_FINDINGS = 20


@dataclass(frozen=True, kw_only=True)
class GenerationSteps:
    """Committed steps of one generation: one world size, one plan."""

    generation: int
    world_size: int
    shares: tuple[tuple[int, int], ...]
    accumulation_steps: int
    first_step: int
    end_step: int
    """half open: the first step that is not in the lineage"""
    recomputed_before: int
    """steps that earlier generations did after its first step and did not commit: it computed them again"""
    from_memory: bool = False
    """it resumed from copies in memory of a step that was held and not durable"""
    by_length: bool = False
    """each step has a split of its own. `shares` and `accumulation_steps` are those of samples of equal length"""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The verdict. Clean: every committed step used exactly its samples and learning rate, and no record was altered.

    docs/security.md says what the audit takes on trust.
    """

    steps: int
    samples: int
    lost: int
    """positions of the order that no committed step computed, by the recorded counts"""
    repeated: int
    """positions that committed steps computed more than once, by the recorded counts"""
    mismatched: int
    """steps whose checksum differs from that of the samples that they should have used"""
    recomputed: int
    """uncommitted steps of earlier generations, which later generations computed again"""
    uncommitted: int
    """steps after the newest commit, of the newest generation and of those before that it goes on from in memory. They
    are lost if all workers and all memory are lost now"""
    global_batches: tuple[int, ...]
    """the global batches along the lineage, in order, with one entry if it never changed"""
    phases: tuple[GenerationSteps, ...]
    total_steps: int
    held_out: tuple[tuple[int, float], ...]
    """`(step, held-out loss)` along the lineage, ascending"""
    weights: str
    """one SHA-256 over the final weights of a finished `bitwise` run, 64 hex digits, else empty"""
    findings: tuple[str, ...]
    """what is wrong, one sentence each, empty if clean"""
    sets: tuple[SetUse, ...] = ()
    """samples used of each set of a mixture. Empty if there is only one set"""
    after: str = ""
    """the commit of an earlier run that gave the first weights, by the newest manifest, and whether it is there now.
    Empty if they are from no run"""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def audit(
    run: RunFolder,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
    tensor_digests: TensorDigests | None = None,
    code: str = "",
) -> Audit:
    """Audit a run.

    Args:
        run: the run.
        progress: called with `(done, of)` after each step.
        tensor_digests: reads the digests of a commit's tensors (`planner.train.checkpoints.checkpoint.read_digests`).
            If given, the tensors of a finished `bitwise` run are compared with its certificate.
        code: the Python file with the `dataset()` of a run with the user's own training loop. The path in the ledger
            is never run.

    Raises:
        StoreError: there is no run, or no commit to audit.
        DataError: the data cannot be read any more.
        UserError: the data comes from code, and `code` names none.
    """
    # Raises an error if there is no run.
    run.identity()
    lineage = read_lineage(run)
    segments, newest = lineage.segments, lineage.newest
    derived = derive(run, segments, code, progress)
    miscounts = [miscount for segment in segments for miscount in segment.miscounts]
    findings = [*lineage.findings, *miscounts, *derived.findings, *check_identity(segments), *check_formats(run)]
    findings += check_records(run, lineage, findings)
    findings += check_outside(run, lineage, findings)
    findings += check_certificate(run.storage, lineage, tensor_digests)
    discarded, uncommitted = count_discarded(run, segments)
    return Audit(
        steps=len(lineage.steps),
        samples=sum(step.samples for step in lineage.steps),
        lost=derived.lost,
        repeated=derived.repeated,
        mismatched=derived.mismatched,
        recomputed=sum(discarded.values()),
        uncommitted=uncommitted,
        global_batches=_global_batches(segments),
        phases=_phases(segments, discarded),
        total_steps=newest.total_steps,
        held_out=tuple(sorted({each.step: each.loss for each in lineage.evals}.items())),
        weights=newest.weights_digest,
        findings=_shortened(findings),
        sets=derived.sets,
        after=now_text(stage_of(newest.facts)),
    )


def _global_batches(segments: Sequence[Segment]) -> tuple[int, ...]:
    batches = [segment.header.identity.global_batch for segment in segments]
    return tuple(b for i, b in enumerate(batches) if i == 0 or b != batches[i - 1])


def _phases(segments: Sequence[Segment], discarded: Mapping[int, int]) -> tuple[GenerationSteps, ...]:
    phases = []
    before = 0
    for segment in segments:
        header = segment.header
        plan = recorded_plan(header)
        phases.append(
            GenerationSteps(
                generation=header.generation,
                world_size=header.world_size,
                shares=plan.shares,
                accumulation_steps=plan.accumulation_steps,
                first_step=header.step,
                end_step=segment.end_step,
                recomputed_before=sum(n for g, n in discarded.items() if before <= g < header.generation),
                from_memory=header.parent_is_held,
                by_length=isinstance(plan, ByLength),
            )
        )
        before = header.generation
    return tuple(phases)


def _shortened(findings: Sequence[str]) -> tuple[str, ...]:
    more = len(findings) - _MOST_FINDINGS
    return (*findings[:_MOST_FINDINGS], *([f"... and {more} more"] if more > 0 else []))
