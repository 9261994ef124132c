"""Recipes of the alignment-handbook up to v0.3, and its ORPO recipes."""

import re

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe
from planner.recipes.rewrite import rewrite

V02 = (
    "model_name_or_path: m\ndataset_mixer:\n  HuggingFaceH4/ultrachat_200k: 1.0\npreprocessing_num_workers: 12\n"
    "use_flash_attention_2: true\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
    "learning_rate: 2.0e-05\nnum_train_epochs: 1\n"
)
ORPO = (
    "model_name_or_path: mistralai/Mistral-7B-v0.1\nmodel_revision: main\ntorch_dtype: bfloat16\n"
    "use_flash_attention_2: true\ndataset_mixer:\n  argilla/a-7k.v1: 1.0\n  org/b: 0.5\n"
    "dataset_splits:\n- train_prefs\n- test_prefs\npreprocessing_num_workers: 8\nbf16: true\nbeta: 0.05\n"
    "gradient_accumulation_steps: 1\nlr_scheduler_type: inverse_sqrt\nmax_length: 2048\nmax_prompt_length: 1792\n"
    "optim: adamw_bnb_8bit\nper_device_train_batch_size: 8\nwarmup_steps: 100\nhub_model_revision: v1.0\n"
)
CHECK = {"is_for_job": False, "needs_micro": False}


def _file(place, text):
    file = place / "config_full.yaml"
    file.write_text(text)
    return str(file)


def test_an_older_recipe_of_sft_is_read_and_converted(tmp_path):
    """The script always packed its rows, so the batch counts packed rows."""
    recipe = read_recipe(_file(tmp_path, V02), (), RecipeOptions(gpus=8))
    assert (recipe.global_batch, recipe.method, recipe.unit) == (128, "sft", "packed row")
    job, _ = job_of(recipe)
    assert (job.model.attention, job.data.packing, job.train.precision) == ("auto", True, "fp32")
    assert (job.data.path, job.data.split) == ("HuggingFaceH4/ultrachat_200k", "train")
    dropped = {note.key: note.text for note in recipe.draft.dropped}
    assert dropped["preprocessing_num_workers"] == "planner reads the data once"
    assert dropped["attn_implementation"] == "flash_attention_2 computes in bf16, and train.precision is fp32"
    derived = " ".join(note.text for note in recipe.draft.derived)
    assert "packing true: packing of the handbook's own scripts" in derived
    assert "use_flash_attention_2" not in derived
    in_bf16 = read_recipe(_file(tmp_path, f"{V02}bf16: true\n"), (), RecipeOptions(gpus=8))
    derived = " ".join(note.text for note in in_bf16.draft.derived)
    assert re.search(r"attn_implementation of \S+ \(use_flash_attention_2\)", derived)
    assert job_of(in_bf16)[0].model.attention == "flash_attention_2"


def test_a_trap_says_which_trl_reads_the_file(tmp_path):
    """TRL's scripts refuse the file and the older ones do not, so a trap says so."""
    recipe = read_recipe(_file(tmp_path, V02), (), RecipeOptions(gpus=8, **CHECK))
    traps = {trap.name: trap.text for trap in recipe.foreign.traps(CheckOptions(counts=[8]))}
    assert "dataset_mixer, preprocessing_num_workers, use_flash_attention_2: only scripts" in traps["older handbook"]
    plain = "model_name_or_path: m\nper_device_train_batch_size: 8\n"
    recipe = read_recipe(_file(tmp_path, plain), (), RecipeOptions(gpus=8, method="sft", **CHECK))
    assert "older handbook" not in {trap.name for trap in recipe.foreign.traps(CheckOptions(counts=[8]))}


def test_an_orpo_recipe_has_its_data_sets_and_their_shares(tmp_path):
    """Names may contain dots. Splits with test in their name are left out. A share is a part of the rows."""
    recipe = read_recipe(_file(tmp_path, ORPO), (), RecipeOptions(gpus=4, method="orpo"))
    assert (recipe.global_batch, recipe.unit) == (32, "pair")
    to_do = " ".join(map(str, recipe.draft.to_do))
    assert "{path: argilla/a-7k.v1, split: train_prefs}, {path: org/b, split: train_prefs, fraction: 0.5}" in to_do
    assert "test_prefs" not in to_do
    assert any("the first rows of a set" in note.text for note in recipe.draft.derived)


def test_a_converted_orpo_says_how_planners_own_differs(tmp_path):
    """planner has an objective of that name, so the text must not say that it has none."""
    recipe = read_recipe(_file(tmp_path, ORPO), (), RecipeOptions(gpus=4, method="orpo"))
    _, text = job_of(recipe)
    assert "planner's orpo leaves the prompt out of its cross-entropy, TRL counts it" in text
    assert "no objective" not in text


def test_an_older_recipe_of_pairs_does_not_say_which_method(tmp_path):
    with pytest.raises(RecipeError, match="method: the recipe does not name it"):
        read_recipe(_file(tmp_path, ORPO), (), RecipeOptions(gpus=4, **CHECK))


def test_its_dpo_has_an_optimizer_of_its_own(tmp_path):
    """The default of the handbook's DPOConfig was rmsprop, TRL's is adamw."""
    text = V02 + "beta: 0.1\n"
    job, _ = job_of(read_recipe(_file(tmp_path, text), (), RecipeOptions(gpus=8, method="dpo")))
    assert job.train.optimizer.kind == "rmsprop"
    job, _ = job_of(
        read_recipe(_file(tmp_path, f"{text}optim: adamw_torch\n"), (), RecipeOptions(gpus=8, method="dpo"))
    )
    assert job.train.optimizer.kind == "adamw"


def test_todays_name_of_a_key_beats_its_old_one(tmp_path):
    text = V02 + "attn_implementation: sdpa\n"
    assert read_recipe(_file(tmp_path, text), (), RecipeOptions(gpus=8)).draft.job["model"]["attention"] == "sdpa"


@pytest.mark.parametrize("value", ["x", "[]", "null", "{a: 0.1}"])
def test_a_mixer_of_anything_is_a_recipe_or_a_sentence(value, tmp_path):
    text = f"model_name_or_path: m\nper_device_train_batch_size: 8\ndataset_mixer: {value}\ndataset_splits: {value}\n"
    assert read_recipe(_file(tmp_path, text), (), RecipeOptions(gpus=8, method="sft")).global_batch == 64


COMMAND = "accelerate launch --num_processes 4 {} --model_name_or_path m --per_device_train_batch_size 2"


@pytest.mark.parametrize("option", ["--no_remove_unused_columns", "--no-remove-unused-columns"])
def test_an_option_that_is_true_by_default_may_be_negated(option):
    """As in transformers' HfArgumentParser. The option takes no value."""
    recipe = read_recipe(f"{COMMAND.format('trl/scripts/dpo.py')} {option} --bf16", (), RecipeOptions(**CHECK))
    assert recipe.global_batch == 8
    assert [note.text for note in recipe.draft.dropped if note.key == "remove_unused_columns"]
    job = read_recipe(f"{COMMAND.format('sft.py')} --no_gradient_checkpointing --no_dataloader_pin_memory").draft.job
    assert "activation_checkpointing" not in job["train"]
    job = read_recipe(f"{COMMAND.format('sft.py')} --torch_compile true").draft.job
    assert job["train"]["compile"] == "blocks"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--no_bf16", "no_bf16: transformers has --no_NAME only for options that are true by default. Write --bf16 f"),
        ("--no_packing", "Write --packing false"),
        ("--no_remove_unused_columns true", "is an option of the command line and takes no value"),
        ("--no_such_thing", "no_such_thing: TRL does not know this key"),
    ],
)
def test_any_other_negation_is_refused_for_its_own_reason(option, says):
    with pytest.raises(RecipeError, match=says):
        read_recipe(f"{COMMAND.format('sft.py')} {option}", (), RecipeOptions(**CHECK))


def test_a_negation_in_a_file_is_refused(tmp_path):
    text = "model_name_or_path: m\nper_device_train_batch_size: 8\nno_remove_unused_columns: true\n"
    with pytest.raises(RecipeError, match="Write --remove_unused_columns false"):
        read_recipe(_file(tmp_path, text), (), RecipeOptions(gpus=8, method="sft", **CHECK))


def test_options_that_may_be_negated_are_known():
    from planner.recipes.trl.keys import KNOWN, TRUE_BY_DEFAULT

    assert TRUE_BY_DEFAULT <= KNOWN


def test_continued_pretraining_is_checked_and_not_converted(tmp_path):
    """The loss is SFT's, the rows are plain text."""
    place = tmp_path / "cpt"
    place.mkdir()
    text = V02 + "dataset_splits:\n- train\ndataset_configs:\n- tiny\n"
    for recipe, arguments in ((_file(place, text), ()), (f"accelerate launch run_cpt.py {_file(tmp_path, text)}", ())):
        assert read_recipe(recipe, arguments, RecipeOptions(gpus=8, **CHECK)).global_batch == 128
        with pytest.raises(
            RecipeError, match="cpt, continued pretraining: convert makes no job for rows of plain text"
        ):
            read_recipe(recipe, arguments, RecipeOptions(gpus=8))


def test_a_script_of_sft_in_a_folder_named_cpt_is_no_continued_pretraining(tmp_path):
    """The script's name decides, not its folder."""
    command = f"accelerate launch cpt/run_sft.py {_file(tmp_path, V02)}"
    assert read_recipe(command, (), RecipeOptions(gpus=8)).method == "sft"


def test_what_to_type_is_what_its_own_script_takes(tmp_path):
    """The file comes first, and each option is one argument with its value."""
    file = _file(tmp_path, V02)
    wanted = f"scripts/run_sft.py {file} --per_device_train_batch_size=8 --gradient_accumulation_steps=4"
    command = f"accelerate launch --num_processes 8 scripts/run_sft.py {file} --seed=3"
    assert rewrite(read_recipe(file, (), RecipeOptions(gpus=8)), "trl", 4).command.endswith(wanted)
    wanted = wanted.replace(" --per", " --seed=3 --per")
    assert rewrite(read_recipe(command), "trl", 4).command.endswith(wanted)
    named = rewrite(read_recipe(command.replace("run_sft.py ", "run_sft.py --config ")), "trl", 4).command
    assert named.endswith(f"--config {file} --seed=3 --per_device_train_batch_size 8 --gradient_accumulation_steps 4")


def test_no_warmup_is_no_warmup_in_every_unit(tmp_path):
    """0% is written, because by default torchtitan warms up for 200 steps and the DPO repository for 150."""
    recipe = read_recipe(_file(tmp_path, V02), (), RecipeOptions(gpus=8))
    assert "--lr_scheduler.warmup_steps 0" in rewrite(recipe, "torchtitan", 4).command
    assert "warmup_steps=0" in rewrite(recipe, "dpo", 4).command
