"""Training with packed micro-batches in real FSDP processes: the losses and metrics of padded ones, at every size."""

from unittest import mock

import pytest
from test_hf_training import hf, hf_job, run_hf
from test_objectives import measured, sample_job

from planner.errors import UserError
from planner.job import Job

pytestmark = pytest.mark.fsdp

MOST_TOKENS = 200


def packing(job):
    """The job with micro-batches by length."""
    return job.model_copy(update={"batch": job.batch.model_copy(update={"max_tokens": MOST_TOKENS})})


def run_packed(rank, job, url, breaks=()):
    """A generation of a model of transformers. Returns how often models were checked.

    Args:
        rank: of the worker.
        job: the job.
        url: of the run's folder.
        breaks: which checks find that documents see each other, counted from 0.
    """
    from planner.train import generation

    check, checked = generation.require_packed, []

    def noted(model, setting, **settings):
        checked.append(setting)
        if len(checked) - 1 in breaks:
            raise UserError(f"{setting}: broken")
        check(model, setting, **settings)

    with mock.patch.object(generation, "require_packed", noted):
        run_hf(rank, job, url)
    return len(checked)


def assert_alike(url, padded_url):
    """Losses and metrics of steps and evaluations."""
    found, expected = measured(url), measured(padded_url)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert values == pytest.approx(expected[key], rel=1e-4, abs=1e-4), key


def test_models_of_transformers_with_recomputed_blocks(workers, texts, tiny_model, tmp_path):
    """Mistral's window of 4 tokens, which is shorter than its texts. The model is checked once."""
    job = hf_job(texts, hf(tiny_model("mistral")), train={"activation_checkpointing": True})
    workers.run(run_hf, 1, job, str(tmp_path / "padded"))
    assert workers.run(run_packed, 2, packing(job), str(tmp_path / "packed")) == [1, 1]
    assert_alike(tmp_path / "packed", tmp_path / "padded")


def test_a_mixture_of_experts_trains_on_packed_rows(workers, texts, tiny_model, tmp_path):
    """Two documents change how each other's products round, so its gradient is looked at in shards, before training."""
    job = hf_job(texts, hf(tiny_model("mixtral", num_hidden_layers=4), weights="random"))
    workers.run(run_hf, 1, job, str(tmp_path / "padded"))
    for world_size in (1, 2):
        url = tmp_path / str(world_size)
        assert workers.run(run_packed, world_size, packing(job), str(url)) == [1] * world_size
        assert_alike(url, tmp_path / "padded")


@pytest.mark.parametrize("source", ["model", "cached"])
def test_a_reference_that_is_another_model_is_checked(workers, tiny_model, tmp_path, source):
    """Its documents may see each other where the policy's do not."""
    policy, other = (str(tiny_model(family)) for family in ("llama", "qwen2"))
    plain = sample_job(tmp_path, "dpo", steps=1, eval={"samples": 0})
    job = Job.model_validate(
        plain.model_dump(by_alias=True, mode="json", exclude_unset=True)
        | {
            "model": {"kind": "hf", "path": policy, "context": 24},
            "objective": {"kind": "dpo", "reference": source, "reference_model": other},
        }
    )
    with pytest.raises(UserError, match=r"batch\.max_tokens: broken"):
        workers.run(run_packed, 2, packing(job), str(tmp_path / "broken"), (1,))
    assert workers.run(run_packed, 2, packing(job), str(tmp_path / "whole")) == [2, 2]
