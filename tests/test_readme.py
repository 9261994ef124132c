"""README's figures are those of the last measurement."""

import sys
from pathlib import Path
from typing import get_args

from planner.job import Job
from planner.job.objectives import OURS

ROOT = Path(__file__).parent.parent


def test_the_table_of_figures_is_made_from_the_results(monkeypatch):
    """`python bench/_table.py` renews it."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    from _table import place

    readme = (ROOT / "README.md").read_text()
    assert place(readme) == readme


def test_every_job_is_named():
    """Whoever looks for one finds it."""
    readme = (ROOT / "README.md").read_text()
    jobs = [str(file.relative_to(ROOT)) for file in (ROOT / "jobs").rglob("*.yaml")]
    assert [job for job in jobs if job not in readme] == []


def test_every_key_of_data_and_objectives_is_named():
    """Where a user is sent: not in the schema alone."""
    readme = (ROOT / "README.md").read_text()
    sections = [*get_args(Job.model_fields["data"].annotation), *(spec.config for spec in OURS.values())]
    keys = {name for section in sections for name in section.model_fields}
    assert {"loss_on", "gamma_beta_ratio"} < keys
    assert [key for key in sorted(keys) if f"`{key}" not in readme and f"{key}:" not in readme] == []
    assert "docs/reference/data.md#prompts-and-completions" in readme
    assert "make_llama.py" in readme
