"""A training loop of the user's own: the same promises, and a sentence for each way to hold it wrong."""

import uuid
from pathlib import Path

import pytest
from own_loops import HEAD, own_job
from worker_functions import records, run_job

from planner.errors import DataError, TrainingFailed, UserError
from planner.files import read_job
from planner.provenance.audit import audit
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner.verify_job import compare
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

PLAIN = """
def train(run):
    model, optimizer = made(run)
    for step in run.steps(model, optimizer):
        for batch in step.micro_batches():
            step.backward(errors(model, batch).sum())
"""


@pytest.fixture
def make_job(tmp_path):
    """A job whose loop is `HEAD` and the given code, in a module of its own: the worker processes live on."""

    def make(code, **sections):
        file = tmp_path / f"loop_{uuid.uuid4().hex}.py"
        file.write_text(HEAD + code)
        return own_job(file, **sections)

    return make


def audited(url, job):
    return audit(RunFolder(Storage(str(url))), code=job.data.path)


def verified(workers, job, sizes, folder):
    """What `planner verify` compares, by worker processes that are kept."""
    folders = folder / "fixed", folder / "history"
    for url, each in zip(folders, (sizes[:1], sizes), strict=True):
        rehearse(workers, Launch(job=job, url=str(url)), stages(each, job.train.steps), train_observed)
    return compare(job, *folders, sizes)


@pytest.mark.parametrize("equality", ["balanced", "bitwise"])
def test_the_example_trains_the_same_at_every_size(workers, tmp_path, equality):
    """jobs/own_loop.py through `planner verify`: samples, losses and weights, in bitwise mode to the last bit."""
    root = Path(__file__).parents[2]
    file = root / "jobs" / "own_loop.yaml"
    settings = ["train.steps=4", f"batch.equality={equality}", f"data.path={root / 'jobs' / 'own_loop.py'}"]
    job = read_job(str(file), settings)
    checks = verified(workers, job, [3, 2], tmp_path)
    assert all(check.passed for check in checks), checks
    result = audited(tmp_path / "history", job)
    assert result.clean, result.findings
    assert (result.steps, result.samples) == (4, 4 * 96)


def test_several_denominators_are_those_of_the_whole_batch(workers, make_job, tmp_path):
    """A loss of two parts, one per sample and one per unit of weight: the same at any size."""
    code = """
def train(run):
    model, optimizer = made(run)
    counts = (len_of, lambda batch: int(batch["weight"].sum()))
    for step in run.steps(model, optimizer, counts=counts):
        for batch in step.micro_batches():
            found = errors(model, batch)
            step.backward(found.sum(), (found * batch["weight"]).sum())

def len_of(batch):
    return len(batch["y"])
"""
    job = make_job(code)
    losses = {}
    for size in (1, 3):
        workers.run(run_job, size, job, str(tmp_path / str(size)))
        losses[size] = [record["loss"] for record in records(tmp_path / str(size))]
    assert losses[1] == pytest.approx(losses[3], rel=1e-6)
    assert len(losses[1]) == 6


def test_it_resumes_at_another_size_with_its_optimizer(workers, make_job, tmp_path):
    """Stopped after three steps at 3 workers, on at 2: the losses of an undisturbed run."""
    job = make_job(PLAIN)
    workers.run(run_job, 2, job, str(tmp_path / "whole"))
    assert not workers.run(run_job, 3, job, str(tmp_path / "parts"), 3)[0].finished
    assert workers.run(run_job, 2, job, str(tmp_path / "parts"))[0].finished
    measured = records(str(tmp_path / "parts"), "measurement")
    assert sum(each["num_steps"] for each in measured) == 6
    # A user's samples may be anything, so their tokens are not known.
    assert {(each["input_tokens"], each["padded_tokens"], each["flops"]) for each in measured} == {(0, 0, 0.0)}
    assert all(min(each["forward_s"], each["backward_s"], each["update_s"]) > 0 for each in measured)
    whole, parts = ([record["loss"] for record in records(tmp_path / name)] for name in ("whole", "parts"))
    assert parts == pytest.approx(whole, rel=1e-5)
    assert audited(tmp_path / "parts", job).clean


def test_a_loop_may_call_its_model_as_often_as_it_likes(workers, make_job, tmp_path):
    """Twice for each micro-batch, say, for a contrastive loss: verify counts micro-batches, not calls."""
    code = PLAIN.replace("errors(model, batch).sum()", "(errors(model, batch) + errors(model, batch)).sum()")
    checks = verified(workers, make_job(code), [2, 1], tmp_path)
    assert all(check.passed for check in checks), checks


def attach(_rank, job):
    """In a process group that planner has not made, as under torchrun."""
    import torch

    from planner.data.user_dataset import function_of
    from planner.own import attached

    with attached(job, torch.device("cpu")) as run:
        function_of(job.data.path, "train")(run)
        return run.finished, run.outcome.step


def test_it_works_in_a_process_group_of_the_users_own(workers, make_job, tmp_path):
    """It resumes from a commit of a normal run."""
    job = make_job(PLAIN, checkpoint={"path": str(tmp_path / "run")})
    workers.run(run_job, 3, job, job.run_path, 3)
    assert workers.run(attach, 2, job) == [(True, 6)] * 2
    assert audited(job.run_path, job).clean


def test_code_runs_in_an_audit_only_if_the_user_says_so(workers, make_job, tmp_path):
    """A run's folder may be untrusted. Code that gives other samples than the run used is found."""
    job = make_job(PLAIN)
    workers.run(run_job, 2, job, str(tmp_path / "run"))
    run = RunFolder(Storage(str(tmp_path / "run")))
    with pytest.raises(UserError, match="--code"):
        audit(run)
    with pytest.raises(UserError, match=r"--code: no Python file at 'gone\.py' \(relative to .*, where planner runs\)"):
        audit(run, code="gone.py")
    other = tmp_path / f"loop_{uuid.uuid4().hex}.py"
    other.write_text(Path(job.data.path).read_text().replace("i % 3", "i % 4"))
    result = audit(run, code=str(other))
    assert any("is not what it was trained on" in finding for finding in result.findings)


MISTAKES = {
    "no backward": (
        "for step in run.steps(*made(run)):\n        for batch in step.micro_batches():\n            pass",
        r"step 0: micro-batch 1 got no step\.backward",
    ),
    "not all micro-batches": (
        (
            "model, optimizer = made(run)\n    for step in run.steps(model, optimizer):\n"
            "        step.backward(errors(model, next(step.micro_batches())).sum())"
        ),
        "step 0: 1 of 4 micro-batches were computed",
    ),
    "two sums for one denominator": (
        (
            "model, optimizer = made(run)\n    for step in run.steps(model, optimizer):\n"
            "        for batch in step.micro_batches():\n            loss = errors(model, batch).sum()\n"
            "            step.backward(loss, loss)"
        ),
        r"step\.backward got 2 sums for 1 denominators",
    ),
    "returned early": (
        (
            "model, optimizer = made(run)\n    for step in run.steps(model, optimizer):\n"
            "        for batch in step.micro_batches():\n            step.backward(errors(model, batch).sum())\n"
            "        break"
        ),
        r"returned before the end of run\.steps",
    ),
    "not sharded": (
        "model = nn.Linear(3, 1)\n    next(run.steps(model, torch.optim.SGD(model.parameters(), lr=0.1)))",
        "got a model that is not sharded",
    ),
    "an optimizer of another model": (
        "model, _ = made(run)\n    next(run.steps(model, made(run)[1]))",
        "has 4 parameters that are not the model's",
    ),
    "statistics of micro-batches": (
        (
            "model = run.shard(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))\n"
            "    next(run.steps(model, torch.optim.SGD(model.parameters(), lr=0.1)))"
        ),
        r"1 \(BatchNorm1d\) keeps statistics of micro-batches",
    ),
    "samples that cannot be collated": (
        "next(run.steps(*made(run), collate=lambda samples: samples[0]['z']))",
        r"cannot be collated: KeyError: 'z'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_a_sentence(workers, make_job, tmp_path, mistake):
    """On every worker, before the mistake trains another model."""
    code, message = MISTAKES[mistake]
    with pytest.raises((TrainingFailed, DataError), match=message):
        workers.run(run_job, 1, make_job(f"\ndef train(run):\n    {code}\n"), str(tmp_path))


@pytest.mark.parametrize("error", ["KeyboardInterrupt()", "SystemExit(0)", "__import__('asyncio').CancelledError()"])
def test_an_error_that_is_no_exception_to_python_names_its_line_too(workers, make_job, tmp_path, error):
    """Ray would pass on its type alone."""
    job = make_job(f"\ndef train(run):\n    raise {error}\n")
    with pytest.raises(TrainingFailed, match=r"^worker 0: train\(\) raised \w+(: 0)? \(/.*py:\d+, in train\)$"):
        workers.run(run_job, 1, job, str(tmp_path))


def test_an_error_in_train_names_its_type_and_line(workers, make_job, tmp_path):
    """And has the whole traceback. It is a mistake of theirs, and no step was done."""
    job = make_job("\ndef train(run):\n    run.shrad(None)\n")
    line = len(HEAD.splitlines()) + 3
    with pytest.raises(TrainingFailed) as caught:
        workers.run(run_job, 1, job, str(tmp_path))
    assert str(caught.value) == (
        "worker 0: train() raised AttributeError: 'Run' object has no attribute 'shrad' "
        f"({job.data.path}:{line}, in train)"
    )
    assert caught.value.code_traceback.startswith("Traceback (most recent call last):")
    assert "run.shrad(None)" in caught.value.code_traceback


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"eval": {"samples": 3}}, "but run.steps has no `evaluate`"),
        ({"batch": {"equality": "bitwise"}}, "SGD may round differently"),
    ],
)
def test_what_the_job_asks_for_must_be_there(workers, make_job, tmp_path, sections, message):
    """Held-out samples need `evaluate`. Equal bits need an optimizer that is known to keep them."""
    code = PLAIN.replace("made(run)", "made(run, fused=True)")
    with pytest.raises(TrainingFailed, match=message):
        workers.run(run_job, 2, make_job(code, **sections), str(tmp_path))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("dataset = 3", "it has no function dataset"),
        (
            "def dataset():\n    raise OSError('no disk')",
            r"failed: OSError: no disk \(/.*py:\d+, in dataset\)$",
        ),
        ("def dataset():\n    return []", "has no samples"),
        ("def dataset():\n    return [object()]", "holds object"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_code_without_data_is_refused(make_job, code, message):
    """Before anything is started."""
    from planner.provenance.identity import open_data

    with pytest.raises(DataError, match=message):
        open_data(make_job(f"\n{code}\n"))


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(0)",
        "import sys\ndef dataset():\n    sys.exit(0)",
        (
            "class Leaves(list):\n    def __getitem__(self, i):\n        raise SystemExit(0)\n"
            "def dataset():\n    return Leaves([1])"
        ),
        "class Odd(list):\n    fingerprint = object()\ndef dataset():\n    return Odd([1])",
        "def dataset():\n    knot = []\n    knot.append(knot)\n    return [knot]",
    ],
)
def test_code_cannot_end_a_command_as_if_all_were_well(make_job, code):
    """An audit must not exit with 0 because the user's data set exits."""
    from planner.provenance.identity import open_data

    with pytest.raises(DataError):
        open_data(make_job(f"\n{code}\n"))


def test_a_file_named_like_a_library_is_refused(tmp_path):
    """One of the two would hide the other."""
    from planner.data.user_dataset import OwnDataset

    file = tmp_path / "wave.py"
    file.write_text("def dataset():\n    return [1]\n")
    with pytest.raises(DataError, match="another module is called wave, too"):
        OwnDataset.open(str(file))
