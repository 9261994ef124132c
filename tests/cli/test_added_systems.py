"""Recipe systems that installed packages add: the example of docs/extending.md, and packages that are broken."""

import json
from pathlib import Path

import pytest
from plugin_package import example, install, install_example

from planner.errors import PlannerError, RecipeError
from planner.recipes import RecipeOptions, read_recipe, rewrite

CHECK = RecipeOptions(is_for_job=False, needs_micro=False)
TRL = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 2\nlearning_rate: 1e-6\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def litgpt(site, tmp_path):
    """A recipe of the document's example, with its package installed."""
    files = install_example(site, "A recipe system")
    file = tmp_path / "litgpt.yaml"
    file.write_text(files["litgpt.yaml"])
    return str(file)


def test_without_the_package_its_recipe_is_only_recognised(tmp_path):
    """This is what the package changes."""
    file = tmp_path / "litgpt.yaml"
    file.write_text(example("A recipe system")["litgpt.yaml"])
    with pytest.raises(RecipeError, match=r"this looks like LitGPT \(checkpoint_dir, .*, which planner does not read"):
        read_recipe(str(file), (), CHECK)


def test_a_command_of_the_documents_example_is_only_recognised(litgpt):
    """The example only reads files."""
    command = f"litgpt finetune_lora m --train.global_batch_size 16 --train.micro_batch_size 4 --config {litgpt}"
    with pytest.raises(RecipeError, match=r"this looks like LitGPT \(litgpt finetune_lora\)"):
        read_recipe(command, (), CHECK)


def test_a_recipe_of_the_documents_example_is_checked(litgpt, cli):
    """48 = 16 x 3 at 4 GPUs, 5 x 8 + nothing of the last 8 at 5, and an error past 12."""
    answer = cli("check", litgpt, "--gpus", "4,5,13", "--json")
    assert answer.code == 0
    made = json.loads(answer.out)
    assert (made["system"], made["global_batch"], made["exact_there"], made["exact_here"]) == (
        "litgpt",
        48,
        [4],
        [4, 5, 13],
    )
    assert [each["batch"] for each in made["counts"]] == [48, 40, None]
    assert "LitGPT: exact at 1 of 3 counts" in cli("check", litgpt, "--gpus", "4,5,13").out


def test_a_recipe_of_the_documents_example_is_converted(litgpt, cli, tmp_path):
    """Into a job that planner plans. Every key is reported."""
    job = str(tmp_path / "job.yaml")
    answer = cli("convert", litgpt, "--train.epochs", "3", "-o", job)
    assert answer.code == 0
    assert "checkpoint_dir: your loop decides it" in answer.out
    assert "train.epochs -> train.epochs: 3" in answer.out
    assert "(LitGPT, what LitGPT trains)" in (tmp_path / "job.yaml").read_text()
    assert "exact at 2 of 2" in cli("check", litgpt, "--gpus", "5,7").out
    assert cli("plan", job, "--gpus", "5").code == 0
    refused = cli("convert", litgpt, "epochs")
    assert (refused.code, "epochs: found no --key value" in refused.err) == (2, True)


def test_a_batch_is_said_to_the_documents_example(litgpt, cli, tmp_path):
    """From its own recipe, and from one of another system."""
    own = cli("convert", litgpt, "--to", "litgpt", "--at", "6")
    assert "\nlitgpt finetune --devices 6 --train.global_batch_size 48 --train.micro_batch_size 4\n" in own.out
    other = tmp_path / "recipe.yaml"
    other.write_text(TRL)
    said = cli("convert", str(other), "--to", "litgpt", "--gpus", "4", "--method", "sft")
    assert "\nlitgpt finetune --devices 4 --train.global_batch_size 8 --train.micro_batch_size 2\n" in said.out
    refused = cli("convert", litgpt, "--to", "litgpt", "--at", "5")
    assert (refused.code, "LitGPT cannot train a batch of 48 on 5 GPUs" in refused.err) == (1, True)


def test_the_names_of_added_systems_are_listed(litgpt, cli):
    assert "torchtune, axolotl, llamafactory, swift or litgpt" in cli("convert", litgpt, "--to", "slurm").err


BROKEN = {
    "no_module": ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "no_system": ("SYSTEM = 3", "it is no planner.recipes.System with the name broken"),
    "other_name": (
        "from planner.recipes import System\nSYSTEM = System(name='other', title='Other')",
        "it is no planner.recipes.System with the name broken",
    ),
    "half": (
        "from planner.recipes import System\nSYSTEM = System(name='broken', title='B', detect=bool)",
        "ValueError: broken: detect and read go together",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_package_is_named_only_where_it_matters(how, site, tmp_path, cli, monkeypatch):
    """For recipes that no other system reads and for `--to` with its name, but not for known systems."""
    text, says = BROKEN[how]
    install(site, "planner.recipes", {"broken": f"broken_{how}:SYSTEM"}, {f"broken_{how}": text}, name="planner-broken")
    told = f"planner.recipes: broken of planner-broken 1.0 cannot be used ({says}). Repair or uninstall the package"
    monkeypatch.chdir(tmp_path)  # short paths: a message has at most 500 characters
    known, nobodys = Path("known.yaml"), Path("nobodys.yaml")
    known.write_text(TRL)
    nobodys.write_text("a: 1\n")
    assert read_recipe(str(known), (), RecipeOptions(gpus=4, method="sft")).system == "trl"
    with pytest.raises(RecipeError) as raised:
        read_recipe(str(nobodys), (), CHECK)
    first, second = str(raised.value).splitlines()
    assert "found no recipe that planner knows: its keys are a." in first
    assert second.endswith(told)
    answer = cli("convert", str(known), "--to", "broken", "--gpus", "4", "--method", "sft")
    assert (answer.code, answer.err.strip().endswith(told), "Traceback" in answer.err) == (1, True, False)


def test_a_package_cannot_take_the_name_of_a_known_system(site, tmp_path):
    """The package is not asked, and `--to` means the known system."""
    install(site, "planner.recipes", {"trl": "math:pi"}, {}, name="planner-thief")
    file = tmp_path / "recipe.yaml"
    file.write_text(TRL)
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=4, method="sft"))
    assert rewrite(recipe, "trl", 4).command.startswith("accelerate launch")
    file.write_text("a: 1\n")
    with pytest.raises(PlannerError, match=r"trl of planner-thief 1\.0 cannot be used \(planner has a system of"):
        read_recipe(str(file), (), CHECK)


def test_two_packages_with_one_name_are_named(site, tmp_path):
    for package in ("planner-first", "planner-second"):
        install(site, "planner.recipes", {"same": "math:pi"}, {}, name=package)
    file = tmp_path / "recipe.yaml"
    file.write_text("a: 1\n")
    with pytest.raises(RecipeError, match=r"same of planner-first 1\.0 and planner-second 1\.0 cannot be used"):
        read_recipe(str(file), (), CHECK)


GREEDY = """
from planner.errors import RecipeError
from planner.recipes import System

def read(found, options):
    raise RecipeError(f"{found.source}: read by the greedy package")

SYSTEM = System(name="greedy", title="Greedy", detect=lambda found: True, read=read)
"""


def test_a_package_that_claims_everything_gets_what_nobody_else_reads(site, tmp_path, cli):
    """Files of keys, unknown commands and TOML, but no TRL recipe. It has no render, so `--to` refuses it."""
    install(site, "planner.recipes", {"greedy": "planner_greedy:SYSTEM"}, {"planner_greedy": GREEDY})
    toml, known = tmp_path / "a.toml", tmp_path / "known.yaml"
    toml.write_text("[a]\nb = 1\n")
    known.write_text(TRL)
    for recipe in (str(toml), "litgpt finetune --model m"):
        with pytest.raises(RecipeError, match="read by the greedy package"):
            read_recipe(recipe, (), CHECK)
    assert read_recipe(str(known), (), RecipeOptions(gpus=4, method="sft")).system == "trl"
    refused = cli("convert", str(known), "--to", "greedy", "--gpus", "4", "--method", "sft")
    assert (refused.code, "--to greedy: planner only reads recipes of Greedy" in refused.err) == (2, True)


FAULTY = """
from planner.recipes import System

def detect(found):
    if "a" in found.tree:
        return found.tree["b"]
    return True

def read(found, options):
    return found.tree

def render(split, words):
    return {}["command"]

SYSTEM = System(name="faulty", title="Faulty", detect=detect, read=read, render=render)
"""


def test_whatever_a_package_raises_or_returns_is_one_line(site, tmp_path, cli):
    """A broken `detect` does not affect other packages."""
    install(site, "planner.recipes", {"faulty": "planner_faulty:SYSTEM"}, {"planner_faulty": FAULTY}, "planner-faulty")
    read, claimed, known = tmp_path / "read.yaml", tmp_path / "claimed.yaml", tmp_path / "known.yaml"
    read.write_text("x: 1\n")
    claimed.write_text("a: 1\n")
    known.write_text(TRL)
    told = "planner.recipes: faulty of planner-faulty 1.0 cannot be used ({}). Repair or uninstall the package\n"
    unread = cli("check", str(claimed))
    assert unread.err.endswith(told.format("KeyError: 'b'"))
    assert "found no recipe that planner knows: its keys are a." in unread.err
    assert cli("check", str(read)).err == "planner: " + told.format("read returned dict")
    answer = cli("convert", str(known), "--to", "faulty", "--gpus", "4", "--method", "sft")
    assert answer.err == "planner: " + told.format("KeyError: 'command'")
    install(
        site, "planner.recipes", {"greedy": "planner_greedy2:SYSTEM"}, {"planner_greedy2": GREEDY}, "planner-greedy"
    )
    assert "read by the greedy package" in cli("check", str(claimed)).err


NEAR = """
from planner.recipes import System

def near_miss(found):
    return "found a file of near's before version 2" if "near_version" in found.tree else ""

SYSTEM = System(name="near", title="Near", near_miss=near_miss)
"""


def test_a_package_may_say_why_nobody_reads_a_recipe(site, tmp_path):
    install(site, "planner.recipes", {"near": "planner_near:SYSTEM"}, {"planner_near": NEAR})
    file = tmp_path / "near.yaml"
    file.write_text("near_version: 1\n")
    with pytest.raises(RecipeError, match=r"found a file of near's before version 2$"):
        read_recipe(str(file), (), CHECK)
