"""HALOs: the branch legacy, commands without the configuration folder, and losses for the user's own loop."""

import pytest

from planner.recipes import CheckOptions, RecipeOptions, job_of, read_recipe, rewrite

BARE = "accelerate launch --num_processes 4 launch.py loss={} model=llama ++model.name_or_path=m train_datasets=[a]"
LEGACY = """
mode: train
use_fsdp: true
datasets: [hh]
lr: 5e-7
n_epochs: 1
eval_every: 20_000
do_first_eval: true
warmup_steps: 150
optimizer: RMSprop
model: {name_or_path: m, batch_size: 32, gradient_accumulation_steps: 2, eval_batch_size: 32, max_grad_norm: 10.0}
loss: {name: sft}
"""


def legacy(tmp_path, *arguments, text=LEGACY, **options):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return read_recipe(str(file), arguments, RecipeOptions(gpus=4, **options))


def bare(loss, *arguments):
    return read_recipe(BARE.format(loss), arguments)


def traps(recipe):
    return {trap.name: trap.text for trap in recipe.foreign.traps(CheckOptions(counts=[1, 2, 4]))}


def lines(draft):
    return [f"{note.key} {note.text}" for note in (*draft.carried, *draft.derived, *draft.dropped)] + [
        *map(str, draft.to_do)
    ]


# -- the branch legacy


def test_legacy_sft_is_the_same_training(tmp_path):
    """Token losses are summed and averaged over examples, and the rate is constant after 150 steps."""
    job, _ = job_of(legacy(tmp_path))
    assert (job.objective.kind, job.objective.mean_over) == ("sft", "samples")
    assert (job.train.schedule.kind, job.train.schedule.warmup) == ("constant", "150 steps")


def test_a_key_is_listed_whose_name_is_a_part_of_another(tmp_path):
    """`mode` is in no note, although `model.path` has these letters."""
    assert "mode planner only trains" in lines(legacy(tmp_path).draft)


def test_sft_of_today_is_not_changed():
    job, _ = job_of(bare("sft"))
    assert (job.objective.mean_over, job.train.schedule.kind) == ("tokens", "cosine")


def test_the_report_says_of_legacy_only_what_is_true_of_it(tmp_path):
    recipe = legacy(tmp_path)
    said = " ".join([*lines(recipe.draft), *traps(recipe).values()])
    assert not {"clipping per shard", "memory", "depends on the split", "one GPU"} & set(traps(recipe))
    for false in ("no_sync", "own norm", "a tenth", "no effect there", "At 2 and more GPUs", "cosine for sft"):
        assert false not in said
    assert any("do_first_eval" in line and "planner evaluates" in line for line in lines(recipe.draft))


def test_the_units_of_legacy_are_steps(tmp_path):
    """150 updates of 64 examples. Evaluations are lowered to whole accumulation steps of 32."""
    units = {unit.key: unit for unit in legacy(tmp_path).foreign.units()}
    assert "warmup" not in units
    assert (units["warmup_steps"].value, units["warmup_steps"].here) == ("150", "warmup: 150 steps")
    assert "9600" in units["warmup_steps"].there
    assert units["eval_every"].here == "eval.every: 20000 examples rounded"
    assert job_of(legacy(tmp_path))[0].eval.every == "20000 examples rounded"


def test_no_warmup_of_legacy_is_no_share_of_the_run(tmp_path):
    units = legacy(tmp_path, "warmup_steps=0").foreign.units()
    assert [unit.key for unit in units if "warmup" in unit.key] == ["warmup_steps"]


def test_legacy_evaluates_by_accumulation_steps(tmp_path):
    """`eval_every` below an accumulation step becomes 0, and `% 0` ends the run. Below an optimizer step it works."""
    assert legacy(tmp_path, "eval_every=32").foreign.outcome(4).verdict == "exact"
    assert "ZeroDivisionError" in legacy(tmp_path, "eval_every=31").foreign.outcome(4).text


@pytest.mark.parametrize(("name", "decay"), [("AdamW", 0.01), ("Adam", 0.0)])
def test_legacy_passes_the_rate_alone_to_the_optimizer(tmp_path, name, decay):
    """So torch's default weight decay applies."""
    arguments = (f"optimizer={name}", "+weight_decay=0.1")
    assert job_of(legacy(tmp_path, *arguments))[0].train.optimizer.weight_decay == decay


def test_legacy_kto_pools_an_accumulation_step(tmp_path):
    text = LEGACY.replace("{name: sft}", "{name: kto, beta: 0.1}")
    assert (
        "averaged over the 32 completions of an accumulation step" in traps(legacy(tmp_path, text=text))["KL baseline"]
    )
    assert "KL baseline" not in traps(legacy(tmp_path, "model.gradient_accumulation_steps=1", text=text))


def test_legacy_in_the_words_of_todays_halos_is_another_system(tmp_path):
    """The branch legacy has another batch_size and another sft loss."""
    made = rewrite(legacy(tmp_path), "halos", 4)
    assert "++model.batch_size=64" in made.command
    said = " ".join(map(str, made.unsaid))
    assert "objective.mean_over samples" in said
    assert "train.schedule.kind constant" in said


# -- a command without HALOs' folder


@pytest.mark.parametrize("key", ["loss.use_reference_model", "loss.reference_hf_model_class", "loss.name"])
def test_a_list_where_halos_has_one_value_is_of_a_fork(key):
    recipe = read_recipe(BARE.format("dpo"), ["++model.batch_size=32", f"++{key}=[1,2]"], RecipeOptions())
    assert recipe.foreign.fork.loss == {key: "[1,2]"}


def test_more_accumulation_steps_than_completions_start_at_no_count():
    arguments = ["++model.batch_size=32", "++model.gradient_accumulation_steps=64"]
    options = RecipeOptions(halos_batch="total", is_for_job=False)
    recipe = read_recipe(BARE.format("grpo"), arguments, options)
    assert {recipe.foreign.outcome(count).verdict for count in range(1, 17)} == {"error"}
    assert "group cuts" not in traps(recipe)


@pytest.mark.parametrize(
    ("loss", "objective"),
    [
        ("simpo", {"beta": 10.0, "gamma_beta_ratio": 0.3}),
        ("cdpo", {"beta": 0.1, "label_smoothing": 0.2}),
        ("ipo", {"beta": 0.1}),
        ("kto", {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0}),
    ],
)
def test_a_bare_command_has_the_values_that_halos_ships(loss, objective):
    job, _ = job_of(bare(loss))
    assert {name: getattr(job.objective, name) for name in objective} == objective
    assert (job.train.optimizer.weight_decay, job.train.optimizer.betas) == (0.01, (0.9, 0.999))


def test_a_bare_grpo_command_has_the_values_that_halos_ships():
    draft = bare("grpo").draft
    told = next(line for line in map(str, draft.to_do) if line.startswith("what the loop"))
    assert "objective {beta: 0.01, sync_reference: false, epsilon: 0.01, sequence_level: true}" in told
    assert "weight_decay: 0.01" in told


def test_words_beat_what_halos_ships():
    job, _ = job_of(bare("simpo", "++loss.beta=2", "++weight_decay=0"))
    assert (job.objective.beta, job.objective.gamma_beta_ratio, job.train.optimizer.weight_decay) == (2.0, 0.3, 0.0)
    assert job_of(bare("simpo", "++loss.beta=2", "++loss.gamma=1"))[0].objective.gamma_beta_ratio == 0.5


def test_a_decay_that_adam_would_add_to_the_gradient_is_said():
    draft = bare("dpo", "++optimizer=Adam").draft
    assert any("weight_decay 0.01 of HALOs' own configuration" in line for line in map(str, draft.to_do))
    assert "weight_decay" not in draft.job["train"]["optimizer"]


# -- losses of one's own


@pytest.mark.parametrize(
    ("loss", "arguments", "told"),
    [
        ("ppo", ("++loss.lam=0.9", "++loss.critic_coef=0.2"), ("lam: 0.9", "gamma: 0.99", "critic_coef: 0.2")),
        ("ppo", ("++model.v_head_max_grad_norm=0.1",), ("model.v_head_max_grad_norm: 0.1", "KL_coef: 0.1")),
        ("ppo", ("++model.reward_model.path=/r",), ("model.reward_model.path: /r", "cliprange: 0.5")),
        ("grpo", ("++loss.sequence_level=false",), ("sequence_level: false", "epsilon: 0.01")),
        ("slic", ("++loss.lambda_coef=0.3",), ("lambda_coef: 0.3", "beta: 1")),
        ("csft", (), ("control_tokens.chosen: <|good|>",)),
        ("dpo", ("++loss.sync_reference=true",), ("sync_reference: true", "beta: 0.1")),
        ("kto", ("++humanline=true", "++log_epsilon_P=-2"), ("log_epsilon_P: -2", "log_epsilon_R: 1.5", "beta: 0.1")),
        ("ppo", ("++loss.lam=${LAM}",), ("lam: ${LAM}",)),
    ],
)
def test_a_loop_of_ones_own_is_told_the_coefficients(loss, arguments, told):
    draft = bare(loss, *arguments).draft
    assert draft.job["objective"] == "own"
    line = next(line for line in map(str, draft.to_do) if line.startswith("what the loop"))
    assert all(text in line for text in told)


def test_a_loop_of_ones_own_is_told_the_coefficients_of_legacy(tmp_path):
    """Only the branch legacy has orpo. Its trainer and name are no coefficients."""
    text = LEGACY.replace("{name: sft}", "{name: orpo, OR_scale: 0.25, trainer: ORPOTrainer}")
    to_do = [*map(str, legacy(tmp_path, text=text).draft.to_do)]
    line = next(line for line in to_do if line.startswith("what the loop"))
    assert "objective {OR_scale: 0.25};" in line
    assert to_do[0].startswith("planner's orpo takes the mean of its cross-entropy over tokens, HALOs over pairs:")


def test_keys_of_humanline_without_it_are_dropped_with_a_reason():
    dropped = {note.key: note.text for note in bare("kto", "++log_epsilon_P=-2").draft.dropped}
    assert "humanline=true" in dropped["log_epsilon_P"]


@pytest.mark.parametrize(("arguments", "clip"), [((), None), (("++model.max_grad_norm=5",), 5.0)])
def test_a_loop_of_ones_own_does_not_clip_by_a_default_of_planners(arguments, clip):
    """HALOs clips to the norm in its config/model/, which planner does not know."""
    recipe = bare("ppo", *arguments)
    assert job_of(recipe)[0].train.clip_norm == clip
    said = [text for text in map(str, recipe.draft.to_do) if text.startswith("train.clip_norm")]
    assert len(said) == (0 if clip else 1)
    assert all("this job does not clip. HALOs clips to model.max_grad_norm of config/model/" in text for text in said)


def test_a_norm_that_planner_puts_into_a_job_is_said():
    recipe = bare("kto")
    assert job_of(recipe)[0].train.clip_norm == 1.0
    assert any("1.0 is planner's default" in text and "HALOs clips to" in text for text in map(str, recipe.draft.to_do))


# -- the number of steps


@pytest.mark.parametrize(("steps", "there"), [(1, None), (2, "HALOs takes 312 steps at 2 accumulation steps")])
def test_convert_says_how_many_steps_n_examples_are(steps, there):
    """planner and HALOs at A=1 take 313 steps, HALOs at A=2 takes 312."""
    arguments = ("++n_examples=10_000", f"++model.gradient_accumulation_steps={steps}")
    draft = read_recipe(BARE.format("dpo"), arguments, RecipeOptions(halos_batch="total")).draft
    line = next(note.text for note in draft.derived if note.key == "train.examples")
    assert "10016, 313 steps" in line
    assert "HALOs' schedule expects 312" in line
    assert line.count("accumulation steps") == (1 if there else 0)
    assert (there or "") in line


def test_flash_attention_is_dropped_from_a_recipe_in_fp32():
    """planner refuses a job with both. A recipe in bf16 keeps it."""
    asks = "++model.attn_implementation=flash_attention_2"
    recipe = bare("sft", asks, "++model.policy_dtype=float32")
    assert job_of(recipe)[0].model.attention == "auto"
    says = "model.attn_implementation flash_attention_2 computes in bf16, and model.policy_dtype is float32"
    assert says in lines(recipe.draft)
    assert job_of(bare("sft", asks, "++model.policy_dtype=bfloat16"))[0].model.attention == "flash_attention_2"
