"""What was read, by the witness, against what was trained, by the ledger: neither knows of the other.

The witness saw, for each worker process, which rows it read and for which generation, in order. The ledger says which
steps each generation did, at which size, and which of them count. A worker reads its part of a step's global batch
round by round, and one row more for a round without samples; so the k-th read of a rank belongs to a known place of a
known step, without a look at the order that planner drew.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.data.user_dataset import check_sum
from planner.plan import BatchSizes, make_plan
from planner.store.ledger import segment_name, split_line
from planner.store.records import GenerationRecord, StepRecord, parse_record
from planner.store.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What the two say together."""

    reads: int
    """of all processes"""
    steps: int
    """of the ledger that the witness has seen every sample of, those that were done again included"""
    findings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Which worker a process was last."""

    generation: int
    rank: int
    world_size: int
    is_kept: bool
    """whether its node had a keeper when the group began"""


def newest_rank(folder: Path, pid: int) -> Rank | None:
    """Which worker a process says that it is. None if it has not said anything."""
    found = []
    for path in folder.glob(f"{pid}-*.log"):
        for line in path.read_text().splitlines():
            fields = line.split()
            if fields[:1] == ["generation"] and len(fields) == 7:
                number, rank, size = (int(fields[place]) for place in (1, 3, 5))
                found.append(Rank(generation=number, rank=rank, world_size=size, is_kept=fields[6] == "kept"))
    return max(found, key=lambda rank: rank.generation, default=None)


def reads_of(folder: Path, findings: list[str]) -> dict[tuple[int, int], list[int]]:
    """(generation, rank) -> rows in the order of reading. Adds a finding if two processes were the same rank."""
    found: dict[tuple[int, int], list[int]] = {}
    for path in sorted(folder.glob("*.log")):
        rows: list[int] = []
        for line in path.read_text().splitlines():
            fields = line.split()
            if fields[0] == "generation":
                rank = int(fields[1]), int(fields[3])
                if rank in found:
                    findings.append(f"generation {rank[0]}: two processes were rank {rank[1]} of it")
                rows = found[rank] = []
            else:
                rows.append(int(fields[1]))
    return found


def reconcile(
    run: RunFolder, folder: Path, sizes: BatchSizes, samples: Any, phases: Sequence[tuple[int, int, int]]
) -> Testimony:
    """Compare every step of the ledger with the witness, and the committed steps with the data set, by epochs.

    `samples` is the data set; `phases` are (generation, first step, step after the last) of the committed lineage.
    """
    findings: list[str] = []
    reads = reads_of(folder, findings)
    trained: dict[tuple[int, int], list[int]] = {}
    for generation in run.segments():
        header, records = _segment(run, generation)
        for record in records:
            rows = _rows_of(reads, header, record.step, sizes) if header else None
            where = f"generation {generation}, step {record.step}"
            if rows is None:
                findings.append(f"{where}: in the ledger, but no worker read its samples")
                continue
            trained[generation, record.step] = rows
            total = sum(check_sum(row, samples[row]) for row in rows) % 2**64
            if f"{total:016x}" != record.checksum:
                findings.append(f"{where}: other samples were read than trained")
    ends = [0, *(end for _, _, end in phases)]
    if [first for _, first, _ in phases] != ends[:-1]:
        findings.append(f"the committed phases do not follow one another: {list(phases)}")
    lineage = [(generation, step) for generation, first, end in phases for step in range(first, end)]
    missing = [place for place in lineage if place not in trained]
    findings += [f"generation {g}, step {step}: committed, and not on record" for g, step in missing]
    findings += _epochs([row for place in lineage for row in trained.get(place, [])], len(samples))
    return Testimony(reads=sum(map(len, reads.values())), steps=len(trained), findings=tuple(findings[:20]))


def _segment(run: RunFolder, generation: int) -> tuple[GenerationRecord | None, list[StepRecord]]:
    """As far as its lines are whole; that they are chained is the audit's business."""
    lines = run.storage.read(segment_name(generation)).decode(errors="replace").split("\n")[:-1]
    records = [parse_record(split_line(line, "ledger")[1], "ledger") for line in lines]
    header = next((record for record in records if isinstance(record, GenerationRecord)), None)
    return header, [record for record in records if isinstance(record, StepRecord)]


def _rows_of(
    reads: dict[tuple[int, int], list[int]], header: GenerationRecord, step: int, sizes: BatchSizes
) -> list[int] | None:
    """The rows of one step by their place in the global batch; none if a place has no read."""
    plan = make_plan(sizes, header.world_size)
    places: dict[int, int] = {}
    for rank in range(header.world_size):
        slots = list(plan.micro_batches(rank))
        at = (step - header.step) * sum(max(len(slot), 1) for slot in slots)
        for slot in slots:
            for place in slot:
                seen = reads.get((header.generation, rank), [])
                if at >= len(seen):
                    return None
                places[place] = seen[at]
                at += 1
            at += not slot
    return [places[place] for place in range(plan.global_batch)]


def _epochs(rows: list[int], size: int) -> list[str]:
    """Every epoch has every row once; the last one is not over."""
    findings = []
    for number, begin in enumerate(range(0, len(rows), size)):
        epoch = rows[begin : begin + size]
        repeated = [row for row, count in Counter(epoch).items() if count > 1]
        if repeated:
            findings.append(f"epoch {number}: rows {repeated[:5]} were trained on more than once")
        if len(epoch) == size and len(set(epoch)) < size:
            findings.append(f"epoch {number}: {size - len(set(epoch))} rows were never trained on")
    return findings
