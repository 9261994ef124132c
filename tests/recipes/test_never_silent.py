"""Values that train differently in planner than in the recipe's system are carried over, listed or refused."""

import re

import pytest

from planner.errors import RecipeError
from planner.job import HfModel
from planner.recipes import RecipeOptions, job_of, read_recipe
from planner.recipes.rendering import attention_of
from planner.recipes.rewrite import rewrite

TRL = "model_name_or_path: org/m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\nlearning_rate: 1e-6\n"


def _lora_of(tmp_path, text, *arguments):
    file = tmp_path / "lora.yaml"
    file.write_text(TRL + "use_peft: true\n" + text)
    return read_recipe(str(file), arguments, RecipeOptions(gpus=2, method="sft")).draft.job["model"]["lora"]


def test_adapters_go_where_they_went(tmp_path):
    assert _lora_of(tmp_path, "lora_target_modules: [q_proj, v_proj]\n")["targets"] == ["q_proj", "v_proj"]
    assert "targets" not in _lora_of(tmp_path, "lora_target_modules: all-linear\n")
    assert "targets" not in _lora_of(tmp_path, "lora_target_modules: [all-linear]\n")
    # planner scales by alpha / rank, rsLoRA by alpha / sqrt(rank).
    assert _lora_of(tmp_path, "lora_target_modules: all-linear\nuse_rslora: true\n")["alpha"] == 128.0


@pytest.mark.parametrize("text", ["", "lora_target_modules: q_proj\n", "lora_target_modules: '[q_proj,v_proj]'\n"])
def test_adapters_are_not_put_on_other_layers(text, tmp_path):
    with pytest.raises(RecipeError, match="lora_target_modules"):
        _lora_of(tmp_path, text)


def test_adapters_of_another_kind_are_refused(tmp_path):
    with pytest.raises(RecipeError, match="use_dora"):
        _lora_of(tmp_path, "lora_target_modules: all-linear\nuse_dora: true\n")


def _trl(tmp_path, text, method):
    file = tmp_path / "loss.yaml"
    file.write_text(TRL + text)
    return read_recipe(str(file), [], RecipeOptions(gpus=2, method=method)).draft


@pytest.mark.parametrize(
    ("method", "text", "said"),
    [
        ("dpo", "loss_type: apo_zero\nbeta: 0.05\n", "beta: 0.05"),
        ("dpo", "loss_type: robust\nlabel_smoothing: 0.2\n", "label_smoothing: 0.2"),
        ("dpo", "loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.5]\n", "loss_weights: [1,0.5]"),
        ("dpo", "loss_type: sft\n", "loss_type: sft"),
        ("dpo", "rpo_alpha: 1.0\n", "rpo_alpha: 1"),
        ("dpo", "sync_ref_model: true\nref_model_sync_steps: 9\n", "ref_model_sync_steps: 9"),
        ("dpo", "loss_type: ipo\nreference_free: true\n", "reference_free: true"),
        ("sft", "loss_type: dft\n", "loss_type: dft"),
        ("sft", "neftune_noise_alpha: 5\n", "neftune_noise_alpha: 5"),
        ("grpo", "beta: 0.04\nnum_generations: 4\n", "num_generations: 4"),
    ],
)
def test_what_makes_another_loss_goes_to_a_loop_of_ones_own(method, text, said, tmp_path):
    draft = _trl(tmp_path, text, method)
    assert draft.job["objective"] == "own"
    assert said in " ".join(map(str, draft.to_do))


@pytest.mark.parametrize(
    ("method", "text"),
    [("dpo", "loss_type: [sigmoid]\nuse_weighting: false\n"), ("sft", "loss_type: nll\n"), ("kto", "loss_type: kto\n")],
)
def test_what_makes_the_same_loss_is_kept(method, text, tmp_path):
    assert _trl(tmp_path, text, method).job["objective"]["kind"] == method


def test_adam_with_weight_decay_is_another_optimizer_here():
    command = "accelerate launch --num_processes 4 launch.py loss=kto model=llama ++model.name_or_path=m ++lr=1e-6"
    with pytest.raises(RecipeError, match="weight_decay"):
        read_recipe(command, ["++optimizer=Adam", "++weight_decay=0.1"])
    assert read_recipe(command, ["++optimizer=Adam"]).draft.job["train"]["optimizer"]["kind"] == "adamw"


def test_torchrun_starts_processes_on_every_node():
    run = "torchrun {} scripts/sft.py --model_name_or_path m --per_device_train_batch_size 4"
    assert read_recipe(run.format("--nnodes 2 --nproc_per_node 8")).global_batch == 64
    assert read_recipe(run.format("--nproc-per-node=8")).global_batch == 32
    for unknown in ("--nnodes 1:4 --nproc_per_node 8", "--nproc_per_node gpu", "--nnodes $N --nproc_per_node 8"):
        with pytest.raises(RecipeError, match="nnodes"):
            read_recipe(run.format(unknown))


def test_null_is_no_default(tmp_path):
    assert _trl(tmp_path, "max_grad_norm: null\n", "sft").job["train"]["clip_norm"] is None
    with pytest.raises(RecipeError, match="max_length: found null"):
        _trl(tmp_path, "max_length: null\n", "sft")


def test_gpus_that_share_a_micro_batch_are_not_counted(tmp_path):
    with pytest.raises(RecipeError, match="share a micro-batch"):
        _trl(tmp_path, "parallelism_config:\n  tp_size: 2\n", "sft")
    accelerate = tmp_path / "a.yaml"
    accelerate.write_text(
        "distributed_type: FSDP\nnum_processes: 16\nparallelism_config:\n  parallelism_config_cp_size: 2\n"
    )
    (tmp_path / "r.yaml").write_text(TRL)
    with pytest.raises(RecipeError, match="share a micro-batch"):
        read_recipe(str(tmp_path / "r.yaml"), [], RecipeOptions(accelerate=str(accelerate), method="sft"))


def _job(tmp_path, text, method="dpo", **options):
    file = tmp_path / "recipe.yaml"
    file.write_text(TRL + text)
    return read_recipe(str(file), [], RecipeOptions(gpus=2, method=method, **options)).draft


def _accelerate(tmp_path, text):
    file = tmp_path / "accelerate.yaml"
    file.write_text(f"distributed_type: DEEPSPEED\nnum_processes: 2\n{text}")
    return str(file)


@pytest.mark.parametrize(
    ("method", "text", "side", "said"),
    [
        ("dpo", "truncation_mode: keep_start\nmax_prompt_length: 9\n", "start", "the first max_length tokens"),
        ("dpo", "truncation_mode: keep_end\n", "start", "the last max_length tokens"),
        ("dpo", "", None, "whose default is 512 in TRL 0.19"),
        ("kto", "truncation_mode: keep_start\nmax_prompt_length: 9\n", "end", ""),
        ("sft", "truncation_mode: keep_end\n", "start", "planner cuts its end"),
        ("sft", "eos_token: <|im_end|>\n", None, "eos_token <|im_end|>"),
        ("sft", "packing: true\npacking_strategy: wrapped\n", None, "attention crosses"),
        ("sft", "packing: true\npacking_strategy: bfd_split\n", None, "in another row"),
    ],
)
def test_other_rules_of_cutting_and_packing_are_said(tmp_path, method, text, side, said):
    draft = _job(tmp_path, text, method)
    assert draft.job["data"].get("cut_prompt") == side
    assert said in " ".join(map(str, draft.to_do))


@pytest.mark.parametrize(
    "text",
    [
        "truncation_mode: middle\n",
        "optim: adafactor\n",
        "adafactor: true\n",
        "optim_args: rank=64\n",
        "lr_scheduler_type: inverse_sqrt\n",
        "packing_strategy: tight\npacking: true\n",
    ],
)
def test_what_would_train_otherwise_is_refused(tmp_path, text):
    with pytest.raises(RecipeError, match=re.escape(text.partition(":")[0])):
        _job(tmp_path, text, "sft")


@pytest.mark.parametrize("name", ["adamw_torch_4bit", "adamw_bnb_8bit", "adamw_anyprecision"])
def test_an_optimizer_state_of_fewer_bits_is_said(tmp_path, name):
    dropped = {note.key: note.text for note in _job(tmp_path, f"optim: {name}\n").dropped}
    assert "planner in fp32" in dropped["optim"]


def test_a_loop_of_ones_own_is_told_the_schedule_and_optimizer_by_name(tmp_path):
    draft = _job(tmp_path, "optim: lomo\nlr_scheduler_type: inverse_sqrt\noptim_args: a=1\n", "grpo")
    told = next(line for line in map(str, draft.to_do) if line.startswith("what the loop"))
    assert all(text in told for text in ("kind: inverse_sqrt", "kind: lomo", "args: a=1"))


@pytest.mark.parametrize(
    ("text", "launched", "precision"),
    [
        ("", "no", "bf16"),
        ("bf16: false\n", "no", "fp32"),
        ("bf16: false\n", "bf16", "bf16"),
        ("fp16: true\n", "no", "bf16"),
    ],
)
def test_the_precision_is_the_keys_then_the_launchers_then_trls(tmp_path, text, launched, precision):
    launch = _accelerate(tmp_path, f"mixed_precision: '{launched}'\n")
    assert _job(tmp_path, text, accelerate=launch).job["train"]["precision"] == precision


def test_a_launcher_that_clips_otherwise_is_refused(tmp_path):
    launch = _accelerate(tmp_path, "deepspeed_config:\n  deepspeed_config_file: ds.json\n")
    steps = '"gradient_accumulation_steps": "auto"'
    (tmp_path / "ds.json").write_text(f'{{"gradient_clipping": 0.5, {steps}}}')
    assert _job(tmp_path, "max_grad_norm: 0.5\n", accelerate=launch).job["train"]["clip_norm"] == 0.5
    with pytest.raises(RecipeError, match=r"max_grad_norm: 1, but .* has gradient_clipping 0\.5"):
        _job(tmp_path, "", accelerate=launch)
    (tmp_path / "ds.json").write_text(f'{{"gradient_clipping": "auto", {steps}}}')
    _job(tmp_path, "", accelerate=launch)


def test_a_mixture_is_all_of_its_data_sets_and_their_shares(tmp_path):
    listed = "".join(f"  - {{id: a/{n}, split: s{n}, weight: 0.004}}\n" for n in range(6))
    data = _trl(tmp_path, f"dataset_mixture:\n  seed: 7\n  datasets:\n{listed}", "sft").job["data"]
    assert data["mixture"] == [{"path": f"a/{n}", "split": f"s{n}", "fraction": 0.004} for n in range(6)]
    assert data["seed"] == 7


def test_ipo_without_a_reference_is_another_loss():
    command = "python -u train.py model=pythia28 loss=dpo loss.name=ipo loss.beta=0.1 loss.reference_free=true"
    with pytest.raises(RecipeError, match="reference_free"):
        read_recipe(command, [])


@pytest.mark.parametrize("text", ["1", "yes", "True", "t"])
def test_truths_are_read_as_transformers_reads_them(text):
    run = f"accelerate launch --num_processes 2 sft.py --model_name_or_path m --assistant_only_loss {text} --bf16 0"
    job = read_recipe(run).draft.job
    assert (job["data"]["loss_on"], job["train"]["precision"]) == ("completions", "fp32")
    with pytest.raises(RecipeError, match='bf16: found "maybe"'):
        read_recipe(f"{run} --bf16 maybe")


def test_no_epochs_are_refused_and_steps_may_have_a_point(tmp_path):
    with pytest.raises(RecipeError, match="num_train_epochs: found 0"):
        _job(tmp_path, "num_train_epochs: 0\n")
    assert _job(tmp_path, "num_train_epochs: 0\nmax_steps: 100.0\n").job["train"]["steps"] == 100
    with pytest.raises(RecipeError, match="max_steps"):
        _job(tmp_path, "max_steps: ten\n")


def test_the_default_of_eval_steps_is_that_of_logging_steps(tmp_path):
    assert _job(tmp_path, "eval_strategy: steps\n").job["eval"]["every"] == "10 steps"


def test_trls_own_command_passes_the_launchers_options_on():
    run = "trl sft --model_name_or_path m --per_device_train_batch_size 2 --accelerate_config zero3"
    assert read_recipe(run).global_batch == 16
    recipe = read_recipe(f"{run} --num_processes=4")
    assert (recipe.global_batch, recipe.foreign.launch_kind) == (8, "DEEPSPEED")


def test_quantized_weights_hint_at_adapters(tmp_path):
    text = "use_peft: true\nlora_target_modules: all-linear\nload_in_4bit: true\n"
    assert "merge them into their base" in " ".join(map(str, _job(tmp_path, text).to_do))


QLORA = "use_peft: true\nlora_target_modules: all-linear\nload_in_4bit: true\n"


def test_weights_in_four_bits_convert(tmp_path):
    """What bitsandbytes stores otherwise is said."""
    draft = _job(tmp_path, QLORA)
    assert draft.job["model"]["frozen"] == "nf4"
    assert not [note for note in draft.dropped if "4bit" in note.key]
    nested = _job(tmp_path, f"{QLORA}use_bnb_nested_quant: true\n")
    assert nested.job["model"]["frozen"] == "nf4"
    assert "scales in float32" in str(nested.dropped)


@pytest.mark.parametrize("text", [f"{QLORA}bnb_4bit_quant_type: fp4\n", QLORA.replace("4bit", "8bit")])
def test_other_quantized_weights_become_whole_ones(tmp_path, text):
    """With a note."""
    draft = _job(tmp_path, text)
    assert "frozen" not in draft.job["model"]
    assert "fp32 takes more memory" in str(draft.dropped)


def test_what_a_halos_command_does_not_show_is_to_be_looked_up():
    command = "accelerate launch --num_processes 4 launch.py loss=kto model=llama ++model.name_or_path=m ++lr=1e-6"
    arguments = ["++model.load_lora_from=/a", "++frac_unique_desirable=0.5", "++model.max_grad_norm=1"]
    to_do = " ".join(map(str, read_recipe(command, arguments).draft.to_do))
    assert "model.max_length 1250 (model.context), model.max_prompt_length null (data.max_prompt)." in to_do
    assert "model.load_lora_from /a" in to_do
    assert "frac_unique_desirable 0.5" in to_do


def test_deepspeeds_auto_clipping_is_said(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 96, "train_micro_batch_size_per_gpu": 3, "gradient_clipping": "auto"}')
    draft = read_recipe(str(file), [], RecipeOptions(gpus=8)).draft
    assert draft.job["train"]["clip_norm"] == 1
    assert any("gradient_clipping auto" in line for line in map(str, draft.to_do))


def test_what_only_a_version_of_trl_has_names_the_version(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "name: a\nmodel: {kind: hf, path: m, context: 64}\ndata: {kind: pairs, path: d}\nobjective: {kind: simpo}\n"
        "batch: {global: 8, max_micro: 4}\n"
        "train: {steps: 9, optimizer: {kind: adamw, lr: 1.0e-6}, schedule: {kind: linear, warmup: 10%}}\n"
    )
    made = rewrite(read_recipe(str(tmp_path / "job.yaml")), "trl", 2)
    assert " examples/scripts/cpo.py " in made.command
    assert "trl.experimental.cpo" in " ".join(map(str, made.unsaid))
    assert "for transformers 5 write --warmup_steps 0.1" in " ".join(map(str, made.unsaid))


@pytest.mark.parametrize("name", ["rmsprop", "sgd"])
def test_an_optimizer_that_both_have_is_listed(tmp_path, name):
    """Keys that only Adam takes are dropped."""
    draft = _job(tmp_path, f"optim: {name}\nadam_beta1: 0.8\nadam_epsilon: 1e-6\n")
    assert any(note.key == "optim" and name in note.text for note in draft.carried)
    assert {"adam_beta1", "adam_epsilon"} <= {note.key for note in draft.dropped}
    assert set(draft.job["train"]["optimizer"]) == {"kind", "lr"}


# What the alignment-handbook's recipes/zephyr-7b-beta/*/config_qlora.yaml say of model, weights and compute.
HANDBOOKS_QLORA = (
    "model_name_or_path: mistralai/Mistral-7B-v0.1\ntorch_dtype: bfloat16\nattn_implementation: flash_attention_2\n"
    "load_in_4bit: true\nuse_peft: true\nlora_dropout: 0.05\n"
    "lora_target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]\n"
    "bf16: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n"
    "dataset_name: a/b\nnum_train_epochs: 1\nlearning_rate: 2.0e-04\n"
)
QLORA_OF_SFT = "lora_r: 16\nlora_alpha: 16\npacking: true\nmax_length: 2048\nper_device_train_batch_size: 4\n"
QLORA_OF_DPO = "lora_r: 128\nlora_alpha: 128\nbeta: 0.01\nmax_length: 1024\nper_device_train_batch_size: 4\n"


@pytest.mark.parametrize(
    ("method", "own", "rank"), [("sft", QLORA_OF_SFT, 16), ("dpo", QLORA_OF_DPO, 128)], ids=["sft", "dpo"]
)
def test_the_handbooks_qlora_recipes_lose_nothing_of_their_weights_and_passes(tmp_path, method, own, rank):
    """Weights in four bits, adapters, attention, precision and checkpointing. Two notes say what is planner's own."""
    file = tmp_path / "config_qlora.yaml"
    file.write_text(f"{HANDBOOKS_QLORA}{own}gradient_accumulation_steps: 2\n")
    recipe = read_recipe(str(file), (), RecipeOptions(gpus=8, method=method))
    job, _ = job_of(recipe)
    assert (job.model.frozen, job.model.lora.rank, job.model.lora.alpha) == ("nf4", rank, rank)
    assert len(job.model.lora.targets) == 7
    assert (job.model.attention, job.train.precision) == ("flash_attention_2", "bf16")
    assert job.train.activation_checkpointing is True
    told = {note.key for note in recipe.draft.dropped}
    assert told == {"torch_dtype", "gradient_checkpointing_kwargs.use_reentrant"}


def test_attention_that_planner_does_not_have_is_dropped_with_what_it_has(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"{TRL}bf16: true\nattn_implementation: kernels-community/flash-attn2\ndataset_name: a/b\n")
    draft = read_recipe(str(file), (), RecipeOptions(gpus=8, method="sft")).draft
    assert "attention" not in draft.job["model"]
    (told,) = [note.text for note in draft.dropped if note.key == "attn_implementation"]
    assert told.startswith("kernels-community/flash-attn2: planner has sdpa, eager and flash_attention_2")


def test_other_systems_have_no_attention_of_planners_own():
    """They know the names of transformers."""
    names = ("auto", "varlen", "eager", "flash_attention_2")
    models = [HfModel(kind="hf", path="m", context=8, attention=name) for name in names]
    assert [attention_of(model) for model in models] == ["sdpa", "sdpa", "eager", "flash_attention_2"]
