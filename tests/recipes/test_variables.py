"""Shell variables: one error names all that are missing, and --env gives their values."""

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe

HALOS = (
    '#!/bin/bash\nBETA=$1\nLR=$2\nsrun bash -c "\naccelerate launch --num_processes \\$GPUS launch.py loss=dpo '
    "model=llama train_datasets=[ultrabin] ++model.name_or_path=\\$MODEL ++lr=${LR} ++loss.beta=${BETA} "
    '++model.batch_size=${B} ++model.gradient_accumulation_steps=2 exp_name=\\$NAME\n"\n'
)
TRL = (
    "accelerate launch --num_processes $GPUS sft.py --model_name_or_path $MODEL --learning_rate $LR "
    "--per_device_train_batch_size $B --gradient_accumulation_steps ${A:-2} --output_dir out/$NAME --packing $PACK"
)
CHECK = {"is_for_job": False, "needs_micro": False}


def _missing(error):
    return {part.partition("=")[0] for part in str(error.value).replace("\n", " ").split("--env ")[1:]}


def test_a_script_of_halos_names_all_that_are_missing_at_once(tmp_path):
    """Also those of its launcher. The run's name is not needed."""
    (tmp_path / "run.sh").write_text(HALOS)
    with pytest.raises(RecipeError) as error:
        read_recipe(str(tmp_path / "run.sh"), (), RecipeOptions(halos_batch="total"))
    assert _missing(error) == {"GPUS", "MODEL", "LR", "BETA", "B"}
    env = {"GPUS": "4", "MODEL": "m", "LR": "5e-7", "BETA": "0.1", "B": "64"}
    recipe = read_recipe(str(tmp_path / "run.sh"), (), RecipeOptions(halos_batch="total", env=env))
    job, _ = job_of(recipe)
    assert (recipe.global_batch, recipe.gpus, recipe.micro) == (64, 4, 8)
    assert (job.train.optimizer.lr, job.objective.beta, job.model.path) == (5e-7, 0.1, "m")


def test_a_check_needs_those_of_the_batch_alone(tmp_path):
    (tmp_path / "run.sh").write_text(HALOS)
    with pytest.raises(RecipeError) as error:
        read_recipe(str(tmp_path / "run.sh"), (), RecipeOptions(halos_batch="total", **CHECK))
    assert _missing(error) == {"GPUS", "B"}
    with pytest.raises(RecipeError) as error:
        read_recipe(TRL, (), RecipeOptions(**CHECK))
    assert _missing(error) == {"GPUS", "B", "PACK"}
    env = {"B": "8", "PACK": "false"}
    assert read_recipe(TRL, (), RecipeOptions(gpus=4, env=env, **CHECK)).global_batch == 64


def test_a_command_of_trl_names_all_that_are_missing_at_once():
    """The script's default for a variable applies unless --env gives a value."""
    with pytest.raises(RecipeError) as error:
        read_recipe(TRL)
    assert _missing(error) == {"GPUS", "MODEL", "LR", "B", "PACK"}
    assert "number of at least 0" not in str(error.value)
    env = {"GPUS": "4", "MODEL": "m", "LR": "1e-6", "B": "8", "PACK": "false"}
    assert read_recipe(TRL, (), RecipeOptions(env=env)).global_batch == 64
    assert read_recipe(TRL, (), RecipeOptions(env={**env, "A": "4"})).global_batch == 128


def test_a_value_with_a_variable_in_it_is_not_taken_for_text():
    """`org/$MODEL` is not a model's name."""
    with pytest.raises(RecipeError, match=r"model_name_or_path: found org/\$MODEL"):
        read_recipe("accelerate launch --num_processes 2 sft.py --model_name_or_path org/$MODEL")


def test_arguments_of_a_script_may_be_given_by_their_number():
    command = "python train.py model=pythia69 loss=sft lr=$1 exp_name=a"
    assert (
        read_recipe(command, (), RecipeOptions(max_micro=1, env={"1": "3e-6"})).draft.job["train"]["optimizer"]["lr"]
        == 3e-6
    )


def test_words_from_a_variable_are_said():
    """Such a variable may hold any arguments, so the list says that planner did not read it."""
    run = "accelerate launch --num_processes 2 sft.py --model_name_or_path m --bf16 true"
    dropped = {note.key: note.text for note in read_recipe(f"{run} --seed 1 --tf32=true $MORE").draft.dropped}
    assert "--env NAME=VALUE sets it" in dropped.get("$MORE", "")
    more = RecipeOptions(env={"MORE": "--per_device_train_batch_size=3 --seed=2"})
    assert read_recipe(f"{run} --tf32=true $MORE", (), more).global_batch == 6


def test_hydras_own_variables_are_filled_in_too(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "batch_size: ${oc.env:B}\ntrainer: BasicTrainer\nloss: {name: sft}\nmodel: {name_or_path: m}\n"
        "lr: '${oc.env:LR,1}'\nn_epochs: 1\n"
    )
    with pytest.raises(RecipeError, match=r"\$\{oc.env:B\} .*or --env B=VALUE"):
        read_recipe(str(file))
    job, _ = job_of(read_recipe(str(file), (), RecipeOptions(env={"B": "32", "LR": "1e-6"})))
    assert (job.batch.global_batch, job.train.optimizer.lr) == (32, 1e-6)


def test_a_choice_of_hydras_may_be_missing_too(tmp_path):
    """The rest is read, so that one error names all variables."""
    halos = "accelerate launch --num_processes 4 launch.py loss=$LOSS model=$KIND train_datasets=[a] ++lr=$LR"
    with pytest.raises(RecipeError) as error:
        read_recipe(halos, ["++model.name_or_path=m", "++model.batch_size=32"])
    assert _missing(error) == {"LOSS", "KIND", "LR"}
    env = {"LOSS": "kto", "KIND": "llama", "LR": "1e-6"}
    recipe = read_recipe(halos, ["++model.name_or_path=m", "++model.batch_size=32"], RecipeOptions(env=env))
    assert (recipe.method, recipe.global_batch) == ("kto", 32)
    (tmp_path / "config" / "model").mkdir(parents=True)
    (tmp_path / "config" / "config.yaml").write_text("batch_size: 8\nn_eval_examples: 8\ntrainer: BasicTrainer\n")
    (tmp_path / "run.sh").write_text("python train.py model=$KIND loss=${LOSS}\n")
    with pytest.raises(RecipeError) as error:
        read_recipe(str(tmp_path / "run.sh"), (), RecipeOptions(**CHECK))
    assert _missing(error) == {"LOSS", "KIND"}


def test_the_file_of_a_command_may_be_missing(tmp_path):
    run = "accelerate launch --num_processes 2 sft.py --config $CONFIG"
    with pytest.raises(RecipeError, match=r"--config: found \$CONFIG, .* Write --env CONFIG=VALUE"):
        read_recipe(run)
    (tmp_path / "a.yaml").write_text("model_name_or_path: m\nper_device_train_batch_size: 2\n")
    assert read_recipe(run, (), RecipeOptions(env={"CONFIG": str(tmp_path / "a.yaml")})).global_batch == 4


@pytest.mark.parametrize("option", ["max_steps", "dataloader_drop_last", "loss_type sigmoid", "packing_strategy"])
def test_a_variable_that_decides_something_is_never_a_default(option):
    """Also if the key is dropped with most of its values, or if the value is a list."""
    run = "accelerate launch --num_processes 2 dpo.py --model_name_or_path m --output_dir $O --save_steps $S"
    assert read_recipe(run, (), RecipeOptions(**CHECK)).global_batch == 16
    with pytest.raises(RecipeError, match=r"--env X=VALUE"):
        read_recipe(f"{run} --{option} $X", (), RecipeOptions(**CHECK))


@pytest.mark.parametrize("between", ["\n", "; ", " && ", ";export "])
def test_what_a_script_sets_from_its_arguments_may_stand_on_one_line(between):
    run = f"B=$1{between}A=$2\naccelerate launch --num_processes 2 sft.py --model_name_or_path m "
    run += "--per_device_train_batch_size $B --gradient_accumulation_steps ${A}"
    assert read_recipe(run, (), RecipeOptions(env={"1": "4", "2": "8"}, **CHECK)).global_batch == 64


@pytest.mark.parametrize("end", ['"$@"', "$ARGS", '"${ARGS[@]}"', "--learning_rate 1e-6 $1", "--push_to_hub $ARGS"])
def test_a_check_says_which_arguments_of_a_command_of_trl_it_cannot_know(end):
    """`ARGS="--gradient_accumulation_steps 8"` behind a condition is another batch."""
    command = f"if [ $BIG ]; then ARGS=(x); fi\naccelerate launch sft.py {end} --model_name_or_path m --dataset_name d"
    traps = read_recipe(command, (), RecipeOptions(gpus=8, **CHECK)).traps(CheckOptions(counts=(8,)))
    unread = [trap.text.split(" is not set")[0] for trap in traps if trap.name == "not read"]
    assert unread == [end.split()[-1].strip('"')]


@pytest.mark.parametrize("option", ["gradient_checkpointing", "per_device_train_batch_size 2"])
def test_a_check_refuses_what_it_cannot_know_behind_an_option(option):
    """It may be the option's value, or any other options."""
    command = f"accelerate launch sft.py --model_name_or_path m --dataset_name d --{option} $ARGS"
    with pytest.raises(RecipeError, match=r"found .*\$ARGS in the command line, a shell variable") as raised:
        read_recipe(command, (), RecipeOptions(gpus=8, **CHECK))
    assert "null" not in str(raised.value)


@pytest.mark.parametrize(
    ("script", "batch"),
    [
        ('RUN "$@"', 16),
        ("RUN $*", 16),
        ('set -- "$@" --gradient_accumulation_steps 4; RUN "$@"', 64),
        ("shift; RUN --per_device_train_batch_size 1 --gradient_accumulation_steps $1", 16),
        ("B=$2; shift; shift; RUN --per_device_train_batch_size $1", None),
        ("if [ $A ]; then shift; fi; RUN --per_device_train_batch_size $2", None),
        ("run() { RUN --per_device_train_batch_size $2; }; run $(cat sizes)", None),
        ('shift $N; RUN --per_device_train_batch_size "$2"', None),
    ],
)
def test_the_arguments_of_a_script_are_those_that_bash_counts(script, batch):
    """`--env 1=... --env 2=...` are the script's arguments, also in `$@` and behind `shift`. None: refused."""
    command = "accelerate launch --num_processes 8 sft.py --model_name_or_path m --dataset_name d "
    options = RecipeOptions(env={"1": "--per_device_train_batch_size", "2": "2"}, **CHECK)
    if batch is None:
        with pytest.raises(RecipeError, match="a shell variable that is not set"):
            read_recipe(script.replace("RUN ", command), (), options)
    else:
        assert read_recipe(script.replace("RUN ", command), (), options).global_batch == batch
