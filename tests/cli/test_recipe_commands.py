"""`planner convert` and `planner check`: their text, their JSON and what they refuse."""

import json
import shlex
from pathlib import Path

import pytest
import recipes

from planner.files import parse_job

TRL = "model_name_or_path: org/m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nlearning_rate: 1e-6\n"


@pytest.fixture
def shipped(tmp_path):
    """The recipes of the table, by name."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    return {each.id: each for each in recipes.write_all(folder)}


def test_the_page_shows_both_sides(shipped, cli):
    """The table, its summary, units and traps."""
    recipe = shipped["dpo-1-sft-pythia69-hh"]
    answer = cli("check", recipe.path, *recipe.arguments, *recipe.check_options, "--rows", "1000")
    assert answer.code == 0
    assert "   6  60 of 64 (-6.2%): drops 30-31, 62-63   30 of 32   4 x 11 + 2 x 10" in answer.out
    assert (
        "DPO repository: exact at 5 of 16 counts, silently another batch at 11. planner: exact at 16 of 16."
        in answer.out
    )
    assert "examples, lowered to 19968: every 312 steps" in answer.out
    assert ": 40 of 1000." in answer.out
    assert all(len(line) <= 100 for line in answer.out.splitlines()[2:])


@pytest.mark.parametrize("arguments", [(), ("--rows", "1000", "--group-size", "6", "--transformers", "4.51.3")])
def test_every_page_fits_100_columns(shipped, cli, arguments):
    """For every recipe, also with errors of its system."""
    for recipe in shipped.values():
        answer = cli("check", recipe.path, *recipe.arguments, *recipe.check_options, *arguments)
        assert answer.code == 0, answer.err
        assert not [line for line in answer.out.splitlines()[1:] if len(line) > 100 or line != line.rstrip()]


def test_the_json_has_the_same(shipped, cli):
    """The verdict and the plan of each count."""
    recipe = shipped["hb-zephyr-7b-beta-dpo-config_full"]
    answer = cli("check", recipe.path, *recipe.check_options, "--gpus", "7,8", "--json")
    made = json.loads(answer.out)
    assert (made["global_batch"], made["exact_there"], made["exact_here"]) == (128, [8], [7, 8])
    first = made["counts"][0]
    assert (first["verdict"], first["batch"], first["percent"]) == ("other batch", 112, -12.5)
    assert first["planner"]["shares"] == [[2, 19], [5, 18]]


def test_convert_then_plan(shipped, cli, tmp_path):
    """The two commands one after the other."""
    recipe = shipped["halos-launch_llama_sft_kto"]
    answer = cli("convert", recipe.path, *recipe.arguments, *recipe.options, "-o", "job.yaml")
    assert answer.code == 0, answer.err
    assert "batch.global 32" in answer.out
    plan = cli("plan", "job.yaml", "--gpus", "7", "--json")
    assert json.loads(plan.out)[0]["shares"] == [[4, 5], [3, 4]]
    assert (tmp_path / "job.yaml").is_file()


def test_the_guides_example_is_what_is_printed(cli):
    """Its command, and its output including the summary."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "your-recipe.md").read_text()
    shown = guide.partition("$ planner check ")[2].partition("\n...\n")[0]
    command, _, output = shown.partition("--gpus 3-8\n")
    answer = cli("check", *shlex.split(command.replace("\\\n", "")), "--gpus", "3-8")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(output)


def test_without_an_output_the_job_is_all_of_stdout(cli, tmp_path):
    """So `> job.yaml` makes a job. The report is on stderr."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    answer = cli("convert", "recipe.yaml", "--gpus", "8", "--method", "sft", "--learning_rate", "3e-6")
    job = parse_job(answer.out)
    assert (job.batch.global_batch, job.train.optimizer.lr) == (128, 3e-6)
    assert "batch.global 128 = 8 GPUs x 8 x 2" in answer.err


def test_a_command_to_type_has_a_line_of_its_own(cli, tmp_path, monkeypatch):
    """In the report and in the job file. It is never wrapped, and nothing stands behind it."""
    monkeypatch.setattr("planner.cli.convert_command.terminal_width", lambda: 60)
    (tmp_path / "recipe.yaml").write_text(f"{TRL}dataset_name: pairs.csv\n")
    (tmp_path / "pairs.csv").write_text("prompt,chosen,rejected\na,b,c\n")
    arguments = ("convert", "recipe.yaml", "--gpus", "8", "--method", "dpo")
    loaded = "load_dataset('csv', data_files='pairs.csv', split='train')"
    code = f"from datasets import load_dataset; {loaded}.save_to_disk('data/pairs')"
    command = f'python -c "{code}"'
    report = cli(*arguments, "-o", "job.yaml").out
    assert f"\n    {command}\n" in report
    assert "\n  1. save pairs.csv (train) once with the command below." in report
    assert "\nwrote job.yaml. Do what stands under `to do` before you train\n" in report
    assert f"\n#   {command}\n" in (tmp_path / "job.yaml").read_text()
    assert parse_job((tmp_path / "job.yaml").read_text()).data.path == "data/pairs/"


def test_a_file_that_is_there_is_not_replaced_unasked(cli, tmp_path):
    """As with `planner init`."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    (tmp_path / "job.yaml").write_text("mine")
    arguments = ("convert", "recipe.yaml", "--gpus", "8", "--method", "sft", "-o", "job.yaml")
    assert cli(*arguments).code == 2
    assert (tmp_path / "job.yaml").read_text() == "mine"
    assert cli(*arguments, "--force").code == 0
    assert parse_job((tmp_path / "job.yaml").read_text()).batch.global_batch == 128


def test_a_count_that_the_other_system_cannot_do_is_exit_code_1(cli, tmp_path):
    """The input is correct. The message names the nearest counts."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    arguments = ("convert", "recipe.yaml", "--gpus", "8", "--method", "sft", "--to", "trl")
    answer = cli(*arguments, "--at", "6")
    assert (answer.code, answer.out) == (1, "")
    assert "Use 4 or 8 GPUs (nearest" in answer.err
    answer = cli(*arguments, "--at", "4")
    assert answer.code == 0
    assert answer.out.splitlines()[-1].endswith("--per_device_train_batch_size 8 --gradient_accumulation_steps 4")


def test_an_accelerate_file_says_the_count(cli, tmp_path):
    """It may contradict an option, or the number of accumulation steps."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    file = tmp_path / "accelerate.yaml"
    file.write_text("distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config:\n  zero_stage: 3\n")
    arguments = ("convert", "recipe.yaml", "--method", "sft", "--accelerate", "accelerate.yaml")
    assert parse_job(cli(*arguments).out).batch.global_batch == 64
    assert "says num_processes 4" in cli(*arguments, "--gpus", "8").err
    file.write_text(file.read_text() + "  gradient_accumulation_steps: 1\n")
    assert "gradient_accumulation_steps: 2, but accelerate.yaml has 1" in cli(*arguments).err
    checked = cli("check", *arguments[1:], "--gpus", "4")
    assert "ValueError: DeepSpeed's A=1, the recipe's A=2" in checked.out


def test_a_variable_of_a_script_is_asked_for_by_name(cli, tmp_path):
    """Two missing variables are two lines. They can be given after the recipe."""
    script = "accelerate launch --num_processes 4 launch.py loss=dpo model=llama ++lr=$LR ++loss.beta=${BETA} "
    (tmp_path / "run.sh").write_text(script + "++model.name_or_path=m train_datasets=[a]")
    answer = cli("convert", "run.sh")
    assert answer.code == 2
    assert [line.split(": ")[2] for line in answer.err.splitlines()] == ["loss.beta", "lr"]
    job = parse_job(cli("convert", "run.sh", "lr=1e-6", "++loss.beta=0.3").out)
    assert (job.train.optimizer.lr, job.objective.beta) == (1e-6, 0.3)


def test_a_valid_evaluation_batch_is_wanted(cli, tmp_path):
    """HALOs refuses 33 at its own count. In the DPO repository, some GPUs would get no rows."""
    halos = "accelerate launch --num_processes 4 launch.py loss=dpo model=llama ++model.name_or_path=m "
    (tmp_path / "halos.sh").write_text(halos + "train_datasets=[a] ++model.eval_batch_size=33")
    assert "33 is no multiple of 4, which HALOs requires at 4 GPUs" in cli("convert", "halos.sh").err
    (tmp_path / "dpo.sh").write_text("python train.py model=pythia69 trainer=FSDPTrainer eval_batch_size=4")
    assert "eval_batch_size: 4 leaves some of 8 GPUs without a row" in cli("convert", "dpo.sh", "--gpus", "8").err


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
SIZES = '{"train_batch_size": %s, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}'
SFT = ("--gpus", "8", "--method", "sft")


def wrong(name, text, *arguments, says):
    return pytest.param(text, arguments, says, id=name)


WRONG = [
    wrong("no count", TRL, "--method", "sft", says="the GPU count: a TRL recipe does not name it"),
    wrong("no method", TRL, "--gpus", "8", says="method: the recipe does not name it. Write --method sft"),
    wrong("unknown key", f"{TRL}learning_rat: 1\n", *SFT, says="learning_rat: TRL does not know this key and refuses"),
    wrong("near key", f"{TRL}learning_rat: 1\n", *SFT, says="Did you mean learning_rate?"),
    wrong(
        "handbook's own", f"{TRL}hub_model_revision: x\n", *SFT, says="hub_model_revision: TRL does not know this key"
    ),
    wrong("unknown override", TRL, *SFT, "--learnin_rate", "3", says="learnin_rate: TRL does not know this key"),
    wrong("no option", TRL, *SFT, "7", says="7: neither --key value nor key=value"),
    wrong("text", TRL.replace("8", "eight"), *SFT, says='per_device_train_batch_size: found "eight" (text)'),
    wrong("zero", TRL.replace("2", "0"), *SFT, says="gradient_accumulation_steps: found 0 (a whole number)"),
    wrong("two lengths", f"{TRL}max_length: 5\nmax_seq_length: 9\n", *SFT, says="both set the length of a sample"),
    wrong("optimizer", f"{TRL}optim: lion_8bit\n", *SFT, says="optim: found"),
    wrong("schedule", f"{TRL}lr_scheduler_type: polynomial\n", *SFT, says="lr_scheduler_type: found"),
    wrong("two batches", "batch_size: 6\nmodel: {batch_size: 3}\n", says="batch_size and model.batch_size: the DPO"),
    wrong("deepspeed", SIZES % 100, says="100 is no multiple of"),
    wrong("deepspeed at 3", SIZES % 64, "--gpus", "3", says="64 != 8 x 2 x 3"),
    wrong("deepspeed auto", SIZES % '"auto"', says="found auto, which the Trainer fills in"),
    wrong("accelerate alone", "distributed_type: FSDP\nnum_processes: 8\n", says="behind --accelerate"),
    wrong("nothing known", "foo: 1\nbatchsize: 3\n", says="batchsize resembles batch_size"),
    wrong("empty", "", says="found nothing in it"),
    wrong("a list", "- 1\n", says="neither keys and values nor a training command"),
    wrong("a tab", "a:\n\tb: 1\n", says="line 2: found a mistake"),
    wrong("a tag", "a: !!python/object/apply:os.system ['ls']\n", says="line 1: found a mistake"),
    wrong("brackets", "a: " + "[" * 5000, says="found"),
    wrong("levels", "".join(f"{'  ' * level}k:\n" for level in range(60)), says="more than 40 levels"),
    wrong("aliases that multiply", BOMB, says="more than 50000 values"),
    wrong("an alias to itself", "a: &a {b: *a}\n", says="an alias to a value that contains it"),
    wrong("huge", "x: 1\n" * 300_000, says="more than 1048576 bytes"),
    wrong("huge numbers", TRL.replace("8", "9999999999"), *SFT, says="planner takes up to 1048576"),
    wrong("no target", TRL, "--to", "slurm", says="--to slurm: no such system. Write job, dpo"),
    wrong("a count for a job", TRL, "--at", "3", says="--at W needs --to SYSTEM"),
    wrong("no GPUs", TRL, "--gpus", "0", says="--gpus 0: write a whole number from 1 to 65536"),
    wrong("a binary file", "a\0b", says="NUL byte"),
]


@pytest.mark.parametrize(("text", "arguments", "says"), WRONG)
def test_a_wrong_recipe_is_a_sentence(cli, text, arguments, says):
    """Exit code 2, nothing on stdout, no traceback, no file."""
    Path("recipe.yaml").write_text(text)
    answer = cli("convert", "recipe.yaml", *arguments)
    assert says in answer.err
    assert (answer.code, answer.out) == (2, "")
    assert "Traceback" not in answer.err
    assert [path.name for path in Path().iterdir()] == ["recipe.yaml"]


def test_columns_that_want_a_flag_say_which(cli):
    """A DPO command does not contain the micro-batch of a GPU."""
    command = "python -u train.py model=pythia69 datasets=[hh] loss=sft batch_size=64 trainer=FSDPTrainer"
    command += " gradient_accumulation_steps=4"
    told = "To see planner's micro-batches and rounds, add --tuned-for W or --max-micro M"
    without = cli("check", command, "--gpus", "3-7").out
    assert told in without
    assert "drops 15, 31, 47 and 1 more range " in without
    assert told not in cli("check", command, "--gpus", "3-7", "--tuned-for", "4").out


def test_the_datasets_of_halos_are_those_to_train_on(cli):
    """Their key differs from that of the DPO repository."""
    command = "accelerate launch launch.py loss=dpo model=llama datasets=[ultrabin] ++model.batch_size=32"
    assert "Write train_datasets if you mean that" in cli("check", command).err


def test_variables_of_the_shell_are_given_by_env(cli, tmp_path):
    """All missing variables are named at once."""
    (tmp_path / "run.sh").write_text("python train.py model=pythia69 loss=dpo loss.beta=$BETA lr=${LR} batch_size=$B\n")
    answer = cli("convert", "run.sh")
    assert answer.code == 2
    assert all(f"--env {name}=VALUE" in answer.err for name in ("BETA", "LR", "B"))
    given = ("--env", "LR=5e-7", "--env", "BETA=0.1", "--env", "B=16")
    answer = cli("convert", "run.sh", *given)
    assert answer.code == 0, answer.err
    assert "lr: 5e-7" in answer.out
    assert "16 pairs per step" in cli("check", "run.sh", "--env", "B=16").out
    assert "write NAME=VALUE" in cli("check", "run.sh", "--env", "LR").err
    assert "write NAME=VALUE" in cli("check", "run.sh", "--env", "a b=1").err


OF_A_TRAINER = "--model_name_or_path x --per_device_train_batch_size 2 --gradient_accumulation_steps 16"
NEGATED = "--model_name_or_path m --dataset_name d --per_device_train_batch_size 2 --gradient_accumulation_steps 8"
TRAINED = (
    "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nlearning_rate: 2.0e-05\nnum_train_epochs: 1\n"
)
OLDER = "model_name_or_path: m\ndataset_mixer:\n  HuggingFaceH4/ultrachat_200k: 1.0\npreprocessing_num_workers: 12\n"
READ = [
    pytest.param(
        None, f"trl dpo {NEGATED} --no_remove_unused_columns", ("--tuned-for", "4"), "64 pairs per step", id="no"
    ),
    pytest.param(
        "ds_32.json",
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16}',
        ("--tuned-for", "8"),
        "32 samples per step, tuned for 8 GPUs",
        id="deepspeed at a count that does not fit",
    ),
    pytest.param(
        "ds_tabs.json",
        '{\n\t"train_batch_size": 32,\n\t"gradient_accumulation_steps": 2\n}\n',
        (),
        "32 samples per step",
        id="tabs",
    ),
    pytest.param(
        "handbook_v02.yaml",
        f"{OLDER}use_flash_attention_2: true\n{TRAINED}",
        ("--tuned-for", "8"),
        "128 packed rows per step, tuned for 8 GPUs",
        id="older handbook",
    ),
]


@pytest.mark.parametrize(("name", "text", "arguments", "says"), READ)
def test_recipes_that_were_once_refused_by_mistake_are_read(cli, name, text, arguments, says):
    """One line names the recipe, the table follows, and the exit code is 0."""
    if name:
        Path(name).write_text(text)
    answer = cli("check", name or text, *arguments)
    assert answer.code == 0, answer.err
    assert says in answer.out.splitlines()[0]
    assert not [line for line in answer.out.splitlines()[1:] if len(line) > 100]


def test_deepspeeds_own_words_stand_beside_planners_plan(cli):
    """At the count that the file does not fit."""
    Path("ds.json").write_text('{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16}')
    answer = cli("check", "ds.json", "--tuned-for", "8", "--gpus", "8")
    assert "AssertionError: A = 32 // 16 // 8 = 0" in answer.out
    assert "8 x 4" in answer.out
    assert "Gradient accumulation steps: 0 has to be greater than 0" in " ".join(answer.out.split())


def test_an_unknown_recipe_is_refused_without_a_table(cli):
    """The message names the system, or says that the script is not supported."""
    answer = cli("check", f"torchrun --nproc_per_node=8 train.py {OF_A_TRAINER}", "--gpus", "4,8")
    assert (answer.code, answer.out) == (2, "")
    assert "looks like a script of its own on transformers' Trainer" in answer.err
    Path("litgpt.yaml").write_text("checkpoint_dir: c\ntrain: {global_batch_size: 16}\n")
    for command in ("check", "convert"):
        answer = cli(command, "litgpt.yaml")
        assert (answer.code, answer.out) == (2, "")
        assert "this looks like LitGPT (checkpoint_dir, train.global_batch_size)" in answer.err
        assert "which planner does not read" in answer.err
        assert len(answer.err.splitlines()) == 1


def test_a_loss_of_escape_codes_does_not_reach_the_terminal(tmp_path, cli):
    """planner does not know that loss, and escapes its name."""
    script = tmp_path / "launch.sh"
    script.write_text(
        "accelerate launch --config_file accelerate_config/fsdp_4gpu.yaml launch.py \"loss='\x1b[31mred'\" model=llama "
        "train_datasets=[ultrabin] test_datasets=[ultrabin] ++model.batch_size=8 "
        "++model.gradient_accumulation_steps=8\n"
    )
    answer = cli("check", str(script), "--halos-batch", "total")
    assert answer.code == 0
    assert "\\x1b[31mred" in answer.out
    assert "\x1b" not in answer.out


def test_a_missing_accelerate_config_is_named_as_one(cli, tmp_path):
    """It is not called a recipe."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    answer = cli("check", "recipe.yaml", "--method", "sft", "--accelerate", "nope.yaml")
    assert answer.code == 2
    assert answer.err == "planner: nope.yaml: found no such file. Write the path of an accelerate config\n"


@pytest.mark.parametrize("command", ["check", "convert"])
def test_the_example_in_the_help_reads_a_recipe(cli, command):
    """README's name of a recipe. `job.yaml` is a job in every other help."""
    answer = cli(command, "--help")
    assert f"planner {command} recipe.yaml" in answer.out
    assert "job.yaml" not in answer.out


@pytest.mark.parametrize("path", ["gone/job.yaml", ".", "a\0b", "x" * 300, "/proc/x/y.yaml", "/proc/x.yaml"])
def test_an_output_that_cannot_be_written_is_refused_as_by_init(cli, tmp_path, path):
    """The same sentence as `planner init`, with the path once and without an errno."""
    (tmp_path / "recipe.yaml").write_text(TRL)
    answer = cli("convert", "recipe.yaml", "--gpus", "8", "--method", "sft", "-o", path)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == cli("init", path).err
    assert "Errno" not in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("text", [TRL, '{"train_micro_batch_size_per_gpu": 8}'], ids=["trl", "deepspeed"])
@pytest.mark.parametrize(
    ("command", "option"),
    [("check", "--tuned-for W"), ("convert", "--gpus W"), ("convert --to trl --at 4", "--gpus W")],
)
def test_a_missing_gpu_count_names_only_this_commands_option(cli, tmp_path, text, command, option):
    """`check` has `--tuned-for`, `convert` has `--gpus`."""
    (tmp_path / "recipe.yaml").write_text(text)
    error = cli(*command.split(), "recipe.yaml", "--method", "sft").err
    assert "the GPU count: " in error
    assert [each for each in ("--tuned-for W", "--gpus W") if each in error] == [option]
