"""Several workers on one GPU: tensors pass through the CPU. Here the GPU is the CPU too, and the copies are real."""

import hashlib

import pytest
import torch
from test_bitwise import bitwise_job, result
from worker_functions import run_job

pytestmark = pytest.mark.fsdp


def staged(work):
    """Do it as if gloo were all that there is for this device; the name of what was staged, too."""
    from planner.train import collectives, world

    names = []
    before = collectives.is_staged, world.needs_staging, collectives._AllGather.__call__
    collectives.is_staged = lambda *_: True
    world.needs_staging = lambda *_: True
    collectives._AllGather.__call__ = lambda self, *tensors, **named: (
        names.append("gather") or before[2](self, *tensors, **named)
    )
    try:
        return work(), len(names)
    finally:
        collectives.is_staged, world.needs_staging, collectives._AllGather.__call__ = before


def run_staged(rank, job, url):
    return staged(lambda: run_job(rank, job, url))


@pytest.mark.parametrize("equality", ["bitwise", "balanced"])
@pytest.mark.parametrize("settings", [{}, {"train": {"precision": "bf16"}}], ids=["fp32", "bf16"])
def test_the_way_through_the_cpu_changes_nothing(workers, texts, tmp_path, equality, settings):
    """The same bits at the same world size; for `bitwise`, at every one: weights, losses, norms, held-out losses."""
    job = bitwise_job(texts, steps=3, equality=equality, **settings)
    sizes = (1, 2, 3) if equality == "bitwise" and not settings else (2,)
    workers.run(run_job, 2, job, str(tmp_path / "plain"))
    for size in sizes:
        answers = workers.run(run_staged, size, job, str(tmp_path / str(size)))
        assert all(gathers > 0 or size == 1 for _, gathers in answers)
        assert as_close(result(tmp_path / str(size)), equality) == as_close(result(tmp_path / "plain"), equality)


def as_close(found, equality):
    """All bits; without fixed point the norm is summed in another order, so it and what follows from it are rounded."""
    if equality == "bitwise":
        return found
    _, steps, held_out = found
    return (
        [(step, round(loss, 4), round(norm, 4), check_sum) for step, loss, norm, check_sum in steps],
        [(step, round(loss, 4)) for step, loss in held_out],
    )


def test_one_worker_gathers_all_rows(workers):
    """Of awkward numbers of rows, on more workers than rows too: what DTensor's own way gives. The others get None."""
    for size in (2, 3, 5):
        for own, ours in workers.run(gathered, size):
            assert own == ours


def gathered(rank):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from planner.train.collectives import whole_on

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    own, ours = [], []
    for number, shape in enumerate([(1,), (2, 3), (4,), (7, 2, 2), (10, 1)]):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            tensor = (torch.arange(torch.Size(shape).numel()).view(shape) + number).to(dtype)
            sharded = distribute_tensor(tensor, mesh, [Shard(0)])
            own.append(digest(sharded.full_tensor()))
            wholes = [whole_on(sharded, owner, mesh.get_group()) for owner in range(dist.get_world_size())]
            ours += [digest(whole) for owner, whole in enumerate(wholes) if owner == rank]
            assert [whole is None for whole in wholes] == [owner != rank for owner in range(dist.get_world_size())]
    return own, ours


def digest(tensor):
    return tensor.dtype, tuple(tensor.shape), hashlib.sha256(tensor.view(-1).view(torch.uint8).numpy()).hexdigest()
