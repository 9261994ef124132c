"""Recipes that planner once refused for a false reason: it reads them, or gives the true reason."""

import pytest

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe

TRL = "model_name_or_path: org/m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nlearning_rate: 1e-6\n"


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("mistralai/Mistral-7B-v0.1", ["q_proj", "v_proj"]),
        ("Qwen/Qwen2.5-0.5B-Instruct", ["q_proj", "v_proj"]),
        ("EleutherAI/pythia-2.8b", ["query_key_value"]),
        ("gpt2-xl", ["c_attn"]),
        ("microsoft/phi-2", ["q_proj", "v_proj", "fc1", "fc2"]),
    ],
)
def test_adapters_go_where_peft_puts_them_by_the_models_family(model, targets, tmp_path):
    """The to-do list says that the family was guessed by name."""
    file = tmp_path / "lora.yaml"
    file.write_text(TRL.replace("org/m", model) + "use_peft: true\n")
    draft = read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft")).draft
    assert draft.job["model"]["lora"]["targets"] == targets
    assert "family by the model's name" in " ".join(map(str, draft.to_do))


@pytest.mark.parametrize("model", ["Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.2-11B-Vision", "microsoft/phi-4", "org/m"])
def test_adapters_of_a_family_that_is_not_known_must_be_placed(model, tmp_path):
    file = tmp_path / "lora.yaml"
    file.write_text(TRL.replace("org/m", model) + "use_peft: true\n")
    with pytest.raises(RecipeError, match="lora_target_modules: found nothing"):
        read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft"))
    read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft", is_for_job=False))


def test_a_folder_says_its_family_itself(tmp_path):
    """The folder's name does not matter. A type without a default is refused."""
    folder, file = tmp_path / "llama", tmp_path / "lora.yaml"
    folder.mkdir()
    file.write_text(TRL.replace("org/m", str(folder)) + "use_peft: true\n")
    (folder / "config.json").write_text('{"model_type": "gpt_neox"}')
    draft = read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft")).draft
    assert draft.job["model"]["lora"]["targets"] == ["query_key_value"]
    (folder / "config.json").write_text('{"model_type": "phi3"}')
    with pytest.raises(RecipeError, match="lora_target_modules: found nothing"):
        read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft"))
    (folder / "config.json").write_text("[")
    read_recipe(str(file), [], RecipeOptions(gpus=2, method="sft"))


def test_a_key_that_a_system_ships_is_not_said_to_be_unknown():
    """Hydra accepts such a key without a sign, and so does planner."""
    dpo = "python train.py model=pythia69 loss=sft do_first_eval=false"
    dropped = {note.key: note.text for note in read_recipe(dpo, [], RecipeOptions(max_micro=4)).draft.dropped}
    assert dropped["do_first_eval"] == "it says whether step 0 is evaluated, which eval.every decides in planner"
    halos = "accelerate launch --num_processes 4 launch.py loss=kto model=llama ++model.name_or_path=m ++lr=1e-6"
    recipe = read_recipe(halos, ["template_tokens=[a]", "++loss.desirable_weight=1.1", "++loss.sync_reference=false"])
    said = " ".join(f"{note.key} {note.text}" for note in recipe.draft.dropped)
    assert "template_tokens the tokenizer's chat template marks turns" in said
    assert "planner does not know this key" not in said


def test_the_keys_of_a_whole_halos_configuration_have_true_reasons():
    """planner knows these keys. It said of them that it does not."""
    command = (
        "accelerate launch --num_processes 4 launch.py loss=LOSS model=llama ++model.name_or_path=m "
        "++model.peft.lora_r=64 ++model.reward_model.dtype=float32 ++cache_reference_logprobs=true"
    )

    def reasons(loss, *more):
        dropped = read_recipe(command.replace("LOSS", loss), [*more, "train_datasets=[a]"]).draft.dropped
        return {note.key: note.text for note in dropped}

    dpo = reasons("dpo")
    assert dpo["model.peft.lora_r"] == "only read with model.use_peft=true"
    assert "cache_reference_logprobs" not in dpo  # it is carried over
    assert "model.peft.lora_r" not in reasons("dpo", "++model.use_peft=true")
    own = reasons("own", "++loss.trainer=OwnTrainer", "++loss.dataloader=PairedPreferenceDataLoader")
    assert own["loss.trainer"] == "your loop takes its place"


def test_a_file_without_config_is_the_older_handbooks(tmp_path):
    """The handbook's scripts take the file first. TRL's need --config before it, and the error says so."""
    (tmp_path / "sft.yaml").write_text(TRL)
    file = str(tmp_path / "sft.yaml")
    run = "accelerate launch --num_processes 4 scripts/{} {} --per_device_train_batch_size=2"
    recipe = read_recipe(run.format("run_sft.py", file))
    assert (recipe.global_batch, recipe.config) == (16, file)
    for script in ("sft.py", "dpo.py"):
        with pytest.raises(RecipeError, match=r"without --config, which TRL needs before it\. Write --config /"):
            read_recipe(run.format(script, file))
    with pytest.raises(RecipeError, match="without --config"):
        read_recipe(f"trl sft {file}")


def test_a_script_is_not_read_as_yaml(tmp_path):
    """A first line with #! is enough, without a suffix."""
    for name in ("run.sh", "job.slurm", "start"):
        (tmp_path / name).write_text("#!/bin/bash\nset -e\nexport A=1\nfor i in 1 2; do\n\techo $i\ndone\n")
        with pytest.raises(RecipeError, match="found no training command that planner knows"):
            read_recipe(str(tmp_path / name))


@pytest.mark.parametrize(
    "command",
    [
        "trl sft --model_name_or_path m --dataset_name d --optim adafactor",
        "trl sft --model_name_or_path m --dataset_name d --adafactor",
        "trl sft --model_name_or_path m --dataset_name d --lr_scheduler_type polynomial",
        "trl sft --model_name_or_path m --dataset_name d --use_peft --use_dora",
        "trl sft --model_name_or_path m --dataset_name d --use_peft --lora_modules_to_save embed_tokens lm_head",
        "python train.py loss=dpo model=pythia28 datasets=[hh] batch_size=32 optimizer=Adafactor",
        "accelerate launch launch.py loss=kto model=llama ++model.name_or_path=m ++optimizer=Adafactor",
    ],
)
def test_what_a_job_cannot_say_is_no_reason_to_check_no_batch(command):
    """A check needs only the batch. A job depends on optimizer, schedule and adapters."""
    recipe = read_recipe(command, [], RecipeOptions(gpus=4, is_for_job=False, needs_micro=False))
    assert recipe.global_batch == 32
    with pytest.raises(RecipeError, match=r"planner (has|trains)"):
        read_recipe(command, [], RecipeOptions(gpus=4))


def test_the_arguments_of_an_optimizer_are_one_value():
    """`rank=64` inside of --optim_args is not read as an override."""
    command = 'trl sft --model_name_or_path m --dataset_name d --optim galore_adamw --optim_args "rank=64, scale=0.1"'
    options = RecipeOptions(gpus=4, is_for_job=False, needs_micro=False)
    assert read_recipe(command, [], options).global_batch == 32
