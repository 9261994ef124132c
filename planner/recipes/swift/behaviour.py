"""What ms-swift does in its own way: its accumulation, its GPUs that share a row, methods, data sets and adapters."""

from dataclasses import replace
from math import ceil
from pathlib import PurePath
from typing import Any

from planner.base.disk import is_file
from planner.files.messages import cut, show
from planner.recipes.drafting import carry, kind_of, note_padding
from planner.recipes.drafting_data import set_data
from planner.recipes.engine import default, note_settings
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Trap
from planner.recipes.row_sources import DatasetSource
from planner.recipes.swift.keys import TYPES
from planner.recipes.swift.refusals import NO_KL, OWN_LOADER, holds_out, of_rlhf
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.dialect import Dialect, NamedSets, Trained
from planner.recipes.trainer.job import set_lora, set_path
from planner.recipes.trainer.keys import MICRO, STEPS
from planner.recipes.trainer.preferences import own_because, set_preferences
from planner.recipes.trainer.sizes import SPLITS

_FILLS = 16
"""the batch for which it chooses gradient_accumulation_steps"""
_WHOSE = "ms-swift's defaults"
_PRESETS = ("zero0", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload")
# Any value names rows or benchmarks: `0` is the name "0".
_EVALUATED = ("val_dataset", "cached_val_dataset", "eval_dataset")
_LOSSES = {"dpo": {"sigmoid": "dpo", "ipo": "ipo"}, "kto": {"kto": "kto"}, "simpo": {"simpo": "simpo"}}
_NO_OBJECTIVE = {
    "orpo": "planner's orpo averages the chosen completion over the batch's tokens, ms-swift over a micro-batch's",
    "rm": "planner trains no reward models",
}
# loss_scale -> data.loss_on. Any other weighs tokens.
_LOSS_ON = {"default": "completions", "last_round": "completions", "all": "all"}


def steps_by_default(micro: int, processes: int) -> int:
    """gradient_accumulation_steps if the recipe has none (TrainArgumentsMixin.__post_init__)."""
    return max(1, ceil(_FILLS / micro / processes))


def prepare(keys: KeyReader, processes: int) -> None:
    """Gives values the form that the Trainer's layer reads, and adds ms-swift's defaults that are computed."""
    entries = dict(keys.entries)
    made: dict[str, Any] = {
        "weight_decay": 0.1, "adam_beta2": 0.95, "gradient_checkpointing": True, "eval_strategy": "no",
        "lora_target_modules": "all-linear", "learning_rate": 1e-5 if keys.value("tuner_type") == "full" else 1e-4,
    }  # fmt: skip
    if holds_out(keys) or any(keys.has(name) for name in _EVALUATED):
        made["eval_strategy"] = keys.value("save_strategy", "steps")
        made["eval_steps"] = keys.value("save_steps", 500)
    else:
        entries.pop("eval_strategy", None)
    if not keys.has(STEPS) and keys.value("rlhf_type") != "grpo":
        made[STEPS] = steps_by_default(keys.read(MICRO), processes)
        entries.pop(STEPS, None)
    if keys.value("deepspeed") in _PRESETS:
        entries["deepspeed"] = replace(entries["deepspeed"], value=None)
        sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", STEPS)
        made |= {f"deepspeed.{size}": "auto" for size in sizes}  # swift/config/*.json
    attention = entries.get("attn_implementation")
    if attention and attention.value == "flash_attn":
        entries["attn_implementation"] = replace(attention, value="flash_attention_2")
    bits = keys.value("quant_bits")
    if keys.value("quant_method") == "bnb" and bits in (4, 8):
        entries[f"load_in_{bits}bit"] = replace(entries["quant_bits"], value=True, written_as="quant_bits")
    scale = entries.get("loss_scale")
    if scale and isinstance(scale.value, str):
        entries["loss_scale"] = replace(scale, value=scale.value.replace("+ignore_empty_think", ""))
    keys.entries = {**{name: default(value, _WHOSE) for name, value in made.items()}, **entries}


def trained_by(keys: KeyReader, command: str) -> Trained:
    """What a recipe trains, by its command (`sft`, `pt`, `rlhf`, empty for a file). Notes mistakes in `keys`."""
    is_rlhf = command == "rlhf" or (not command and bool(of_rlhf(keys)))
    method = str(keys.read("rlhf_type")) if is_rlhf else "sft"
    if method not in (*TYPES, "sft"):
        keys.refuse("rlhf_type", f"Write one of {', '.join(TYPES)}")
        method = "dpo"
    keys.method = method
    if method in (*OWN_LOADER, "ppo") and keys.peek(SPLITS) is True:
        keys.entries = {**keys.entries, SPLITS: default(value=False, where=_WHOSE)}
    said = keys.value("loss_type")
    said = said[0] if isinstance(said, list) and len(said) == 1 else said
    loss = method if said is None else _LOSSES.get(method, {}).get(str(said), f"loss_type {show(said)}")
    if command == "pt":
        keys.lacks(
            "swift pt: convert makes no job for rows of plain text. Write one with data.kind jsonl, objective lm "
            "(planner init) and the global batch that planner check shows"
        )
    unit = (
        "pair" if method in {"dpo", "cpo", "orpo", "simpo", "rm"} else "completion" if method == "grpo" else "example"
    )
    told = "rlhf_type" if keys.has("rlhf_type") else f"swift {command}" if command else "no rlhf_type"
    return Trained(
        method=method, told_by=told, loss=loss, unit="packed row" if keys.value("packing") is True else unit,
        why_own=_own_because(keys, method, loss),
    )  # fmt: skip


def _own_because(keys: KeyReader, method: str, loss: str) -> str:
    """Why no objective of planner's computes the loss, empty if one does."""
    more = []
    if method == "simpo" and keys.read("cpo_alpha"):
        more.append("cpo_alpha (1 by default, which adds a cross-entropy: write 0 for SimPO alone)")
    if method == "sft" and str(keys.read("loss_scale")) not in _LOSS_ON:
        more.append(f"loss_scale {cut(str(keys.value('loss_scale')))}")
    if (tuning := str(keys.read("tuner_type"))) not in {"lora", "full"}:
        more.append(f"tuner_type {cut(tuning)}")
    return own_because(keys, loss, _NO_OBJECTIVE, *more, shown=method if loss == method else f"{method} with {loss}")


def _facts(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:
    sequence, method = keys.read("sequence_parallel_size"), facts.method
    if facts.tuned_gpus % sequence:
        keys.wrong(f"sequence_parallel_size: {sequence} does not divide {facts.tuned_gpus} GPUs. Write a divisor")
        sequence = 1
    varies = "ms-swift averages the KL over a micro-batch of all GPUs" if method == "kto" else ""
    varies = "ms-swift averages the chosen completion over a micro-batch's tokens" if method == "orpo" else varies
    text = f"ms-swift 4 refuses {', '.join(facts.old_keys)}. The recipe needs ms-swift 3."
    made = replace(
        facts, is_trl=False, even_batches=False, varies=varies, limits=(*facts.limits, *_limits(keys, facts)),
        leaves_out=sequence == 1, sharing=1 if method == "grpo" else sequence, old_keys=(),
        fills=_FILLS if keys.where(STEPS) == _WHOSE else 0,
        own_traps=(*((Trap(name="does not load", text=text),) if facts.old_keys else ()), *_ignored(keys, method)),
    )  # fmt: skip
    return replace(made, batch=made.batch_at(facts.tuned_gpus))


def _ignored(keys: KeyReader, method: str) -> tuple[Trap, ...]:
    """What ms-swift takes and does not read."""
    if keys.where(SPLITS) != _WHOSE:
        return ()
    text = f"ms-swift takes split_batches and does not read it in {method}: m is of one GPU all the same."
    return (Trap(name="split_batches", text=text),)


def _limits(keys: KeyReader, facts: TrainerFacts) -> list[Limit]:
    """What ms-swift refuses (SftArguments and RLHFArguments, and prepare_kto_dataset)."""
    found, method, sequence = [], facts.method, keys.read("sequence_parallel_size")
    text = f"RuntimeError: sequence_parallel_size {sequence} does not divide the GPUs"
    found.append(Limit(text=text, multiple_of=sequence))
    has_kl = keys.value("loss_type") not in (NO_KL, [NO_KL])
    if method == "kto" and has_kl and keys.read(MICRO) * keys.read(STEPS) == 1:  # num_steps is not asked
        found.append(Limit(text="ValueError: KTO needs a batch above 1", least=2))
    return found


def _set_model(draft: Draft, keys: KeyReader) -> None:
    set_path(draft, keys)
    if keys.value("use_hf") is not True:
        draft.ask("model.path: ms-swift loads from ModelScope, planner from Hugging Face: compare both", of_model=True)
    for name, what in {
        "template": "model.chat_template: ms-swift builds its own template, planner takes the tokenizer's",
        "system": "system: write it into the rows, or into a template of yours",
        "adapters": "model.path: merge the adapters into their base model, and write the merged one",
        "sequence_parallel_size": "sequence_parallel_size: planner does not split rows, so each must fit on one GPU",
        "max_epochs": "train.epochs: ms-swift stops after max_epochs",
    }.items():
        if keys.value(name) not in (None, 1):
            draft.drop(name, f"{cut(show(keys.value(name)))}: see to do")
            draft.ask(what, of_model=name != "sequence_parallel_size")
    if keys.where("deepspeed.train_batch_size") == _WHOSE:
        draft.drop("deepspeed", "planner shards by FSDP2")
    for name, plain in {"init_weights": (True,), "lorap_lr_ratio": (), "target_regex": ()}.items():
        if keys.has(name) and keys.value(name) not in plain:
            keys.refuse_in_job(name, "planner trains only plain low-rank adapters: remove it if you want those")
    if keys.read("tuner_type") == "lora":
        named = keys.value("lora_target_modules")
        if isinstance(named, list) and len(named) > 1 and any(str(each).startswith("all-") for each in named):
            keys.refuse_in_job("lora_target_modules", "planner has no such mixture: write all-linear alone, or names")
        set_lora(draft, keys, is_trl=False)
    if keys.has("quant_bits") and not (keys.has("load_in_4bit") or keys.has("load_in_8bit")):
        draft.drop(
            "quant_bits",
            f"{show(keys.value('quant_bits'))}: planner stores frozen weights in fp32 or nf4",
            is_trained=True,
        )


def _set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    held = "split_dataset_ratio" if facts.evaluates and holds_out(keys) else ""
    train, test = (_sources(draft, keys, name) for name in ("dataset", "val_dataset"))
    set_data(draft, kind_of(facts.method), train)
    draft.told |= {"dataset", "val_dataset"}
    long = {"left": "ms-swift cuts their beginning (truncation_strategy), planner their end", "right": ""}.get(
        str(keys.value("truncation_strategy")), "ms-swift leaves them out (truncation_strategy), planner cuts them"
    )
    if long:
        draft.ask(f"rows longer than model.context: {long}")
    if facts.method == "sft":
        scale = str(keys.read("loss_scale"))
        on = _LOSS_ON.get(scale, "completions")
        draft.derive("data.loss_on", on, f"data.loss_on {on}: loss_scale {cut(scale)}", "loss_scale")
        if scale == "last_round":
            draft.ask("data.loss_on: ms-swift trains on the last answer alone, planner on all of a conversation")
        if facts.packs:
            carry(draft, keys, "packing", "data.packing", True)
    return NamedSets(train=train, test=test, held_key=held)


def _sources(draft: Draft, keys: KeyReader, key: str) -> list[DatasetSource]:
    """The data sets at a key: `HF::name:subset/subset#rows` (swift/dataset/dataset_syntax.py)."""
    said = keys.value(key, [])
    made = []
    for name in said if isinstance(said, list) else [said]:
        if not isinstance(name, str) or not name.partition("#")[0]:
            keys.refuse_in_job(key, "Write the names of data sets")
            return []
        hub, _, rest = ("", "", name) if is_file(name) or "::" not in name else name.partition("::")
        rest, _, rows = (rest, "", "") if is_file(rest) else rest.partition("#")
        rest, _, subset = (rest, "", "") if is_file(rest) else rest.partition(":")
        is_path = bool(PurePath(rest).suffix) or rest.startswith((".", "/", "~"))
        is_hub = is_path or hub.lower() == "hf" or (keys.value("use_hf") is True and hub.lower() != "ms")
        made.append(DatasetSource(name=rest, config=subset or None, hub=is_hub))
        if rows:
            draft.ask(f"{cut(name)}: ms-swift takes {cut(rows)} rows of it. Write a mixture with rows", of_model=True)
    return made


def _set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    set_preferences(draft, keys, facts, "ms-swift", "loss_type", "cpo_alpha")


def _set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    if keys.value("padding_free") is True:
        draft.drop("padding_free", "planner pads micro-batches. batch.max_tokens of a job avoids that")
    pads = not (facts.packs or keys.value("padding_free") is True)
    note_padding(draft, "each micro-batch is padded to its longest row, by ms-swift and by planner" if pads else "")


DIALECT = Dialect(
    title="ms-swift",
    set_model=_set_model,
    set_rows=_set_rows,
    set_objective=_set_objective,
    note_loss=note_settings,
    set_padding=_set_padding,
    facts=_facts,
)
