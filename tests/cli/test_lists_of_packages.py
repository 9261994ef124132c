"""Texts that list clouds, systems or trackers have those of installed packages, and import none of them."""

import importlib
import sys
from pathlib import Path

import pytest
from plugin_package import install

import planner.cli
from planner.base.text import enumerated
from planner.cli import notice_agent_command
from planner.cli.commands import load
from planner.job.kind_registry import packages
from planner.notice.clouds import GROUP as CLOUDS
from planner.notice.clouds import cloud_names
from planner.recipes.systems import READ


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A package with a cloud, a recipe system and a tracker. Importing it raises."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    for group in (CLOUDS, "planner.recipes", "planner.trackers"):
        name = group.partition(".")[2]
        install(folder, group, {f"our-{name}": "our_package:made"}, {"our_package": "raise OSError"}, name=f"p-{name}")
    packages.cache_clear()
    yield folder
    packages.cache_clear()


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_names_are_enumerated(names, text):
    assert enumerated(names, "or") == text


def help_of(command):
    """The command's help on one line."""
    return " ".join((load(command).help or "").split())


@pytest.fixture
def imported_anew(monkeypatch):
    """A command's help is made when the command is imported, so it is imported again."""
    for name in ("notice_agent", "check", "convert"):
        module = importlib.import_module(f"planner.cli.{name}_command")
        monkeypatch.setattr(planner.cli, f"{name}_command", module)  # puts it back
        monkeypatch.delitem(sys.modules, module.__name__)


@pytest.mark.usefixtures("imported_anew")
def test_help_without_packages_lists_what_planner_knows():
    assert "It knows AWS, Azure and Google Cloud." in help_of("notice-agent")
    listed = [system.listed for system in READ if system.listed]
    assert {"TRL", "DeepSpeed", "the DPO repository", "HALOs"} < set(listed)
    assert f"It reads recipes of {enumerated(listed)}." in help_of("check")
    listed = [name.replace("DeepSpeed", "DeepSpeed's batch sizes") for name in listed]
    assert f"It reads {', '.join(listed)} and its own jobs." in help_of("convert")


def test_the_guide_has_a_row_for_each_cloud():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "notices.md").read_text()
    assert [name for name in cloud_names() if page.count(f"\n| {name} | ") != 2] == []


@pytest.mark.usefixtures("site", "imported_anew")
def test_help_lists_what_packages_add():
    assert "It knows AWS, Azure, Google Cloud and our-clouds." in help_of("notice-agent")
    for command in ("check", "convert"):
        assert ", and installed packages add our-recipes." in help_of(command)


@pytest.mark.usefixtures("site")
def test_an_agent_that_finds_no_cloud_says_which_were_asked(cli, monkeypatch):
    monkeypatch.setattr(notice_agent_command, "_CLOUD_AGAIN_S", 0.0)
    out = cli("notice-agent", "--endpoint", "http://127.0.0.1:1").out
    assert "AWS, Azure, Google Cloud and our-clouds were asked. No notice can come, so the agent ends" in out
    assert cloud_names()[-1] == "our-clouds"


@pytest.mark.usefixtures("site")
def test_a_recipe_that_nobody_reads_is_told_all_systems(cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text("steps: 3\n")
    assert "or a planner job (batch.global), and installed packages add our-recipes" in " ".join(
        cli("check", str(tmp_path / "recipe.yaml")).err.split()
    )


@pytest.mark.usefixtures("site")
def test_a_new_job_lists_all_trackers(cli):
    assert "sent: wandb, tensorboard, mlflow, trackio, jsonl or our-trackers. One" in cli("init", "x", "--dry-run").out
