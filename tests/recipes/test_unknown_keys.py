"""Keys that TRL does not know: another system's recipe, a typing mistake, or a key that may decide what is trained."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, read_recipe
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.systems import readable
from planner.recipes.trl.keys import KNOWN
from planner.recipes.trl.unknown import refuse_unknown

CHECK = RecipeOptions(gpus=8, is_for_job=False, needs_micro=False)
TRAINER = (
    "model_name_or_path per_device_train_batch_size gradient_accumulation_steps learning_rate num_train_epochs "
    "lr_scheduler_type output_dir logging_steps seed"
)
HANDBOOK = f"{TRAINER} dataset_mixer dataset_splits preprocessing_num_workers warmup_ratio bf16"
DPO = f"{HANDBOOK} beta max_length max_prompt_length"
GRPO = f"{TRAINER} dataset_name reward_funcs num_generations max_completion_length beta temperature"
VALUES = {
    "model_name_or_path": "org/m",
    "dataset_mixer": "{org/d: 1.0}",
    "dataset_splits": "[train]",
    "max_length": "512",
    "max_seq_length": "512",
    "num_generations": "8",
    "per_device_train_batch_size": "2",
    "lr_scheduler_type": "linear",
    "output_dir": "out",
    "dataset_name": "org/d",
    "bf16": "true",
    "loss_type": "sigmoid",
}
# Keys of real files. Each list is what a system's script adds to those that TRL knows.
OF_OTHERS = {
    "SimPO or a fork of its trainer": f"{DPO} gamma_beta_ratio loss_type",
    "SimPO or a fork of its trainer ": f"{DPO} gamma_beta_ratio alpha ln trainer_type",
    "Open-Instruct": f"{TRAINER} tokenizer_name use_slow_tokenizer max_seq_length with_tracking use_lora loss_type "
    "gamma_beta_ratio beta num_epochs",
    "Open-Instruct ": f"{TRAINER} dataset_mixer max_seq_length use_flash_attn max_train_samples checkpointing_steps",
    "Open-Instruct  ": f"{TRAINER} dataset_mixer_list",
    "Online-RLHF of RLHFlow": f"{TRAINER} choose_type train_dir eval_dir loss_type max_length max_prompt_length",
    "Open R1 with settings of its own rewards": f"{GRPO} dataset_prompt_column code_language "
    "code_eval_test_batch_size hub_model_revision",
    "LLaMA-Factory's trainer v1": "model train_dataset dist_config kernel_config micro_batch_size cutoff_len",
    "LMFlow": f"{TRAINER} dataset_path disable_group_texts",
    "FastChat, Stanford Alpaca or LLaVA": f"{TRAINER} vision_tower mm_projector_type model_max_length",
    "an example of transformers": f"{TRAINER} train_file validation_file use_fast_tokenizer",
    "MLX LM": f"{TRAINER} iters val_batches grad_checkpoint",
    "AutoTrain": "base_model project_name backend per_device_train_batch_size",
    "Tinker": f"{TRAINER} renderer_name load_checkpoint_path",
    "Unsloth Studio": f"{TRAINER} training_type finetune_language_layers",
}
# Forks without marks that planner knows.
OF_THEIR_OWN = {
    "a token-weighted DPO": f"{DPO} use_weighting self_judge self_judge_output_path attn_source",
    "a pruned GRPO": f"{GRPO} metric pruning allocation",
    "a benchmark": "model_name_or_path dataset_name gpus_per_node extra_args runs",
    "an SFT": f"{TRAINER} packing data_files curriculum_start ema_decay neg_weight",
    "a DPO under SFT's keys": f"{TRAINER} beta max_seq_length packing divergence_kind rejected_scale warm_reference",
}
# One key of a fork, which decides its loss, its data or its batch.
DECIDING = [
    "length_normalize_logps",
    "format_pattern",
    "dataset_processing",
    "additional_special_tokens",
    "gamma",
    "lambda_kl",
    "tau_margin",
    "mode_loss",
    "sft_coefficient",
    "global_step_tokens",
    "log_ratio_clip",
    "algorithm",
]


def written(names, place, name="config.yaml"):
    file = place / name
    file.write_text("".join(f"{key}: {VALUES.get(key, 1)}\n" for key in dict.fromkeys(names.split())))
    return str(file)


def as_command(names):
    options = " ".join(f"--{key} {VALUES.get(key, 1)}" for key in dict.fromkeys(names.split()) if "mixer" not in key)
    return f"accelerate launch --num_processes 8 scripts/sft.py {options}"


def refusal(recipe, options=CHECK):
    with pytest.raises(RecipeError) as raised:
        read_recipe(recipe, (), options)
    return str(raised.value)


@pytest.mark.parametrize("name", OF_OTHERS)
def test_a_recipe_of_another_system_is_named_and_no_key_advised_away(name, tmp_path):
    """Its keys stand among many that TRL knows. The refusal is one line."""
    text = refusal(written(OF_OTHERS[name], tmp_path))
    assert re.search(rf"this looks like {re.escape(name.strip())} \(.*\), which planner does not read", text)
    assert "emove" not in text
    assert "method" not in text
    assert "\n" not in text


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_a_recipe_of_an_unknown_script_is_none_that_planner_reads(name, tmp_path):
    """As a file, and as options of a script that is named like TRL's."""
    names = OF_THEIR_OWN[name].split()
    strange = [key for key in names if key not in KNOWN]
    text = refusal(written(OF_THEIR_OWN[name], tmp_path))
    assert (
        f"{len(strange)} of its {len(names)} keys are none of TRL's ({', '.join(strange)}), so another script trains "
        f"it. planner reads {readable()}" in text
    )
    assert "are none of TRL's" in refusal(as_command(OF_THEIR_OWN[name]))


@pytest.mark.parametrize("name", [*OF_OTHERS, *OF_THEIR_OWN])
@pytest.mark.parametrize("method", [None, "sft", "dpo"])
def test_obeying_every_advice_makes_no_job_of_another_systems_recipe(name, method, tmp_path):
    """A user removes what they are told to remove, and asks again."""
    lines, options = (OF_OTHERS | OF_THEIR_OWN)[name].split(), RecipeOptions(gpus=8, method=method)
    for _ in range(len(lines)):
        text = refusal(written(" ".join(lines), tmp_path), options)
        gone = re.findall(r": (\w+): [^\n]*[Rr]emove it", text)
        if not gone:
            return
        lines = [key for key in lines if key not in gone]
    pytest.fail(f"obeyed to the end: {lines}")


@given(st.from_regex(r"[a-z][a-z0-9]{1,8}(_[a-z0-9]{1,8}){0,3}", fullmatch=True))
def test_any_unknown_key_is_refused_and_kept_unless_it_names_where_results_go(key):
    """By itself among keys of TRL's."""
    assume(key not in KNOWN and key.removeprefix("no_") not in KNOWN and key != "env")
    keys = KeyReader(source="config.yaml", entries={name: Entry(value=1, where="") for name in [*DPO.split(), key]})
    with pytest.raises(RecipeError) as raised:  # noqa: PT012  the first raises, or the second
        refuse_unknown(keys)
        keys.raise_mistakes()
    harmless = key.startswith(("hub_", "logging_", "report_", "save_", "wandb_", "trackio_", "mlflow_", "swanlab_"))
    assert harmless or "emove" not in str(raised.value)


@pytest.mark.parametrize("key", DECIDING)
@pytest.mark.parametrize("is_file", [True, False])
def test_a_key_that_may_decide_the_loss_is_never_advised_away(key, is_file, tmp_path):
    """One unknown key is enough: no job, no other mistake that suggests a way on."""
    names = f"{DPO} {key}"
    text = refusal(written(names, tmp_path) if is_file else as_command(names))
    assert text.endswith(
        f"{key}: TRL does not know this key and refuses the recipe. The script that takes it may train another loss "
        "or batch, and is none that planner reads"
    )
    assert "\n" not in text


def test_the_keys_of_a_commands_file_count_too(tmp_path):
    file = written(OF_OTHERS["Online-RLHF of RLHFlow"], tmp_path)
    for command in (f"python sft.py --config {file}", f"accelerate launch --num_processes 8 scripts/run_dpo.py {file}"):
        assert "this looks like Online-RLHF of RLHFlow (choose_type, train_dir, eval_dir)" in refusal(command)
    file = written(OF_THEIR_OWN["a token-weighted DPO"], tmp_path, "own.yaml")
    assert "3 of its 21 keys are none of TRL's" in refusal(f"python dpo.py --config {file}")


def test_typing_mistakes_are_asked_about(tmp_path):
    """However many there are, if each resembles a key of TRL's."""
    names = TRAINER.replace("learning_rate", "learnin_rate").replace("num_train_epochs", "num_train_epoch")
    text = refusal(written(f"{names} packin max_lenght", tmp_path))
    assert "learnin_rate: TRL does not know this key and refuses the recipe. Did you mean learning_rate?" in text
    assert "Did you mean num_train_epochs?" in text
    assert "emove" not in text


MISSPELT = {
    "learnin_rate": "learning_rate",
    "max_lenght": "max_length",
    "per_device_train_batchsize": "per_device_train_batch_size",
    "perDeviceTrainBatchSize": "per_device_train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "scale_reward": "scale_rewards",
}
NOT_MISSPELT = (
    "dpo_alpha simpo_beta use_lora ref_model_name_or_path reference_model lora_rank use_dpo use_sft epsilon_low "
    "train_batch_size cpo simpo beta2 num_epochs tau"
)


def hint(key, place):
    """What is said of `key` among keys of TRL's."""
    names = DPO.replace("learning_rate ", "").replace(" max_length", "")
    return refusal(written(f"{names} {key}", place), RecipeOptions(gpus=8, method="dpo", is_for_job=False))


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_is_asked_about(key, tmp_path):
    assert f"Did you mean {MISSPELT[key]}?" in hint(key, tmp_path)


@pytest.mark.parametrize("key", NOT_MISSPELT.split())
def test_a_key_of_another_loss_or_batch_is_no_misspelling(key, tmp_path):
    """However few letters differ: whoever took the hint would train something else."""
    assert "Did you mean" not in hint(key, tmp_path)


def test_options_of_a_launcher_are_moved_to_it(tmp_path):
    """The command `trl` takes them from its file. However many there are, they tell of no other system."""
    text = refusal(written(f"{TRAINER} dataset_name packing num_processes num_machines", tmp_path))
    assert (
        "num_processes, num_machines: found an option of a launcher, which planner does not read here. Take it out of "
        "there and write it before the script: accelerate launch --num_processes 8 scripts/METHOD.py" in text
    )
    assert "none of TRL's" not in refusal(written(f"{TRAINER} num_processes num_machines mixed_precision vm", tmp_path))


def test_only_a_key_that_says_where_results_go_is_advised_away(tmp_path):
    text = refusal(written(f"{TRAINER} dataset_name packing wandb_tags", tmp_path))
    assert text.endswith(
        "wandb_tags: TRL does not know this key and refuses the recipe. It only says where results go: remove it"
    )


@pytest.mark.parametrize(
    ("names", "method"),
    [
        (f"{GRPO} vllm_device vllm_max_model_len vllm_enable_prefix_caching vllm_dtype", "grpo"),
        (f"{DPO} loss_type max_target_length use_num_logits_to_keep", "dpo"),
        (f"{HANDBOOK} max_seq_length packing hub_model_revision", "sft"),
    ],
)
def test_a_recipe_of_an_older_trl_is_still_read(names, method, tmp_path):
    """TRL 0.12 to 0.18 had these keys, and the handbook's first scripts."""
    recipe = read_recipe(written(names, tmp_path), (), CHECK)
    assert (recipe.system, recipe.method, recipe.global_batch) == ("trl", method, 16)
    if "hub_model_revision" not in names:
        traps = {trap.name: trap.text for trap in recipe.traps(CheckOptions(counts=[8]))}
        assert names.split()[-1] in traps["does not load"]


@pytest.mark.parametrize(
    "names",
    [
        f"{TRAINER} dataset_name packing beta",
        f"{TRAINER} dataset_name max_seq_length loss_type",
        f"{TRAINER} dataset_mixer system_prompt",
    ],
)
def test_keys_of_two_methods_name_none(names, tmp_path):
    """A preference recipe is not taken for SFT because it packs or names a length."""
    assert "method: the recipe does not name it. Write --method" in refusal(written(names, tmp_path))


@pytest.mark.parametrize(
    ("loss", "method"),
    [("dapo", "grpo"), ("dr_grpo", "grpo"), ("apo_zero_unpaired", "kto"), ("dft", "sft"), ("apo_zero", "dpo")],
)
def test_a_loss_names_the_method_that_has_it(loss, method, tmp_path):
    """It was DPO for each of them."""
    file = tmp_path / "config.yaml"
    file.write_text(f"model_name_or_path: m\nper_device_train_batch_size: 8\nloss_type: {loss}\n")
    assert read_recipe(str(file), (), CHECK).method == method


def test_a_loss_that_no_method_of_trl_has_names_none(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("model_name_or_path: m\nper_device_train_batch_size: 8\nloss_type: own\n")
    assert "method: the recipe does not name it" in refusal(str(file))
