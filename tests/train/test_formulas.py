"""Each objective against an independent float64 computation, sample by sample and without padding."""

import dataclasses
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_sets import SampleSet

from planner.data.samples import NO_LOSS, check_sum_of, text_of
from planner.errors import ObjectiveUnavailable
from planner.job import DpoObjective, GptModel, IpoObjective, KtoObjective, SftObjective, SimpoObjective, Train
from planner.job.objectives import OURS
from planner.job.objectives.orpo import OrpoObjective
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.batches import Loader
from planner.train.control import exact_sums
from planner.train.loader_processes import _loaded
from planner.train.log_probs import no_training
from planner.train.objectives import CoupledObjective, denominators, make_objective, named_metrics
from planner.train.objectives.orpo import _log_odds as log_odds
from planner.train.reference.frozen import FrozenReference, UniformReference
from planner.train.sample_batches import feedback_batch, pair_batch, text_batch
from planner.train.shard import build_model

CONTEXT = 24
GPT = GptModel(kind="gpt", layers=1, width=16, heads=2, context=CONTEXT)

# The first is the better one at other samples' completions: KTO's baseline is above zero.
POLICY, OTHER = 3, 5


def model_of(seed):
    """Weights that are far from uniform: first weights make all completions nearly alike."""
    train = Train.model_validate({"steps": 1, "seed": seed, "optimizer": {"kind": "sgd", "lr": 0.1}})
    model = build_model(GPT, train)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    return model


def make_batch_of(kind):
    return {"chat": text_batch, "pairs": pair_batch, "feedback": feedback_batch}[kind]


def batch_of_rows(kind, rows, position, **more):
    """A micro-batch of rows. Partners, if the kind has any, are the next rows, and the last row's is the first."""
    partners = {"partners": [*rows[1:], *rows[:1]]} if kind == "feedback" else {}
    return make_batch_of(kind)(SampleSet(kind=kind), rows, position, **partners, **more)


def loaders(kind, global_batch, world_size, max_micro, equality="balanced", **more):
    """One for each worker."""
    data = SampleSet(kind=kind)
    sizes = BatchSizes(global_batch=global_batch, max_micro=max_micro, equality=equality)
    plan = make_plan(sizes, world_size)
    order = Order(num_rows=data.num_rows, num_held_out=7, seed=3)
    return [
        Loader(
            dataset=data,
            order=order,
            plan=plan,
            rank=rank,
            make_batch=make_batch_of(kind),
            has_partners=kind == "feedback",
            **more,
        )
        for rank in range(world_size)
    ]


def measured(config, model, reference, batches):
    """Loss, metrics and gradients by our objective over micro-batches, as a step adds them up."""
    objective = make_objective(config, reference)
    totals = denominators(objective, batches)
    if isinstance(objective, CoupledObjective):
        with no_training(model):
            shared = torch.stack([objective.shared(model, batch, totals) for batch in batches])
        objective = objective.given(exact_sums(shared))
    parts = [objective.loss(model, batch, totals).view(-1) for batch in batches]
    model.zero_grad()
    sum(part[0] for part in parts).backward()
    loss, *metrics = exact_sums(torch.stack([part.detach() for part in parts]))
    gradients = {name: p.grad.double() for name, p in model.named_parameters()}
    return loss, named_metrics(objective, metrics, totals), gradients


# -- the independent computation: one sequence at a time, in float64, from the formulas in the papers


def log_prob(model, text):
    logits = model(torch.tensor(text.inputs.astype("int64"))[None])[0]
    found = torch.zeros((), dtype=torch.float64)
    for position, label in enumerate(text.labels.tolist()):
        if label != NO_LOSS:
            found = found + logits[position, label] - logits[position].logsumexp(0)
    return found


def length(text):
    return int((text.labels != NO_LOSS).sum())


def sft_loss(config, policy, _reference, samples):
    total = -sum(log_prob(policy, text) for text in samples)
    return total / (sum(map(length, samples)) if config.mean_over == "tokens" else len(samples)), {}


def pair_loss(config, policy, reference, samples):
    losses, margins, chosen_rewards, rejected_rewards = [], [], [], []
    for pair in samples:
        chosen, rejected = log_prob(policy, pair.chosen), log_prob(policy, pair.rejected)
        if config.kind == "simpo":
            chosen, rejected = chosen / length(pair.chosen), rejected / length(pair.rejected)
            losses.append(-torch.sigmoid(config.beta * (chosen - rejected - config.gamma_beta_ratio)).log())
        else:
            if reference is not None:
                chosen = chosen - log_prob(reference, pair.chosen).detach()
                rejected = rejected - log_prob(reference, pair.rejected).detach()
            if config.kind == "dpo":
                p, s = torch.sigmoid(config.beta * (chosen - rejected)), config.label_smoothing
                losses.append(-(1 - s) * p.log() - s * (1 - p).log())
            else:
                if config.log_probs == "mean":
                    chosen, rejected = chosen / length(pair.chosen), rejected / length(pair.rejected)
                losses.append((chosen - rejected - 1 / (2 * config.beta)) ** 2)
        margins.append(config.beta * (chosen - rejected).item())
        chosen_rewards.append(config.beta * chosen.item())
        rejected_rewards.append(config.beta * rejected.item())
    n = len(samples)
    return sum(losses) / n, {
        "reward_margin": sum(margins) / n,
        "reward_accuracy": sum(margin > 0 for margin in margins) / n,
        "chosen_reward": sum(chosen_rewards) / n,
        "rejected_reward": sum(rejected_rewards) / n,
    }


def orpo_loss(config, policy, _reference, samples):
    def log_odds(log_p):
        return (log_p.exp() / (1 - log_p.exp())).log()

    n, num_tokens = len(samples), sum(length(pair.chosen) for pair in samples)
    nll = -sum(log_prob(policy, pair.chosen) for pair in samples) / num_tokens
    chosen = torch.stack([log_prob(policy, pair.chosen) / length(pair.chosen) for pair in samples])
    rejected = torch.stack([log_prob(policy, pair.rejected) / length(pair.rejected) for pair in samples])
    ratios = torch.sigmoid(log_odds(chosen) - log_odds(rejected)).log()
    return nll - config.beta * ratios.sum() / n, {
        "reward_margin": config.beta * (chosen - rejected).sum().item() / n,
        "reward_accuracy": (chosen > rejected).sum().item() / n,
        "chosen_reward": config.beta * chosen.sum().item() / n,
        "rejected_reward": config.beta * rejected.sum().item() / n,
        "chosen_nll": nll.item(),
    }


def kto_loss(config, policy, reference, samples):
    n = len(samples)
    with torch.no_grad():
        total = 0.0
        for i, sample in enumerate(samples):
            other = text_of(sample.prompt, samples[(i + 1) % n].completion, CONTEXT)
            total += float(log_prob(policy, other) - log_prob(reference, other))
    baseline = max(total / n, 0.0)
    losses, rewards = [], {True: [], False: []}
    for sample in samples:
        with torch.no_grad():
            held = log_prob(reference, sample.text)
        ratio = log_prob(policy, sample.text) - held
        rewards[sample.is_desirable].append(config.beta * ratio.item())
        if sample.is_desirable:
            losses.append(config.desirable_weight * (1 - torch.sigmoid(config.beta * (ratio - baseline))))
        else:
            losses.append(config.undesirable_weight * (1 - torch.sigmoid(config.beta * (baseline - ratio))))
    found = {"kl": baseline}
    for name, kind in (("desirable_reward", True), ("undesirable_reward", False)):
        if rewards[kind]:
            found[name] = sum(rewards[kind]) / len(rewards[kind])
    return sum(losses) / n, found


OBJECTIVES = {
    "sft over tokens": ("chat", SftObjective(kind="sft"), sft_loss),
    "sft over samples": ("chat", SftObjective(kind="sft", mean_over="samples"), sft_loss),
    "dpo": ("pairs", DpoObjective(kind="dpo", beta=0.3), pair_loss),
    "dpo, conservative": ("pairs", DpoObjective(kind="dpo", beta=0.5, label_smoothing=0.2), pair_loss),
    "dpo without reference": ("pairs", DpoObjective(kind="dpo", reference="none"), pair_loss),
    "ipo": ("pairs", IpoObjective(kind="ipo", beta=0.2), pair_loss),
    "ipo of sums": ("pairs", IpoObjective(kind="ipo", beta=0.2, log_probs="sum"), pair_loss),
    "simpo": ("pairs", SimpoObjective(kind="simpo"), pair_loss),
    "orpo": ("pairs", OrpoObjective(kind="orpo", beta=0.7), orpo_loss),
    "kto": ("feedback", KtoObjective(kind="kto"), kto_loss),
    "kto, weighted": ("feedback", KtoObjective(kind="kto", desirable_weight=1.5, undesirable_weight=0.4), kto_loss),
}


def test_every_objective_is_held_to_its_formula():
    """Those over tokens are in test_units.py, and a user's own loop has none."""
    assert {config.kind for _, config, _ in OBJECTIVES.values()} == set(OURS) - {"lm", "own"}


@pytest.mark.parametrize("spec", [spec for spec in OURS.values() if spec.build], ids=lambda spec: spec.kind)
def test_a_spec_says_what_its_class_does(spec):
    """What a terminal shows is measured, and a coupled one is one."""
    objective = make_objective(spec.config(kind=spec.kind), UniformReference())
    assert spec.shown.keys() <= objective.metrics.keys()
    wrong = dataclasses.replace(spec, is_coupled=not spec.is_coupled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.job.spec_of", lambda _: wrong)
        with pytest.raises(
            ObjectiveUnavailable, match=f"{spec.kind}: its spec says is_coupled={wrong.is_coupled}, but"
        ):
            make_objective(spec.config(kind=spec.kind), UniformReference())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("world_size", "max_micro"), [(1, 11), (3, 2), (4, 1)])
def test_loss_gradient_and_metrics_are_those_of_the_formula(name, world_size, max_micro):
    """Over unequal lengths, masked prompts, ghosts and any split."""
    kind, config, independent = OBJECTIVES[name]
    policy, other = model_of(POLICY), model_of(OTHER)
    groups = loaders(kind, 11, world_size, max_micro)
    batches = [batch for loader in groups for batch in loader.load(44).batches]
    without = getattr(config, "reference", "") == "none"
    loss, metrics, gradients = measured(
        config, policy, UniformReference() if without else FrozenReference(other), batches
    )
    samples = [groups[0].dataset.sample(int(row)) for row in groups[0].order.rows(44, 55)]
    policy = model_of(POLICY).double()
    expected, expected_metrics = independent(config, policy, None if without else other.double(), samples)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=2e-6)
    # A margin is a small difference of float32 sums: two hundred times its size.
    assert metrics == pytest.approx(expected_metrics, rel=2e-5, abs=1e-5)
    assert metrics.keys() == expected_metrics.keys()
    assert metrics.get("kl", 1.0) > 0.1  # else it would not show what becomes of it
    for tensor, parameter in policy.named_parameters():
        error = (gradients[tensor] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 2e-5, f"{tensor}: {error:.1e}"


def test_a_baseline_below_zero_is_zero():
    """The policy may find other people's completions less likely than its reference does."""
    objective = make_objective(KtoObjective(kind="kto"), UniformReference())
    batch = loaders("feedback", 4, 1, 4)[0].load(0).batches[0]
    loss = [objective.given((z0,)).loss(model_of(POLICY), batch, (9, 4, 2, 2)) for z0 in (-3.0, 0.0, 3.0)]
    assert torch.equal(loss[0], loss[1])
    assert not torch.equal(loss[1], loss[2])
    assert torch.isnan(objective.given((float("nan"),)).loss(model_of(POLICY), batch, (9, 4, 2, 2))[0])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_ghost_adds_nothing(name):
    """Zero losses, zero metrics and zero gradients, and no denominators."""
    kind, config, _ = OBJECTIVES[name]
    ghost = batch_of_rows(kind, [], 5)
    model = model_of(POLICY)
    objective = make_objective(config, FrozenReference(model_of(OTHER)))
    assert denominators(objective, [ghost]) == (0,) * objective.num_denominators
    parts = objective.loss(model, ghost, (7,) * objective.num_denominators).view(-1)
    parts[0].backward()
    assert not parts.any()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    if isinstance(objective, CoupledObjective):
        assert not objective.shared(model, ghost, (7, 7, 7, 7)).any()


@pytest.mark.parametrize("world_size", [1, 2, 5, 7, 11])
def test_orpo_is_the_same_for_every_split(world_size):
    """Its two means have two denominators of the global batch: a split by pairs alone would weigh tokens otherwise."""
    _, config, independent = OBJECTIVES["orpo"]
    groups = loaders("pairs", 11, 1, 11)
    samples = [groups[0].dataset.sample(int(row)) for row in groups[0].order.rows(44, 55)]
    expected, expected_metrics = independent(config, model_of(POLICY).double(), None, samples)
    for max_micro in (1, 2, 3, 11):
        batches = [batch for loader in loaders("pairs", 11, world_size, max_micro) for batch in loader.load(44).batches]
        loss, metrics, _ = measured(config, model_of(POLICY), UniformReference(), batches)
        assert loss == pytest.approx(expected.item(), rel=2e-6)
        assert metrics == pytest.approx(expected_metrics, rel=2e-5, abs=1e-5)


def test_a_certain_completion_has_finite_odds():
    """Its probability is 1 in float32, and 1 - p would be 0."""
    log_p = torch.tensor([0.0, -1e-12, -0.7, -200.0], requires_grad=True)
    found = log_odds(log_p)
    found.sum().backward()
    assert found.isfinite().all()
    assert log_p.grad.isfinite().all()
    assert found[2:].tolist() == pytest.approx([-0.7 - math.log(1 - math.exp(-0.7)), -200.0])


def test_one_kind_alone_is_remarked_upon():
    """None of the other kind has no metric."""
    objective = make_objective(KtoObjective(kind="kto"), UniformReference())
    assert objective.remark((9, 4, 1, 3)) == ""
    assert objective.remark((9, 4, 4, 0)).startswith("none of the 4 samples of the global batch is undesirable")
    assert objective.remark((9, 4, 0, 4)).startswith("none of the 4 samples of the global batch is desirable")
    assert named_metrics(objective, (0.5, 1.0, 0.0), (9, 4, 4, 0)) == {"kl": 0.5, "desirable_reward": 1.0}


# -- batches


@given(
    kind=st.sampled_from(["chat", "pairs", "feedback"]),
    global_batch=st.integers(2, 13),
    world_size=st.integers(1, 5),
    max_micro=st.integers(1, 5),
    cursor=st.integers(0, 200),
)
def test_a_checksum_is_of_what_stands_in_the_tensors(kind, global_batch, world_size, max_micro, cursor):
    """Over all micro-batches of all workers, each sample once, however it was padded; partners are not counted."""
    groups = loaders(kind, global_batch, world_size, max_micro)
    batches = [batch for loader in groups for batch in loader.load(cursor).batches]
    rows = [int(row) for row in groups[0].order.rows(cursor, cursor + global_batch)]
    samples = [groups[0].dataset.sample(row) for row in rows]
    assert sorted(row for batch in batches for row in batch.rows) == sorted(rows)
    expected = sum(check_sum_of(row, sample.parts()) for row, sample in zip(rows, samples, strict=True))
    assert sum(batch.check_sum() for batch in batches) == expected
    assert sum(batch.num_tokens for batch in batches) == sum(sample.num_tokens for sample in samples)


@pytest.mark.parametrize("kind", ["chat", "pairs", "feedback"])
def test_one_wrong_element_changes_the_checksum(kind):
    """An input, a label, a kind of feedback; not the padding, which no sample has."""
    batch = batch_of_rows(kind, [3, 4, 5], 0)
    whole = batch.check_sum()
    for tensor in (batch.sequences.inputs, batch.sequences.labels):
        for i, n in enumerate(batch.sequences.lengths):
            tensor[i, n - 1] += 1
            assert batch.check_sum() != whole
            tensor[i, n - 1] -= 1
    if kind == "feedback":
        batch.is_desirable[0] = ~batch.is_desirable[0]
        assert batch.check_sum() != whole


@given(
    global_batch=st.integers(2, 13),
    world_size=st.integers(1, 5),
    max_micro=st.integers(1, 5),
    cursor=st.integers(0, 200),
    equality=st.sampled_from(["balanced", "bitwise"]),
    is_held_out=st.booleans(),
)
def test_partners_do_not_depend_on_the_split(global_batch, world_size, max_micro, cursor, equality, is_held_out):
    """Each prompt has the completion of the next sample of its own global batch, the last one the first's."""
    global_batch = 7 if is_held_out else global_batch
    groups = loaders("feedback", global_batch, world_size, max_micro, equality)
    data, order = groups[0].dataset, groups[0].order
    rows = order.held_out_rows(0, 7) if is_held_out else order.rows(cursor, cursor + global_batch)
    samples = [data.sample(int(row)) for row in rows]
    expected = {
        i: text_of(sample.prompt, samples[(i + 1) % global_batch].completion, CONTEXT).parts()
        for i, sample in enumerate(samples)
    }
    found = {}
    for loader in groups:
        for batch in loader.load_held_out() if is_held_out else loader.load(cursor).batches:
            first = batch.position - (0 if is_held_out else cursor)
            found |= {first + i: batch.mismatched.parts()[i] for i in range(len(batch.rows))}
    assert found == expected


def test_what_a_micro_batch_holds_depends_on_its_rows_alone():
    """The same rows, the same padding and the same tensors, at any world size: `bitwise` needs it."""
    found = []
    for world_size in (1, 2, 3):
        batches = [
            b for loader in loaders("pairs", 11, world_size, 3, "bitwise") for b in loader.load(22).batches if b.rows
        ]
        found.append({batch.position: batch for batch in batches})
    for position, batch in found[0].items():
        for others in found[1:]:
            assert torch.equal(others[position].sequences.inputs, batch.sequences.inputs)
            assert torch.equal(others[position].sequences.labels, batch.sequences.labels)


def test_packed_rows_keep_their_documents():
    """Padding is a document of its own, and the checksum sees the numbers."""
    packed = [
        dataclasses.replace(text, documents=text.inputs * 0 + 2)
        for text in (SampleSet(kind="chat").sample(row) for row in range(4))
    ]

    class Packed:
        def samples(self, rows):
            return [packed[row] for row in rows]

    batch = text_batch(Packed(), [0, 1, 2, 3], 0)
    assert batch.check_sum() == sum(check_sum_of(row, text.parts()) for row, text in enumerate(packed))
    for numbers, n in zip(batch.sequences.documents, batch.sequences.lengths, strict=True):
        assert numbers[:n].tolist() == [2] * n
        assert (numbers[n:] == 3).all()
    batch.sequences.documents[1, 0] = 1
    assert batch.check_sum() != sum(check_sum_of(row, text.parts()) for row, text in enumerate(packed))


@pytest.mark.parametrize("kind", ["chat", "pairs", "feedback"])
def test_batches_come_back_from_a_loader_process(kind):
    """As they were made: tensors, rows and partners."""
    (loader,) = loaders(kind, 5, 1, 2)
    made = loader.load(10).batches
    sent = pickle.loads(_loaded(pickle.loads(pickle.dumps(loader)).load, 10)).batches
    for before, after in zip(made, sent, strict=True):
        assert (after.rows, after.position, after.check_sum()) == (before.rows, before.position, before.check_sum())
        assert torch.equal(after.sequences.inputs, before.sequences.inputs)
        if kind == "feedback":
            assert after.mismatched.parts()[0] == before.mismatched.parts()[0]
            assert torch.equal(after.is_desirable, before.is_desirable)
