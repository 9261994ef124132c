"""Reference log-probabilities of all pairs, computed once and kept in the run's folder.

    reference/<key>/<part>      `planner-reference 1` and a line break, a SHA-256 of 32 bytes,
                                float32, (rows, 2): chosen and rejected

The key is a hash of everything that the numbers depend on. Rows go through the model in order, in fixed chunks of
`max_micro`, so no bit depends on the number of workers. Parts are written whole, one after another. An interrupted
computation resumes from the finished parts, with any number of workers.
"""

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from planner.base import progress_counter
from planner.base.format_versions import STORED, refusal
from planner.data.base import SampleDataset
from planner.errors import NewerFormat, TrainingFailed
from planner.events.event import Event
from planner.events.training import ReferenceComputed, ReferenceDamaged, ReferenceProgress, ReferenceStopped
from planner.job import Job
from planner.store.storage import Storage
from planner.train import control
from planner.train.control import Tally
from planner.train.log_probs import log_probs, no_training
from planner.train.models.head import moved
from planner.train.sample_batches import Sequences, pair_batch
from planner.train.world import World

LogProbs = NDArray[np.float32]
"""`(rows, 2)`: log-probabilities of chosen and of rejected completions"""

_FOLDER = "reference"
_MAGIC = b"planner-reference "
_BEGIN = _MAGIC + b"%d\n" % STORED["reference"]
# Rows per part, and most parts. A stop loses the unfinished part, but too many files would be slow.
_PART_ROWS = 2048
_MOST_PARTS = 1024
_DIGEST_BYTES = 32
_NOTE_S = 30.0


class StopRequested(Exception):  # not an error: a worker was asked to stop, and all workers do
    """The computation of the table was stopped. Its finished parts are kept."""


class CachedReference:
    """A reference that looks log-probabilities up in a table."""

    def __init__(self, table: LogProbs) -> None:
        self._table = torch.from_numpy(table)

    def log_probs(self, policy: nn.Module, sequences: Sequences, rows: tuple[int, ...]) -> Tensor:
        """`(2m,)` float32: log-probabilities of the chosen completions, then of the rejected ones."""
        # A ghost's sequences have no row, and their weight is zero.
        found = self._table[list(rows)].T.reshape(-1) if rows else torch.zeros(len(sequences.lengths))
        return moved(found, next(policy.parameters()).device)


@dataclass(frozen=True, kw_only=True)
class TokenLimit:
    """Chunks of packed pairs, which hold at most so many tokens."""

    row_tokens: NDArray[np.int64]
    """`(rows,)`: input tokens of both completions with their prompts"""
    max_tokens: int
    """of a chunk. A row with more is a chunk by itself"""

    def cut(self, chunk: range) -> list[range]:
        """A chunk's rows as chunks within the limit, filled one after another."""
        starts, tokens = [chunk.start], 0
        for row in chunk:
            tokens += int(self.row_tokens[row])
            if tokens > self.max_tokens and row > starts[-1]:
                starts.append(row)
                tokens = int(self.row_tokens[row])
        return [range(start, stop) for start, stop in itertools.pairwise([*starts, chunk.stop])]


@dataclass(frozen=True, kw_only=True)
class TableFiles:
    """The files of one table."""

    storage: Storage
    key: str
    num_rows: int
    chunk_rows: int
    """rows that go through the model at once"""
    limit: TokenLimit | None = None
    """of chunks whose texts are packed. None: they are padded"""

    @property
    def rows_each(self) -> int:
        """Rows of a part, a multiple of `chunk_rows`. The last part may have fewer."""
        wanted = max(_PART_ROWS, -(-self.num_rows // _MOST_PARTS))
        return -(-wanted // self.chunk_rows) * self.chunk_rows

    @property
    def starts(self) -> range:
        """The first row of each part."""
        return range(0, self.num_rows, self.rows_each)

    def chunks(self, start: int) -> list[range]:
        """The chunks of a part's rows that go through the model."""
        stop = self._stop(start)
        chunks = [range(i, min(i + self.chunk_rows, stop)) for i in range(start, stop, self.chunk_rows)]
        return chunks if self.limit is None else [part for chunk in chunks for part in self.limit.cut(chunk)]

    def _stop(self, start: int) -> int:
        return min(start + self.rows_each, self.num_rows)

    def name(self, start: int) -> str:
        """The part's name in the run's storage."""
        return f"{_FOLDER}/{self.key}/{start:012d}"

    def read(self, start: int) -> tuple[LogProbs | None, str]:
        """Read a part. Returns its numbers and "", or None and the reason if it is damaged ("" if it is missing).

        Raises:
            NewerFormat: another version of planner wrote the part.
            StoreError: the storage cannot be read.
        """
        content = self.storage.read_from(self.name(start), 0)
        if not content:
            return None, f"{self.name(start)}: empty" if self.storage.exists(self.name(start)) else ""
        self._require_format(content, start)
        begin, rest = content[: len(_BEGIN)], content[len(_BEGIN) :]
        digest, numbers = rest[:_DIGEST_BYTES], rest[_DIGEST_BYTES:]
        num_rows = self._stop(start) - start
        if begin != _BEGIN or digest != self._digest(start, numbers) or len(numbers) != num_rows * 8:
            return None, f"{self.name(start)}: torn or altered (its digest does not match)"
        # `astype` also copies: the bytes that were read cannot be written, about which torch warns.
        return np.frombuffer(numbers, "<f4").reshape(num_rows, 2).astype(np.float32), ""

    def _require_format(self, content: bytes, start: int) -> None:
        number = re.match(_MAGIC + rb"([0-9]{1,9})\n", content)
        if number and (why := refusal(int(number[1]), "reference")):
            raise NewerFormat(
                f"{self.storage.url}/{self.name(start)}: {why}. Use the version that wrote it, or remove "
                f"{_FOLDER}/{self.key} to compute it again"
            )

    def write(self, start: int, values: LogProbs) -> None:
        """Write a part, whole or not at all.

        Raises:
            TrainingFailed: a number is not finite.
        """
        if not np.isfinite(values).all():
            row = start + int(np.argwhere(~np.isfinite(values).all(axis=1))[0, 0])
            raise TrainingFailed(
                f"the reference's log-probability of row {row} is not finite. Check the row and the model, or set "
                "train.precision: fp32"
            )
        numbers = values.astype("<f4").tobytes()
        self.storage.write(self.name(start), _BEGIN + self._digest(start, numbers) + numbers)

    def _digest(self, start: int, numbers: bytes) -> bytes:
        # With the part's place, so that another part's file under this name is refused.
        return hashlib.sha256(f"{self.key} {start} ".encode() + numbers).digest()


ROWS_OF_AUTO = 4
"""Rows that one forward pass without gradients always has room for, where the job names no number. Not what fits: the
chunk decides the bits of the table."""


def _chunk_rows(job: Job) -> int:
    return ROWS_OF_AUTO if job.batch.max_micro == "auto" else job.batch.max_micro


def parts_of(
    job: Job, model: str, dataset: SampleDataset, storage: Storage, *, limit: TokenLimit | None = None
) -> TableFiles:
    """The files of a job's table. Another model, data, precision, chunk or limit makes another table.

    `model` identifies the model's settings and the files of its first weights. With `limit`, texts are packed.
    """
    depends_on = {
        "model": model,
        "reference_model": job.reference.model,
        "seed": job.train.seed,
        "precision": job.train.precision,
        "chunk": (chunk := _chunk_rows(job)),
        "data": dataset.fingerprint,
        "rows": dataset.num_rows,
    }
    if limit is not None:  # the other keys stay as they were
        depends_on["packed"] = limit.max_tokens
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    return TableFiles(storage=storage, key=key, num_rows=dataset.num_rows, chunk_rows=chunk, limit=limit)


@dataclass(frozen=True, kw_only=True)
class TableBuilder:
    """Everything that the workers of a generation need to read a table and compute its missing parts."""

    world: World
    parts: TableFiles
    dataset: SampleDataset
    make_model: Callable[[], nn.Module]
    """called on every worker if a part is missing"""
    note: Callable[[Event], None]
    should_stop: Callable[[], bool]

    def table(self) -> LogProbs:
        """The whole table, read or computed. All workers must call it.

        Raises:
            StopRequested: on every worker, if one was asked to stop before the table was complete.
            PlannerError: on every worker, if a row cannot be read, or its number is not finite.
        """
        found = self.world.from_first(self._read)
        if missing := [start for start, values in found.items() if values is None]:
            found |= self._compute(missing)
        return np.concatenate([values for values in found.values() if values is not None])

    def _read(self) -> dict[int, LogProbs | None]:
        found: dict[int, LogProbs | None] = {}
        for start in self.parts.starts:
            found[start], why = self.parts.read(start)
            if why:
                self.note(ReferenceDamaged(reason=why))
        return found

    def _compute(self, missing: list[int]) -> dict[int, LogProbs | None]:
        began_s = noted_s = time.monotonic()
        num_rows = sum(len(chunk) for start in missing for chunk in self.parts.chunks(start))
        model, done = self.make_model(), 0
        found: dict[int, LogProbs | None] = {}
        with no_training(model):
            for start in missing:
                values = self._compute_part(model, start, partial(self._hear, done, num_rows))
                self.world.from_first(lambda: self.parts.write(start, values))  # noqa: B023
                found[start] = values
                done += len(values)
                if time.monotonic() - noted_s > _NOTE_S and done < num_rows:
                    noted_s = time.monotonic()
                    self.note(ReferenceProgress(done=done, rows=num_rows))
        self.note(ReferenceComputed(rows=num_rows, seconds=time.monotonic() - began_s))
        return found

    def _compute_part(self, model: nn.Module, start: int, hear: Callable[[], None]) -> LogProbs:
        world, chunks = self.world, self.parts.chunks(start)
        num_rounds = -(-len(chunks) // world.world_size)
        mine = chunks[world.rank :: world.world_size]
        # Ghosts, because FSDP needs every worker in a forward pass.
        mine += [range(0)] * (num_rounds - len(mine))
        make_batch = partial(pair_batch, self.dataset, is_packed=self.parts.limit is not None)
        batches = world.agree(lambda: [make_batch(list(rows), rows.start) for rows in mine])
        values = []
        for batch in batches:
            hear()
            progress_counter.count_work()
            found = log_probs(model, batch.sequences).view(2, -1)[:, : len(batch.rows)]
            values.append(found.T.cpu().numpy())
        by_rank = world.gather(values)
        return np.concatenate([by_rank[i % world.world_size][i // world.world_size] for i in range(len(chunks))])

    def _hear(self, done: int, num_rows: int) -> None:
        """Stop all workers if one of them was asked to. All workers call it once per round.

        Raises:
            StopRequested: on every worker, if one of them was asked to stop.
        """
        if control.exchange(self.world, Tally(denominators=(), stop=int(self.should_stop()))).stop:
            self.note(ReferenceStopped(done=done, rows=num_rows))
            raise StopRequested
