"""What a job that does not fit may change: the order of settings, how many models are measured, and more GPUs."""

from dataclasses import replace

import pytest
from test_job_memory import GB, hf, make_job, of_gigabytes

from planner.job import batch_sizes
from planner.job.memory import gpu_need, job_memory
from planner.job.ways_out import Misfit, changes, combinations, ways_out
from planner.plan import make_plan
from planner.plan.commit_size import NotKnown
from planner.plan.memory import Unit, Units

BF16, SELECTIVE, WHOLE = (
    "train.precision: bf16",
    "train.activation_checkpointing: selective",
    "train.activation_checkpointing: true",
)


def sft(**sections):
    return make_job(model=hf(), data={"kind": "chat", "path": "rows"}, objective={"kind": "sft"}, **sections)


def train(**settings):
    return {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}, **settings}


def batch(**settings):
    return {"global": 64, "max_micro": 1, **settings}


def of_blocks(gigabytes, state, num_blocks=40):
    """A sample takes so many GB, and the state of one worker `state` GB, in equal blocks."""
    found = of_gigabytes(gigabytes)
    block = Unit(trained=state * GB // 16 // num_blocks, frozen_bytes=0, gathered_bytes=0)
    passes = tuple((count, replace(each, blocks=each.blocks * num_blocks)) for count, each in found.measured)
    return replace(found, units=Units(rest=replace(block, trained=0), blocks=(block,) * num_blocks), measured=passes)


class Gauge:
    """Measures changed jobs: GB of a sample by the change, and counts them."""

    def __init__(self, **saved):
        self.asked, self._saved = [], saved

    def __call__(self, change):
        self.asked.append(change.text)
        gigabytes = 100.0
        for name, part in self._saved.items():
            if name in change.text.replace(": ", "_").replace(".", "_"):
                if part is None:
                    return NotKnown(reason="no")
                gigabytes *= part
        return job_memory(change.job, of_gigabytes(gigabytes), "cuda")


def tried(job, gauge, *, world_size=2, gigabytes=80, memory=None):
    memory = memory or job_memory(job, of_gigabytes(100), "cuda")
    misfit = Misfit(job=job, sizes=batch_sizes(job), world_size=world_size, num_bytes=gigabytes * GB)
    return ways_out(misfit, memory, gauge).tried


def test_the_order_of_settings():
    """Numerics first, then more computing, then fewer trained weights. What a job has already is left out."""
    assert [each.text for each in changes(sft())] == [BF16, SELECTIVE, WHOLE, "model.lora"]
    assert [each.text for each in changes(make_job())] == [BF16, SELECTIVE, WHOLE]
    job = sft(train=train(precision="bf16", activation_checkpointing="selective"))
    assert [each.text for each in changes(job)] == [WHOLE, "model.lora"]
    adapted = make_job(
        model=hf(lora={}), data={"kind": "chat", "path": "rows"}, objective={"kind": "sft"}, train=train()
    )
    assert [each.text for each in changes(adapted)] == [BF16, SELECTIVE, WHOLE, "model.frozen: nf4"]


def test_each_change_is_one_of_the_job():
    """All else stays."""
    job = sft()
    (bf16, *_, lora) = changes(job)
    assert bf16.job == job.model_copy(update={"train": job.train.model_copy(update={"precision": "bf16"})})
    assert lora.job.model.lora is not None
    assert lora.job.model_copy(update={"model": job.model}) == job


def test_joined_settings():
    """Each has one more. The stronger checkpointing replaces the weaker one."""
    assert [each.text for each in combinations(sft())] == [
        f"{BF16} + {SELECTIVE}",
        f"{BF16} + {WHOLE}",
        f"{BF16} + {WHOLE} + model.lora",
        f"{BF16} + {WHOLE} + model.lora + model.frozen: nf4",
    ]


def test_jobs_that_cannot_be_are_left_out():
    """Four bits cannot be compiled."""
    job = sft(train=train(precision="bf16", activation_checkpointing=True, compile="blocks"))
    assert [each.text for each in combinations(job)] == []
    assert [each.text for each in changes(job)] == ["model.lora"]


def test_nothing_is_measured_where_a_smaller_micro_batch_fits():
    """It changes no result. More GPUs are arithmetic, too."""
    job, gauge = sft(batch=batch(max_micro=8)), Gauge()
    found = tried(job, gauge, memory=job_memory(job, of_gigabytes(12), "cuda"))
    assert [(way.change, way.fits) for way in found] == [
        ("batch.max_micro: 5", True),
        ("7 GPUs", True),
    ]
    assert gauge.asked == []


def test_the_first_setting_that_fits_is_the_last_that_is_measured():
    """With what each needs."""
    gauge = Gauge(selective=0.5)
    found = tried(sft(batch=batch()), gauge)
    assert gauge.asked == [BF16, SELECTIVE]
    assert [(way.change, way.fits) for way in found] == [(BF16, False), (SELECTIVE, True), ("16 GPUs", False)]
    assert [way.needed_bytes > 80 * GB for way in found] == [True, False, True]
    assert [way.world_size for way in found] == [2, 2, 16]


def test_settings_that_fit_only_together():
    """Each alone, then the first that fit. Combinations on the way are not told."""
    gauge = Gauge(bf16=0.8, true=0.8)
    found = tried(sft(batch=batch()), gauge)
    both = f"{BF16} + {WHOLE}"
    assert gauge.asked == [BF16, SELECTIVE, WHOLE, "model.lora", f"{BF16} + {SELECTIVE}", both]
    assert [(way.change, way.fits) for way in found[:-1]] == [
        (BF16, False),
        (SELECTIVE, False),
        (WHOLE, False),
        ("model.lora", False),
        (both, True),
    ]


def test_all_settings_and_what_to_add():
    """Smaller micro-batches, else more GPUs."""
    job = sft(batch=batch(max_micro=2))
    everything = f"{BF16} + {WHOLE} + model.lora + model.frozen: nf4"
    found = tried(job, Gauge(nf4=0.45))
    assert [way.change for way in found[4:]] == [
        everything,
        f"{everything} + batch.max_micro: 1",
        "batch.max_micro: 1",
        "16 GPUs",
    ]
    assert [way.fits for way in found[4:]] == [False, True, False, False]
    none = tried(sft(batch=batch()), Gauge())
    assert [way.change for way in none[4:]] == [everything, f"{everything} on 16 GPUs", "16 GPUs"]
    assert not any(way.fits for way in none)


def test_models_that_cannot_be_measured_are_passed_over():
    """Their need is not known. What comes before them is joined with what comes after."""
    found = tried(sft(batch=batch()), Gauge(lora=None))
    assert [(way.change, way.needed_bytes is None) for way in found[3:]] == [
        ("model.lora", True),
        (f"{BF16} + {WHOLE} + model.lora + model.frozen: nf4", True),
        (f"{BF16} + {WHOLE} on 16 GPUs", False),
        ("16 GPUs", False),
    ]


@pytest.mark.parametrize(
    ("global_batch", "expected", "fits"), [(64, "5 GPUs", True), (4, "4 GPUs", False), (2, None, False)]
)
def test_the_fewest_gpus(global_batch, expected, fits):
    """None below fit. More than samples help nothing."""
    job = make_job(batch=batch(**{"global": global_batch}), workers={"max": 64})
    memory, sizes = job_memory(job, of_blocks(10, state=320), "cuda"), batch_sizes(job)
    misfit = Misfit(job=job, sizes=sizes, world_size=2, num_bytes=80 * GB)
    found = misfit.more_gpus(memory)
    assert [(way.change, way.fits) for way in found] == ([] if expected is None else [(expected, fits)])
    if fits:
        needs = [gpu_need(memory, make_plan(sizes, count), 80 * GB).total for count in range(2, 6)]
        assert [need <= 80 * GB for need in needs] == [False, False, False, True]


def test_at_most_eight_times_the_gpus():
    """A larger table can be asked for."""
    job = make_job(batch=batch(), workers={"max": 4})
    memory = job_memory(job, of_blocks(10, state=1000), "cuda")
    misfit = Misfit(job=job, sizes=batch_sizes(job), world_size=1, num_bytes=80 * GB)
    assert [(way.change, way.fits) for way in misfit.more_gpus(memory)] == [("8 GPUs", False)]
    (found,) = replace(misfit, world_size=2).more_gpus(memory)
    assert found == replace(found, change="16 GPUs (workers.max: 16)", world_size=16, fits=True)


def test_a_cap_on_tokens_may_be_as_low_as_the_longest_sample():
    """No lower: here 16 tokens."""
    job = sft(batch=batch(max_micro=8, max_tokens=64))
    memory = job_memory(job, of_gigabytes(40), "cuda", 16)
    found = tried(job, Gauge(), memory=memory)
    assert [(way.change, way.fits) for way in found] == [
        ("batch.max_tokens: 16", True),
        ("16 GPUs", False),
    ]
    sizes = replace(batch_sizes(job), max_tokens=16)
    assert Misfit(job=job, sizes=sizes, world_size=2, num_bytes=GB).smaller(memory) == []


def test_auto_counts_one_sample():
    """It has no smaller micro-batch, and more GPUs are those at which the run would begin."""
    job = sft(batch=batch(max_micro="auto"), workers={"max": 4})
    found = tried(job, Gauge(), memory=job_memory(job, of_blocks(1, state=400), "cuda"))
    assert "max_micro" not in " ".join(way.change for way in found)
    assert (found[-1].change, found[-1].fits) == ("6 GPUs (workers.max: 6)", True)
