"""What a model needs of memory, measured on tensors without values: as on tensors with values, and by hand."""

import json
import math

import pytest
import torch

from planner.data.measured_memory import memory_of
from planner.data.model_folder import ModelFolder
from planner.job import Job
from planner.job.memory import sample_size
from planner.plan.memory import SampleSize, Units
from planner.train import footprint as footprints
from planner.train.footprint import footprint
from planner.train.models import four_bit, head
from planner.train.shard import build_model

WIDTH, LAYERS, CONTEXT = 32, 3, 24
GPT = {"kind": "gpt", "layers": LAYERS, "width": WIDTH, "heads": 4, "context": CONTEXT}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "tie_word_embeddings": True,
}
LORA = {"rank": 4, "alpha": 8}


def make_job(model=GPT, **train):
    is_gpt = model["kind"] == "gpt"
    data = {"kind": "text", "path": "corpus"} if is_gpt else {"kind": "chat", "path": "rows"}
    return Job.model_validate(
        {
            "name": "footprint",
            "model": model,
            "data": data,
            "objective": {"kind": "lm" if is_gpt else "sft"},
            "batch": {"global": 8, "max_micro": 4},
            "train": {"steps": 4, "optimizer": {"kind": "adamw", "lr": 1e-3}, **train},
        }
    )


@pytest.fixture
def llama(tmp_path):
    """Settings of a model whose folder has no weights."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    def settings(**more):
        return {"kind": "hf", "path": str(tmp_path), "weights": "random", "context": CONTEXT, **more}

    return settings


def measured(job, device="cpu", sample=None):
    folder = ModelFolder.here(job.model) if job.model.kind == "hf" else None
    return footprint(job, folder, None, sample or sample_size(job), device)


def peak_of(job, samples=2):
    """The most of all parts."""
    return max(part.peak for part in measured(job).passes(samples).parts())


def test_tensors_without_values_need_what_tensors_with_values_do():
    """The same passes of the same model on real tensors, counted by the same rule."""
    job = make_job()
    found = measured(job)
    model = build_model(job.model, job.train)
    for count, without in found.measured[:2]:
        assert footprints._pass(model, found.sample, count) == without


def test_units_are_those_of_the_model():
    """Weights by hand: 12 D^2 + 13 D for each block, two embeddings, a norm and the head outside."""
    units = measured(make_job()).units
    block = 12 * WIDTH**2 + 13 * WIDTH
    rest = (256 + CONTEXT + 256) * WIDTH + 2 * WIDTH
    assert [each.trained for each in units.all] == [rest, block, block, block]
    assert [each.gathered_bytes for each in units.all] == [4 * rest, *[4 * block] * 3]
    half = measured(make_job(precision="bf16")).units
    assert [each.gathered_bytes for each in half.all] == [2 * rest, *[2 * block] * 3]


def test_activations_by_hand():
    """A checkpointed block keeps its input alone: 4 bytes per number of `(T, D)`, for each of three blocks."""
    found = measured(make_job(activation_checkpointing=True))
    one, two = found.passes(1), found.passes(2)
    assert two.forward.end - one.forward.end == pytest.approx(4 * CONTEXT * WIDTH * (LAYERS + 1), rel=0.1)


def test_what_saves_memory_does():
    """Recomputing all saves more than recomputing a part. bf16 takes half of most tensors."""
    plain, selective, all_ = (peak_of(make_job(activation_checkpointing=how)) for how in (False, "selective", True))
    assert all_ < selective < plain
    assert peak_of(make_job(precision="bf16")) < 0.75 * plain


@pytest.mark.parametrize("frozen", ["fp32", "nf4"])
@pytest.mark.parametrize(
    "lora", [{"rank": 4}, {"rank": 8, "dropout": 0.5}, {"rank": 4, "targets": ["q_proj", "v_proj"]}]
)
def test_adapters_do_not_change_what_selective_checkpointing_keeps(llama, lora, frozen):
    """The same bytes per sample, though an adapter has two products, and frozen layers need no gradients."""

    def kept(model):
        found = measured(make_job(model, activation_checkpointing="selective", precision="bf16"))
        *_, (few, one), (many, other) = found.measured  # the first pass makes a table for weights in 4 bits
        return (other.forward.end - one.forward.end) / (many - few)

    assert kept(llama(lora=lora, frozen=frozen)) == kept(llama())


def test_a_head_that_is_the_embedding_counts_once(llama):
    """In the rest, with a norm."""
    units = measured(make_job(llama())).units
    assert units.rest.trained == 96 * WIDTH + WIDTH


def test_adapters_leave_the_rest_frozen(llama):
    """Frozen weights are float32 shards, or packed."""
    whole, adapted = measured(make_job(llama())).units, measured(make_job(llama(lora=LORA))).units
    packed = measured(make_job(llama(lora=LORA, frozen="nf4"), precision="bf16")).units
    assert adapted.frozen_bytes == 4 * whole.trained
    assert 0 < adapted.trained < whole.trained
    assert packed.trained == adapted.trained
    layers = sum(4 * each.trained for each in whole.blocks)
    assert packed.frozen_bytes < adapted.frozen_bytes - 0.7 * layers


def test_tables_of_4_bit_weights_are_not_those_without_values(llama):
    """They are kept in the process, which may train afterwards."""
    rows = torch.randn(3, 64)
    before = four_bit.unpack(four_bit.pack(rows), 64, torch.float32)
    measured(make_job(llama(lora=LORA, frozen="nf4"), precision="bf16"))
    assert torch.equal(four_bit.unpack(four_bit.pack(rows), 64, torch.float32), before)


def test_below_frozen_embeddings_each_block_has_a_part(llama):
    """The first block's input has no gradient there."""
    assert len(measured(make_job(llama(lora=LORA))).passes(1).blocks) == LAYERS


def test_a_reference_is_a_second_model(llama):
    """Whole, without adapters."""
    job = make_job(llama()).model_dump(by_alias=True) | {
        "data": {"kind": "pairs", "path": "rows"},
        "objective": {"kind": "dpo", "beta": 0.1},
    }
    found = measured(Job.model_validate(job))
    assert isinstance(found.reference, Units)
    assert (found.reference.trained, found.reference.frozen_bytes) == (0, 4 * found.units.trained)
    assert found.sample.rows == 2


def test_losses_stop_growing_at_a_whole_chunk(monkeypatch):
    """Beyond it, memory grows with the hidden states alone. Between the counts that are measured it is a line."""
    monkeypatch.setattr(head, "CHUNK_LOGITS", {"cpu": 256 * CONTEXT * 4})
    monkeypatch.setattr(head, "_BLOCK_LOGITS", {"cpu": 256 * CONTEXT})
    found = measured(make_job())
    assert [count for count, _ in found.measured] == [1, 4, 8]
    model = build_model(make_job().model, make_job().train)
    for count in (3, 6, 16):
        exact = footprints._pass(model, found.sample, count)
        for guess, part in zip(found.passes(count).parts(), exact.parts(), strict=True):
            assert guess.peak == pytest.approx(part.peak, rel=0.02)


def test_sizes_are_those_of_the_device_that_is_asked_for(llama):
    """A GPU's chunks of logits are larger, though nothing is on one."""
    sample = SampleSize(rows=1, tokens=CONTEXT, is_summed=True)
    assert head.full_chunks(96, "cuda") != head.full_chunks(96, "cpu")
    many = 2**21 // CONTEXT // 96 * 8
    cpu, cuda = (measured(make_job(llama()), device, sample).passes(many) for device in ("cpu", "cuda"))
    assert cuda.loss.peak > cpu.loss.peak


DAMAGES = [
    lambda _kept: {"format": 99},
    lambda _kept: {"measured": 3},
    lambda _kept: {"measured": []},
    lambda kept: {"measured": kept["measured"][:1]},
    lambda kept: {"measured": kept["measured"][:1] * 2},
    lambda kept: {"measured": [[math.inf, kept["measured"][0][1]]]},
    lambda kept: {"measured": [[count, parts[1:]] for count, parts in kept["measured"]]},
    lambda kept: {"units": {**kept["units"], "rest": {**kept["units"]["rest"], "trained": "many"}}},
    lambda kept: {"units": {**kept["units"], "rest": {**kept["units"]["rest"], "trained": -1}}},
    lambda kept: {"sample": {**kept["sample"], "tokens": 0}},
]


def test_a_second_look_reads_what_was_kept(llama, tmp_path, monkeypatch):
    """What is told says so. Another setting, a damaged file or another format is measured again."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    job, told = make_job(llama()), []
    first = memory_of(job, "cuda", footprint, told.append)
    assert len(told) == 1
    assert memory_of(job, "cuda", footprint, told.append) == first
    assert len(told) == 1
    memory_of(make_job(llama(), precision="bf16"), "cuda", footprint, told.append)
    assert len(told) == 2
    (file, *_) = sorted((tmp_path / "cache").rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    kept = json.loads(file.read_text())
    for damage in DAMAGES:
        file.write_text(json.dumps({**kept, **damage(kept)}))
        assert memory_of(job, "cuda", footprint, told.append) == first
    file.write_text("{")
    assert memory_of(job, "cuda", footprint, told.append) == first
    assert len(told) == 3 + len(DAMAGES)


def test_a_model_that_needs_values_is_not_known(llama, monkeypatch):
    """A router's choice depends on them, so no sizes without them."""

    def refuse(*_arguments):
        raise RuntimeError("data-dependent")

    monkeypatch.setattr(footprints, "_pass", refuse)
    found = memory_of(replace_path(make_job(llama())), "cuda", footprint)
    assert found.reason == "the model cannot be measured without values (RuntimeError: data-dependent)"


def replace_path(job):
    """With other settings than any test before has measured."""
    return job.model_copy(update={"model": job.model.model_copy(update={"context": CONTEXT + 1})})


def test_a_folder_that_is_not_here_is_not_known():
    """Nothing is downloaded."""
    job = make_job({"kind": "hf", "path": "nobody/nothing", "context": 8})
    assert "not on this machine" in memory_of(job, "cuda", footprint).reason
