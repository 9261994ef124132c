"""`planner verify` of jobs that draw random numbers: dropout is told apart from mistakes, and other draws are named."""

import uuid
from contextlib import nullcontext

import pytest
from own_loops import HEAD, own_job
from test_hf_training import hf, hf_job
from worker_functions import make_job

from planner.provenance.split_randomness import outcome
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner import verify_job
from planner.runner.verify_job import compare, verify
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

LOOP = """
from torch.nn import functional as F

class DropPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop_prob = 0.25
    def forward(self, x):
        if not (self.drop_prob and self.training):
            return x
        return x * x.new_empty(len(x), 1).bernoulli_(1 - self.drop_prob)

class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop_first, self.inner = 1, nn.Dropout(0.3)
    def forward(self, x):
        return self.inner(x) * x[:, self.drop_first, None]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.other, self.last = nn.Linear(3, 4), MODULE, nn.Linear(4, 1)
    def forward(self, x):
        x = self.first(x)
        return self.last(HIDDEN)

def train(run):
    model = run.shard(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            step.backward(errors(model, batch).REDUCED())
"""
# What a forward pass drops: a module, the hidden values, and how `planner verify` names it.
DROPPING = {
    "a module": ("nn.Dropout(0.3)", "self.other(x)", "other (Dropout) 0.3"),
    "an argument of a layer": ("nn.LSTM(4, 4, 2, dropout=0.4)", "self.other(x[None])[0][0]", "other (LSTM) 0.4"),
    "attention of torch": (
        "nn.MultiheadAttention(4, 2, dropout=0.2)",
        "self.other(*[x[None]] * 3)[0][0]",
        "other (MultiheadAttention) 0.2",
    ),
    "a module of the user's": ("DropPath()", "self.other(x)", "other (DropPath) 0.25"),
    "beside a count": ("Cut()", "self.other(x)", "other.inner (Dropout) 0.3"),
    "a function": ("None", "F.dropout(x, 0.2, self.training)", "functional.dropout 0.2"),
    "a function for attention": (
        "None",
        "F.scaled_dot_product_attention(*[x[:, None]] * 3, dropout_p=0.1)[:, 0]",
        "functional.scaled_dot_product_attention 0.1",
    ),
}


@pytest.fixture
def verified(workers, tmp_path):
    """`verified(job)`: what `planner verify` compares of two steps at 3 workers, and through 3 and 2."""

    def verify(job, worker=train_observed):
        folders = tmp_path / "fixed", tmp_path / "history"
        for url, sizes in zip(folders, ([3], [3, 2]), strict=True):
            rehearse(workers, Launch(job=job, url=str(url)), stages(sizes, job.train.steps), worker)
        return compare(job, *folders, [3, 2])

    return verify


@pytest.fixture
def own(tmp_path):
    """`own(module, hidden, reduced)`: a job with a loop whose model computes these hidden values."""

    def make(module, hidden, reduced="sum", **sections):
        code = LOOP.replace("MODULE", module).replace("HIDDEN", hidden).replace("REDUCED", reduced)
        file = tmp_path / f"loop_{uuid.uuid4().hex}.py"
        file.write_text(HEAD + code)
        return own_job(file, train={"steps": 2, "optimizer": {"kind": "own"}}, **sections)

    return make


def found(checks, what):
    return [check.detail for check in checks if check.what == what]


@pytest.mark.parametrize("kind", DROPPING)
def test_a_correct_loop_with_dropout_passes(verified, own, kind):
    """Masks depend on the split over workers, so both histories are trained without them, which is said."""
    module, hidden, name = DROPPING[kind]
    checks = verified(own(module, hidden))
    assert outcome(checks) == "equal", checks
    said = "off in both runs, because its masks depend on the split over workers"
    assert found(checks, "dropout") == [f"{said}: {name}"]
    assert not found(checks, "random numbers")


@pytest.mark.parametrize("kind", ["a module", "a function"])
def test_a_mean_in_place_of_a_sum_is_found_beside_dropout(verified, own, kind):
    """Dropout excuses nothing."""
    checks = verified(own(*DROPPING[kind][:2], "mean"))
    assert outcome(checks) == "different", checks
    assert found(checks, "dropout")


def test_noise_of_the_users_own_makes_the_runs_incomparable(verified, own):
    """It cannot be turned off here. The samples are compared all the same."""
    checks = verified(own("None", "x + torch.randn_like(x)"))
    assert outcome(checks) == "not compared", checks
    assert found(checks, "samples") == ["equal at 2 steps"]
    assert "from torch's generator" in found(checks, "random numbers")[0]


DRAWN = {
    "noise": ("x + torch.randn_like(x)", "not compared"),
    "noise that the user seeds": ("x + (torch.manual_seed(3), torch.randn_like(x))[1]", "not compared"),
    "numbers that change nothing": ("(torch.randint(9, (1,)), x)[1]", "different"),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_mean_is_excused_only_by_numbers_that_change_the_results(workers, own, monkeypatch, kind):
    """Some models of transformers always draw, such as those with layer dropout, without any use of the numbers."""
    hidden, result = DRAWN[kind]
    monkeypatch.setattr(verify_job, "LocalWorkers", lambda *_: nullcontext(workers))  # they are there already
    checks = verify(own("None", hidden, "mean"), [3, 2], through_ray=False)
    assert outcome(checks) == result, checks


def test_noise_is_compared_to_the_last_bit_where_it_does_not_depend_on_the_split(verified, own):
    """In `bitwise`, as the advice says. So is dropout, which stays on there."""
    checks = verified(own("nn.Dropout(0.3)", "self.other(x + torch.randn_like(x))", batch={"equality": "bitwise"}))
    assert outcome(checks) == "equal", checks
    assert not found(checks, "dropout")


def test_numbers_of_other_generators_are_named(verified, own):
    """planner seeds torch's generator only, so such a loop gives other weights each time."""
    checks = verified(own("None", "x + __import__('random').random() + __import__('numpy').random.random()"))
    assert outcome(checks) == "different"
    assert found(checks, "unseeded numbers") == [
        "the steps use Python's random and numpy.random, and planner seeds only torch's generator. Draw from torch"
    ]


def test_models_of_planner_pass_with_dropout(verified, texts):
    """The same for planner's own loop."""
    model = {"kind": "gpt", "layers": 1, "width": 16, "heads": 2, "context": 16, "dropout": 0.1}
    checks = verified(make_job(texts, steps=2, global_batch=7, model=model))
    assert outcome(checks) == "equal", checks
    assert "Gpt 0.1, blocks.0 (Block) 0.1" in found(checks, "dropout")[0]


def train_on_bytes(rank, launch, end_step):
    """A `Worker` for a model without a tokenizer."""
    from planner.data import ahead_sets
    from planner.data.tokenizer import ByteTokenizer

    ahead_sets.tokenizer_of = lambda _model: ByteTokenizer()
    return train_observed(rank, launch, end_step)


def test_models_of_transformers_pass_with_dropout_in_attention_and_adapters(verified, texts, tiny_model):
    """`attention_dropout` of the model's files, and LoRA's own."""
    model = hf(tiny_model("llama", attention_dropout=0.1), lora={"rank": 2, "dropout": 0.2})
    checks = verified(hf_job(texts, model, train={"steps": 2}), train_on_bytes)
    assert outcome(checks) == "equal", checks
    assert "lora_dropout" in found(checks, "dropout")[0]
