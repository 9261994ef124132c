"""The DPO repository (eric-mitchell/direct-preference-optimization, read at f8b8c0f): Hydra, FSDP on one machine.

`batch_size` is the global batch. The repository cuts it into `gradient_accumulation_steps` slices and each of those
into one slice per GPU (utils.py, trainers.py). It silently drops rows that fill no slice.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from planner.recipes.dpo.batching import DpoFacts
from planner.recipes.dpo.keys import CONFIG, LOSSES, MODELS, RULES, TITLE, TRAINERS
from planner.recipes.drafting import (
    DATA_OF,
    RecipeOptions,
    carry,
    finish,
    job_name,
    make_own,
    names_of,
    note_padding,
    order_sections,
    set_batch,
    set_optimizer,
    set_workers,
)
from planner.recipes.drafting_data import set_data, set_test_rows
from planner.recipes.engine import carried, refuse_values, shipped
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.hydra.compose import Composed
from planner.recipes.hydra_recipes.datasets import sources
from planner.recipes.hydra_recipes.forks import Fork, fork_of, text_or_value
from planner.recipes.hydra_recipes.read import HydraSystem
from planner.recipes.hydra_recipes.read import read as read_configuration
from planner.recipes.hydra_recipes.trackers import set_trackers
from planner.recipes.recipe import Draft, Recipe
from planner.recipes.source import RecipeSource

_PADS = f"{TITLE} pads each batch to its longest row, planner each micro-batch"
_WHOSE = "the DPO repository's own config.yaml"


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file, a folder or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    return read_configuration(found, options, HydraSystem(TITLE, CONFIG, base, _read, losses=LOSSES))


def _read(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions) -> Recipe:
    del found
    return recipe_from(keys, made.choices, options, used=frozenset(made.used))


def base(choices: Mapping[str, str]) -> dict[str, Entry]:
    """The repository's default configuration for a command without its folder. `choices` are Hydra's groups."""
    entries = shipped(CONFIG, _WHOSE)
    path, block = MODELS.get(choices.get("model", ""), (None, None))
    for key, value in (("name_or_path", path), ("block_name", block)):
        entries[f"model.{key}"] = Entry(value=value, where=_WHOSE, is_default=True)
    if (loss := choices.get("loss")) in {"sft", "dpo"}:
        entries["loss.name"] = Entry(value=loss, where=_WHOSE, is_default=True)
    return entries


def recipe_from(
    keys: KeyReader, choices: dict[str, str], options: RecipeOptions, *, used: frozenset[str] = frozenset()
) -> Recipe:
    """The recipe of a configuration with `choices` of Hydra's groups. Notes mistakes in `keys`.

    `used` has the keys that interpolations read.
    """
    refuse_values(keys, TITLE)
    keys.refuse_null(TITLE, "gradient_accumulation_steps", "eval_batch_size", "eval_every", "warmup_steps")
    batch = keys.whole("batch_size")
    accumulation = keys.read("gradient_accumulation_steps")
    trainer = keys.read("trainer")
    method = _method(keys, choices)
    fork = fork_of(keys, RULES.has, TITLE, used, _decided(keys, method, trainer))
    facts = _facts(keys, batch, accumulation, trainer, method, fork)
    gpus = options.gpus if facts.is_sharded else 1
    micro = None if gpus is None else batch // (accumulation * gpus)
    if facts.is_sharded and not facts.block:
        keys.lacks(
            f"model.block_name: found nothing, but {trainer} needs it. Write it, such as "
            "model.block_name=LlamaDecoderLayer"
        )
    if gpus and facts.eval_batch < gpus:
        keys.lacks(
            f"eval_batch_size: {facts.eval_batch} leaves some of {gpus} GPUs without a row. Write "
            f"eval_batch_size={gpus} or more"
        )
    draft = _draft(keys, choices, options, facts, method, gpus, micro or (None if gpus is None else 1))
    reasons = {key: why for key, why in RULES.reasons(keys.entries).items() if key not in fork.loss}
    finish(draft, keys, reasons, "the DPO repository does not read this key")
    if fork.loss:
        make_own(draft, fork.method(method), fork.why_own, has_groups=method.startswith("grpo"))
    fork.note(draft)
    return Recipe(
        source=keys.source,
        method=fork.method(method),
        unit=facts.unit,
        global_batch=batch,
        accumulation=accumulation,
        gpus=gpus,
        micro=micro or None,
        eval_batch=facts.eval_batch,
        draft=draft,
        foreign=facts,
    )


def _facts(keys: KeyReader, batch: int, accumulation: int, trainer: str, method: str, fork: Fork) -> DpoFacts:
    """The settings on which the verdicts depend. Notes mistakes in `keys`."""
    return DpoFacts(
        batch=batch,
        accumulation=accumulation,
        eval_batch=keys.read("eval_batch_size"),
        # train.py starts one process per GPU if the name contains FSDP.
        is_sharded="FSDP" in trainer,
        trainer=trainer,
        unit="example" if method == "sft" else "pair",
        block=str(keys.value("model.block_name", "")),
        eval_every=keys.read("eval_every"),
        n_examples=keys.whole("n_examples", 0, least=0) or None,
        n_epochs=keys.whole("n_epochs", 0, least=0) or None,
        n_eval=keys.read("n_eval_examples"),
        warmup_steps=keys.read("warmup_steps"),
        is_bf16=keys.value("model.fsdp_policy_mp") == "bfloat16",
        fork=fork,
    )


def _method(keys: KeyReader, choices: dict[str, str]) -> str:
    name = str(keys.value("loss.name") or choices.get("loss") or "sft")
    if name == "ipo" and choices.get("loss") == "ipo" and not keys.has("loss.name"):
        keys.wrong("loss=ipo: the DPO repository has no config/loss/ipo.yaml. Write loss=dpo loss.name=ipo")
    return name


def _decided(keys: KeyReader, method: str, trainer: str) -> dict[str, str]:
    """A loss and a trainer that the repository does not have."""
    stems = {name.removesuffix("Trainer"): name for name in TRAINERS}
    near = get_close_matches(re.sub(r"(?i)train\w*$", "", trainer), stems, n=1, cutoff=0.75)
    if trainer not in TRAINERS and near and not any(name in trainer for name in TRAINERS):
        keys.refuse("trainer", f"Did you mean {stems[near[0]]}?")
    found = {} if method in LOSSES else {"loss.name": method}
    return found if trainer in TRAINERS else {**found, "trainer": trainer}


def _draft(
    keys: KeyReader,
    choices: dict[str, str],
    options: RecipeOptions,
    facts: DpoFacts,
    method: str,
    gpus: int | None,
    micro: int | None,
) -> Draft:
    draft = Draft()
    name = job_name(keys.value("exp_name"), f"{choices.get('model', '')}-{method}")
    told = ["exp_name"] if keys.value("exp_name") else []
    draft.derive("name", name, ": ".join([f"name {name}", *told]), *told)
    _set_model(draft, keys, choices)
    carried(draft, keys, "max_length")
    _set_data(draft, keys, method)
    _set_objective(draft, keys, method, facts.fork)
    how = f"{facts.batch} as written: batch_size is the batch of all GPUs and accumulation steps"
    set_batch(draft, keys, options, facts.batch, micro, how)
    note_padding(draft, "" if facts.fork.loss else _PADS)
    if gpus and (used := facts.outcome(gpus).batch or 0) != facts.batch:
        text = f"batch.global: at {gpus} GPUs the repository used only {used} of {facts.batch}, planner uses all"
        draft.derive("batch.global", facts.batch, text)
    _set_length(draft, keys, facts)
    carried(draft, keys, "seed")
    _set_optimizer(draft, keys)
    carried(draft, keys, "max_grad_norm")
    draft.derive(
        "train.schedule",
        {"kind": "constant", "warmup": f"{facts.warmup_steps} steps"},
        f"train.schedule constant after {facts.warmup_steps} steps: warmup_steps are optimizer steps, "
        f"{facts.warmup_steps * facts.batch} {facts.unit}s",
    )
    precision = "bf16" if facts.is_bf16 and facts.is_sharded else "fp32"
    draft.derive("train.precision", precision, f"train.precision {precision}: model.fsdp_policy_mp of the policy")
    if keys.read("activation_checkpointing") and facts.is_sharded:
        carried(draft, keys, "activation_checkpointing")
    _set_eval(draft, keys, facts, method)
    set_workers(draft, facts.batch, gpus)
    set_trackers(draft, keys, options.env, title=TITLE, debug_is_silent=True)
    order_sections(draft)
    return draft


def _set_model(draft: Draft, keys: KeyReader, choices: dict[str, str]) -> None:
    draft.set("model.kind", "hf")
    if not keys.has("model.name_or_path"):
        chosen = choices.get("model")
        is_unknown = chosen and chosen not in MODELS
        known = f", and model={chosen} is none of {', '.join(MODELS)}" if is_unknown else ""
        keys.lacks(f"model.name_or_path: found nothing{known}. Write model.name_or_path=NAME behind the recipe")
        return
    carried(draft, keys, "model.name_or_path")
    if keys.has("model.archive"):
        draft.drop("model.archive", "a pickle of the policy's weights, see to do")
        draft.ask(
            "model.path: training begins with the weights of model.archive. Write after: RUN if they are of a run of "
            "planner. Otherwise save them in the Hugging Face layout (load its `state` into the model, then "
            "save_pretrained) and write that folder",
            of_model=True,
        )
        keys.value("model.archive")


def _set_data(draft: Draft, keys: KeyReader, method: str) -> None:
    names = names_of(keys.value("datasets"))
    set_data(draft, DATA_OF.get(method, "pairs"), sources("dpo", names, "train"))
    carried(draft, keys, "max_prompt_length")
    side = "start" if names == ["hh"] else "end"
    draft.derive(
        "data.cut_prompt", side, f"data.cut_prompt {side}: the repository keeps the end of a prompt only for hh"
    )
    if "hh" in names and len(names) > 1:
        draft.ask(
            "prompts of hh above data.max_prompt: the repository keeps their end, and the start of the other sets'. "
            "data.cut_prompt is one for all sets, so this job keeps the start of both"
        )


def _set_objective(draft: Draft, keys: KeyReader, method: str, fork: Fork) -> None:
    if fork.loss:
        names = [name for name in keys.entries if name.startswith("loss.") and keys.has(name)]
        draft.set("objective", {name.removeprefix("loss."): text_or_value(keys, name) for name in names})
        return
    if method == "sft":
        text = "objective sft, a mean over samples: the repository sums the loss over each example's tokens"
        draft.derive("objective", {"kind": "sft", "mean_over": "samples"}, text)
        for key in ("loss.beta", "loss.label_smoothing", "loss.reference_free"):
            keys.value(key)
        return
    objective: dict[str, Any] = {"kind": method, "beta": keys.read("loss.beta")}
    if method == "ipo":
        objective["log_probs"] = "sum"
    elif smoothing := keys.read("loss.label_smoothing"):
        objective["label_smoothing"] = smoothing
    if keys.read("loss.reference_free"):
        if method == "ipo":
            keys.refuse_in_job(
                "loss.reference_free",
                "planner's ipo needs a reference: write false, or use a training loop of your own",
            )
        objective["reference"] = "none"
    shown = ", ".join(f"{name} {its}" for name, its in objective.items())
    draft.derive("objective", objective, f"objective {shown}")


def _set_length(draft: Draft, keys: KeyReader, facts: DpoFacts) -> None:
    if facts.n_examples:
        whole = -(-facts.n_examples // facts.batch) * facts.batch
        text = f"train.examples {whole}: n_examples {facts.n_examples} ends with the batch that reaches it"
        if facts.n_epochs:
            text += f". In the repository n_epochs {facts.n_epochs} ends the run earlier if the data has fewer rows"
        draft.derive("train.examples", whole, text)
    elif facts.n_epochs:
        carry(draft, keys, "n_epochs", "train.epochs", facts.n_epochs)
    else:
        keys.lacks("n_epochs: found neither n_epochs nor n_examples. Write one of them behind the recipe")


def _set_optimizer(draft: Draft, keys: KeyReader) -> None:
    name, lr = keys.read("optimizer"), keys.read("lr")
    kinds: dict[str, dict[str, Any]] = {
        "RMSprop": {"kind": "rmsprop"},
        # The repository passes only the learning rate, so torch's default weight decay applies.
        "AdamW": {"kind": "adamw", "weight_decay": 0.01},
        "Adam": {"kind": "adamw", "weight_decay": 0.0},
        "SGD": {"kind": "sgd"},
    }
    if name not in kinds:
        keys.refuse_in_job(
            "optimizer", f"planner has {', '.join(kinds)}: write one of them, or use a training loop of your own"
        )
    values = {**kinds.get(name, {"kind": "rmsprop"}), "lr": lr}
    set_optimizer(draft, keys, values, {"kind": "optimizer", "lr": "lr"})


def _set_eval(draft: Draft, keys: KeyReader, facts: DpoFacts, method: str) -> None:
    samples = -(-facts.n_eval // facts.eval_batch) * facts.eval_batch
    text = f"eval.samples {samples}: n_eval_examples {facts.n_eval} in whole batches of {facts.eval_batch}"
    test = sources("dpo", names_of(keys.value("datasets")), "test")
    if not set_test_rows(
        draft, DATA_OF.get(method, "pairs"), test, samples, "datasets, in the test split of their loader"
    ):
        text += ". planner holds them out of the training rows, the repository takes a test split"
    draft.derive("eval.samples", samples, text)
    every = facts.eval_every // facts.batch * facts.batch
    if every:
        lowered = "" if every == facts.eval_every else f", lowered from {facts.eval_every} as in the repository"
        draft.derive("eval.every", f"{every} examples", f"eval.every {every} examples{lowered}")
    else:
        draft.derive("eval.every", "1 step", f"eval.every 1 step: eval_every {facts.eval_every} is less than a batch")
