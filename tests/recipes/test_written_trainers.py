"""What planner writes for axolotl, LLaMA-Factory and ms-swift has the recipe's batch, by their own rules, too."""

import json
import re
import shlex
from pathlib import Path

import axolotl_judge
import axolotl_rows
import llamafactory_judge
import llamafactory_rows
import pytest
import yaml

from planner.errors import NoExactSplit, RecipeError
from planner.recipes import RecipeOptions, job_of, read_recipe, rewrite
from planner.recipes.drafting import plain
from planner.recipes.rendering import leaves

COUNTS = range(1, 17)
AXOLOTL = [row for row in axolotl_rows.rows() if "?" not in row.expected.values()]
FACTORY = [row for row in llamafactory_rows.rows() if row.columns["trainer"] == "v0" and row.config.get("do_train")]


def read(path, *arguments, gpus=4, **options):
    """The recipe, tuned for 4 GPUs unless it names a count."""
    for count in (gpus, None):
        try:
            made = RecipeOptions(gpus=count, is_for_job=False, needs_micro=False, **options)
            return read_recipe(str(path), arguments, made)
        except RecipeError as error:
            last = error
    raise last


def written(found, target):
    """The commands by GPU count, and the reasons where none is written."""
    made, refused = {}, {}
    for count in COUNTS:
        try:
            made[count] = rewrite(found, target, count)
        except NoExactSplit as error:
            refused[count] = str(error)
    return made, refused


def check_again(found, made):
    """planner reads the command as the same batch on that count, and exact there."""
    for count, its in made.items():
        again = read_recipe(its.command, (), RecipeOptions(is_for_job=False, needs_micro=False))
        assert (again.gpus, again.global_batch, again.method) == (count, found.global_batch, found.method), its.command
        outcome = again.foreign.outcome(count)
        assert (outcome.verdict, outcome.batch) == ("exact", found.global_batch), its.command


def is_plain(found):
    """Whether nothing but the batch decides which counts are exact."""
    facts = found.foreign
    sharing = max(facts.sharing, getattr(facts, "sequence", 1))
    rest = (facts.mesh, facts.workers, facts.limits, facts.num_generations, facts.num_steps)
    return sharing == 1 and not any(rest)


def check_counts(found, made, *, least=1):
    """Each count that divides the batch has a command."""
    if is_plain(found):
        counts = [n for n in COUNTS if not found.global_batch % n and found.global_batch // n >= least]
        assert sorted(made) == counts


@pytest.mark.parametrize("row", AXOLOTL, ids=lambda row: row.name)
def test_axolotl_trains_the_batch_that_planner_wrote(row, tmp_path, monkeypatch):
    monkeypatch.chdir(axolotl_rows.FOLDER)
    tree = {**yaml.safe_load((axolotl_rows.FOLDER / row.file).read_text()), **row.overrides}
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(tree))
    try:
        found = read(path)
    except RecipeError:
        assert set(row.expected.values()) == {"-"}
        return
    made, _ = written(found, "axolotl")
    if "batch_size" in tree:
        assert not made
        return
    for count, its in made.items():
        sizes = dict(re.findall(r"--(micro-batch-size|gradient-accumulation-steps) (\d+)", its.command))
        config = {**tree, **{name.replace("-", "_"): int(size) for name, size in sizes.items()}}
        assert axolotl_judge.batch_at(config, count).rows == found.global_batch, its.command
    check_again(found, made)
    check_counts(found, made, least=2 if found.method == "kto" else 1)  # axolotl refuses a KTO micro-batch of 1


@pytest.mark.parametrize("row", FACTORY, ids=lambda row: row.file)
def test_llamafactory_trains_the_batch_that_planner_wrote(row, monkeypatch):
    monkeypatch.chdir(llamafactory_judge.FOLDER)
    if set(row.expected.values()) == {"-"}:
        return
    found = read(row.columns["command"])
    made, _ = written(found, "llamafactory")
    for count, its in made.items():
        words = shlex.split(its.command)
        at = words.index(row.file)
        config = llamafactory_judge.load(llamafactory_judge.FOLDER / row.file, words[at + 1 :])
        environment = dict(word.split("=", 1) for word in words[:at] if re.match(r"[A-Z_]+=", word))
        launcher = "accelerate" if "accelerate" in words else "llamafactory-cli"
        told = llamafactory_judge.batch_at(config, count, launcher=launcher, environment=environment)
        assert told.samples == found.global_batch, its.command
    check_again(found, made)
    check_counts(found, made)


SWIFT = {"model": "org/m", "tuner_type": "full", "dataset": "rows.jsonl", "max_length": 4096, "output_dir": "out",
         "split_dataset_ratio": 0, "lora_rank": 8}  # fmt: skip


@pytest.mark.parametrize("keys", [
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    {"per_device_train_batch_size": 3},  # 16 / 3 / GPUs steps, which it takes anew at each count
    {},
    {"rlhf_type": "dpo", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    {"rlhf_type": "kto", "gradient_accumulation_steps": 3},
    {"packing": True, "attn_impl": "flash_attn", "gradient_accumulation_steps": 2},
    {"deepspeed": "zero3", "gradient_accumulation_steps": 2},
])  # fmt: skip
def test_swift_trains_the_batch_that_planner_wrote(keys, tmp_path, monkeypatch):
    """m x A x GPUs of the written numbers, because the command leaves nothing to its defaults."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(json.dumps(SWIFT | keys))
    for source in ("recipe.yaml", f"NPROC_PER_NODE=4 swift {'rlhf' if 'rlhf_type' in keys else 'sft'} recipe.yaml"):
        found = read(source)
        made, _ = written(found, "swift")
        for count, its in made.items():
            assert shlex.split(its.command)[0] == f"NPROC_PER_NODE={count}"
            micro, steps = (int(re.search(rf"--{name} (\d+)", its.command)[1]) for name in (
                "per_device_train_batch_size", "gradient_accumulation_steps"))  # fmt: skip
            assert micro * steps * count == found.global_batch
        check_again(found, made)
        check_counts(found, made)
        assert len(made) > 2


# -- settings with which the sizes mean something else

AXOLOTL_KEYS = {"base_model": "org/m", "datasets": [{"path": "rows.jsonl", "type": "chat_template"}],
                "micro_batch_size": 2, "gradient_accumulation_steps": 4, "sequence_len": 512,
                "learning_rate": 1e-5}  # fmt: skip
FACTORY_KEYS = {"model_name_or_path": "org/m", "do_train": True, "stage": "sft", "dataset": "rows", "template": "x",
                "finetuning_type": "full", "output_dir": "out", "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4}  # fmt: skip
BASES = {"axolotl": AXOLOTL_KEYS, "llamafactory": FACTORY_KEYS, "swift": SWIFT}


def at(system, keys, gpus, *arguments, tuned=4):
    Path("recipe.yaml").write_text(json.dumps(BASES[system] | keys))
    return rewrite(read("recipe.yaml", *arguments, gpus=tuned), system, gpus)


@pytest.mark.parametrize(("system", "keys", "gpus", "says"), [
    ("axolotl", {"tensor_parallel_size": 2, "dp_shard_size": 2, "fsdp_config": {"fsdp_version": 2}}, 4,
     "share the rows"),
    ("axolotl", {"dp_shard_size": 4, "fsdp_config": {"fsdp_version": 2}}, 2, "for 4 processes.*convert --at 4"),
    ("axolotl", {"gradient_accumulation_steps": None, "batch_size": 8}, 2, "refuses batch_size"),
    ("axolotl", {"strict": True, "gradient_accumulation_steps": 1, "micro_batch_size": 8}, 3, "equal"),
    ("axolotl", {"use_ray": True, "ray_num_workers": 4}, 4, "Remove use_ray"),
    ("axolotl", {"use_ray": True, "ray_num_workers": 4}, 2, "Ray starts 4 workers"),
    ("axolotl", {"rl": "grpo", "trl": {"num_generations": 8}, "gradient_accumulation_steps": 12}, 8, "is 12 there"),
    ("axolotl", {"rl": "grpo", "trl": {"num_generations": 8}, "gradient_accumulation_steps": 64}, 16,
     r"is 32 there.* no less than 8 x GPUs"),
    ("swift", {"rlhf_type": "grpo", "sequence_parallel_size": 2}, 3, "Write a multiple of 2"),
    ("swift", {"sequence_parallel_size": 2}, 4, "share the rows"),
    ("llamafactory", {"use_galore": True, "galore_layerwise": True, "gradient_accumulation_steps": 1}, 1, "layer-wise"),
    ("llamafactory", {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 4}},
                      "gradient_accumulation_steps": 1}, 8, "num_steps in accelerator_config is 4"),
])  # fmt: skip
def test_what_planner_does_not_split_is_refused_with_what_to_do(system, keys, gpus, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoExactSplit, match=says):
        at(system, keys, gpus)


def test_a_command_that_starts_one_process_is_refused_on_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(json.dumps(AXOLOTL_KEYS))
    with pytest.raises(NoExactSplit, match=r"starts 1 process by python .* with --gpus 1"):
        rewrite(read("python -m axolotl.cli.train recipe.yaml"), "axolotl", 2)


def test_strict_axolotl_takes_no_option_that_its_file_does_not_have(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(json.dumps({"strict": True, **AXOLOTL_KEYS}).replace('"micro_batch_size": 2, ', ""))
    with pytest.raises(NoExactSplit, match=r"drops options .* Write micro_batch_size into recipe.yaml"):
        rewrite(read("recipe.yaml"), "axolotl", 2)


def test_a_number_in_deepspeeds_file_must_change(tmp_path, monkeypatch):
    """transformers refuses another one, so the note says what to write."""
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}')
    made = at("llamafactory", {"deepspeed": "ds.json"}, 16)
    assert "train_micro_batch_size_per_gpu is 2 in ds.json: write 1 there" not in made.notes
    made = at("llamafactory", {"deepspeed": "ds.json"}, 32)
    assert "train_micro_batch_size_per_gpu is 2 in ds.json: write 1 there" in made.notes


# -- what is kept of the recipe


def test_the_users_options_and_the_commands_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = at("axolotl", {}, 2, "sample_packing=false", "--lora_r=8", "micro_batch_size=4", "unknown_key=1").command
    assert command == (
        "axolotl train recipe.yaml --no-sample-packing --lora-r 8 --micro-batch-size 4 "
        "--gradient-accumulation-steps 8 --launcher torchrun -- --nproc_per_node 2"
    )
    command = "WANDB_PROJECT=p HF_TOKEN=x ALLOW_EXTRA_ARGS=1 llamafactory-cli train recipe.yaml max_steps=5"
    at("llamafactory", {}, 2)
    assert rewrite(read(command), "llamafactory", 2).command == (
        "WANDB_PROJECT=p ALLOW_EXTRA_ARGS=1 FORCE_TORCHRUN=1 NPROC_PER_NODE=2 llamafactory-cli train recipe.yaml "
        "max_steps=5 per_device_train_batch_size=2 gradient_accumulation_steps=8"
    )
    command = "MAX_PIXELS=9 CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 swift pt --model m --dataset d --max_length 9"
    assert rewrite(read(command), "swift", 4).command == (
        "MAX_PIXELS=9 NPROC_PER_NODE=4 swift pt --model m --dataset d --max_length 9 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 4"
    )


@pytest.mark.parametrize("system", BASES)
def test_the_name_of_a_file_is_quoted(system, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my recipe.yaml").write_text(json.dumps(BASES[system]))
    found = read("my recipe.yaml")
    made, _ = written(found, system)
    assert "'my recipe.yaml'" in made[2].command
    check_again(found, made)


@pytest.mark.parametrize("system", ["axolotl", "swift"])
def test_a_file_whose_name_has_a_dollar_is_quoted(system, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a$b it.yaml").write_text(json.dumps(BASES[system]))
    assert " 'a$b it.yaml' " in rewrite(read("a$b it.yaml"), system, 2).command


def test_a_text_may_look_like_an_override():
    """A name such as learning_rate=1e-3 would change the rate."""
    sizes = "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"
    command = f"NPROC_PER_NODE=4 swift sft --model m --dataset d --run_name gradient_accumulation_steps=8 {sizes}"
    assert read(command).global_batch == 16
    command = command.replace(f" {sizes}", f" {sizes} --run_name gradient_accumulation_steps=8")
    assert read(command).global_batch == 16


def test_axolotls_options_stay_with_their_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(json.dumps(BASES["axolotl"]))
    options = ["--base-model=a b", "--output-dir=x=y", "--wandb-name=it's", "--wandb-project=-p", "--lora-r=8"]
    written = rewrite(read(f"axolotl train r.yaml {shlex.join(options)}"), "axolotl", 2).command
    assert shlex.split(written)[3:10] == [
        "--base-model", "a b", "--output-dir=x=y", "--wandb-name", "it's", "--wandb-project=-p", "--lora-r",
    ]  # fmt: skip


def test_the_recipes_accelerate_file_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    at("axolotl", {}, 2)
    command = "accelerate launch --config_file fsdp.yaml --num_processes 4 -m axolotl.cli.train recipe.yaml"
    Path("fsdp.yaml").write_text("distributed_type: FSDP\nnum_machines: 1\nnum_processes: 8\n")
    assert rewrite(read(command), "axolotl", 2).command == (
        "axolotl train recipe.yaml --micro-batch-size 2 --gradient-accumulation-steps 8 "
        "-- --config_file fsdp.yaml --num_processes 2"
    )


# -- jobs

JOB = {
    "name": "n",
    "model": {"kind": "hf", "path": "org/m", "context": 2048},
    "data": {"kind": "chat", "path": "rows.jsonl"},
    "objective": "sft",
    "batch": {"global": 64, "max_micro": 8},
    "train": {"epochs": 2, "seed": 7, "optimizer": {"kind": "adamw", "lr": 3e-5, "betas": [0.8, 0.95], "eps": 1e-7},
              "schedule": {"kind": "cosine", "warmup": "10%"}, "precision": "bf16"},
    "workers": {"min": 1, "max": 16, "gpus": 1},
}  # fmt: skip
LORA = {"rank": 8, "alpha": 24, "dropout": 0.1}
PAIRS = {"data": {"kind": "pairs", "path": "rows.jsonl"}}
CHANGES = {
    "sft": {},
    "loss on all": {"data": {"loss_on": "all"}, "train": {"activation_checkpointing": True}},
    "packing": {"data": {"packing": True}},
    "packing by sdpa": {"model": {"attention": "sdpa"}, "data": {"packing": True}},
    "lora": {"model": {"lora": LORA, "revision": "abc", "attention": "eager"}},
    "qlora": {"model": {"lora": {**LORA, "targets": ["q_proj", "v_proj"]}, "frozen": "nf4"}},
    "half alpha": {"model": {"lora": {**LORA, "alpha": 2.5}}},
    "steps": {"train": {"steps": 30, "epochs": None, "clip_norm": None,
                        "schedule": {"kind": "linear", "warmup": "5 steps"}}},
    "one step": {"train": {"schedule": {"kind": "constant", "warmup": "1 steps"}, "clip_norm": 0.3}},
    "floor": {"train": {"schedule": {"kind": "cosine", "warmup": "0 steps", "final_fraction": 0.1}}},
    "linear floor": {"train": {"schedule": {"kind": "linear", "warmup": "64 examples", "final_fraction": 0.1}}},
    "decay": {"train": {"optimizer": {"kind": "adamw", "lr": 1e-4, "weight_decay": 0.05}}},
    "rmsprop": {"train": {"optimizer": {"kind": "rmsprop", "lr": 5e-7}}},
    "fp32": {"train": {"precision": "fp32", "kernels": "own"}},
    "dpo": {**PAIRS, "objective": {"kind": "dpo", "beta": 0.3, "label_smoothing": 0.1}},
    "dpo cached": {**PAIRS, "objective": {"kind": "dpo", "beta": 0.1, "reference": "cached"}},
    "ipo": {**PAIRS, "objective": {"kind": "ipo", "beta": 0.2, "log_probs": "mean"}},
    "ipo sum": {**PAIRS, "objective": {"kind": "ipo", "beta": 0.2, "log_probs": "sum"}},
    "simpo": {**PAIRS, "objective": {"kind": "simpo", "beta": 2.5, "gamma_beta_ratio": 0.4}},
    "kto": {"data": {"kind": "feedback", "path": "rows.jsonl"},
            "objective": {"kind": "kto", "beta": 0.1, "desirable_weight": 1.5, "undesirable_weight": 0.5}},
    "samples": {"objective": {"kind": "sft", "mean_over": "samples"}},
    "wandb": {"tracking": {"kind": "wandb", "project": "p"}},
}  # fmt: skip
NOT_COMPARED = re.compile(r"name|data\.(path|bad_rows|tokenize)|batch\.|workers|checkpoint|eval|"
                          r"train\.(kernels|non_finite)|model\.(kind|weights|chat_template)")  # fmt: skip


EQUAL = {("0 steps", "0%"), ("64 examples", "1 step"), ("auto", "sdpa"), ("auto", "flash_attention_2")}


def merged(base, change):
    both = {**base, **change}
    for name, its in change.items():
        if isinstance(its, dict) and isinstance(base.get(name), dict) and its.get("kind", base[name].get("kind")) == (
            base[name].get("kind")
        ):  # fmt: skip
            both[name] = merged(base[name], its)
    return {name: its for name, its in both.items() if its is not None or name == "clip_norm"}


@pytest.mark.parametrize("target", ["axolotl", "llamafactory", "swift"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_job_is_the_same_job_when_read_again_but_for_what_is_listed(name, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(json.dumps(merged(JOB, CHANGES[name])))
    found = read_recipe("job.yaml")
    made = rewrite(found, target, 4)
    if made.file:
        Path("axolotl.yaml").write_text(made.file)
    again = read_recipe(made.command, (), RecipeOptions(method=None))
    assert (again.gpus, again.global_batch) == (4, 64)
    assert again.foreign.outcome(4).verdict == "exact"
    before, after = (dict(leaves(job_of(each)[0])) for each in (found, again))
    unsaid = "\n".join(map(str, made.unsaid))
    for key, value in before.items():
        if not NOT_COMPARED.match(key) and after.get(key) != value and (value, after.get(key)) not in EQUAL:
            assert f"{key} {plain(value)}" in unsaid, (key, value, after.get(key), made.command, made.file)
    for key in after.keys() - before.keys():
        assert NOT_COMPARED.match(key), (key, after[key], made.command, made.file)


# -- what the recipe trains and its job does not


@pytest.mark.parametrize(("system", "keys", "says"), [
    ("llamafactory", {"max_samples": 1000}, "max_samples 1000: LLaMA-Factory takes the first rows"),
    ("llamafactory", {"quantization_bit": 8, "finetuning_type": "lora"}, "quantization_bit of the recipe: planner"),
    ("llamafactory", {"optim": "paged_adamw_8bit"}, "optim of the recipe: paged_adamw_8bit keeps its state"),
    ("axolotl", {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True, "load_in_8bit": True},
     "load_in_8bit of the recipe: planner stores frozen weights"),
    ("axolotl", {"optimizer": "adamw_bnb_8bit"}, "optimizer of the recipe: adamw_bnb_8bit keeps its state"),
    ("axolotl", {"dataset_exact_deduplication": True}, "dataset_exact_deduplication "),
    ("swift", {"dataset": ["a/b#500"]}, "a/b#500: ms-swift takes 500 rows of it"),
    ("swift", {"tuner_type": "lora", "quant_method": "bnb", "quant_bits": 8},
     "quant_bits of the recipe: planner stores frozen weights"),
    ("swift", {"system": "Be brief."}, "system: write it into the rows"),
])  # fmt: skip
def test_another_systems_command_lists_what_the_recipe_trains_and_the_job_does_not(
    system, keys, says, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    bases = {"axolotl": {"base_model": "org/m", "sequence_len": 64,
                         "datasets": [{"path": "a/b", "type": "chat_template"}], "learning_rate": 1e-4},
             "llamafactory": {"model_name_or_path": "org/m", "template": "default", "dataset": "d", "stage": "sft",
                              "do_train": True, "output_dir": "o", "cutoff_len": 64, "bf16": True},
             "swift": {"model": "org/m", "dataset": ["a/b"], "max_length": 64, "output_dir": "o"}}  # fmt: skip
    Path("recipe.yaml").write_text(json.dumps(BASES[system] | bases[system] | keys))
    found = read_recipe("recipe.yaml", (), RecipeOptions(gpus=4, system=system))
    for target in {"axolotl", "llamafactory", "swift", "trl"} - {system}:
        unsaid = [str(each) for each in rewrite(found, target, 4).unsaid]
        assert any(each.startswith(says) for each in unsaid), (target, unsaid)
    assert not any("of the recipe" in str(each) for each in rewrite(found, system, 4).unsaid)


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize(("target", "says"), [
    ("axolotl", "bf16: false"), ("llamafactory", "--bf16 false"),
    ("swift", "--torch_dtype float32 --fp16 false --bf16 false"),
])  # fmt: skip
def test_a_job_in_fp32_is_written_in_fp32(target, says, lora, tmp_path, monkeypatch):
    """Where no key says so, axolotl takes bf16 on such a GPU, and ms-swift fp16 for a model in fp32."""
    monkeypatch.chdir(tmp_path)
    change = {"train": {"precision": "fp32"}, "model": {"lora": lora} if lora else {}}
    Path("job.yaml").write_text(json.dumps(merged(JOB, change)))
    made = rewrite(read_recipe("job.yaml"), target, 4)
    assert says in f"{made.command}\n{made.file}"
    assert not any("precision" in str(each) for each in made.unsaid)


def test_a_kto_recipe_with_micro_batches_of_1_is_told_how_to_get_2(tmp_path, monkeypatch):
    """No count fits, so another batch is no help."""
    monkeypatch.chdir(tmp_path)
    keys = {"model_name_or_path": "org/m", "dataset": "d", "stage": "kto", "do_train": True, "output_dir": "o",
            "template": "default", "cutoff_len": 64, "bf16": True, "finetuning_type": "lora",
            "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}  # fmt: skip
    Path("recipe.yaml").write_text(json.dumps(keys))
    options = RecipeOptions(gpus=4, system="llamafactory")
    with pytest.raises(NoExactSplit, match=r"the recipe's is 1\. If a GPU holds 2, write 2 and half"):
        rewrite(read_recipe("recipe.yaml", (), options), "swift", 2)
    changed = ("per_device_train_batch_size=2", "gradient_accumulation_steps=4")
    assert rewrite(read_recipe("recipe.yaml", changed, options), "swift", 2).arithmetic == "32 = 2 GPUs x 2 x 8"
