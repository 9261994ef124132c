"""Derives the numbers of a generation's records from their place in its ledger, and compares them.

A step's number follows from the records before it, and from nothing that its own record says. So do the samples that
it ends at, the step of an evaluation, of a commit and of a measurement, and what a manifest says of its step.
"""

from collections import defaultdict
from collections.abc import Iterable

from planner.store.commit_names import commit_name
from planner.store.ledger import ChainedRecord
from planner.store.records import (
    CommitRecord,
    EvalRecord,
    GenerationRecord,
    Manifest,
    MeasurementRecord,
    Record,
    StepRecord,
)


class RecordNumbers:
    """Takes a generation's records in their order, and counts along.

    Args:
        header: of the generation. Its own numbers are compared with the step that the generation resumed from.
        manifests: of the generation's commits and held steps.
    """

    def __init__(self, header: GenerationRecord, manifests: Iterable[Manifest]) -> None:
        self._header, self._where = header, f"ledger of generation {header.generation}"
        self._size = header.identity.global_batch
        self._step, self._cursor = header.step, header.cursor
        # -1: none yet. A commit or an evaluation may be of step 0.
        self._measured, self._committed = header.step, -1
        self._evaluated, self._has_begun = -1, False
        self._waiting: defaultdict[str, list[Manifest]] = defaultdict(list)
        for manifest in manifests:
            # A step may have two: it was held, another generation resumed from it, and then it became durable.
            self._waiting[manifest.ledger_head].append(manifest)
        self.findings: list[str] = []
        """what is wrong, one sentence each"""
        self.miscounts: list[str] = []
        """steps that computed more or fewer samples than a global batch, one sentence each"""

    def take(self, link: ChainedRecord) -> None:
        """Compare the next record, and the manifests that name the chain's head after it. The header is the first."""
        self.findings += self._wrong(link.record)
        self._has_begun = True
        if isinstance(link.record, StepRecord):
            self._step, self._cursor = self._step + 1, self._cursor + self._size
        for manifest in self._waiting.pop(link.head, ()):
            if (manifest.step, manifest.cursor) != (self._step, self._cursor):
                self.findings.append(
                    f"{manifest.title}: it says step {manifest.step} and sample {manifest.cursor}, "
                    f"and its ledger step {self._step} and sample {self._cursor}"
                )

    def close(self) -> None:
        """After the last record: no manifest of the generation may name another head than those that were taken."""
        for manifests in self._waiting.values():
            self.findings += [
                f"{self._where}: it does not reach the head that {each.title} names" for each in manifests
            ]

    def _wrong(self, record: Record) -> list[str]:
        """What is wrong with a record's numbers, before it is counted."""
        match record:
            case GenerationRecord():
                return [f"{self._where}: it has a second header"] if self._has_begun else []
            case StepRecord():
                return self._wrong_step(record)
            case EvalRecord():
                return self._wrong_evaluation(record)
            case CommitRecord():
                return self._wrong_commit(record)
            case MeasurementRecord():
                return self._wrong_measurement(record)
        return []

    def _wrong_step(self, record: StepRecord) -> list[str]:
        findings = []
        if record.step != self._step:
            findings.append(self._misplaced("a step", record.step))
        if record.cursor != self._cursor + self._size:
            findings.append(
                f"step {self._step}: it ends at sample {record.cursor} on record, and by its place in the ledger at "
                f"sample {self._cursor + self._size}"
            )
        if record.samples != self._size:
            self.miscounts.append(f"step {self._step}: computed {record.samples} samples instead of {self._size}")
        return findings

    def _wrong_evaluation(self, record: EvalRecord) -> list[str]:
        if record.step != self._step:
            return [self._misplaced("an evaluation", record.step)]
        if record.step == self._evaluated:
            return [f"{self._where}: it has two evaluations before step {record.step}"]
        self._evaluated = record.step
        return []

    def _wrong_commit(self, record: CommitRecord) -> list[str]:
        """A commit may be recorded after later steps, and never before an earlier commit."""
        first, self._committed = max(self._header.step, self._committed + 1), max(self._committed, record.step)
        if record.name != commit_name(record.step, self._header.generation):
            return [f"{self._where}: it records commit {record.name} as that of step {record.step}"]
        if not first <= record.step <= self._step:
            return [f"{self._where}: it records commit {record.name} between steps {self._step - 1} and {self._step}"]
        return []

    def _wrong_measurement(self, record: MeasurementRecord) -> list[str]:
        first, self._measured = self._measured, max(self._measured, min(record.step, self._step))
        begin = record.step - record.num_steps
        if begin == first < record.step <= self._step:
            return []
        said, found = f"[{begin}, {record.step})", f"they begin at {first} and end by {self._step}"
        return [f"{self._where}: a measurement says steps {said}, and by its place in the ledger {found}"]

    def _misplaced(self, what: str, step: int) -> str:
        return f"{self._where}: the record of {what} says {step}, and by its place in the ledger it is {self._step}"
