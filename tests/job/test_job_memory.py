"""What a job needs of a GPU: its longest sample, the largest micro-batch that fits, and refusals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.files.job_file import read_job
from planner.job import Job, batch_sizes
from planner.job.memory import (
    gpu_need,
    job_memory,
    largest_micro,
    largest_tokens,
    least_need,
    micro_batches,
    needs_second_model,
    refusal,
    sample_size,
)
from planner.plan import make_plan
from planner.plan.memory import Footprint, Live, Pass, SampleSize, Unit, Units
from planner.plan.plan import ceil_div

GB = 10**9


def make_job(**sections):
    return Job.model_validate(
        {
            "name": "memory",
            "model": {"kind": "gpt", "layers": 2, "width": 8, "heads": 2, "context": 16},
            "data": {"kind": "text", "path": "corpus"},
            "batch": {"global": 64, "max_micro": 8},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            **sections,
        }
    )


def hf(**model):
    return {"kind": "hf", "path": "models/one", "context": 512, **model}


def of_gigabytes(per_sample, state=16):
    """A model whose state takes so many GB on one worker, and a sample as many."""
    unit = Unit(trained=state * GB // 16, frozen_bytes=0, gathered_bytes=0)

    def live(count):
        return Live(peak=round(per_sample * count * GB), end=0)

    def passes(count):
        return Pass(forward=live(count), loss=live(0), blocks=(live(0),), end=live(0))

    return Footprint(
        units=Units(rest=unit, blocks=(Unit(trained=0, frozen_bytes=0, gathered_bytes=0),)),
        reference=None,
        sample=SampleSize(rows=1, tokens=16, is_summed=True),
        measured=((1, passes(1)), (2, passes(2))),
    )


@given(share=st.integers(1, 5000), most=st.integers(1, 4096))
def test_each_size_of_a_micro_batch_saves_a_round(share, most):
    """They fall, end with one sample, and each is the least for its number of rounds."""
    sizes = list(micro_batches(share, most))
    assert sizes[0] <= most
    assert ceil_div(share, sizes[0]) == ceil_div(share, most)
    assert sizes[-1] == 1
    assert sizes == sorted(set(sizes), reverse=True)
    rounds = [ceil_div(share, size) for size in sizes]
    assert rounds == sorted(set(rounds))
    assert all(
        ceil_div(share, size) == size or ceil_div(share, size - 1) > ceil_div(share, size) for size in sizes[1:-1]
    )


@given(per_sample=st.floats(0.1, 40), world_size=st.integers(1, 64), gigabytes=st.integers(8, 180))
def test_the_largest_micro_batch_fits_and_the_next_does_not(per_sample, world_size, gigabytes):
    """At every number of workers."""
    job = make_job()
    found, room = job_memory(job, of_gigabytes(per_sample), "cuda"), gigabytes * GB

    def need(size):
        return gpu_need(found, make_plan(replace(batch_sizes(job), max_micro=size), world_size), room).total

    most = largest_micro(found, batch_sizes(job), world_size, room)
    sizes = list(micro_batches(ceil_div(64, world_size), 64))
    assert most in {0, *sizes}
    assert all(need(size) > room for size in sizes if size > most)
    assert not most or need(most) <= room


@given(
    slopes=st.lists(st.floats(0, 4), min_size=2, max_size=3),
    state=st.integers(1, 64),
    global_batch=st.integers(1, 20_000),
    world_size=st.integers(1, 64),
    gigabytes=st.integers(1, 180),
    equality=st.sampled_from(["balanced", "bitwise"]),
)
def test_half_of_the_sizes_are_left_out_at_each_look(slopes, state, global_batch, world_size, gigabytes, equality):
    """And what is found is what a look at each size finds, also where a single round needs no sums."""
    job = make_job(batch={"global": global_batch, "max_micro": 8, "equality": equality})
    found = job_memory(job, of_gigabytes(1, state), "cuda")
    measured, total = [], 0.0
    for count, slope in enumerate(slopes, 1):
        total += slope
        measured.append((count, replace(found.found.measured[0][1], loss=Live(peak=round(total * GB), end=0))))
    found = replace(found, found=replace(found.found, measured=tuple(measured)))
    sizes, room = batch_sizes(job), gigabytes * GB

    def need(size):
        return gpu_need(found, make_plan(replace(sizes, max_micro=size), world_size), room).total

    share = make_plan(replace(sizes, max_micro=4096), world_size).step_cost
    needs = {size: need(size) for size in micro_batches(share, 4096)}
    assert largest_micro(found, sizes, world_size, room) == next(
        (size for size, needed in needs.items() if needed <= room), 0
    )
    assert least_need(found, sizes, world_size, room).total == min(needs.values())


def test_what_a_gpu_needs_beside_tensors():
    """cuBLAS, CUDA, what the allocator cannot use, and NCCL where there are several."""
    found = job_memory(make_job(), of_gigabytes(1), "cuda")
    one, two = (gpu_need(found, make_plan(batch_sizes(make_job()), count), 80 * GB) for count in (1, 2))
    assert one.total == one.tensors.peak_bytes + one.workspace + one.slack + one.outside
    assert two.outside == one.outside + 2**30
    host = gpu_need(job_memory(make_job(), of_gigabytes(1), "cpu"), make_plan(batch_sizes(make_job()), 1), 80 * GB)
    assert (host.workspace, host.outside) == (0, 0)


def test_the_longest_sample():
    """A pair has two rows. Only losses that are linear in log-probabilities sum them at once."""
    assert sample_size(make_job()) == SampleSize(rows=1, tokens=16, is_summed=True)
    pairs = {"data": {"kind": "pairs", "path": "rows"}, "model": hf()}
    dpo = make_job(**pairs, objective={"kind": "dpo", "beta": 0.1})
    assert sample_size(dpo) == SampleSize(rows=2, tokens=512, is_summed=False)


@pytest.mark.parametrize(
    ("objective", "model", "expected"),
    [
        ({"kind": "dpo", "beta": 0.1}, {}, True),
        ({"kind": "dpo", "beta": 0.1, "reference": "cached"}, {}, False),
        ({"kind": "dpo", "beta": 0.1, "reference": "none"}, {}, False),
        ({"kind": "dpo", "beta": 0.1}, {"lora": {}}, False),
        ({"kind": "dpo", "beta": 0.1, "reference_model": "models/two"}, {"lora": {}}, True),
        ({"kind": "simpo", "beta": 2.0}, {}, False),
    ],
)
def test_who_holds_a_second_model(objective, model, expected):
    """A cached reference and adapters need none."""
    job = make_job(data={"kind": "pairs", "path": "rows"}, model=hf(**model), objective=objective)
    assert needs_second_model(job) == expected


def test_a_refusal_names_the_nearest():
    """The three counts that lack the least."""
    found = job_memory(make_job(), of_gigabytes(1, state=400), "cuda")
    said = refusal(found, batch_sizes(make_job()), range(1, 9), "l4-24g", 24 * GB)
    assert said.startswith("one sample does not fit into l4-24g (24.0 GB): 8 GPUs lack 135.5 GB each")
    assert [word for word in said.split() if word in "876"] == ["8", "7", "6"]


def test_auto_is_for_jobs_whose_bits_and_models_planner_knows():
    """Not for `bitwise`, and not for a user's own loop."""
    assert batch_sizes(make_job(batch={"global": 24, "max_micro": "auto"})).max_micro == 24
    with pytest.raises(ValueError, match="with equality bitwise the bits follow from max_micro"):
        make_job(batch={"global": 24, "max_micro": "auto", "equality": "bitwise"})
    own = {"model": {"kind": "own"}, "data": {"kind": "own", "path": "loop.py"}, "objective": {"kind": "own"}}
    with pytest.raises(ValueError, match="your loop makes the model"):
        make_job(**own, batch={"global": 24, "max_micro": "auto"}, train={"steps": 1, "optimizer": {"kind": "own"}})
    with pytest.raises(ValueError, match="max_micro"):
        make_job(batch={"global": 24, "max_micro": "automatic"})


def test_the_word_is_read_from_a_job_file(tmp_path):
    """As any other value."""
    text = load_text(tmp_path)
    assert read_job(text, ["batch.max_micro=auto"]).batch.max_micro == "auto"
    assert read_job(text, ["batch.max_micro=3"]).batch.max_micro == 3


def load_text(folder):
    file = folder / "job.yaml"
    file.write_text(
        "name: one\nmodel: {kind: gpt, layers: 1, width: 8, heads: 2, context: 8}\ndata: {kind: text, path: corpus}\n"
        "batch: {global: 8, max_micro: 2}\ntrain: {steps: 1, optimizer: {kind: adamw, lr: 0.001}}\n"
    )
    return file


@given(
    per_sample=st.floats(0.1, 40),
    world_size=st.integers(1, 64),
    gigabytes=st.integers(8, 180),
    longest=st.integers(1, 16),
    most=st.integers(1, 16),
    max_micro=st.integers(1, 70),
    mask=st.integers(0, 10**6),
)
def test_the_largest_cap_on_tokens_fits_and_the_next_does_not(
    per_sample, world_size, gigabytes, longest, most, max_micro, mask
):
    """It is what a search of all caps finds, between the longest sample and a share of such."""
    job = make_job(batch={"global": 64, "max_micro": max_micro, "max_tokens": "auto"})
    room = gigabytes * GB
    found = job_memory(job, of_gigabytes(per_sample), "cuda", longest * 64)
    found = replace(found, mask_bytes_per_square=mask)
    sizes = replace(batch_sizes(job), max_tokens=longest * 64 * most)

    def need(tokens):
        return gpu_need(found, make_plan(replace(sizes, max_tokens=tokens), world_size), room).total

    bound = longest * 64 * min(max_micro, ceil_div(64, world_size), most)
    fitting = [tokens for tokens in range(longest * 64, bound + 1, 64) if need(tokens) <= room]
    assert largest_tokens(found, sizes, world_size, room) == max(fitting, default=0)


@pytest.mark.parametrize(("gigabytes", "tokens"), [(50, 300), (49.9, 256), (40, 192), (33, 128), (32, 100), (29, 0)])
def test_a_cap_on_tokens_is_readable(gigabytes, tokens):
    """A multiple of 64, or one of its bounds: here three samples of 100 tokens, each of which takes 0.1 GB."""
    job = make_job(batch={"global": 3, "max_micro": "auto", "max_tokens": "auto"})
    found = job_memory(job, of_gigabytes(1.6), "cpu", 100)
    # State, sums and the buffer of the round before take 20 GB, and a CPU needs twice as much.
    assert largest_tokens(found, replace(batch_sizes(job), max_tokens=1000), 1, round(2 * gigabytes * GB)) == tokens


def test_a_micro_batch_by_length_holds_no_more_than_its_samples():
    """With few samples, a high cap on tokens takes no memory."""
    needs = []
    for batch in ({"max_micro": 2}, {"max_micro": 64, "max_tokens": 32}, {"max_micro": 2, "max_tokens": 10**6}):
        job = make_job(batch={"global": 64, **batch})
        found = job_memory(job, of_gigabytes(10), "cuda")
        needs.append(gpu_need(found, make_plan(batch_sizes(job), 1), 80 * GB).tensors.items.activations)
    assert needs == pytest.approx([20 * GB] * 3)  # and the mask of a row


@pytest.mark.parametrize(
    ("sections", "longest", "rows", "tokens"),
    [
        ({"data": {"kind": "chat", "path": "rows"}, "objective": {"kind": "sft"}}, 100, 1, 128),
        ({"data": {"kind": "chat", "path": "rows"}, "objective": {"kind": "sft"}}, 128, 1, 128),
        ({"data": {"kind": "chat", "path": "rows"}, "objective": {"kind": "sft"}}, 510, 1, 512),
        ({"data": {"kind": "chat", "path": "rows"}, "objective": {"kind": "sft"}}, None, 1, 512),
        # The other completion is padded to the longer one, which may have nearly all tokens of the pair.
        ({"data": {"kind": "pairs", "path": "rows"}, "objective": {"kind": "ipo"}}, 300, 2, 320),
        ({"data": {"kind": "pairs", "path": "rows"}, "objective": {"kind": "ipo"}}, 900, 2, 512),
        ({"data": {"kind": "feedback", "path": "rows"}, "objective": {"kind": "kto"}}, 100, 1, 512),
    ],
)
def test_the_longest_sample_of_the_data(sections, longest, rows, tokens):
    """Its length is rounded up, at most to the context. Completions of partners may be as long as that."""
    found = sample_size(make_job(model=hf(context=512), **sections), longest)
    assert (found.rows, found.tokens) == (rows, tokens)


def test_the_longest_pair_by_length():
    """Without padding, both completions together have its tokens."""
    batch = {"global": 64, "max_micro": 8, "max_tokens": 2048}
    job = make_job(model=hf(), data={"kind": "pairs", "path": "rows"}, objective={"kind": "ipo"}, batch=batch)
    assert sample_size(job, 300).tokens == 192
