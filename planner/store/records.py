"""The stored values of a run: ledger records, manifests and `run.json`. All are frozen and checked when read."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from planner.base.format_versions import STORED, refusal
from planner.base.json_text import NoJson, json_object
from planner.errors import NewerFormat, StoreError
from planner.events.event import Event
from planner.events.kinds import event_of
from planner.plan.lowered_caps import Caps, LoweredCap
from planner.plan.plan import canonical_mode

NO_HEAD = "0" * 64
"""the value of the hash chain before the first record of a run"""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ShardDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class StoredModel(BaseModel):
    """A stored value. It is frozen, and unknown fields are refused."""

    # JSON has neither infinity nor NaN, and `canonical_json` refuses to write them.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def require_format(found: object, what: str, where: str) -> None:
    """Check the format number of a stored value. Call it before any other check.

    Args:
        found: the stored format number, or None if there is none.
        what: the value's name in `planner.base.format_versions.STORED`.
        where: the file, for the message.

    Raises:
        NewerFormat: this version of planner does not read that format.
    """
    if why := refusal(found, what):
        raise NewerFormat(f"{where}: {why}. Use the version that wrote it, or start again with another checkpoint.path")


class TrainingIdentity(StoredModel):
    """What makes a run the same training run. It stays the same over all generations, unless a change is accepted."""

    global_batch: int
    seed: int
    data: Digest
    """the data set's fingerprint, including its number of rows and of held-out rows"""
    model: Digest
    optimizer: str
    """its kind, because another kind cannot use its state"""
    equality: Annotated[str, BeforeValidator(canonical_mode)]
    """`balanced` or `bitwise`: what is equal at every world size"""
    recipe: Digest
    """objective, optimizer settings, schedule, clipping, precision"""

    def differences(self, other: "TrainingIdentity") -> list[str]:
        """The names of the fields that differ, sorted."""
        here, there = self.model_dump(), other.model_dump()
        return sorted(key for key in here if here[key] != there[key])


class Sealed(StoredModel):
    """A value with a file of its own, which also holds the value's digest."""

    stored_as: ClassVar[str]
    """the value's name in `planner.base.format_versions.STORED`"""
    format: int


_Sealed = TypeVar("_Sealed", bound=Sealed)


class RunId(Sealed):
    """`run.json`: a unique name for the run, so that a checkpoint of another run is recognised."""

    stored_as: ClassVar[str] = "run.json"

    format: int = STORED["run.json"]
    run_id: str
    created_s: float


class AcceptedChange(StoredModel):
    """A change that the user accepted by name (`planner.events.resuming.ChangeAccepted`)."""

    field: str
    """of the identity, or `device`, or `model-files`"""
    before: str
    now: str


class LoweredCapRecord(StoredModel):
    """One lowering of the caps on micro-batches (`planner.plan.lowered_caps.LoweredCap`).

    Caps on tokens are 0 if there are none.
    """

    device: str
    place: str
    was_micro: Count
    was_tokens: Count = 0
    max_micro: Count
    max_tokens: Count = 0

    @classmethod
    def of(cls, lowered: LoweredCap) -> Self:
        """How a lowering is stored."""
        was, now = lowered.was, lowered.now
        return cls(
            device=lowered.device,
            place=lowered.place,
            was_micro=was.max_micro,
            was_tokens=was.max_tokens or 0,
            max_micro=now.max_micro,
            max_tokens=now.max_tokens or 0,
        )

    @property
    def value(self) -> LoweredCap:
        """The lowering."""
        return LoweredCap(
            device=self.device,
            place=self.place,
            was=Caps(max_micro=self.was_micro, max_tokens=self.was_tokens or None),
            now=Caps(max_micro=self.max_micro, max_tokens=self.max_tokens or None),
        )


class GenerationRecord(StoredModel):
    """The header of a segment, its first record. It describes one generation: one worker group at one world size."""

    kind: Literal["generation"] = "generation"
    format: int = STORED["ledger"]
    """the format of the whole segment"""
    generation: int
    run_id: str
    parent: str
    """the commit or the held step that it resumed from, or empty for a fresh start"""
    parent_is_held: bool = False
    """it resumed from copies in memory of a step that was not durable: the parent's manifest is in `held/`"""
    parent_sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")
    """digest of the parent's manifest, so that the chain covers every manifest of the lineage except the newest"""
    step: Count
    cursor: Count
    world_size: int
    max_micro: int
    """the job's `batch.max_micro`, or less if it was lowered for a kind of device of this group"""
    max_tokens: int | None = None
    """likewise of `batch.max_tokens`. As `attention_at` and `lowered`, it is written only if it is set"""
    attention_at: int | None = None
    lowered: tuple[LoweredCapRecord, ...] = Field(default=(), strict=False)
    """why its caps are lower than the job's, oldest first: workers on such devices ran out of memory"""
    layout_version: int
    """the version of its plan's arithmetic (see `planner.plan.layout`)"""
    plan_digest: str
    identity: TrainingIdentity
    job_digest: Digest
    total_steps: Count
    num_samples: Count
    facts: dict[str, Any]
    accepted: tuple[AcceptedChange, ...] = Field(default=(), strict=False)
    """what makes a run the same run, differs from the parent's, and was accepted by name. Empty in formats 1 and 2"""
    changed: tuple[str, ...] = Field(strict=False)
    """everything that differs from the parent's job, and the commits that were passed over, as people were told. Code
    reads it only in formats 1 and 2 (`planner.provenance.run_checks`)"""
    launch_id: str = ""
    """of its driver. All generations of one launch share it"""
    launched_s: float = 0.0
    """when its driver started, in seconds since the epoch. 0 if not known"""
    time_s: float

    @model_serializer(mode="wrap")
    def _without_unset_limits(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The fields without limits that are not set, so that earlier versions read the ledgers of other jobs."""
        unset = {name for name in ("max_tokens", "attention_at", "lowered") if getattr(self, name) in (None, ())}
        return {name: value for name, value in values(self).items() if name not in unset}


class StepRecord(StoredModel):
    """One optimizer step, as it was measured."""

    kind: Literal["step"] = "step"
    step: Count
    cursor: Count
    """samples consumed after the step"""
    samples: Count
    """samples that entered a forward pass, over all workers"""
    tokens: Count
    """loss-bearing tokens, also where the loss is a mean over samples"""
    checksum: str = Field(pattern=r"^[0-9a-f]{16}$")
    """sum over samples of `planner.data.base.check_sum`, modulo 2^64, as 16 hex digits"""
    placement: str = Field(default="", pattern=r"^([0-9a-f]{16})?$")
    """sum over workers of `planner.plan.by_length.placement`, modulo 2^64, as 16 hex digits: which worker computed
    which rows in which round. Empty where that follows from the plan alone"""
    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, float] = {}
    """what the objective measures besides the loss: means over the global batch (no entry for a mean over nothing)"""
    skipped: bool = False
    """the gradient was not finite and the job skips such steps, so the weights did not change"""
    seconds: float

    @model_serializer(mode="wrap")
    def _serialized(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without an empty `placement`, so that the ledgers of most jobs are as they were before there was one."""
        values: dict[str, Any] = handler(self)
        if not self.placement:
            values.pop("placement", None)
        return values


class EvalRecord(StoredModel):
    """The mean loss over the held-out samples, before step `step`."""

    kind: Literal["eval"] = "eval"
    step: Count
    samples: Count
    tokens: Count
    loss: float
    metrics: dict[str, float] = {}
    """what the objective measures besides the loss: means over the held-out samples"""
    seconds: float


class CommitRecord(StoredModel):
    """A step became durable: its manifest was written. It may stand behind the records of later steps.

    The manifest names the chain's head at its own step.
    """

    kind: Literal["commit"] = "commit"
    step: Count
    name: str
    sha256: Digest
    """digest of the manifest"""
    seconds: float
    """for which training paused"""
    write_s: float = 0.0
    """from the begin of the commit until it was durable. 0 if not known"""


class EventRecord(StoredModel):
    """Something that happened: its kind and its facts, and the text that people were told."""

    kind: Literal["event"] = "event"
    event: str = ""
    """the kind (`planner.events`). Empty in ledgers of formats 1 and 2, which have the text alone"""
    facts: dict[str, Any] = {}
    message: str
    """for people. No code reads it"""
    waited_s: float = Field(default=0.0, ge=0, exclude=True)
    """seconds without room before this generation, only in formats 1 and 2. Later ones have the event `waited`"""
    time_s: float

    @property
    def told(self) -> Event | None:
        """The event. None in formats 1 and 2, and if this version of planner has no such kind or other facts."""
        with suppress(ValueError, TypeError, RecursionError):
            return event_of(self.event, self.facts)
        return None


class MeasurementRecord(StoredModel):
    """Speed, memory and the division of time of some steps in a row, between two such records or from the first step.

    rank 0 writes about one per second, and one more at the end of a generation.
    """

    kind: Literal["measurement"] = "measurement"
    step: Count
    """half open: the first step that it does not cover"""
    num_steps: Count
    seconds: float
    """of these steps together, as in their step records"""
    input_tokens: Count
    """tokens of the samples (both completions of a pair), without padding and ghosts, over all workers. Each once,
    however many passes it is in. 0 if not known"""
    padded_tokens: Count
    """the same tokens with padding and ghosts. 0 if not known"""
    flops: float
    """model FLOPs of these steps over all workers (`planner.train.flops`). 0 if not known"""
    peak_flops_per_s: float
    """of all workers' devices together, from the table of `planner.train.device_peaks`. 0 if not known"""
    peak_memory_bytes: Count
    """the most of any worker's process so far: allocated on CUDA, resident on the CPU"""
    data_s: float
    """mean over workers, as all times below: waiting for the next samples"""
    forward_s: float
    """forward passes, those without gradient included. Repetitions of a step are in all times"""
    backward_s: float
    """backward passes and sums of gradients"""
    update_s: float
    """clipping and the optimizer. On CUDA, the last step's is in the next record"""
    communication_s: float
    """time in which training waited in collectives of gloo, or for slower workers in them. 0 if not known, as with
    NCCL. It overlaps with the times above and must not be added to them"""
    time_s: float
    """when it was written, in seconds since the epoch"""
    cost: Count = 0
    """of the samples of these steps, in the unit of `planner.plan.by_length.ByLength.costs`. 0 in plans by samples, as
    both numbers below, and then none of the three is written"""
    round_cost: Count = 0
    """the same, as if in each round every worker had the round's most expensive micro-batch"""
    num_rounds: Count = 0

    @model_serializer(mode="wrap")
    def _without_costs(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without costs of plans by samples, so that their ledgers are as they were before there were costs."""
        unset = () if self.round_cost else ("cost", "round_cost", "num_rounds")
        return {name: value for name, value in values(self).items() if name not in unset}

    @property
    def efficiency(self) -> float:
        """The fraction of the workers' time in rounds that computes samples, by costs. 0 if not known."""
        return self.cost / self.round_cost if self.round_cost else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Input tokens per second, over all workers. 0 if not known."""
        return self.input_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: achieved FLOPs per second, as a fraction of the devices' peak. 0 if not known."""
        available = self.seconds * self.peak_flops_per_s
        return self.flops / available if available > 0 else 0.0


Record = GenerationRecord | StepRecord | EvalRecord | CommitRecord | EventRecord | MeasurementRecord
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class FileDigest(StoredModel):
    """Name, size and digest of one file of a checkpoint."""

    name: str = Field(pattern=r"^\.?[A-Za-z0-9_-][A-Za-z0-9_.-]*$")
    size_bytes: Count
    sha256: Digest


def joint_digest(values: Mapping[str, Any]) -> str:
    """One digest over named JSON values, such as digests or settings: 64 hex digits."""
    # Unlike `canonical_json`, with blanks after commas and colons, because such digests are on record.
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()


class Manifest(Sealed):
    """A commit. It names the files with weights and optimizer state. Files that no manifest names do not count."""

    stored_as: ClassVar[str] = "manifests"

    format: int = STORED["manifests"]
    run_id: str
    name: str
    generation: int
    parent: str
    """the commit or the held step that the generation resumed from, or empty for a fresh start"""
    step: Count
    cursor: Count
    total_steps: Count
    identity: TrainingIdentity
    plan_digest: str
    world_size: int
    facts: dict[str, Any]
    job_digest: Digest
    ledger_head: Digest
    files: tuple[FileDigest, ...] = Field(strict=False)
    tensors: dict[str, Digest]
    """name -> digest of the unsharded tensor, in the last commit of a `bitwise` run, else empty"""
    shards: dict[str, ShardDigest] = {}
    """of a held step, else empty: "<rank>/<tensor name>" -> XXH3-128 of the shard in memory, 32 hex digits"""
    versions: dict[str, str]
    time_s: float

    @property
    def is_held(self) -> bool:
        """Whether it describes a step that was only held in memory."""
        return bool(self.shards)

    @property
    def title(self) -> str:
        """What it is and its name, for messages."""
        return f"{'held step' if self.is_held else 'commit'} {self.name}"

    @property
    def folder(self) -> str:
        """Where its files are, within the run's folder."""
        return f"checkpoints/{self.name}"

    @property
    def weights_digest(self) -> str:
        """One digest over all weights, 64 hex digits. Empty if the manifest names no tensors."""
        weights = {name: digest for name, digest in self.tensors.items() if name.startswith("model/")}
        return joint_digest(weights) if weights else ""


class HeldManifest(Manifest):
    """A step that was held in memory when a generation resumed from it. It has digests of shards, and no files."""

    stored_as: ClassVar[str] = "held"

    format: int = STORED["held"]

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """The same facts as a held step's.

        Raises:
            ValueError: it has files, or no shards.
        """
        return cls(**{**dict(manifest), "format": STORED["held"]})

    @model_validator(mode="after")
    def _require_shards(self) -> Self:
        if self.files or self.tensors or not self.shards:
            raise ValueError("a held step has shards, and neither files nor a certificate")
        if not all(_is_shard(name, self.world_size) for name in self.shards):
            raise ValueError("a shard is named RANK/TENSOR, with a rank below the world size")
        return self


def _is_shard(name: str, world_size: int) -> bool:
    rank, _, tensor = name.partition("/")
    return bool(tensor) and len(rank) < 10 and rank.isascii() and rank.isdecimal() and int(rank) < world_size


def canonical_json(value: object) -> str:
    """One line of JSON without blanks and with sorted keys. Digests are taken over it.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: BaseModel) -> str:
    """The canonical JSON of a record or of another stored value."""
    return canonical_json(value.model_dump(mode="json"))


def chained(head: str, line: str) -> str:
    """The value of the hash chain after a record: `sha256(head + line)`, 64 hex digits."""
    return hashlib.sha256(f"{head}{line}".encode()).hexdigest()


def digest_of(value: BaseModel) -> str:
    """The digest that `seal` stores beside a value: 64 hex digits."""
    return chained("", canonical(value))


def seal(value: Sealed) -> bytes:
    """The file content for a value: JSON with the value and its digest, so that `unseal` finds a later change."""
    text = canonical(value)
    return json.dumps({"sha256": chained("", text), "value": json.loads(text)}, indent=1, sort_keys=True).encode()


def unseal(content: bytes, model: type[_Sealed], where: str) -> _Sealed:
    """Read back a value that `seal` wrote, and check its format and digest.

    Raises:
        NewerFormat: another version of planner wrote it.
        StoreError: it is torn, altered, or planner did not write it.
    """
    try:
        document = json.loads(content)
        raw = document["value"]
        # Checked first, because a commit of a newer version is not torn and must not be passed over.
        require_format(raw.get("format"), model.stored_as, where)
        text = canonical_json(raw)
        value = model.model_validate_json(text)  # which also refuses half a character (a lone surrogate)
    except (AttributeError, ValueError, ValidationError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: torn or not written by this version of planner") from error
    if chained("", text) != document.get("sha256"):
        raise StoreError(f"{where}: altered since it was written (its digest does not match)")
    return value


def unseal_if_whole(content: bytes, model: type[_Sealed], where: str) -> _Sealed | None:
    """Read back a value that `seal` wrote. None if it is torn, altered, of another version, or empty."""
    with suppress(StoreError):
        return unseal(content, model, where)
    return None


def sealed_digest(content: bytes, where: str) -> str:
    """The digest that `seal` stored beside a value. Only `unseal` checks whether it matches the value.

    Raises:
        StoreError: the content has no digest.
    """
    try:
        return str(json_object(content)["sha256"])
    except (NoJson, KeyError) as error:
        raise StoreError(f"{where}: torn") from error


def parse_record(line: str, where: str) -> Record:
    """Parse the JSON text of one record.

    Raises:
        StoreError: the line is not a record.
    """
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        raise StoreError(f"{where}: not a ledger record") from error
