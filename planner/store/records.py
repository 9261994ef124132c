"""The records of a ledger and the manifest of a commit: frozen, checked when read back."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from planner.base.format_versions import STORED, refusal
from planner.errors import NewerFormat, StoreError
from planner.plan.layout import current_mode

NO_HEAD = "0" * 64
"""the chain's value before the first record of a run"""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]


class Value(BaseModel):
    """What lies in a run's folder: frozen, and nothing in it that is unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def require_format(found: object, what: str, where: str) -> None:
    """Check the format of a stored value before anything else in it.

    Args:
        found: what stands there; none where nothing does.
        what: its name in `planner.base.format_versions.STORED`.
        where: the file, for the message.

    Raises:
        NewerFormat: it is another than this version of planner reads.
    """
    if why := refusal(found, STORED[what]):
        raise NewerFormat(f"{where}: {why}; use the version that wrote it, or start again with another checkpoint.path")


class TrainingIdentity(Value):
    """What a run is: the same over all its generations, or it would be another training run."""

    global_batch: int
    seed: int
    data: Digest
    """the data set's fingerprint, cut and held-out part included"""
    model: Digest
    optimizer: str
    """its kind: its state means nothing to another"""
    equality: Annotated[str, BeforeValidator(current_mode)]
    """`balanced` or `bitwise`: what is equal at every world size"""
    recipe: Digest
    """objective, optimizer settings, schedule, clipping, precision"""

    def differences(self, other: "TrainingIdentity") -> list[str]:
        """The fields that differ, sorted."""
        here, there = self.model_dump(), other.model_dump()
        return sorted(key for key in here if here[key] != there[key])


class Sealed(Value):
    """A value that is the only one in its file, with its own digest beside it."""

    stored_as: ClassVar[str]
    """its name in `planner.base.format_versions.STORED`"""
    format: int


class RunName(Sealed):
    """`run.json`: names a run apart from every other, so that a foreign checkpoint is recognised."""

    stored_as: ClassVar[str] = "run.json"

    format: int = STORED["run.json"]
    run_id: str
    created_s: float


class GenerationRecord(Value):
    """First record of a segment: one life of a worker group."""

    kind: Literal["generation"] = "generation"
    format: int = STORED["ledger"]
    """of the whole segment"""
    generation: int
    run_id: str
    parent: str
    """the commit it went on from; empty for a fresh start"""
    parent_sha256: str = Field(pattern=r"^([0-9a-f]{64})?$")
    """of the parent's manifest, so that the chain covers every manifest of the lineage except the newest"""
    step: Count
    cursor: Count
    world_size: int
    max_micro: int
    layout_version: int
    """the arithmetic of its plan; see `planner.plan.layout`"""
    plan_digest: str
    identity: TrainingIdentity
    job_digest: Digest
    total_steps: int
    num_samples: int
    facts: dict[str, Any]
    changed: tuple[str, ...] = Field(strict=False)
    """what differs from the parent's job, in words"""
    time_s: float


class StepRecord(Value):
    """One optimizer step, as it was measured."""

    kind: Literal["step"] = "step"
    step: Count
    cursor: Count
    """samples consumed when the step was done"""
    samples: Count
    """samples that entered a forward pass, over all workers"""
    tokens: Count
    """loss-bearing tokens, whether the mean is over them or over samples"""
    checksum: str = Field(pattern=r"^[0-9a-f]{16}$")
    """sum over samples of `planner.data.base.check_sum`, modulo 2^64"""
    loss: float
    grad_norm: float
    lr: float
    metrics: dict[str, float] = {}
    """what the objective measures besides the loss: means over the global batch; one of nothing is left out"""
    skipped: bool = False
    """the gradient was not finite and the job says to skip such steps: the weights were left alone"""
    seconds: float


class EvalRecord(Value):
    """The mean loss over the held-out samples, before step `step`."""

    kind: Literal["eval"] = "eval"
    step: Count
    samples: Count
    tokens: Count
    loss: float
    metrics: dict[str, float] = {}
    """as a step's, over the held-out samples"""
    seconds: float


class CommitRecord(Value):
    """A manifest was written. It names the chain's head before this record."""

    kind: Literal["commit"] = "commit"
    step: Count
    name: str
    sha256: Digest
    """of the manifest"""
    seconds: float


class EventRecord(Value):
    """Anything a person reading the ledger later wants to know."""

    kind: Literal["event"] = "event"
    message: str
    time_s: float


Record = GenerationRecord | StepRecord | EvalRecord | CommitRecord | EventRecord
_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


class FileDigest(Value):
    """One file of a checkpoint."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    size_bytes: int
    sha256: Digest


def joint_digest(values: Mapping[str, Any]) -> str:
    """One digest over named digests, settings or other values of JSON: 64 hex digits."""
    # With blanks behind commas and colons, unlike `canonical_json`: such digests are on record.
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()


class Manifest(Sealed):
    """A commit: weights, optimizer, cursor and schedule together. Without it, the files beside it are nothing."""

    stored_as: ClassVar[str] = "manifests"

    format: int = STORED["manifests"]
    run_id: str
    name: str
    generation: int
    parent: str
    """the commit that the generation went on from; empty for a fresh start"""
    step: Count
    cursor: Count
    total_steps: int
    identity: TrainingIdentity
    plan_digest: str
    world_size: int
    facts: dict[str, Any]
    job_digest: Digest
    ledger_head: Digest
    files: tuple[FileDigest, ...] = Field(strict=False)
    tensors: dict[str, Digest]
    """the digest of every whole tensor, whatever the shards; in the last commit of a `bitwise` run, else empty"""
    versions: dict[str, str]
    time_s: float

    @property
    def weights_digest(self) -> str:
        """One digest over all weights, 64 hex digits; empty where the manifest names none."""
        weights = {name: digest for name, digest in self.tensors.items() if name.startswith("model/")}
        return joint_digest(weights) if weights else ""


def canonical_json(value: object) -> str:
    """One line of JSON without blanks, keys sorted. Digests are taken over it.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: BaseModel) -> str:
    """The canonical JSON of a record or of another value of a run's folder."""
    return canonical_json(value.model_dump(mode="json"))


def chained(head: str, line: str) -> str:
    """The chain's value after a record: `sha256(head + line)`."""
    return hashlib.sha256(f"{head}{line}".encode()).hexdigest()


def digest_of(value: BaseModel) -> str:
    """What `seal` puts beside the value: 64 hex digits."""
    return chained("", canonical(value))


def seal(value: Sealed) -> bytes:
    """The value with a digest of itself, so that a later change shows."""
    text = canonical(value)
    return json.dumps({"sha256": chained("", text), "value": json.loads(text)}, indent=1, sort_keys=True).encode()


def unseal(content: bytes, model: type[Sealed], where: str) -> Any:
    """The value back.

    Raises:
        NewerFormat: another version of planner wrote it.
        StoreError: torn, altered, or not ours at all.
    """
    try:
        document = json.loads(content)
        raw = document["value"]
        # First of all: a commit of a newer version is not torn, and must not be passed over.
        require_format(raw.get("format"), model.stored_as, where)
        value = model.model_validate(raw)
        digest = _digest_of_raw(raw)
    except (AttributeError, ValueError, ValidationError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: torn or not written by this version of planner") from error
    if digest != document.get("sha256"):
        raise StoreError(f"{where}: altered since it was written (its digest does not match)")
    return value


def sealed_digest(content: bytes, where: str) -> str:
    """The digest that `seal` wrote beside a value. `unseal` checks whether it matches the value.

    Raises:
        StoreError: there is none.
    """
    try:
        digest = json.loads(content)["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: torn") from error
    return str(digest)


def _digest_of_raw(raw: Any) -> str:
    """The digest of the stored JSON. A field that was added later, with a default, does not change it."""
    return chained("", canonical_json(raw))


def parse_record(line: str, where: str) -> Record:
    """One record back from its line.

    Raises:
        StoreError: the line is not a record.
    """
    try:
        return _RECORD.validate_json(line)
    except ValidationError as error:
        raise StoreError(f"{where}: not a ledger record") from error
