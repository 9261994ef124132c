"""Micro-batches by length in `docs/verify_run.py`: it has an assignment of its own, and it is held to planner's."""

import json
import random
import re
import shutil
import time
from pathlib import Path

import pytest
from fixed_examples import examples
from forging import rechained, step, with_job
from hypothesis import given
from hypothesis import strategies as st
from made_up_runs import MadeUpRun, make_job
from sample_sets import write_rows
from verifiers import audited, load_script, run_script

from planner.errors import StoreError
from planner.plan import BatchSizes, make_plan

MODES = ["balanced", "bitwise"]
OBJECTIVES = {"chat": "sft", "pairs": "dpo", "feedback": "kto"}
ANOTHER_SPLIT = "who computed what is not what the lengths give"


@pytest.fixture(scope="module")
def script():
    """The script as a module, by its path."""
    return load_script()


# -- the assignment


def of_planner(documents, workers, **sizes):
    """Micro-batches of samples with these documents, in their order."""
    plan = make_plan(BatchSizes(global_batch=len(documents), **sizes), workers)
    tokens, squares = ([sum(size**power for size in each) for each in documents] for power in (1, 2))
    return [list(each) for each in plan.assignment(tokens, squares).micro_batches_in_order]


def of_script(script, documents, workers, *, equality, max_micro, max_tokens, attention_at=None):
    tokens = costs = [sum(each) for each in documents]
    if attention_at is not None:
        squares = [sum(size**2 for size in each) for each in documents]
        costs = [size * attention_at + square for size, square in zip(tokens, squares, strict=True)]
    samples = script.Samples(tokens, costs, max_micro, max_tokens)
    return script.micro_batches(samples, workers, is_bitwise=equality == "bitwise")


@st.composite
def steps(draw):
    """Documents of a step's samples, workers, and sizes. Many samples are equal, or all are of any length."""
    longest = draw(st.sampled_from([1, 2, 3, 6, 20, 300, 5_000]))
    length = st.integers(1, longest)
    sample = draw(
        st.sampled_from([st.tuples(length), st.tuples(length, length), st.lists(length, min_size=1, max_size=4)])
    )
    documents = draw(st.lists(sample, min_size=1, max_size=draw(st.sampled_from([8, 30, 90]))))
    most = max(map(sum, documents))
    return documents, {
        "workers": draw(st.integers(1, 12) | st.sampled_from([64, 65_536])),
        "equality": draw(st.sampled_from(MODES)),
        "max_micro": draw(st.integers(1, 8) | st.sampled_from([32, 4096])),
        "max_tokens": draw(st.integers(most, most + 3) | st.integers(most, 4 * most) | st.just(2**24)),
        "attention_at": draw(st.none() | st.sampled_from([1, 2**24]) | st.integers(1, 3 * longest)),
    }


# Each is one of a few in 100,000 random steps that show whether targets are drawn closer by each quarter, and which of
# two equal samples is exchanged.
RARE = [
    ("1,28 2,1 1,1 1,3 1,2 1,3 4,1 1,60 1,1 3,1 2,1 36,19 2,1 27,2 1,2 1,5", 3, "balanced", 3, 61, 180),
    ("1,1 2,2 1,6 2,7 12,4 2,1 30,5 1,2 1,1 1,1 4,2 1,51", 2, "balanced", 4, 52, 60),
    ("1 4 2 1 2 2 4 1 1 1 1 4 5 1 1 9 2 6 1", 3, "balanced", 4, 9, 1),
    ("4,10 3,7 10,12 8,6 10,2", 2, "balanced", 4, 36, 12),
    ("6,12 3,7 6,7 9,11 1,10 12,7 5,7 12,10 6,4 12,7 12,1 7,10 12,7", 4, "balanced", 6, 64, 1),
    ("63 54 79 96 104 91 61 73 42 53 34 83 47 92 64 57 57 85 17 54", 4, "bitwise", 3, 449, None),
]
NAMES = ("workers", "equality", "max_micro", "max_tokens", "attention_at")


def same_assignment(script, documents, sizes):
    assert of_script(script, documents, **sizes) == of_planner(documents, **sizes)


@examples(400)
@given(steps())
def test_its_assignment_is_ours(script, case):
    """For samples of one document, pairs and packed rows, in both modes, with caps that are tight, loose and absent."""
    same_assignment(script, *case)


@pytest.mark.parametrize("case", RARE, ids=lambda case: case[0][:12])
def test_its_assignment_of_rare_steps_is_ours(script, case):
    """Random steps hardly ever reach these lines."""
    documents = [[int(length) for length in sample.split(",")] for sample in case[0].split()]
    same_assignment(script, documents, dict(zip(NAMES, case[1:], strict=True)))


def tight_step(dice):
    """Samples of which a few are long, in a few rounds that they almost fill. Hypothesis draws few of those."""
    longest, documents = dice.choice([4, 12, 60, 300, 3000]), dice.choice([(1, 1), (2, 2), (1, 4)])
    skewed = dice.random() < 0.5

    def length():
        return min(longest, int(dice.paretovariate(0.8))) if skewed else dice.randint(1, longest)

    samples = [[length() for _ in range(dice.randint(*documents))] for _ in range(dice.randint(2, 60))]
    totals, workers = [*map(sum, samples)], dice.choice([1, 2, 3, 4, 6])
    each = sum(totals) / (workers * dice.randint(1, 5))
    return samples, {
        "workers": workers,
        "equality": dice.choice(MODES),
        "max_micro": dice.choice([1, 2, 3, 4, 6, 32]),
        "max_tokens": max(*totals, int(each * dice.uniform(1, 1.4))),
        "attention_at": dice.choice([None, 1, longest, 3 * longest]),
    }


def test_its_assignment_of_tight_steps_is_ours(script):
    """Of 5,000 random ones. Packings fail there, and exchanges are many."""
    dice = random.Random(23)
    for _ in range(5_000):
        same_assignment(script, *tight_step(dice))


def pairs_of(count, seed=5):
    dice = random.Random(seed)
    return [[int(dice.lognormvariate(5.3, 0.8)) + 1 for _ in range(2)] for _ in range(count)]


@pytest.mark.parametrize("attention_at", [None, 700])
@pytest.mark.parametrize("equality", MODES)
@pytest.mark.parametrize(("count", "workers"), [(2048, 64), (512, 7)])
def test_its_assignment_of_a_large_step_is_ours(script, equality, attention_at, count, workers):
    """With lengths as of real pairs, so that several rounds and head starts are needed."""
    documents = pairs_of(count)
    sizes = {"equality": equality, "max_micro": 16, "max_tokens": 8192, "attention_at": attention_at}
    assert of_script(script, documents, workers, **sizes) == of_planner(documents, workers, **sizes)


@pytest.mark.parametrize("equality", MODES)
@pytest.mark.parametrize("count", [2**14, 2**14 + 1])
def test_its_assignment_is_ours_on_both_sides_of_the_limit_of_targets(script, equality, count):
    """Larger steps go without."""
    documents = pairs_of(count)
    sizes = {"equality": equality, "max_micro": 16, "max_tokens": 8192, "attention_at": 700}
    assert of_script(script, documents, 500, **sizes) == of_planner(documents, 500, **sizes)


# -- runs


def made_run(folder, kind="pairs", *, workers=(3, 2), num_steps=4, **batch):
    """A run of two generations, clean for the audit. Its data is beside it."""
    rows = write_rows(folder / f"{kind}.jsonl", kind)
    job = make_job(
        {"kind": kind, "path": str(rows)},
        objective={"kind": OBJECTIVES[kind]},
        model={"context": 40},
        batch={"global": 11, "max_micro": 4, "max_tokens": 160, **batch},
        eval={"samples": 4},
    )
    made = MadeUpRun(folder, job=job).begin(workers[0]).steps(num_steps).commit()
    made.begin(workers[1], made.name).steps(num_steps).commit()
    run = Path(made.run.storage.url)
    assert audited(run).clean, audited(run).findings
    return run


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("batch", [{}, {"attention_at": 16}, {"equality": "bitwise"}, {"max_tokens": 2**24}], ids=str)
def test_a_run_by_length_is_clean(tmp_path, kind, batch):
    """It derives who computed what in each round."""
    code, output = run_script(made_run(tmp_path, kind, **batch))
    assert code == 0, output
    assert "verify_run: clean. 8 steps" in output


def test_a_token_file_by_length_is_clean(tmp_path):
    """Windows of a text over bytes, of which the last is shorter."""
    (tmp_path / "text.txt").write_text("the quick brown fox " * 30)
    job = make_job({"kind": "text", "path": f"{tmp_path}/text.txt"}, batch={"global": 5, "max_tokens": 16})
    made = MadeUpRun(tmp_path, job=job).begin(2).steps(20).commit()
    code, output = run_script(made.run.storage.url)
    assert code == 0, output


def test_more_workers_than_samples(tmp_path):
    """Those without samples do not count."""
    code, output = run_script(made_run(tmp_path, workers=(65_536, 17), **{"global": 1}))
    assert code == 0, output


def test_an_altered_placement_is_found(tmp_path):
    """With every hash made anew. It names the step, and nothing else is wrong."""
    run = made_run(tmp_path)
    rechained(step(5, placement=lambda old: f"{int(old, 16) ^ 1:016x}"))(run)
    code, output = run_script(run)
    assert code == 1
    assert [line for line in output.splitlines() if line.startswith("WRONG")] == [
        f"WRONG generation 2: step 5: {ANOTHER_SPLIT}"
    ]
    assert not audited(run).clean


@pytest.mark.parametrize(
    "alter", [{"world_size": 5}, {"max_micro": 2}, {"max_tokens": 100}, {"attention_at": 9}], ids=str
)
def test_a_run_as_of_another_plan_is_found(script, tmp_path, alter):
    """Its plan's digest fits, and its job."""
    run = made_run(tmp_path)
    forge_plan(script, run, **alter)
    code, output = run_script(run)
    assert code == 1
    assert all(line.endswith(ANOTHER_SPLIT) for line in output.splitlines() if line.startswith("WRONG")), output


def forge_plan(script, run, **values):
    """Give all headers other values, with the digest of their plan, and the job other limits."""

    def alter(value):
        value.update({key: given for key, given in values.items() if key in value or "max_micro" in value})
        known = json.loads((run.parent / "header.json").read_text())
        value["plan_digest"] = script.plan_digest({**known, "world_size": value["world_size"], **values})

    [first, *_] = sorted((run / "ledger").iterdir())
    (run.parent / "header.json").write_text(json.dumps(json.loads(first.read_text().splitlines()[0])["record"]))
    limits = {key: value for key, value in values.items() if key != "world_size"}
    with_job(run, lambda job: job["batch"].update(limits), alter)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_tokens": 30}, r"step 0: its samples have"),
        ({"max_tokens": 0}, "batch.max_tokens is 0 on record, and no job has that"),
        ({"max_tokens": -5}, "batch.max_tokens is -5 on record, and no job has that"),
        ({"max_tokens": 2**40}, f"batch.max_tokens is {2**40} on record, and no job has that"),
        ({"attention_at": 0}, "batch.attention_at is 0 on record, and no job has that"),
        ({"attention_at": -(10**300)}, f"batch.attention_at is -{10**300} on record, and no job has that"),
        ({"attention_at": 10**300}, f"batch.attention_at is {10**300} on record, and no job has that"),
        ({"max_micro": 0}, "batch.max_micro is 0 on record, and no job has that"),
        ({"world_size": 0}, "its plan is not what layout version 2 gives"),
        ({"world_size": -3}, "its plan is not what layout version 2 gives"),
        ({"world_size": 2**60}, "its plan is not what layout version 2 gives"),
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_findings(script, tmp_path, values, said):
    """Found at once, and each in a sentence."""
    run = made_run(tmp_path)
    forge_plan(script, run, **values)
    began = time.monotonic()
    code, output = run_script(run)
    assert time.monotonic() - began < 20
    assert code == 1
    assert said in output
    assert "missing, torn or garbage" not in output


@pytest.mark.parametrize("limit", ["max_tokens", "max_micro"])
def test_a_job_with_a_limit_that_is_no_integer_is_found(tmp_path, limit):
    """It equals the one on record, and planner reads no such job."""
    run = made_run(tmp_path)
    with_job(run, lambda job: job["batch"].update({limit: float(job["batch"][limit])}))
    code, output = run_script(run)
    assert code == 1
    assert re.search(rf"batch.{limit} is \d+ on record, and its job says \d+\.0", output)
    with pytest.raises(StoreError, match="not a job of this version of planner"):
        audited(run)


def test_what_no_step_says_is_found(tmp_path):
    """A placement that is not on record, and one where the plan needs none."""
    run, plain = (made_run(make_folder(tmp_path, str(most)), max_tokens=most) for most in (160, None))
    rechained(lambda record: record.pop("placement", None))(run)
    rechained(lambda record: record.update(placement="0" * 16) if record["kind"] == "step" else None)(plain)
    assert "step 0: it has no placement on record" in run_script(run)[1]
    assert "step 0: it has a placement on record" in run_script(plain)[1]


def make_folder(folder, name):
    (folder / name).mkdir()
    return folder / name


def test_a_limit_without_its_layout_is_found(tmp_path):
    """Or a layout without its limit. Nothing is derived from that."""
    run = made_run(tmp_path)
    without = shutil.copytree(run, tmp_path / "without")
    rechained(lambda record: record.update(layout_version=1) if record["kind"] == "generation" else None)(run)
    rechained(lambda record: record.pop("max_tokens", None))(without)
    for each, version in ((run, 1), (without, 2)):
        code, output = run_script(each)
        assert code == 1
        assert f"its plan has layout version {version}, which does not fit its max_tokens" in output
        assert "missing, torn or garbage" not in output


def test_lengths_that_were_made_up_to_take_hours_are_not_checked(script, tmp_path, monkeypatch):
    """Here the limit is zero, and in some step a micro-batch lacks room for a sample and has room for a later one."""
    run = made_run(tmp_path, attention_at=1, max_tokens=90)
    findings, unread = [], []
    script.check(run, ("", ""), findings, unread, listed=False)
    assert (findings, unread) == ([], [])
    monkeypatch.setattr(script, "MOST_ASIDE", 0)
    script.check(run, ("", ""), findings, unread, listed=False)
    assert findings == []
    assert {what for what, _ in unread} == {"split over workers"}
    assert all("deriving it from the lengths of their samples takes too long" in reason for _, reason in unread)


def test_work_that_grows_with_the_square_of_a_step_ends(script, monkeypatch):
    """Pairs of equal cost and of 414 or 294 tokens in turn. For each, half of the micro-batches lack room or get it."""
    count = 512
    documents = [[1, 418]] * (count // 2) + [[283, 295]] * (count // 2) + [[1, 293], [203, 211]] * (count // 2)
    sizes = {"equality": "balanced", "max_micro": 32, "max_tokens": 932, "attention_at": 1}
    same_assignment(script, documents, {"workers": count, **sizes})
    monkeypatch.setattr(script, "MOST_ASIDE", 20 * len(documents))
    assert len(of_script(script, pairs_of(len(documents)), count, **{**sizes, "max_tokens": 6000})) == count
    with pytest.raises(script.Unread, match="takes too long"):
        of_script(script, documents, count, **sizes)


def test_lengths_of_samples_that_it_does_not_make(tmp_path):
    """It says that it has not derived the split, and why."""
    rows = write_rows(tmp_path / "rows.jsonl", "chat")
    job = make_job(
        {"kind": "chat", "path": str(rows), "packing": True},
        objective={"kind": "sft"},
        model={"context": 40},
        batch={"global": 5, "max_tokens": 90},
    )
    made = MadeUpRun(tmp_path, job=job).begin(2).steps(3).commit()
    code, output = run_script(made.run.storage.url)
    assert code == 3, output
    assert "split over workers NOT CHECKED: lengths of samples decide it, and the samples were not recomputed" in output
    assert "good but for the samples and the split over workers. 3 steps" in output
