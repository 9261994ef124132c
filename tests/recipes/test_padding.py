"""What recipes pay for padding: `batch.max_tokens` where TRL pads nothing, a sentence where a system pads."""

import pytest

from planner.plan.factory import MAX_TOKENS
from planner.recipes import RecipeOptions, job_of, read_recipe, rewrite
from planner.report.recipe_table import conversion_lines

SIZES = "model_name_or_path: m\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nmax_length: 512\n"
TRL = f"{SIZES}learning_rate: 1e-6\ndataset_name: a/b\n"
DPO = "python -u train.py model=pythia69 datasets=[hh] loss=sft trainer=FSDPTrainer batch_size=64"
HALOS = (
    "accelerate launch --num_processes 4 launch.py loss=sft model=llama ++model.name_or_path=m train_datasets=[a] "
    "++lr=1e-6 ++model.batch_size=32"
)
SENTENCE = "batch.max_tokens not set"


def trl(tmp_path, text="", method="sft", **options):
    file = tmp_path / "recipe.yaml"
    file.write_text(TRL + text)
    return read_recipe(str(file), (), RecipeOptions(gpus=2, method=method, **options))


def dropped(recipe):
    return {note.key: note.text for note in recipe.draft.dropped}


def sentences(recipe):
    return [note.text for note in recipe.draft.derived if SENTENCE in note.text]


@pytest.mark.parametrize(
    ("method", "options", "most", "factors"),
    [
        ("sft", {}, 2048, "(4 x 512:"),
        ("sft", {"max_micro": 3}, 1536, "(3 x 512:"),
        ("dpo", {}, 4096, "(4 x 2 x 512:"),
        ("kto", {}, 2048, "(4 x 512:"),
    ],
)
def test_padding_free_becomes_a_cap_that_no_micro_batch_exceeds(method, options, most, factors, tmp_path):
    """A pair has the tokens of two completions."""
    recipe = trl(tmp_path, "padding_free: true\n", method, **options)
    assert job_of(recipe)[0].batch.max_tokens == most
    (carried,) = [note.text for note in recipe.draft.carried if note.key == "padding_free"]
    assert carried.startswith(f"batch.max_tokens: {most} {factors}")
    assert ("TRL 1.16 pads pairs" in carried) is (method == "dpo")
    assert not sentences(recipe)
    assert "padding_free" not in dropped(recipe)


def test_the_cap_is_of_the_length_that_the_user_writes_for_a_recipe_without_one(tmp_path):
    """TRL 1.16 takes padding_free only with max_length null, where a job needs a length."""
    (tmp_path / "uncut.yaml").write_text(f"{TRL.replace('512', 'null')}padding_free: true\n")
    recipe = read_recipe(str(tmp_path / "uncut.yaml"), ("max_length=4096",), RecipeOptions(gpus=2, method="sft"))
    assert job_of(recipe)[0].batch.max_tokens == 4 * 4096


@pytest.mark.parametrize("text", ["true", "yes", "1"])
def test_padding_free_is_read_as_transformers_reads_it(text, tmp_path):
    assert trl(tmp_path, f"padding_free: {text}\n").draft.job["batch"]["max_tokens"] == 2048


def test_a_cap_is_not_above_the_largest_that_a_job_may_have(tmp_path):
    text = TRL.replace("512", "1048576").replace("batch_size: 4", "batch_size: 64")
    (tmp_path / "long.yaml").write_text(f"{text}padding_free: true\n")
    recipe = read_recipe(str(tmp_path / "long.yaml"), (), RecipeOptions(gpus=2, method="sft"))
    assert job_of(recipe)[0].batch.max_tokens == MAX_TOKENS


@pytest.mark.parametrize(
    ("method", "text", "why"),
    [
        ("sft", "packing: true\npadding_free: true\n", "data.packing does that"),
        ("sft", "padding_free: false\n", "batch.max_tokens turns padding off"),
        ("grpo", "padding_free: true\n", "your loop makes its micro-batches"),
    ],
)
def test_padding_free_makes_no_cap_beside_packing_or_in_a_loop_of_ones_own(method, text, why, tmp_path):
    recipe = trl(tmp_path, text, method)
    assert job_of(recipe)[0].batch.max_tokens is None
    assert dropped(recipe)["padding_free"] == why


@pytest.mark.parametrize(
    ("method", "text", "why"),
    [
        ("sft", "group_by_length: true\nlength_column_name: n\n", "leaves each step its samples"),
        ("dpo", "train_sampling_strategy: group_by_length\n", "leaves each step its samples"),
        ("sft", "train_sampling_strategy: batch_rebalance\n", "balances micro-batches by their tokens"),
        ("sft", "train_sampling_strategy: sequential\n", "planner has no such setting"),
        ("sft", "group_by_length: false\n", "planner has no such setting"),
        ("sft", "packing: true\ngroup_by_length: true\n", "planner has no such setting"),
        ("grpo", "group_by_length: true\n", "planner has no such setting"),
    ],
)
def test_an_order_by_length_is_dropped_and_the_reason_names_what_saves_as_much(method, text, why, tmp_path):
    """Only where the job may have batch.max_tokens."""
    recipe = trl(tmp_path, text, method)
    names = [line.partition(":")[0] for line in text.splitlines() if "packing" not in line]
    assert all(why in dropped(recipe)[name] for name in names)
    assert job_of(recipe)[0].batch.max_tokens is None
    is_left_to_say = "sequential" in text or "false" in text
    assert len(sentences(recipe)) == is_left_to_say


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_a_trl_recipe_that_pads_is_told_so_once(method, tmp_path):
    recipe = trl(tmp_path, method=method)
    (sentence,) = sentences(recipe)
    assert "TRL pads each micro-batch to its longest row, and so does planner" in sentence
    assert "`planner plan JOB --lengths`" in sentence
    assert "\n".join(conversion_lines(recipe)).count(SENTENCE) == 1
    assert SENTENCE not in " ".join(map(str, recipe.draft.to_do))


@pytest.mark.parametrize(
    ("method", "text"), [("sft", "packing: true\n"), ("orpo", ""), ("grpo", ""), ("dpo", "loss_type: apo_zero\n")]
)
def test_a_recipe_whose_padding_a_cap_would_not_save_is_not(method, text, tmp_path):
    """Packed rows have none, and a loop of one's own has no cap."""
    assert not sentences(trl(tmp_path, text, method))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (DPO, "the DPO repository pads each batch to its longest row"),
        (HALOS, "HALOs pads each row to model.max_length"),
        (f"{HALOS} +mode=train +use_fsdp=true", "HALOs' branch legacy pads each batch to its longest row"),
    ],
)
def test_hydra_recipes_are_told_how_their_system_pads(command, said):
    (sentence,) = sentences(read_recipe(command, (), RecipeOptions(gpus=4)))
    assert said in sentence


@pytest.mark.parametrize("command", [f"{DPO} +loss.mine=3", HALOS.replace("loss=sft", "loss=ppo")])
def test_hydra_recipes_of_another_loss_are_not(command):
    assert not sentences(read_recipe(command, (), RecipeOptions(gpus=4)))


# -- back


def listed(tmp_path, target, kind="chat", objective="sft", more=""):
    """The command for a job with batch.max_tokens, and what is listed on it."""
    file = tmp_path / "job.yaml"
    file.write_text(
        f"name: j\nmodel: {{kind: hf, path: org/m, context: 512}}\ndata: {{kind: {kind}, path: d{more}}}\n"
        f"objective: {objective}\nbatch: {{global: 64, max_micro: 8, max_tokens: 4096, attention_at: 300}}\n"
        "train: {steps: 9, optimizer: {kind: adamw, lr: 1e-6}}\n"
    )
    made = rewrite(read_recipe(str(file)), target, 8)
    (text,) = [text for text in map(str, made.unsaid) if "batch.max_tokens" in text]
    assert text.startswith("batch.max_tokens 4096, batch.attention_at 300: ")
    assert text.endswith("The batch stays exact")
    return made.command, text


@pytest.mark.parametrize(
    ("kind", "objective", "more", "why"),
    [
        ("chat", "sft", "", "TRL 1.16 refuses padding_free beside max_length"),
        ("chat", "sft", ", packing: true", "packed rows have no padding"),
        ("pairs", "dpo", "", "TRL 1.16 pads pairs"),
        ("pairs", "ipo", "", "TRL 1.16 pads pairs"),
        ("pairs", "{kind: simpo, beta: 2.5, gamma_beta_ratio: 0.4}", "", "no padding_free for this method"),
        ("feedback", "kto", "", "no padding_free for this method"),
    ],
)
def test_trls_command_keeps_its_padding_and_says_why(kind, objective, more, why, tmp_path):
    """With padding_free, TRL 1.16 would not start (sft), or would pad all the same (dpo)."""
    command, text = listed(tmp_path, "trl", kind, objective, more)
    assert "padding_free" not in command
    assert why in text


@pytest.mark.parametrize("target", ["dpo", "halos", "torchtitan", "accelerate", "deepspeed"])
def test_other_systems_keep_the_batch_and_pad(target, tmp_path):
    _, text = listed(tmp_path, target)
    assert "it only saves padding" in text
