"""Commands for another system are read back with the same exact batch, or refused."""

import json
import shlex
from pathlib import Path

import pytest
from recipes import rows

from planner.errors import NoExactSplit
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite
from planner.report.recipe_table import rewrite_lines

IDS = [row["id"] for row in rows()]
COUNTS = range(1, 17)
OWN = {"DPO repo": "dpo", "HALOs": "halos", "alignment-handbook": "trl"}

TRL = """
model_name_or_path: org/model
per_device_train_batch_size: {micro}
gradient_accumulation_steps: {steps}
learning_rate: 1e-6
max_length: 512
num_train_epochs: 1
"""


def read(recipe):
    halos = "total" if recipe.system == "HALOs" else None
    options = RecipeOptions(gpus=recipe.gpus if recipe.is_trl else None, halos_batch=halos, needs_micro=False)
    return read_recipe(recipe.path, recipe.arguments, options)


def again(command):
    """The command as `planner check` reads it, for the batch alone."""
    halos = "total" if "launch.py" in command else None
    return read_recipe(command, (), RecipeOptions(halos_batch=halos, is_for_job=False, needs_micro=False))


@pytest.mark.parametrize("name", IDS)
def test_its_own_system_at_every_count(shipped, name):
    """Exact where GPUs divide the batch (and a KTO micro-batch is 2 or more). Elsewhere the refusal names counts."""
    recipe, target = shipped[name], OWN[shipped[name].system]
    found = read(recipe)
    least = 2 if recipe.method == "kto" else 1
    for count in COUNTS:
        # One GPU held a quarter of a completion, which counts as one. HALOs refuses a completion that is alone.
        is_alone = recipe.method == "ppo" and count == 1
        if recipe.global_batch % count or recipe.global_batch // count < least or is_alone:
            with pytest.raises(NoExactSplit, match=r"cannot train a batch of \d+ on \d+ GPUs: .*\. Use \d+"):
                rewrite(found, target, count)
            continue
        made = rewrite(found, target, count)
        other = again(made.command)
        assert other.global_batch == recipe.global_batch
        outcome = other.foreign.outcome(count)
        assert (outcome.verdict, outcome.batch, outcome.dropped) == ("exact", recipe.global_batch, ())
        if target == "dpo":
            assert outcome.eval_text.isdigit()  # no row of an evaluation is cut off


def test_the_micro_batch_is_never_larger_than_it_was(tmp_path):
    """8 samples fitted, so fewer GPUs accumulate more."""
    path = tmp_path / "config.yaml"
    path.write_text(TRL.format(micro=8, steps=2))
    found = read_recipe(str(path), (), RecipeOptions(gpus=8, method="dpo"))
    made = {count: rewrite(found, "trl", count).arithmetic for count in (1, 2, 4, 16)}
    assert made == {
        1: "128 = 1 GPU x 8 x 16",
        2: "128 = 2 GPUs x 8 x 8",
        4: "128 = 4 GPUs x 8 x 4",
        16: "128 = 16 GPUs x 8 x 1",
    }


def test_a_refusal_names_what_is_near(tmp_path):
    """It names the counts below and above, and the nearest batch with its deviation."""
    path = tmp_path / "config.yaml"
    path.write_text(TRL.format(micro=8, steps=2))
    found = read_recipe(str(path), (), RecipeOptions(gpus=8, method="dpo"))
    with pytest.raises(NoExactSplit) as refusal:
        rewrite(found, "trl", 6)
    assert "128 % 6 = 2" in str(refusal.value)
    assert "Use 4 or 8 GPUs (nearest batch at 6: 126, -1.6%), or convert the recipe without --to" in str(refusal.value)


@pytest.mark.parametrize("target", ["trl", "halos"])
def test_a_recipe_in_another_systems_words_is_the_same_job(shipped, target):
    """Batch, rate, length, context and beta of a DPO recipe survive writing and reading."""
    found = read(shipped["dpo-3-dpo-pythia69-hh"])
    command = rewrite(found, target, 4).command
    options = RecipeOptions(method="dpo", halos_batch="total" if target == "halos" else None, needs_micro=False)
    job, _ = job_of(read_recipe(command, ["lr=5e-7"] if target == "halos" else (), options))
    before, _ = job_of(found)
    assert job.batch.global_batch == before.batch.global_batch
    assert job.model.path == before.model.path
    assert job.model.context == before.model.context
    assert job.objective.beta == before.objective.beta
    assert job.train.optimizer.lr == before.train.optimizer.lr
    assert (job.train.epochs, job.train.clip_norm, job.train.seed) == (1, 10.0, 0)


def test_a_job_of_ours_in_the_words_of_others(shipped, tmp_path):
    """A planner job is written like the recipe from which it was converted."""
    file = tmp_path / "job.yaml"
    file.write_text(job_of(read(shipped["hb-zephyr-7b-beta-sft-config_full"]))[1])
    found = read_recipe(str(file))
    made = rewrite(found, "trl", 4)
    arguments = shlex.split(made.command)
    assert arguments[arguments.index("--learning_rate") + 1] == "2e-5"
    assert arguments[arguments.index("--warmup_ratio") + 1] == "0.1"
    assert rewrite(found, "deepspeed", 4).file.startswith('{\n  "train_batch_size": 128')
    assert "--training.global_batch_size 128" in rewrite(found, "torchtitan", 2).command
    assert "num_processes: 2" in rewrite(found, "accelerate", 2).file


def test_a_method_that_the_other_system_lacks_is_refused(shipped):
    """KTO is not in the DPO repository, nor in torchtitan."""
    found = read(shipped["halos-launch_llama_sft_kto"])
    for target in ("dpo", "torchtitan"):
        with pytest.raises(
            NoExactSplit,
            match=r"does not train kto \(it trains .*\)\. Use another --to, or train the job with `planner run`",
        ):
            rewrite(found, target, 4)


def test_overrides_of_a_file_stay_in_what_is_to_be_typed(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("model_name_or_path: m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n")
    arguments = ["loss_type=apo_zero", "--beta", "0.3", "per_device_train_batch_size=4"]
    written = rewrite(read_recipe(str(file), arguments, RecipeOptions(gpus=4, method="dpo")), "trl", 8).command
    assert f"--config {file} --loss_type=apo_zero --beta 0.3 --per_device_train_batch_size 4" in written
    assert "per_device_train_batch_size=4" not in written


FSDP = """# ours
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: {fsdp_version: 2}
mixed_precision: bf16
num_machines: 2
num_processes: 8
"""
ZERO = FSDP.replace("distributed_type: FSDP", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  ACCUMULATE")


@pytest.mark.parametrize("target", ["trl", "accelerate"])
@pytest.mark.parametrize("accumulate", ["", "gradient_accumulation_steps: 2"])
def test_the_launcher_stays_the_users_own(tmp_path, target, accumulate):
    """Only the counts change, and notes say what the command line cannot set."""
    file = tmp_path / "fsdp_acc.yaml"
    text = ZERO.replace("ACCUMULATE", accumulate) if accumulate else FSDP
    file.write_text(text)
    path = tmp_path / "config.yaml"
    path.write_text(TRL.format(micro=8, steps=2))
    found = read_recipe(str(path), (), RecipeOptions(accelerate=str(file), method="dpo"))
    made = rewrite(found, target, 4)
    if target == "trl":
        assert f"--config_file {file} --num_processes 4 " in made.command
        stale = f"gradient_accumulation_steps is 2 in {file}: write 4 there"
        assert (stale in made.notes) == bool(accumulate)
    else:
        expected = text.replace("num_processes: 8", "num_processes: 4")
        assert made.file == expected.replace("accumulation_steps: 2", "accumulation_steps: 4")
        assert ("4 accumulation steps" in " ".join(made.notes)) == (not accumulate)
    assert made.unsaid == ()
    assert f"num_machines is 2 in {file}, which does not divide 1" in rewrite(found, target, 1).notes


def test_a_launcher_that_is_nowhere_said_is_listed(tmp_path):
    """The alignment-handbook's file replaces a missing one. A file that a command names is kept."""
    path = tmp_path / "config.yaml"
    path.write_text(TRL.format(micro=8, steps=2))
    made = rewrite(read_recipe(str(path), (), RecipeOptions(gpus=8, method="dpo")), "trl", 4)
    assert any("names no accelerate file, so the command has zero3.yaml" in text for text in map(str, made.unsaid))
    behind = "--per_device_train_batch_size 8 --model_name_or_path m --dataset_name d"
    for begin, kept in [
        ("accelerate launch --config_file mine/ddp.yaml --num_processes 8 dpo.py", "mine/ddp.yaml"),
        ("trl dpo --accelerate_config zero2", "trl/accelerate_configs/zero2.yaml"),
    ]:
        made = rewrite(read_recipe(f"{begin} {behind}"), "trl", 4)
        assert f"--config_file {kept} --num_processes 4 " in made.command
        assert made.unsaid == ()


def _job(tmp_path, kind, objective, data=""):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: j\nmodel: {{kind: hf, path: org/m, context: 512}}\ndata: {{kind: {kind}, path: d{data}}}\n"
        f"objective: {objective}\nbatch: {{global: 64, max_micro: 8}}\n"
        "train: {epochs: 1, optimizer: {kind: adamw, lr: 1e-5}, precision: bf16}\n"
    )
    return read_recipe(str(file))


@pytest.mark.parametrize(
    ("target", "kind", "objective", "data", "said"),
    [
        ("trl", "pairs", "{kind: simpo, beta: 2.5, gamma_beta_ratio: 0.4}", "", "--loss_type simpo --simpo_gamma 1 "),
        ("trl", "feedback", "{kind: kto, desirable_weight: 1.33}", "", "--desirable_weight 1.33"),
        ("halos", "feedback", "{kind: kto, undesirable_weight: 0.5}", "", "++loss.undesirable_weight=0.5"),
        ("halos", "pairs", "dpo", ", max_prompt: 100", "++model.max_prompt_length=100"),
        ("dpo", "pairs", "dpo", ", max_prompt: 100", "max_prompt_length=100"),
        ("dpo", "pairs", "{kind: dpo, reference: none}", "", "loss.reference_free=true"),
        ("dpo", "pairs", "dpo", "", "model.fsdp_policy_mp=bfloat16"),
        ("trl", "pairs", "{kind: dpo, reference: none}", "", "objective.reference none"),
        ("trl", "pairs", "dpo", ", max_prompt: 100", "data.max_prompt 100"),
        ("trl", "chat", "sft", "", "data.loss_on completions"),
        ("halos", "chat", "sft", ", loss_on: all", "data.loss_on all"),
        ("halos", "chat", "sft", ", packing: true", "data.packing"),
    ],
)
def test_what_changes_training_is_said_or_listed(target, kind, objective, data, said, tmp_path):
    written = rewrite(_job(tmp_path, kind, objective, data), target, 8)
    assert said in f"{written.command} {written.unsaid}"


def test_the_weights_to_begin_with_are_listed():
    command = (
        "python -u train.py model=pythia69 datasets=[hh] loss=dpo loss.beta=0.1 batch_size=64 trainer=FSDPTrainer "
        "model.archive=/p/policy.pt"
    )
    written = rewrite(read_recipe(command, [], RecipeOptions(gpus=4)), "trl", 8)
    assert any("model.archive" in text for text in map(str, written.unsaid))


def test_of_a_loss_that_is_a_loop_of_ones_own_only_the_batch_is_said(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("model_name_or_path: m\nper_device_train_batch_size: 8\nloss_type: apo_zero\nbeta: 0.3\n")
    written = rewrite(read_recipe(str(file), [], RecipeOptions(gpus=8, method="dpo")), "halos", 8)
    assert "only the batch" in written.unsaid[0].text
    assert "beta: 0.3" in " ".join(map(str, written.unsaid))


def _said(tmp_path, target, kind="chat", objective="sft", train="", gpus=8):
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: j\nmodel: {{kind: hf, path: org/m, context: 512}}\ndata: {{kind: {kind}, path: d}}\n"
        f"objective: {objective}\nbatch: {{global: 64, max_micro: 8}}\ntrain: {{{train}}}\n"
    )
    return rewrite(read_recipe(str(file)), target, gpus)


RMSPROP = "epochs: 1, optimizer: {kind: rmsprop, lr: 5e-7, alpha: 0.9}"


@pytest.mark.parametrize(
    ("target", "train", "typed"),
    [
        ("halos", RMSPROP, "++lr=5e-7"),
        ("halos", RMSPROP, "++model.policy_dtype=float32"),
        ("halos", f"{RMSPROP}, precision: bf16", "++model.policy_dtype=bfloat16"),
        ("halos", "steps: 9, optimizer: {kind: adamw, lr: 1e-6}", "++n_epochs=null ++n_examples=576"),
        ("torchtitan", "steps: 9, optimizer: {kind: adamw, lr: 1e-6}", "--optimizer.weight_decay 0"),
        ("torchtitan", "steps: 9, optimizer: {kind: adamw, lr: 1e-6}", "--optimizer.beta1 0.9 --optimizer.beta2 0.999"),
        ("torchtitan", "examples: 600, optimizer: {kind: sgd, lr: 0.1}", "--training.steps 10"),
        ("torchtitan", RMSPROP, "--optimizer.lr 5e-7"),
        ("torchtitan", f"{RMSPROP}, seed: 7", "--debug.seed 7"),
        ("torchtitan", RMSPROP, "--training.mixed_precision_param float32"),
        ("torchtitan", RMSPROP, "--lr_scheduler.decay_ratio 0"),
        ("torchtitan", f"{RMSPROP}, clip_norm: null", "--training.max_norm inf"),
        (
            "torchtitan",
            f"{RMSPROP}, schedule: {{kind: cosine, final_fraction: 0.1}}",
            "--lr_scheduler.decay_type cosine",
        ),
        ("trl", "epochs: 1, optimizer: {kind: adamw, lr: 1e-6, eps: 1e-6}", "--adam_epsilon 1e-6"),
        ("trl", RMSPROP, "--gradient_checkpointing false"),
        ("trl", f"{RMSPROP}, compile: blocks", "--torch_compile true"),
        ("dpo", RMSPROP, "activation_checkpointing=false"),
    ],
)
def test_values_that_were_dropped_are_written(tmp_path, target, train, typed):
    assert typed in _said(tmp_path, target, train=train).command


@pytest.mark.parametrize(
    ("target", "train", "listed"),
    [
        ("halos", RMSPROP, "train.optimizer.kind rmsprop, train.optimizer.alpha 0.9"),
        ("halos", "epochs: 1.5, optimizer: {kind: adamw, lr: 1e-6}", "train.epochs 1.5"),
        ("torchtitan", RMSPROP, "train.optimizer.kind rmsprop, train.optimizer.alpha 0.9"),
        ("torchtitan", RMSPROP, "train.epochs 1: torchtitan counts steps"),
        ("trl", RMSPROP, "train.optimizer.alpha 0.9"),
        ("trl", f"{RMSPROP}, schedule: {{kind: linear, final_fraction: 0.1}}", "train.schedule.final_fraction 0.1"),
        ("deepspeed", RMSPROP, "train.optimizer.lr 5e-7"),
    ],
)
def test_values_without_a_word_are_listed(tmp_path, target, train, listed):
    assert any(listed in line for line in map(str, _said(tmp_path, target, train=train).unsaid))


def test_the_version_of_torchtitan_that_is_written_is_named(tmp_path):
    """Since August 2026 the batch is in tokens: 8 x 512 in a micro-batch, 64 x 512 in a step."""
    made = _said(tmp_path, "torchtitan", train=RMSPROP)
    note = next(text for text in made.notes if "torchtitan 0.2.2" in text)
    assert "--training.num_tokens_per_microbatch_per_dp_rank 4096 " in note
    assert "--training.num_tokens_per_train_step 32768 --training.max_context_length 512" in note


@pytest.mark.parametrize(
    ("precision", "accelerate", "deepspeed"), [("fp32", "'no'", "false"), ("bf16", "bf16", "true")]
)
def test_files_are_of_the_jobs_precision(tmp_path, precision, accelerate, deepspeed):
    train = f"{RMSPROP}, precision: {precision}"
    assert f"mixed_precision: {accelerate}\n" in _said(tmp_path, "accelerate", train=train).file
    assert f'"enabled": {deepspeed}\n' in _said(tmp_path, "deepspeed", train=train).file


def test_a_file_of_deepspeed_stays_the_users_own(tmp_path):
    """Only the three batch numbers change."""
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 64, "zero_optimization": {"stage": 2}, "fp16": {"enabled": true}}')
    made = json.loads(rewrite(read_recipe(str(file), (), RecipeOptions(gpus=4)), "deepspeed", 8).file)
    assert (made["train_batch_size"], made["train_micro_batch_size_per_gpu"]) == (64, 8)
    assert (made["zero_optimization"], made["fp16"]) == ({"stage": 2}, {"enabled": True})
    assert "bf16" not in made


@pytest.mark.parametrize("target", ["trl", "accelerate"])
def test_a_launcher_of_two_machines_is_named(tmp_path, target):
    """Half of the processes run on each machine."""
    file = tmp_path / "fsdp_2x4gpu.yaml"
    file.write_text(FSDP)
    command = (
        "accelerate launch --config_file {} launch.py loss=dpo model=llama ++model.name_or_path=m ++model.batch_size=32"
    )
    made = rewrite(read_recipe(command.format(file)), target, 8)
    said = next(note for note in made.notes if "num_machines is 2" in note)
    assert "with 4 GPUs" in said


def test_a_launcher_that_lies_elsewhere_is_named():
    command = (
        "accelerate launch --config_file accelerate_config/fsdp_2x4gpu.yaml launch.py loss=dpo model=llama "
        "++model.name_or_path=m ++model.batch_size=32"
    )
    made = rewrite(read_recipe(command), "trl", 8)
    assert any("accelerate_config/fsdp_2x4gpu.yaml does not exist" in text for text in map(str, made.unsaid))


@pytest.mark.parametrize(
    ("kind", "objective", "script"),
    [
        ("feedback", "kto", "trl/scripts/kto.py"),
        ("pairs", "dpo", "scripts/dpo.py"),
        ("chat", "sft", "scripts/sft.py"),
        ("pairs", "simpo", "examples/scripts/cpo.py"),
    ],
)
def test_a_script_is_named_where_it_lies(tmp_path, kind, objective, script):
    """kto.py is not in the alignment-handbook."""
    assert f" {script} " in _said(tmp_path, "trl", kind, objective, RMSPROP).command


def test_a_path_is_one_word_of_a_shell(tmp_path):
    made = _said(tmp_path, "halos", train=RMSPROP)
    assert "++model.name_or_path=org/m" in shlex.split(made.command)
    file = tmp_path / "job.yaml"
    file.write_text(file.read_text().replace("path: org/m", "path: 'my models/m; x'"))
    for target, argument in [("halos", "++model.name_or_path=my models/m; x"), ("trl", "my models/m; x")]:
        assert argument in shlex.split(rewrite(read_recipe(str(file)), target, 8).command)


def test_a_script_of_ones_own_is_kept():
    """open-r1's grpo.py takes options that TRL's does not."""
    command = "accelerate launch --num_processes 8 src/open_r1/grpo.py --model_name_or_path m --num_generations 8"
    recipe = read_recipe(f"{command} --per_device_train_batch_size 8 --output_dir o --dataset_name d", ())
    assert " src/open_r1/grpo.py " in rewrite(recipe, "trl", 4).command


def test_a_refusal_names_no_nearest_batch_where_that_is_the_batch():
    """4 GPUs divide 56, but they evaluate 32 completions at once, which are no whole groups of 7."""
    command = "accelerate launch --num_processes 7 grpo.py --model_name_or_path m --num_generations 7 --output_dir o"
    more = "--dataset_name d --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --eval_strategy steps"
    with pytest.raises(NoExactSplit, match="no equal split fits") as caught:
        rewrite(read_recipe(f"{command} {more} --eval_steps 10", ()), "trl", 4)
    assert "nearest batch" not in str(caught.value)


_SWIFT = "NPROC_PER_NODE=8 swift {} --model m --dataset d --gradient_accumulation_steps 8 --max_length 9"


@pytest.mark.parametrize(
    ("command", "options", "script"),
    [
        (_SWIFT.format("sft"), {}, "scripts/sft.py"),
        ("NPROC_PER_NODE=8 swift sft --config swift.yaml", {}, "scripts/sft.py"),
        (f"{_SWIFT.format('rlhf')} --rlhf_type kto --per_device_train_batch_size 2", {}, "trl/scripts/kto.py"),
        ("llamafactory-cli train factory.yaml", {"gpus": 8}, "scripts/dpo.py"),
        ("torchrun --nproc_per_node 8 src/train.py factory.yaml", {}, "scripts/dpo.py"),
        ("factory.yaml", {"gpus": 8}, "scripts/dpo.py"),
        ("axolotl.yaml", {"gpus": 8}, "scripts/sft.py"),
        ("axolotl train axolotl.yaml", {"gpus": 8}, "scripts/sft.py"),
        ("tune run --nproc_per_node 8 lora_dpo_distributed --config tune.yaml", {}, "trl/scripts/dpo.py"),
    ],
)
def test_a_command_of_trl_names_no_script_and_no_file_of_another_system(
    tmp_path, monkeypatch, command, options, script
):
    monkeypatch.chdir(tmp_path)
    model = {"model_name_or_path": "m", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    files = {
        "factory.yaml": {
            **model, "stage": "dpo", "do_train": True, "dataset": "dpo_en_demo", "template": "llama3",
            "output_dir": "o",
        },
        "swift.yaml": {"model": "m", "dataset": "d", "max_length": 9},
        "axolotl.yaml": {
            "base_model": "m", "micro_batch_size": 2, "gradient_accumulation_steps": 1, "learning_rate": 1e-5,
            "datasets": [{"path": "a/b", "type": "chat_template"}],
        },
    }  # fmt: skip
    for name, tree in files.items():
        Path(name).write_text(json.dumps(tree))
    tune = Path(__file__).parent / "torchtune/configs/llama3_1/8B_lora_dpo.yaml"
    Path("tune.yaml").write_text(tune.read_text())
    made = rewrite(read_recipe(command, (), RecipeOptions(**options)), "trl", 4)
    words = shlex.split(made.command)
    files = [words[at + 1] for at, word in enumerate(words) if word == "--config"]
    assert next(word for word in words if word.endswith(".py")) == script
    assert set(files) <= {"data.yaml"}, made.command


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (_SWIFT.format("sft"), "swift"),
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train", "llamafactory"),
        ("axolotl train axolotl.yaml --num-processes 8", "axolotl"),
        ("accelerate launch --num_processes 8 sft.py --model_name_or_path m --dataset_name d --output_dir o", "trl"),
    ],
)
def test_a_note_tells_of_a_variable_without_a_value(tmp_path, monkeypatch, command, target):
    monkeypatch.chdir(tmp_path)
    tree = {
        "base_model": "m",
        "micro_batch_size": 2,
        "learning_rate": 1e-5,
        "datasets": [{"path": "a", "type": "chat_template"}],
    }
    Path("axolotl.yaml").write_text(json.dumps({**tree, "gradient_accumulation_steps": 2}))
    if target == "llamafactory":
        tree = {
            "model_name_or_path": "m",
            "stage": "sft",
            "do_train": True,
            "dataset": "identity",
            "template": "llama3",
        }
        Path("factory.yaml").write_text(json.dumps({**tree, "output_dir": "o"}))
        command, option = f"{command} factory.yaml", "learning_rate=$lr"
    else:
        option = "--learning-rate $lr" if target == "axolotl" else "--learning_rate $lr"
    for variables, is_open in [({}, True), ({"lr": "1e-5"}, False)]:
        options = RecipeOptions(env=variables, is_for_job=False)
        made = rewrite(read_recipe(f"{command} {option}", (), options), target, 4)
        assert any("$lr: found no value." in note and "--env lr=VALUE" in note for note in made.notes) is is_open
        assert ("$lr" in made.command) is is_open


@pytest.mark.parametrize(("started", "script"), [("mine/t.py", "mine/t.py"), ("-m mine.train", "YOUR_SCRIPT")])
def test_no_file_is_made_up_for_a_module_of_ones_own(started, script):
    command = f"accelerate launch --num_processes 8 {started} --per_device_train_batch_size 2"
    assert f" {script} " in rewrite(read_recipe(command, (), RecipeOptions(system="trainer")), "trl", 4).command


@pytest.mark.parametrize(
    ("loss", "script"), [("cdpo", "scripts/dpo.py"), ("csft", "YOUR_SCRIPT"), ("ppo", "YOUR_SCRIPT")]
)
def test_no_script_is_made_up(loss, script):
    """The script is one of TRL's, or YOUR_SCRIPT."""
    command = f"accelerate launch launch.py loss={loss} model=llama ++model.name_or_path=m ++model.batch_size=32"
    made = rewrite(read_recipe(command, (), RecipeOptions(gpus=4)), "trl", 4)
    assert f" {script} " in made.command


def test_a_deepspeed_file_is_written_for_the_users_own_script(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}')
    assert " YOUR_SCRIPT " in rewrite(read_recipe(str(file), (), RecipeOptions(gpus=8)), "trl", 8).command


@pytest.mark.parametrize("target", ["dpo", "halos", "trl"])
def test_a_job_that_clips_nothing_is_read_back_as_one(tmp_path, target):
    """planner writes `max_grad_norm=inf` and reads it back as no clipping."""
    command = _said(tmp_path, target, train=f"{RMSPROP}, clip_norm: null").command
    options = RecipeOptions(gpus=None if target != "dpo" else 8, halos_batch="total", needs_micro=False)
    read_back = read_recipe(command, (), options)
    assert read_back.draft.job["train"]["clip_norm"] is None
    assert "clipping per shard" not in {trap.name for trap in read_back.foreign.traps(CheckOptions(counts=[8]))}


def test_an_infinite_norm_in_a_file_is_read(tmp_path):
    """Hydra writes such a file into a run's folder."""
    file = tmp_path / "config.yaml"
    file.write_text("batch_size: 32\ntrainer: FSDPTrainer\nmax_grad_norm: .inf\nloss: {name: sft}\n")
    assert read_recipe(str(file), (), RecipeOptions(gpus=4, is_for_job=False)).draft.job["train"]["clip_norm"] is None


def test_escape_codes_of_a_recipe_do_not_reach_the_terminal():
    """The command to type contains the recipe's own arguments."""
    command = "python train.py loss=sft model=pythia28 datasets=[hh] batch_size=4 \"exp_name='a\x1b[31m\x07b'\""
    recipe = read_recipe(command, (), RecipeOptions(gpus=4))
    shown = "\n".join(rewrite_lines(recipe, rewrite(recipe, "dpo", 4), 4))
    assert "exp_name=" in shown
    assert all(char.isprintable() or char == "\n" for char in shown)
