"""Runs axolotl's own code on every row of sizes.csv: with `--write` it writes the answers, else it compares them.

CI does not run it: axolotl wants about a hundred packages. A virtual environment that suffices, with torch of the
CPU (2.13) and the common packages of planner's environment:

    python -m venv /tmp/axodl/venv
    /tmp/axodl/venv/bin/pip install --no-deps axolotl==0.19.0 transformers==5.16.1 trl==1.9.0 accelerate==1.13.0 \
        peft==0.20.0 datasets==4.8.4 tokenizers==0.23.1 huggingface_hub==1.17.0 pydantic==2.12.5 \
        pydantic_core==2.41.5 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 addict fire colorama \
        posthog==6.7.11 python-dotenv==1.0.1 termcolor liger-kernel==0.8.1 art triton evaluate==0.4.1 numba llvmlite
    AXOLOTL_DO_NOT_TRACK=1 /tmp/axodl/venv/bin/python tests/recipes/axolotl/execute.py

axolotl's are: `validate_config`, `setup_parallelism_envs`, `_get_parallel_config_kwargs`, `normalize_config`, the
builders' arguments for the Trainer, `wrap_streaming_dataset` and the sampler of packs. accelerate's and
transformers' are: `ParallelismConfig`, `prepare_data_loader`, `Trainer.create_accelerator_and_postprocess`.

Ours are: the number of processes (a variable; no process group is started), the configuration of the model that the
hub would give, plugins other than the experts' (left out), one check of `KTOTrainer.__init__`, and the data: rows which
are numbered and, where samples are packed, as long as a pack. `rows` is the count of different rows that the ranks
read for one step.
"""

import argparse
import contextlib
import copy
import csv
import gc
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import accelerate.data_loader as loading
import accelerate.parallelism_config as meshes
import axolotl.core.builders.base as builders
import axolotl.core.builders.rl as rl_builders
import axolotl.core.training_args as training
import axolotl.utils.config as configs
import axolotl.utils.schemas.config as schema
import datasets
import pydantic
import torch
import transformers.trainer as trainers
import yaml
from axolotl.core.builders import HFCausalTrainerBuilder, HFRLTrainerBuilder
from axolotl.core.trainers import AxolotlTrainer, ebft, grpo
from axolotl.integrations.base import PluginManager
from axolotl.monkeypatch.accelerate.parallelism_config import patch_parallelism_config
from axolotl.utils import distributed
from axolotl.utils.data import streaming
from axolotl.utils.dict import DictDefault
from axolotl.utils.distributed import _get_parallel_config_kwargs
from axolotl.utils.trainer import calculate_total_num_steps, setup_parallelism_envs
from transformers import TrainingArguments

HERE = Path(__file__).parent
WORLDS = range(1, 17)
ROWS = 1000
"""of the data for which the number of steps is asked"""
SET_BY_US = ("ACCELERATE_", "PARALLELISM_", "FSDP_", "WORLD_SIZE", "LOCAL_RANK")
EXPERT_PLUGIN = "axolotl.integrations.expert_parallel.ExpertParallelPlugin"
REFUSALS = (DeprecationWarning, ValueError, TypeError, ArithmeticError, NotImplementedError, AssertionError)


class Unfixed(Exception):
    """No batch follows."""


class Captured(Exception):
    """The arguments that a builder gives to the class of the Trainer's arguments."""


def main():
    """Writes or compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="", help="rows whose file has this in its name")
    given = parser.parse_args()
    os.chdir(HERE)  # deepspeed_configs/ is named from here
    with (HERE / "sizes.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    different = 0
    sys.modules.setdefault("ring_flash_attn", ModuleType("ring_flash_attn"))  # the validation imports it
    gc.freeze()  # the sampler of packs collects garbage each time
    for row in rows:
        if given.only not in row["file"]:
            continue
        answers = answers_of(row)
        for key, value in answers.items():
            if row.get(key) != value and not given.write:
                print(row["file"], row["overrides"], key, "file:", row.get(key), "axolotl:", value)
                different += 1
        row.update(answers)
    if given.write:
        with (HERE / "sizes.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(len(rows), "rows,", different, "different")
    return 1 if different else 0


def config_of(row):
    """The YAML with the row's overrides."""
    return yaml.safe_load((HERE / row["file"]).read_text(encoding="utf-8")) | json.loads(row["overrides"] or "{}")


def answers_of(row):
    """The columns of a row that axolotl answers."""
    config = config_of(row)
    each = {world: _answer(config, world) for world in WORLDS}
    known = [answer for answer in each.values() if not isinstance(answer, str)]
    first = known[0] if known else {}
    first_of_many = next((each[world] for world in WORLDS[1:] if not isinstance(each[world], str)), {})
    columns = {
        "m": first.get("m", ""),
        "A": first.get("A", ""),
        "rows": " ".join(answer if isinstance(answer, str) else str(answer["rows"]) for answer in each.values()),
        "counted": " ".join(answer if isinstance(answer, str) else str(answer["counted"]) for answer in each.values()),
        "steps": first_of_many.get("steps", ""),
        "refusal": next((answer.reason for answer in each.values() if answer == "-"), ""),
    }
    return {key: str(value) for key, value in columns.items()}


def _answer(config, world):
    try:
        with _processes(world):
            return _run(copy.deepcopy(config), world)
    except Unfixed:
        return "?"
    except pydantic.ValidationError as error:
        return Refusal(error.errors()[0]["loc"], error.errors()[0]["msg"])
    except REFUSALS as error:
        return Refusal((), str(error))


class Refusal(str):
    """A minus sign, with the first words of the reason."""

    __slots__ = ("reason",)

    def __new__(cls, key, message):
        made = super().__new__(cls, "-")
        made.reason = " ".join(f"{'.'.join(map(str, key))} {message.removeprefix('Value error, ')}".split())[:110]
        return made


@contextlib.contextmanager
def _processes(world):
    """As if one of `world` processes ran."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_US)}
    with (
        mock.patch.dict(os.environ, {**kept, "WORLD_SIZE": str(world)}, clear=True),
        mock.patch.object(configs, "load_model_config", _model_config),
        mock.patch.object(configs, "choose_device"),
        mock.patch.object(schema, "is_fp8_available", return_value=True),
        mock.patch.object(distributed, "is_distributed", return_value=False),
        mock.patch.object(distributed, "init_distributed_state"),
        mock.patch.object(builders.TrainerBuilderBase, "_configure_optimizer"),
    ):
        yield


def _model_config(cfg):
    kind = "mamba" if "mamba" in cfg.base_model else "llama"
    return SimpleNamespace(model_type=kind, get_text_config=None)


def _run(config, world):
    """Refused, or the sizes."""
    plugins = [name for name in config.get("plugins") or () if name == EXPERT_PLUGIN]
    config["plugins"] = plugins or None
    PluginManager.get_instance().plugins.clear()
    cfg = DictDefault(config)
    configs.prepare_plugins(cfg)
    # H100s. `tf32: auto` is settled so that no GPU is asked.
    capabilities = {"bf16": True, "fp8": True, "tf32": False, "n_gpu": world, "compute_capability": "sm_90"}
    cfg = configs.validate_config(cfg, capabilities=capabilities, env_capabilities={"torch_version": "2.11.0"})
    setup_parallelism_envs(cfg)
    # With Ray each worker fills in the sizes by the same lines (cli/train.py, ray_train_func).
    configs.normalize_config(DictDefault({**cfg, "use_ray": None}) if cfg.use_ray else cfg)
    if cfg.use_ray:
        cfg.gradient_accumulation_steps = cfg.gradient_accumulation_steps or cfg.batch_size // cfg.micro_batch_size
        cfg.batch_size = cfg.batch_size or cfg.micro_batch_size * cfg.gradient_accumulation_steps
        cfg.use_ray = None
        configs.normalize_config(cfg)
    given = (world, cfg.tensor_parallel_size, cfg.context_parallel_size, cfg.dp_shard_size, cfg.dp_replicate_size)
    is_fsdp = bool(cfg.fsdp or cfg.fsdp_config)
    meshes.ParallelismConfig(**_get_parallel_config_kwargs(*given, is_fsdp, cfg.expert_parallel_size))
    if plugins:
        _experts(cfg, world)
    steps, counted = _steps(cfg), cfg.batch_size
    micro, slots = _streamed(cfg)
    arguments = _trainer_arguments(cfg)
    if cfg.rl == "kto" and micro <= 1:
        raise ValueError("KTOTrainer.__init__: the KL term needs more rows")  # not run: it wants a model
    mesh = _mesh(cfg, world)
    if mesh and cfg.deepspeed and cfg.context_parallel_size > 1:
        raise Unfixed  # accelerate deals different rows to the ranks of one context group
    if arguments.get("auto_find_batch_size"):
        raise Unfixed
    accumulation, params = _of_accelerator(arguments)
    rows = _rows_of_a_step(cfg, arguments, accumulation, params, mesh, world) * slots
    return {"m": micro, "A": accumulation, "rows": rows, "counted": counted, "steps": steps}


def _experts(cfg, world):
    """The checks of the experts' plugin, as if the process group were there."""
    from axolotl.integrations.expert_parallel import plugin

    group = mock.MagicMock()
    group.is_available.return_value = group.is_initialized.return_value = True
    group.get_world_size.return_value = world
    mesh = mock.MagicMock(mesh_dim_names=("ep",), shape=(world,))
    with (
        mock.patch.object(plugin, "dist", group),
        mock.patch.object(plugin, "LOG"),
        mock.patch.object(plugin.ExpertParallelPlugin, "_accelerate_mesh", return_value=mesh),
    ):
        plugin.ExpertParallelPlugin._validate_mesh_axes(cfg)
        plugin.ExpertParallelPlugin._resolve_ep_group(cfg)


def _steps(cfg):
    """For ROWS rows. None for packed and streamed data."""
    if cfg.sample_packing or cfg.streaming or cfg.pretraining_dataset or cfg.rl in {"grpo", "ebft"}:
        return ""
    data = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * ROWS, "labels": [[1, 2]] * ROWS})
    total = calculate_total_num_steps(DictDefault({**cfg, "reward_model": None}), data, update=False)
    return cfg.max_steps or total


def _streamed(cfg):
    """The micro-batch, and how many rows of `sequence_len` one row of the stream holds."""
    before = cfg.micro_batch_size
    if not cfg.sample_packing or not (cfg.streaming or cfg.pretraining_dataset):
        return before, 1
    data = mock.MagicMock(features={})
    data.shuffle.return_value = data
    streaming.wrap_streaming_dataset(data, None, cfg, None)
    keywords = data.map.call_args.args[0].keywords
    return before, keywords["batch_size"] * keywords["max_seq_length"] // cfg.sequence_len


def _trainer_arguments(cfg):
    """What axolotl's builder gives to the class of the Trainer's arguments."""

    def capture(**arguments):
        raise Captured(arguments)

    tokenizer = SimpleNamespace(chat_template="{{ messages }}", pad_token_id=0)
    builder = (HFRLTrainerBuilder if cfg.rl else HFCausalTrainerBuilder)(cfg, SimpleNamespace(), tokenizer)
    names = ["TrainingArguments", "RewardConfig", "PRMConfig", "CPOConfig", "ORPOConfig", "KTOConfig"]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(training, f"Axolotl{name}", capture))
        stack.enter_context(mock.patch.object(rl_builders, "AxolotlDPOConfig", capture))
        for strategy in (grpo.GRPOStrategy, ebft.EBFTStrategy):
            stack.enter_context(mock.patch.object(strategy, "get_training_args_class", return_value=capture))
        try:
            builder.build(1000)
        except Captured as captured:
            return captured.args[0]
    raise AssertionError("the builder made no arguments")


def _of_accelerator(arguments):
    """The accumulation and accelerate's parameters of data, as transformers' Trainer settles them."""
    args = SimpleNamespace(
        accelerator_config=arguments["accelerator_config"],
        gradient_accumulation_steps=arguments["gradient_accumulation_steps"],
    )
    kept = {}

    class Kept(Exception):
        pass

    def keep(**given):
        kept.update(given)
        raise Kept

    trainer = SimpleNamespace(args=args, _build_accelerator_args=keep)
    args.dataloader_pin_memory, args.fsdp_plugin_args, args.data_seed = False, None, None
    with contextlib.suppress(Kept):
        trainers.Trainer.create_accelerator_and_postprocess(trainer)
    if args.gradient_accumulation_steps < 1:
        raise ValueError("no micro-batch")  # range(0) in Trainer.get_batch_samples
    return args.gradient_accumulation_steps, kept["dataloader_config"]


def _mesh(cfg, world):
    """The mesh of accelerate's Accelerator, checked as it does. None without one."""
    if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") != "true":
        return None
    if cfg.context_parallel_size > 1 or (cfg.fsdp_config and str(cfg.fsdp_version) == "2"):
        patch_parallelism_config()  # as PatchManager does before it loads the model
    config = meshes.ParallelismConfig()
    kind = "DEEPSPEED" if cfg.deepspeed else "FSDP" if cfg.fsdp_config else "MULTI_GPU"
    accelerator = SimpleNamespace(
        multi_device=world > 1,
        num_processes=world,
        is_main_process=False,
        is_fsdp2=bool(cfg.fsdp_config) and str(cfg.fsdp_version) == "2",
        distributed_type=kind,
    )
    config._validate_accelerator(accelerator)
    names, sizes = config._get_mesh()
    return _Mesh(names, sizes)


class _Mesh(torch.distributed.device_mesh.DeviceMesh):
    """The names and sizes of a mesh, without processes."""

    mesh_dim_names = ()

    def __init__(self, names, sizes):
        self.mesh_dim_names, self.sizes = tuple(names), dict(zip(names, sizes, strict=True))

    def __getitem__(self, name):
        return SimpleNamespace(size=lambda: self.sizes[name])

    def __bool__(self):
        return True


def _rows_of_a_step(cfg, arguments, accumulation, params, mesh, world):
    """The different rows that all ranks read for the first step."""
    micro = arguments["per_device_train_batch_size"]
    count = micro * accumulation * world * 2
    is_packed = cfg.sample_packing and not (cfg.streaming or cfg.pretraining_dataset)
    if is_packed:
        loader = torch.utils.data.DataLoader(range(count), batch_sampler=_packs(cfg, arguments, count))
    elif cfg.streaming or cfg.pretraining_dataset:
        loader = torch.utils.data.DataLoader(_Stream(count), batch_size=micro)
    else:
        loader = torch.utils.data.DataLoader(range(count), batch_size=micro)
    kind = loading.DistributedType.DEEPSPEED if cfg.deepspeed else loading.DistributedType.MULTI_GPU
    found = set()
    for rank in range(world):
        state = SimpleNamespace(num_processes=world, process_index=rank, distributed_type=kind)
        with (
            mock.patch.object(loading, "PartialState", lambda state=state: state),
            mock.patch("accelerate.state.PartialState", lambda state=state: state),
        ):
            prepared = loading.prepare_data_loader(
                loader,
                split_batches=bool(params.split_batches),
                dispatch_batches=False,
                put_on_device=False,
                even_batches=not is_packed,
                torch_device_mesh=mesh,
            )
        found |= set(_first(prepared, micro, accumulation))
    return len(found)


def _first(prepared, micro, accumulation):
    """The numbers of the rows in the first `accumulation` micro-batches of a rank."""
    if prepared.batch_sampler is None or isinstance(prepared.dataset, torch.utils.data.IterableDataset):
        numbers = iter(prepared.dataset)
        return [next(numbers) for _ in range(micro * accumulation)]
    batches = iter(prepared.batch_sampler)
    return [number for _ in range(accumulation) for number in _flat(next(batches))]


def _flat(batch):
    return [number for each in batch for number in (each if isinstance(each, list) else [each])]


class _Stream(torch.utils.data.IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))


def _packs(cfg, arguments, count):
    """axolotl's own sampler of packs, for rows that are as long as a pack."""
    args = SimpleNamespace(
        multipack_real_batches=arguments["multipack_real_batches"],
        per_device_train_batch_size=arguments["per_device_train_batch_size"],
        max_seq_length=arguments["max_seq_length"],
        sample_packing_efficiency=1.0,
        sample_packing_group_size=arguments.get("sample_packing_group_size", 100_000),
        sample_packing_bin_size=arguments.get("sample_packing_bin_size", 200),
        sample_packing_sequentially=arguments.get("sample_packing_sequentially", False),
        dataset_num_proc=1,
        sample_packing_mp_start_method=None,
    )
    trainer = SimpleNamespace(args=args, state=SimpleNamespace(train_batch_size=None))
    data = datasets.Dataset.from_dict({"length": [cfg.sequence_len] * count})
    return AxolotlTrainer._create_multipack_sampler(trainer, torch.utils.data.SequentialSampler(range(count)), data)


assert TrainingArguments  # imported early: axolotl's validation looks it up
if __name__ == "__main__":
    raise SystemExit(main())
