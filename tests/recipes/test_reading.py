"""Reading of Hydra folders, scripts, overrides and interpolations, and of damaged recipes."""

import contextlib
import functools
import os
import re
from pathlib import Path

import pytest
import recipes
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError, RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite
from planner.recipes.command import command_of
from planner.recipes.entries import flat
from planner.recipes.hydra.compose import resolve
from planner.recipes.scalars import Unresolved, number, scalar

TRL = "model_name_or_path: org/m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nlearning_rate: 1e-6\n"
DPO = {
    "config.yaml": """
seed: 0
exp_name: ???
batch_size: 64
eval_batch_size: 32
accumulation: 2
gradient_accumulation_steps: ${accumulation}
lr: 5e-7
n_epochs: 1
n_examples: null
n_eval_examples: 256
datasets: [hh]
trainer: FSDPTrainer
optimizer: RMSprop
warmup_steps: 150
eval_every: 20_000
max_grad_norm: 10.0
max_length: 512
max_prompt_length: 256
activation_checkpointing: false
local_run_dir: ${get_local_run_dir:${exp_name},[]}
defaults:
- _self_
- model: blank_model_fp32
- loss: sft
""",
    "model/base.yaml": "name_or_path: ???\narchive: null\nblock_name: null\nfsdp_policy_mp: null\n",
    "model/pythia28.yaml": "defaults:\n- base\n\nname_or_path: EleutherAI/pythia-2.8b\nblock_name: GPTNeoXLayer\n",
    "loss/sft.yaml": "name: sft\n",
    "loss/dpo.yaml": "name: dpo\nbeta: ???\nlabel_smoothing: 0\nreference_free: false\n",
}
HALOS = {
    "config.yaml": """
seed: 1
exp_name: ???
train_datasets: ???
lr: 5e-6
n_epochs: 1
n_examples: null
eval_every: 1024
optimizer: AdamW
warmup: 0.1
cache_dir: .cache
local_run_dir: ${cache_dir}/${exp_name}
defaults:
- _self_
- model: ???
- loss: ???
""",
    "model/base_model.yaml": """
name_or_path: ???
max_length: 1250
activation_checkpointing: true
# the batch size, across all machines COMMENT
batch_size: 32
gradient_accumulation_steps: 4
eval_batch_size: 32
""",
    "model/llama.yaml": "defaults:\n  - base_model\n\nblock_name: LlamaDecoderLayer\n",
    "loss/kto.yaml": "beta: 0.1\ntrainer: KTOTrainer\ndataloader: UnpairedPreferenceDataLoader\n",
}


def folder(place, files, **replaced):
    for name, text in files.items():
        path = place / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(functools.reduce(lambda made, pair: made.replace(*pair), replaced.items(), text))
    return str(place)


def test_a_hydra_folder_with_its_groups(tmp_path):
    """It has defaults lists, group files with defaults of their own, overrides and an interpolation."""
    recipe = read_recipe(folder(tmp_path, DPO), ["model=pythia28", "loss=dpo", "loss.beta=0.5"], RecipeOptions(gpus=4))
    job, _ = job_of(recipe)
    assert (recipe.global_batch, recipe.accumulation, recipe.micro) == (64, 2, 8)
    assert (job.model.path, job.objective.beta, job.data.kind) == ("EleutherAI/pythia-2.8b", 0.5, "pairs")
    assert (job.train.schedule.warmup, job.eval.every) == ("150 steps", "19968 examples")


@pytest.mark.parametrize("key", ["x" * 6000, "a\\0b"], ids=["too long", "NUL"])
def test_a_default_that_no_disk_can_hold_is_a_missing_file(tmp_path, key):
    """A group's name may be any YAML text. The error stays short."""
    (tmp_path / "config.yaml").write_text(f'defaults:\n- _self_\n- ? "{key}"\n  : m\nbatch_size: 8\n')
    with pytest.raises(RecipeError, match="found no such file") as raised:
        read_recipe(str(tmp_path))
    assert len(str(raised.value)) <= 500


def test_what_only_hydra_resolves_matters_only_where_it_is_needed(tmp_path):
    """local_run_dir is listed as dropped. For batch_size it is an error that names key and file."""
    place = folder(tmp_path, DPO)
    recipe = read_recipe(place, ["model=pythia28"], RecipeOptions(gpus=4))
    assert "local_run_dir" in {note.key for note in recipe.draft.dropped}
    with pytest.raises(
        RecipeError, match=r"batch_size: found \$\{oc.env:B\} in the command line, an interpolation that"
    ):
        read_recipe(place, ["model=pythia28", "batch_size=${oc.env:B}"], RecipeOptions(gpus=4))
    folder(tmp_path, DPO, **{"${accumulation}": "${nowhere}"})
    with pytest.raises(
        RecipeError, match=r"\$\{nowhere\} in .*config.yaml, an interpolation to nowhere, which does not"
    ):
        read_recipe(place, ["model=pythia28"], RecipeOptions(gpus=4))


@pytest.mark.parametrize("key", ["batch_size", "gradient_accumulation_steps", "eval_every"])
def test_a_null_with_which_nothing_trains_is_no_default(key):
    """Python ends at `range(None)` and at `20000 % None`. planner said `exact` for 1 and A=1."""
    command = "python train.py model=pythia69 loss=sft exp_name=x trainer=FSDPTrainer batch_size=64"
    with pytest.raises(RecipeError, match=rf"{key}: found n.*Write {key}=VALUE behind the recipe"):
        read_recipe(command, [f"{key}=null"], RecipeOptions(is_for_job=False))


def test_the_file_of_a_recipe_is_asked_for_once_where_deepspeed_says_auto(tmp_path):
    (tmp_path / "ds.json").write_text('{"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}')
    with pytest.raises(RecipeError, match="train_batch_size, gradient_accumulation_steps: found auto") as caught:
        read_recipe(str(tmp_path / "ds.json"))
    assert str(caught.value).count("found auto") == 1


def test_a_count_that_a_script_computes_names_the_variable_to_give():
    command = "accelerate launch --num_processes $((NODES * 8)) sft.py --model_name_or_path m --output_dir o"
    with pytest.raises(RecipeError, match=r"Write a count, or --env NODES=VALUE"):
        read_recipe(command)
    assert read_recipe(command, (), RecipeOptions(env={"NODES": "2"}, is_for_job=False)).global_batch == 128


def test_an_older_halos_gets_its_own_batch_size_back(tmp_path):
    """There model.batch_size counts one accumulation step. The command had the newer meaning: twice the batch."""
    place = folder(tmp_path, HALOS, COMMENT="")
    (tmp_path / "launch.py").touch()
    command = f"cd {place} && accelerate launch --num_processes 8 launch.py loss=kto model=llama train_datasets=[a]"
    recipe = read_recipe(f"{command} exp_name=x ++model.name_or_path=m ++model.gradient_accumulation_steps=1")
    made = rewrite(recipe, "halos", 4)
    assert "++model.batch_size=16 ++model.gradient_accumulation_steps=2" in made.command
    assert any("before 2025-05-01" in note for note in made.notes)
    again = read_recipe(f"cd {place} && {made.command}", (), RecipeOptions(is_for_job=False))
    assert again.global_batch == recipe.global_batch == 32


def test_a_group_without_its_file_names_those_that_are_there(tmp_path):
    """The DPO repository has no file for its default model and for loss=ipo."""
    with pytest.raises(RecipeError, match=r"blank_model_fp32\.yaml: found no such file, but these: base, pythia28"):
        read_recipe(folder(tmp_path, DPO))
    with pytest.raises(RecipeError, match="found no such file, but these: dpo, sft"):
        read_recipe(str(tmp_path), ["model=pythia28", "loss=ipo"])


@pytest.mark.parametrize(("comment", "batch"), [("and gradient accumulation steps", 32), ("", 128)])
def test_the_comment_above_batch_size_says_what_it_counts(tmp_path, comment, batch):
    """HALOs since May 2025, and before. No flag is needed, and one that contradicts the comment is refused."""
    place = folder(tmp_path, HALOS, COMMENT=comment)
    arguments = ["model=llama", "loss=kto", "model.name_or_path=m", "++train_datasets=[a]"]
    assert read_recipe(place, arguments, RecipeOptions(gpus=2)).global_batch == batch
    other = "total" if batch == 128 else "per-accumulation"
    with pytest.raises(RecipeError, match=r"the comment above model\.batch_size says"):
        read_recipe(place, arguments, RecipeOptions(gpus=2, halos_batch=other))


def test_a_script_in_a_checkout_finds_its_configuration(tmp_path):
    """scripts/run.sh uses config/ beside its folder. A variable that the script sets is filled in."""
    folder(tmp_path, HALOS, COMMENT="and gradient accumulation steps")
    script = tmp_path / "scripts" / "run.sh"
    script.parent.mkdir()
    script.write_text(
        "LR=3e-6\naccelerate launch --num_processes 2 launch.py loss=kto model=llama ++model.max_length=99 \\\n"
        "  ++lr=$LR ++model.name_or_path=m train_datasets=[a] | tee log\n"
    )
    recipe = read_recipe(str(script))
    job, _ = job_of(recipe)
    assert (recipe.gpus, recipe.global_batch, recipe.micro) == (2, 32, 4)
    assert (job.train.optimizer.lr, job.model.context) == (3e-6, 99)


def test_a_command_in_a_readme_with_remarks_between_its_lines():
    """HALOs' README has such a command."""
    lines = ["accelerate launch", "--config_file a.yaml", "launch.py", "loss=kto", "model=llama"]
    text = " \\  # remark\n ".join(lines)
    command = command_of(text, "README")
    assert command.arguments == ("loss=kto", "model=llama")
    assert command.launcher["--config_file"] == "a.yaml"


def test_the_count_of_visible_devices_is_the_dpo_repositorys():
    """The repository trains on all visible GPUs."""
    command = "CUDA_VISIBLE_DEVICES=0,1,2 python train.py model=pythia69 trainer=FSDPTrainer batch_size=60"
    assert read_recipe(command).gpus == 3


def test_interpolations_lead_through_one_another():
    """Text around an interpolation is kept. A cycle ends."""
    found = resolve(flat({"a": "x-${b}", "b": "${c.d}", "c": {"d": 7}}, "file"))
    assert found["a"].value == "x-7"
    circle = resolve(flat({"a": "${b}", "b": "${a}"}, "file"))
    assert isinstance(circle["a"].value, Unresolved)


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_number_is_written_so_that_it_is_read_back(value):
    """The text has the short form, 5e-7."""
    assert float(scalar(number(value))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-7", 5e-7),
        ("20_000", 20000),
        ("1.5", 1.5),
        ("True", True),
        ("null", None),
        ("a-1", "a-1"),
        ("1.2.3", "1.2.3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_words_are_read_as_hydra_reads_them(text, value):
    """Numbers with underscores and without points."""
    assert scalar(text) == value


VALUES = ["0", "-1", "null", "true", "[]", "{}", "1e400", "9" * 30, ".nan", "$X", "${a}", "2024-01-01", "[{id: 3}]"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """One recipe of each system, and a place to write to."""
    place = tmp_path_factory.mktemp("mutilated")
    shipped = {each.id: Path(each.path) for each in recipes.write_all(place)}
    names = ("dpo-1-sft-pythia69-hh", "halos-launch_llama_sft_kto", "hb-smollm3-sft-mid")
    return place, [shipped[name] for name in names]


@given(which=st.integers(0, 2), at=st.integers(0, 60), value=st.sampled_from(VALUES), is_for_job=st.booleans())
def test_a_mutilated_recipe_is_a_recipe_or_a_sentence(texts, which, at, value, is_for_job):
    """Any value in any place: no traceback in reading, in verdicts and traps, or in writing the job."""
    place, files = texts
    parts = re.split(r"(?<=[=:]) ?", files[which].read_text())
    at %= len(parts)
    parts[at] = re.sub(r"^\S*", lambda _: value, parts[at])
    file = place / f"recipe{files[which].suffix}"
    file.write_text(" ".join(parts) if which == 2 else "".join(parts))
    options = RecipeOptions(gpus=4, halos_batch="total", method="sft", is_for_job=is_for_job, needs_micro=is_for_job)
    with contextlib.suppress(PlannerError):
        recipe = read_recipe(str(file), ["lr=1e-6", "loss.beta=0.1"][: 2 * (which == 1)], options)
        for count in range(1, 9):
            recipe.foreign.outcome(count)
        recipe.foreign.traps(CheckOptions(counts=[1, 2, 3]))
        if is_for_job:
            job_of(recipe)


def test_a_pipe_is_no_recipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecipeError, match="Write the path of a regular file"):
        read_recipe(str(tmp_path / "pipe"))


def test_a_number_of_thousands_of_digits_is_refused(tmp_path):
    file = tmp_path / "big.yaml"
    file.write_text(f"{TRL}max_steps: 0x{'f' * 5000}\n")
    with pytest.raises(RecipeError, match="a whole number of more than 60 digits"):
        read_recipe(str(file))


def test_a_list_of_what_is_to_do_has_no_empty_line(tmp_path):
    """A DeepSpeed file has no model, data or loss for the user's loop."""
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}')
    to_do = [*map(str, read_recipe(str(file), (), RecipeOptions(gpus=4)).draft.to_do)]
    assert to_do
    assert not any(text.rstrip().endswith(":") for text in to_do)
