"""The batch that TRL and transformers train of a command, computed by their own code and without training.

Theirs are: the launcher's parser and the variables that it sets (accelerate.commands.launch, accelerate.utils.launch),
TrlParser with the dataclasses of each method's script and their checks, `Trainer.create_accelerator_and_postprocess`
(num_steps, split_batches), `Trainer.get_total_train_batch_size`, accelerate's ParallelismConfig, BatchSamplerShard and
DeepSpeedPlugin, and `HfTrainerDeepSpeedConfig.trainer_config_process` (DeepSpeed's sizes).

Ours are: the number of processes (no process group is started), a class that keeps what the Trainer gives to
`Accelerator`, the sum over the ranks of one micro-batch's rows times the accumulation steps, and a base class for
`HfTrainerDeepSpeedConfig`, which transformers leaves out where DeepSpeed is not installed.
"""

import contextlib
import io
import os
import warnings
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from unittest import mock

import accelerate
import accelerate.commands.launch as launching
import torch
import transformers
import transformers.integrations.deepspeed as ds
import transformers.trainer as trainers
import trl
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import DeepSpeedPlugin
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from torch.utils.data import BatchSampler
from transformers import Trainer, TrainingArguments

CONFIGS = {"sft": trl.SFTConfig, "dpo": trl.DPOConfig, "kto": trl.KTOConfig, "grpo": trl.GRPOConfig}
_OURS = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "DEEPSPEED_", "WORLD_SIZE", "RANK", "LOCAL_RANK")


class Refused(Exception):
    """Their code refuses the command. The message is theirs."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command in its parts."""

    method: str
    options: tuple[str, ...] | None
    """of `accelerate launch`, without --num_processes. None for torchrun, which sets no variable of accelerate"""
    arguments: tuple[str, ...]
    """behind the script"""
    variables: tuple[tuple[str, str], ...] = ()


def batch_at(command, gpus):
    """The rows of an optimizer step on `gpus` processes.

    Raises:
        Refused: their code refuses the command.
    """
    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.enter_context(_processes(gpus))
        kept = {name: its for name, its in os.environ.items() if not name.startswith(_OURS)}
        stack.enter_context(mock.patch.dict(os.environ, {**kept, **dict(command.variables)}, clear=True))
        try:
            return _rows(_arguments(command, gpus))
        except SystemExit:
            raise Refused(said.getvalue()[-300:]) from None
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, ImportError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error


def _arguments(command, gpus):
    """The script's TrainingArguments, with the launcher's variables set as it sets them for the script."""
    if command.options is not None:
        os.environ.update(_launched(command, gpus))
    parser = import_module(f"trl.scripts.{command.method}").make_parser()
    return next(
        each for each in parser.parse_args_and_config(list(command.arguments)) if isinstance(each, TrainingArguments)
    )


def _launched(command, gpus):
    """The variables that `accelerate launch` sets."""
    options = ["--num_processes", str(gpus), *command.options, f"{command.method}.py"]
    parsed, defaults, is_from_file = launching._validate_launch_command(
        launching.launch_command_parser().parse_args(options)
    )
    if parsed.use_megatron_lm:
        raise Refused("Megatron-LM")
    # as launch_command does
    fields = [*(defaults.deepspeed_config if defaults else ()), *(["mixed_precision"] if is_from_file else ())]
    parsed.deepspeed_fields_from_accelerate_config = ",".join(fields)
    return prepare_deepspeed_cmd_env(parsed)[1] if parsed.use_deepspeed else prepare_multi_gpu_env(parsed)


def _rows(arguments):
    """The Trainer's total batch, counted in the rows that accelerate deals to the ranks."""
    if arguments.auto_find_batch_size:
        raise Refused("auto_find_batch_size: no batch is fixed")
    trainer = Trainer.__new__(Trainer)
    trainer.args, trainer.model = arguments, SimpleNamespace()
    trainer.create_accelerator_and_postprocess()
    if plugin := trainer.accelerator.state.deepspeed_plugin:
        config = getattr(arguments, "hf_deepspeed_config", None) or plugin.hf_ds_config
        if config.mismatches:
            raise Refused(" ".join(config.mismatches))
    steps = arguments.gradient_accumulation_steps
    if not isinstance(steps, int) or steps < 1:
        raise Refused(f"range({steps!r}) micro-batches")  # Trainer.get_batch_samples
    sampler = BatchSampler(range(1000), arguments.train_batch_size, drop_last=False)
    trainer._train_batch_size = arguments.train_batch_size
    told = trainer.get_total_train_batch_size(arguments)
    ranks = told // (arguments.train_batch_size * steps)
    splits = trainer.accelerator.given["dataloader_config"].split_batches
    shards = [BatchSamplerShard(sampler, ranks, rank, split_batches=splits) for rank in range(ranks)]
    rows = sum(len(next(iter(shard))) for shard in shards) * steps
    assert splits or rows == told, (rows, told)
    return rows


class _Accelerator:
    """Keeps what the Trainer gives, and makes of variables what accelerate's own class makes of them."""

    num_processes = 1

    def __init__(self, **given):
        self.given = given
        plugin = given.get("deepspeed_plugin")
        if plugin is None and os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true":
            plugin = DeepSpeedPlugin()
        self.state = SimpleNamespace(deepspeed_plugin=plugin, fsdp_plugin=None)
        self.parallelism_config = given.get("parallelism_config")
        if not self.parallelism_config and os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG", "").lower() == "true":
            self.parallelism_config = accelerate.ParallelismConfig()
        is_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
        self.is_fsdp2 = is_fsdp and os.environ.get("FSDP_VERSION") == "2"
        self.multi_device, self.distributed_type = True, None
        if self.parallelism_config:
            self.parallelism_config._validate_accelerator(self)

    def gather_for_metrics(self, data):
        return data


class _DeepSpeedConfig(HfDeepSpeedConfig):
    """HfTrainerDeepSpeedConfig, whose base class transformers leaves out without DeepSpeed."""

    def __init__(self, config):
        super().__init__(config)
        self._dtype, self.mismatches = None, []

    is_auto = ds.HfTrainerDeepSpeedConfig.is_auto
    fill_match = ds.HfTrainerDeepSpeedConfig.fill_match
    fill_only = vars(ds.HfTrainerDeepSpeedConfig)["fill_only"]
    trainer_config_process = ds.HfTrainerDeepSpeedConfig.trainer_config_process


@contextlib.contextmanager
def _processes(gpus):
    """As if one of `gpus` processes ran."""

    def device(arguments):
        arguments._n_gpu, arguments.distributed_state = 1, None
        return torch.device("cpu")

    patches = [
        mock.patch.object(TrainingArguments, "_setup_devices", property(device)),
        mock.patch.object(TrainingArguments, "world_size", property(lambda _: gpus)),
        mock.patch.object(TrainingArguments, "process_index", property(lambda _: 0)),
        mock.patch.object(trainers, "Accelerator", _Accelerator),
        mock.patch.object(_Accelerator, "num_processes", gpus),
        mock.patch.object(ds, "HfTrainerDeepSpeedConfig", _DeepSpeedConfig),
        mock.patch.object(transformers.training_args, "is_torch_bf16_gpu_available", return_value=True),
        # It keeps a reference for the creation of models, and needs DeepSpeed.
        mock.patch.object(DeepSpeedPlugin, "set_deepspeed_weakref"),
        mock.patch.object(launching, "default_config_file", "/nonexistent"),
    ]
    with contextlib.ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield
