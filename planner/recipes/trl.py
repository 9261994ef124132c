"""TRL's and the alignment-handbook's flat YAML, and commands such as `accelerate launch scripts/sft.py --key value`.

`per_device_train_batch_size` is one GPU's micro-batch; the global batch, m x A x GPUs, is written nowhere, so the GPU
count must be said. What TRL does with a recipe is in `planner.recipes.trl_runs`; this file reads the keys.
"""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import PurePath

from planner.recipes import trl_older
from planner.recipes.accelerate import LaunchSettings
from planner.recipes.drafting import (
    DATA_OF,
    Options,
    finish,
    make_own,
)
from planner.recipes.entries import COMMAND_LINE, Entry, Keys
from planner.recipes.recipe import Draft, Note, Recipe
from planner.recipes.scalars import Unresolved, number, shell_names
from planner.recipes.trl_facts import facts_of
from planner.recipes.trl_job import fill
from planner.recipes.trl_keys import FALSE_WORDS, KNOWN, METHODS, TRUE_BY_DEFAULT, TRUE_WORDS, TRUTHS
from planner.recipes.trl_loss import changing
from planner.recipes.trl_runs import TrlFacts

# The values of loss_type that are the method itself.
_PLAIN_LOSSES = {
    "sft": ("", "nll", "chunked_nll"),
    "dpo": ("", "sigmoid"),
    "kto": ("", "kto"),
}
# Methods that planner has an objective of the same name for, which computes another loss, and the difference.
_ANOTHER_LOSS = {"orpo": "planner's orpo leaves the prompt out of its cross-entropy, and TRL counts it"}
# Of a job alone, so that a check needs none of them.
_OF_JOBS = (
    "dataset_name", "dataset_config", "dataset_train_split", "beta", "seed", "weight_decay", "max_length",
    "max_seq_length", "max_prompt_length", "model_revision", "lr_scheduler_type", "optim", "lora_r", "lora_alpha",
    "lora_dropout", "lora_target_modules", "chat_template", "chat_template_path", "max_grad_norm",
)  # fmt: skip
# Read as a number or a text, and noted there.
_ASKED = (
    "model_name_or_path", "learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps",
    "per_device_eval_batch_size", "num_generations",
)  # fmt: skip
# Dropped for what they mostly say; another value decides something.
_DECIDING = ("max_steps", "dataloader_drop_last", "packing_strategy", "accelerator_config", "average_tokens")
# Candidates for a job's name.
_NAMES = ("run_name", "hub_model_id", "output_dir", "logging_dir")
_SHARING = ("tp_size", "cp_size", "sp_size")
_REASONS = {
    "output_dir": "where a run lives is checkpoint.path",
    "overwrite_output_dir": "a run resumes where it ends; another checkpoint.path is another run",
    "push_to_hub": "a trained run is exported by planner export",
    "report_to": "planner keeps a ledger of its own",
    "dataset_num_proc": "data is read once",
    "remove_unused_columns": "only the columns of the form are read",
    "ddp_timeout": "planner watches workers itself",
    "use_liger_kernel": "kernels are torch's",
    "average_tokens_across_devices": "every token of the global batch weighs the same anyway",
    "torch_dtype": "weights are fp32, the passes in train.precision",
    "dtype": "weights are fp32, the passes in train.precision",
    "dataloader_drop_last": "no row is dropped here",
    "accelerator_config": "planner deals out the rows itself",
    "trust_remote_code": "no code of a model's repository is run",
    "gradient_checkpointing_kwargs": "no choice here",
    "eval_accumulation_steps": "it moves evaluation tensors to the CPU; it is no gradient accumulation",
    "per_device_eval_batch_size": "evaluation is split as training is",
    "save_strategy": "commits come at a measured interval (checkpoint.every)",
    "save_steps": "commits come at a measured interval (checkpoint.every)",
    "save_total_limit": "checkpoint.keep is 2",
    "packing_strategy": "bfd, as here",
    "padding_free": "packing does that",
    "tf32": "torch's default",
    "max_steps": "-1: epochs rule",
    "do_eval": "eval_strategy says it",
    "dataset_test_split": "eval.samples are held out of the training rows",
}
# A section of TRL's configuration files (TrlParser), of variables that are set before anything else is read.
_ENVIRONMENT = "env"
_BY_PREFIX = {
    "hub_": "a trained run is exported by planner export",
    "logging_": "the ledger has every step",
    "log_level": "the ledger has every step",
    "wandb_": "planner keeps a ledger of its own",
    "dataloader_": "the loader is planner's own",
    "bnb_": "no 4-bit weights here",
    "ddp_": "planner shards by FSDP2",
    "fsdp": "planner shards by FSDP2 in its own way",
    "vllm_": "generation is your loop's",
    f"{_ENVIRONMENT}.": "variables of the environment: set them where the workers start",
}


def method_of(entries: dict[str, Entry], script: str, source: str, asked: str | None) -> tuple[str, str]:
    """The method, and what says so: the flag, the script, a key, or the handbook's folder; both empty if nothing."""
    if asked:
        return asked, "--method"
    stem = PurePath(script).stem.removeprefix("run_")
    if stem in METHODS:
        return stem, script
    if stem == trl_older.CPT or PurePath(source).parent.name == trl_older.CPT:
        return "sft", f"{trl_older.CPT}, continued pretraining"
    tells = {
        "num_generations": "grpo",
        "desirable_weight": "kto",
        "undesirable_weight": "kto",
        "precompute_ref_log_probs": "dpo",
        "packing": "sft",
        "max_seq_length": "sft",
        "assistant_only_loss": "sft",
        "completion_only_loss": "sft",
        "dataset_text_field": "sft",
    }
    for key, method in tells.items():
        if key in entries:
            return method, key
    if (loss := entries.get("loss_type")) and isinstance(loss.value, str):
        return "dpo", "loss_type"
    # The handbook's launch.slurm looks recipes up as recipes/MODEL/METHOD/config_NAME.yaml.
    folder = PurePath(source).parent.name
    return (folder, f"the folder {folder}/") if folder in METHODS else trl_older.method_of(entries)


def read(keys: Keys, options: Options, *, script: str, launch: LaunchSettings | None) -> Recipe:
    """The recipe. Mistakes are noted in `keys`."""
    _refuse_unknown(keys)
    trl_older.rename(keys)
    _read_truths(keys)
    _refuse_parallel(keys)
    method, told_by = method_of(dict(keys.entries), script, keys.source, options.method)
    if method not in METHODS:
        found = f"found {method[:40]}" if method else "the recipe does not say"
        keys.wrong(f"method: {found}; write --method {', '.join(METHODS[:-1])} or {METHODS[-1]}")
        method = "sft"
    trl_older.add_defaults(keys, method)
    is_older = trl_older.is_older(keys.entries)
    if told_by.startswith(trl_older.CPT):
        keys.lacks(
            f"{told_by}: the rows are plain text, which convert has no job for; write one with data.kind jsonl and "
            "objective lm (planner init), and the global batch that planner check shows"
        )
    loss = _loss_of(keys, method)
    unit = "pair" if method in {"dpo", "orpo"} else "example" if method == "sft" else "completion"
    unit = "packed row" if keys.flag("packing") else unit
    micro = keys.whole("per_device_train_batch_size", 8)
    accumulation = keys.whole("gradient_accumulation_steps", 1)
    gpus = _gpus(keys, options, launch)
    splits = keys.value("accelerator_config.split_batches") is True
    batch = micro * accumulation * (1 if splits else gpus)
    why_own = _own_because(keys, method, loss)
    facts = facts_of(keys, method, loss, unit, micro, accumulation, gpus, batch, splits, launch)
    _refuse_contradictions(keys, facts, launch)
    draft = Draft()
    draft.derived.append(Note(key="method", text=f"method {method}: {told_by}"))
    held = max(micro // gpus, 1) if splits else micro
    fill(draft, keys, options, facts, launch, held, is_own=bool(why_own))
    whose = "--gpus" if options.gpus else f"num_processes of {launch.source}" if launch else "--gpus"
    draft.derived.append(Note(key="gpus", text=f"tuned for {gpus} GPUs: {whose}"))
    finish(draft, keys, _reasons(keys), "nothing here stands for it")
    if why_own:
        make_own(draft, method if loss == method else f"{method} ({loss})", why_own)
    return Recipe(
        source=keys.source,
        method=method,
        unit=unit,
        global_batch=batch,
        accumulation=accumulation,
        gpus=gpus,
        micro=held,
        eval_batch=None,
        draft=draft,
        foreign=facts,
        script=script or (f"run_{method}.py" if is_older else ""),
        config_first=is_older and not script,
    )


def _refuse_unknown(keys: Keys) -> None:
    of_older = {"hub_model_revision", "logging_first_step"} if trl_older.is_older(keys.entries) else set()
    for key in dict.fromkeys(name.partition(".")[0] for name in keys.entries):
        if key in KNOWN or key in of_older or (key == _ENVIRONMENT and key not in keys.entries):
            continue
        positive = key.removeprefix("no_")
        if positive != key and positive in KNOWN:
            keys.wrong(f"{key}: {_why_not(positive)}; write --{positive} false")
            continue
        near = get_close_matches(key, KNOWN, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]}? Or take it out" if near else "take it out"
        keys.wrong(f"{key}: not known to TRL, which refuses the file for it; {hint}")


def _why_not(positive: str) -> str:
    """Why a key with `no_` before it is refused there, too."""
    if positive in TRUE_BY_DEFAULT:
        return f"--no_{positive} stands on the command line, without a value"
    return "transformers makes --no_NAME only of options that are true by default"


def _read_truths(keys: Keys) -> None:
    """`--bf16 1` and `--packing yes` are true as they are there."""
    entries = dict(keys.entries)
    for key in TRUTHS:
        if not keys.has(key) or isinstance(keys.value(key), Unresolved | bool):
            continue
        word = str(keys.value(key)).lower()
        if word not in TRUE_WORDS + FALSE_WORDS:
            keys.refuse(key, "write true or false")
        entries[key] = replace(entries[key], value=word in TRUE_WORDS)
    keys.entries = entries


def _refuse_parallel(keys: Keys) -> None:
    """Tensor, context and sequence parallel GPUs share a micro-batch, so the batch would be smaller than W x m x A."""
    for key in [name for name in keys.entries if name.startswith("parallelism_config.")]:
        size = keys.value(key)
        if key.rpartition(".")[2].removeprefix("parallelism_config_") in _SHARING and size not in (None, 1):
            keys.refuse(key, "those GPUs share a micro-batch; take it out, and write the count of data-parallel GPUs")


def _refuse_contradictions(keys: Keys, facts: TrlFacts, launch: LaunchSettings | None) -> None:
    """What TRL itself would refuse at the recipe's own count."""
    if launch and launch.clip is not None and launch.clip != (clip := keys.norm("max_grad_norm", 1.0) or 0.0):
        keys.lacks(
            f"max_grad_norm: {number(clip)} here and gradient_clipping {number(launch.clip)} in {launch.source}; write "
            "one number into both, or auto there"
        )
    if facts.deepspeed_accumulation is not None and facts.deepspeed_accumulation != facts.accumulation:
        keys.lacks(
            f"gradient_accumulation_steps: {facts.accumulation} here and {facts.deepspeed_accumulation} in "
            f"{launch.source if launch else ''}; write one number into both, or auto there"
        )
    evaluated = facts.eval_micro * facts.tuned_gpus
    if facts.evaluates and facts.num_generations and evaluated % facts.num_generations:
        keys.lacks(
            f"per_device_eval_batch_size: {facts.eval_micro} x {facts.tuned_gpus} GPUs are {evaluated}, no multiple of "
            f"num_generations {facts.num_generations}; write one that is"
        )


def _loss_of(keys: Keys, method: str) -> str:
    """`dpo` itself, or the loss_type that stands in its place."""
    loss = keys.value("loss_type")
    if isinstance(loss, list) and len(loss) == 1:
        loss = loss[0]
    named = "a list of losses" if isinstance(loss, list | dict) else str(loss or "")
    if method == "dpo" and named == "ipo":
        return "ipo"
    if named in _PLAIN_LOSSES.get(method, ("", named)):
        return method
    # A name that an objective of ours has, too, is none of this method's.
    return f"loss_type {named}" if named in DATA_OF else named


def _own_because(keys: Keys, method: str, loss: str) -> str:
    """Why no objective of planner's computes this loss; empty if one does."""
    if loss in _ANOTHER_LOSS:
        return _ANOTHER_LOSS[loss]
    if loss not in DATA_OF:
        named = loss if loss.startswith("loss_type ") else f"loss_type {loss}"
        return f"planner has no objective for {method}" + ("" if loss == method else f" with {named}")
    changed = [key for key, plain in changing(loss).items() if keys.has(key) and keys.value(key) not in plain]
    return f"planner has no objective for {loss} with {', '.join(changed)}" if changed else ""


def _gpus(keys: Keys, options: Options, launch: LaunchSettings | None) -> int:
    """The count that the recipe was tuned for; nothing in the recipe itself says it."""
    said = launch.num_processes if launch else None
    if options.gpus and said and options.gpus != said:
        keys.wrong(
            f"--gpus {options.gpus}: {launch.source if launch else ''} says num_processes {said}; leave one of "
            "them out "
            "(the count to write for is --at, the counts to check are check's --gpus)"
        )
    if not options.gpus and not said:
        keys.wrong(
            "the GPU count: a TRL recipe does not say it, and its global batch is GPUs x per_device_train_batch_size x "
            "gradient_accumulation_steps; write the count that it was tuned for (convert --gpus W, check "
            "--tuned-for W, "
            "or --accelerate FILE with num_processes)"
        )
    return options.gpus or said or 1


def leave_unresolved(keys: Keys) -> None:
    """`$NAME` on the command line: noted as a mistake where the value decides something and nobody asks for it by kind.

    What is dropped may be anything; a number or a text that is missing is noted where it is read.
    """
    dropped = {key for key in _reasons(keys) if not key.startswith(_DECIDING)}
    entries, free = dict(keys.entries), {*_NAMES, *_ASKED, *dropped, *(() if keys.is_for_job else _OF_JOBS)}
    for key, entry in keys.entries.items():
        words = " ".join(map(str, entry.value)) if isinstance(entry.value, list) else str(entry.value)
        if entry.where == COMMAND_LINE and shell_names(words):
            value = Unresolved(words, "a shell variable that is not set")
            entries[key] = replace(entry, value=value)
            if key not in free:
                keys.unresolved(key, value, entry.where)
    keys.entries = entries


def _reasons(keys: Keys) -> dict[str, str]:
    """The named reasons, and those of keys that begin alike."""
    found = _REASONS | trl_older.REASONS
    for key in keys.entries:
        for prefix, why in _BY_PREFIX.items():
            if key.startswith(prefix):
                found.setdefault(key, why)
    return found
