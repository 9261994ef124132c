"""Training with `model.attention: varlen`, with a stand-in for torch's kernel: the losses of sdpa at every size."""

import math
from unittest import mock

import pytest
from test_hf_training import hf, hf_job, run_hf
from varlen_stand_in import stand_in
from worker_functions import records

from planner.errors import UserError

pytestmark = pytest.mark.fsdp


def run_varlen(rank, job, url):
    """One generation on a CPU that passes for a GPU, and how often the kernel was called."""
    from planner.train.models import varlen_attention

    kernel = mock.create_autospec(stand_in, side_effect=stand_in)
    with mock.patch.multiple(varlen_attention, require=lambda _device: None, kernel=lambda: kernel):
        run_hf(rank, job, url)
    return kernel.call_count


@pytest.mark.parametrize("recomputes", [False, True])
def test_losses_are_those_of_sdpa(workers, texts, tiny_model, tmp_path, recomputes):
    """Packed rows through Mistral's window of 4 tokens, with the check before the first step, at W = 1 and 2."""
    train = {"activation_checkpointing": recomputes}
    masked = hf_job(texts, hf(tiny_model("mistral")), data={"packing": True}, train=train)
    # A job on CPUs in float32 may not name it.
    job = masked.model_copy(update={"model": masked.model.model_copy(update={"attention": "varlen"})})
    workers.run(run_hf, 1, masked, str(tmp_path / "masked"))
    expected = [record["loss"] for record in records(tmp_path / "masked")]
    for world_size in (1, 2):
        url = str(tmp_path / str(world_size))
        assert min(workers.run(run_varlen, world_size, job, url)) > 0
        found = [record["loss"] for record in records(url)]
        assert len(found) == len(expected) == 3
        assert all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(found, expected, strict=True))


def test_workers_without_gpus_refuse_it(workers, texts, tiny_model, tmp_path):
    plain = hf_job(texts, hf(tiny_model("llama")))
    job = plain.model_copy(update={"model": plain.model.model_copy(update={"attention": "varlen"})})
    with pytest.raises(UserError, match="varlen needs a GPU"):
        workers.run(run_hf, 2, job, str(tmp_path))


def run_auto(rank, job, url, has_kernel):
    """One generation on a CPU that passes for a GPU, whose `model.attention: auto` begins with varlen."""
    from planner.train import lifecycle
    from planner.train.models import varlen_attention

    kernel = mock.create_autospec(stand_in, side_effect=stand_in)
    choices = mock.patch.object(lifecycle, "attention_choices", lambda *_, **__: ("varlen", "flash_attention_2", "sdpa"))
    with choices, mock.patch.multiple(varlen_attention, is_there=lambda _: has_kernel, kernel=lambda: kernel):
        run_hf(rank, job, url)
    return kernel.call_count


def attention_on_record(url):
    """Of each generation: what its header says, and what its ledger tells."""
    found = []
    for number in RunFolder(Storage(str(url))).segments():
        kept = [link.record for link in read_ledger(RunFolder(Storage(str(url))).storage, number)]
        told = [record.facts for record in kept if getattr(record, "event", "") == "attention_chosen"]
        found.append((kept[0].facts.get("attention", ""), [(each["attention"], each["before"]) for each in told]))
    return found
