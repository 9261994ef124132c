"""What contributors and CI are told to run is there, and is the same everywhere."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FILES = [ROOT / ".ci" / "run", *sorted(file for file in GITHUB.rglob("*") if file.is_file())]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_make_target_is_there(file):
    """In CI, the workflows, the hooks and the contributing guide."""
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|run: |entry: |`)make (?:-j2 )?([a-z-]+)", file.read_text(), flags=re.MULTILINE))
    assert named - targets == set()


@pytest.mark.parametrize("page", [ROOT / "CHANGELOG.md", *sorted(GITHUB.rglob("*.md"))], ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    """As in README and docs."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_ci_on_github_runs_what_our_ci_runs():
    """Each target of `.ci/run`, on every Python that the package allows and the linters on one."""
    jobs = yaml.safe_load((GITHUB / "workflows" / "test.yml").read_text())["jobs"]
    lines = re.findall(r"^make (?:-j2 )?(.*)", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)
    ours = {target for line in lines for target in line.split()}
    theirs = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert {f"make {target}" for target in ours} <= theirs
    assert {"lint", "wheel-test", "test"} <= ours
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    for job in ("test", "wheel"):
        assert jobs[job]["strategy"]["matrix"]["python"] == [least, "3.12", "3.13"]


def test_the_hooks_run_what_ci_lints_by():
    """So that a commit that passes the hook passes that step."""
    (repository,) = yaml.safe_load((GITHUB / "pre-commit.yaml").read_text())["repos"]
    entries = {hook["id"]: hook["entry"] for hook in repository["hooks"]}
    assert entries == {"lint": "make lint", "subject": ".github/check_subject.sh"}


@pytest.mark.process
@pytest.mark.parametrize(("length", "code"), [(1, 0), (72, 0), (73, 1)])
def test_a_subject_has_at_most_72_characters(tmp_path, length, code):
    """Characters and not bytes. The body may have longer lines, and git's remarks do not count."""
    message = tmp_path / "message"
    message.write_text(f"# a remark\n{'ü' * length}\n\n{'body ' * 40}\n")
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    command = [GITHUB / "check_subject.sh", message]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("73 characters" in done.stderr) == bool(code)
