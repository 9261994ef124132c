"""Recognition of systems by several of their own keys, and refusals that name an unsupported system."""

import pytest
import recipes

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe
from planner.recipes.dpo.keys import CONFIG as DPO
from planner.recipes.halos.keys import CONFIG as HALOS
from planner.recipes.hydra_recipes.signatures import is_dpo_repository, is_halos
from planner.recipes.trl.keys import KNOWN
from planner.recipes.unsupported import UNSUPPORTED, by_keys

CHECK = RecipeOptions(is_for_job=False, needs_micro=False)
FILES = {
    "verl": "data: {train_batch_size: 256}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 64}}\n",
    "Lightning": "seed_everything: 1\ntrainer: {max_epochs: 3, devices: 4}\ndata: {batch_size: 8}\nbatch_size: 8\n",
    "LitGPT": "checkpoint_dir: c\nout_dir: o\ntrain: {global_batch_size: 16, micro_batch_size: 4}\n",
    "GPT-NeoX": '{"train_micro_batch_size_per_gpu": 4, "pipe_parallel_size": 1, "model_parallel_size": 2}',
    "LLM Foundry": "global_train_batch_size: 512\nmax_duration: 1ep\ndevice_train_microbatch_size: 4\n",
    "NeMo": "exp_manager: {name: a}\nmodel: {micro_batch_size: 1, global_batch_size: 128, batch_size: 1}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_system_that_planner_does_not_read_is_named(name, tmp_path):
    """The error has the keys by which the system was recognised."""
    file = tmp_path / "config.yaml"
    file.write_text(FILES[name])
    with pytest.raises(RecipeError, match=f"this looks like {name} .*, which planner does not read") as raised:
        read_recipe(str(file), (), CHECK)
    assert "resembles" not in str(raised.value)


def test_a_toml_file_of_torchtitan_is_named(tmp_path):
    file = tmp_path / "llama3_8b.toml"
    file.write_text(
        '[job]\ndump_folder = "./outputs"\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\nsteps = 1000\n"
    )
    with pytest.raises(RecipeError, match=r"this looks like torchtitan \(job.dump_folder, model.flavor"):
        read_recipe(str(file), (), CHECK)
    file.write_text("[a]\nb = 1\n")
    with pytest.raises(RecipeError, match="found TOML"):
        read_recipe(str(file), (), CHECK)
    file.write_text("[a\n")
    with pytest.raises(RecipeError, match="found TOML"):
        read_recipe(str(file), (), CHECK)


def test_a_configuration_of_nanogpt_is_python(tmp_path):
    file = tmp_path / "train_shakespeare_char.py"
    file.write_text("out_dir = 'out'\nbatch_size = 64\nblock_size = 256\nn_layer = 6\nn_head = 6\nmax_iters = 5000\n")
    with pytest.raises(RecipeError, match="this looks like nanoGPT"):
        read_recipe(str(file), (), CHECK)
    file.write_text("print(1)\n")
    with pytest.raises(RecipeError, match=r"found a Python file.* see docs/guides/your-own-loop\.md"):
        read_recipe(str(file), (), CHECK)


TRAINER = "--model_name_or_path x --per_device_train_batch_size 2 --gradient_accumulation_steps 16"
COMMANDS = [
    (f"torchrun --nproc_per_node=8 train.py {TRAINER}", "a script of its own on transformers' Trainer"),
    ("torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2.py", "nanoGPT"),
    ("python train.py config/train_shakespeare_char.py --device=cpu --compile=False --block_size=64", "nanoGPT"),
    ("python train.py --block_size=64 --batch_size=12 --n_layer=4 --max_iters=2000", "nanoGPT"),
    (f"torchrun fastchat/train/train.py {TRAINER} --data_path d.json --lazy_preprocess True", "FastChat"),
    (f"torchrun train.py {TRAINER} --data_path d.json --model_max_length 2048 --lazy_preprocess True", "FastChat"),
    ("USE_V1=1 llamafactory-cli sft examples/v1/train_full.yaml", "LLaMA-Factory's trainer v1"),
    (f"deepspeed train.py {TRAINER} --data_split 2,4,4 --max_seq_len 512 --only_optimize_lora", "DeepSpeedExamples"),
    ("deepspeed train.py --deepspeed_config=ds.json --deepspeed_mpi", "DeepSpeedExamples"),
    ("deepspeed --module openrlhf.cli.train_dpo --micro_train_batch_size 1 --train_batch_size 128", "OpenRLHF"),
    ("python3 -m verl.trainer.main_ppo data.train_batch_size=1024 actor_rollout_ref.model.path=m", "verl"),
    ("torchrun -m torchtitan.train --job.config_file llama3_8b.toml", "torchtitan"),
    ("torchrun pretrain_gpt.py --micro-batch-size 4 --global-batch-size 512 --num-layers 24", "Megatron-LM"),
    ("litgpt finetune_lora m --data Alpaca --train.global_batch_size 16", "LitGPT"),
    (f"torchrun train.py {TRAINER} --medusa_num_heads 3 --medusa_only_heads True", "Medusa, or Liger Kernel's"),
    ("torchrun --nproc_per_node 8 run_clm.py --config_name gpt2", r"an example of transformers \(run_clm.py\)"),
    (f"accelerate launch examples/run_mlm_no_trainer.py {TRAINER}", "an example of transformers"),
    (f"torchrun training.py --bf16 {TRAINER} --use_liger True", r"an example of Liger Kernel \(training.py\)"),
    (f"torchrun llava/train/train_mem.py {TRAINER} --version plain", "FastChat, Stanford Alpaca or LLaVA"),
    ("python train.py loss=kto model=pythia1-4b datasets=[hh] exp_name=a mode=train", "HALOs before launch.py"),
    ("ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain m --zero_stage 3", "OpenRLHF"),
]


@pytest.mark.parametrize(("command", "name"), COMMANDS)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_command_of_a_system_that_planner_does_not_read_is_named(command, name, is_file, tmp_path):
    """It may be on the command line or in a script."""
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\nset -e\n{command}\n")
    with pytest.raises(
        RecipeError, match=f"this looks like {name}.*(which planner does not read|needs its configuration)"
    ):
        read_recipe(str(script) if is_file else command, (), CHECK)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("python train.py", "train.py with fewer than two keys of the DPO repository"),
        ("python train.py batch_size=64 lr=1e-3 model=resnet", "fewer than two keys of the DPO repository"),
        ("python train.py trainer=gpu model=mnist trainer.max_steps=9", "fewer than two keys of the DPO repository"),
        ("python train.py model=pythia69 loss=dpo batchsize=9", "Write batch_size if you mean that"),
        ("python train.py model=pythia69 loss=dpo --batch-size 64", "train.py with --batch-size, which the DPO"),
        ("accelerate launch launch.py --port 8", "launch.py with --port, which HALOs does not take"),
        ("accelerate launch launch.py", "fewer than two keys of HALOs"),
        ("python main.py --epochs 3", "found no training command that planner knows"),
        ("torchrun --nproc_per_node 8 training.py --epochs 3", "found no training command that planner knows"),
        ("trl reward --model_name_or_path m", "found trl reward. planner reads trl sft, dpo, orpo, kto and grpo"),
    ],
)
def test_a_script_of_the_same_name_is_not_taken_for_another(command, says):
    """The arguments decide, not the script's name."""
    with pytest.raises(RecipeError, match=says):
        read_recipe(command, (), CHECK)


@pytest.mark.parametrize(
    "command",
    [
        "python -u train.py model=pythia69 trainer=FSDPTrainer batch_size=60",
        "python train.py model=pythia28 loss=sft",
        "python train.py model=gpt2-xl lr=1e-6",
        "accelerate launch --num_processes 4 launch.py loss=kto model=llama",
        "python train.py --config-name config model=pythia69 loss=sft",
    ],
)
def test_a_short_command_of_theirs_is_theirs(command):
    """Two of a system's own keys are enough, or one if no key is unknown to it."""
    assert read_recipe(command, (), CHECK).system in {"dpo", "halos"}


def test_a_folder_of_somebody_elses_hydra_is_not_taken_for_theirs(tmp_path):
    (tmp_path / "config" / "model").mkdir(parents=True)
    (tmp_path / "config" / "model" / "mnist.yaml").write_text("width: 3\n")
    (tmp_path / "config" / "config.yaml").write_text("batch_size: 8\nlr: 0.1\ndefaults:\n- model: mnist\n- _self_\n")
    with pytest.raises(RecipeError, match="fewer than two keys of the DPO repository"):
        read_recipe(str(tmp_path), (), CHECK)
    (tmp_path / "train.sh").write_text("python train.py lr=0.2\n")
    with pytest.raises(RecipeError, match=r"train\.py with fewer than two keys"):
        read_recipe(str(tmp_path / "train.sh"), (), CHECK)


@pytest.mark.parametrize("text", ["batch_size: 8\nlr: 0.1\n", "model: {batch_size: 8}\nlr: 0.1\n"])
def test_a_batch_size_alone_names_no_system(text, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match="found no recipe that planner knows: its keys are"):
        read_recipe(str(file), (), CHECK)


def test_no_key_that_planner_reads_tells_of_a_system_that_it_does_not():
    """Otherwise a TRL recipe could be refused as another system's."""
    ours = KNOWN | DPO.names | HALOS.names
    assert [each.name for each in UNSUPPORTED if (each.keys | each.own) & ours] == []
    assert by_keys(ours) is None


def test_every_shipped_recipe_is_still_its_own_systems(tmp_path):
    systems = {"DPO repo": "dpo", "HALOs": "halos", "alignment-handbook": "trl"}
    for recipe in recipes.write_all(tmp_path):
        halos = "total" if recipe.system == "HALOs" else None
        gpus = None if recipe.system == "HALOs" else recipe.gpus
        options = RecipeOptions(gpus=gpus, halos_batch=halos, is_for_job=False, needs_micro=False)
        assert read_recipe(recipe.path, recipe.arguments, options).system == systems[recipe.system]


def test_a_trainer_of_theirs_among_keys_that_they_have_is_theirs(tmp_path):
    """The file is a resolved configuration, shortened by hand."""
    file = tmp_path / "config.yaml"
    file.write_text("batch_size: 64\ntrainer: FSDPTrainer\nlr: 1e-6\n")
    assert read_recipe(str(file), (), CHECK).system == "dpo"
    file.write_text("batch_size: 64\ntrainer: gpu\nlr: 1e-6\n")
    with pytest.raises(RecipeError, match="found no recipe that planner knows"):
        read_recipe(str(file), (), CHECK)


def test_options_of_hydras_own_are_said():
    dropped = read_recipe("python train.py -cn config -m model=pythia69 loss=sft", (), CHECK).draft.dropped
    assert {
        "-cn config": "an option of Hydra's own: read",
        "-m": "an option of Hydra's own: one run, because no override has several values",
    }.items() <= {note.key: note.text for note in dropped}.items()


def test_defaults_that_nobody_wrote_tell_nothing():
    from planner.recipes.dpo import read as dpo
    from planner.recipes.halos import read as halos

    assert not is_dpo_repository(dpo.base({}), {})
    assert not is_halos(halos.base({}), {})


@pytest.mark.parametrize(
    "start",
    [
        "uv run --with trl trl dpo",
        "python -m trl.scripts.dpo",
        "accelerate launch --num_processes 4 -m trl.scripts.dpo",
        "uvx --from trl trl dpo",
        "deepspeed trl/scripts/dpo.py",
    ],
)
def test_trl_is_known_however_it_is_started(start):
    """The package name `trl` is no command, and a module counts as a script."""
    command = f"{start} --model_name_or_path m --dataset_name d --per_device_train_batch_size 2"
    recipe = read_recipe(command, (), RecipeOptions(gpus=4, is_for_job=False, needs_micro=False))
    assert (recipe.system, recipe.method, recipe.global_batch) == ("trl", "dpo", 8)


def test_the_launcher_of_deepspeed_says_the_gpu_count():
    command = (
        "deepspeed --num_nodes 2 --num_gpus=4 scripts/sft.py --model_name_or_path m --per_device_train_batch_size 2"
    )
    recipe = read_recipe(command, (), CHECK)
    assert (recipe.gpus, recipe.global_batch) == (8, 16)


@pytest.mark.parametrize("data", ["dataset_name: d", "dataset_mixture: {datasets: [{id: d}]}"])
def test_a_recipe_of_trl_may_leave_the_batch_to_its_defaults(data, tmp_path):
    """TRL's own example does, and also sets environment variables."""
    file = tmp_path / "example_config.yaml"
    file.write_text(f"env:\n  CUDA_VISIBLE_DEVICES: 0\nmodel_name_or_path: m\n{data}\nlearning_rate: 1e-4\n")
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=4, method="sft"))
    assert (recipe.system, recipe.global_batch) == ("trl", 32)
    assert any(note.key == "env.CUDA_VISIBLE_DEVICES" for note in recipe.draft.dropped)


def test_names_that_many_have_tell_nothing():
    """The DPO repository has these keys, but so have many other systems."""
    with pytest.raises(RecipeError, match="fewer than two keys of the DPO repository"):
        read_recipe("python train.py exp_name=a n_epochs=3 eval_batch_size=8 max_length=512", (), CHECK)


SWIFT = "model: org/m\ndataset: rows.jsonl\ngradient_accumulation_steps: 2\n"
NAMED = "ms-swift takes all of them. If it trains this file, write --system swift"


@pytest.mark.parametrize(
    ("more", "is_named"),
    [
        ("", True),
        ("per_device_train_batch_size: 4\n", True),
        ("per_device_train_batch_size: 4\nsequence_parallel_size: 2\n", True),
        ("per_device_train_batch_size: 4\nword: 1\n", False),
    ],
)
def test_a_file_whose_keys_another_system_takes_names_it(more, is_named, tmp_path):
    """None of its keys is ms-swift's alone, so planner does not read it as one of ms-swift unasked."""
    file = tmp_path / "config.yaml"
    file.write_text(SWIFT + more)
    with pytest.raises(RecipeError) as raised:
        read_recipe(str(file), (), CHECK)
    assert (NAMED in str(raised.value)) == is_named


def test_a_file_that_trl_takes_is_trls(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nlearning_rate: 1.0e-5\n")
    options = RecipeOptions(gpus=4, method="dpo", is_for_job=False)
    assert read_recipe(str(file), (), options).title == "TRL"
