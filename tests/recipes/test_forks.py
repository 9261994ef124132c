"""Forks and trainers of one's own: their batch is exact, and their loss is never taken for the original's."""

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite

CHECK = RecipeOptions(is_for_job=False, needs_micro=False)
TRAIN = (
    "python -u train.py model=pythia28 datasets=[hh] loss=dpo loss.beta=0.1 exp_name=a gradient_accumulation_steps=2 "
    "batch_size=64 eval_batch_size=32 trainer=FSDPTrainer sample_during_eval=false model.fsdp_policy_mp=bfloat16"
)
TDPO = TRAIN.replace("loss=dpo", "loss=tdpo loss.alpha=0.5")
HALOS = (
    "accelerate launch --num_processes 4 launch.py loss=dpo model=llama ++model.name_or_path=m train_datasets=[a] "
    "++model.batch_size=32"
)
TRL = "accelerate launch --num_processes 4 sft.py --model_name_or_path m --dataset_name d"
# A fork's files, as TDPO, Dr. DPO and f-DPO have them: keys of their own below `loss.` and at the top.
FORK = {
    "config.yaml": "seed: 0\nexp_name: ???\nbatch_size: 4\neval_batch_size: 16\ndatasets: [hh]\nlr: 5e-6\n"
    "gradient_accumulation_steps: 1\nmax_grad_norm: 10.0\nmax_length: 512\nmax_prompt_length: 256\nn_epochs: 1\n"
    "n_examples: null\nn_eval_examples: 256\ntrainer: BasicTrainer\noptimizer: RMSprop\nwarmup_steps: 150\n"
    "activation_checkpointing: false\neval_every: 20_000\nsample_during_eval: true\nwandb: {enabled: true}\n"
    "noise_rate: 0.0\ndefaults:\n- _self_\n- model: pythia28\n- loss: sft\n",
    "model/pythia28.yaml": "name_or_path: EleutherAI/pythia-2.8b\narchive: null\nblock_name: GPTNeoXLayer\n"
    "fsdp_policy_mp: null\n",
    "loss/sft.yaml": "name: sft\n",
    "loss/dpo.yaml": "name: dpo\nbeta: ???\nlabel_smoothing: 0\nreference_free: false\nmode_loss: mean\n",
    "loss/tdpo.yaml": "name: tdpo\nif_tdpo2: true\nalpha: 0.3\nbeta: 0.2\nreference_free: false\n",
}


def checkout(place, files=None, script="train.py", decorator=""):
    """A checkout with a script and its configuration."""
    (place / script).write_text(f"import hydra\n{decorator}\ndef main(config): ...\n")
    for name, text in (files or FORK).items():
        file = place / "config" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


def traps(recipe):
    return {trap.name: trap.text for trap in recipe.traps(CheckOptions(counts=[3, 4]))}


# -- a loss that the system does not have


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (f"{TRAIN} loss.mode_loss=DrDPO loss.mode_weight=1.0", "loss.mode_loss=DrDPO, loss.mode_weight=1"),
        (f"{TRAIN} loss.mode_loss=beta_DPO loss.mode_weight=0.2 loss.a=0.6", "loss.mode_loss=beta_DPO"),
        (
            f"{TRAIN} loss.divergence=alpha_divergence loss.alpha=0.3",
            "loss.divergence=alpha_divergence, loss.alpha=0.3",
        ),
        (f"{TRAIN} +loss.divergence=jsd", "loss.divergence=jsd"),
        (TDPO, "loss.name=tdpo, loss.alpha=0.5"),
        (f"{TRAIN} loss.name=rdpo", "loss.name=rdpo"),
        (TRAIN.replace("trainer=FSDP", "trainer=DrFSDP"), "trainer=DrFSDPTrainer"),
        (f"{HALOS} ++loss.trainer=OwnTrainer", "loss.trainer=OwnTrainer"),
        (f"{HALOS} ++loss.margin=0.5", "loss.margin=0.5"),
        (f"{HALOS} ++loss.trainer=KTOTrainer", "loss.trainer=KTOTrainer"),
        (f"{HALOS} ++loss.use_reference_model=false", "loss.use_reference_model=false"),
        (f"{HALOS} ++loss.tokenwise_KL=true", "loss.tokenwise_KL=true"),
    ],
)
def test_a_loss_that_planner_does_not_know_is_left_to_a_loop_of_ones_own(command, told):
    """The job has the exact batch, and its list says key and value. The method is not the original's."""
    recipe = read_recipe(command, (), RecipeOptions(gpus=4))
    job, text = job_of(recipe)
    assert job.is_own
    assert job.batch.global_batch == (32 if "launch.py" in command else 64)
    assert recipe.draft.to_do[0].text.startswith(f"{told.split(',')[0]}")
    assert told in recipe.draft.to_do[0].text
    assert told in text
    assert not [note for note in recipe.draft.dropped if note.key in told]


@pytest.mark.parametrize(
    ("command", "method"),
    [
        (f"{TRAIN} loss.mode_loss=DrDPO", "dpo with loss.mode_loss=DrDPO"),
        (TDPO, "tdpo with loss.alpha=0.5"),
        (f"{HALOS} ++loss.trainer=OwnTrainer", "dpo with loss.trainer=OwnTrainer"),
        (f"{HALOS} ++humanline=true", "dpo with humanline=true"),
        (TRAIN, "dpo"),
        (HALOS, "dpo"),
    ],
)
def test_a_check_names_what_is_not_the_originals(command, method):
    recipe = read_recipe(command, (), CHECK)
    assert recipe.method == method
    assert ("a fork" in traps(recipe)) == (method not in {"dpo", "dpo with humanline=true"})


def test_a_fork_is_sliced_as_the_original():
    """B=64 A=2 at 3 GPUs: 60 rows. A trainer of its own starts a process per GPU if FSDP is in its name."""
    for command in (TDPO, TRAIN.replace("trainer=FSDP", "trainer=DrFSDP")):
        assert read_recipe(command, (), CHECK).foreign.outcome(3).batch == 60
    assert read_recipe(TRAIN.replace("FSDPTrainer", "DrTrainer"), (), CHECK).foreign.outcome(3).batch == 64


def test_a_key_outside_of_the_section_loss_may_decide_it_too():
    """A job of planner's own dpo would have dropped it."""
    recipe = read_recipe(f"{TRAIN} +mode_loss=DrDPO", (), RecipeOptions(gpus=4))
    assert recipe.draft.job["data"]["kind"] == "own"


def test_a_mistyped_trainer_is_no_forks():
    with pytest.raises(RecipeError, match=r'trainer: found "FSDPTrainr" \(text\). Did you mean FSDPTrainer\?'):
        read_recipe(TRAIN.replace("FSDPTrainer", "FSDPTrainr"), (), CHECK)


def test_a_mistyped_key_is_no_forks():
    with pytest.raises(RecipeError, match=r"Write loss\.label_smoothing if you mean that"):
        read_recipe(f"{TRAIN} loss.labelsmoothing=0.1", (), CHECK)


@pytest.mark.parametrize("command", [f"{TRAIN} +micro_batch_size=4", f"{HALOS} ++grad_accum=2", f"{TRAIN} +n_batch=1"])
def test_an_unknown_key_that_speaks_of_batches_is_refused(command):
    with pytest.raises(RecipeError, match="planner does not know whether it changes the batch"):
        read_recipe(command, (), CHECK)


def test_a_data_loader_of_ones_own_is_refused():
    """It makes the batches."""
    with pytest.raises(RecipeError, match="planner does not know its batches"):
        read_recipe(f"{HALOS} ++loss.dataloader=OwnLoader", (), CHECK)
    with_theirs = f"{HALOS} ++loss.dataloader=OwnLoader"
    assert read_recipe(with_theirs, ["++loss.dataloader=PairedPreferenceDataLoader"], CHECK).global_batch == 32


def test_no_advice_changes_the_loss():
    """Who obeyed "write sft, dpo or ipo" trained another loss."""
    for command in (TDPO, f"{TRAIN} loss.name=rdpo", f"{TRAIN} loss.mode_loss=DrDPO"):
        said = " ".join(map(str, read_recipe(command, (), RecipeOptions(gpus=4)).draft.to_do))
        assert "has only sft, dpo and ipo" not in said
        assert "Remove" not in said


# -- keys that may decide the loss


def test_an_unknown_key_is_to_do_and_not_dropped(tmp_path, monkeypatch):
    monkeypatch.chdir(checkout(tmp_path))
    recipe = read_recipe(
        f"{TRAIN.replace('loss=dpo loss.beta=0.1', 'loss=sft')} noise_rate=0.2", (), RecipeOptions(gpus=4)
    )
    assert recipe.method == "sft with noise_rate=0.2"
    assert recipe.draft.job["objective"]["kind"] == "sft"
    assert [
        text for text in map(str, recipe.draft.to_do) if text.startswith("noise_rate=0.2: not of the DPO repository")
    ]
    assert "noise_rate" not in {note.key for note in recipe.draft.dropped}
    assert "noise_rate=0.2" in traps(recipe)["a fork"]


def test_an_unknown_key_of_the_configuration_is_told_also_where_nobody_wrote_it(tmp_path):
    """The checkout is a fork, with its own defaults."""
    recipe = read_recipe(str(checkout(tmp_path)), ["loss=sft"], RecipeOptions(gpus=4))
    assert recipe.method == "sft"
    assert any(text.startswith("noise_rate=0: not of the DPO repository") for text in map(str, recipe.draft.to_do))
    assert "noise_rate=0" in traps(recipe)["a fork"]


def test_an_unknown_key_below_loss_of_the_configuration_is_a_forks(tmp_path):
    recipe = read_recipe(str(checkout(tmp_path)), ["loss=dpo", "loss.beta=0.1"], RecipeOptions(gpus=4))
    assert recipe.method == "dpo with loss.mode_loss=mean"
    assert job_of(recipe)[0].is_own


def test_a_key_that_an_interpolation_reads_is_accounted_for(tmp_path):
    files = {
        **FORK,
        "config.yaml": FORK["config.yaml"].replace("batch_size: 4\n", "my_batch: 48\nbatch_size: ${my_batch}\n"),
    }
    recipe = read_recipe(str(checkout(tmp_path, files)), ["loss=sft"], CHECK)
    assert recipe.global_batch == 48
    assert "my_batch" not in traps(recipe)["a fork"]


def test_a_fork_without_its_checkout_must_say_its_batch():
    """The default of the original may not be the fork's."""
    with pytest.raises(RecipeError, match="batch_size: found none, and this command is of a fork"):
        read_recipe(TDPO.replace(" batch_size=64", ""), (), CHECK)
    to_do = [*map(str, read_recipe(TDPO, (), RecipeOptions(gpus=4)).draft.to_do)]
    assert any("lr=5e-7" in text and "the fork's may differ" in text for text in to_do)
    assert "lr=5e-7" in traps(read_recipe(TDPO, (), CHECK))["a fork"]


def test_a_forks_own_command_keeps_its_loss():
    """`--to dpo` writes the batch into the recipe's own command."""
    recipe = read_recipe(f"{TRAIN} loss.mode_loss=DrDPO", (), RecipeOptions(gpus=4))
    made = rewrite(recipe, "dpo", 8)
    assert "loss.mode_loss=DrDPO" in made.command
    assert any("loss.mode_loss=DrDPO" in text for text in map(str, rewrite(recipe, "trl", 8).unsaid))


def test_a_forks_own_command_keeps_its_trainer():
    recipe = read_recipe(TRAIN.replace("trainer=FSDP", "trainer=DrFSDP"), (), RecipeOptions(gpus=4))
    assert " trainer=DrFSDPTrainer " in rewrite(recipe, "dpo", 8).command
    assert " trainer=FSDPTrainer " in rewrite(read_recipe(TRAIN, (), RecipeOptions(gpus=4)), "dpo", 8).command


# -- the checkout counts


def test_a_command_in_a_checkout_is_read_with_its_configuration(tmp_path, monkeypatch):
    """TDPO's rate is 5e-6. The original's is 5e-7."""
    monkeypatch.chdir(checkout(tmp_path))
    recipe = read_recipe(TDPO, (), RecipeOptions(gpus=4))
    assert recipe.source == "the command with config/config.yaml"
    told = recipe.draft.to_do[1].text
    assert "lr: 5e-6" in told
    assert "if_tdpo2: true, alpha: 0.5, beta: 0.1" in told
    by_folder = read_recipe(".", TDPO.split()[3:], RecipeOptions(gpus=4))
    assert (by_folder.draft.job, by_folder.method) == (recipe.draft.job, recipe.method)


@pytest.mark.parametrize("command", ["cd {0} && {1}", "cd {0}; {1}", "{2}"])
def test_the_path_of_the_script_and_cd_say_where_the_checkout_is(command, tmp_path, monkeypatch):
    place = checkout(tmp_path)
    monkeypatch.chdir("/")
    text = command.format(place, TDPO, TDPO.replace("train.py", f"{place}/train.py"))
    assert "lr: 5e-6" in read_recipe(text, (), RecipeOptions(gpus=4)).draft.to_do[1].text


def test_a_command_outside_a_checkout_has_the_originals_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    derived = read_recipe(TRAIN, (), RecipeOptions(gpus=4)).draft.derived
    assert "train.optimizer.lr 5e-7: lr of the DPO repository's own config.yaml" in {note.text for note in derived}


def test_halos_checkout_counts_too(tmp_path, monkeypatch):
    files = {
        "config.yaml": "exp_name: ???\ntrain_datasets: ???\nlr: 3e-6\nn_epochs: 1\neval_every: 1024\nwarmup: 0.1\n"
        "optimizer: AdamW\ndefaults:\n- _self_\n- model: ???\n- loss: ???\n",
        "model/base.yaml": "name_or_path: ???\nmax_length: 99\nmax_grad_norm: 5.0\nbatch_size: 16\n"
        "gradient_accumulation_steps: 1\neval_batch_size: 16\n",
        "model/llama.yaml": "defaults:\n- base\n",
        "loss/dpo.yaml": "beta: 0.1\ntrainer: DPOTrainer\ndataloader: PairedPreferenceDataLoader\n",
    }
    monkeypatch.chdir(checkout(tmp_path, files, script="launch.py"))
    recipe = read_recipe(HALOS.replace(" ++model.batch_size=32", ""))
    job, _ = job_of(recipe)
    assert (recipe.global_batch, recipe.method) == (16, "dpo")
    assert (job.train.optimizer.lr, job.train.clip_norm, job.model.context) == (3e-6, 5.0, 99)


def test_the_decorator_of_the_script_names_the_configuration(tmp_path, monkeypatch):
    decorator = '@hydra.main(version_base=None, config_path="config/own", config_name="main")'
    files = {name.replace("config.yaml", "main.yaml"): text for name, text in FORK.items()}
    monkeypatch.chdir(checkout(tmp_path, {f"own/{name}": text for name, text in files.items()}, decorator=decorator))
    assert read_recipe(TDPO, (), CHECK).source == "the command with config/own/main.yaml"


def test_config_name_and_config_path_choose_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(
        checkout(tmp_path, {**FORK, "big.yaml": FORK["config.yaml"].replace("batch_size: 4", "batch_size: 96")})
    )
    sft = "python train.py loss=sft trainer=FSDPTrainer"
    assert read_recipe(sft, (), CHECK).global_batch == 4
    for option in ("--config-name big", "--config-name=big", "-cn big", "-cn big.yaml"):
        assert read_recipe(f"{sft} {option}", (), CHECK).global_batch == 96
    (tmp_path / "config").rename(tmp_path / "other")
    assert read_recipe(f"{sft} --config-path other -cn big", (), CHECK).global_batch == 96
    with pytest.raises(RecipeError, match="--config-path other --config-name huge: found no such configuration"):
        read_recipe(f"{sft} --config-path other -cn huge", (), CHECK)


def test_an_absolute_config_path_needs_no_script(tmp_path, monkeypatch):
    place = checkout(tmp_path, {**FORK, "big.yaml": FORK["config.yaml"].replace("batch_size: 4", "batch_size: 96")})
    monkeypatch.chdir("/")
    command = f"python train.py --config-path {place}/config -cn big loss=sft trainer=FSDPTrainer"
    assert read_recipe(command, (), CHECK).global_batch == 96


def test_a_key_that_only_a_fork_may_have_is_asked_for_its_checkout():
    with pytest.raises(
        RecipeError, match=r"noise_rate: not a key of the system.* Run planner in the checkout of the fork"
    ):
        read_recipe(f"{TRAIN} noise_rate=0.2", (), CHECK)


def test_a_configuration_that_planner_does_not_have_is_refused(tmp_path, monkeypatch):
    """It would read config.yaml in its place."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="--config-name other: found no such configuration"):
        read_recipe("python train.py -cn other model=pythia69 loss=sft batch_size=8", (), CHECK)
    with pytest.raises(RecipeError, match="--config-dir more: planner reads one folder"):
        read_recipe("python train.py --config-dir more model=pythia69 loss=sft batch_size=8", (), CHECK)


@pytest.mark.parametrize("option", ["--cfg job", "--info", "--help", "-c job", "--experimental-rerun x"])
def test_a_command_that_trains_nothing_is_refused(option):
    with pytest.raises(RecipeError, match="with it Hydra does not train this configuration"):
        read_recipe(f"{TRAIN} {option}", (), CHECK)


def test_hydras_own_settings_are_no_mistake():
    recipe = read_recipe(f"{TRAIN} hydra.run.dir=out hydra/job_logging=disabled -m", (), CHECK)
    assert recipe.global_batch == 64
    why = {note.key: note.text for note in recipe.draft.dropped}
    assert why["hydra.run.dir=out"] == "a setting of Hydra's own, which concerns no key of the recipe"


@pytest.mark.parametrize("argument", ["~batch_size", "~gradient_accumulation_steps", "~loss", "~wandb"])
def test_a_run_without_a_key_that_the_system_reads_does_not_start(argument):
    with pytest.raises(RecipeError, match="the DPO repository reads this key, so it would not start"):
        read_recipe(f"{TRAIN.replace(' loss=dpo loss.beta=0.1', '')} {argument}", (), CHECK)


def test_a_bare_key_is_refused_as_hydra_refuses_it():
    with pytest.raises(RecipeError, match="batch_size: not KEY=VALUE as Hydra reads it"):
        read_recipe(f"{TRAIN} batch_size", (), CHECK)


def test_parameters_of_a_sweep_are_several_runs(tmp_path, monkeypatch):
    text = FORK["config.yaml"].replace("noise_rate", "hydra:\n  sweeper:\n    params:\n      lr: 1,2\nnoise_rate")
    monkeypatch.chdir(checkout(tmp_path, {**FORK, "config.yaml": text}))
    sft = "python train.py loss=sft trainer=FSDPTrainer batch_size=8"
    assert read_recipe(sft, (), CHECK).global_batch == 8
    with pytest.raises(RecipeError, match=r"hydra\.sweeper\.params makes several runs"):
        read_recipe(f"{sft} --multirun", (), CHECK)


def test_a_file_with_a_defaults_list_is_composed_whatever_its_name(tmp_path):
    """Its groups may set the batch."""
    text = FORK["config.yaml"].replace("- loss: sft", "- loss: sft\n- exp: big")
    files = {**FORK, "own.yaml": text, "exp/big.yaml": "# @package _global_\nbatch_size: 640\n"}
    checkout(tmp_path, files)
    assert read_recipe(str(tmp_path / "config" / "own.yaml"), (), CHECK).global_batch == 640


@pytest.mark.parametrize("command", [TRAIN, HALOS, TRL])
def test_arguments_that_planner_cannot_know_are_said_by_a_check(command):
    """They may set the batch. The variable is the first argument, so it is no value of another one."""
    opened = read_recipe(command.replace(".py ", ".py $EXTRA "), (), CHECK)
    assert "$EXTRA is not set" in traps(opened)["not read"]
    assert "not read" not in traps(read_recipe(command, (), CHECK))
