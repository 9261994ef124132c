"""Drafts a job from the keys of a HALOs recipe."""

from typing import Any

from planner.job.compute import FLASH
from planner.recipes.drafting import (
    DATA_OF,
    RecipeOptions,
    carry,
    job_name,
    names_of,
    note_padding,
    order_sections,
    plain,
    set_batch,
    set_optimizer,
    set_workers,
    whole_if,
)
from planner.recipes.drafting_data import set_data, set_test_rows
from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import KeyReader
from planner.recipes.halos.batching import HalosFacts
from planner.recipes.halos.loss import OF_HUMANLINE, note_loss, set_objective
from planner.recipes.hydra_recipes.datasets import sources
from planner.recipes.hydra_recipes.trackers import set_trackers
from planner.recipes.recipe import Draft, Note
from planner.recipes.scalars import number
from planner.recipes.trainer.accelerate import LaunchSettings

# HALOs' methods that are a planner objective of another name, with a setting.
SHARED = {"cdpo": "dpo"}
_PADS = "HALOs pads each row to model.max_length, planner each micro-batch to its longest row"
_LEGACY_PADS = "HALOs' branch legacy pads each batch to its longest row, planner each micro-batch"


def make_draft(
    keys: KeyReader,
    options: RecipeOptions,
    facts: HalosFacts,
    gpus: int | None,
    micro: int | None,
    launch: LaunchSettings | None,
    *,
    is_own: bool,
) -> Draft:
    """The draft of a job, with a note for each value. Notes mistakes in `keys`.

    `gpus` is the count that the recipe was tuned for, and `micro` the samples that one GPU held (None if unknown). With
    `is_own` the user's own loop computes the loss.
    """
    draft = Draft()
    name = job_name(keys.value("exp_name"), f"{facts.model_choice}-{facts.method}")
    told = ["exp_name"] if keys.value("exp_name") else []
    draft.derive("name", name, ": ".join([f"name {name}", *told]), *told)
    _set_model(draft, keys)
    kind = DATA_OF.get(SHARED.get(facts.method, facts.method), "feedback" if facts.is_unpaired else "pairs")
    names = names_of(keys.value("train_datasets") or keys.value("datasets"))
    set_data(draft, kind, sources("halos", names, "train"))
    carried_if_set(draft, keys, "model.max_prompt_length")
    if is_own:
        note_loss(draft, keys)
    else:
        set_objective(draft, keys, facts)
    meanings = {
        "total": f"{facts.batch} as written: model.batch_size is the batch of all GPUs and accumulation steps",
        "per accumulation step": (
            f"{facts.batch} = {facts.written} x {facts.accumulation} accumulation steps (older HALOs)"
        ),
        "legacy": f"{facts.batch} = {facts.written} x {facts.accumulation} accumulation steps (HALOs legacy)",
    }
    set_batch(draft, keys, options, facts.batch, micro, meanings[facts.meaning])
    note_padding(draft, "" if is_own else _LEGACY_PADS if facts.is_legacy else _PADS)
    if gpus:
        whose = "--gpus" if options.gpus or launch is None else launch.counted_by or launch.source
        draft.derived.append(Note(key="gpus", text=f"tuned for {gpus} GPUs: {whose}"))
    _say_unknown(draft, keys)
    _set_length(draft, keys, facts)
    carried(draft, keys, "seed")
    _set_optimizer(draft, keys, facts)
    _set_schedule(draft, facts)
    _set_clip(draft, keys, facts, is_own=is_own)
    _set_precision(draft, keys)
    _set_eval(draft, keys, facts, kind)
    set_workers(draft, facts.batch, gpus)
    set_trackers(draft, keys, options.env, title="HALOs", debug_is_silent=facts.is_legacy)
    order_sections(draft)
    return draft


def _say_unknown(draft: Draft, keys: KeyReader) -> None:
    """Notes keys that train differently in planner, and defaults that the user's HALOs may not share."""
    guessed = [key for key in _GUESSED if (entry := keys.entries.get(key)) and entry.is_default]
    if guessed:
        shown = ", ".join(f"{key} {plain(keys.value(key))} ({keys.rules[key].ours})" for key in guessed)
        draft.ask(
            f"HALOs' config folder is not beside the command, so your values may differ from these: {shown}. Look them "
            "up in config/model/, or convert the script inside the checkout"
        )
    if keys.value("humanline") is not True:
        for key in OF_HUMANLINE[1:]:
            if keys.value(key) is not None and not keys.entries[key].is_default:
                draft.drop(key, "HALOs reads it only with humanline=true")
    for key, why in _OTHERWISE.items():
        if keys.value(key) not in (None, False, 1):
            draft.drop(key, f"{why} (see to do)")
            draft.ask(f"{key} {plain(keys.value(key))}: {why}", of_model=key.startswith("model."))


_GUESSED = ("model.max_length", "model.max_prompt_length")
_OTHERWISE = {
    "model.load_lora_from": "HALOs continues these adapters, planner starts new ones, so merge them into model.path",
    "load_reference_logprobs": "HALOs reads the reference's log-probabilities from this file, planner computes them",
    "frac_unique_desirable": "HALOs takes only this share of the desirable completions, so remove the others",
    "frac_unique_undesirable": "HALOs takes only this share of the undesirable completions, so remove the others",
}


def _set_model(draft: Draft, keys: KeyReader) -> None:
    draft.set("model.kind", "hf")
    keys.read("model.name_or_path")
    if keys.has("model.load_from") and (start := keys.value("model.load_from")):
        draft.derive(
            "model.path", str(start), f"model.path {start}: model.load_from, the weights that training begins with"
        )
    else:
        carried(draft, keys, "model.name_or_path")
    carried(draft, keys, "model.max_length")
    attention = keys.scalar_text("model.attn_implementation")
    if attention == FLASH and keys.read("model.policy_dtype") == "float32":
        draft.drop("model.attn_implementation", f"{attention} computes in bf16, and model.policy_dtype is float32")
    elif attention in {"sdpa", "eager", FLASH}:
        carry(draft, keys, "model.attn_implementation", "model.attention", attention)
    elif attention:
        why = f"{attention}: planner has sdpa, eager and {FLASH}, and chooses one (auto)"
        draft.drop("model.attn_implementation", why)
    if keys.read("model.use_peft"):
        names = {"rank": "lora_r", "alpha": "lora_alpha", "dropout": "lora_dropout"}
        lora = {name: keys.read(f"model.peft.{key}") for name, key in names.items()}
        targets = keys.value("model.peft.target_modules")
        if isinstance(targets, list):
            lora["targets"] = [str(target) for target in targets]
        draft.derive("model.lora", lora, f"model.lora rank {lora['rank']}, alpha {number(float(lora['alpha']))}")


def _set_length(draft: Draft, keys: KeyReader, facts: HalosFacts) -> None:
    if facts.n_examples:
        whole = -(-facts.n_examples // facts.batch) * facts.batch
        steps = f"{whole // facts.batch} steps"
        text = f"train.examples {whole}, {steps}: n_examples {facts.n_examples} in whole batches of {facts.batch}"
        if facts.steps(facts.accumulation) * facts.batch != whole:
            text += f". HALOs takes {facts.steps(facts.accumulation)} steps at {facts.accumulation} accumulation steps"
        if not facts.is_legacy and facts.n_examples != whole:
            text += f". HALOs' schedule expects {facts.n_examples // facts.written}"
        if facts.n_epochs:
            text += f". In HALOs n_epochs {number(facts.n_epochs)} ends the run earlier if the data has fewer rows"
        draft.derive("train.examples", whole, text)
    elif facts.n_epochs:
        carry(draft, keys, "n_epochs", "train.epochs", whole_if(facts.n_epochs))
    else:
        keys.lacks("n_epochs: found neither n_epochs nor n_examples. Write one of them behind the recipe")


def _set_optimizer(draft: Draft, keys: KeyReader, facts: HalosFacts) -> None:
    name, lr = keys.read("optimizer"), keys.number("lr")
    kinds = {"AdamW": "adamw", "Adam": "adamw", "RMSprop": "rmsprop", "SGD": "sgd"}
    if name not in kinds:
        keys.refuse_in_job(
            "optimizer", f"planner has {', '.join(kinds)}: write one of them, or use a training loop of your own"
        )
    values: dict[str, Any] = {"kind": kinds.get(name, "adamw"), "lr": lr}
    from_keys = {"kind": "optimizer", "lr": "lr"}
    if facts.is_legacy:
        set_optimizer(draft, keys, values, from_keys)
        if name == "AdamW":
            text = "train.optimizer.weight_decay 0.01: torch's default, because the branch legacy passes none"
            draft.derive("train.optimizer.weight_decay", 0.01, text)
        return
    if name == "Adam" and keys.number("weight_decay", 0.0):
        _refuse_decay(draft, keys)
    elif keys.has("weight_decay"):
        values["weight_decay"] = keys.number("weight_decay")
        from_keys["weight_decay"] = "weight_decay"
    if values["kind"] == "adamw" and (keys.has("beta1") or keys.has("beta2")):
        values["betas"] = [keys.read("beta1"), keys.read("beta2")]
        from_keys["betas"] = "beta1" if keys.has("beta1") else "beta2"
    elif values["kind"] == "adamw":
        draft.ask("train.optimizer: betas and weight_decay are planner's defaults if the recipe sets none")
    set_optimizer(draft, keys, values, from_keys)


def _refuse_decay(draft: Draft, keys: KeyReader) -> None:
    """Refuses Adam with a weight decay, which planner does not have. If the decay is a default, adds a to-do."""
    entry, why = keys.entries["weight_decay"], "Adam adds it to the gradient, planner's adamw does not"
    if entry.is_default:
        text = f"weight_decay {plain(entry.value)} of {entry.where}: {why}, so train.optimizer.weight_decay is 0"
        draft.ask(f"{text}. Write optimizer=AdamW behind the recipe if decoupled decay will do")
    else:
        keys.refuse_in_job("weight_decay", f"{why}: write 0, or optimizer=AdamW")


def _set_clip(draft: Draft, keys: KeyReader, facts: HalosFacts, *, is_own: bool) -> None:
    """HALOs always clips, to the value of config/model/ if the recipe sets none. planner does not know that value."""
    if facts.clip_norm or not facts.clips:
        carry(draft, keys, "model.max_grad_norm", "train.clip_norm", facts.clip_norm)
        return
    theirs = "HALOs clips to model.max_grad_norm of config/model/ in its checkout, which planner does not know"
    if is_own:
        draft.ask(f"train.clip_norm: this job does not clip. {theirs}, so write that norm")
        return
    draft.set("train.clip_norm", 1.0)
    draft.ask(
        "train.clip_norm: 1.0 is planner's default, because the recipe does not set model.max_grad_norm. "
        f"{theirs}, so write that norm"
    )


def _set_schedule(draft: Draft, facts: HalosFacts) -> None:
    kind = "cosine" if facts.method == "sft" and not facts.is_legacy else "constant"
    text = f"train.schedule {kind} after {facts.warmup}: "
    if facts.is_legacy:
        text += "the branch legacy keeps the rate constant after its warmup for every method, also sft"
    else:
        text += (
            "HALOs' schedule is cosine for sft and constant for all others. Its warmup begins at a tenth of the rate"
        )
    draft.derive("train.schedule", {"kind": kind, "warmup": facts.warmup}, text)


def _set_precision(draft: Draft, keys: KeyReader) -> None:
    dtype = keys.read("model.policy_dtype")
    precision = "fp32" if dtype == "float32" else "bf16"
    text = f"train.precision {precision}: model.policy_dtype {dtype}"
    text += ". HALOs' weights and optimizer state are bf16, planner's fp32" if precision == "bf16" else ""
    draft.derive("train.precision", precision, text)
    if keys.read("model.activation_checkpointing"):
        carried(draft, keys, "model.activation_checkpointing")


def _set_eval(draft: Draft, keys: KeyReader, facts: HalosFacts, kind: str) -> None:
    samples = keys.whole("n_eval_examples") if keys.has("n_eval_examples") else 0
    test = sources("halos", names_of(keys.value("test_datasets") or keys.value("datasets")), "test")
    if set_test_rows(draft, kind, test, samples, "test_datasets, in the test split of their loader"):
        draft.told.update({"test_datasets", "n_eval_examples"})
    elif samples:
        draft.derive(
            "eval.samples", samples, f"eval.samples {samples}: held out of the training rows. HALOs takes a test split"
        )
    else:
        draft.ask("eval.samples: write how many training rows to hold out. HALOs evaluates a whole test split")
        draft.set("eval.samples", 0)
    every = facts.eval_every // facts.lowered_to * facts.lowered_to
    lowered = "" if every == facts.eval_every else f", lowered from {facts.eval_every} as in HALOs"
    if every and every % facts.batch:
        why = f"not a multiple of {facts.batch}, because HALOs counts accumulation steps of {facts.written}"
        text = f"eval.every {every} examples rounded{lowered}: {why}"
        draft.derive("eval.every", f"{every} examples rounded", text)
    elif every:
        draft.derive("eval.every", f"{every} examples", f"eval.every {every} examples{lowered}")
    else:
        draft.derive("eval.every", "1 step", f"eval.every 1 step: eval_every {facts.eval_every} is less than a batch")
