"""Derives a job's data, order and training identity. Workers, driver and audit all use these functions.

No torch, no Ray.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from planner.base.text import counted
from planner.data.base import Progress, SampleDataset, no_progress
from planner.data.evaluation import WithEvaluation, training_part
from planner.data.open import open_evaluation, open_training
from planner.errors import DataError, PlanError, ResumeRefused, UserError
from planner.events.resuming import ChangeAccepted, SettingChanged
from planner.job import HfModel, Job
from planner.order.order import Order, chosen_rows
from planner.plan import BatchSizes, Plan, make_plan
from planner.provenance.data_facts import set_changes
from planner.store.data_facts import evaluation_in, sets_in
from planner.store.jobs import job_values
from planner.store.records import GenerationRecord, TrainingIdentity, joint_digest


def open_data(job: Job, progress: Progress = no_progress) -> tuple[SampleDataset, Order]:
    """Open the job's data set, and return it with the order of its rows. Long work is reported to `progress`.

    Raises:
        DataError: the data cannot be read, or has no row left to train on.
    """
    dataset = training = open_training(job, progress)
    if (evaluation := open_evaluation(job, progress)) is not None:
        sizes = tuple(each.num_rows for each in evaluation.sets) or (evaluation.num_rows,)
        chosen = chosen_rows(sizes, _num_evaluated(job, evaluation.num_rows))
        dataset = WithEvaluation(training=training, evaluation=evaluation, chosen=chosen)
    order = Order(
        num_rows=training.num_rows,
        num_held_out=dataset.num_rows - training.num_rows or job.eval.num_samples(training.num_rows),
        seed=job.train.seed,
        set_rows=tuple(each.num_rows for each in training.sets),
        is_apart=evaluation is not None,
    )
    return dataset, order


def _num_evaluated(job: Job, found: int) -> int:
    """How many of the rows of `eval.data` are evaluated.

    Raises:
        DataError: there are too few.
    """
    wanted = job.eval.num_samples(found)
    if wanted > found:
        raise DataError.of(
            "eval.samples",
            f"eval.data has {counted(found, 'sample')}, and {wanted} are to be evaluated. Write 0 for all",
        )
    return wanted


def identity_of(job: Job, dataset: SampleDataset, order: Order, *, is_stored: bool = False) -> TrainingIdentity:
    """The job's training identity, which must stay the same over the whole run.

    `is_stored`: the job was read from a run, and its paths count as they are there. planner 0.2.0 stored those of
    Ray's temporary folder.
    """
    settings = _flat(_set_values(job, is_stored=is_stored))
    cut = f"{training_part(dataset).fingerprint} {order.num_rows} rows, {order.num_withheld} held out"
    return TrainingIdentity(
        global_batch=job.batch.global_batch,
        seed=job.train.seed,
        data=sha256(cut.encode()).hexdigest(),
        model=_settings_digest(settings, ("model.", "after.manifest")),
        optimizer=job.train.optimizer.kind,
        equality=job.batch.equality,
        recipe=_settings_digest(settings, _BITWISE_RECIPE if job.batch.equality == "bitwise" else _RECIPE),
    )


def stored_identity(job: Job, dataset: SampleDataset, order: Order, recorded: TrainingIdentity) -> TrainingIdentity:
    """The identity that a run's job gives it, by the defaults of the planner that recorded one.

    An identity leaves out settings at their defaults. In 0.2.0, `model.attention` was sdpa by default.
    """
    found = identity_of(job, dataset, order, is_stored=True)
    if found.model == recorded.model or not isinstance(job.model, HfModel) or job.model.attention != "sdpa":
        return found
    model = job.model.model_copy(update={"attention": HfModel.model_fields["attention"].default})
    return identity_of(job.model_copy(update={"model": model}), dataset, order, is_stored=True)


# Settings that change what a step does with its samples.
_RECIPE = ("objective.", "train.clip_norm", "train.optimizer.", "train.precision", "train.schedule.")
# Settings that also change the last bit: the rows of a forward pass, recomputation, and the threads of a CPU sum.
_BITWISE_RECIPE = (
    *_RECIPE,
    "batch.attention_at",
    "batch.max_micro",
    "batch.max_tokens",
    "train.activation_checkpointing",
    "workers.cpus",
)


def _set_values(job: Job, *, is_stored: bool) -> dict[str, Any]:
    """The settings that are not at their defaults, so that a new setting does not change old digests."""
    if is_stored:
        return job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return job_values(job, exclude_defaults=True)


def _settings_digest(settings: dict[str, Any], beginnings: tuple[str, ...]) -> str:
    chosen = {key: value for key, value in settings.items() if key.startswith(beginnings)}
    return joint_digest(chosen)


# Settings that samples of prompts and completions depend on, besides the data files.
_TOKENIZER = ("model.chat_template", "model.context", "model.path", "model.revision")
# Settings of the data that leave the samples of other sets as they are.
_OF_SOME_SETS = ("data.mixture", "data.seed", "eval.")
# Field of the identity -> the job's keys, or prefixes of keys, that decide it.
_DECIDED_BY = {
    "data": ("data.", "eval.data", "eval.samples", *_TOKENIZER),
    "equality": ("batch.equality",),
    "global_batch": ("batch.global",),
    "model": ("model.", "after."),
    "optimizer": ("train.optimizer.kind",),
    "recipe": ("batch.equality", *_BITWISE_RECIPE),
    "seed": ("train.seed",),
}
DEVICE = "device"
"""the device that a run uses, which the last bit depends on"""
ATTENTION = "attention"
"""what `model.attention: auto` became, on which the last bit depends. A later generation keeps it if it can"""
MODEL = "model"
"""the files at model.path and the model's settings"""
MODEL_FILES = "model-files"
"""how an accepted change of these files is recorded, since `model` is a field of the identity too"""
ACCEPTABLE = (*_DECIDED_BY, DEVICE)
"""what `--accept` takes: the fields of a run's identity, and the device of a `bitwise` run"""


def parse_accept(fields: Iterable[str]) -> frozenset[str]:
    """Return the fields that `--accept` names. A single string counts as one field.

    Raises:
        UserError: a field does not exist.
    """
    named = frozenset([fields] if isinstance(fields, str) else fields)
    if unknown := sorted(named - set(ACCEPTABLE)):
        raise UserError(f"--accept {unknown[0]}: write one of {', '.join(ACCEPTABLE)}")
    return named


def job_changes(before: Job, now: Job) -> list[SettingChanged]:
    """Every setting of the job file that differs, sorted by its dotted key."""
    old, new = (_flat(_with_numbered_sets(job_values(job))) for job in (before, now))
    keys = (key for key in sorted({*old, *new}) if old.get(key, {}) != new.get(key, {}))
    return [
        SettingChanged(setting=key, before=_shown(old.get(key, "nothing")), now=_shown(new.get(key, "nothing")))
        for key in keys
    ]


def _shown(value: object) -> str:
    """A setting as text, with YAML's word for None."""
    return "null" if value is None else str(value)


def _with_numbered_sets(values: dict[str, Any]) -> dict[str, Any]:
    """A job's sections with each set of a mixture as a section, so that a change names that set alone."""
    evaluation = dict(values["eval"])
    if (rows := evaluation.pop("data", None)) is not None:
        evaluation["data"] = _given(_numbered(rows))
    return {**values, "data": _numbered(values["data"]), "eval": evaluation}


def _numbered(rows: dict[str, Any]) -> dict[str, Any]:
    sets = {f"mixture[{number}]": _given(each) for number, each in enumerate(rows.get("mixture") or ())}
    return {key: value for key, value in rows.items() if key != "mixture"} | sets


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def require_same(
    before: TrainingIdentity,
    now: TrainingIdentity,
    changes: Sequence[SettingChanged],
    accept: frozenset[str],
    where: str,
    *,
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> list[ChangeAccepted]:
    """Check that a job may resume a run, and return what differs and is accepted.

    Args:
        before: of the run.
        now: of the job.
        changes: the job's settings that differ.
        accept: fields that the user allows to differ.
        where: the run's folder or URL, for the error.
        facts: those of the run and of the job (`planner.provenance.data_facts`).

    Raises:
        ResumeRefused: the identity differs in a field that the user has not accepted by name.
    """
    differing = before.differences(now)
    if refused := [field for field in differing if field not in accept]:
        # One setting may decide two fields, and is shown once.
        reasons = "; ".join(dict.fromkeys(reason for field in refused for reason in _reasons(field, changes, facts)))
        it = "it" if len(refused) == 1 else "them"
        raise ResumeRefused(
            f"{where}: the run was made with another {_enumerated(refused)} ({reasons}). Change {it} back, "
            f"choose another checkpoint.path, or accept {it}: {' '.join(f'--accept {field}' for field in refused)}"
        )
    old, new = before.model_dump(), now.model_dump()
    return [ChangeAccepted(field=field, before=str(old[field]), now=str(new[field])) for field in differing]


def require_same_first_weights(before: TrainingIdentity, now: TrainingIdentity, job: Job, where: str) -> None:
    """Check that the seed still draws the same first weights, if every generation draws them again.

    The weights below adapters and those of a reference are in no checkpoint.

    Raises:
        ResumeRefused: the seed differs. Accepting another seed for the data's order does not help.
    """
    if before.seed == now.seed or not _draws_again(job):
        return
    raise ResumeRefused(
        f"{where}: the run was made with train.seed {before.seed}, and every generation draws the reference or the "
        f"weights below the adapters from it, so seed {now.seed} would give another model. Keep the seed, or choose "
        "another checkpoint.path"
    )


def _draws_again(job: Job) -> bool:
    """Whether generations after the first need weights that are drawn from the seed and not read from files."""
    if job.after is not None:
        return False  # an earlier run's commit has them
    if isinstance(job.model, HfModel) and (job.model.weights == "pretrained" or job.model.lora is not None):
        return job.model.weights == "random"
    return job.reference.source != "none" and job.reference.model is None


def require_same_model(before: str, now: str, accept: frozenset[str], where: str) -> list[ChangeAccepted]:
    """Compare the fingerprints of a job's model files with those of the run, and return an accepted change.

    A checkpoint holds no frozen weights, no reference and no configuration. An empty fingerprint is not compared.

    Raises:
        ResumeRefused: the files differ, and the user has not accepted them by name.
    """
    if not (before and now) or before == now:
        return []
    if MODEL not in accept:
        raise ResumeRefused(
            f"{where}: the run was made with other model files (at model.path, or the reference's). "
            f"Put them back, choose another checkpoint.path, or accept these: --accept {MODEL}"
        )
    return [ChangeAccepted(field=MODEL_FILES, before=before, now=now)]


def _reasons(
    field: str, changes: Sequence[SettingChanged], facts: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> list[str]:
    """What changed a field of the identity, one text each."""
    # If both evaluate on a data set of its own, what is evaluated does not change what is trained on.
    ignored = "eval." if all(map(evaluation_in, facts)) else ()
    decisive = [
        change
        for change in changes
        if change.setting.startswith(_DECIDED_BY[field]) and not change.setting.startswith(ignored)
    ]
    found = [f"{change.setting}: {change.before} -> {change.now}" for change in decisive]
    # Settings decide every field except the data. If the run's job is not known, no change was found.
    if field != "data":
        return found or [f"{field}: the old one is not known"]
    files = "the files at data.path, or the tokenizer's, have changed"
    if not decisive and not _share_a_set(facts) and (lengths := _lengths_changed(changes)):
        return [f"{lengths}, or {files}"]
    # A setting such as data.tokenize gives every set other samples, and does not say that a set changed.
    if all(change.setting.startswith(_OF_SOME_SETS) for change in decisive):
        found += set_changes(*facts)
    return found or [files]


def _share_a_set(facts: tuple[Mapping[str, Any], Mapping[str, Any]]) -> bool:
    """Whether a set of the mixture is as it was. Then lengths identify neither it nor any other set."""
    old, new = map(sets_in, facts)
    return any(each in old for each in new)


def _lengths_changed(changes: Sequence[SettingChanged]) -> str:
    """What the setting changed that lets lengths identify rows on demand. Empty if it did not. Sets may be the same."""
    for change in changes:
        if change.setting == "batch.max_tokens" and "null" in (change.before, change.now):
            shown = f"batch.max_tokens: {change.before} -> {change.now}"
            return f"{shown}, and with it data that is tokenized on demand is known by its lengths, too"
    return ""


def _enumerated(names: list[str]) -> str:
    """The names as `a`, `a and b` or `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value. An empty section is a value: adapters at their defaults are not the same as none."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        is_section = isinstance(item, dict) and item
        flat.update(_flat(item, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": item})
    return flat


def recorded_plan(header: GenerationRecord) -> Plan:
    """The plan of a generation, made with the layout version in its header.

    Raises:
        PlanError: this version of planner does not know that layout version.
    """
    return make_plan(recorded_sizes(header), header.world_size, layout_version=header.layout_version)


def recorded_sizes(header: GenerationRecord) -> BatchSizes:
    """The batch sizes of a generation, from its header.

    Raises:
        PlanError: they are sizes that no job can have. It names the generation.
    """
    try:
        return BatchSizes(
            global_batch=header.identity.global_batch,
            max_micro=header.max_micro,
            equality="bitwise" if header.identity.equality == "bitwise" else "balanced",
            max_tokens=header.max_tokens,
            attention_at=header.attention_at,
        )
    except PlanError as error:
        raise PlanError(
            f"generation {header.generation}: its header in the ledger has sizes that no job can have: {error}"
        ) from error
