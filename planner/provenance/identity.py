"""From a job to its data, order and identity: what the workers, the driver and the audit derive alike.

No torch, no Ray.
"""

from hashlib import sha256
from typing import Any

from planner.data.base import AnyDataset, Progress, no_progress
from planner.data.open import open_dataset
from planner.errors import ResumeRefused
from planner.job import HfModel, Job
from planner.order.order import Order
from planner.plan import BatchSizes, Plan, make_plan
from planner.store.records import GenerationRecord, TrainingIdentity, joint_digest


def open_data(job: Job, progress: Progress = no_progress) -> tuple[AnyDataset, Order]:
    """The job's data set, and the order of its rows; what takes long tells `progress` of it.

    Raises:
        DataError: the data cannot be read, or has no row left to train on.
    """
    dataset = open_dataset(job.data, job.model, progress)
    return dataset, Order(num_rows=dataset.num_rows, num_held_out=job.eval.samples, seed=job.train.seed)


def identity_of(job: Job, dataset: AnyDataset, order: Order) -> TrainingIdentity:
    """What must stay the same for a run to be the same run."""
    cut = f"{dataset.fingerprint} {order.num_rows} rows, {order.num_held_out} held out"
    return TrainingIdentity(
        global_batch=job.batch.global_batch,
        seed=job.train.seed,
        data=sha256(cut.encode()).hexdigest(),
        model=_settings_digest(job, ("model.",)),
        optimizer=job.train.optimizer.kind,
        equality=job.batch.equality,
        recipe=_recipe_digest(job),
    )


# What the gradient becomes: the same samples with another of these are another training run.
_RECIPE = ("objective.", "train.clip_norm", "train.optimizer.", "train.precision", "train.schedule.")
# And what its last bit depends on: what enters one forward pass, how it is recomputed, and the threads of a CPU sum.
_BITWISE_RECIPE = (*_RECIPE, "batch.max_micro", "train.activation_checkpointing", "workers.cpus")


def _recipe_digest(job: Job) -> str:
    return _settings_digest(job, _BITWISE_RECIPE if job.batch.equality == "bitwise" else _RECIPE)


def _settings_digest(job: Job, beginnings: tuple[str, ...]) -> str:
    """Over the settings that are not at their defaults: a later version's new setting makes no other run of it."""
    settings = _flat(job.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    chosen = {key: value for key, value in settings.items() if key.startswith(beginnings)}
    return joint_digest(chosen)


# What the samples of prompts and completions depend on, besides the files.
_TOKENIZER = ("model.chat_template", "model.context", "model.path", "model.revision")
# Field of the identity -> the keys of a job that decide it, or the beginnings of keys.
_DECIDED_BY = {
    "data": ("data.", "eval.samples", *_TOKENIZER),
    "equality": ("batch.equality",),
    "global_batch": ("batch.global",),
    "model": ("model.",),
    "optimizer": ("train.optimizer.kind",),
    "recipe": _BITWISE_RECIPE,
    "seed": ("train.seed",),
}
DEVICE = "device"
"""not of the job, but of where it runs: the last bit depends on it"""
MODEL = "model"
"""of the files at model.path, and of the settings: both make the model"""
ACCEPTABLE = (*_DECIDED_BY, DEVICE)
"""what a user may accept a change of: fields of a run's identity, and the device of a `bitwise` run"""


def job_changes(before: Job, now: Job) -> dict[str, str]:
    """Dotted key -> `old -> new`, for every setting that differs, in the words of the job file."""
    old, new = _flat(before.model_dump(mode="json", by_alias=True)), _flat(now.model_dump(mode="json", by_alias=True))
    keys = (key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
    return {key: f"{old.get(key, 'nothing')} -> {new.get(key, 'nothing')}" for key in keys}


def require_same(
    before: TrainingIdentity, now: TrainingIdentity, changes: dict[str, str], accept: frozenset[str], where: str
) -> list[str]:
    """Check that a job may go on with a run; all that differs, in words.

    Raises:
        ResumeRefused: the identity differs in a field that the user has not accepted by name.
    """
    differing = before.differences(now)
    if refused := [field for field in differing if field not in accept]:
        words = "; ".join(_explain(field, changes) for field in refused)
        raise ResumeRefused(
            f"{where}: the run was made with another {' and another '.join(refused)} ({words}); keep what it was, "
            f"choose another checkpoint.path, or accept it: {' '.join(f'--accept {field}' for field in refused)}"
        )
    return [f"{field}: accepted by name" for field in differing] + [f"{k}: {words}" for k, words in changes.items()]


def require_same_first_weights(before: TrainingIdentity, now: TrainingIdentity, job: Job, where: str) -> None:
    """Check that first weights which every generation draws again come from the seed that they came from.

    What lies below adapters and what a policy is held to are in no checkpoint.

    Raises:
        ResumeRefused: another seed would make another model of them, also if it is accepted for the data's order.
    """
    if before.seed == now.seed or not _draws_again(job):
        return
    raise ResumeRefused(
        f"{where}: the run was made with train.seed {before.seed}, and what its weights are held to or added to is "
        f"drawn from that in every generation: with {now.seed} it would be another model; keep the seed, or choose "
        "another checkpoint.path"
    )


def _draws_again(job: Job) -> bool:
    """Whether weights that are drawn, and not read from files, are needed after the first step."""
    if isinstance(job.model, HfModel) and (job.model.weights == "pretrained" or job.model.lora is not None):
        return job.model.weights == "random"
    return job.reference.source != "none" and job.reference.model is None


def require_same_model(before: str, now: str, accept: frozenset[str], where: str) -> list[str]:
    """Check that the files of a job's models are those that the run was made with, by their fingerprints.

    A checkpoint holds no frozen weights, no reference and no configuration. An empty fingerprint says nothing.

    Raises:
        ResumeRefused: they are others, and the user has not accepted them by name.
    """
    if not (before and now) or before == now:
        return []
    if MODEL not in accept:
        raise ResumeRefused(
            f"{where}: the model's files (model.path, or the reference's) are not those that the run was made with; "
            f"put them back, choose another checkpoint.path, or accept these: --accept {MODEL}"
        )
    return ["the model's files: others, accepted by name"]


def _explain(field: str, changes: dict[str, str]) -> str:
    found = [f"{key}: {words}" for key, words in changes.items() if key.startswith(_DECIDED_BY[field])]
    # Settings decide all of the identity but the data; where they are not known, no change of theirs was found.
    return ", ".join(found) or (
        "the files at data.path, or the tokenizer's, have changed" if field == "data" else "what it was is not known"
    )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item})
    return flat


def recorded_plan(header: GenerationRecord) -> Plan:
    """The plan of a generation, by the arithmetic that it was planned with.

    Raises:
        PlanError: this version of planner does not know that arithmetic.
    """
    return make_plan(recorded_sizes(header), header.world_size, layout_version=header.layout_version)


def recorded_sizes(header: GenerationRecord) -> BatchSizes:
    """The batch sizes that a generation was planned from, as its header has them."""
    return BatchSizes(
        global_batch=header.identity.global_batch,
        max_micro=header.max_micro,
        equality="bitwise" if header.identity.equality == "bitwise" else "balanced",
    )
