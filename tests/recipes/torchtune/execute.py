"""Lets torchtune's own code say what the rows of sizes.csv train, and compares it with the rows and the judge.

It is not run by CI. It needs an environment of its own, in which torchtune and its requirements are (README.md):

    python tests/recipes/torchtune/execute.py            every row at 1 to 16 processes, and random settings

Executed are: the parser of `tune run` up to torchrun or the recipe, config._parse with the overrides, each recipe's
__init__ with its checks, `_setup_data` with torch's distributed sampler and data loader, torch's device mesh, and
`_setup_training_parameters` of PPO. The rows of a step are those of the first `gradient_accumulation_steps` batches of
the loader, times the sampler's replicas. The loop itself is run for full_finetune_single_device alone, on a model of
one embedding. All recipes step the optimizer at `(idx + 1) % gradient_accumulation_steps == 0`.

Ours are: processes that are not started (torch's fake process group), a data set of 5,000 short rows, the CPU in place
of `device`, and activation offloading, which needs CUDA, switched off after its own check.
`dev/lora_finetune_distributed_multi_dataset` needs a nightly torchdata and is not executed.
"""
# ruff: noqa: E402 -- the folder of the judge comes first

import contextlib
import copy
import importlib.util
import logging
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

import torch
import torch.distributed as dist
import torchtune
import torchtune_judge as judge
import torchtune_rows as table
from omegaconf import OmegaConf
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtune import training
from torchtune._cli.run import Run
from torchtune._cli.tune import TuneCLIParser
from torchtune.config._parse import TuneRecipeArgumentParser
from torchtune.config._utils import _merge_yaml_and_cli_args

RECIPES = Path(torchtune.__file__).parent.parent / "recipes"
NOT_EXECUTED = {"dev/lora_finetune_distributed_multi_dataset"}
THEIRS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, ImportError, RuntimeError)
SFT = {"tokens": [1, 2], "labels": [1, 2]}
PAIR = {f"{side}_{kind}": [1, 2] for side in ("chosen", "rejected") for kind in ("input_ids", "labels")}
BEGIN = dist.init_process_group
logging.disable(logging.WARNING)


def command(row, size):
    """`tune run`, as sizes.csv has it, with the size in place of its count."""
    recipe_at = row.words.index(row.recipe)
    count = table.launched(row.recipe, size)
    options = () if count is None else ("--nproc_per_node", str(count))
    return ["tune", "run", *options, *row.words[recipe_at:]]


def launched(words):
    """(processes or None, the file of the recipe, its arguments) that their command line would start."""
    started = {}

    def torchrun(_, arguments, **_rest):
        count = int(arguments.nproc_per_node) * int(arguments.nnodes.split(":")[-1])
        started.update(count=count, recipe=arguments.recipe, words=arguments.recipe_args)

    def alone(_, arguments, **_rest):
        started.update(count=None, recipe=arguments.recipe, words=arguments.recipe_args)

    with (
        mock.patch.object(Run, "_run_distributed", torchrun),
        mock.patch.object(Run, "_run_single_device", alone),
        mock.patch.object(sys, "argv", words),
        open(os.devnull, "w") as nowhere,  # noqa: PTH123
        contextlib.redirect_stderr(nowhere),
    ):
        parser = TuneCLIParser()
        try:
            parser.run(parser.parse_args())
        except SystemExit:
            raise judge.Refused("tune run refuses its arguments") from None
    return started["count"], started["recipe"], started["words"]


def composed(words):
    """The configuration that their parser makes of a recipe's arguments."""
    return _merge_yaml_and_cli_args(*TuneRecipeArgumentParser().parse_known_args(words))


def load_recipe(path):
    name = "recipe_" + Path(path).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def samples_of(row, config, size):
    """Samples per optimizer step.

    Raises:
        judge.Refused: their code refuses.
    """
    try:
        count, path, words = launched(command(row, size))
        if config is row.config:
            config = OmegaConf.to_container(composed(words), resolve=False)
        variables = {} if count is None else {"RANK": "0", "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
        variables |= {} if count is None else {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        with mock.patch.dict(os.environ, variables):
            return run_recipe(load_recipe(path), copy.deepcopy(config), count)
    except (*THEIRS, AssertionError) as error:
        raise judge.Refused(f"{type(error).__name__}: {error}") from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_recipe(module, config, count):
    """The recipe's own __init__ and data loader."""
    if "distributed" in module.__name__ and not training.is_distributed():
        raise judge.Refused("not launched by torchrun")  # recipe_main of each distributed recipe

    def fake(*_):
        if not dist.is_initialized():
            BEGIN("fake", rank=0, world_size=count, store=FakeStore())

    if "distributed" in module.__name__ and module.__name__ != "recipe_full_finetune_distributed":
        fake()  # their recipe_main does. full_finetune_distributed does it in __init__
    settings = OmegaConf.create(config)
    if settings.get("device") is not None:
        settings.device = "cpu"
    if settings.get("enable_activation_offloading") and settings.get("enable_activation_checkpointing"):
        settings.enable_activation_offloading = False
    kind = next(value for name, value in vars(module).items() if "Recipe" in name and name != "FTRecipeInterface")
    with contextlib.ExitStack() as stack:
        if hasattr(module, "init_process_group"):
            stack.enter_context(mock.patch.object(module, "init_process_group", fake))
        # It reads and writes checkpoints.
        if hasattr(module, "CheckpointClient"):
            stack.enter_context(mock.patch.object(module, "CheckpointClient"))
        recipe = kind(settings)
        return first_step(module, recipe, settings)


def first_step(module, recipe, settings):
    is_dpo, is_ppo = "dpo" in module.__name__, "ppo" in module.__name__
    if hasattr(recipe, "data_parallel_dim"):  # as _setup_model of full_finetune_distributed does
        shape = (recipe.data_parallel_dim, recipe.tensor_parallel_dim)
        mesh = dist.init_device_mesh("cpu", mesh_shape=shape, mesh_dim_names=("dp", "tp"))
        recipe.dp_size, recipe.dp_rank = mesh["dp"].size(), mesh["dp"].get_local_rank()
    recipe._tokenizer, recipe._loss_fn = SimpleNamespace(pad_id=0), SimpleNamespace(ignore_index=-100)
    rows = [PAIR if is_dpo else SFT] * 5000
    given = {"cfg_dataset": OmegaConf.create({}), "shuffle": settings.shuffle, "batch_size": settings.batch_size}
    if "collate_fn" in type(recipe)._setup_data.__annotations__:
        given["collate_fn"] = "torchtune.data.padded_collate_sft"
    with mock.patch.object(module.config, "instantiate", return_value=rows):
        made = recipe._setup_data(**given)
    loader = made[1] if isinstance(made, tuple) else made
    if is_ppo:
        recipe._dataloader, recipe._optimizer_in_bwd = loader, settings.optimizer_in_bwd
        recipe._setup_training_parameters(settings)
        return recipe._ppo_batch_size
    steps, own = recipe._gradient_accumulation_steps, 0
    for at, batch in enumerate(loader):
        own += len(batch[0]) // 2 if is_dpo else len(batch["tokens"])
        if (at + 1) % steps == 0:
            break
    return own * loader.sampler.num_replicas


def judged(row, config, size):
    return judge.batch_at(row.recipe, config, table.launched(row.recipe, size)).samples


def answer(way, *arguments):
    """The count, or `-` where it is refused. And the reason."""
    try:
        return str(way(*arguments)), ""
    except judge.Refused as reason:
        return "-", str(reason)


def compare_rows():
    wrong = checked = 0
    for row in table.rows():
        for size in table.SIZES:
            ours, our_why = answer(judged, row, row.config, size)
            theirs, why = ours, ""
            if row.recipe not in NOT_EXECUTED:
                theirs, why = answer(samples_of, row, row.config, size)
                checked += 1
            if not theirs == ours == row.expected[size]:
                wrong += 1
                print(row.file, f"{size}: executed {theirs} ({why[:200]}), judge {ours} ({our_why}),", end=" ")
                print("row", row.expected[size])
    print(f"rows: {checked} executed, {wrong} differ")
    return wrong


CHOICES = {
    "batch_size": [1, 2, 3, 8, "8", 0, 2.0],
    "gradient_accumulation_steps": [1, 2, 3, 16, "2", 0],
    "tensor_parallel_dim": [1, 2, 4],
    "tensor_parallel_plan": [{"_component_": "torchtune.models.llama3.base_llama_tp_plan"}, None],
    "optimizer_in_bwd": [True, False],
    "clip_grad_norm": [None, 1.0],
    "enable_activation_checkpointing": [True, False],
    "enable_activation_offloading": [True, False],
    "dtype": ["bf16", "fp32", "fp16"],
    "compile": [True, False],
    "forward_batch_size": [2, 16],
    "ppo_batch_size": [4, 8],
    "num_steps": [1, 10_000],
    "seed": [None, 7],
}
DROPPED = ("gradient_accumulation_steps", "seed", "shuffle", "optimizer_in_bwd", "clip_grad_norm", "batch_size")


def compare_random(count, seed=0):
    """Settings of shipped configurations changed at random, by the judge and by their code."""
    draw, wrong, seen = random.Random(seed), 0, {"n": 0, "-": 0}
    rows = [row for row in table.rows() if row.recipe not in NOT_EXECUTED]
    for _ in range(count):
        row, size = draw.choice(rows), draw.randint(1, 16)
        config = copy.deepcopy(row.config)
        config.update({key: draw.choice(CHOICES[key]) for key in draw.sample(sorted(CHOICES), draw.randint(1, 4))})
        if draw.random() < 0.1:
            config.pop(draw.choice(DROPPED), None)
        if draw.random() < 0.1:
            config["optimizer"]["fused"] = True
        (theirs, why), (ours, our_why) = answer(samples_of, row, config, size), answer(judged, row, config, size)
        seen["-" if theirs == "-" else "n"] += 1
        if theirs != ours:
            wrong += 1
            changed = {key: value for key, value in config.items() if row.config.get(key, "?") != value}
            print(row.recipe, size, changed, f"executed {theirs} ({why[:200]}), judge {ours} ({our_why})")
    print(f"random: {count} executed {seen}, {wrong} differ")
    return wrong


class Counting(torch.optim.SGD):
    """Keeps how many rows the model saw before each step."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        self.told, self.seen = [], 0
        model.register_forward_pre_hook(self.saw, with_kwargs=True)

    def saw(self, _model, _words, given):
        self.seen += len(given["tokens"])

    def step(self):
        self.told.append(self.seen)
        self.seen = 0
        super().step()


class TinyModel(torch.nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens)


def trained_steps(settings, count):
    """The rows of each optimizer step by the train() of full_finetune_single_device."""
    module = load_recipe(RECIPES / "full_finetune_single_device.py")
    recipe = module.FullFinetuneRecipeSingleDevice(settings)
    recipe._model = TinyModel(10, 10)
    recipe._tokenizer, recipe._loss_fn = SimpleNamespace(pad_id=0), torch.nn.CrossEntropyLoss(ignore_index=-100)
    with mock.patch.object(module.config, "instantiate", return_value=[SFT] * count):
        collate = "torchtune.data.padded_collate_sft"
        recipe._dataloader = recipe._setup_data(OmegaConf.create({}), shuffle=True, batch_size=2, collate_fn=collate)
    recipe._optimizer = Counting(recipe._model)
    recipe._steps_per_epoch = len(recipe._dataloader) // settings.gradient_accumulation_steps
    recipe._compile = recipe._log_peak_memory_stats = recipe.profiler_profile_memory = False
    recipe._lr_scheduler, recipe._profiler, recipe._metric_logger = None, mock.MagicMock(), mock.MagicMock()
    recipe.activations_handling_ctx, recipe.save_checkpoint = contextlib.nullcontext(), lambda **_: None
    recipe.ignore_labels_cache = torch.full((2, 1), -100)
    recipe.train()
    return recipe._optimizer.told


def compare_steps():
    """Runs of their loop in which micro-batches are left at the end of an epoch, and in which none are."""
    wrong, row = 0, next(row for row in table.rows() if row.file.endswith("0.5B_full_single_device.yaml"))
    for rows, limit, steps in [(23, None, 3), (23, 2, 3), (24, None, 3), (5, None, 3), (40, 4, 5), (9, None, 1)]:
        config = {**row.config, "epochs": 3, "max_steps_per_epoch": limit, "gradient_accumulation_steps": steps}
        config |= {"device": "cpu", "dtype": "fp32", "batch_size": 2}
        theirs, ours = trained_steps(OmegaConf.create(config), rows), judge.samples_of_steps(config, rows)
        if theirs != ours:
            wrong += 1
            print(rows, limit, steps, f"executed {theirs}, judge {ours}")
    print(f"steps: 6 runs, {wrong} differ")
    return wrong


if __name__ == "__main__":
    torch.manual_seed(0)
    sys.exit(bool(compare_steps() + compare_rows() + compare_random(2000)))
