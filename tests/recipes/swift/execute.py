"""Runs ms-swift's own code on every row of sizes.csv: with `--write` it writes the answers, else it compares them.

CI does not run it. A virtual environment that suffices (about five minutes):

    python -m venv /tmp/swift-venv
    /tmp/swift-venv/bin/pip install torch==2.13.0
    /tmp/swift-venv/bin/pip install ms-swift==4.6.0 torch==2.13.0 msgspec
    /tmp/swift-venv/bin/python tests/recipes/swift/execute.py

It brings transformers 5.19.0, accelerate 1.15.0, TRL 0.29.1 and torch 2.13.0, whose code runs, too. ms-swift's are:
`parse_args`, the arguments of `sft`, `pt` and `rlhf` with all checks in them, the Trainer's arguments that they make,
`DataLoaderMixin` with its samplers and its mesh, `prepare_kto_dataset` and `_split_data_by_steps`. transformers' are
`create_accelerator_and_postprocess`, `_get_dataloader` and DeepSpeed's `trainer_config_process`, accelerate's
`prepare_data_loader`, TRL's loader of GRPO and the sizes of `PPOTrainer.__init__`.

Ours are: the processes (torch's `fake` process group), the model that the hub would give (a text model with four
heads), DeepSpeed and vLLM (not installed: their presence is asserted), the data (numbered rows), the checks of
`_encode_dataset`, of `_prepare_dataset` and of an absent length, and DeepSpeed's own mesh for AutoTP. `rows` is the
count of different rows that all processes read for one step, and of completions for GRPO.
"""

import argparse
import contextlib
import csv
import inspect
import json
import logging
import os
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import accelerate.data_loader as loading
import datasets
import swift.arguments.base_args.base_args as base
import swift.arguments.rlhf_args as rlhf_arguments
import swift.arguments.sft_args as sft_arguments
import torch
import torch.distributed as dist
import transformers.trainer as trainers
import transformers.training_args as hf_arguments
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from swift.arguments import PretrainArguments, RLHFArguments, SftArguments
from swift.cli.main import parse_yaml_args
from swift.pipelines.train import kto
from swift.rlhf_trainers.gkd_trainer import GKDTrainer
from swift.rlhf_trainers.rollout_mixin import RolloutTrainerMixin
from swift.sequence_parallel import sequence_parallel
from swift.trainers import TrainArgumentsMixin
from swift.trainers.mixin import DataLoaderMixin
from swift.utils import parse_args
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from trl import GRPOTrainer
from trl.experimental.ppo import PPOTrainer
from trl.experimental.ppo.ppo_trainer import exact_div

HERE = Path(__file__).parent
WORLDS = range(1, 17)
CLASSES = {"sft": SftArguments, "pt": PretrainArguments, "rlhf": RLHFArguments}
OWN_LOADER = {None, "dpo"}
BASE = {"model": "org/model", "dataset": "rows.jsonl"}
REFUSALS = (ValueError, TypeError, AssertionError, ArithmeticError, NotImplementedError, RuntimeError)
REFUSALS += (IndexError, FileNotFoundError, SystemExit)


class Unfixed(Exception):
    """No batch follows."""


def main():
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", type=int, help="this row alone")
    given = parser.parse_args()
    with (HERE / "sizes.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    different = 0
    os.chdir(tempfile.mkdtemp())
    logging.disable()
    for number, row in enumerate(rows):
        if given.only not in (None, number):
            continue
        answers = [answer(row["verb"], BASE | json.loads(row["options"]), world, given.only) for world in WORLDS]
        found = " ".join(answers)
        if found != row["rows"]:
            different += 1
            print(number, row["file"], row["options"], "\n file ", row["rows"], "\n swift", found, flush=True)
        row["rows"] = found if given.write else row["rows"]
    if given.write:
        with (HERE / "sizes.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(len(rows), "rows,", different, "different")
    return 1 if different else 0


def answer(verb, options, world, is_told=False):
    """The rows of one step as text, `-` where something refuses, `?` where no batch is fixed."""
    Path("options.json").write_text(json.dumps(options), encoding="utf-8")
    argv = ["options.json"]
    try:
        with _processes(world), Path(os.devnull).open("w") as quiet, contextlib.redirect_stderr(quiet):
            parse_yaml_args(argv)
            return str(_rows(verb, argv, world))
    except Unfixed:
        return "?"
    except REFUSALS as error:
        if is_told:
            print(world, type(error).__name__, str(error)[:300])
        return "-"


@contextlib.contextmanager
def _processes(world):
    """As if the first of `world` processes ran, with what would load a model left out."""
    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    gone = SimpleNamespace(is_multimodal=False, is_moe_model=False, max_model_len=4096, task_type="causal_lm")
    with contextlib.ExitStack() as stack:
        put = lambda *given, **named: stack.enter_context(mock.patch.object(*given, **named))  # noqa: E731
        stack.enter_context(mock.patch.dict(os.environ, environment))
        put(base.ModelArguments, "__post_init__", _settle)
        for name in ("QuantizeArguments", "TemplateArguments"):
            put(getattr(base, name), "__post_init__", _nothing)
        for name in ("model_meta", "model_info", "model_suffix"):
            its = "model" if name == "model_suffix" else gone
            put(SftArguments, name, its, create=True)
        put(base, "get_hub", lambda *_: mock.MagicMock())
        put(base, "safe_snapshot_download", lambda path, **_: path)
        put(base, "get_ckpt_dir", lambda *_: None)
        put(base, "_patch_peft")
        put(SftArguments, "_init_multimodal_full", _nothing)
        put(TrainArgumentsMixin, "_init_liger", _nothing)
        put(sft_arguments, "require_version")
        put(SftArguments, "_add_version", _nothing)
        put(SftArguments, "_init_device", _nothing)
        put(RLHFArguments, "_init_external_vllm", _nothing)
        put(rlhf_arguments, "is_mp", lambda: False)
        put(sft_arguments, "is_mp", lambda: False)
        for name in ("world_size", "n_gpu", "device", "process_index"):
            its = {"world_size": world, "n_gpu": 1, "device": torch.device("cpu"), "process_index": 0}[name]
            put(hf_arguments.TrainingArguments, name, its)
        put(hf_arguments.TrainingArguments, "_validate_args", _nothing, create=True)
        yield


def _nothing(*_given):
    """In place of what wants a model or a device."""


def _settle(self):
    """What `ModelArguments.__post_init__` finds for a text model."""
    if self.model is None:
        raise ValueError("Please set --model")
    self.task_type = self.task_type or "causal_lm"


def _rows(verb, argv, world):
    deepspeed = {}
    with mock.patch.object(sft_arguments.TrainerFactory, "get_training_args", _without_deepspeed(deepspeed)):
        args, rest = parse_args(CLASSES[verb], argv)
    if rest:
        raise ValueError(f"remaining_argv: {rest}")
    if args.use_ray or "deepspeed_elastic" in (args.callbacks or ()):
        raise Unfixed
    kind = getattr(args, "rlhf_type", None)
    _checks(args, kind)
    training = args.training_args
    if training.auto_find_batch_size:
        raise Unfixed
    if deepspeed.get("config"):
        training.deepspeed = deepspeed["config"]
        _deepspeed_sizes(training)
    accelerator = _of_accelerator(training)
    tensor = (training.deepspeed or {}).get("tensor_parallel", {}).get("autotp_size", 1)
    if tensor > 1 and kind not in OWN_LOADER:
        raise Unfixed  # accelerate deals different rows to the processes of an AutoTP group
    if tensor > 1 and world % tensor:
        raise ValueError("DeepSpeed: AutoTP's mesh")
    if kind == "kto":
        data = {"label": [True, False]}
        with mock.patch.object(kto, "_get_kl_dataset", return_value=data):
            kto.prepare_kto_dataset(SimpleNamespace(**vars(args)), data, None)
    if kind == "ppo":
        return _ppo(training, world)
    if kind in {"grpo", "gkd"}:
        return _generated(args, training, kind, accelerator, world)
    return _read(args, training, kind, accelerator, world)


def _without_deepspeed(kept):
    """`TrainerFactory.get_training_args` with DeepSpeed's configuration put aside, since DeepSpeed is not there."""
    original = sft_arguments.TrainerFactory.get_training_args

    def made(args):
        kept["config"] = args.deepspeed
        args.deepspeed, args.bf16, args.fp16 = None, None, None
        args.fsdp, args.fsdp_config = None, None
        return original(args)

    return made


def _checks(args, kind):
    """The checks outside of the arguments that no data are needed for."""
    if args.cached_dataset and args.streaming:
        raise AssertionError("_prepare_dataset: cached dataset does not support streaming")
    if args.truncation_strategy == "split" and kind not in {"grpo", "gkd"}:
        has_template = args.use_chat_template is not False
        if args.task_type != "causal_lm" or kind or has_template:
            raise ValueError("_encode_dataset: only for pre-training")
    if args.streaming and args.max_steps <= 0:
        raise ValueError("set_initial_training_values: max_steps has to be specified")


def _deepspeed_sizes(training):
    """transformers' comparison of DeepSpeed's sizes with the command's."""
    both = type("Config", (HfTrainerDeepSpeedConfig, HfDeepSpeedConfig), {})  # its base without DeepSpeed is object
    config = both.__new__(both)
    config.config, config.mismatches, config._dtype = json.loads(json.dumps(training.deepspeed)), [], None
    config.trainer_config_process(training)
    if config.mismatches:
        raise ValueError(config.mismatches)


def _of_accelerator(training):
    """accelerate's parameters of the loader. It sets the accumulation as transformers does."""
    kept = {}

    def keep(**given):
        kept.update(given)
        raise Unfixed

    trainer = SimpleNamespace(args=training, _build_accelerator_args=keep)
    with contextlib.suppress(Unfixed), mock.patch.object(type(training), "fsdp_plugin_args", None, create=True):
        trainers.Trainer.create_accelerator_and_postprocess(trainer)
    if training.gradient_accumulation_steps < 1:
        raise ValueError("no micro-batch")
    return kept["dataloader_config"]


def _ppo(training, world):
    """`PPOTrainer.__init__` from its sizes to its whitening: the lines of TRL."""
    lines = inspect.getsource(PPOTrainer.__init__).splitlines()
    first = next(at for at, line in enumerate(lines) if "args.local_batch_size =" in line)
    last = next(at for at, line in enumerate(lines) if "`per_rank_rollout_batch_size`" in line)
    exec(textwrap.dedent("\n".join(lines[first:last])), {"args": training, "exact_div": exact_div})
    if training.local_mini_batch_size % training.per_device_train_batch_size:
        raise Unfixed
    return training.per_device_train_batch_size * training.gradient_accumulation_steps * world


class _Numbers:
    """Numbered rows. `datasets` has none that are read as fast."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return list(range(self.count)) if at == "lengths" else at


class _Stream(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


@contextlib.contextmanager
def _rank(rank, world, size):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    try:
        if size > 1:
            sequence_parallel.world_size, sequence_parallel.num_heads = size, 4
            sequence_parallel.device_mesh = None
            with mock.patch("swift.sequence_parallel.sequence_parallel.get_device", return_value="cpu"):
                sequence_parallel._init_device_mesh()
                assert sequence_parallel.sp_group is not None  # the trainers gather in it
        yield
    finally:
        dist.destroy_process_group()


def _read(args, training, kind, accelerator, world):
    """The different rows that the processes read for the first step."""
    micro, steps = training.train_batch_size, training.gradient_accumulation_steps
    data = (_Stream if args.streaming else _Numbers)(micro * steps * world * 2)
    found = set()
    for rank in range(world):
        with _rank(rank, world, args.sequence_parallel_size):
            if kind in OWN_LOADER and args.streaming:
                found |= {at * world + rank for at in range(micro * steps)}  # the dispatcher wants real processes
                continue
            if kind in OWN_LOADER:
                loader = _own(args, training, data)
                assert len(loader)  # `set_initial_training_values` of transformers asks
            else:
                loader = _by_accelerate(_loader(data, micro), accelerator, world, rank)
            batches = iter(loader)
            for _ in range(steps):
                found |= set(next(batches))
    return len(found)


def _own(args, training, data):
    """The loader of `DataLoaderMixin`."""
    training.dataloader_num_workers, training.dataloader_persistent_workers = 0, False
    training.dataloader_prefetch_factor = None
    trainer = SimpleNamespace(
        template=SimpleNamespace(sequence_parallel_size=args.sequence_parallel_size),
        train_dataset=data,
        args=training,
        data_collator=list,
        _train_batch_size=training.train_batch_size,
        accelerator=SimpleNamespace(device=None),
        _get_collator_with_removed_columns=lambda collator, **_: collator,
        _maybe_multiprocessing_context=DataLoaderMixin._maybe_multiprocessing_context,
    )
    trainer.get_sp_dataloader = lambda *given, **named: DataLoaderMixin.get_sp_dataloader(trainer, *given, **named)
    return DataLoaderMixin.get_train_dataloader(trainer)


def _loader(data, micro):
    return torch.utils.data.DataLoader(data, batch_size=micro, collate_fn=list)


def _by_accelerate(loader, accelerator, world, rank):
    """The loader as accelerate prepares it for one process: its batches of numbers."""
    state = SimpleNamespace(
        num_processes=world, process_index=rank, distributed_type=loading.DistributedType.MULTI_GPU, device=None
    )
    with (
        mock.patch.object(loading, "PartialState", return_value=state),
        mock.patch("accelerate.state.PartialState", return_value=state),
    ):
        prepared = loading.prepare_data_loader(
            loader, split_batches=bool(accelerator.split_batches), dispatch_batches=False, put_on_device=False
        )
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return [list(range(rank * each, rank * each + each)) for each in [loader.batch_size]] * 99
    return prepared.batch_sampler


def _generated(args, training, kind, accelerator, world):
    """The completions (rows of GKD) that the processes compute in one step."""
    size, steps = args.sequence_parallel_size, training.steps_per_generation
    local = None
    for rank in range(world):
        with _rank(rank, world, size):
            prepare = lambda loader, rank=rank: _by_accelerate(loader, accelerator, world, rank)  # noqa: E731
            trainer = _trainer(args, training, kind, prepare)
            loader = (GKDTrainer if kind == "gkd" else GRPOTrainer).get_train_dataloader(trainer)
            read = len(next(iter(loader)))
            if local not in (None, read):
                raise Unfixed
            local = read
    if accelerator.split_batches:
        raise Unfixed
    chunks = RolloutTrainerMixin._split_data_by_steps(list(range(local * size)), steps * size)
    passes = training.gradient_accumulation_steps * size
    return sum(len(chunks[at % len(chunks)]) for at in range(passes)) * (world // size)


def _trainer(args, training, kind, prepare):
    training.dataloader_num_workers, training.dataloader_persistent_workers = 0, False
    training.dataloader_prefetch_factor = None
    trainer = SimpleNamespace(
        args=training,
        train_dataset=_Numbers(training.generation_batch_size * 2),
        data_collator=list,
        _train_batch_size=training.train_batch_size,
        accelerator=SimpleNamespace(prepare=prepare),
        shuffle_dataset=False,
        num_generations=getattr(training, "num_generations", 1),
        num_iterations=getattr(training, "num_iterations", 1),
        template=SimpleNamespace(sequence_parallel_size=args.sequence_parallel_size),
        _get_collator_with_removed_columns=lambda collator, **_: collator,
    )
    if kind == "gkd":
        trainer._get_train_sampler = lambda *given: GKDTrainer._get_train_sampler(trainer, *given)
        trainer._get_dataloader = lambda **named: trainers.Trainer._get_dataloader(trainer, **named)
    else:
        from swift.rlhf_trainers import grpo_trainer

        its = grpo_trainer.GRPOTrainer if args.sequence_parallel_size > 1 else GRPOTrainer
        trainer._get_train_sampler = lambda *given: its._get_train_sampler(trainer, *given)
    return trainer


assert datasets  # imported early: the trainers look it up
if __name__ == "__main__":
    raise SystemExit(main())
