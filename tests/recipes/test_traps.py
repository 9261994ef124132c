"""Each trap of the document is named in the recipes that have it, and in no other."""

import json

import pytest

from planner.errors import RecipeError
from planner.recipes import CheckOptions, RecipeOptions, read_recipe
from planner.recipes.config_reader import without_comments

COUNTS = list(range(1, 17))
DPO = "python -u train.py model=pythia69 loss=dpo loss.beta=0.1 trainer=FSDPTrainer batch_size=64 eval_batch_size=32"
HALOS = "accelerate launch --num_processes 4 launch.py loss={} model=llama ++model.name_or_path=m train_datasets=[a]"
TRL = "accelerate launch --num_processes 8 {}.py --model_name_or_path m --per_device_train_batch_size 8"


def read(command, *arguments, **options):
    return read_recipe(command, arguments, RecipeOptions(is_for_job=False, needs_micro=False, **options))


def traps(recipe, **asked):
    question = CheckOptions(counts=asked.pop("counts", COUNTS), **asked)
    return {trap.name: trap.text for trap in recipe.foreign.traps(question)}


def test_eval_every_below_a_batch_ends_a_dpo_run():
    """eval_every becomes 0, and `% 0` is an error at every count."""
    recipe = read(DPO, "eval_every=63")
    assert {recipe.foreign.outcome(count).verdict for count in COUNTS} == {"error"}
    assert "ends the run" in traps(recipe)["eval_every"]
    assert "eval_every" not in traps(read(DPO, "eval_every=64"))


@pytest.mark.parametrize(
    ("model", "says", "is_raised"),
    [
        ("pythia69", "has to be defined", True),
        ("gpt2-xl", "has to be defined", True),
        ("llama7b", "NaN", False),
    ],
)
def test_a_gpu_without_rows_by_family(model, says, is_raised):
    """Upstream's issue 10: 4 rows in 20 accumulation steps."""
    command = DPO.replace("pythia69", model).replace("batch_size=64", "batch_size=4", 1)
    recipe = read(command, "gradient_accumulation_steps=20")
    assert all(says in recipe.foreign.outcome(count).text for count in COUNTS)
    assert {recipe.foreign.outcome(count).is_raised for count in COUNTS} == {is_raised}
    assert "empty batches" in traps(recipe)


def test_an_evaluation_batch_below_the_gpus_ends_a_dpo_run():
    """The run ends at the first evaluation, before training. Llama continues with NaN."""
    arguments = ("batch_size=64", "eval_batch_size=8")
    assert [read(DPO, *arguments).foreign.outcome(count).verdict for count in (8, 16)] == ["exact", "error"]
    llama = read(DPO.replace("pythia69", "llama7b"), *arguments)
    assert llama.foreign.outcome(16).verdict == "exact"
    assert llama.foreign.outcome(16).eval_text == "0 of 8"


def test_rows_at_the_ends_of_epochs():
    """1000 mod 64 with --rows 1000."""
    assert ": 40 of 1000." in traps(read(DPO), rows=1000)["epoch ends"]
    assert "--rows N" in traps(read(DPO))["epoch ends"]


def test_a_basic_trainer_is_one_process():
    """The batch is equal at every count, and cut only if A does not divide it."""
    recipe = read(DPO.replace("FSDPTrainer", "BasicTrainer"), "gradient_accumulation_steps=3")
    assert {recipe.foreign.outcome(count).batch for count in COUNTS} == {63}
    assert "one process" in traps(recipe)


def test_two_lengths_are_a_trap():
    """n_epochs is 1 unless it is set to null."""
    assert "two lengths" in traps(read(DPO, "n_examples=1000"))
    assert "two lengths" not in traps(read(DPO, "n_examples=1000", "n_epochs=null"))


def test_kto_in_micro_batches_of_one():
    """HALOs starts, and every completion is its own partner. TRL refuses."""
    halos = read(HALOS.format("kto"), "++model.batch_size=16")
    assert "At 16 GPUs the micro-batch is 1" in traps(halos)["KL baseline"]
    assert "micro-batch is 1" not in traps(halos, counts=[8])["KL baseline"]
    trl = read(TRL.format("kto"), "per_device_train_batch_size=1")
    assert {trl.foreign.outcome(count).verdict for count in COUNTS} == {"error"}
    assert "KTO" in trl.foreign.outcome(8).text


def test_a_lone_completion_is_refused_by_halos():
    """One completion over all micro-batches has no partner."""
    recipe = read(HALOS.format("kto"), "++model.batch_size=1", "++model.eval_batch_size=1")
    assert recipe.foreign.outcome(1).text == "ValueError: a lone completion"


@pytest.mark.parametrize(("size", "cut"), [(6, "8 of 64"), (10, "16 of 64"), (8, "0 of 64")])
def test_groups_that_halos_cuts(size, cut):
    """64 completions in 2 accumulation steps. The size is from the command line or from the sampling command."""
    arguments = ("++model.batch_size=64", "++model.gradient_accumulation_steps=2")
    recipe = read(HALOS.format("grpo"), *arguments, halos_batch="total")
    assert cut in traps(recipe, group_size=size)["group cuts"]
    assert "--group-size" in traps(recipe)["group cuts"]
    script = f"python -m train.sample x --num_samples_per_prompt {size}\n{HALOS.format('grpo')} {' '.join(arguments)}"
    assert cut in traps(read(script, halos_batch="total"))["group cuts"]


@pytest.mark.parametrize(
    ("options", "cause", "bad"),
    [
        ("--steps_per_generation 8", "", ""),
        ("--steps_per_generation 1", "generates per_device_train_batch_size x GPUs x steps_per", "1, 2, 3, 5, 6, 7"),
        (
            "--steps_per_generation 8 --val_dataset b.jsonl",
            "evaluates per_device_eval_batch_size",
            "1, 2, 3, 4, 5, 6, 7",
        ),
    ],
)
def test_groups_that_ms_swift_refuses(options, cause, bad):
    """2 x W x 8 is always whole groups of 8, and the evaluation has W completions."""
    command = "NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model m --dataset d --per_device_train_batch_size 2"
    recipe = read(f"{command} --gradient_accumulation_steps 8 --num_generations 8 {options}")
    found = traps(recipe, counts=range(1, 9)).get("group cuts", "")
    assert cause in found
    assert found.count("It refuses") == bool(cause)
    assert f"It refuses {bad} GPUs" in found or not bad
    assert "TRL" not in found


def test_each_cause_of_refused_groups_has_its_own_counts():
    """16 completions are generated at once in steps of W. An evaluation has 4 x W in groups of 8."""
    options = "--per_device_train_batch_size 1 --num_generations 8 --generation_batch_size 16 --eval_strategy steps"
    recipe = read(TRL.format("grpo"), *options.split(), "--eval_steps", "9", "--per_device_eval_batch_size", "4")
    found = traps(recipe, counts=range(1, 5))["group cuts"]
    assert "TRL splits generation_batch_size 16 into per_device_train_batch_size x GPUs, which must divide it" in found
    assert "It refuses 3 GPUs. " in found
    assert "TRL evaluates per_device_eval_batch_size x GPUs completions" in found
    assert "It refuses 1 GPU. " in found


def test_groups_that_trl_refuses():
    """m * W * A must hold whole groups: with one row per GPU, only multiples of 8 do."""
    recipe = read(TRL.format("grpo"), "--per_device_train_batch_size=1", "--num_generations", "8")
    assert [count for count in COUNTS if recipe.foreign.outcome(count).verdict != "error"] == [8, 16]
    assert "1, 2, 3, 4, 5, 6, 7, 9" in traps(recipe)["group cuts"]
    three = [
        read(TRL.format("grpo"), f"per_device_train_batch_size={micro}", f"gradient_accumulation_steps={steps}")
        for micro, steps in ((1, 7), (2, 3), (2, 4), (4, 4))
    ]
    assert [each.foreign.outcome(3).verdict != "error" for each in three] == [False, False, True, True]


def test_a_batch_that_nothing_holds_is_shown_at_each_count_once():
    found = traps(read(TRL.format("sft")), counts=[3, 8])["no global batch"]
    assert found == (
        "The batch is per_device_train_batch_size x gradient_accumulation_steps x GPUs: 24 at 3 GPUs. "
        "The learning rate stays that of batch 64, a number that the recipe does not contain."
    )
    found = traps(read(TRL.format("sft")), counts=[3, 5, 8])["no global batch"]
    assert "24 at 3 and 40 at 5 GPUs" in found


def test_data_parallel_is_named_once(tmp_path):
    """The name of the trap stands before its text. A file does not say how its script is started."""
    file = tmp_path / "sft.yaml"
    file.write_text("model_name_or_path: m\nper_device_train_batch_size: 8\noutput_dir: o\n")
    text = traps(read(str(file), gpus=8, method="sft"))["DataParallel"]
    assert text == (
        "Without a launcher, `python script.py` on several GPUs multiplies per_device_train_batch_size by their number."
    )


def test_a_command_with_a_launcher_is_not_told_of_python_without_one():
    assert "DataParallel" not in traps(read(TRL.format("sft")))


def test_split_batches_counts_over_all_gpus():
    """The batch stays equal, and a count that does not divide it is refused."""
    recipe = read(TRL.format("dpo"), "--accelerator_config.split_batches", "true")
    assert [count for count in COUNTS if recipe.foreign.outcome(count).verdict == "exact"] == [1, 2, 4, 8]
    assert "split_batches, 8 % 3 = 2" in recipe.foreign.outcome(3).text


@pytest.mark.parametrize(
    ("version", "divided", "last"),
    [
        (None, "4.49 to 4.52", True),
        ("4.51.3", "4.51.3", True),
        ("4.53.3", None, True),
        ("4.54.1", None, True),
        ("4.55.0", None, False),
        ("5.23.0", None, False),
    ],
)
def test_what_depends_on_the_version(version, divided, last):
    """Some versions do not divide by A, and those up to 4.54 give a partial step too little weight."""
    found = traps(read(TRL.format("dpo"), "--gradient_accumulation_steps=4"), transformers=version)
    assert (
        (divided in found.get("accumulation not divided", "")) if divided else "accumulation not divided" not in found
    )
    assert ("last step of an epoch" in found) is last
    assert "accumulation not divided" not in traps(read(TRL.format("dpo")), transformers=version)


def test_repeated_rows_are_counted_where_the_rows_are_known():
    """1000 rows are filled up to 1080 by 15 GPUs with 8 rows each."""
    found = traps(read(TRL.format("sft")), rows=1000)["repeated rows"]
    assert "Up to 80 of 1000 rows are visited twice in an epoch (at 15 GPUs)" in found
    drops = read(TRL.format("sft"), "--dataloader_drop_last", "true")
    assert "repeated rows" not in traps(drops, rows=1000)


def test_clipping_per_shard_is_of_fsdp(tmp_path):
    """A launcher that does not shard has no such trap."""
    assert "clipping per shard" in traps(read(HALOS.format("dpo")))
    file = tmp_path / "ddp.yaml"
    file.write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    plain = read(HALOS.format("dpo"), accelerate=str(file))
    assert "clipping per shard" not in traps(plain)


def test_accumulation_under_no_sync_is_named():
    """The trap needs A above 1, and no DeepSpeed."""
    assert "memory" not in traps(read(HALOS.format("dpo")))
    assert "memory" in traps(read(HALOS.format("dpo"), "++model.gradient_accumulation_steps=2", halos_batch="total"))


@pytest.mark.parametrize(
    ("kind", "begins"), [("FSDP", "Under FSDP, "), ("MULTI_GPU", None), ("", "If the script starts")]
)
def test_no_sync_costs_memory_where_gradients_are_sharded(tmp_path, kind, begins):
    """Without sharding each GPU holds whole gradients anyway. An unknown launcher may shard."""
    file = tmp_path / "acc.yaml"
    file.write_text(f"distributed_type: {kind}\nnum_processes: 4\n")
    how = {"accelerate": str(file)} if kind else {}
    found = traps(
        read(
            TRL.replace("--num_processes 8 ", "").format("sft") if kind else TRL.format("sft"),
            "--gradient_accumulation_steps",
            "2",
            **how,
        )
    )
    assert ("memory" in found) == bool(begins)
    assert found.get("memory", "").startswith(begins or "")


def test_an_evaluation_batch_is_divided_by_accumulation_in_halos():
    """8 % (2 GPUs x 8) is an error, although evaluation does not accumulate."""
    arguments = ("++model.batch_size=32", "++model.gradient_accumulation_steps=8", "++model.eval_batch_size=8")
    recipe = read(HALOS.format("dpo"), *arguments, halos_batch="total")
    assert recipe.foreign.outcome(2).text == "ValueError: eval 8 % (2 x 8) = 8"
    assert recipe.foreign.outcome(1).verdict == "exact"


@pytest.mark.parametrize(
    ("meaning", "batch", "exact"), [("total", 64, [1, 2, 4, 8, 16]), ("per-accumulation", 128, [1, 2, 4, 8, 16])]
)
def test_halos_batch_has_two_meanings(meaning, batch, exact):
    """A batch of 64 in 2 steps is 64 or 128. The flag decides."""
    arguments = ("++model.batch_size=64", "++model.gradient_accumulation_steps=2", "++model.eval_batch_size=64")
    recipe = read(HALOS.format("dpo"), *arguments, halos_batch=meaning)
    assert recipe.global_batch == batch
    assert [count for count in COUNTS if recipe.foreign.outcome(count).verdict == "exact"] == exact


def test_halos_legacy_slices(tmp_path):
    """The branch legacy is known by its keys. Every accumulation step draws a batch and drops its remainder."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "mode: train\nuse_fsdp: true\ndatasets: [hh]\nlr: 5e-7\nn_epochs: 1\neval_every: 20_000\nwarmup_steps: 150\n"
        "optimizer: RMSprop\nmodel:\n  name_or_path: m\n  batch_size: 32\n  gradient_accumulation_steps: 2\n"
        "  eval_batch_size: 32\nloss:\n  name: dpo\n  beta: 0.1\n"
    )
    recipe = read(str(file))
    assert recipe.global_batch == 64
    assert recipe.foreign.outcome(6).batch == 60
    assert recipe.foreign.outcome(6).dropped == ((30, 32), (62, 64))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("batch", "micro", "steps"),
    [(64, 8, None), (64, None, 2), (64, 8, 2), (64, None, None), (None, 8, 2), (None, 8, None), (None, None, 4)],
)
def test_deepspeed_fills_in_what_is_missing(tmp_path, batch, micro, steps, count):
    """DeepSpeed divides by `//`, then asserts that the three fit. The test computes its rule anew."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    written = {name: value for name, value in zip(names, (batch, micro, steps), strict=True) if value is not None}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({**written, "zero_optimization": {"stage": 3}}))
    recipe = read(str(file), gpus=4)
    total = batch
    if batch is not None and micro is not None and steps is None:
        steps = batch // micro // count
    elif batch is not None and micro is None:
        steps = steps or 1
        micro = batch // count // steps
    elif batch is None:
        micro, steps = micro or 1, steps or 1
        total = micro * steps * count
    fits = total == micro * steps * count and micro * steps > 0
    found = recipe.foreign.outcome(count)
    assert found.batch == (total if fits else None)
    assert (found.verdict == "error") is not fits


@pytest.mark.parametrize(
    ("sizes", "gpus", "error", "message"),
    [
        ((32, 16, None), 8, "A = 32 // 16 // 8 = 0", "Gradient accumulation steps: 0 has to be greater"),
        ((32, None, 8), 5, "m = 32 // 5 // 8 = 0", "Micro batch size per gpu: 0 has to be greater than 0"),
        ((32, 16, 2), 3, "train_batch_size 32 != 16 x 2 x 3", "* world_size 32 != 16 * 2 * 3"),
        ((100, 8, 2), 8, "train_batch_size 100 != 8 x 2 x 8", "* world_size 100 != 8 * 2 * 8"),
    ],
)
def test_a_deepspeed_file_that_does_not_fit_its_own_count_still_says_its_batch(tmp_path, sizes, gpus, error, message):
    """Batch and micro-batch are the file's. A trap has DeepSpeed's own message."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({name: value for name, value in zip(names, sizes, strict=True) if value}))
    recipe = read(str(file), gpus=gpus)
    assert (recipe.global_batch, recipe.micro) == (sizes[0], sizes[1])
    assert recipe.foreign.outcome(gpus).text == f"AssertionError: {error}"
    assert message in traps(recipe)["tuned for"]
    assert "tuned for" not in traps(read(str(file)))
    with pytest.raises(RecipeError, match=r"no multiple|Write numbers that fit"):
        read_recipe(str(file), (), RecipeOptions(gpus=gpus))


def test_a_json_file_may_be_indented_by_tabs(tmp_path):
    """YAML forbids tabs. A duplicate key is a mistake in both formats."""
    file = tmp_path / "ds.json"
    file.write_text('{\n\t"train_batch_size": 32,\n\t"gradient_accumulation_steps": 2\n}\n')
    assert read(str(file)).global_batch == 32
    file.write_text('{\n\t"train_batch_size": 32,\n\t"train_batch_size": 64\n}\n')
    with pytest.raises(RecipeError, match="found train_batch_size twice"):
        read(str(file))
    # YAML reads a trailing comma, which JSON and DeepSpeed refuse.
    file.write_text('{"train_batch_size": 32,}')
    assert read(str(file)).global_batch == 32
    file.write_text('{\n\t"train_batch_size": 32\n\t"gradient_accumulation_steps": 2\n}\n')
    with pytest.raises(RecipeError, match="line 3: found a mistake"):
        read(str(file))
    file.write_text('{"a":' * 100_000)
    with pytest.raises(RecipeError, match="found"):
        read(str(file))


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ('// ours\n{\n  "train_batch_size": 32, // of all GPUs\n  "gradient_accumulation_steps": 2\n}\n', 32),
        ('{ /* two\n lines */ "train_batch_size": 64, // and a comma at the end\n}\n', 64),
        ('{"train_batch_size": 16, "tensorboard": {"output_path": "s3://logs // all"}}', 16),
        ('{"train_batch_size": 8, // "train_batch_size": 4,\n\t"gradient_accumulation_steps": 2}', 8),
    ],
)
def test_a_json_file_may_have_comments(text, batch, tmp_path):
    """DeepSpeed reads comments (hjson). YAML would take a comment for the name of the next key."""
    file = tmp_path / "ds.json"
    file.write_text(text)
    assert read(str(file)).global_batch == batch


def test_a_mistake_behind_a_comment_is_on_its_own_line(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{\n\t// a\n\t/* b\n\tc */\n\t"train_batch_size" 32\n}\n')
    with pytest.raises(RecipeError, match="line 5: found a mistake"):
        read(str(file))
    file.write_text('{"train_batch_size": 32, // a\n"train_batch_size": 64}')
    with pytest.raises(RecipeError, match="found train_batch_size twice"):
        read(str(file))


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("{" + "/**/" * 100_000, "{" + "/**/" * 100_000),  # no object begins
        ('{"' + '\\"' * 200_000, '{"' + '\\"' * 200_000),
        ('{"a"' + "/* " * 200_000, '{"a" '),
    ],
)
def test_comments_and_strings_without_an_end_are_read_once(text, without):
    """Otherwise a megabyte of them would take quadratic time."""
    assert without_comments(text) == without
