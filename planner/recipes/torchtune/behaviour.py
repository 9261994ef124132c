"""What torchtune 0.6.1 does with a configuration: its recipe, its batch at each GPU count, and what it refuses."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

from planner.files.messages import cut
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import AmbiguousUnit, BatchOutcome, CheckOptions, Trap
from planner.recipes.scalars import Unresolved
from planner.recipes.shell.programs import recipe_of_tune
from planner.recipes.torchtune.keys import BACKWARD, FULL_DPO, MULTI, PPO, RECIPES, TP_RECIPE, UNREAD, needed_by

_COMMENT = re.compile(r"^[ \t]*#(.*)$", re.MULTILINE)
_TUNE = re.compile(r"\btune\s+(?=run\s)")
_COUNT = re.compile(r"[1-9][0-9]{0,4}")
_DTYPES = ("bf16", "fp32", "fp64")
KEYS = "its keys"
"""what says which recipe trains a file without a comment"""
_NEWER = ("context_parallel_dim", "data_parallel_replicate_dim", "data_parallel_shard_dim")


@dataclass(frozen=True, kw_only=True)
class TuneCommand:
    """A `tune run` command."""

    recipe: str
    config: str
    gpus: int | None
    """its number of processes, None if it does not say it"""
    is_launched: bool
    """whether it has options of torchrun, with which a distributed recipe starts"""


def command_in(words: Sequence[str]) -> TuneCommand | None:
    """The command of the words `tune run ...`, None if it names no recipe or configuration."""
    at = recipe_of_tune(words, 1)
    if at is None or "--config" not in words[at:-1]:
        return None
    config = words[words.index("--config", at) + 1]
    launcher = words[2:at]
    return TuneCommand(
        recipe=words[at], config=config, gpus=processes_of(launcher) if launcher else None, is_launched=bool(launcher)
    )


def processes_of(launcher: Sequence[str]) -> int | None:
    """Nodes x processes of each by torchrun's options, None if they do not say a number."""
    said = {"nnodes": "1", "nproc_per_node": "1"}
    for word, after in zip(launcher, [*launcher[1:], ""], strict=True):
        name, sign, value = word.lstrip("-").replace("-", "_", 3).partition("=")
        if word.startswith("--") and name in said:
            said[name] = value if sign else after
    least, _, most = said["nnodes"].partition(":")
    nodes, each = least if most in {"", least} else "", said["nproc_per_node"]
    return int(nodes) * int(each) if _COUNT.fullmatch(nodes) and _COUNT.fullmatch(each) else None


def commands_in(text: str) -> Iterator[TuneCommand]:
    """The `tune run` commands in the comments of a configuration."""
    comments = " \n".join(_COMMENT.findall(text)).replace("\\ \n", " ")
    for found in _TUNE.finditer(comments):
        words = comments[found.start() :].partition("\n")[0].split()
        if (command := command_in(words)) and command.recipe in RECIPES:
            yield command


def recipe_by_keys(keys: KeyReader) -> tuple[str, ...]:
    """The recipes that may train these keys, first the distributed one. Empty if the configuration trains nothing."""
    model, loss = str(keys.value("model._component_", "")), str(keys.value("loss._component_", ""))
    is_lora = any(part.startswith(("lora_", "qlora_")) for part in model.split(".")) or keys.has("model.lora_rank")
    if any(name in keys.entries for name in ("ppo_batch_size", "policy_model._component_")):
        return (PPO,)
    if not any(name.startswith("optimizer.") for name in keys.entries):
        return ()
    if "teacher_model._component_" in keys.entries:
        kind = "knowledge_distillation"
    elif "rlhf.loss." in loss:
        kind = "lora_dpo" if is_lora else "full_dpo"
    elif "QAT" in str(keys.value("quantizer._component_", "")):
        kind = "qat_lora_finetune" if is_lora else "qat"
    elif "datasets" in keys.entries and any(name.startswith("dataloader.") for name in keys.entries):
        return (MULTI,)
    elif any(name.startswith(("early_exit_loss.", "layer_dropout.")) for name in keys.entries):
        return ("dev/early_exit_finetune_distributed",)
    else:
        kind = "lora_finetune" if is_lora else "full_finetune"
    return tuple(name for end in ("distributed", "single_device") if (name := f"{kind}_{end}") in RECIPES)


def recipe_of(keys: KeyReader, text: str) -> tuple[TuneCommand, str] | None:
    """Which recipe trains a configuration that no command names, and what says so. None if it trains nothing.

    Args:
        keys: the configuration.
        text: its file, whose comments may have the command.
    """
    possible = recipe_by_keys(keys)
    if not possible:
        return None
    path = PurePath(keys.source).with_suffix("")
    commands = [each for each in commands_in(text) if each.recipe in possible]
    named = [each for each in commands if path.as_posix().endswith(each.config.removesuffix(".yaml"))]
    for found in (named, commands):
        if len({each.recipe for each in found}) == 1:
            return replace(found[0], is_launched=True), "a comment in the file"
    is_single = re.search(r"single_device|low_memory", path.name) is not None
    recipe = possible[-1 if is_single else 0]
    return TuneCommand(recipe=recipe, config="", gpus=None, is_launched=True), KEYS


def is_distributed(recipe: str) -> bool:
    """Whether a recipe trains on several GPUs."""
    return "single_device" not in recipe


def reads(recipe: str, name: str) -> bool:
    """Whether a recipe reads a key of the table."""
    return recipe not in UNREAD.get(name, ())


# -- what torchtune refuses


def refusal(keys: KeyReader, recipe: str, *, is_whole: bool) -> str:
    """Why a recipe does not start with these keys at any GPU count, empty if it does.

    Args:
        keys: the configuration.
        recipe: the recipe.
        is_whole: whether all keys are known. If not, keys may be missing.
    """
    return next((text for text in _refusals(keys, recipe, is_whole=is_whole) if text), "")


def _refusals(keys: KeyReader, recipe: str, *, is_whole: bool) -> Iterator[str]:
    for name in needed_by(recipe) if is_whole else ():
        section = name.partition(".")[0]
        if section == "lr_scheduler" and recipe == FULL_DPO and section in keys.entries:
            continue  # null: this recipe alone looks before it steps
        if name not in keys.entries or ("." in name and not keys.has(name)):
            yield f"ConfigAttributeError: no {name}"
    if is_whole and not data_sections(keys, recipe):
        yield f"ConfigAttributeError: no {'datasets' if recipe == MULTI else 'dataset'}"
    if (dtype := keys.value("dtype")) is not None and dtype not in _DTYPES:
        yield f"ValueError: dtype {cut(str(dtype), 20)} (bf16 or fp32)"
    yield from _of_memory(keys, recipe)
    if keys.value("compile") and ("qat" in recipe or (keys.value("device") == "npu" and not is_distributed(recipe))):
        yield "ValueError: compile is not supported"
    if "left_pad_sequence" in str(keys.value("collate_fn", "")) and RECIPES[recipe] in {"sft", "qat", "early exit"}:
        yield "RuntimeError: left_pad_sequence is for inference"
    yield from _of_packing(keys, recipe)
    yield from _of_tensor_parallel(keys, recipe) if recipe == TP_RECIPE else ()
    yield from _of_ppo(keys) if recipe == PPO else ()


def _of_memory(keys: KeyReader, recipe: str) -> Iterator[str]:
    if recipe in BACKWARD and keys.value("optimizer_in_bwd"):
        if keys.value("gradient_accumulation_steps", 1) != 1:
            yield "RuntimeError: optimizer_in_bwd with accumulation"
        if keys.has("clip_grad_norm") and recipe != PPO:
            yield "RuntimeError: optimizer_in_bwd with clip_grad_norm"
    if reads(recipe, "enable_activation_offloading") and keys.value("enable_activation_offloading"):
        if str(keys.value("device", "cuda")).partition(":")[0] != "cuda":
            yield "RuntimeError: offloading is for cuda"
        if not keys.value("enable_activation_checkpointing"):
            yield "RuntimeError: offloading without checkpointing"


def data_sections(keys: KeyReader, recipe: str) -> list[dict[str, Any]]:
    """The data sets of a recipe, one or a list, as their sections. Empty if one is no section."""
    entry = keys.entries.get("datasets" if recipe == MULTI else "dataset")
    inside = {} if recipe == MULTI else keys.entries
    named: dict[str, Any] = {}
    for name, its in inside.items():
        section, *path, last = name.split(".") if name.startswith("dataset.") else ("", "")
        place = named
        for each in path:
            place = place.setdefault(each, {})
        if section:
            place[last] = its.value
    found = [named] if entry is None and named else entry.value if entry else []
    return found if isinstance(found, list) and all(isinstance(each, dict) for each in found) else []


def refuse_unresolved(keys: KeyReader, recipe: str) -> None:
    """Notes each value that is not known, or no value, although the verdict, or the job if one is made, needs it."""
    for name, entry in keys.entries.items():
        row = keys.rules.row(name)
        if isinstance(entry.value, Unresolved) and row and (row.effect or (keys.is_for_job and not row.why)):
            keys.unresolved(name, entry.value, entry.where)
        section, dot, _ = name.partition(".")
        if dot and section != "tensor_parallel_plan" and (whole := keys.rules.exact(section)) and whole.effect:
            keys.wrong(f"{section}: found a section. Write a single value")
    for each in data_sections(keys, recipe):
        for name, value in each.items():
            if isinstance(value, Unresolved) and (name == "packed" or keys.is_for_job):
                keys.unresolved(f"dataset.{name}", value, keys.source)


def _of_packing(keys: KeyReader, recipe: str) -> Iterator[str]:
    if recipe == MULTI:
        if keys.value("dataloader.packed"):
            yield "ValueError: Packing not yet supported"
        return
    packed = [bool(each.get("packed")) for each in data_sections(keys, recipe)]
    if any(packed) and not all(packed):
        yield "ValueError: some data sets are packed, some not"
    if any(packed) and RECIPES[recipe] == "dpo":
        yield "ValueError: packed pairs"
    if any(packed) and not keys.has("tokenizer.max_seq_len"):
        yield "ValueError: packed needs tokenizer.max_seq_len"


def _of_tensor_parallel(keys: KeyReader, recipe: str) -> Iterator[str]:
    del recipe
    if keys.value("tensor_parallel_dim", 1) == 1:
        return
    if not any(name.startswith("tensor_parallel_plan") and keys.has(name) for name in keys.entries):
        yield "ValueError: no tensor_parallel_plan"
    if keys.value("optimizer.fused"):
        yield "ValueError: fused optimizer with tensor parallel"


def _of_ppo(keys: KeyReader) -> Iterator[str]:
    names = ("batch_size", "forward_batch_size", "ppo_batch_size", "gradient_accumulation_steps", "num_steps")
    batch, forward, ppo, steps, total = (keys.whole(name) for name in names)
    for shown, rest in (
        (f"{batch} % {forward} (forward)", batch % forward),
        (f"{batch} % {ppo}", batch % ppo),
        (f"ppo {ppo} % {steps}", ppo % steps),
    ):
        if rest:
            yield f"ValueError: {shown} = {rest}"
    if total < batch:
        yield f"ValueError: num_steps {total} < {batch}"


# -- the facts


def facts_of(keys: KeyReader, command: TuneCommand, gpus: int, *, is_whole: bool, told_by: str) -> "TorchtuneFacts":
    """The settings on which the verdicts depend. Notes mistakes in `keys`. `gpus`: the count it was tuned for."""
    recipe = command.recipe
    micro, accumulation = _whole(keys, "batch_size"), _whole(keys, "gradient_accumulation_steps")
    tensor_parallel = _tensor_parallel(keys) if recipe == TP_RECIPE else 1
    needed = {"tensor_parallel_dim": recipe == TP_RECIPE, "optimizer_in_bwd": recipe in BACKWARD and accumulation > 1}
    for name, is_needed in needed.items():
        if is_needed and not is_whole and not keys.has(name):
            keys.wrong(f"{name}: found nothing. Write {name}=VALUE behind the command, or the path of its file")
    if gpus % tensor_parallel:
        keys.wrong(f"{gpus} GPUs: no multiple of tensor_parallel_dim {tensor_parallel}. Write another count")
    if recipe != PPO:
        keys.refuse_null("torchtune", "epochs")
    batch = micro * accumulation * (gpus // tensor_parallel if is_distributed(recipe) else 1)
    if recipe == PPO:
        batch = _whole(keys, "ppo_batch_size")
        micro = max(batch // accumulation, 1)
    packs = any(each.get("packed") for each in data_sections(keys, recipe)) and recipe != MULTI
    method = RECIPES[recipe]
    unit = {"dpo": "pair", "ppo": "rollout"}.get(method, "packed row" if packs else "example")
    steps = keys.whole("max_steps_per_epoch") if keys.has("max_steps_per_epoch") and recipe != PPO else None
    return TorchtuneFacts(
        recipe=recipe,
        method=method,
        unit=unit,
        micro=micro,
        accumulation=accumulation,
        tensor_parallel=tensor_parallel,
        batch=batch,
        tuned_gpus=gpus,
        refusal="" if keys.mistakes else refusal(keys, recipe, is_whole=is_whole),
        epochs=keys.whole("epochs", 1) if recipe != PPO else 1,
        max_steps=steps,
        warmup=keys.whole("lr_scheduler.num_warmup_steps", 0, least=0) if reads(recipe, "lr_scheduler") else 0,
        is_in_backward=recipe in BACKWARD and bool(keys.value("optimizer_in_bwd")),
        is_seeded=keys.has("seed") or not is_whole,
        is_bf16=keys.value("dtype") == "bf16",
        is_lora="lora" in recipe or RECIPES[recipe] == "kd",
        is_launched=command.is_launched,
        told_by=told_by,
        is_whole=is_whole,
        mistyped=tuple(_mistyped(keys)),
    )


def _mistyped(keys: KeyReader) -> Iterator[str]:
    for name in keys.entries:
        if keys.rules.row(name) is None and (near := get_close_matches(name, keys.rules.names, n=1, cutoff=0.82)):
            yield f"{near[0]} for {name}"


def _tensor_parallel(keys: KeyReader) -> int:
    keys.refuse_null("torchtune", "tensor_parallel_dim")
    for name in _NEWER:
        if keys.value(name) not in (None, 1, -1):
            keys.refuse(name, "torchtune 0.6.1 ignores it, newer versions divide the GPUs by it. Remove it")
    return _whole(keys, "tensor_parallel_dim", 1)


def _whole(keys: KeyReader, name: str, default: int | None = None) -> int:
    """A size, for which torchtune takes no 2.0, and which a check needs, too."""
    if isinstance(keys.value(name), float):
        keys.refuse(name, "Write a whole number")
    elif default is None and not keys.has(name):
        keys.wrong(f"{name}: found nothing. Write {name}=VALUE behind the recipe")
    return keys.whole(name, default)


@dataclass(frozen=True, kw_only=True)
class TorchtuneFacts:
    """The settings of a configuration on which a recipe of torchtune depends, and what it does with them."""

    recipe: str
    method: str
    unit: str
    micro: int
    """samples of one GPU in a forward pass"""
    accumulation: int
    tensor_parallel: int
    """GPUs that share their samples"""
    batch: int
    """the global batch at the GPU count that it was tuned for"""
    tuned_gpus: int
    refusal: str
    """why it does not start at any count, short enough for a table cell. Empty if it starts"""
    epochs: int
    max_steps: int | None
    """optimizer steps of each epoch at most"""
    warmup: int
    """in optimizer steps"""
    is_in_backward: bool
    """whether the optimizer's step is in the backward pass, so that nothing accumulates"""
    is_seeded: bool
    is_bf16: bool
    is_lora: bool
    is_launched: bool
    """whether the command has options of torchrun, or none is known"""
    told_by: str
    """what says which recipe trains, empty for the command"""
    is_whole: bool
    """whether planner read the configuration, and not only a command's overrides"""
    mistyped: tuple[str, ...] = ()
    """`NAME for KEY` for each key that nothing reads and that resembles the key NAME"""

    def outcome(self, gpus: int) -> BatchOutcome:
        """What the recipe does at a GPU count."""
        text = self.refusal
        if not text and gpus > 1 and not is_distributed(self.recipe):
            text = "a recipe for one GPU"
        if not text and gpus % self.tensor_parallel:
            text = f"ValueError: world_size {gpus} % tensor_parallel_dim {self.tensor_parallel}"
        if text:
            is_raised = "Error: " in text
            return BatchOutcome(gpus=gpus, verdict="error", batch=None, text=text, is_raised=is_raised)
        batch = self.batch
        if is_distributed(self.recipe):
            batch = self.micro * self.accumulation * (gpus // self.tensor_parallel)
        return BatchOutcome(gpus=gpus, verdict="exact" if batch == self.batch else "other batch", batch=batch)

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:  # noqa: ARG002
        """True: any split is one of torchtune's or of another system. `render` refuses what a recipe cannot do."""
        return True

    @property
    def replicas(self) -> int:
        """GPUs with samples of their own, at the tuned count."""
        return self.tuned_gpus // self.tensor_parallel

    def units(self) -> list[AmbiguousUnit]:
        """The numbers whose units are easily mistaken."""
        gpus = f"{self.tuned_gpus} GPU{'s' * (self.tuned_gpus > 1)}"
        if self.tensor_parallel > 1:
            gpus = f"{self.replicas} groups of {self.tensor_parallel} GPUs"
        product = f"{self.micro} x {self.accumulation} x {gpus}: {self.batch} {self.unit}s"
        made = [
            AmbiguousUnit(key="batch_size", value=str(self.micro), there=product, here=f"batch.global: {self.batch}")
        ]
        if self.method == "ppo":
            there = f"rollouts of an optimizer step, {self.micro} at a time"
            here = f"batch.global: {self.batch}"
            made = [AmbiguousUnit(key="ppo_batch_size", value=str(self.batch), there=there, here=here)]
        if self.max_steps:
            there = f"optimizer steps of each epoch, {self.max_steps * self.epochs} in all"
            here = f"train.steps: {self.max_steps * self.epochs}"
            made.append(AmbiguousUnit(key="max_steps_per_epoch", value=str(self.max_steps), there=there, here=here))
        if self.warmup:
            there = f"optimizer steps, of {self.batch} {self.unit}s: {self.warmup * self.batch}"
            here = f"warmup: {self.warmup} steps"
            made.append(AmbiguousUnit(key="num_warmup_steps", value=str(self.warmup), there=there, here=here))
        return made

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""
        made = [
            self._recipe(),
            self._silent(options),
            self._carries(options),
            self._tail(options),
            self._repeats(options),
        ]
        if self.mistyped:
            text = "A recipe of torchtune ignores a key that it does not know, and a component refuses it."
            made.append(Trap(name="mistyped keys", text=f"{text} Did you mean {cut(', '.join(self.mistyped), 200)}?"))
        if not self.is_whole:
            text = "planner did not read the configuration, but only the command. What else it sets is not known."
            made.append(Trap(name="not read", text=text))
        if self.unit == "packed row":
            text = "The unit is a packed row, so the number of conversations in a batch depends on their lengths."
            made.append(Trap(name="packing", text=text))
        if self.is_lora and not self.is_seeded:
            text = "With seed null the first adapters and the dropout are random in each run. The data's order is not."
            made.append(Trap(name="seed", text=text))
        if self.is_bf16:
            text = "Weights, gradients and the optimizer's state are bf16, without a copy in fp32. planner's are fp32."
            made.append(Trap(name="bf16 weights", text=text))
        return [trap for trap in made if trap]

    def _recipe(self) -> Trap | None:
        if not self.is_launched and is_distributed(self.recipe):
            text = f"tune run refuses {self.recipe} without --nproc_per_node W before it, also on one GPU."
            return Trap(name="launch", text=text)
        if not self.told_by:
            return None
        text = f"No comment in the file says which recipe trains it. Its keys fit {self.recipe}."
        if self.told_by != KEYS:
            text = f"A comment in the file says that {self.recipe} trains it."
        return Trap(name="recipe", text=f"{text} If another one does, write that command as the recipe.")

    def _silent(self, options: CheckOptions) -> Trap | None:
        other = [count for count in options.counts if self.outcome(count).verdict == "other batch"]
        if not other:
            return None
        shown = " and ".join(f"{self.outcome(count).batch} at {count}" for count in sorted({min(other), max(other)}))
        text = (
            f"The batch is batch_size x gradient_accumulation_steps x GPUs: {shown} GPUs. The learning rate stays that "
            f"of batch {self.batch}, a number that the configuration does not contain."
        )
        return Trap(name="no global batch", text=text)

    def _batches(self, rows: int) -> int:
        """Micro-batches of an epoch on each GPU. A distributed KD keeps the last short one, all others drop it."""
        each = -(-rows // self.replicas)
        return -(-each // self.micro) if self.recipe == "knowledge_distillation_distributed" else each // self.micro

    def _carries(self, options: CheckOptions) -> Trap | None:
        """Micro-batches that fill no step wait for the next epoch, because gradients are only cleared after a step."""
        if self.accumulation == 1 or self.method == "ppo" or not self.is_whole:
            return None
        rows = options.rows if self.unit != "packed row" else None
        left, most = f"1 to {self.accumulation - 1}", self.accumulation - 1
        if rows:
            steps, most = divmod(self._batches(rows), self.accumulation)
            left = str(most)
            if not most or not steps or (self.max_steps and self.max_steps <= steps):
                return None
        if self.epochs == 1:
            text = f"The last micro-batches of the epoch that fill no step are not used ({left} on each GPU)."
            return Trap(name="left-over micro-batches", text=text)
        end = "" if rows or not self.max_steps else " unless max_steps_per_epoch ends it before"
        size = f"{'' if rows else 'up to '}{self.batch + most * self.micro * self.replicas}"
        text = (
            f"The last micro-batches of an epoch that fill no step ({left} on each GPU{end}) are added to the "
            f"first step of the next epoch, which then has {size} {self.unit}s instead of {self.batch}."
        )
        if self.method == "dpo":
            text += " Its loss is divided by the accumulation steps all the same."
        return Trap(name="left-over micro-batches", text=text)

    def _tail(self, options: CheckOptions) -> Trap | None:
        rows = options.rows if self.unit != "packed row" else None
        if self.recipe == "knowledge_distillation_distributed" or self.method == "ppo":
            return None
        if not rows:
            text = (
                f"The last {self.unit}s of an epoch that fill no micro-batch are dropped (check --rows N counts them)."
            )
            return Trap(name="epoch ends", text=text)
        if self._batches(rows) < self.accumulation:
            text = f"{rows} {self.unit}s fill no step of {self.batch}: it trains nothing, and saves the first weights."
            return Trap(name="no step", text=text)
        lost = -(-rows // self.replicas) % self.micro
        if not lost:
            return None
        text = f"The last {lost} {self.unit}s of an epoch on each GPU fill no micro-batch and are dropped."
        return Trap(name="epoch ends", text=text)

    def _repeats(self, options: CheckOptions) -> Trap | None:
        rows = options.rows if self.unit != "packed row" else None
        if not rows or self.recipe == MULTI or not (repeated := -rows % self.replicas):
            return None
        text = f"{repeated} of {rows} {self.unit}s come twice in an epoch at {self.tuned_gpus} GPUs."
        return Trap(name="repeated rows", text=text)
