"""Drafts a job from a configuration of torchtune."""

import re
from pathlib import PurePath
from typing import Any

from planner.recipes.drafting import (
    RecipeOptions,
    carry,
    finish,
    job_name,
    kind_of,
    make_own,
    note_padding,
    order_sections,
    plain,
    set_batch,
    set_workers,
)
from planner.recipes.drafting_data import set_data
from planner.recipes.engine import carried, carried_if_set
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Note, product
from planner.recipes.row_sources import DatasetSource, parts_of
from planner.recipes.rule import NO_SETTING
from planner.recipes.scalars import number
from planner.recipes.torchtune.behaviour import TorchtuneFacts, data_sections, reads
from planner.recipes.torchtune.keys import MULTI
from planner.recipes.trackers import NO_SUCH_TRACKER, TrackerDraft, take_wandb_mode

_IGNORED = "its recipe does not read it"
_WHY_OWN = {
    "kd": "planner has no objective for knowledge distillation",
    "ppo": "planner has no objective for ppo",
    "qat": "planner trains no fake-quantized weights (QAT)",
    "early exit": "planner has no objective for early exits",
}
_TOLD = (
    "batch_size gradient_accumulation_steps ppo_batch_size tensor_parallel_dim num_steps ppo_epochs forward_batch_size"
)
_TOLD_LORA = (
    "model.lora_rank model.lora_alpha model.lora_dropout model.lora_attn_modules model.apply_lora_to_mlp "
    "model.apply_lora_to_output model.use_dora model.quantize_base"
)
# torchtune's name of a layer -> Hugging Face's, in most families and where layers are one.
_LAYERS = {"output_proj": "o_proj", "gate_proj": "gate_proj", "up_proj": "up_proj", "down_proj": "down_proj"}
_PHI3 = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
# Builder of a data set -> the set's own name and folder, and the form of its rows if planner does not read it.
_ALPACA = "instruction, input and output, of which it makes a prompt by Alpaca's template"
_ANSWERS = "question, response_j and response_k"
_TURNS = "{} is the user's turn, and {} the assistant's"
_SETS: dict[str, tuple[str, str, str]] = {
    "alpaca_dataset": ("tatsu-lab/alpaca", "", _ALPACA),
    "alpaca_cleaned_dataset": ("yahma/alpaca-cleaned", "", _ALPACA),
    "instruct_dataset": ("", "", _TURNS.format("input", "output")),
    "chat_dataset": ("", "", "a list of turns"),
    "slimorca_dataset": ("Open-Orca/SlimOrca-Dedup", "", "conversations in ShareGPT's form"),
    "samsum_dataset": ("Samsung/samsum", "", _TURNS.format("dialogue", "summary")),
    "grammar_dataset": ("liweili/c4_200m", "", _TURNS.format("input", "output")),
    "text_completion_dataset": ("", "", ""),
    "wikitext_dataset": ("EleutherAI/wikitext_document_level", "", ""),
    "cnn_dailymail_articles_dataset": ("ccdv/cnn_dailymail", "", ""),
    "preference_dataset": ("", "", ""),
    "hh_rlhf_helpful_dataset": ("RLHFlow/HH-RLHF-Helpful-standard", "", ""),
    "stack_exchange_paired_dataset": ("lvwerra/stack-exchange-paired", "data/rl", _ANSWERS),
}
_CHANGING_ROWS = ("dataset.filter_fn", "dataset.new_system_prompt", "dataset.column_map")
# The same in one of several sets. `transform` is the multi-dataset recipe's.
_CHANGING_SET = ("filter_fn", "new_system_prompt", "column_map", "transform")
# Of these keys of a data set the note on the data or the to-do list tells.
_KNOWN = frozenset({"_component_", "source", "split", "name", "data_dir", "data_files", "column", "packed"})
_COLUMN = {"wikitext_dataset": "page", "cnn_dailymail_articles_dataset": "article"}
_ADAM = re.compile(r"(Paged)?AdamW?(\d*bit|Fp8|FP8)?")
_TRACKERS = {"WandBLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}
_LOCAL = ("DiskLogger", "StdoutLogger")


def recipe_from(
    keys: KeyReader, facts: TorchtuneFacts, options: RecipeOptions, text: str, whose: str
) -> dict[str, Any]:
    """The fields of a `Recipe` that depend on its keys. Notes mistakes in `keys`.

    Args:
        keys: the configuration.
        facts: the settings on which the verdicts depend.
        options: the command line's options.
        text: the configuration's file, for its comments.
        whose: what says the GPU count.
    """
    draft = Draft()
    said = f"method {facts.method}: the recipe {facts.recipe}, by {facts.told_by or 'the command'}"
    draft.derived.append(Note(key="method", text=said))
    if facts.tuned_gpus > 1:
        draft.derived.append(Note(key="gpus", text=f"tuned for {facts.tuned_gpus} GPUs: {whose}"))
    why = _why_own(keys, facts)
    _fill(draft, keys, facts, options, text, is_own=bool(why))
    for name in draft.told:
        keys.value(name)
    finish(draft, keys, _reasons(keys, facts), _IGNORED)
    if why:
        make_own(draft, facts.method, why)
    return {
        "method": facts.method,
        "unit": facts.unit,
        "global_batch": facts.batch,
        "accumulation": facts.accumulation,
        "micro": facts.micro,
        "eval_batch": None,
        "draft": draft,
    }


def _why_own(keys: KeyReader, facts: TorchtuneFacts) -> str:
    """Why no objective of planner's computes the loss of the recipe's model, empty if one does."""
    loss, model = _last(keys, "loss"), str(keys.value("model._component_", ""))
    known = {"sft": ("CEWithChunkedOutputLoss", "CrossEntropyLoss", ""), "dpo": ("DPOLoss", "")}
    if facts.method in _WHY_OWN:
        return _WHY_OWN[facts.method]
    if loss not in known[facts.method]:
        return f"planner has no objective for {loss}"
    if "vision" in model:
        return "planner trains no models of images"
    return "" if keys.value("loss.ignore_index", -100) == -100 else "planner has no other ignore_index"


def _reasons(keys: KeyReader, facts: TorchtuneFacts) -> dict[str, str]:
    """Why each key that no note tells of is dropped."""
    found = {}
    for name, _ in keys.written():
        row, section = keys.rules.row(name), name.partition(".")[0]
        if not reads(facts.recipe, name) or not reads(facts.recipe, section):
            found[name] = _IGNORED
        elif row and (row.why or not keys.was_read(name)):
            found[name] = row.why or NO_SETTING
    return found


def _last(keys: KeyReader, section: str) -> str:
    """The class or function of a section: `torch.optim.AdamW` -> `AdamW`."""
    return str(keys.value(f"{section}._component_", "")).rpartition(".")[2]


def _fill(
    draft: Draft, keys: KeyReader, facts: TorchtuneFacts, options: RecipeOptions, text: str, *, is_own: bool
) -> None:
    name = job_name(PurePath(str(keys.value("output_dir", ""))).name, f"torchtune-{facts.method}")
    draft.derive("name", name, f"name {name}: output_dir", "output_dir")
    _set_model(draft, keys, facts, text, is_own=is_own)
    _set_data(draft, keys, facts)
    if is_own:
        loss = {name: keys.value(name) for name in keys.entries if name.startswith("loss.")}
        draft.set("objective", loss)
        draft.told |= set(loss)
    elif facts.method == "dpo":
        _set_dpo(draft, keys)
    else:
        text = "objective sft: the mean over all tokens of the global batch, as in torchtune"
        draft.derive("objective", {"kind": "sft"}, text, "loss._component_", "loss.ignore_index")
    how = product(facts.tuned_gpus, facts.micro, facts.accumulation, facts.batch)
    if facts.tensor_parallel > 1:
        how += f", in which {facts.tensor_parallel} GPUs share their samples (tensor_parallel_dim)"
    set_batch(draft, keys, options, facts.batch, facts.micro, how)
    draft.told |= set(_TOLD.split())
    note_padding(
        draft, "" if is_own or facts.unit == "packed row" else "torchtune pads each micro-batch to its longest row"
    )
    _set_length(draft, keys, facts)
    _set_optimizer(draft, keys, is_own=is_own)
    _set_schedule(draft, keys, facts, is_own=is_own)
    _set_compute(draft, keys, facts)
    set_workers(draft, facts.batch, facts.tuned_gpus)
    _set_tracker(draft, keys, options)
    order_sections(draft)


# -- the model


def _set_model(draft: Draft, keys: KeyReader, facts: TorchtuneFacts, text: str, *, is_own: bool) -> None:
    draft.set("model.kind", "hf")
    folder = str(keys.read("checkpointer.checkpoint_dir") if keys.has("checkpointer.checkpoint_dir") else "")
    hub = _downloaded(text, folder)
    if hub:
        how = f"model.path {hub}: the file's comment downloads it to {folder}"
        draft.derive("model.path", hub, how, "checkpointer.checkpoint_dir")
    elif folder:
        carried(draft, keys, "checkpointer.checkpoint_dir")
        draft.ask(
            f"model.path {folder}: write a folder of transformers' with config.json, or the hub's name", of_model=True
        )
    else:
        keys.lacks(
            "checkpointer.checkpoint_dir: found none. Write checkpointer.checkpoint_dir=FOLDER behind the recipe"
        )
    if keys.has("tokenizer.max_seq_len") or is_own:
        carried_if_set(draft, keys, "tokenizer.max_seq_len")
    else:
        keys.lacks(
            "tokenizer.max_seq_len: found null, which means no limit. Write the tokens of the longest sample, such as "
            "tokenizer.max_seq_len=4096"
        )
    template = keys.value("tokenizer.prompt_template")
    if template is not None:
        draft.drop("tokenizer.prompt_template", "see to do")
    named = f" and prompt_template {plain(template)}" if template is not None else ""
    draft.ask(
        f"model.chat_template: torchtune's tokenizer has its own format of turns{named}. Compare it with the template",
        of_model=True,
    )
    if keys.value("resume_from_checkpoint"):
        draft.ask("model.path: the recipe resumes an earlier run of torchtune. Write the folder of its last weights")
    if keys.value("checkpointer.adapter_checkpoint"):
        draft.drop("checkpointer.adapter_checkpoint", "see to do")
        draft.ask(
            "model.path: the recipe goes on with adapters. Merge them into the model, and write that", of_model=True
        )
    if facts.is_lora or keys.has("model.lora_rank"):
        _set_lora(draft, keys, is_own=is_own)


def _downloaded(text: str, folder: str) -> str:
    """The model that a comment downloads to a folder, empty if none does."""
    for name, place in re.findall(r"tune download\s+([\w.-]+/[\w.-]+)[^\n]*?--output-dir[ =](\S+)", text):
        if folder and place.rstrip("/") == folder.rstrip("/"):
            return str(name)
    return ""


def _set_lora(draft: Draft, keys: KeyReader, *, is_own: bool) -> None:
    builder = _last(keys, "model")
    modules = keys.value("model.lora_attn_modules", [])
    names = [str(each) for each in modules] if isinstance(modules, list) else []
    if not names:
        keys.refuse_in_job("model.lora_attn_modules", "Write a list such as [q_proj, v_proj]")
    names += ["gate_proj", "up_proj", "down_proj"] if keys.read("model.apply_lora_to_mlp") else []
    names += ["lm_head"] if keys.read("model.apply_lora_to_output") else []
    is_fused = "phi3" in builder or "phi4" in builder
    names = list(dict.fromkeys((_PHI3 if is_fused else {}).get(name, _LAYERS.get(name, name)) for name in names))
    if is_fused:
        draft.ask("model.lora.targets: transformers has q, k, v (and gate, up) as one layer, torchtune one for each")
    rank, alpha = keys.read("model.lora_rank"), keys.read("model.lora_alpha")
    lora = {"rank": rank, "alpha": alpha, "dropout": keys.read("model.lora_dropout"), "targets": names}
    text = f"model.lora rank {rank}, alpha {number(alpha)}, on {', '.join(names)}"
    draft.derive("model.lora", lora, text, *_TOLD_LORA.split())
    if keys.value("model.use_dora") and not is_own:
        keys.refuse_in_job("model.use_dora", "planner trains only plain low-rank adapters: remove it if you want those")
    if keys.value("model.quantize_base", builder.startswith("qlora_")):
        draft.derive("model.frozen", "nf4", "model.frozen nf4: quantize_base, or a qlora_ builder", "model._component_")


# -- the data


def _set_data(draft: Draft, keys: KeyReader, facts: TorchtuneFacts) -> None:
    kind, sections = kind_of(facts.method), data_sections(keys, facts.recipe)
    sources, columns = [], []
    for each in sections:
        source, names = _source(draft, each, is_multi=facts.recipe == MULTI)
        sources.append(source)
        columns.append(names)
    set_data(draft, kind, sources)
    known = _KNOWN | ({"train_on_input"} if facts.method == "sft" else set())
    if facts.method == "dpo" and "dataset.train_on_input" in keys.entries:
        draft.drop("dataset.train_on_input", "the prompt's terms of chosen and rejected cancel")
    draft.told |= {name for name in keys.entries if name.rpartition(".")[2] in known and name.startswith("dataset.")}
    draft.told |= {"dataset", "datasets"}
    _set_columns(draft, sources, columns)
    if len(sources) == 1 and columns[0]:
        draft.told |= {
            name for name in keys.entries if name.startswith(("dataset.column_map", "dataset.conversation_"))
        }
    name = "datasets" if facts.recipe == MULTI else "dataset"
    for at, each in enumerate(sections if isinstance(keys.peek(name), list) else []):
        _note_set(draft, each, f"{name}[{at}]", sources[at], columns[at], known)
    for key in [key for key in keys.entries if key.startswith(_CHANGING_ROWS)]:
        if keys.has(key) and key not in draft.told:
            draft.drop(key, "see to do")
            draft.ask(f"{key} {plain(keys.value(key))}: change the rows beforehand", of_model=True)
    if keys.has("tokenizer.max_seq_len") and facts.unit != "packed row":
        draft.ask(
            "rows longer than model.context: torchtune writes its end token in place of the last token that it keeps"
        )
    if facts.method == "sft" and sections:
        _set_loss_on(draft, keys, sections)
    if facts.unit == "packed row":
        text = (
            "data.packing true: packed. torchtune refuses longer rows than max_seq_len, and fills rows in their order"
        )
        draft.derive("data.packing", True, text)


def _set_columns(draft: Draft, sources: list[DatasetSource], columns: list[dict[str, str]]) -> None:
    """Sets the columns of each data set, of which a loader of several files makes one for each."""
    data = draft.job["data"]
    places = iter(data.get("mixture", [data]))
    for source, names in zip(sources, columns, strict=True):
        for _ in parts_of(source):
            next(places).update({"columns": names} if names else {})


def _note_set(
    draft: Draft, its: dict[str, Any], where: str, source: DatasetSource, columns: dict[str, str], known: frozenset[str]
) -> None:
    """Notes each key of a data set in a list that the job does not have. `where` is its place: `dataset[0]`."""
    told = known | ({"subset"} if source.weight is None else {"subset", "weight"})
    told |= {"column_map", "conversation_column", "conversation_style"} if columns else set()
    for name, value in its.items():
        if name in told or value is None:
            continue
        key = f"{where}.{name}"
        if name in _CHANGING_SET:
            draft.drop(key, "see to do")
            draft.ask(f"{key} {plain(value)} ({source.name}): change the rows beforehand", of_model=True)
        elif name == "train_on_input":
            draft.drop(key, "the prompt's terms of chosen and rejected cancel")
        else:
            draft.drop(key, NO_SETTING)


def _source(draft: Draft, its: dict[str, Any], *, is_multi: bool) -> tuple[DatasetSource, dict[str, str]]:
    """A data set as `load_dataset` gets it, and planner's names of its columns with those in the data."""
    builder = str(its.get("_component_", "")).rpartition(".")[2]
    default, folder, form = _SETS.get(builder, ("", "", "those that your builder makes" if not is_multi else ""))
    said = {
        name: its[name] for name in ("source", "split", "name", "subset", "data_dir") if isinstance(its.get(name), str)
    }
    name = said.get("source", default)
    if not name or (builder not in _SETS and not is_multi):
        return DatasetSource(name=name or builder or "NAME", hub=False), {}
    found = its.get("column_map")
    names = {str(ours): str(theirs) for ours, theirs in found.items()} if isinstance(found, dict) else {}
    columns, is_text = {}, builder in {"text_completion_dataset", *_COLUMN}
    if builder == "chat_dataset" and its.get("conversation_style") == "openai":
        columns, form = {"messages": str(its.get("conversation_column", "messages"))}, ""
    elif builder == "chat_dataset":
        form = f"conversations in {its.get('conversation_style')}'s form"
    elif builder in {"preference_dataset", "hh_rlhf_helpful_dataset"}:
        columns = {name: names.get(name, name) for name in ("chosen", "rejected")} if names else {}
    if form:
        draft.ask(f"rows of {name}: torchtune reads {form}. Write them in the form that planner reads")
    column = str(its.get("column", _COLUMN.get(builder, "text")))
    weight = its.get("weight") if is_multi and isinstance(its.get("weight"), int | float) else None
    return DatasetSource(
        name=name,
        # The multi-dataset recipe takes `name` for its log.
        config=said.get("subset") if is_multi else said.get("name", said.get("subset")),
        split=said.get("split"),
        folder=said.get("data_dir", folder or None),
        files=its.get("data_files"),
        weight=weight,
        text=column if is_text and column != "text" else None,
    ), columns


def _set_loss_on(draft: Draft, keys: KeyReader, sections: list[dict[str, Any]]) -> None:
    """Sets `data.loss_on`. Rows of plain text always learn all of it."""
    found = set()
    for each in sections:
        builder = str(each.get("_component_", "")).rpartition(".")[2]
        is_all = builder in {"text_completion_dataset", *_COLUMN}
        found.add(is_all or bool(each.get("train_on_input", builder.startswith("alpaca_"))))
    if len(found) > 1:
        keys.refuse_in_job("dataset", "planner has one data.loss_on for all sets. Write train_on_input alike in all")
    on = "all" if True in found else "completions"
    draft.derive("data.loss_on", on, f"data.loss_on {on}: train_on_input, by default true for alpaca's data sets alone")


# -- the loss and the training


def _set_dpo(draft: Draft, keys: KeyReader) -> None:
    beta, smoothing = keys.number("loss.beta", 0.1), keys.number("loss.label_smoothing", 0.0)
    objective: dict[str, Any] = {"kind": "dpo", "beta": beta}
    objective |= {"label_smoothing": smoothing} if smoothing else {}
    first, other = (keys.value(f"{name}checkpointer.checkpoint_dir") for name in ("", "ref_"))
    if other is not None and str(other).rstrip("/") != str(first).rstrip("/"):
        objective["reference_model"] = str(other)
    told = ("loss._component_", "loss.beta", "loss.label_smoothing", "ref_checkpointer.checkpoint_dir")
    draft.derive("objective", objective, f"objective dpo, beta {number(beta)}", *told)


def _set_length(draft: Draft, keys: KeyReader, facts: TorchtuneFacts) -> None:
    if facts.method == "ppo":
        rounds, each = keys.whole("num_steps") // max(keys.whole("batch_size"), 1), keys.whole("ppo_epochs", 1)
        steps = max(rounds * each * (keys.whole("batch_size") // facts.batch), 1)
        draft.derive("train.steps", steps, f"train.steps {steps}: num_steps in rounds of batch_size, x ppo_epochs")
    elif facts.max_steps:
        steps = facts.max_steps * facts.epochs
        text = f"train.steps {steps}: max_steps_per_epoch {facts.max_steps} x epochs {facts.epochs}"
        draft.derive("train.steps", steps, text, "max_steps_per_epoch", "epochs")
        draft.ask(
            f"train.steps {steps}: torchtune ends an epoch earlier that has fewer than {facts.max_steps} steps. Write "
            f"train.epochs {facts.epochs} in its place then"
        )
    else:
        carried(draft, keys, "epochs")
    if keys.has("seed"):
        carried(draft, keys, "seed")
    else:
        draft.derive("train.seed", 0, "train.seed 0: seed is null, with which torchtune draws one in each run", "seed")


def _set_optimizer(draft: Draft, keys: KeyReader, *, is_own: bool) -> None:
    name, key = _last(keys, "optimizer"), "optimizer._component_"
    ours = "train.optimizer"
    is_adam = _ADAM.fullmatch(name) is not None
    kinds = {"SGD": "sgd", "RMSprop": "rmsprop"}
    if not is_adam and name not in kinds and not is_own:
        keys.refuse_in_job(key, "planner has adamw, rmsprop and sgd: write one of them only if that will do")
    kind = "adamw" if is_adam else kinds.get(name, name)
    carry(draft, keys, key, f"{ours}.kind", kind)
    if is_adam and name not in {"Adam", "AdamW"}:
        draft.ask(f"{ours}: {name} keeps its state in fewer bits or on the CPU, planner in fp32 shards", of_model=True)
    carried(draft, keys, "optimizer.lr")
    decay = keys.number("optimizer.weight_decay", 0.01 if "AdamW" in name else 0.0)
    if decay and is_adam and "AdamW" not in name:
        keys.refuse_in_job("optimizer.weight_decay", "Adam adds it to the gradient, planner's adamw does not: write 0")
    carry(draft, keys, "optimizer.weight_decay", f"{ours}.weight_decay", decay, whose=f"in {name}")
    if keys.has("optimizer.betas") and is_adam:
        carry(draft, keys, "optimizer.betas", f"{ours}.betas", keys.value("optimizer.betas"))
    takes = {"adamw": ("eps",), "rmsprop": ("eps", "alpha"), "sgd": ("momentum",)}.get(kind, ())
    for each in takes:
        if keys.has(f"optimizer.{each}"):
            carry(draft, keys, f"optimizer.{each}", f"{ours}.{each}", keys.number(f"optimizer.{each}"))
    changing = {"amsgrad", "nesterov", "dampening", "maximize", "centered", "momentum"} - set(takes)
    for each in sorted(changing):
        if keys.value(f"optimizer.{each}") and not is_own:
            keys.refuse_in_job(f"optimizer.{each}", f"planner's {kind} has no such setting: remove it if that will do")


def _set_schedule(draft: Draft, keys: KeyReader, facts: TorchtuneFacts, *, is_own: bool) -> None:
    name = _last(keys, "lr_scheduler")
    if not name or not reads(facts.recipe, "lr_scheduler"):
        draft.derive(
            "train.schedule", {"kind": "constant"}, f"train.schedule constant: {facts.recipe} has no lr_scheduler"
        )
        return
    if name != "get_cosine_schedule_with_warmup" and not is_own:
        keys.refuse_in_job("lr_scheduler._component_", "planner has get_cosine_schedule_with_warmup. Write that")
    if keys.value("lr_scheduler.num_cycles", 0.5) != 0.5 and not is_own:
        keys.refuse_in_job("lr_scheduler.num_cycles", "planner has half a cosine: write 0.5")
    warmup = f"{facts.warmup} steps"
    told = ("lr_scheduler._component_", "lr_scheduler.num_warmup_steps", "lr_scheduler.num_cycles")
    text = f"train.schedule cosine after {warmup}: lr_scheduler {name}"
    draft.derive("train.schedule", {"kind": "cosine", "warmup": warmup}, text, *told)


def _set_compute(draft: Draft, keys: KeyReader, facts: TorchtuneFacts) -> None:
    clip = None
    if reads(facts.recipe, "clip_grad_norm") and str(keys.value("clip_grad_norm")).lower() not in {"none", "inf"}:
        clip = keys.number("clip_grad_norm")
        if not clip:
            keys.refuse_in_job("clip_grad_norm", "With 0 all gradients are 0. Write null for no clipping")
    if not reads(facts.recipe, "clip_grad_norm"):
        draft.derive("train.clip_norm", None, f"train.clip_norm null: {facts.recipe} does not clip")
    else:
        carry(draft, keys, "clip_grad_norm", "train.clip_norm", clip, whose="in torchtune, which does not clip")
    dtype = str(keys.value("dtype", "fp32"))
    precision = "fp32" if dtype == "fp32" else "bf16"
    if dtype == "fp64":
        keys.refuse_in_job("dtype", "planner has bf16 and fp32: write one of them")
    text = f"train.precision {precision}: dtype {dtype}"
    text += ". torchtune's weights and optimizer state are bf16, planner's fp32" if dtype == "bf16" else ""
    draft.derive("train.precision", precision, text, "dtype")
    if keys.has("enable_activation_checkpointing"):
        checkpoints = bool(keys.value("enable_activation_checkpointing"))
        carry(draft, keys, "enable_activation_checkpointing", "train.activation_checkpointing", checkpoints)
    compiles = "blocks" if keys.value("compile") else False
    if compiles and "frozen" in draft.job["model"]:
        draft.drop("compile", "planner does not compile 4-bit weights. It changes only speed")
    elif keys.has("compile"):
        carry(draft, keys, "compile", "train.compile", compiles)


def _set_tracker(draft: Draft, keys: KeyReader, options: RecipeOptions) -> None:
    made = TrackerDraft(draft=draft, keys=keys, environment=options.env)
    name = _last(keys, "metric_logger")
    kind = _TRACKERS.get(name)
    if kind:
        made.add(kind)
        made.use("metric_logger._component_", f"tracking: {kind}")
        logger = {name: f"metric_logger.{name}" for name in ("project", "entity", "group", "name", "log_dir")}
        if kind == "wandb":
            why = "the default of project in torchtune"
            made.take("project", logger["project"], "WANDB_PROJECT", default="torchtune", why=why)
            made.take("entity", logger["entity"], "WANDB_ENTITY")
            made.take("group", logger["group"], "WANDB_RUN_GROUP")
            made.take("name", logger["name"], "WANDB_NAME")
            take_wandb_mode(made)
        elif kind == "tensorboard":
            made.take("folder", logger["log_dir"])
        elif kind == "mlflow":
            made.take("experiment", "metric_logger.experiment_name", "MLFLOW_EXPERIMENT_NAME")
            made.take("uri", "metric_logger.tracking_uri", "MLFLOW_TRACKING_URI")
            made.take("name", "metric_logger.run_name")
    elif name:
        why = "planner records every step in its ledger" if name in _LOCAL else NO_SUCH_TRACKER
        made.leave("metric_logger._component_", f"{name}: {why}")
    made.close()
