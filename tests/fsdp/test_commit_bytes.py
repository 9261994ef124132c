"""The bytes of a commit, as `planner plan` says them, against the state that real workers hold and write."""

import pytest
import torch
from worker_functions import TINY, make_job, newest_commit, run_job

from planner.data.model_folder import ModelFolder
from planner.job import GptModel, HfModel, Train
from planner.job.model import gpt_shapes
from planner.job.optimizer import optimizer_tensors
from planner.plan.commit_size import CommitSize
from planner.runner.commit_size import commit_size
from planner.train.shard import hf_shapes

pytestmark = pytest.mark.fsdp

INPUTS = torch.arange(48).view(3, 16) * 7 % 256
ADAMW, RMSPROP, SGD, MOMENTUM = (
    {"kind": "adamw", "lr": 1e-3},
    {"kind": "rmsprop", "lr": 1e-3},
    {"kind": "sgd", "lr": 1e-3},
    {"kind": "sgd", "lr": 1e-3, "momentum": 0.5},
)


def bytes_held(_rank, cases):
    """The bytes of this worker's shards of the state after one step, for each case."""
    from planner.train.collectives import shard_of
    from planner.train.exact.gradient_sums import FixedPointSums, FloatSums
    from planner.train.optimize import make_optimizer
    from planner.train.shard import make_model
    from planner.train.state import TrainState
    from planner.train.world import World, cpu_device

    world, found = World.join(cpu_device), []
    for config, train, is_bitwise in cases:
        model = make_model(found_model(config), train, world)
        sums = FixedPointSums(model, world, 4, "sharded") if is_bitwise else FloatSums(model)
        state = TrainState.of(model, make_optimizer(train.optimizer, model), sums, only_trained=True)
        sums.begin()
        sums.last_round()
        model(INPUTS).sum().backward()
        sums.settle()
        state.step()
        found.append(sum(shard_of(tensor).nbytes for tensor in state.tensors().values()))
    return found


def found_model(config):
    return ModelFolder.find(config) if isinstance(config, HfModel) else config


def expected(config, train, is_bitwise):
    shapes = hf_shapes(found_model(config)) if isinstance(config, HfModel) else gpt_shapes(config)
    return CommitSize(shapes=shapes, optimizer=optimizer_tensors(train.optimizer), is_bitwise=is_bitwise)


def test_workers_hold_the_copy_that_the_dry_run_shows(workers, tiny_model):
    """To the byte, on every rank of 1, 2 and 3 workers. No dimension of these models is a multiple of 3."""
    gpt = GptModel.model_validate({**TINY, "context": 23})
    tied = gpt.model_copy(update={"tied_embeddings": True})
    hf = HfModel.model_validate({"kind": "hf", "path": str(tiny_model("qwen2")), "context": 24})
    adapters = HfModel.model_validate({**hf.model_dump(), "lora": {"rank": 3}})
    neox = HfModel.model_validate({"kind": "hf", "path": str(tiny_model("gpt_neox")), "context": 24})
    cases = [
        (config, Train.model_validate({"steps": 1, "optimizer": optimizer, **more}), is_bitwise)
        for config, optimizer, more, is_bitwise in [
            (gpt, ADAMW, {}, False),
            (gpt, ADAMW, {"precision": "bf16"}, False),
            (gpt, RMSPROP, {}, False),
            (gpt, SGD, {}, False),
            (gpt, MOMENTUM, {}, False),
            (gpt, ADAMW, {}, True),
            (tied, ADAMW, {}, False),
            (hf, ADAMW, {}, False),
            (hf, ADAMW, {}, True),
            (adapters, ADAMW, {}, False),
            (adapters, ADAMW, {}, True),
            (neox, ADAMW, {}, False),
        ]
    ]
    sizes = [expected(*case) for case in cases]
    for world_size in (1, 2, 3):
        for rank, held in enumerate(workers.run(bytes_held, world_size, cases)):
            assert held == [size.worker_bytes(world_size, rank) for size in sizes], (world_size, rank)


def test_files_are_little_larger_than_the_state(workers, texts, tmp_path):
    """Each tensor of each worker has a header in the files. What is said is never more than what is written."""
    job = make_job(texts, steps=2, model={"layers": 3, "width": 96, "heads": 4})
    workers.run(run_job, 2, job, str(tmp_path))
    written = sum(file.stat().st_size for file in newest_commit(tmp_path).iterdir())
    size = commit_size(job, may_build=False)
    num_shards = 2 * 3 * size.shapes.num_tensors + size.shapes.num_tensors
    assert size.state_bytes < written < size.state_bytes + 3000 * num_shards
    print(written - size.state_bytes, (written - size.state_bytes) / num_shards)  # pytest -rP shows it
