"""docs/reference/ and docs/benchmarks.md say what the program does."""

import re
import sys

import pytest
from pages import ROOT, name

import planner
from planner.job.data_registry import DATA_KINDS
from planner.job.objectives import OURS
from planner.report.plan_table import split_text

JOB_FILE = (ROOT / "docs" / "reference" / "job-file.md").read_text(encoding="utf-8")


@pytest.fixture
def scripts(monkeypatch):
    """The scripts of docs/ and bench/ can be imported."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "docs"), str(ROOT / "bench"), *sys.path])


@pytest.mark.usefixtures("scripts")
def test_generated_pages_are_current():
    """`make docs` after each change of a job's sections or of a command's help."""
    from generate import pages

    assert [name(file) for file, text in pages().items() if file.read_text(encoding="utf-8") != text] == []


@pytest.mark.usefixtures("scripts")
def test_the_table_of_figures_is_made_from_the_results():
    """`make docs` after each measurement."""
    from _table import PAGE, place

    page = PAGE.read_text(encoding="utf-8")
    assert place(page) == page


@pytest.mark.usefixtures("scripts")
def test_generated_parts_have_a_place():
    """The two tests above would pass if a page had lost its comments and its tables."""
    import _table
    import generate

    page = _table.PAGE.read_text()
    for comment in (_table.BEGIN, _table.END, _table.BEGIN_COMMITS, _table.END_COMMITS):
        assert page.count(comment) == 1
    for page in generate.pages():
        assert page.read_text().count(generate.BEGIN) == page.read_text().count(generate.END) == 1
        assert page.read_text().count("\n| ") > 25


def test_every_script_that_measures_is_described():
    """With what its figures mean."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    scripts = [name(file) for file in (ROOT / "bench").glob("[a-z]*.py")]
    assert [script for script in scripts if f"[`{script}`](../{script})" not in page] == []


def test_every_job_is_named():
    """In the table of jobs, with a link."""
    jobs = [name(file) for file in (ROOT / "jobs").rglob("*.yaml")]
    assert [job for job in jobs if f"[`{job}`](../../{job})" not in JOB_FILE] == []


def test_every_key_of_data_and_objectives_has_a_row():
    """Each section has a table; the schema alone would not explain it."""
    sections = [spec.config for ours in (DATA_KINDS.ours, OURS) for spec in ours.values()]
    keys = {key for section in sections for key in section.model_fields} - {"kind"}
    assert {"loss_on", "gamma_beta_ratio"} < keys
    assert [key for key in sorted(keys) if f"\n| `{key}` | " not in JOB_FILE] == []
    assert "data.md#prompts-and-completions" in JOB_FILE


@pytest.mark.parametrize("file", sorted((ROOT / "jobs" / "full").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_plans_of_full_size_jobs_are_right(file):
    """What the table says about seven GPUs."""
    (plan,) = planner.plans(str(file), gpus=[7])
    (row,) = re.findall(rf"(?m)^\| \[`{re.escape(name(file))}`\].*", JOB_FILE)
    rounds = f"in {plan.accumulation_steps} rounds of at most {plan.max_micro_batch}"
    assert row.endswith(f"| `{split_text(plan.shares)}` {rounds}, {plan.efficiency:.1%} efficient |")


def test_the_exit_codes_are_right(reader):
    """Each command in the table of examples is typed. Those that look at runs find a finished one."""
    page = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    examples = re.findall(r"(?m)^\| `(planner [^`]*)` \| (\d+) \|$", page)
    assert {code for _, code in examples} == {"0", "1", "2"}
    assert [(text, reader.type(text).code) for text, _ in examples] == [(text, int(code)) for text, code in examples]
