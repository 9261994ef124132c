"""README's figures are those of the last measurement."""

import sys
from pathlib import Path

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
