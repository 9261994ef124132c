"""The same bits at every world size and through every history, in real FSDP processes."""

import json
import math
import random
from pathlib import Path
from unittest import mock

import pytest
import torch
from test_training import crash_at
from worker_functions import TWO_BLOCKS, make_job, records, run_job

from planner.errors import ResumeRefused, TrainingFailed
from planner.provenance.audit import audit
from planner.store.records import seal
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.checkpoints.checkpoint import read_digests
from planner.train.models import head
from planner.train.models.gpt import VOCABULARY

pytestmark = pytest.mark.fsdp

CONFIGURATIONS = {
    "fp32, prime G": {"model": TWO_BLOCKS},
    "bf16": {"train": {"precision": "bf16"}},
    "dropout, tied embeddings, clipping": {
        "model": {"dropout": 0.1, "tied_embeddings": True},
        "train": {"clip_norm": 0.3},
    },
    "activation checkpointing, dropout": {
        "model": {**TWO_BLOCKS, "dropout": 0.2},
        "train": {"activation_checkpointing": True},
    },
    "sgd, no clipping": {"train": {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}, "clip_norm": None}},
    "rmsprop": {"train": {"optimizer": {"kind": "rmsprop", "lr": 1e-3}}},
    # A layer norm of 3 elements on 5 and more workers: shards without an element.
    "narrower than the workers": {"model": {"width": 3, "heads": 1}},
}


def bitwise_job(texts, *, steps=5, equality="bitwise", **sections):
    return make_job(
        texts,
        steps=steps,
        global_batch=13,
        max_micro=2,
        **{**sections, "batch": {"equality": equality}, "eval": {"samples": 3, "every": 2}},
    )


def result(url):
    """Every digest of the final commit, every loss and every norm."""
    commits = sorted(Path(url, "manifests").iterdir())
    tensors = json.loads(commits[-1].read_text())["value"]["tensors"]
    steps = [(s["step"], s["loss"], s["grad_norm"], s["checksum"]) for s in records(url)]
    return tensors, sorted(set(steps)), sorted({(e["step"], e["loss"]) for e in records(url, "eval")})


FIRST, *OTHERS = CONFIGURATIONS


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param(FIRST, (1, 2, 3, 8), id=FIRST),
        *(pytest.param(name, (1, 3, 5), id=name) for name in OTHERS),
        *(pytest.param(name, range(1, 9), id=f"{name}, all sizes", marks=pytest.mark.slow) for name in CONFIGURATIONS),
    ],
)
def test_one_hash_for_every_world_size(workers, texts, tmp_path, name, sizes):
    """One set of digests, losses and norms."""
    job = bitwise_job(texts, steps=3, **CONFIGURATIONS[name])
    results = []
    for world_size in sizes:
        workers.run(run_job, world_size, job, str(tmp_path / str(world_size)))
        results.append(result(tmp_path / str(world_size)))
    assert len(results[0][0]) > 20
    assert all(other == results[0] for other in results)


def run_in_chunks(rank, job, url):
    """A generation whose losses come from chunks of 8 tokens."""
    with mock.patch.dict(head.CHUNK_LOGITS, cpu=8 * VOCABULARY):
        run_job(rank, job, url)


def test_losses_in_many_chunks_have_the_same_bits(workers, texts, tmp_path):
    """A chunk's size does not depend on the number of workers. Another size gives other bits."""
    job = bitwise_job(texts, steps=3)
    results = []
    for run, world_size in ((run_in_chunks, 1), (run_in_chunks, 3), (run_job, 1)):
        url = tmp_path / f"{run.__name__} {world_size}"
        workers.run(run, world_size, job, str(url))
        results.append(result(url))
    assert results[0] == results[1]
    assert results[1] != results[2]


def test_balanced_batches_give_other_bits(workers, texts, tmp_path):
    """Without the fixed point the losses part ways: the test above can fail."""
    job = bitwise_job(texts, equality="balanced")
    losses = set()
    for world_size in (1, 2, 3):
        workers.run(run_job, world_size, job, str(tmp_path / str(world_size)))
        losses.add(tuple(s["loss"] for s in records(tmp_path / str(world_size))))
    assert len(losses) > 1


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4))])
def test_random_histories_with_kills_change_nothing(workers, texts, tmp_path, seed):
    """World sizes and the places of stops and kills are random; bits, losses and norms are those of W = 1."""
    compare_random_history(workers, texts, tmp_path, random.Random(seed), steps=10, changes=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_long_random_histories_change_nothing(workers, texts, tmp_path, name):
    """Every configuration through twenty changes in a hundred steps."""
    dice = random.Random(name)
    compare_random_history(workers, texts, tmp_path, dice, steps=100, changes=20, **CONFIGURATIONS[name])


def compare_random_history(workers, texts, tmp_path, dice, *, steps, changes, **sections):
    sections = sections or CONFIGURATIONS["dropout, tied embeddings, clipping"]
    job = bitwise_job(texts, steps=steps, **sections)
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": 2})})
    workers.run(run_job, 1, job, str(tmp_path / "alone"))
    url = str(tmp_path / "history")
    for _ in range(changes):
        world_size, steps = dice.randint(1, 8), dice.randint(1, steps // changes + 1)
        if dice.random() < 0.5:
            with pytest.raises(TrainingFailed, match="planted crash"):
                workers.run(crash_at, world_size, job, url, steps)
        else:
            workers.run(run_job, world_size, job, url, steps)
    workers.run(run_job, dice.randint(1, 8), job, url)
    assert result(url) == result(tmp_path / "alone")
    found = audit(RunFolder(Storage(url)))
    assert found.clean, found.findings


@pytest.mark.parametrize("where", ["sharded", "local"])
def test_where_the_integers_wait_does_not_matter(workers, texts, tmp_path, where):
    """The memory choice changes no bit."""
    job = bitwise_job(texts)
    workers.run(run_job, 2, job, str(tmp_path / "one"))
    workers.run(run_with_accumulator, 3, job, str(tmp_path / "two"), where)
    assert result(tmp_path / "two") == result(tmp_path / "one")


def run_with_accumulator(rank, job, url, where):
    from planner.train import lifecycle

    choose = lifecycle.accumulator_placement
    lifecycle.accumulator_placement = lambda *_: where
    try:
        return run_job(rank, job, url)
    finally:
        lifecycle.accumulator_placement = choose


@pytest.mark.parametrize("where", ["sharded", "local"])
def test_how_the_integers_travel_does_not_matter(workers, texts, tmp_path, where):
    """gloo exchanges gradients; where there is a real reduce-scatter, as in NCCL, integers are summed on their way."""
    job = bitwise_job(texts)
    workers.run(run_with_accumulator, 3, job, str(tmp_path / "one"), where)
    workers.run(run_with_reduce_scatter, 3, job, str(tmp_path / "two"), where)
    assert result(tmp_path / "two") == result(tmp_path / "one")


def run_with_reduce_scatter(rank, job, url, where):
    from planner.train import collectives

    is_gloo = collectives.is_gloo
    collectives.is_gloo = lambda *_: False
    try:
        return run_with_accumulator(rank, job, url, where)
    finally:
        collectives.is_gloo = is_gloo


def growing(rank, job, url):
    """From step 2 on, the loss is 2^20 times as large: the gradients leave their range in one step."""
    from planner.train.objectives.next_token import NextToken

    loss = NextToken.loss

    def grown(self, model, batch, totals):
        factor = 2.0**20 if batch.position >= 26 else 1.0
        return loss(self, model, batch, totals) * factor

    NextToken.loss = grown
    try:
        return run_job(rank, job, url)
    finally:
        NextToken.loss = loss


def test_an_overflow_is_done_again_by_all_and_changes_no_bit(workers, texts, tmp_path):
    """The first step (to learn the magnitudes) and the one that overflows are done twice; nothing is skipped."""
    job = bitwise_job(texts, steps=4, train={"clip_norm": 1.0})
    results = []
    for world_size in (1, 3):
        outcomes = workers.run(growing, world_size, job, str(tmp_path / str(world_size)))
        assert {outcome.repeated_steps for outcome in outcomes} == {2}
        results.append(result(tmp_path / str(world_size)))
    assert results[0] == results[1]
    assert [s[0] for s in results[0][1]] == [0, 1, 2, 3]


def poisoned(rank, job, url):
    """One worker's micro-batch of step 2 has an infinite loss."""
    from planner.train.objectives.next_token import NextToken

    loss = NextToken.loss

    def poison(self, model, batch, totals):
        value = loss(self, model, batch, totals)
        return value * math.inf if batch.rows and batch.position == 28 else value

    NextToken.loss = poison
    try:
        return run_job(rank, job, url)
    finally:
        NextToken.loss = loss


@pytest.mark.parametrize("equality", ["bitwise", "balanced"])
def test_a_gradient_that_is_not_finite_names_step_and_tensor(workers, texts, tmp_path, equality):
    """All workers stop at that step with the same error."""
    job = bitwise_job(texts, equality=equality)
    with pytest.raises(TrainingFailed, match=r"step 2: the gradient's norm is (nan|inf), in [a-z_.0-9]+"):
        workers.run(poisoned, 3, job, str(tmp_path))


@pytest.mark.parametrize("equality", ["bitwise", "balanced"])
def test_a_step_that_is_not_finite_is_skipped_if_the_job_says_so(workers, texts, tmp_path, equality):
    """By name: the weights stay, the step counts, the ledger says so, and other world sizes do the same."""
    job = bitwise_job(texts, equality=equality, train={"non_finite": "skip"})
    for world_size in (2, 3):
        workers.run(poisoned, world_size, job, str(tmp_path / str(world_size)))
        steps = records(tmp_path / str(world_size))
        assert [s["skipped"] for s in steps] == [False, False, True, False, False]
        notes = [e["message"] for e in records(tmp_path / str(world_size), "event")]
        assert any("The step was skipped (train.non_finite: skip)" in note for note in notes)
        assert audit(RunFolder(Storage(str(tmp_path / str(world_size))))).clean
    if equality == "bitwise":
        assert result(tmp_path / "2") == result(tmp_path / "3")


def with_put(rank, job, url):
    """The loss uses an operation that torch knows no deterministic form of on the CPU."""
    from planner.train.objectives.next_token import NextToken

    loss = NextToken.loss

    def put(self, model, batch, totals):
        torch.zeros(4).put_(torch.tensor([1, 1]), torch.ones(2))
        return loss(self, model, batch, totals)

    NextToken.loss = put
    try:
        return run_job(rank, job, url)
    finally:
        NextToken.loss = loss


def test_an_operation_that_is_not_deterministic_is_refused_by_name(workers, texts, tmp_path):
    """The error says what to do. It comes only in bitwise jobs."""
    with pytest.raises(TrainingFailed, match=r"^put_ has no deterministic form on this device .* batch.equality: bal"):
        workers.run(with_put, 2, bitwise_job(texts), str(tmp_path / "bitwise"))
    workers.run(with_put, 2, bitwise_job(texts, equality="balanced"), str(tmp_path / "balanced"))
    assert len(records(tmp_path / "balanced")) == 5


def test_the_certificate_is_held_against_the_files(workers, texts, tmp_path):
    """Digests that were taken from memory at the last commit, and from the files by the audit."""
    workers.run(run_job, 3, bitwise_job(texts), str(tmp_path))
    run = RunFolder(Storage(str(tmp_path)))
    found = audit(run, tensor_digests=read_digests)
    assert found.clean, found.findings
    assert found.weights == run.manifest(run.commits()[-1]).weights_digest != ""

    def altered(storage, manifest):
        return {**read_digests(storage, manifest), "model/head.weight": "0" * 64}

    (finding,) = audit(run, tensor_digests=altered).findings
    assert "1 tensors are not those of its certificate, first model/head.weight" in finding


def test_a_certificate_that_was_taken_away_is_missed(workers, texts, tmp_path):
    """By the header, which says that the run is finished, and by the record of the commit; sealed anew or not."""
    workers.run(run_job, 2, bitwise_job(texts), str(tmp_path))
    run = RunFolder(Storage(str(tmp_path)))
    manifest = run.manifest(run.commits()[-1])
    run.storage.write(f"manifests/{manifest.name}.json", seal(manifest.model_copy(update={"tensors": {}})))
    findings = audit(run).findings
    assert any("a finished bitwise run has a certificate, and this one has none" in f for f in findings)
    assert any("its manifest is not the one that the ledger records" in f for f in findings)
    altered = {"world_size": 99, "facts": {"device": "another"}}
    run.storage.write(f"manifests/{manifest.name}.json", seal(manifest.model_copy(update=altered)))
    assert any("its plan, length, machine or run is not what" in f for f in audit(run).findings)


def on_another_cpu(rank, job, url, accept=()):
    from planner.train.exact import determinism

    device_text = determinism.device_text
    determinism.device_text = lambda _device: "another CPU"
    try:
        return run_job(rank, job, url, accept=accept)
    finally:
        determinism.device_text = device_text


def test_bits_are_not_promised_across_kinds_of_machines(workers, texts, tmp_path):
    """A resume elsewhere is refused, unless it is accepted by name; and the ledger says so."""
    workers.run(run_job, 2, bitwise_job(texts), str(tmp_path), 2)
    with pytest.raises(ResumeRefused, match=r"device: torch .* on a CPU with .* -> another CPU.*--accept device"):
        workers.run(on_another_cpu, 2, bitwise_job(texts), str(tmp_path))
    workers.run(on_another_cpu, 2, bitwise_job(texts), str(tmp_path), ("device",))
    assert any("accepted by name" in change for change in records(tmp_path, "generation")[-1]["changed"])
    batches = bitwise_job(texts, equality="balanced")
    workers.run(run_job, 2, batches, str(tmp_path / "balanced"), 2)
    workers.run(on_another_cpu, 2, batches, str(tmp_path / "balanced"))


OPTIMIZERS = [
    {"kind": "adamw", "lr": 1e-2, "weight_decay": 0.1},
    {"kind": "rmsprop", "lr": 1e-2, "weight_decay": 0.1},
    {"kind": "sgd", "lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1},
]


@pytest.mark.parametrize("settings", OPTIMIZERS, ids=lambda settings: settings["kind"])
def test_allowed_optimizers_do_not_see_shards(texts, settings):
    """Ten steps on a whole tensor and on its rows cut in three give the same bits, in awkward shapes."""
    from planner.train.exact.determinism import SHARD_INVARIANT
    from planner.train.optimize import make_optimizer

    assert settings["kind"] in SHARD_INVARIANT
    config = make_job(texts, train={"optimizer": settings}).train.optimizer
    generator = torch.Generator().manual_seed(1)
    for shape in [(7,), (13, 5), (31, 17), (64, 33), (3, 129)]:
        start = torch.randn(shape, generator=generator)
        gradients = [torch.randn(shape, generator=generator) * 10.0 ** (-i) for i in range(10)]
        whole = torch.nn.ParameterList([torch.nn.Parameter(start.clone())])
        parts = torch.nn.ParameterList([torch.nn.Parameter(part.clone()) for part in start.tensor_split(3)])
        for model in (whole, parts):
            optimizer = make_optimizer(config, model)
            for gradient in gradients:
                for parameter, part in zip(model, gradient.tensor_split(len(model)), strict=True):
                    parameter.grad = part.clone()
                optimizer.step()
        assert torch.equal(whole[0], torch.cat(list(parts)))
