"""Random commands of TRL's scripts, and whether planner reads the batch that `trainer_judge` computes."""

import json
import random
import shlex
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trainer_judge
from trainer_judge import Launch, Refused

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe

METHODS = ("sft", "dpo", "kto", "grpo")
_COUNTS = (1, 2, 3, 4, 6, 8)


@dataclass
class Case:
    """A command under construction."""

    folder: Path
    dice: random.Random
    method: str
    gpus: int
    yaml: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    options: list[str] | None = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    is_plain: bool = True
    """whether TRL takes it and planner has no reason to refuse it"""

    @property
    def launch(self):
        """For the judge."""
        options = None if self.options is None else tuple(self.options)
        variables = tuple(self.variables.items())
        return Launch(method=self.method, options=options, arguments=tuple(self._behind()), variables=variables)

    @property
    def command(self):
        """For planner."""
        begin = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        if self.options is None:
            begin += ["torchrun", "--nproc_per_node", str(self.gpus)]
        else:
            begin += ["accelerate", "launch", *map(shlex.quote, self.options), "--num_processes", str(self.gpus)]
        return " ".join([*begin, f"trl/scripts/{self.method}.py", *map(shlex.quote, self._behind())])

    def _behind(self):
        config = ["--config", str(self.folder / "config.yaml")] if self.yaml else []
        return [*config, *self.arguments]

    def write(self):
        """The files of the command."""
        if self.yaml:
            (self.folder / "config.yaml").write_text("\n".join(self.yaml) + "\n")


def made(number, folder, seed=1):
    """The case of a number. The same one each time."""
    dice = random.Random(f"{seed} {number}")
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(folder=folder, dice=dice, method=dice.choice(METHODS), gpus=dice.choice(_COUNTS))
    _give(case, "model_name_or_path", "org/model")
    _give(case, "dataset_name", "org/data")
    _give(case, "output_dir", "out")
    # KTOTrainer refuses 1 when it is made, where the judge does not go.
    _number(case, "per_device_train_batch_size", (2, 2, 4, 8, 12, 16) if case.method == "kto" else (1, 2, 4, 8, 12, 16))
    _number(case, "gradient_accumulation_steps", (1, 1, 2, 3, 4, 8))
    for extra, chance in _EXTRAS:
        if dice.random() < chance:
            extra(case)
    case.write()
    return case


# -- one key


def _give(case, key, value):
    """Write a plain value in the file, on the command line or in both."""
    place = case.dice.choice(("file", "file", "line", "both"))
    if place != "line":
        case.yaml.append(
            f"{key}: {case.dice.choice((1, 2, 5)) if place == 'both' and isinstance(value, int) else value}"
        )
    if place != "file":
        name = key.replace("_", "-") if case.dice.random() < 0.2 else key
        case.arguments += case.dice.choice(([f"--{name}={value}"], [f"--{name}", str(value)]))


def _number(case, key, values):
    """A whole number, now and then in a form that one of the readers may take for another."""
    value = case.dice.choice((None, *values))
    if value is None:
        return
    if case.dice.random() < 0.85:
        _give(case, key, value)
        return
    case.is_plain = False
    odd = case.dice.choice(
        (
            f"0{value}", f'"{value}"', f"{value}.0", f"{value}e0", f"0x{value}", f"+{value}", f"1_{value}",
            f"{value} # rows", f"0o{value}", "null", "0", "-1", "true", "auto",
        )
    )  # fmt: skip
    if case.dice.random() < 0.5:
        case.yaml.append(f"{key}: {odd}")
    else:
        case.arguments += [f"--{key}", odd.partition(" #")[0].strip('"')]


def _section(case, key, tree, *, may_be_file):
    """An object, as a section or a text of the file, as an option, or in a file of its own."""
    text = json.dumps(tree)
    place = case.dice.choice(("section", "text", "option", "option", "file", "both"))
    if place in {"section", "both"} or (place == "file" and not may_be_file):
        case.yaml.append(f"{key}: {text}")
    elif place == "text":
        case.yaml.append(f"{key}: '{text}'")
    elif place == "file":
        file = case.folder / f"{key}.json"
        file.write_text(text)
        case.arguments += [f"--{key}", str(file)]
    if place == "both":
        case.yaml[-1] = f'{key}: {{"split_batches": true}}' if key == "accelerator_config" else case.yaml[-1]
    if place in {"option", "both"}:
        case.arguments += case.dice.choice(([f"--{key}", text], [f"--{key}={text}"]))


# -- what may reach the batch


def _harmless(case):
    choices = (
        ("dataloader_drop_last", "true"), ("max_steps", "7"), ("num_train_epochs", "2"), ("seed", "3"),
        ("train_sampling_strategy", "group_by_length"), ("gradient_checkpointing", "true"), ("save_steps", "5"),
        ("per_device_eval_batch_size", "8"), ("ddp_timeout", "9"), ("fsdp_config", '{"version": 2}'),
        ("auto_find_batch_size", "false"), ("use_cpu", "true"), ("max_grad_norm", "0.5"),
    )  # fmt: skip
    key, value = case.dice.choice(choices)
    case.arguments += [f"--{key}", value]


def _accelerator(case):
    tree = {}
    if case.dice.random() < 0.6:
        tree["split_batches"] = case.dice.choice((True, True, False, "true", "false", "1", 1, None))
        case.is_plain &= isinstance(tree["split_batches"], bool) and case.method not in {"grpo", "kto"}
    if case.dice.random() < 0.4:
        inner = {"num_steps": case.dice.choice((1, 2, 4, "2", 2.0, None))} if case.dice.random() < 0.8 else {}
        if case.dice.random() < 0.3:
            inner["sync_each_batch"] = True
        tree["gradient_accumulation_kwargs"] = inner
        case.is_plain &= isinstance(inner.get("num_steps", 1), int)
    for name in ("even_batches", "dispatch_batches"):
        if case.dice.random() < 0.3:
            tree[name] = case.dice.choice((True, False))
    if case.dice.random() < 0.05:
        tree["num_step"] = 4
    _section(case, "accelerator_config", tree, may_be_file=True)


def _deepspeed_tree(case):
    def size(*values):
        return case.dice.choice(("auto", "auto", "auto", *values))

    tree = {
        "train_batch_size": size(8, 16, 32, 64),
        "train_micro_batch_size_per_gpu": size(2, 4, 8),
        "gradient_accumulation_steps": size(1, 2, 4),
        "zero_optimization": {"stage": 2},
    }
    return {key: value for key, value in tree.items() if key == "zero_optimization" or case.dice.random() < 0.8}


def _deepspeed(case):
    case.is_plain = False
    _section(case, "deepspeed", _deepspeed_tree(case), may_be_file=True)


def _launched_deepspeed(case):
    case.is_plain = False
    case.options = ["--use_deepspeed"]
    if case.dice.random() < 0.5:
        file = case.folder / "launch_ds.json"
        file.write_text(json.dumps(_deepspeed_tree(case)))
        case.options += ["--deepspeed_config_file", str(file)]
    if case.dice.random() < 0.5:
        case.options += ["--gradient_accumulation_steps", str(case.dice.choice((1, 2, 4)))]


def _launched_fsdp(case):
    case.options = ["--use_fsdp", "--fsdp_version", "2"]
    if case.dice.random() < 0.6:
        case.is_plain = False
        case.options.append("--use_parallelism_config")
        for name in case.dice.sample(("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"), k=2):
            case.options += [f"--parallelism_config_{name}", str(case.dice.choice((1, 2, 2, case.gpus)))]


def _launch_file(case):
    """An accelerate file."""
    kind = case.dice.choice(("MULTI_GPU", "FSDP", "DEEPSPEED"))
    lines = ["compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}", "mixed_precision: bf16",
             "num_machines: 1", f"num_processes: {case.gpus}"]  # fmt: skip
    if kind == "DEEPSPEED":
        case.is_plain = False
        inner = {"zero_stage": 2, "gradient_accumulation_steps": case.dice.choice((1, 2, 4, "auto"))}
        if case.dice.random() < 0.4:
            file = case.folder / "file_ds.json"
            file.write_text(json.dumps(_deepspeed_tree(case)))
            inner = {"deepspeed_config_file": str(file)}
        lines.append(f"deepspeed_config: {json.dumps(inner)}")
    if kind == "FSDP":
        lines.append("fsdp_config: {fsdp_version: 2}")
        if case.dice.random() < 0.5:
            case.is_plain = False
            name = case.dice.choice(("dp_shard_size", "tp_size", "cp_size"))
            size = case.dice.choice((1, 2, case.gpus))
            lines.append(f"parallelism_config: {{parallelism_config_{name}: {size}}}")
    file = case.folder / "accelerate.yaml"
    file.write_text("\n".join(lines) + "\n")
    case.options = ["--config_file", str(file)]


def _torchrun(case):
    case.options = None


def _variables(case):
    pairs = (
        ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", ("1", "2", "4")), ("ACCELERATE_USE_DEEPSPEED", ("true", "false")),
        ("FSDP_VERSION", ("2",)), ("ACCELERATE_MIXED_PRECISION", ("bf16",)), ("PARALLELISM_CONFIG_CP_SIZE", ("1", "2")),
        ("ACCELERATE_USE_PARALLELISM_CONFIG", ("true", "false")), ("PARALLELISM_CONFIG_DP_SHARD_SIZE", ("1", "2")),
        ("ACCELERATE_LOG_LEVEL", ("info",)), ("ACCELERATE_USE_FSDP", ("false",)),
    )  # fmt: skip
    for name, values in case.dice.sample(pairs, k=case.dice.choice((1, 2, 3))):
        value = case.dice.choice(values)
        if case.dice.random() < 0.8:
            case.variables[name] = value
        else:
            case.yaml = [*(line for line in case.yaml if not line.startswith("env:")), f'env: {{{name}: "{value}"}}']
    case.is_plain = False


def _auto_find(case):
    case.is_plain = False
    form = case.dice.choice((["--auto_find_batch_size"], ["--auto_find_batch_size", "yes"], None))
    if form:
        case.arguments += form
    else:
        case.yaml.append(f"auto_find_batch_size: {case.dice.choice(('true', 'yes', '1', chr(34) + 't' + chr(34)))}")


def _groups(case):
    """GRPO's keys. It may refuse a count."""
    if case.method != "grpo":
        return
    _give(case, "num_generations", case.dice.choice((2, 4, 8)))
    if case.dice.random() < 0.3:
        _give(case, "steps_per_generation", case.dice.choice((1, 2, 4)))
    if case.dice.random() < 0.2:
        _give(case, "generation_batch_size", case.dice.choice((16, 32, 64)))
    if case.dice.random() < 0.2:
        case.arguments += ["--do_eval", "true", "--eval_strategy", "steps", "--eval_steps", "5"]
        _give(case, "num_generations_eval", case.dice.choice((2, 4)))


def _model(case):
    case.is_plain = False
    tree = case.dice.choice(({"tp_plan": "auto"}, {"device_map": "auto"}, {"attn_implementation": "sdpa"}))
    if case.dice.random() < 0.5:
        case.yaml.append(f"model_init_kwargs: {json.dumps(tree)}")
    else:
        case.arguments += ["--model_init_kwargs", json.dumps(tree)]


_EXTRAS = (
    (_harmless, 0.6), (_accelerator, 0.4), (_deepspeed, 0.1), (_launched_deepspeed, 0.1), (_launched_fsdp, 0.1),
    (_launch_file, 0.15), (_torchrun, 0.1), (_variables, 0.15), (_auto_find, 0.05), (_groups, 0.9), (_model, 0.05),
)  # fmt: skip


# -- the verdict


def compared(case):
    """What both say at each GPU count: a row of the count, planner's batch and theirs. A text is a refusal."""
    counts = dict.fromkeys((case.gpus, *case.dice.sample(_COUNTS, k=2)))
    rows = [(gpus, _theirs(case, gpus)) for gpus in counts]
    try:
        options = RecipeOptions(is_for_job=False, needs_micro=False)
        recipe = read_recipe(case.command, (), options)
    except RecipeError as error:
        return [(gpus, str(error), theirs) for gpus, theirs in rows]
    return [(gpus, _ours(recipe, gpus), theirs) for gpus, theirs in rows]


def _theirs(case, gpus):
    try:
        return trainer_judge.batch_at(case.launch, gpus)
    except Refused as error:
        return str(error) or "refused"


def _ours(recipe, gpus):
    outcome = recipe.foreign.outcome(gpus)
    return outcome.text if outcome.verdict == "error" else outcome.batch


def verdict(ours, theirs):
    """equal, refused (by planner alone), both refused, or wrong."""
    if isinstance(ours, str):
        return "both refused" if isinstance(theirs, str) else "refused"
    return "equal" if ours == theirs else "wrong"


def count(numbers, folder, seed=1):
    """The verdicts of many cases, how many plain rows planner refuses, and what is wrong."""
    counts, wrong = Counter(), []
    for number in numbers:
        case = made(number, folder / str(number), seed)
        for gpus, ours, theirs in compared(case):
            found = verdict(ours, theirs)
            counts[found] += 1
            counts["plain refused"] += found == "refused" and case.is_plain
            counts["plain"] += case.is_plain and not isinstance(theirs, str)
            if found == "wrong":
                wrong.append(f"case {number} at {gpus}: planner {ours}, they {theirs}\n{case.command}")
    return counts, wrong
