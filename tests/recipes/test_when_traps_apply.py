"""Each trap that `planner check` knows is listed where it can apply, and only there."""

import re
from pathlib import Path

import pytest

from planner.recipes import CheckOptions, RecipeOptions, read_recipe

ROOT = Path(__file__).parents[2]
COUNTS = list(range(1, 9))
DPO = "python -u train.py model=pythia69 loss=dpo loss.beta=0.1 trainer=FSDPTrainer batch_size=64 eval_batch_size=32"
BASIC = DPO.replace("FSDPTrainer", "BasicTrainer")
HALOS = "accelerate launch --num_processes 4 launch.py loss=LOSS model=llama ++model.name_or_path=m train_datasets=[a]"
TRL = "accelerate launch --num_processes 8 dpo.py --model_name_or_path m --per_device_train_batch_size 8"
PYTHON = TRL.replace("accelerate launch --num_processes 8", "python")
TORCHRUN = TRL.replace("accelerate launch --num_processes 8", "torchrun --nproc_per_node 8")
TUNE = "tune run --nproc_per_node 8 lora_finetune_distributed --config tune.yaml"
TWO = "--gradient_accumulation_steps 2"
KTO, SFT, GRPO = (TRL.replace("dpo.py", f"{method}.py") for method in ("kto", "sft", "grpo"))
AXOLOTL = "accelerate launch --num_processes 8 -m axolotl.cli.train axolotl.yaml"
AXOLOTL_DPO = f"{AXOLOTL} --rl=dpo --gradient_accumulation_steps"
FACTORY = "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train factory.yaml"
SWIFT_DPO = "NPROC_PER_NODE=8 swift rlhf --rlhf_type dpo --model m --dataset d --per_device_train_batch_size 2"
SWIFT = "NPROC_PER_NODE=8 swift sft --model m --dataset d --per_device_train_batch_size 2"
HALOS_TWO = "++model.batch_size=64 ++model.gradient_accumulation_steps=2"


def halos(loss, more="++model.batch_size=64"):
    return f"{HALOS.replace('LOSS', loss)} {more}"


# trap -> [(command, what check is asked, whether it is listed)]
CASES = {
    "DataParallel": [
        (PYTHON, {}, True),
        (TRL.replace("accelerate launch --num_processes 8", "uv run"), {}, True),
        (TRL.replace("accelerate launch --num_processes 8 ", "./"), {}, True),
        (PYTHON, {"counts": [1]}, False),
        (TRL, {}, False),
        (TORCHRUN, {}, False),
        (TRL.replace("accelerate launch", "uv run accelerate launch"), {}, False),
        (TRL.replace("accelerate launch --num_processes 8 dpo.py", "trl dpo"), {}, False),
        ("trl.yaml", {}, True),
        ("trl.yaml", {"counts": [1]}, False),
        ("trl.yaml", {"accelerate": "fsdp.yaml"}, False),
        ("trl.yaml", {"accelerate": "multi.yaml"}, False),
    ],
    "memory": [
        (f"{TRL} {TWO}", {}, True),
        (f"{TRL} {TWO}", {"counts": [1]}, False),
        (f"{TRL} {TWO}", {"accelerate": "fsdp.yaml"}, True),
        (f"{TRL} {TWO}", {"accelerate": "multi.yaml"}, False),
        (f"{PYTHON} {TWO}", {}, False),
        (f"{TORCHRUN} {TWO}", {}, False),
        (f"{TORCHRUN} {TWO} --fsdp full_shard", {}, True),
        (TRL, {}, False),
        (halos("dpo", HALOS_TWO), {"halos_batch": "total"}, True),
        (halos("dpo", HALOS_TWO), {"halos_batch": "total", "counts": [1]}, False),
        (halos("dpo"), {}, False),
    ],
    "no global batch": [
        (TRL, {}, True),
        (TRL, {"counts": [8]}, False),
        ("micro.json", {}, True),
        ("whole.json", {"counts": [1, 2, 4]}, False),
    ],
    "max_steps": [
        (f"{TRL} --max_steps 10", {}, True),
        (f"{TRL} --max_steps 10", {"counts": [8]}, False),
        (f"{KTO} --max_steps 10 --accelerator_config.split_batches true", {"counts": [3, 8]}, False),
        (TRL, {}, False),
    ],
    "KTO micro-batch": [
        (f"{KTO} --per_device_train_batch_size 2 {TWO}", {"counts": [8, 32]}, True),
        (f"{KTO} --per_device_train_batch_size 2 {TWO}", {"counts": [8, 16]}, False),
        (TRL, {"counts": [64]}, False),
    ],
    "group cuts": [
        (f"{GRPO} --per_device_train_batch_size 1 --num_generations 8", {}, True),
        (f"{GRPO} --num_generations 8", {}, False),
        (TRL, {}, False),
        (halos("grpo"), {}, True),
        (halos("dpo"), {}, False),
    ],
    "depends on the split": [(KTO, {}, True), (TRL, {}, False), (halos("sft"), {}, True), (halos("dpo"), {}, False)],
    "accumulation not divided": [
        (f"{TRL} {TWO}", {}, True),
        (f"{TRL} {TWO}", {"transformers": "5.1"}, False),
        (TRL, {}, False),
        (f"{SFT} {TWO}", {}, False),
    ],
    "repeated rows": [
        (TRL, {}, True),
        (TRL, {"rows": 1001}, True),
        (TRL, {"rows": 8 * 840}, False),
        (TRL, {"counts": [1]}, False),
        (f"{TRL} --dataloader_drop_last true", {}, False),
    ],
    "last step of an epoch": [
        (f"{TRL} {TWO}", {}, True),
        (f"{TRL} {TWO}", {"rows": 1001}, True),
        (f"{TRL} {TWO}", {"rows": 16 * 840}, False),
        (f"{TRL} {TWO}", {"transformers": "5.1"}, False),
        (TRL, {}, False),
        (f"{SWIFT_DPO} {TWO}", {}, True),
        (f"{SWIFT_DPO} {TWO}", {"transformers": "4.57"}, False),
        (f"{AXOLOTL_DPO}=2", {}, False),
        (f"{FACTORY} gradient_accumulation_steps=2", {}, False),
        (f"{FACTORY} gradient_accumulation_steps=2", {"transformers": "4.54"}, True),
    ],
    "does not load": [(f"{TRL} --max_prompt_length 9", {}, True), (TRL, {}, False)],
    "older handbook": [("older.yaml", {"method": "sft"}, True), ("trl.yaml", {}, False)],
    "file not read": [
        (TRL.replace("--num_processes 8", "--num_processes 8 --config_file gone.yaml"), {}, True),
        (TRL.replace("--num_processes 8", "--num_processes 8 --config_file multi.yaml"), {}, False),
    ],
    "resume": [
        (f"{TRL} --resume_from_checkpoint out/checkpoint-3", {}, True),
        (f"{TRL} --resume_from_checkpoint out/checkpoint-3", {"transformers": "5.1"}, False),
        (f"{FACTORY} resume_from_checkpoint=out/checkpoint-3", {}, True),
        (f"{AXOLOTL} --resume_from_checkpoint=out/checkpoint-3", {}, False),
        (TRL, {}, False),
    ],
    "packing": [(f"{SFT} --packing true", {}, True), (SFT, {}, False)],
    "padding": [
        *((command, {}, True) for command in (TRL, SFT, KTO, DPO, halos("dpo"), halos("kto"))),
        *((f"{SFT} --{key}", {}, False) for key in ("packing", "padding_free", "group_by_length")),
        (f"{SFT} --train_sampling_strategy batch_rebalance", {}, False),
        (f"{SFT} --train_sampling_strategy sequential --padding_free false", {}, True),
        (f"{DPO} +loss.mine=3", {}, False),
        *((command, {}, False) for command in (GRPO, halos("ppo"), "whole.json")),
        ("older.yaml", {"method": "sft"}, False),
    ],
    "padding_free": [
        (f"{SFT} --padding_free", {}, True),
        (f"{SFT} --padding_free --max_length 512", {}, True),
        (f"{SFT} --padding_free --packing", {}, False),
        (f"{TRL} --padding_free", {}, False),
        ("uncut.yaml", {"method": "sft"}, False),
        (SFT, {}, False),
    ],
    "rows by length": [
        (f"{SFT} --group_by_length", {}, True),
        (f"{SFT} --train_sampling_strategy group_by_length", {}, True),
        (f"{SFT} --packing --group_by_length", {}, False),
        (f"{KTO} --group_by_length", {}, False),
        (SFT, {}, False),
    ],
    "rows cut off": [(DPO, {}, True), (DPO, {"counts": [1, 2, 4, 8]}, False)],
    "empty batches": [(f"{DPO} gradient_accumulation_steps=20", {}, True), (DPO, {}, False)],
    "eval_every": [(f"{DPO} eval_every=63", {}, True), (DPO, {}, False)],
    "epoch ends": [
        (DPO, {}, True),
        (DPO, {"rows": 1000}, True),
        (DPO, {"rows": 640}, False),
        (halos("dpo"), {}, True),
        (halos("dpo"), {"counts": [1]}, False),
    ],
    "two lengths": [(f"{DPO} n_examples=99", {}, True), (f"{DPO} n_examples=99 n_epochs=null", {}, False)],
    "pairs": [(DPO, {}, True), (DPO.replace("loss=dpo loss.beta=0.1", "loss=sft"), {}, False)],
    "one process": [(BASIC, {}, True), (BASIC, {"counts": [1]}, False), (DPO, {}, False)],
    "bf16 sums": [
        (f"{DPO} model.fsdp_policy_mp=bfloat16", {}, True),
        (f"{BASIC} model.fsdp_policy_mp=bfloat16", {}, False),
        (DPO, {}, False),
    ],
    "one machine": [(DPO, {"counts": [16]}, True), (DPO, {}, False), (BASIC, {"counts": [16]}, False)],
    "starts nowhere": [
        (halos("ppo", "++model.batch_size=4 ++model.gradient_accumulation_steps=8"), {"halos_batch": "total"}, True),
        (halos("ppo"), {}, False),
        (halos("dpo"), {}, False),
    ],
    "clipping per shard": [(halos("dpo"), {}, True), (halos("dpo"), {"counts": [1]}, False)],
    "KL baseline": [(halos("kto"), {}, True), (halos("dpo"), {}, False)],
    "evaluation": [(halos("dpo", HALOS_TWO), {"halos_batch": "total"}, True), (halos("dpo"), {}, False)],
    "n_examples": [(f"{halos('dpo')} ++n_examples=100", {}, True), (f"{halos('dpo')} ++n_examples=128", {}, False)],
    "one GPU": [(halos("dpo"), {}, True), (halos("dpo"), {"counts": [2, 4]}, False)],
    "slic": [(halos("slic"), {}, True), (halos("dpo"), {}, False)],
    "reward model": [(f"{halos('ppo')} ++model.reward_model_path=r", {}, True), (halos("ppo"), {}, False)],
    "qwen": [(halos("dpo").replace("model=llama", "model=qwen"), {}, True), (halos("dpo"), {}, False)],
    "mistyped keys": [(f"{TUNE} batch_sise=4", {}, True), (f"{TUNE} batch_size=4", {}, False)],
    "tuned for": [
        ("torn.json", {}, True),
        ("whole.json", {"gpus": 8}, False),
        (f"{TRL} --accelerator_config.split_batches true --per_device_train_batch_size 2", {}, True),
        (f"{TRL} --accelerator_config.split_batches true", {}, False),
    ],
    "split_batches": [
        (f"{SWIFT} --accelerator_config.split_batches true", {}, True),
        (f"{SWIFT} --accelerator_config.split_batches false", {}, False),
    ],
    "several GPUs per process": [
        (f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(16)))} {SWIFT}", {}, True),
        (f"CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 {SWIFT}", {}, False),
    ],
    "a key twice": [("twice.yaml", {}, True), ("trl.yaml", {}, False)],
    "not read": [(f"{TRL} --fp16=false $ARGS", {}, True), (TRL, {}, False)],
    "derived accumulation": [(SWIFT, {}, True), (f"{SWIFT} {TWO}", {}, False)],
    "rows left out": [(SWIFT, {"rows": 100}, True), (SWIFT, {"rows": 840}, False), (SWIFT, {}, False)],
    "recipe": [("tune.yaml", {}, True), (TUNE, {}, False)],
    "launch": [(TUNE.replace("--nproc_per_node 8 ", ""), {}, True), (TUNE, {}, False)],
    "left-over micro-batches": [(TUNE, {}, True), (f"{TUNE} gradient_accumulation_steps=1", {}, False)],
    "no step": [(TUNE, {"rows": 100}, True), (TUNE, {"rows": 128}, False), (TUNE, {}, False)],
    "bf16 weights": [(TUNE, {}, True), (f"{TUNE} dtype=fp32", {}, False)],
    "batch_size": [(f"{AXOLOTL} --batch_size=16", {}, True), (AXOLOTL, {}, False)],
    "ddp": [(f"{AXOLOTL} --ddp=false", {}, True), (f"{AXOLOTL} --ddp=true", {}, False), (AXOLOTL, {}, False)],
    "evals_per_epoch": [
        (f"{AXOLOTL} --val_set_size=0.1", {}, True),
        (f"{AXOLOTL} --val_set_size=0.1 --num_epochs=2", {}, False),
        (AXOLOTL, {}, False),
    ],
    "seed": [
        (AXOLOTL, {}, True),
        (f"{AXOLOTL} --seed=1", {}, False),
        (f"{AXOLOTL} --seed=null", {}, False),
        (TUNE, {}, True),
        (f"{TUNE} seed=1", {}, False),
    ],
    "ignored keys": [(f"{AXOLOTL} --beta=0.1", {}, True), (f"{AXOLOTL} --rl_beta=0.1", {}, False)],
    "a fork": [(f"{DPO} +loss.mine=3", {}, True), (DPO, {}, False)],
}
RECIPE = "model_name_or_path: m\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\nbeta: 0.1\n"
FILES = {
    "tune.yaml": (ROOT / "tests/recipes/torchtune/configs/llama3_1/8B_lora.yaml").read_text(),
    "axolotl.yaml": (
        "base_model: m\nmicro_batch_size: 2\nlearning_rate: 1.0e-5\nevals_per_epoch: 1\n"
        "datasets: [{path: a/b, type: chat_template}]\n"
    ),
    "factory.yaml": (
        "model_name_or_path: m\nstage: dpo\ndo_train: true\ndataset: dpo_en_demo\ntemplate: llama3\noutput_dir: o\n"
    ),
    "trl.yaml": f"{RECIPE}gradient_accumulation_steps: 1\n",
    "twice.yaml": f"{RECIPE}bf16: true\nbf16: false\n",
    "uncut.yaml": f"{RECIPE}padding_free: true\nmax_length: null\n",
    "older.yaml": f"{RECIPE}dataset_mixer: {{a/b: 1.0}}\n",
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 8\nnum_machines: 1\n",
    "multi.yaml": "distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 1\n",
    "micro.json": '{"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}',
    "whole.json": '{"train_batch_size": 64}',
    "torn.json": '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 1}',
}


def listed(command, asked):
    """The names of the traps that `planner check` would list."""
    asked = {"counts": COUNTS, **asked}
    names = ("gpus", "method", "halos_batch", "accelerate")
    given = {name: asked.pop(name) for name in names if name in asked}
    in_command = "8" in command.split("--num_processes", 1)[-1][:3] or "--nproc_per_node" in command
    if "--num_processes" not in command and not in_command and not given.get("accelerate"):
        given.setdefault("gpus", 8)
    if command.endswith(".yaml"):
        given.setdefault("method", "dpo")
    options = RecipeOptions(is_for_job=False, needs_micro=False, **given)
    return {trap.name for trap in read_recipe(command, (), options).traps(CheckOptions(**asked))}


@pytest.mark.parametrize("name", CASES)
def test_a_trap_is_listed_where_it_applies_and_nowhere_else(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        Path(file).write_text(text)
    wrong = [
        f"{command} {asked}: {'not ' * applies}listed"
        for command, asked, applies in CASES[name]
        if (name in listed(command, asked)) is not applies
    ]
    assert not wrong


def test_every_trap_has_both_cases():
    """A new trap needs a recipe that has it and one that does not."""
    source = "".join(file.read_text() for file in sorted((ROOT / "planner/recipes").rglob("*.py")))
    assert set(re.findall(r'Trap\(\s*name="([^"]+)"', source)) == set(CASES)
    assert all({applies for *_, applies in cases} == {True, False} for cases in CASES.values())
