"""Objectives over prompts and completions in real FSDP processes: exact, bitwise, and held to the first weights."""

import pytest
from sample_sets import SampleSet, write_rows
from test_bitwise import result
from worker_functions import make_job, records, run_job

from planner.errors import DataError
from planner.job import HfModel
from planner.job.objectives import OURS
from planner.provenance.audit import audit
from planner.rehearsal.on_processes import rehearse, train_observed
from planner.rehearsal.stages import stages
from planner.runner.verify_job import compare
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.setup import Launch

pytestmark = pytest.mark.fsdp

# objective, data
KINDS = {
    "sft": ({"kind": "sft"}, "chat"),
    "sft over samples": ({"kind": "sft", "mean_over": "samples"}, "chat"),
    "dpo": ({"kind": "dpo", "beta": 0.5}, "pairs"),
    "dpo, cached": ({"kind": "dpo", "beta": 0.5, "reference": "cached"}, "pairs"),
    "ipo": ({"kind": "ipo"}, "pairs"),
    "simpo": ({"kind": "simpo"}, "pairs"),
    "orpo": ({"kind": "orpo", "beta": 0.5}, "pairs"),
    "kto": ({"kind": "kto", "beta": 0.5, "desirable_weight": 2.0, "undesirable_weight": 0.2}, "feedback"),
}


def test_every_objective_is_trained_here():
    """Those over tokens are trained in test_training.py, a user's own loop in test_own_loop.py."""
    assert {objective["kind"] for objective, _ in KINDS.values()} == set(OURS) - {"lm", "own"}


def sample_job(folder, name, *, steps=5, equality="balanced", **sections):
    objective, data = KINDS[name]
    return make_job(
        "",
        steps=steps,
        global_batch=7,
        max_micro=2,
        **{
            "objective": objective,
            "eval": {"samples": 4, "every": 2},
            **sections,
            # Large steps: first weights find all completions nearly alike.
            "train": {"optimizer": {"kind": "sgd", "lr": 0.3}, "clip_norm": None, **sections.get("train", {})},
            "data": {"kind": data, "path": write_rows(folder / f"{data}.jsonl", data)},
            "batch": {"equality": equality},
        },
    )


def measured(url):
    """Losses and metrics, of steps and of held-out samples."""
    steps = {("step", s["step"]): {"loss": s["loss"], **s["metrics"]} for s in records(url)}
    return steps | {("eval", s["step"]): {"loss": s["loss"], **s["metrics"]} for s in records(url, "eval")}


QUICK = ("sft", "kto")
IN_BATCHES = [pytest.param(name, "balanced", marks=[] if name in QUICK else [pytest.mark.slow]) for name in KINDS]
BITWISE = [(name, "bitwise") for name in ("sft", "dpo", "dpo, cached", "kto")]


@pytest.mark.parametrize(("name", "equality"), IN_BATCHES + BITWISE)
def test_verify_passes(workers, tmp_path, name, equality):
    """2 workers throughout, and 3, 2, 1, with a prime batch: samples, losses, metrics, weights and forward passes."""
    job = sample_job(tmp_path, name, equality=equality)
    folders = tmp_path / "fixed", tmp_path / "history"
    for folder, sizes in zip(folders, ([2], [3, 2, 1]), strict=True):
        rehearse(workers, Launch(job=job, url=str(folder)), stages(sizes, 5), train_observed)
        found = audit(RunFolder(Storage(str(folder))))
        assert found.clean, found.findings
    checks = compare(job, *folders, [3, 2, 1])
    assert {check.what: check.detail for check in checks if not check.passed} == {}
    here, there = map(measured, folders)
    assert len(here) == 5 + 4
    # Of zeros, it would say nothing of the baseline.
    assert name != "kto" or here["step", 4]["kl"] > 0.01
    for key, values in here.items():
        # Log-probabilities are sums of some hundreds, in float32.
        assert there[key] == (values if equality == "bitwise" else pytest.approx(values, rel=1e-4, abs=1e-4)), key


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_the_reference_is_the_first_weights_after_a_resume(workers, tmp_path, name):
    """Two steps, then three more at another size: as five at once. The checkpoint's would give other rewards."""
    job = sample_job(tmp_path, name, eval={"samples": 0})
    workers.run(run_job, 2, job, str(tmp_path / "whole"))
    workers.run(run_job, 2, job, str(tmp_path / "cut"), 2)
    workers.run(run_job, 3, job, str(tmp_path / "cut"))
    whole, cut = measured(tmp_path / "whole"), measured(tmp_path / "cut")
    for step in range(5):
        assert cut["step", step] == pytest.approx(whole["step", step], rel=1e-4, abs=1e-4)
    # Rewards of weights that are held to themselves would be zero.
    rewards = "chosen_reward" if name != "kto" else "desirable_reward"
    assert whole["step", 0][rewards] == pytest.approx(0.0, abs=1e-4)
    assert abs(cut["step", 2][rewards]) > 0.05


def test_cached_numbers_are_those_of_the_model(workers, tmp_path):
    """To rounding: only the padding is another."""
    for name in ("dpo", "dpo, cached"):
        workers.run(run_job, 2, sample_job(tmp_path, name), str(tmp_path / name))
    model, cached = measured(tmp_path / "dpo"), measured(tmp_path / "dpo, cached")
    for key, values in model.items():
        assert cached[key] == pytest.approx(values, rel=1e-4, abs=1e-4)


def small_parts(rank, job, url, *arguments, stop_after=None, **more):
    """Parts of 16 rows; the last worker asks to stop when it is asked the nth time."""
    from planner.train.reference import cache
    from planner.train.reference.cache import TableBuilder

    before, heard = cache._PART_ROWS, TableBuilder.table
    cache._PART_ROWS = 16

    def table(self):
        asked = []

        def should_stop():
            asked.append(None)
            return rank == self.world.world_size - 1 and len(asked) == stop_after

        object.__setattr__(self, "should_stop", should_stop)
        return heard(self)

    TableBuilder.table = table
    try:
        return run_job(rank, job, url, *arguments, **more)
    finally:
        cache._PART_ROWS, TableBuilder.table = before, heard


def parts(url):
    """The files of the only table, by name."""
    (folder,) = (url / "reference").iterdir()
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def notes(url):
    return [
        event["message"] for event in records(url, "event") if event["message"].startswith(("reference", "stopped"))
    ]


def test_a_stop_keeps_the_parts_that_are_done(workers, tmp_path):
    """All workers stop as one, before the first step; the next ones, another number, compute what is missing."""
    job = sample_job(tmp_path, "dpo, cached", equality="bitwise")
    url = tmp_path / "run"
    # 60 rows in parts of 16, 8 chunks each: 4 rounds of 2 workers a part.
    outcomes = workers.run(small_parts_stopped, 2, job, str(url))
    assert {(outcome.step, outcome.finished) for outcome in outcomes} == {(0, False)}
    assert list(parts(url)) == ["000000000000", "000000000016"]
    assert notes(url) == ["stopped at 32 of 60 rows whose reference log-probabilities were missing"]
    done = parts(url)
    workers.run(small_parts, 3, job, str(url))
    assert len(parts(url)) == 4
    assert parts(url).items() >= done.items()
    assert notes(url)[-1].startswith("reference log-probabilities of 28 rows computed in ")
    workers.run(small_parts, 1, job, str(tmp_path / "alone"))
    assert parts(tmp_path / "alone") == parts(url)
    assert result(url) == result(tmp_path / "alone")


def small_parts_stopped(rank, job, url):
    return small_parts(rank, job, url, stop_after=10)


def test_a_damaged_part_is_computed_again(workers, tmp_path):
    """From the first weights, though there is a checkpoint by now; the others are read, and the ledger says why."""
    job = sample_job(tmp_path, "dpo, cached", equality="bitwise", steps=3)
    url = tmp_path / "run"
    workers.run(small_parts, 2, job, str(url), 1)
    before = parts(url)
    (file,) = url.glob("reference/*/000000000032")
    file.write_bytes(file.read_bytes()[:-9])
    workers.run(small_parts, 3, job, str(url))
    assert parts(url) == before
    torn, computed = notes(url)[1:]
    assert torn.endswith("000000000032: torn or altered (its digest does not match). It is computed again")
    assert computed.startswith("reference log-probabilities of 16 rows computed in ")


def test_feedback_of_one_kind_is_refused(workers, tmp_path):
    """Every worker raises the same error before the first step."""
    job = sample_job(tmp_path, "kto")
    write_rows(tmp_path / "feedback.jsonl", "feedback", only_desirable=True)
    with pytest.raises(DataError, match="none of the 56 rows to train on is undesirable"):
        workers.run(run_job, 2, job, str(tmp_path / "run"))


def test_a_batch_of_one_kind_is_noted_once(workers, tmp_path):
    """And its steps have no metric of the kind that is missing."""
    job = sample_job(tmp_path, "kto", steps=8)
    job = job.model_copy(update={"batch": job.batch.model_copy(update={"global_batch": 2})})
    workers.run(run_job, 2, job, str(tmp_path / "run"))
    told = [e["message"] for e in records(tmp_path / "run", "event") if "global batch" in e["message"]]
    assert len(told) == 1
    step = int(told[0].split()[1].rstrip(":"))
    lacking = [s["step"] for s in records(tmp_path / "run") if len(s["metrics"]) == 2]
    assert lacking[0] == step
    assert len(lacking) > 1


def in_memory(data, model, _progress=None):
    """Bytes for a model that has no tokenizer."""
    return SampleSet(kind=data.kind, context=model.context)


def run_hf(rank, job, url, stop_at=None):
    from planner.data import open as opening
    from planner.train.reference import frozen

    before, make_model = opening.open_dataset, frozen.make_model
    opening.open_dataset = in_memory
    if job.objective.reference_model is None:
        frozen.make_model = None  # no second model is wanted
    try:
        return run_job(rank, job, url, stop_at)
    finally:
        opening.open_dataset, frozen.make_model = before, make_model


@pytest.mark.parametrize("name", ["dpo", pytest.param("kto", marks=pytest.mark.slow)])
def test_adapters_are_held_to_what_lies_below_them(workers, tiny_model, tmp_path, name):
    """Without a second model, after a resume, too: as a frozen copy of the same files says."""
    folder = str(tiny_model("llama"))
    model = HfModel.model_validate({"kind": "hf", "path": folder, "context": 24, "lora": {"rank": 2, "dropout": 0.1}})
    job = sample_job(tmp_path, name, steps=4, equality="bitwise", train={"optimizer": {"kind": "sgd", "lr": 10.0}})
    job = job.model_copy(update={"model": model})
    workers.run(run_hf, 3, job, str(tmp_path / "below"), 2)
    workers.run(run_hf, 2, job, str(tmp_path / "below"))
    objective = job.objective.model_copy(update={"reference_model": folder})
    workers.run(run_hf, 1, job.model_copy(update={"objective": objective}), str(tmp_path / "beside"))
    below, beside = measured(tmp_path / "below"), measured(tmp_path / "beside")
    assert below.keys() == beside.keys()
    for key, values in below.items():
        assert beside[key] == pytest.approx(values, rel=1e-3, abs=1e-3), key
    reward = "chosen_reward" if name == "dpo" else "desirable_reward"
    assert max(abs(values[reward]) for (kind, _), values in below.items() if kind == "step") > 0.01
