"""What axolotl does in its own way: its batch, parallel axes, methods, data sets and adapters."""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

from planner.base.disk import expanded, is_file, is_folder
from planner.files.messages import cut, show
from planner.recipes.axolotl.keys import IGNORED, OLD_ATTENTION, RULES, TITLE
from planner.recipes.axolotl.refusals import attention_of, base_of, datasets_of, fsdp_version
from planner.recipes.drafting import carry, kind_of, note_padding
from planner.recipes.drafting_data import set_data
from planner.recipes.engine import default, note_settings
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.recipe import Draft, Trap
from planner.recipes.row_sources import DatasetSource
from planner.recipes.rule import KeyRule
from planner.recipes.scalars import number, scalar
from planner.recipes.trainer.batching import Limit, TrainerFacts
from planner.recipes.trainer.dialect import Dialect, NamedSets, Trained
from planner.recipes.trainer.job import set_lora, set_path
from planner.recipes.trainer.preferences import own_because

_WHOSE = "axolotl's defaults"
_MICRO, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_EXPERTS = "axolotl.integrations.expert_parallel.ExpertParallelPlugin"
# With these, sample_packing makes one pack of a whole micro-batch (attn_supports_packing).
_ONE_PACK = ("flash_attention_2", "flash_attention_3", "flash_attention_4", "flash_attention_torch", "flex_attention",
             "xformers", "sage", "kernels-community/flash-attn2", "kernels-community/flash-attn3",
             "kernels-community/sage-attention")  # fmt: skip
_UNITS = {"sft": "example", "kto": "completion", "grpo": "completion", "gdpo": "completion", "ebft": "completion"}
_NO_OBJECTIVE = {
    "reward": "planner trains no reward models",
    "orpo": "planner's orpo averages the chosen completions over the batch's tokens, axolotl over a micro-batch's",
}
_FORM = (
    "field_messages", "message_property_mappings", "message_field_role", "message_field_content", "field_thinking",
    "template_thinking_key", "split_thinking", "roles", "roles_to_train", "train_on_eos", "train_on_eot",
    "message_field_training", "message_field_training_detail", "drop_system_message", "chat_template",
    "chat_template_jinja", "field", "field_human", "field_model", "field_chosen", "field_rejected", "input_format",
    "input_transform", "conversation", "step_separator", "max_completion_length", "train_on_last_step_only",
    "shards", "shards_idx", "ds_type", "revision",
)  # fmt: skip
"""keys of a data set that decide its rows, their form or their loss"""
_KEPT = {
    "dpo": ("field_messages", "field_chosen", "field_rejected", "revision"),
    "simpo": ("field_messages", "field_chosen", "field_rejected", "revision"),
    "kto": ("revision",),
}
"""of these, what axolotl keeps of a set to train on (validate_config): for sft all"""
_IGNORED_IN_SET = ("field_tools", "data_dir")
"""keys that axolotl hands to nothing: it reads the column `tools`, and all folders"""
_ROW_FILES = (".json", ".jsonl", ".parquet", ".arrow", ".csv", ".txt")
_PACKS = (
    "data.packing: axolotl fills rows of sequence_len tokens first-fit and drops longer conversations, so other "
    "conversations share a batch. Its attention may cross from one to the next without a kernel for packed rows"
)


@dataclass(frozen=True, kw_only=True)
class Axes:
    """How axolotl distributes processes (accelerate's ParallelismConfig, expert_parallel/plugin.py)."""

    processes: int | None
    """the number of processes that its named axes need, None if any"""
    sharing: int
    """how many processes share the same rows"""


def axes_of(keys: KeyReader) -> Axes:
    """The axes that a recipe names. Notes mistakes in `keys`."""
    names = ("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "dp_shard_size",
             "dp_replicate_size", "expert_parallel_size")  # fmt: skip
    tp, cp, old, shard, replicate, experts = (keys.whole(name, 0, least=0) for name in names)
    tp, cp, shard, replicate = tp or 1, cp or old or 1, shard or 1, replicate or 1
    if experts > 1 and _EXPERTS not in str(keys.peek("plugins")):
        experts = 1
    if experts > 1 and (tp > 1 or replicate > 1):
        keys.refuse("expert_parallel_size", "It excludes tensor_parallel_size, and planner does not know its batch "
                    "beside dp_replicate_size: remove them")  # fmt: skip
    product = tp * cp * shard * replicate * (experts or 1)
    return Axes(processes=product if product > 1 else None, sharing=tp * cp)


def is_whole(row: KeyRule) -> bool:
    """Whether pydantic takes whole numbers alone for a key."""
    return row.value == "whole" or row.name in {"max_steps", "warmup_steps", "lora_alpha"}


def convert(keys: KeyReader) -> None:
    """Gives numbers in quotes, whole numbers such as `4.0` and truths such as 1 the form that pydantic hands on."""
    entries = dict(keys.entries)
    for row in RULES:
        entry = entries.get(name := row.into or row.name)
        if entry is None or row.value not in {"whole", "number", "norm", "truth"}:
            continue
        value = entry.value
        if row.value == "truth":
            value = bool(value) if value in (0, 1) else value
        if isinstance(value, str) and (not is_whole(row) or re.fullmatch(r"[-+]?[0-9]+(\.0*)?", value)):
            value = scalar(value)
        if row.value == "whole" and isinstance(value, float) and value.is_integer():
            value = int(value)
        entries[name] = replace(entry, value=value)
    keys.entries = entries


def tell(draft: Draft, keys: KeyReader, *names: str) -> None:
    """Note that the draft tells of these keys."""
    draft.told |= set(names)
    for name in names:
        keys.value(name)


def prepare(keys: KeyReader) -> None:
    """Gives values the form that the Trainer's layer reads, and adds axolotl's defaults that are computed."""
    made: dict[str, Entry] = {}
    steps, micro, whole = keys.peek(_STEPS), keys.peek(_MICRO), keys.peek("batch_size")
    if _STEPS in keys.entries and not steps and isinstance(micro, int) and isinstance(whole, int) and whole and micro:
        made[_STEPS] = replace(keys.entries[_STEPS], value=whole // micro)
    if not keys.has("per_device_eval_batch_size"):
        made["per_device_eval_batch_size"] = default(micro or 1, _WHOSE)
    if keys.peek("lora_target_linear") is True:
        where = keys.where("lora_target_linear")
        made["lora_target_modules"] = Entry(value="all-linear", where=where, written_as="lora_target_linear")
    for name in ("auto_find_batch_size", "dataloader_drop_last", "group_by_length") if keys.peek("rl") else ():
        if name in keys.entries:  # handed on for SFT alone
            made[f"{IGNORED}{name}"] = replace(keys.entries[name], written_as=name)
            made[name] = default(None, _WHOSE)
    made |= _compute(keys) | _schedule(keys) | _evaluation(keys) | _trackers(keys)
    keys.entries = {**keys.entries, **made}


def _compute(keys: KeyReader) -> dict[str, Entry]:
    """Attention, precision and checkpointing under their newer keys."""
    made: dict[str, Entry] = {}
    if attention := attention_of(keys):
        names = ("attn_implementation", *OLD_ATTENTION, "gemma4_hybrid_attn_impl")
        name = next(name for name in names if keys.peek(name))
        made["attn_implementation"] = Entry(value=attention, where=keys.where(name), written_as=name)
    if isinstance(keys.peek("bf16"), str):
        made["bf16"] = replace(keys.entries["bf16"], value=True)
    elif keys.peek("bfloat16") and not keys.has("bf16"):
        made["bf16"] = default(True, "bfloat16", _WHOSE)
    if keys.peek("gradient_checkpointing"):
        made["gradient_checkpointing"] = replace(keys.entries["gradient_checkpointing"], value=True)
    return made


def _schedule(keys: KeyReader) -> dict[str, Entry]:
    """The warmup if nothing sets it, 3 % and at most 100 steps, and the floor of a cosine."""
    made: dict[str, Entry] = {}
    if not keys.peek("warmup_ratio") and keys.peek("warmup_steps") is None:
        made["warmup_ratio"] = default(0.03, _WHOSE)
    floor = keys.peek("cosine_min_lr_ratio")
    if isinstance(floor, int | float) and keys.peek("lr_scheduler_type") in {None, "cosine"}:
        made["lr_scheduler_type"] = default("cosine_with_min_lr", _WHOSE, "cosine_min_lr_ratio")
        made["lr_scheduler_kwargs.min_lr_rate"] = default(floor, _WHOSE)
    return made


def _evaluation(keys: KeyReader) -> dict[str, Entry]:
    """When axolotl evaluates (core/builders/base.py): without rows never, evals_per_epoch as a part of the run."""
    per_epoch, epochs = keys.peek("evals_per_epoch"), keys.peek("num_train_epochs") or 1
    rows = keys.peek("val_set_size") or keys.peek("test_datasets")
    numbers = all(isinstance(each, int | float) and each > 0 for each in (per_epoch, epochs))
    if not rows:
        return {"eval_strategy": default("no", _WHOSE, "val_set_size")}
    if keys.peek("eval_steps"):
        return {"eval_strategy": default("steps", _WHOSE, "eval_steps")}
    if numbers and per_epoch * epochs > 1:
        every = default(1 / (per_epoch * epochs), _WHOSE, "evals_per_epoch")
        return {"eval_steps": every, "eval_strategy": replace(every, value="steps")}
    return {}


_TRACKERS = ("wandb", "mlflow", "tensorboard", "trackio", "comet")


def _trackers(keys: KeyReader) -> dict[str, Entry]:
    """`report_to`, and why."""
    told = {"wandb": "wandb_project", "tensorboard": "use_tensorboard", "mlflow": "use_mlflow",
            "trackio": "use_trackio", "comet_ml": "use_comet"}  # fmt: skip
    named = [kind for kind, key in told.items() if keys.peek(key)]
    if keys.peek("use_wandb") is True and "wandb" not in named:
        named.insert(0, "wandb")
    shown = ", ".join(told[kind] for kind in named) or "wandb_project and use_*"
    return {"report_to": default(named or ["none"], _WHOSE, shown)}


def trained_by(keys: KeyReader) -> Trained:
    """What a recipe trains."""
    rl = keys.peek("rl")
    is_reward = keys.peek("reward_model") or keys.peek("process_reward_model")
    method = str(rl) if rl else "reward" if is_reward else "sft"
    loss, losses = {"gdpo": "grpo"}.get(method, method), keys.peek("dpo_loss_type")
    if method == "dpo" and losses is not None:
        loss = {"['sigmoid']": "dpo", "['ipo']": "ipo"}.get(str(losses), f"dpo_loss_type {show(losses)}")
    unit = _UNITS.get(method, "pair")
    packs = method == "sft" and keys.peek("packing") is True
    return Trained(
        method="dpo" if method == "ipo" else method, loss=loss, unit="packed row" if packs else unit,
        told_by="rl" if rl else "reward_model" if is_reward else "no rl, which is sft in axolotl",
        why_own=_own_because(keys, method, loss),
    )  # fmt: skip


def _own_because(keys: KeyReader, method: str, loss: str) -> str:
    """Why no objective of planner's computes the loss, empty if one does."""
    more = ["qat"] if keys.is_set("qat") else []
    more += [cut(str(each)) for each in keys.peek("plugins", []) if str(each).rpartition(".")[2] in _OTHER_LOSS]
    if keys.peek("adapter", "lora") not in {"lora", "qlora"}:
        more.append(f"adapter {show(keys.peek('adapter'))}")
    if method == "simpo" and keys.peek("cpo_alpha") != 0:
        more.append("cpo_alpha, which is 1 by default and adds the likelihood of the chosen completion")
    return own_because(keys, loss, _NO_OBJECTIVE, *more)


_OTHER_LOSS = ("KDPlugin", "DiffusionPlugin", "HatcheryPlugin", "GrokfastPlugin", "SpectrumPlugin", "MoraPlugin")


# -- what it does at each count


def _facts(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:
    axes = axes_of(keys)
    names = {_MICRO: "micro_batch_size", "eval_steps": keys.shown("eval_steps")}
    varies = "axolotl averages the means of micro-batches over their own label tokens" if facts.method == "sft" else ""
    if facts.method == "kto":
        varies = "axolotl pairs completions within micro-batches of m for the KL"
    made = replace(
        facts, is_trl=False, names=names, sharing=axes.sharing, mesh=axes.processes or facts.mesh, varies=varies,
        even_batches=facts.even_batches and not facts.packs, limits=(*facts.limits, *_limits(keys, facts)),
        rounds_warmup="down", own_traps=tuple(_traps(keys, facts)),
        groups_by_length=facts.groups_by_length and not keys.peek("curriculum_sampling"),
    )  # fmt: skip
    if facts.method == "gdpo":
        made = replace(made, num_generations=keys.whole("num_generations", 8, least=2))
    return replace(made, batch=made.batch_at(made.tuned_gpus))


def _limits(keys: KeyReader, facts: TrainerFacts) -> list[Limit]:
    """The counts of processes that axolotl refuses."""
    found = []
    if all((keys.peek("rl"), keys.peek("gradient_checkpointing"), keys.peek("load_in_4bit"),
            keys.peek("adapter") == "qlora", keys.peek("gradient_checkpointing_kwargs.use_reentrant"))):  # fmt: skip
        found.append(Limit(text="ValueError: use_reentrant is for one GPU", most=1))
    kernels = any(keys.peek(f"lora_{name}_kernel") for name in ("mlp", "qkv", "o", "embedding"))
    # It looks before it takes fsdp_version from fsdp_config.
    is_fsdp = keys.is_set("fsdp_config") or keys.peek("fsdp_config") == {}
    if kernels and is_fsdp and str(keys.peek("fsdp_version")) != "2":
        found.append(Limit(text="ValueError: lora_*_kernel is not for FSDP1", most=1))
    fsdp = fsdp_version(keys) or keys.peek("fsdp")
    # _get_parallel_config_kwargs: named, but above 1 neither of them.
    named = [name for name, value in {"dp_shard_size": (0, 1), "dp_replicate_size": (0,)}.items()
             if keys.peek(name) in value]  # fmt: skip
    if named and axes_of(keys).processes is None and not fsdp:
        text = f"ValueError: {named[0]} {keys.peek(named[0])} without fsdp_config"
        found.append(Limit(text=text, most=1))
    n = keys.peek("num_generations")
    if facts.method == "grpo" and isinstance(n, int) and n > 1:
        made = facts.generation_batch or facts.micro * facts.accumulation
        found.append(Limit(text=f"ValueError: {made} < num_generations {n} x GPUs", most=max(made // n, 1)))
    one_pack = base_of(attention_of(keys)) in _ONE_PACK and not keys.peek("multipack_real_batches")
    if facts.splits_batches and facts.packs and one_pack:
        found.append(Limit(text="ValueError: split_batches splits no pack", most=1))
    return found


def _traps(keys: KeyReader, facts: TrainerFacts) -> list[Trap]:
    """What axolotl does silently."""
    found = []
    whole = keys.peek("batch_size")
    if whole and _STEPS not in keys.entries:
        text = (f"batch_size {whole} sets no accumulation, because gradient_accumulation_steps is 1 by default. It "
                f"divides the number of steps alone, so the run ends after {facts.micro}/{whole} of them.")  # fmt: skip
        found.append(Trap(name="batch_size", text=text))
    if keys.peek("ddp") is False:
        text = "With ddp false axolotl counts steps as for one GPU, so W GPUs train W times num_epochs."
        found.append(Trap(name="ddp", text=text))
    if (
        keys.peek("evals_per_epoch")
        and not facts.evaluates
        and (keys.peek("val_set_size") or keys.has("test_datasets"))
    ):
        text = "evals_per_epoch 1 in one epoch sets no eval_steps, so axolotl evaluates at the start alone."
        found.append(Trap(name="evals_per_epoch", text=text))
    if "seed" not in keys.entries:
        text = (
            "The recipe has no seed, so axolotl shuffles the data in another order in each run. "
            "Write one to repeat a run."
        )
        found.append(Trap(name="seed", text=text))
    if ignored := [its.written_as for name, its in keys.entries.items() if name.startswith(IGNORED)]:
        text = f"axolotl does not know {cut(', '.join(ignored), 200)}, and ignores such keys without a message."
        meant = [f"{near} for {name}" for name in ignored if (near := resembles(name))]
        text += f" Did you mean {cut(', '.join(meant), 200)}?" if meant else ""
        found.append(Trap(name="ignored keys", text=text))
    return found


def resembles(name: str) -> str:
    """The key that a name resembles that axolotl does not know. Empty if none."""
    return next(iter(get_close_matches(name, RULES.names, n=1, cutoff=0.82)), "")


# -- the model


def _set_model(draft: Draft, keys: KeyReader) -> None:
    set_path(draft, keys)
    for name in ("chat_template", "chat_template_jinja"):
        if keys.has(name) and keys.peek(name) != "tokenizer_default":
            keys.value(name)
            draft.drop(name, "see to do")
            draft.ask(f"model.chat_template: axolotl takes {name} {cut(str(keys.peek(name)), 60)}, planner the "
                      "tokenizer's. Compare both, or write yours as a Jinja file", of_model=True)  # fmt: skip
    for name in ("special_tokens", "tokens", "added_tokens_overrides", "tokenizer_config", "base_model_config",
                 "cls_model_config", "model_config", "model_kwargs", "resize_token_embeddings_to_32x",
                 "reinit_weights", "model_quantization_config", "processor_type"):  # fmt: skip
        if keys.is_set(name):
            for key in [key for key in keys.entries if key == name or key.startswith(f"{name}.")]:
                keys.value(key)
                draft.drop(key, "see to do")
            draft.ask(f"model.path: the recipe sets {name}. planner takes model and tokenizer as they are: change them "
                      "beforehand if they differ", of_model=True)  # fmt: skip
    if keys.peek("adapter") in {"lora", "qlora"}:
        set_lora(draft, keys, is_trl=False)
        _note_adapters(draft, keys)
    if "lora" in draft.job["model"]:
        tell(draft, keys, "adapter")
    tell(
        draft, keys, *(f"use_{name}" for name in ("wandb", "mlflow", "tensorboard", "trackio", "comet")), *OLD_ATTENTION
    )


def _note_adapters(draft: Draft, keys: KeyReader) -> None:
    if keys.has("lora_model_dir"):
        draft.drop("lora_model_dir", "see to do")
        draft.ask(f"model.path: the recipe continues the adapters {show(keys.peek('lora_model_dir'))}. Merge them into "
                  "their base model and write the merged one", of_model=True)  # fmt: skip
    for name in ("peft_layers_to_transform", "peft_init_lora_weights", "peft_layer_replication"):
        if keys.peek(name) not in (None, True):
            keys.refuse_in_job(name, "planner trains only plain low-rank adapters: remove it if you want those")


# -- data


def _set_rows(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> NamedSets:
    train, test = _sources(keys, "datasets"), list(map(_tested, _sources(keys, "test_datasets")))
    named = NamedSets(train=train, test=test, held_key="val_set_size" if keys.peek("val_set_size") else "")
    set_data(draft, kind_of(facts.method), named.train)
    tell(draft, keys, "datasets", "test_datasets", "pretraining_dataset", "packing", "evals_per_epoch", "val_set_size",
         "lora_target_linear")  # fmt: skip
    types = {str(each.get("type")) for each in datasets_of(keys, "datasets") if not isinstance(each.get("type"), dict)}
    if facts.method == "sft" and (keys.has("pretraining_dataset") or types & {"completion", "pretrain", "None"}):
        keys.lacks("datasets: convert makes no job for rows of text or tokens. Write one with data.kind jsonl, "
                   "objective lm (planner init) and the global batch that planner check shows")  # fmt: skip
    _note_forms(draft, keys, facts)
    if keys.peek("excess_length_strategy") != "truncate":
        draft.ask("rows longer than model.context: axolotl leaves them out, planner cuts them. Remove them beforehand")
    for name in ("excess_length_strategy", "min_sample_len", "dataset_shard_num", "dataset_shard_idx",
                 "dataset_exact_deduplication", "curriculum_sampling"):  # fmt: skip
        if keys.value(name):
            draft.drop(name, "see to do")
            draft.ask(f"{name} {show(keys.peek(name))}: it changes which rows come, or when. Make a data set of them",
                      of_model=True)  # fmt: skip
    if facts.method == "sft":
        on = "all" if keys.peek("train_on_inputs") is True else "completions"
        what = "train_on_inputs" if on == "all" else "axolotl trains on the turns of the assistant"
        draft.derive("data.loss_on", on, f"data.loss_on {on}: {what}", "train_on_inputs")
    if keys.where("warmup_ratio") == _WHOSE:
        draft.ask("train.schedule.warmup: without warmup_steps and warmup_ratio axolotl warms up for 3 % of the steps, "
                  "but at most 100. Write 100 steps for a run of more than 3,333")  # fmt: skip
    if facts.packs:
        carry(draft, keys, "packing", "data.packing", True)
        draft.ask(_PACKS)
    return named


def _note_forms(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    """What the user must do so that the rows to train on, and those that are evaluated, have planner's form."""
    for each in datasets_of(keys, "datasets"):
        _note_form(draft, each, facts.method, "data.path")
    for each in datasets_of(keys, "test_datasets") if facts.evaluates else []:
        _note_form(draft, each, facts.method, "eval.data")
        path = str(each.get("path"))
        if facts.method == "sft" and each.get("data_files") is not None and not each.get("split"):
            draft.ask(f"eval.data {cut(path, 100)}: axolotl looks for the split test, and data_files have train alone, "
                      "so it stops there. Write split: train")  # fmt: skip
        if facts.method != "sft" and not each.get("split") and not _is_file(path):
            draft.ask(f"eval.data {cut(path, 100)}: without split, axolotl evaluates all splits of a data set in rl "
                      f"{facts.method}. planner takes test: write the split that you want")  # fmt: skip


def _note_form(draft: Draft, dataset: dict[str, Any], method: str, ours: str) -> None:
    """What the user must do so that the rows have planner's form. `ours` is the job's key for them."""
    kind, place = dataset.get("type"), f"{ours} {cut(str(dataset.get('path')), 100)}"
    shown = "a form of the recipe's own" if isinstance(kind, dict) else cut(str(kind))
    named = [name for name in ("name", "field_system", *_FORM) if dataset.get(name) not in (None, False)]
    lost = [name for name in named if method in _KEPT and name not in _KEPT[method]]
    if ours == "eval.data":  # which keys of these it keeps depends on all of them, but it splits none for preferences
        lost = [name for name in lost if name.startswith("shards")]
    said = [name for name in named if name in _FORM and name not in lost]
    if kind != "chat_template" or said:
        also = f" with {', '.join(f'{name} {show(dataset[name])}' for name in said)}" if said else ""
        draft.ask(f"{place}: axolotl reads type {shown}{also}. Write its rows in planner's form, with the "
                  "turns that it trains on")  # fmt: skip
    if lost:
        draft.ask(f"{place}: axolotl drops {', '.join(lost)} of a data set in rl {method}, without a word")
    ignored = [name for name in _IGNORED_IN_SET if dataset.get(name) is not None]
    if ignored:
        draft.ask(f"{place}: axolotl ignores {', '.join(ignored)} of a data set, without a word")


def _tested(source: DatasetSource) -> DatasetSource:
    """A data set to evaluate. Without a split axolotl takes its `test`, and all rows of a file (utils/data/sft.py)."""
    is_whole = source.split is not None or source.files is not None or _is_file(source.name)
    return source if is_whole else replace(source, split="test")


def _is_file(path: str) -> bool:
    """Whether a path is a file or a saved table, or names a file that is elsewhere."""
    return PurePath(path).suffix in _ROW_FILES or is_file(expanded(path)) or is_file(expanded(f"{path}/state.json"))


def _sources(keys: KeyReader, key: str) -> list[DatasetSource]:
    """The data sets at `key`. Mistakes are added to `keys` if a job is to be made."""
    found = keys.peek(key)
    if found is None and key == "datasets":
        found = keys.peek(key := "pretraining_dataset")
        found = [{"path": found}] if isinstance(found, str) else [found] if isinstance(found, dict) else found
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) and _is_text(each, "path") for each in found):
        keys.refuse_in_job(key, "Write a list of data sets, each with its path")
        return []
    return [_source(each) for each in found]


def _source(dataset: dict[str, Any]) -> DatasetSource:
    """A data set as axolotl loads it: `data_files` beside a folder are paths of their own (utils/data/shared.py)."""
    name, files = dataset["path"], dataset.get("data_files")
    if files is not None and is_folder(expanded(name)):
        ends = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".txt": "text"}
        name = _text(dataset, "ds_type") or next((ends[each] for each in ends if each in name), "json")
    return DatasetSource(name=name, config=_text(dataset, "name"), split=_text(dataset, "split"), files=files)


def _is_text(dataset: dict[str, Any], name: str) -> bool:
    return isinstance(dataset.get(name), str) and bool(dataset[name])


def _text(dataset: dict[str, Any], name: str) -> str | None:
    return dataset[name] if _is_text(dataset, name) else None


# -- loss


def _set_objective(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    if facts.loss == "sft":
        text = ("objective sft: the mean over all tokens of the global batch. axolotl averages the means of "
                "micro-batches, in which a token of a short row weighs more")  # fmt: skip
        draft.derive("objective", {"kind": "sft"}, text)
        return
    betas = ("trl.beta", "rl_beta", "orpo_alpha", "dpo_beta")
    beta = next((keys.number(name) for name in betas if keys.has(name)), 0.1)
    objective: dict[str, Any] = {"kind": facts.loss, "beta": beta}
    if facts.loss == "dpo" and (smoothing := keys.read("dpo_label_smoothing")):
        objective["label_smoothing"] = smoothing
    if facts.method == "dpo" and keys.peek("rl") == "dpo" and keys.peek("precompute_ref_log_probs") is True:
        objective["reference"] = "cached"
    if facts.loss == "ipo":
        objective["log_probs"] = "mean"
    if facts.loss == "simpo":
        objective["gamma_beta_ratio"] = keys.number("simpo_gamma") / (beta or 1.0)
    if facts.loss == "kto":
        for ours in ("desirable_weight", "undesirable_weight"):
            objective[ours] = keys.read(f"kto_{ours}") or 1.0
    shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
    tell(draft, keys, "rl", "dpo_loss_type", "cpo_alpha", "simpo_gamma", "precompute_ref_log_probs", *betas)
    draft.derive("objective", objective, f"objective {shown}")


def _set_padding(draft: Draft, keys: KeyReader, facts: TrainerFacts) -> None:
    pads = "axolotl pads each micro-batch to its longest row, and so does planner"
    note_padding(draft, "" if facts.packs or keys.value("pad_to_sequence_len") else pads)


def _reasons(keys: KeyReader, *, is_own: bool) -> dict[str, str]:
    """Why renamed keys are dropped, and those that axolotl does not take."""
    del is_own
    ignored = {}
    for name in keys.entries:
        if name.startswith(IGNORED):
            near = resembles(name.removeprefix(IGNORED))
            ignored[name] = f"axolotl ignores it, and so does the job{f'. Did you mean {near}?' if near else ''}"
    return {**{row.into: row.why for row in RULES if row.into and row.why}, **ignored}


DIALECT = Dialect(
    title=TITLE,
    set_model=_set_model,
    set_rows=_set_rows,
    set_objective=_set_objective,
    note_loss=note_settings,
    set_padding=_set_padding,
    facts=_facts,
    least_transformers=(5, 16),
    reasons=_reasons,
)
