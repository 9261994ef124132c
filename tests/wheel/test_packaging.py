"""The distribution: its name, and how messages and docs tell users to install from it."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# `pip install planner`, 'planner[hf]', planner==0.1.0: another package on PyPI. Paths such as ~/planner are ours.
FOREIGN = re.compile(r"""(pip3? install [^\n`'"]*(?<![\w./~-])planner(?![\w-])|['" ]planner(\[[a-z,]+\]['"]|==))""")


def test_nobody_is_told_to_install_the_other_planner():
    """In messages, docs, cluster files and the Makefile. `planner` on PyPI belongs to others."""
    assert FOREIGN.search("pip install 'planner[hf]'")
    assert FOREIGN.search("pip install --quiet planner")
    assert not FOREIGN.search("uv pip install --constraint ~/planner/constraints.txt ~/planner 'ray[default]'")
    files = [
        file
        for end in ("md", "yaml", "py", "toml")
        for top in ("planner", "docs", "jobs")
        for file in (ROOT / top).rglob(f"*.{end}")
    ]
    files += [*ROOT.glob("*.md"), *ROOT.glob("*.yaml"), *ROOT.glob("*.toml"), ROOT / "Makefile"]
    assert [str(file) for file in files if FOREIGN.search(file.read_text(encoding="utf-8"))] == []


def test_the_dev_extra_brings_our_own_extras():
    """By the distribution's own name, or pip would fetch them from another package."""
    extras = PROJECT["optional-dependencies"]
    ours = [name for name in extras["dev"] if name.startswith(f"{PROJECT['name']}[")]
    assert ours == [f"{PROJECT['name']}[submit,hf,report,trackers]"]
    assert PROJECT["name"] != "planner"
    assert PROJECT["scripts"] == {"planner": "planner.cli:main"}
