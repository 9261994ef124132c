"""Training with packed micro-batches in real FSDP processes: the losses and metrics of padded ones, at every size."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
from test_hf_training import hf, hf_job, run_hf
from test_objectives import measured, sample_job
from worker_functions import run_job

from planner.errors import UserError
from planner.job import Job
from planner.provenance.audit import audit
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage

pytestmark = pytest.mark.fsdp

CHUNK_TOKENS = 60


def run_packed(rank, job, url, run=run_job, breaks=()):
    """A generation that packs its micro-batches. Returns how often models were checked.

    Args:
        rank: of the worker.
        job: the job.
        url: of the run's folder.
        run: what runs the generation.
        breaks: which checks find that documents see each other, counted from 0.
    """
    from planner.train import generation
    from planner.train.reference.cache import TokenLimit

    make, parts, check = generation.make_batch_of, generation.parts_of, generation.require_packed
    checked = []

    def limited(job, model, dataset, storage):
        pairs = [dataset.sample(row) for row in range(dataset.num_rows)]
        tokens = np.array([len(pair.chosen.inputs) + len(pair.rejected.inputs) for pair in pairs])
        return parts(job, model, dataset, storage, limit=TokenLimit(row_tokens=tokens, max_tokens=CHUNK_TOKENS))

    def noted(model, setting):
        checked.append(setting)
        if len(checked) - 1 in breaks:
            raise UserError(f"{setting}: broken")
        check(model, setting)

    with mock.patch.multiple(
        generation,
        make_batch_of=lambda job: partial(make(job), is_packed=True),
        parts_of=limited,
        packing_setting=lambda _job: "batch.max_tokens",
        require_packed=noted,
    ):
        run(rank, job, url)
    return len(checked)


def assert_alike(url, padded_url):
    """Losses and metrics of steps and evaluations."""
    found, expected = measured(url), measured(padded_url)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert values == pytest.approx(expected[key], rel=1e-4, abs=1e-4), key


@pytest.mark.parametrize("name", ["dpo, cached", "kto"])
def test_objectives_and_evaluation(workers, tmp_path, name):
    """Padded on one worker, packed on two. The table's chunks are packed, too. Checksums are those of the data."""
    job = sample_job(tmp_path, name)
    workers.run(run_job, 1, job, str(tmp_path / "padded"))
    workers.run(run_packed, 2, job, str(tmp_path / "packed"))
    assert_alike(tmp_path / "packed", tmp_path / "padded")
    assert audit(RunFolder(Storage(str(tmp_path / "packed")))).clean


def test_models_of_transformers_with_recomputed_blocks(workers, texts, tiny_model, tmp_path):
    """Mistral's window of 4 tokens, which is shorter than its texts. The model is checked once."""
    job = hf_job(texts, hf(tiny_model("mistral")), train={"activation_checkpointing": True})
    workers.run(run_hf, 1, job, str(tmp_path / "padded"))
    assert workers.run(run_packed, 2, job, str(tmp_path / "packed"), run_hf) == [1, 1]
    assert_alike(tmp_path / "packed", tmp_path / "padded")


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
        workers.run(run_packed, 2, job, str(tmp_path / "broken"), run_hf, (1,))
    assert workers.run(run_packed, 2, job, str(tmp_path / "whole"), run_hf) == [2, 2]
