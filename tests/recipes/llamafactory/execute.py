"""Lets LLaMA-Factory's own code say what the rows of sizes.csv train, and compares it with the rows and the judge.

It is not run by CI. It needs an environment of its own, in which LLaMA-Factory's requirements are (README.md):

    python tests/recipes/llamafactory/execute.py            every row at W = 1..16, and random settings
    python tests/recipes/llamafactory/execute.py keys       writes keys.csv

Executed are: both launchers (launcher.launch, v1.launcher.launch) up to the command that they start, get_train_args
with all checks, transformers' Trainer.get_total_train_batch_size and DeepSpeed's size checks, accelerate's
BatchSamplerShard, and of v1 get_args, DistributedInterface with torch's device mesh, SFTTrainer.__init__ and the
batches that BatchGenerator yields.

Ours are: the count of GPUs, processes that are not started (torch's fake process group), the checks whether a package
is installed, and a model of one layer. Rows behind USE_MCA need Megatron and are not executed.
"""
# ruff: noqa: E402 -- variables that LLaMA-Factory reads when it is imported come first

import contextlib
import copy
import csv
import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

os.environ.update(DISABLE_VERSION_CHECK="1", LLAMAFACTORY_VERBOSITY="ERROR", HF_HUB_OFFLINE="1")
FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

import llamafactory_judge as judge
import llamafactory_rows as table
import torch
import transformers
import transformers.integrations.deepspeed as ds
import transformers.trainer as trainers
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from llamafactory.hparams import parser
from torch.utils.data import BatchSampler
from transformers import Trainer, TrainingArguments

transformers.utils.logging.set_verbosity_error()
THEIRS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    ImportError,
    RuntimeError,
    AssertionError,
)


class DeepSpeedConfig(HfDeepSpeedConfig):
    """HfTrainerDeepSpeedConfig, whose base class transformers leaves out without DeepSpeed."""

    def __init__(self, config):
        super().__init__(config)
        self._dtype, self.mismatches = None, []
        ds.set_hf_deepspeed_config(self)  # for is_deepspeed_zero3_enabled, while this object lives

    is_auto = ds.HfTrainerDeepSpeedConfig.is_auto
    fill_match = ds.HfTrainerDeepSpeedConfig.fill_match
    fill_only = vars(ds.HfTrainerDeepSpeedConfig)["fill_only"]
    trainer_config_process = ds.HfTrainerDeepSpeedConfig.trainer_config_process


class Accelerator:
    """Keeps what the Trainer gives."""

    is_fsdp2, parallelism_config, distributed_type = False, None, None

    def __init__(self, **given):
        self.given = given
        self.state = SimpleNamespace(deepspeed_plugin=given.get("deepspeed_plugin"), fsdp_plugin=None)

    def gather_for_metrics(self, data):
        return data


def processes(path, gpus, launcher, environment):
    """(count, whether they are torch-distributed) that a command starts: their launcher's own answer."""
    if launcher != "llamafactory-cli":
        return gpus, launcher in judge.DISTRIBUTED_LAUNCHERS
    import llamafactory.launcher as module

    counts, inside, entry = "llamafactory.extras.misc.get_device_count", "llamafactory.train.tuner", "run_exp"
    if "USE_V1" in environment:
        import llamafactory.v1.launcher as module

        counts = "llamafactory.v1.accelerator.helper.get_device_count"
        inside, entry = "llamafactory.v1.trainers.sft_trainer", "run_sft"
    in_process = mock.Mock()
    with (
        mock.patch(counts, return_value=gpus),
        mock.patch.dict(sys.modules, {inside: SimpleNamespace(**{entry: in_process})}),
        mock.patch.object(subprocess, "run") as started,
        mock.patch.object(sys, "argv", ["llamafactory-cli", "train", str(path)]),
        contextlib.suppress(SystemExit),
    ):
        module.launch()
    if in_process.called:
        return 1, False
    words = list(started.call_args.args[0])
    return int(words[next(at for at, word in enumerate(words) if "nproc" in word) + 1]), True


@contextlib.contextmanager
def one_of(count, distributed, gpus):
    """As if this were one of `count` processes, or a lone one that sees `gpus` GPUs."""

    def device(arguments):
        arguments._n_gpu = 1 if distributed else max(1, gpus)
        told = SimpleNamespace(
            distributed_type="MULTI_GPU", num_processes=count, process_index=0, local_process_index=0
        )
        arguments.distributed_state = told if distributed else None
        return torch.device("cpu")

    patches = [
        mock.patch.object(TrainingArguments, "_setup_devices", property(device)),
        mock.patch.object(TrainingArguments, "process_index", property(lambda _: 0)),
        mock.patch.object(TrainingArguments, "should_log", property(lambda _: False)),
        mock.patch.object(trainers, "Accelerator", Accelerator),
        mock.patch.object(ds, "HfTrainerDeepSpeedConfig", DeepSpeedConfig),
        mock.patch.object(transformers.training_args, "is_torch_bf16_gpu_available", return_value=True),
        mock.patch.object(parser, "is_torch_bf16_gpu_available", return_value=True),
        mock.patch.object(parser, "check_version"),
        mock.patch.object(parser, "get_current_device", return_value=torch.device("cpu")),
        mock.patch.object(DeepSpeedPlugin, "set_deepspeed_weakref"),
    ]
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def rows_of(config, gpus, launcher, environment):
    """Samples per optimizer step.

    Raises:
        judge.Refused: their code refuses.
        judge.Unfixed: no number is fixed.
    """
    kept = {name: value for name, value in os.environ.items() if name not in table.VARIABLES}
    with (
        mock.patch.dict(os.environ, {**kept, **environment}, clear=True),
        contextlib.chdir(FOLDER),
        open(os.devnull, "w") as nowhere,  # noqa: PTH123
        contextlib.redirect_stdout(nowhere),
    ):
        count, distributed = processes("recipe.yaml", gpus, launcher, environment)
        try:
            if "USE_V1" in environment:
                return v1_rows(config, count, distributed)
            if "USE_RAY" in environment:
                count, distributed = ray_workers(config, gpus), True
            with one_of(count, distributed, gpus):
                return trainer_rows(config)
        except THEIRS as error:
            raise judge.Refused(f"{type(error).__name__}: {error}") from error


def ray_workers(config, gpus):
    """As _ray_training_function checks, which starts Ray and is not executed."""
    count = parser.get_ray_args(dict(config)).ray_num_workers
    if count > gpus:
        raise judge.Refused(f"{count} workers on {gpus} GPUs")
    return count


def trainer_rows(config):
    """The Trainer's total batch, counted in the rows that accelerate deals to the ranks."""
    *_, arguments, finetuning, _generating = parser.get_train_args(copy.deepcopy(config))
    if finetuning.stage not in {"pt", "sft", "rm", "ppo", "dpo", "kto"}:  # as train.tuner._training_function
        raise judge.Refused(f"unknown task {finetuning.stage}")
    if not arguments.do_train:
        raise judge.Refused("do_train is off")
    if arguments.auto_find_batch_size:
        raise judge.Unfixed("auto_find_batch_size")
    trainer = Trainer.__new__(Trainer)
    trainer.args, trainer.model = arguments, SimpleNamespace()
    trainer.create_accelerator_and_postprocess()
    if (settings := getattr(arguments, "hf_deepspeed_config", None)) and settings.mismatches:
        raise judge.Refused(" ".join(settings.mismatches))
    trainer._train_batch_size = arguments.train_batch_size
    told = trainer.get_total_train_batch_size(arguments)
    steps = arguments.gradient_accumulation_steps
    ranks = told // (arguments.train_batch_size * steps)
    splits = trainer.accelerator.given["dataloader_config"].split_batches
    sampler = BatchSampler(range(100_000), arguments.train_batch_size, drop_last=False)
    shards = [BatchSamplerShard(sampler, ranks, rank, split_batches=splits) for rank in range(ranks)]
    return sum(len(next(iter(shard))) for shard in shards) * steps


class TinyModel(torch.nn.Linear):
    def __init__(self, attention):
        super().__init__(1, 1)
        self.config = SimpleNamespace(model_type="tiny", _attn_implementation=attention)

    def gradient_checkpointing_enable(self, *_):
        """Nothing to checkpoint."""


def v1_rows(config, count, distributed):
    """The samples of the first batch that BatchGenerator yields, times the data-parallel size."""
    import torch.distributed as dist
    from llamafactory.v1.accelerator.interface import Dim, DistributedInterface
    from llamafactory.v1.config import get_args
    from llamafactory.v1.core import base_trainer
    from llamafactory.v1.trainers.sft_trainer import SFTTrainer
    from torch.testing._internal.distributed.fake_pg import FakeStore

    settings = {"RANK": "0", "WORLD_SIZE": str(count), "LOCAL_RANK": "0"} if distributed else {}
    begin = dist.init_process_group

    def fake(**_):
        begin("fake", rank=0, world_size=count, store=FakeStore())

    sample = {"input_ids": [1], "labels": [1], "attention_mask": [1], "loss_weights": [1.0]}
    renderer = SimpleNamespace(
        process_samples=lambda samples: [sample for _ in samples], processor=SimpleNamespace(model_input_names=[])
    )
    DistributedInterface._instance, DistributedInterface._initialized = None, False
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, settings))
        stack.enter_context(mock.patch("llamafactory.v1.accelerator.interface.init_process_group", fake))
        stack.enter_context(mock.patch.object(base_trainer.BaseTrainer, "_shard_model"))
        stack.enter_context(mock.patch.object(base_trainer, "TrainingCheckpointCoordinator"))
        stack.callback(lambda: dist.is_initialized() and dist.destroy_process_group())
        model, _, training, _ = get_args(dict(config))
        training.batching_workers = 0
        is_deepspeed = training.dist_config is not None and training.dist_config.name == "deepspeed"
        # The plugin of DeepSpeed is given the sizes and checks nothing.
        DistributedInterface(training.dist_config)
        if is_deepspeed:
            training.dist_config = None
        trainer = SFTTrainer(training, TinyModel(model.flash_attn), renderer, list(range(10_000)))
        if str(training.batching_strategy).startswith("dynamic"):
            raise judge.Unfixed("a budget of tokens")
        batch = next(iter(trainer.train_batch_generator))
        own = sum(
            int((micro["position_ids"] == 0).sum()) if "position_ids" in micro else len(micro["input_ids"])
            for micro in batch
        )
        return own * DistributedInterface().get_world_size(Dim.DP)


def judged(config, gpus, launcher, environment):
    return judge.batch_at(config, gpus, launcher=launcher, environment=environment).samples


def answer(way, *arguments):
    """The count, `-` where it is refused, `?` where it is not fixed. And the reason."""
    try:
        return str(way(*arguments)), ""
    except judge.Refused as reason:
        return "-", str(reason)
    except judge.Unfixed as reason:
        return "?", str(reason)


def compare_rows():
    wrong = checked = 0
    for row in table.rows():
        for gpus in table.SIZES:
            given = (row.config, gpus, row.launcher, row.environment)
            theirs, why = answer(rows_of, *given) if "USE_MCA" not in row.environment else (row.expected[gpus], "")
            ours, our_why = answer(judged, *given)
            checked += "USE_MCA" not in row.environment
            if not theirs == ours == row.expected[gpus]:
                wrong += 1
                print(row.file, f"W={gpus}: executed {theirs} ({why[:200]}), judge {ours} ({our_why}),", end=" ")
                print("row", row.expected[gpus])
    print(f"rows: {checked} executed, {wrong} differ")
    return wrong


CHOICES = {
    "per_device_train_batch_size": [1, 2, 3, 4, 8, 12, "8", 2.0, 0],
    "gradient_accumulation_steps": [1, 2, 5, 16, "2", 0],
    "stage": ["sft", "pt", "dpo", "kto", "rm", "ppo", "orpo"],
    "finetuning_type": ["lora", "full", "freeze", "oft", "qlora"],
    "packing": [True, False],
    "neat_packing": [True],
    "val_size": [0.1, 100],
    "eval_strategy": ["steps"],
    "eval_dataset": ["identity"],
    "streaming": [True],
    "max_steps": [10],
    "max_samples": [100],
    "deepspeed": ["examples/deepspeed/ds_z3_config.json", "examples/deepspeed/ds_z2_config.json"],
    "accelerator_config": [
        {"split_batches": True},
        {"gradient_accumulation_kwargs": {"num_steps": 4}},
        {"even_batches": False},
    ],
    "use_badam": [True],
    "use_galore": [True],
    "galore_layerwise": [True],
    "quantization_bit": [4],
    "mask_history": [True],
    "auto_find_batch_size": [True],
    "reward_model": ["reward"],
    "not_a_key": [1],
}


def compare_random(count, seed=0):
    """Settings drawn at random, by the judge and by their code."""
    draw, wrong, seen = random.Random(seed), 0, {}
    base = {"model_name_or_path": "model", "do_train": True, "dataset": "identity", "template": "llama3"}
    for _ in range(count):
        drawn = draw.sample(sorted(CHOICES), draw.randint(0, 6))
        config = {**base, "output_dir": "none", "bf16": True, **{key: draw.choice(CHOICES[key]) for key in drawn}}
        launcher = draw.choice(["llamafactory-cli", "llamafactory-cli", "torchrun", "python"])
        environment = draw.choice([{}, {}, {"FORCE_TORCHRUN": "1"}])
        given = (config, draw.randint(1, 16), launcher, environment)
        (theirs, why), (ours, our_why) = answer(rows_of, *given), answer(judged, *given)
        # Optimizers are made with the model, which is not here.
        if theirs != ours and "gradient accumulation" not in our_why:
            wrong += 1
            print(given, f"executed {theirs} ({why[:200]}), judge {ours} ({our_why})")
        seen[theirs if theirs in "-?" else "n"] = seen.get(theirs if theirs in "-?" else "n", 0) + 1
    print(f"random: {count} executed {seen}, {wrong} differ")
    return wrong


def write_keys():
    """keys.csv: every key of LLaMA-Factory's five classes, with its default."""
    with (FOLDER / "keys.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["key", "class", "default"])
        for group in parser._TRAIN_ARGS:
            for field in dataclasses.fields(group):
                if field.init:
                    made = field.default_factory is not dataclasses.MISSING
                    default = field.default_factory() if made else field.default
                    shown = "required" if default is dataclasses.MISSING else getattr(default, "value", default)
                    writer.writerow([field.name, group.__name__, shown])


if __name__ == "__main__":
    if sys.argv[1:] == ["keys"]:
        write_keys()
    else:
        sys.exit(bool(compare_rows() + compare_random(3000)))
