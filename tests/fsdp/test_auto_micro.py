"""`auto` caps on real workers: what fits is found by each group, and the training is the same."""

from dataclasses import replace

import pytest
from sample_sets import write_rows
from verifiers import audited, run_script
from worker_functions import make_job, records, run_job

from planner.data.longest import longest_sample
from planner.data.measured_memory import memory_of
from planner.errors import UserError
from planner.job import batch_sizes
from planner.job.memory import gpu_need
from planner.plan import BatchSizes, make_plan
from planner.plan.lowered_caps import Caps, LoweredCap, LoweredCaps
from planner.provenance.identity import open_data
from planner.train import auto_micro
from planner.train.footprint import footprint
from planner.train.generation import train
from planner.train.hooks import Hooks
from planner.train.setup import Launch
from planner.train.world import cpu_device

pytestmark = pytest.mark.fsdp


def with_room(rank, num_bytes, *arguments):
    """A generation whose workers have so much memory each."""
    plain = auto_micro._device_bytes
    auto_micro._device_bytes = lambda world: num_bytes + world.rank  # the least of them counts
    try:
        return run_job(rank, *arguments)
    finally:
        auto_micro._device_bytes = plain


def auto_job(texts, **more):
    return make_job(texts, global_batch=12, max_micro="auto", **more)


def room_for(job, samples, world_size):
    """Bytes in which a micro-batch of so many samples fits, and none that saves another round."""
    sizes = batch_sizes(job)
    plan = make_plan(BatchSizes(global_batch=sizes.global_batch, max_micro=samples), world_size)
    return gpu_need(memory_of(job, "cpu", footprint), plan, 0).total


def test_each_group_finds_what_fits(workers, texts, tmp_path):
    """Two workers with room for 3 samples each, then three with room for their whole share. Audits are clean."""
    job, url = auto_job(texts), str(tmp_path / "run")
    workers.run(with_room, 2, room_for(job, 3, 2), job, url, 3)
    workers.run(with_room, 3, room_for(job, 4, 3), job, url)
    assert [(each["world_size"], each["max_micro"]) for each in records(url, "generation")] == [(2, 3), (3, 4)]
    told = [each["facts"] for each in records(url, "event") if each["event"] == "micro_batch_fitted"]
    assert [each["max_micro"] for each in told] == [3, 4]
    assert all(each["needed_bytes"] <= each["device_bytes"] and each["device"] == "CPU" for each in told)
    assert audited(url).findings == ()
    code, output = run_script(url)
    assert code == 0, output


def test_it_trains_as_with_the_number(workers, texts, tmp_path):
    """The same losses to the bit."""
    urls = [str(tmp_path / name) for name in ("auto", "number")]
    job = auto_job(texts)
    workers.run(with_room, 2, room_for(job, 2, 2), job, urls[0])
    workers.run(run_job, 2, make_job(texts, global_batch=12, max_micro=2), urls[1])
    losses = [[record["loss"] for record in records(url)] for url in urls]
    assert losses[0] == losses[1]


def test_no_room_for_one_sample_is_refused_on_every_worker(workers, texts, tmp_path):
    """With the counts that come nearest, and what to try. Nothing is trained."""
    job, url = auto_job(texts, workers={"max": 2}), str(tmp_path / "run")
    with pytest.raises(UserError, match=r"one sample does not fit into CPU .*1 GPU lacks .* Try, in this order: train"):
        workers.run(with_room, 1, 1000, job, url)


def test_more_workers_that_would_fit_are_named(workers, texts, tmp_path):
    """Weights and optimizer state are divided among them."""
    job, url = auto_job(texts), str(tmp_path / "run")
    room = room_for(job, 1, 3)
    assert room < room_for(job, 1, 1)
    with pytest.raises(UserError, match=r"with 3 it does. Write workers.min: 3"):
        workers.run(with_room, 1, room, job, url)


def token_job(folder, **batch):
    """Samples of up to 24 tokens. The longest one has fewer, so that memory of less than the context may do."""
    return make_job(
        "",
        steps=5,
        data={"kind": "chat", "path": write_rows(folder / "rows.jsonl", "chat")},
        model={"context": 64},
        objective={"kind": "sft"},
        eval={"samples": 5, "every": 2},
        batch={"global": 11, "max_micro": "auto", "max_tokens": "auto", **batch},
    )


def room_for_tokens(job, tokens, world_size):
    """Bytes in which a micro-batch of so many tokens fits, and no larger one."""
    memory = memory_of(job, "cpu", footprint, longest=longest_of(job))
    return gpu_need(memory, make_plan(replace(batch_sizes(job), max_tokens=tokens), world_size), 0).total


def longest_of(job):
    return longest_sample(job, open_data(job)[0])


def test_each_group_finds_how_many_tokens_fit(workers, tmp_path):
    """Two workers with room for 64 tokens each, then one with room for the longest sample, then two for their share."""
    job, url = token_job(tmp_path), str(tmp_path / "run")
    longest = longest_of(job)
    assert longest < 64
    for world_size, tokens, stop in ((2, 64, 2), (1, longest, 4), (2, 6 * longest, None)):
        workers.run(with_room, world_size, room_for_tokens(job, tokens, world_size), job, url, stop)
    headers = records(url, "generation")
    assert [(each["world_size"], each["max_tokens"]) for each in headers] == [(2, 64), (1, longest), (2, 6 * longest)]
    assert {each["max_micro"] for each in headers} == {11}
    told = [each for each in records(url, "event") if each["event"] == "micro_batch_fitted"]
    assert [each["facts"]["max_tokens"] for each in told] == [64, longest, 6 * longest]
    assert told[0]["message"].startswith("micro-batches have at most 64 tokens (auto): ")
    assert audited(url).findings == ()
    code, output = run_script(url)
    assert code == 0, output


def test_it_trains_as_with_the_number_of_tokens(workers, tmp_path):
    """The same losses to the bit. A cap on samples that is a number stays one."""
    losses = []
    for name, tokens in (("auto", "auto"), ("number", 64)):
        job, url = token_job(tmp_path, max_micro=4, max_tokens=tokens), str(tmp_path / name)
        workers.run(with_room, 2, room_for_tokens(job, 64, 2), job, url)
        (header,) = records(url, "generation")
        assert (header["max_micro"], header["max_tokens"]) == (4, 64)
        losses.append([record["loss"] for record in records(url)])
    assert losses[0] == losses[1]


def test_no_room_for_the_longest_sample_is_refused(workers, tmp_path):
    """The setting is named. A higher cap does not help, so it is not advised to lower one."""
    job, url = token_job(tmp_path), str(tmp_path / "run")
    with pytest.raises(
        UserError, match=r"batch.max_tokens auto: with 1 workers one micro-batch .* with 3 it does"
    ) as one:
        workers.run(with_room, 1, room_for_tokens(job, longest_of(job), 3), job, url)
    with pytest.raises(UserError, match=r"batch.max_tokens auto: one sample does not fit into CPU") as none:
        workers.run(with_room, 1, 1000, job, url)
    assert not any("Lower batch.max_tokens" in str(error.value) for error in (one, none))


def test_a_gpu_that_is_too_small_is_told_how_to_find_a_way_out(texts):
    """Workers measure no other models. How many GPUs would do is arithmetic."""
    job = auto_job(texts, workers={"max": 2})
    memory = memory_of(job, "cuda", footprint)
    room = 2**30 * 3
    large = replace(memory.found.units.blocks[0], trained=10**9)
    units = replace(memory.found.units, blocks=(large,) * len(memory.found.units.blocks))
    memory = replace(memory, found=replace(memory.found, units=units))
    said = (
        r"one sample does not fit into NVIDIA L4 .*2 GPUs lack .* planner plan JOB --gpu 3g tries settings one by one"
    )
    with pytest.raises(UserError, match=said):
        auto_micro._fitting(job, memory, batch_sizes(job), 2, "NVIDIA L4", room)
    with pytest.raises(UserError, match=r"With 2 GPUs \(workers.max: 2\) it fits\. planner plan JOB --gpu 20g tries"):
        auto_micro._fitting(auto_job(texts, workers={"max": 1}), memory, batch_sizes(job), 1, "NVIDIA L4", 20 * 2**30)


def lowered(_rank, job, url, caps):
    """A generation of a run that has lowered its caps."""
    return train(Launch(job=job, url=url), cpu_device, Hooks(caps=lambda: caps))


@pytest.mark.parametrize("most", ["auto", 200])
def test_samples_that_are_longer_than_a_lowered_cap_are_refused_at_the_start(workers, tmp_path, most):
    """The data may be another one than when memory ran out. An evaluation after hours would be late to find it."""
    job, url = token_job(tmp_path, max_tokens=most), str(tmp_path / "run")
    longest, of = longest_of(job), Caps.of(batch_sizes(job))
    now = Caps(max_micro=5, max_tokens=longest - 1)
    caps = LoweredCaps(of=of, lowered=(LoweredCap(device="CPU", place="forward", was=of, now=now),))
    said = rf"the longest sample has {longest} tokens, and a micro-batch takes {longest - 1} .* at least {longest}"
    with pytest.raises(UserError, match=said):
        workers.run(lowered, 1, job, url, caps)
    fitting = replace(caps.lowered[0], now=replace(now, max_tokens=longest))
    workers.run(lowered, 1, job, url, replace(caps, lowered=(fitting,)))
    assert [each["max_tokens"] for each in records(url, "generation")] == [longest]
