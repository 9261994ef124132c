"""Runs in a folder that nobody trained: samples, plans, chains and seals are right, and losses are invented."""

import contextlib
import json
from dataclasses import replace
from hashlib import sha256

from planner.events.event import Event, facts_of
from planner.job import Job, batch_sizes
from planner.job.step_schedule import learning_rate, lengths
from planner.plan import make_plan
from planner.plan.by_length import ByLength, placement
from planner.plan.lowered_caps import lowered_sizes
from planner.provenance.data_facts import data_facts
from planner.provenance.identity import identity_of, open_data
from planner.store.ledger import LedgerWriter
from planner.store.records import (
    NO_HEAD,
    AcceptedChange,
    CommitRecord,
    EvalRecord,
    EventRecord,
    FileDigest,
    GenerationRecord,
    LoweredCapRecord,
    Manifest,
    MeasurementRecord,
    StepRecord,
    digest_of,
)
from planner.store.run_folder import RunFolder, commit_name
from planner.store.storage import Storage
from planner.wording.event_text import text_of

BEGAN_S = 1_700_000_000.0


def make_job(data, **sections):
    """A job with three samples in each step. `sections` are merged into its sections."""
    job = {
        "name": "made-up",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 8},
        "data": data,
        "batch": {"global": 3, "max_micro": 2},
        "train": {"steps": 30, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "workers": {"gpus": 0},
    }
    return Job.model_validate({**job, **{name: {**job.get(name, {}), **given} for name, given in sections.items()}})


def text_job(folder, **sections):
    """A job over a small text."""
    corpus = folder / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog. " * 6)
    return make_job({"kind": "text", "path": str(corpus)}, **sections)


class MadeUpRun:
    """A run, to which each method adds what rank 0 would write.

    `is_observed`: each step is observed, too, as in `planner verify`.
    """

    def __init__(self, folder, *, steps=30, equality="balanced", job=None, is_observed=False):
        self.run = RunFolder(Storage(str(folder / "run")))
        self._run_id = self.run.ensure_identity().run_id
        self._is_observed = is_observed
        self._header = self._ledger = self._plan = self._identity = None
        self.change_job(job or text_job(folder, train={"steps": steps}, batch={"equality": equality}))
        self._points = {}  # (generation, step) -> its manifest, as if it had been committed
        self.step = 0

    @property
    def generation(self):
        """The newest generation."""
        return self._header.generation

    @property
    def first_step(self):
        """Of the newest generation."""
        return self._header.step

    @property
    def total_steps(self):
        """Of the job."""
        return self._lengths.total_steps

    @property
    def name(self):
        """Of the newest step."""
        return commit_name(self.step, self.generation)

    def change_job(self, job):
        """Generations that begin from now on have another job. `accepted` is what then must be accepted by name."""
        before = self._identity
        self.job = job
        self._dataset, self._order = open_data(job)
        self._identity = identity_of(job, self._dataset, self._order)
        self._lengths = lengths(job, self._order.num_samples)
        self.accepted = tuple(
            AcceptedChange(field=field, before=str(getattr(before, field)), now=str(getattr(self._identity, field)))
            for field in (before.differences(self._identity) if before else ())
        )
        return self

    def begin_lowered(self, workers, parent, lowered):
        """Begin a generation whose caps were lowered, from a commit."""
        return self.begin_capped(workers, parent, lowered_sizes(batch_sizes(self.job), lowered), lowered)

    def begin_capped(self, workers, parent, sizes, lowered=(), planned=None):
        """Begin a generation with the caps of `sizes`. `planned`: its steps are split by that cap on tokens instead."""
        plan = make_plan(sizes, workers)
        self.begin(
            workers,
            parent,
            max_micro=sizes.max_micro,
            max_tokens=sizes.max_tokens,
            plan_digest=plan.digest,
            layout_version=plan.layout_version,
            lowered=tuple(map(LoweredCapRecord.of, lowered)),
        )
        self._plan = plan if planned is None else make_plan(replace(sizes, max_tokens=planned), workers)
        return self

    def begin(self, workers, parent="", *, is_held=False, **changed):
        """Begin a generation from scratch, from a commit, or from memory. It writes the held step's manifest."""
        number = self.run.claim_generation({"launch": "a", "parent": parent})
        origin = self._points[parent] if parent else None
        digest = ""
        if origin:
            digest = (
                self.run.put_held(self._held(origin), writer=number)
                if is_held
                else digest_of(self.run.manifest(parent))
            )
        plan = self._plan = make_plan(batch_sizes(self.job), workers)
        fields = {
            "generation": number,
            "run_id": self._run_id,
            "parent": parent,
            "parent_is_held": is_held,
            "parent_sha256": digest,
            "step": origin.step if origin else 0,
            "cursor": origin.cursor if origin else 0,
            "world_size": workers,
            "max_micro": plan.max_micro,
            "max_tokens": self.job.batch.max_tokens,
            "attention_at": self.job.batch.attention_at,
            "layout_version": plan.layout_version,
            "plan_digest": plan.digest,
            "identity": self._identity,
            "job_digest": self.run.keep_job(self.job),
            "total_steps": self._lengths.total_steps,
            "num_samples": self._order.num_samples,
            "facts": data_facts(self._dataset, self._order),
            "changed": (),
            "launch_id": "a",
            "launched_s": BEGAN_S,
            "time_s": BEGAN_S + 100 * number,
        }
        self._header = GenerationRecord(**{**fields, **changed})
        self._ledger = LedgerWriter(self.run.storage, self._header, origin.ledger_head if origin else NO_HEAD)
        self.step = self._measured_step = self._header.step
        self._keep_point()
        return self

    def steps(self, number):
        """Do some steps."""
        for _ in range(number):
            start = self.step * self._identity.global_batch
            cursor = start + self._identity.global_batch
            evidence = self._dataset.evidence if self._header.format >= 4 else self._dataset.evidence_of_bytes
            rows = self._order.rows(start, cursor).tolist()
            found = [evidence(row) for row in rows]
            record = StepRecord(
                step=self.step,
                cursor=cursor,
                samples=self._identity.global_batch,
                tokens=sum(each.tokens for each in found),
                checksum=f"{sum(each.check_sum for each in found) % 2**64:016x}",
                placement=self._placement(rows),
                loss=5.0 / (1 + self.step),
                grad_norm=1.0,
                lr=learning_rate(self.job.train, self.step, self._lengths),
                seconds=1.0,
            )
            self._ledger.write(record)
            if self._is_observed:
                self._observe()
            self.step += 1
            self._keep_point()
        return self

    def _placement(self, rows):
        if not isinstance(self._plan, ByLength):
            return ""
        found = self._plan.assignment(*(each.tolist() for each in self._dataset.lengths(rows)))
        slots = (
            [[rows[offset] for offset in slot] for slot in found.micro_batches(r)] for r in range(found.world_size)
        )
        return f"{sum(placement(rank, own) for rank, own in enumerate(slots)) % 2**64:016x}"

    def _observe(self):
        line = {
            "step": self.step,
            "attempts": 1,
            "forward_passes": [self._plan.accumulation_steps] * self._header.world_size,
            "tensors": {name: [self.step] for name in ("gradient/w", "model/w", "optimizer/w")},
        }
        self.run.storage.append("observed.jsonl", f"{json.dumps(line)}\n".encode())

    def commit(self, *, is_recorded=True, at=""):
        """Commit the newest step, or the one of the name `at`, whose commit became durable only now."""
        name = at or self.name
        content = f"tensors of {name}".encode()
        self.run.storage.write(f"checkpoints/{name}/__0_0.distcp", content)
        file = FileDigest(name="__0_0.distcp", size_bytes=len(content), sha256=sha256(content).hexdigest())
        is_certified = self._identity.equality == "bitwise" and self.step == self._header.total_steps
        named = ("model/w", "optimizer/w", "fixed_point/w")
        tensors = {name: sha256(name.encode()).hexdigest() for name in named} if is_certified else {}
        manifest = self._points[name].model_copy(update={"files": (file,), "tensors": tensors})
        self.run.put_manifest(manifest)
        if is_recorded:
            record = CommitRecord(step=manifest.step, name=name, sha256=digest_of(manifest), seconds=0.5, write_s=1.5)
            self._ledger.write(record)
        return self

    def evaluate(self):
        """Evaluate before the newest step."""
        samples = self._order.num_held_out
        tokens = sum(self._dataset.evidence(int(row)).tokens for row in self._order.held_out_rows(0, samples))
        self._ledger.write(EvalRecord(step=self.step, samples=samples, tokens=tokens, loss=4.0, seconds=1.0))
        return self

    def measure(self):
        """Measure the steps since the last measurement."""
        times = ("seconds", "data_s", "forward_s", "backward_s", "update_s", "communication_s")
        counts = ("input_tokens", "padded_tokens", "flops", "peak_flops_per_s", "peak_memory_bytes")
        numbers = {**dict.fromkeys(times, 0.5), **dict.fromkeys(counts, 0)}
        steps = self.step - self._measured_step
        self._ledger.write(MeasurementRecord(step=self.step, num_steps=steps, time_s=self._header.time_s, **numbers))
        self._measured_step = self.step
        return self

    def note(self, message, event="", facts=None):
        """Write an event: one of `planner.events`, or its text with its name and its facts."""
        if isinstance(message, Event):
            message, event, facts = text_of(message), message.name, facts_of(message)
        time_s = self._header.time_s + 1
        self._ledger.write(EventRecord(event=event, facts=facts or {}, message=message, time_s=time_s))
        return self

    def _keep_point(self):
        header = self._header
        self._points[self.name] = Manifest(
            run_id=self._run_id,
            name=self.name,
            generation=header.generation,
            parent=header.parent,
            step=self.step,
            cursor=self.step * self._identity.global_batch,
            total_steps=header.total_steps,
            identity=header.identity,
            plan_digest=header.plan_digest,
            world_size=header.world_size,
            facts=header.facts,
            job_digest=header.job_digest,
            ledger_head=self._ledger.head,
            files=(),
            tensors={},
            versions={"planner": "0"},
            time_s=header.time_s + self.step,
        )

    def _held(self, point):
        shards = {f"{rank}/model/w": f"{rank:032x}" for rank in range(point.world_size)}
        return point.model_copy(update={"shards": shards})


def make_history(folder):
    """A bitwise run of 12 steps in four generations, 7 of them in the first epoch, with all that a run may come to.

    Generation 1: 4 workers, steps 0 to 5, commits 2 and 4.
    Generation 2: 2 workers from memory at step 5 to step 7. Then all memory was lost.
    Generation 3: 3 workers from commit 4 to step 9, a copy of step 8, a commit of step 6.
    Generation 4: 2 workers from memory at step 8 to the end, commits 10 and 12.

    The run is in `run`, its data in `rows.jsonl`. The job has the data's path relative to the folder.
    """
    rows = ({"text": f"{number} " + "abcdefg " * (number % 5)} for number in range(40))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    job = make_job(
        {"kind": "jsonl", "path": "rows.jsonl"},
        batch={"global": 5, "equality": "bitwise"},
        train={"steps": 12, "seed": 5, "schedule": {"kind": "cosine", "warmup": "20%"}},
        eval={"samples": 4, "every": 6},
    )
    with contextlib.chdir(folder):
        made = MadeUpRun(folder, job=job, is_observed=True)
        made.begin(4).evaluate().steps(2).commit().steps(2).commit()
        durable = made.name
        made.steps(1)
        made.begin(2, made.name, is_held=True).steps(2).measure()
        made.begin(3, durable).note("all memory was lost").steps(1).measure().steps(1).evaluate().commit()
        held = made.steps(2).name
        made.steps(1).measure()
        made.begin(2, held, is_held=True).steps(2).measure().commit().steps(2).measure().evaluate().commit()
    return made
