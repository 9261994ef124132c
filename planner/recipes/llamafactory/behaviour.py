"""What LLaMA-Factory does in its own way: its methods, data sets, templates and adapters, and the counts it refuses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.base.disk import is_file
from planner.errors import RecipeError
from planner.files.messages import cut, show
from planner.recipes.config_reader import mapping_of, text_of
from planner.recipes.drafting import carry, kind_of, note_padding
from planner.recipes.drafting_data import set_data
from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.llamafactory.keys import STAGES
from planner.recipes.recipe import Draft
from planner.recipes.row_sources import DatasetSource
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.dialect import Dialect, NamedSets, Trained
from planner.recipes.trainer.job import set_lora
from planner.recipes.trainer.preferences import set_preferences

_WHOSE = "LLaMA-Factory's defaults"
# pref_loss -> planner's objective.
_LOSSES = {"sigmoid": "dpo", "ipo": "ipo", "simpo": "simpo"}
# Why planner has no objective for a stage or a loss.
_NO_OBJECTIVE = {
    "rm": "planner trains no reward models",
    "ppo": "planner has no objective for ppo",
    "orpo": "planner's orpo averages the chosen completion over the batch's tokens, LLaMA-Factory over each pair's",
}
# Keys that change any loss, and the values with which they do not.
_CHANGING: dict[str, tuple[Any, ...]] = {
    "label_smoothing_factor": (0,), "neftune_noise_alpha": (0,), "use_dft_loss": (False,), "use_asft_loss": (False,),
    "use_eaft_loss": (False,), "pref_ftx": (0,), "pref_bco_weight": (0,), "mask_history": (False,),
    "mixture_of_depths": (), "shift_attn": (False,), "moe_aux_loss_coef": (0,), "rope_scaling": (),
}  # fmt: skip
_OF_LOSSES = (
    "pref_loss", "beta", "pref_ftx", "pref_bco_weight", "simpo_gamma", "ld_alpha", "label_smoothing",
    "desirable_weight", "undesirable_weight", "reward_model", "reward_model_type", "ref_model", "asft_alpha",
    "eaft_alpha", "ppo_buffer_size", "ppo_epochs", "ppo_score_norm", "ppo_target", "ppo_whiten_rewards",
)  # fmt: skip
# Optimizers that replace the one of optim.
_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "loraplus_lr_ratio")
_TUNING = ("lora", "full", "freeze", "oft")
_ATTENTION = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "disabled": "eager", True: "flash_attention_2"}


def prepare(keys: KeyReader) -> None:
    """Gives values the form that the Trainer's layer reads, and adds LLaMA-Factory's defaults that are computed."""
    entries = dict(keys.entries)
    made: dict[str, Any] = {}
    rank = keys.value("lora_r", 8)
    if isinstance(rank, int) and not keys.value("lora_alpha"):
        made["lora_alpha"] = 2 * rank
        entries.pop("lora_alpha", None)
    # LLaMA-Factory does not ask the Trainer's own key.
    entries["gradient_checkpointing"] = _default(keys.value("disable_gradient_checkpointing") is not True)
    if keys.value("packing") is None and _is_packed(keys):
        made["packing"] = True
        entries.pop("packing", None)
    target = keys.value("lora_target_modules", "all")
    named = [each.strip() for each in target.split(",")] if isinstance(target, str) else target
    named = ["all-linear"] if named == ["all"] else named
    where = entries["lora_target_modules"] if "lora_target_modules" in entries else _default(None)
    entries["lora_target_modules"] = replace(where, value=named)
    attention = keys.value("attn_implementation")
    if attention == "auto":
        del entries["attn_implementation"]
    elif isinstance(attention, str | bool) and attention in _ATTENTION:
        entries["attn_implementation"] = replace(entries["attn_implementation"], value=_ATTENTION[attention])
    if (bits := keys.value("quantization_bit")) in (4, 8):
        entries[f"load_in_{bits}bit"] = replace(entries["quantization_bit"], value=True, written_as="quantization_bit")
    keys.entries = {**{name: _default(value) for name, value in made.items()}, **entries}


def _default(value: Any) -> Entry:
    return Entry(value=value, where=_WHOSE, is_default=True)


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
    if loss in _NO_OBJECTIVE:
        return _NO_OBJECTIVE[loss]
    if loss not in {"sft", "dpo", "ipo", "simpo", "kto"}:
        return f"planner has no objective for pref_loss {cut(loss)}"
    named = [key for key, plain in _CHANGING.items() if keys.value(key) is not None and keys.value(key) not in plain]
    named += ["ld_alpha"] if loss in {"dpo", "ipo", "simpo"} and keys.has("ld_alpha") else []
    if tuning := keys.value("finetuning_type"):
        named += [f"finetuning_type {tuning}"] if tuning in {"freeze", "oft"} else []
    return f"planner has no objective for {loss} with {', '.join(named)}" if named else ""


def _facts(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:
    varies = ""
    if facts.method == "kto":
        varies = "LLaMA-Factory averages the KL over a micro-batch of all GPUs, and the loss over each micro-batch"
    limits = tuple(_limits(keys, facts))
    return replace(facts, is_trl=False, limits=(*facts.limits, *limits), varies=varies)


def _limits(keys: KeyReader, facts: TrainerFacts) -> list[Limit]:
    """The counts of GPUs that LLaMA-Factory refuses (hparams/parser.py, get_train_args)."""
    found = []
    for name in ("galore_layerwise", "apollo_layerwise"):
        if keys.value(name) is True and keys.value(f"use_{name.partition('_')[0]}") is True:
            found.append(Limit(text=f"ValueError: {name} is for one GPU", most=1))
            if facts.accumulation > 1:
                found.append(Limit(text=f"ValueError: {name} needs gradient_accumulation_steps 1", least=1 << 40))
    stage = 3 if facts.unread else keys.value("deepspeed.zero_optimization.stage")
    if keys.value("use_badam") is True and (keys.value("badam_mode") == "ratio" or stage != 3):
        found.append(Limit(text="ValueError: BAdam is for one GPU", most=1))
    return found


def _set_model(draft: Draft, keys: KeyReader) -> None:
    draft.set("model.kind", "hf")
    carried(draft, keys, "model_name_or_path")
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
    for name in ("pissa_init", "loraplus_lr_ratio"):
        if keys.value(name) and tuning == "lora":
            keys.refuse_in_job(name, "planner trains only plain low-rank adapters: remove it if you want those")
    if tuning == "lora":
        set_lora(draft, keys)
        _note_adapters(draft, keys)
    if tuning != "lora" and keys.has("quantization_bit"):
        keys.refuse_in_job("quantization_bit", "without adapters, quantized weights are not trained")


def _note_adapters(draft: Draft, keys: KeyReader) -> None:
    if keys.has("adapter_name_or_path"):
        draft.drop("adapter_name_or_path", "see to do")
        draft.ask(
            f"model.path: the recipe continues the adapters {show(keys.value('adapter_name_or_path'))}. Merge them "
            "into their base model and write the merged one",
            of_model=True,
        )
    if keys.has("quantization_bit") and keys.value("quantization_bit") not in (4, 8):
        bits = show(keys.value("quantization_bit"))
        draft.drop("quantization_bit", f"{bits} bits: planner stores frozen weights in fp32 or nf4")


# -- data


def _set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    train = _sources(keys, "dataset")
    held = "val_size" if keys.value("val_size") else ""
    named = NamedSets(train=train, test=_sources(keys, "eval_dataset"), held_key=held)
    set_data(draft, kind_of(facts.method), named.train)
    draft.told |= {"dataset", "dataset_dir", "eval_dataset"}
    if keys.has("max_samples"):
        draft.drop("max_samples", "see to do")
        draft.ask(
            f"max_samples {show(keys.value('max_samples'))}: LLaMA-Factory takes the first rows of each data set. Cut "
            "the files, or write a mixture with rows"
        )
    if keys.value("mix_strategy") not in {None, "concat"}:
        draft.drop("mix_strategy", "see to do")
        draft.ask(f"mix_strategy {show(keys.value('mix_strategy'))}: write data.mixture with weights")
    _set_cut(draft, keys, facts)
    if facts.method == "sft":
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
    carry(draft, keys, "packing", "data.packing", True)
    if keys.value("neat_packing") is not True:
        draft.ask(
            "data.packing: without neat_packing LLaMA-Factory's attention crosses from one conversation to the next in "
            "a row. In planner it stays in a conversation"
        )
    draft.ask("data.packing: LLaMA-Factory fills rows of cutoff_len - 1 tokens by a knapsack and drops longer rows")


def _sources(keys: KeyReader, key: str) -> list[DatasetSource]:
    """The data sets at `key`: names of dataset_info.json, from there if the file is on this machine."""
    said = keys.value(key)
    names = [each.strip() for each in said.split(",")] if isinstance(said, str) else said
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        keys.refuse_in_job(key, "Write the names of data sets, with commas between them")
        return []
    folder = str(keys.read("dataset_dir"))
    if folder == "ONLINE":
        return [DatasetSource(name=name) for name in names]
    known = _dataset_info(keys, folder)
    return [_source(name, known.get(name), folder) for name in names]


def _dataset_info(keys: KeyReader, folder: str) -> dict[str, Any]:
    """The data sets of dataset_info.json, below the folder that the user is in or beside the recipe. Empty if none."""
    for place in (Path(folder), Path(keys.source).parent / folder):
        file = place / "dataset_info.json"
        try:
            if is_file(str(file)):
                return mapping_of(text_of(str(file)), str(file))
        except RecipeError as error:
            keys.lacks(str(error))
    return {}


def _source(name: str, info: Any, folder: str) -> DatasetSource:
    """A data set as dataset_info.json describes it (data/parser.py)."""
    if not isinstance(info, dict):
        return DatasetSource(name=name, hub=False)
    hub, file = info.get("hf_hub_url"), info.get("file_name")
    said = {name: its for name in ("subset", "split", "folder") if isinstance(its := info.get(name), str)}
    if isinstance(hub, str):
        return DatasetSource(name=hub, config=said.get("subset"), split=said.get("split"), folder=said.get("folder"))
    if isinstance(file, str):
        return DatasetSource(name=str(Path(folder) / file), hub=False)
    return DatasetSource(name=name, hub=False)


# -- loss


def _set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    set_preferences(draft, keys, facts, "LLaMA-Factory", "pref_loss")


def _note_loss(draft: Draft, keys: KeyReader) -> None:
    known = [*_OF_LOSSES, *_CHANGING]
    draft.set("objective", {keys.shown(key): keys.value(key) for key in known if keys.has(key)})


def _set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    del facts
    pads = "LLaMA-Factory pads each micro-batch to its longest row, and so does planner"
    note_padding(draft, "" if keys.flag("packing") else pads)


def refuse(keys: KeyReader) -> None:
    """Notes a recipe that trains nothing, and optimizers that planner does not have."""
    if keys.value("do_train") is not True:
        keys.refuse("do_train", "Without it LLaMA-Factory trains nothing: write true")
    for name in _OPTIMIZERS:
        if keys.value(name):
            keys.refuse_in_job(name, "planner has adamw, rmsprop and sgd: remove it only if adamw will do")


DIALECT = Dialect(
    title="LLaMA-Factory",
    set_model=_set_model,
    set_rows=_set_rows,
    set_objective=_set_objective,
    note_loss=_note_loss,
    set_padding=_set_padding,
    facts=_facts,
)
