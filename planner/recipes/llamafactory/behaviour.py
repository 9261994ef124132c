"""What LLaMA-Factory does in its own way: its methods, data sets, templates and adapters, and the counts it refuses."""

from dataclasses import replace
from typing import Any

from planner.files.messages import cut
from planner.recipes.drafting import carry, kind_of, note_padding, plain
from planner.recipes.drafting_data import set_data
from planner.recipes.engine import carried, carried_if_set, default, note_settings
from planner.recipes.entries import KeyReader
from planner.recipes.llamafactory.data_sets import ask_where, data_sets
from planner.recipes.llamafactory.keys import MEDIA, OLD_NAMES, STAGES
from planner.recipes.recipe import Draft, Trap
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.dialect import Dialect, NamedSets, Trained
from planner.recipes.trainer.job import set_lora
from planner.recipes.trainer.preferences import own_because, set_preferences

_WHOSE = "LLaMA-Factory's defaults"
# pref_loss -> planner's objective.
_LOSSES = {"sigmoid": "dpo", "ipo": "ipo", "simpo": "simpo"}
# Why planner has no objective for a stage or a loss.
_NO_OBJECTIVE = {
    "rm": "planner trains no reward models",
    "ppo": "planner has no objective for ppo",
    "orpo": "planner's orpo averages the chosen completion over the batch's tokens, LLaMA-Factory over each pair's",
}
# Optimizers that replace the one of optim.
_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "loraplus_lr_ratio")
_TUNING = ("lora", "full", "freeze", "oft")
NEVER = 1 << 40
"""more GPUs than there are"""
_ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager", True: "flash_attention_2"}


def prepare(keys: KeyReader) -> None:
    """Gives values the form that the Trainer's layer reads, and adds LLaMA-Factory's defaults that are computed."""
    entries = dict(keys.entries)
    made: dict[str, Any] = {}
    rank = keys.value("lora_r", 8)
    if not keys.value("lora_alpha"):
        made["lora_alpha"] = 2 * (rank if isinstance(rank, int) else 8)
        entries.pop("lora_alpha", None)
    if keys.value("pure_bf16") is True and keys.value("bf16") is not True:
        entries["bf16"] = replace(entries["pure_bf16"], written_as="pure_bf16")
    if keys.value("packing") is None and _is_packed(keys):
        made["packing"] = True
        entries.pop("packing", None)
    target = keys.value("lora_target_modules", "all")
    named = [each.strip() for each in target.split(",")] if isinstance(target, str) else target
    named = ["all-linear"] if named == ["all"] else named
    where = entries["lora_target_modules"] if "lora_target_modules" in entries else default(None, _WHOSE)
    entries["lora_target_modules"] = replace(where, value=named)
    attention = keys.value("attn_implementation")
    if isinstance(attention, str | bool) and attention in _ATTENTION:
        entries["attn_implementation"] = replace(entries["attn_implementation"], value=_ATTENTION[attention])
    if (bits := keys.value("quantization_bit")) in (4, 8):
        entries[f"load_in_{bits}bit"] = replace(entries["quantization_bit"], value=True, written_as="quantization_bit")
    keys.entries = {**{name: default(value, _WHOSE) for name, value in made.items()}, **entries}


def _is_packed(keys: KeyReader) -> bool:
    return keys.value("neat_packing") is True or keys.value("stage") == "pt"


def trained_by(keys: KeyReader) -> Trained:
    """What a recipe trains. Notes mistakes in `keys`."""
    stage = str(keys.read("stage"))
    loss = str(keys.read("pref_loss"))
    if stage == "orpo":
        stage, loss = "dpo", "orpo"
    if stage not in STAGES:
        keys.refuse("stage", f"Write one of {', '.join(STAGES)}")
        stage = "sft"
    told = "stage" if keys.has("stage") else f"the default of stage {keys.versions}"
    method = {"pt": "sft"}.get(stage, stage)
    if stage == "dpo":
        method = loss if loss in {"orpo", "simpo"} else "dpo"
        told += f", pref_loss {loss}"
        loss = _LOSSES.get(loss, loss)
    else:
        loss = method
    unit = {"dpo": "pair", "rm": "pair"}.get(stage, "example")
    packs = stage in {"pt", "sft"} and keys.value("packing") is True
    if stage == "pt":
        keys.lacks(
            "stage pt: convert makes no job for rows of plain text. Write one with data.kind jsonl, objective lm "
            "(planner init) and the global batch that planner check shows"
        )
    return Trained(
        method=method, told_by=told, loss=loss, unit="packed row" if packs else unit, why_own=_own_because(keys, loss)
    )


def _own_because(keys: KeyReader, loss: str) -> str:
    """Why no objective of planner's computes the loss, empty if one does."""
    tuning = str(keys.read("finetuning_type"))
    more = ["ld_alpha"] if loss in {"dpo", "ipo", "simpo"} and keys.has("ld_alpha") else []
    more += [f"finetuning_type {tuning}"] if tuning in {"freeze", "oft"} else []
    return own_because(keys, loss, _NO_OBJECTIVE, *more, shown=f"pref_loss {loss}")


def _facts(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:
    varies = ""
    if facts.method == "kto":
        varies = "LLaMA-Factory averages the KL over a micro-batch of all GPUs, and the loss over each micro-batch"
    elif facts.method == "sft" and (media := _media(keys)):
        varies = f"For a model with a processor ({media}), the Trainer takes the mean of each micro-batch's mean loss"
    old = [name for name in OLD_NAMES if keys.wrote(name)]
    old += ["stage orpo"] if keys.value("stage") == "orpo" else []
    text = f"LLaMA-Factory 0.9.5 refuses {', '.join(old)}. The recipe needs an older version."
    return replace(
        facts,
        is_trl=False,
        varies=varies,
        old_keys=tuple(name for name in facts.old_keys if name not in OLD_NAMES),
        own_traps=(Trap(name="does not load", text=text),) if old else (),
    )


def _media(keys: KeyReader) -> str:
    """The recipe's keys of images, video and audio as text."""
    return ", ".join(name for name in MEDIA if keys.has(name))


def limits(keys: KeyReader, facts: TrainerFacts, distributed: int) -> list[Limit]:
    """The counts of GPUs that LLaMA-Factory refuses (hparams/parser.py, get_train_args).

    `distributed` is the least count that it starts in processes of torch.distributed.
    """
    found, most = [], distributed - 1
    for name in ("galore_layerwise", "apollo_layerwise"):
        if keys.value(name) is True and keys.value(f"use_{name.partition('_')[0]}") is True:
            found.append(Limit(text=f"ValueError: {name} is for one plain process", most=most))
            if facts.accumulation > 1:
                found.append(Limit(text=f"ValueError: {name} needs gradient_accumulation_steps 1", least=NEVER))
    stage = 3 if facts.unread else keys.value("deepspeed.zero_optimization.stage")
    if keys.value("use_badam") is True and (keys.value("badam_mode") == "ratio" or stage != 3):
        found.append(Limit(text="ValueError: this BAdam is for one plain process", most=most))
    return found


def _set_model(draft: Draft, keys: KeyReader) -> None:
    draft.set("model.kind", "hf")
    carried(draft, keys, "model_name_or_path")
    if keys.value("disable_gradient_checkpointing") is not True:
        how = "LLaMA-Factory does so unless disable_gradient_checkpointing is true"
        draft.derive("train.activation_checkpointing", True, f"train.activation_checkpointing true: {how}")
    if keys.value("model_revision") != "main":
        carried_if_set(draft, keys, "model_revision")
    carried(draft, keys, "max_length")
    if (template := keys.scalar_text("template")) is not None:
        draft.drop("template", "see to do")
        draft.ask(
            f"model.chat_template: LLaMA-Factory builds its own template {cut(template)}, planner takes the "
            "tokenizer's. Compare both, or write yours as a Jinja file",
            of_model=True,
        )
    for name in ("train_from_scratch", "resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config"):
        if keys.value(name):
            keys.refuse_in_job(name, "planner takes model and tokenizer as they are: change them beforehand")
    tuning = str(keys.read("finetuning_type"))
    if tuning not in _TUNING:
        keys.refuse("finetuning_type", f"Write one of {', '.join(_TUNING)}")
    for name in ("pissa_init",):
        if keys.value(name) and tuning == "lora":
            keys.refuse_in_job(name, "planner trains only plain low-rank adapters: remove it if you want those")
    if tuning == "lora":
        set_lora(draft, keys, is_trl=False)
        _note_adapters(draft, keys)
    else:
        _drop(draft, keys, "only LoRA reads it", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")


def _drop(draft: Draft, keys: KeyReader, why: str, *names: str) -> None:
    """Notes those of the keys that the recipe has as dropped."""
    for name in names:
        if keys.has(name) and not keys.entries[name].is_default:
            draft.drop(name, why)


def _note_adapters(draft: Draft, keys: KeyReader) -> None:
    if keys.has("adapter_name_or_path"):
        draft.drop("adapter_name_or_path", "see to do")
        draft.ask(
            f"model.path: the recipe continues the adapters {plain(keys.value('adapter_name_or_path'))}. Merge them "
            "into their base model and write the merged one",
            of_model=True,
        )
    if keys.has("quantization_bit") and keys.value("quantization_bit") not in (4, 8):
        bits = plain(keys.value("quantization_bit"))
        draft.drop("quantization_bit", f"{bits} bits: planner stores frozen weights in fp32 or nf4", is_trained=True)


# -- data


def _set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    kind = "pairs" if facts.unit == "pair" else kind_of(facts.method)
    train, test = (data_sets(keys, key, kind) for key in ("dataset", "eval_dataset"))
    held = "val_size" if keys.value("val_size") else ""
    named = NamedSets(train=[each.source for each in train], test=[each.source for each in test], held_key=held)
    ask_where(draft, keys)
    set_data(draft, kind, named.train)
    for text in (text for each in (*train, *(test if facts.evaluates else ())) for text in each.to_do):
        draft.ask(text, of_model=True)
    if media := _media(keys):
        draft.ask(f"{media}: the recipe's model takes images, video or audio. planner trains on text alone")
    draft.told |= {"dataset", "dataset_dir", "eval_dataset"}
    if keys.has("max_samples"):
        draft.drop("max_samples", "see to do")
        draft.ask(
            f"max_samples {plain(keys.value('max_samples'))}: LLaMA-Factory takes the first rows of each data set. Cut "
            "the files, or write a mixture with rows",
            of_model=True,
        )
    if str(keys.value("mix_strategy", "concat")) != "concat":
        draft.drop("mix_strategy", "see to do")
        draft.ask(f"mix_strategy {plain(keys.value('mix_strategy'))}: write data.mixture with weights", of_model=True)
        if keys.has("interleave_probs"):
            draft.drop("interleave_probs", "see to do")
    _set_cut(draft, keys, facts)
    if facts.unit != "pair":
        _drop(draft, keys, "only stage dpo reads it", "pref_loss")
    if facts.method != "sft":
        _drop(draft, keys, "LLaMA-Factory packs rows only in stages pt and sft", "packing")
    else:
        _set_packing(draft, keys)
        on = "all" if keys.value("train_on_prompt") is True else "completions"
        what = "train_on_prompt" if on == "all" else "LLaMA-Factory trains on the turns of the assistant"
        draft.derive("data.loss_on", on, f"data.loss_on {on}: {what}", "train_on_prompt")
    return named


def _set_cut(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    if facts.method != "sft":
        draft.ask(
            "rows longer than model.context: LLaMA-Factory shares cutoff_len between the prompt and the longer "
            "completion and cuts both. planner cuts the prompt to data.max_prompt, then the completion's end"
        )
    elif not keys.flag("packing"):
        draft.ask(
            "conversations longer than model.context: LLaMA-Factory cuts each turn's prompt and answer, planner the end"
        )


def _set_packing(draft: Draft, keys: KeyReader) -> None:
    if not keys.flag("packing"):
        return
    if keys.value("neat_packing") is True:
        draft.derive("data.packing", True, "data.packing true: neat_packing", "neat_packing")
    else:
        carry(draft, keys, "packing", "data.packing", True)
        draft.ask(
            "data.packing: without neat_packing LLaMA-Factory's attention crosses from one conversation to the next in "
            "a row. In planner it stays in a conversation"
        )
    draft.ask("data.packing: LLaMA-Factory fills rows of cutoff_len - 1 tokens by a knapsack and drops longer rows")


# -- loss


def _set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    set_preferences(draft, keys, facts, "LLaMA-Factory", "pref_loss")


def _set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    del facts
    pads = "LLaMA-Factory pads each micro-batch to its longest row, and so does planner"
    note_padding(draft, "" if keys.flag("packing") else pads)


def refuse_in_job(keys: KeyReader) -> None:
    """Notes what planner cannot carry into a job, or does not know the batch of."""
    for name in _OPTIMIZERS:
        if keys.value(name):
            keys.refuse_in_job(name, "planner has adamw, rmsprop and sgd: remove it only if adamw will do")
    if keys.has("warmup_ratio") and keys.value("warmup_steps"):
        keys.refuse_in_job("warmup_steps", "transformers 5 takes warmup_ratio before it, and 4 does not: remove one")
    if keys.value("use_hyper_parallel"):
        keys.refuse("use_hyper_parallel", "planner does not know which GPUs then share a micro-batch: remove it")


DIALECT = Dialect(
    title="LLaMA-Factory",
    set_model=_set_model,
    set_rows=_set_rows,
    set_objective=_set_objective,
    note_loss=note_settings,
    set_padding=_set_padding,
    facts=_facts,
    least_transformers=(4, 55),
)
