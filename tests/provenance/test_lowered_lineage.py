"""Generations whose caps were lowered because workers ran out of memory, in both audits: true and forged ones."""

import pytest
from made_up_runs import MadeUpRun, make_job
from sample_sets import write_rows
from verifiers import audited, run_script

from planner.job import batch_sizes
from planner.plan import make_plan
from planner.plan.lowered_caps import Caps, LoweredCap, lowered_sizes
from planner.store.records import LoweredCapRecord

SIZES = {"global": 8, "max_micro": 8}


def lowered(was, now, device="CPU", tokens=(None, None)):
    caps = [Caps(max_micro=micro, max_tokens=cap) for micro, cap in zip((was, now), tokens, strict=True)]
    return LoweredCap(device=device, place="forward", was=caps[0], now=caps[1])


def records(*found):
    return tuple(map(LoweredCapRecord.of, found))


def begun(folder, **batch):
    """A run of eight samples per step that has a commit at step 2."""
    job = make_job({"kind": "text", "path": corpus(folder)}, batch={**SIZES, **batch})
    return MadeUpRun(folder, job=job).begin(2).steps(2).commit()


def corpus(folder):
    path = folder / "corpus.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 20)
    return str(path)


def verdicts(run):
    """What the audit and the script find."""
    folder = run.run.storage.url
    code, output = run_script(folder)
    wrong = [line for line in output.splitlines() if line.startswith("WRONG ")]
    assert (code == 0) == (not wrong), output
    return audited(folder).findings, wrong


@pytest.mark.parametrize(
    "found",
    [
        [lowered(8, 4)],
        [lowered(8, 4), lowered(4, 1)],
        [lowered(8, 4), lowered(4, 2, "NVIDIA H100")],
        [lowered(8, 2), lowered(8, 4, "NVIDIA H100")],
    ],
)
def test_a_generation_with_lowered_caps_is_clean(tmp_path, found):
    """Its plan is that of the least of them."""
    run = begun(tmp_path)
    run.begin_lowered(2, run.name, found).steps(2).commit()
    assert verdicts(run) == ((), [])


def test_by_length_it_is_clean(tmp_path):
    """The split of each step follows from the lower caps, too."""
    data = {"kind": "chat", "path": write_rows(tmp_path / "rows.jsonl", "chat")}
    model = {"context": 64}
    sizes = {"global": 11, "max_micro": 8, "max_tokens": 160}
    run = MadeUpRun(tmp_path, job=make_job(data, model=model, objective={"kind": "sft"}, batch=sizes))
    run.begin(2).steps(2).commit()
    run.begin_lowered(2, run.name, [lowered(8, 4, tokens=(160, 90))]).steps(2).commit()
    assert verdicts(run) == ((), [])
    run.begin(2, run.name, lowered=records(lowered(8, 4, tokens=(160, 90)))).steps(2).commit()
    assert all(verdicts(run))  # the plan of the job's own caps


FORGED = {
    "no reason at all": {"max_micro": 4},
    "a plan below what was lowered": {"max_micro": 2, "lowered": records(lowered(8, 4))},
    "a plan above what was lowered": {"max_micro": 8, "lowered": records(lowered(8, 4))},
    "a cap that the job never had": {"max_micro": 8, "lowered": records(lowered(16, 8))},
    "a cap that was not in force any more": {"max_micro": 2, "lowered": records(lowered(8, 4), lowered(8, 2))},
    "less than half": {"max_micro": 6, "lowered": records(lowered(8, 6))},
    "a cap on tokens": {"max_micro": 4, "lowered": records(lowered(8, 4, tokens=(100, 50)))},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_one_is_found(tmp_path, what):
    """By both, though chain and plan agree with the header."""
    run, header = begun(tmp_path), FORGED[what]
    sizes = batch_sizes(run.job)
    plan = make_plan(lowered_sizes(sizes, [lowered(8, header["max_micro"])]), 2)
    run.begin(2, run.name, plan_digest=plan.digest, **header).steps(2).commit()
    found, wrong = verdicts(run)
    assert found
    assert wrong


def test_a_bitwise_run_can_have_none(tmp_path):
    """Its caps decide the bits."""
    run = begun(tmp_path, equality="bitwise")
    run.begin_lowered(2, run.name, [lowered(8, 4)]).steps(2).commit()
    found, wrong = verdicts(run)
    assert any("bitwise allows none" in each for each in found)
    assert any("bitwise allows none" in each for each in wrong)
