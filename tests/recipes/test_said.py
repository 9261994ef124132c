"""Every value of a job is written for another system, or listed as one that its options cannot express."""

import copy
import re

import pytest
from fixed_examples import without_shrinking
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.job import Job
from planner.recipes import TARGETS, rewrite
from planner.recipes.recipe import Draft, Recipe

# The option of each value, by system. Of several, one is written.
OPTIONS = {
    "dpo": {
        "model.path": "model.name_or_path=",
        "model.context": "max_length=",
        "data.max_prompt": "max_prompt_length=",
        "objective.kind": "loss=",
        "objective.beta": "loss.beta=",
        "objective.label_smoothing": "loss.label_smoothing=",
        "objective.reference": "loss.reference_free=true",
        "batch.global": "batch_size=",
        "train.epochs": "n_epochs=",
        "train.steps": "n_examples=",
        "train.examples": "n_examples=",
        "train.seed": "seed=",
        "train.optimizer.kind": "optimizer=",
        "train.optimizer.lr": "lr=",
        "train.schedule.warmup": "warmup_steps=",
        "train.clip_norm": "max_grad_norm=",
        "train.precision": "model.fsdp_policy_mp=",
        "train.activation_checkpointing": "activation_checkpointing=",
    },
    "halos": {
        "model.path": "++model.name_or_path=",
        "model.context": "++model.max_length=",
        "model.attention": "++model.attn_implementation=",
        "data.max_prompt": "++model.max_prompt_length=",
        "objective.kind": "loss=",
        "objective.beta": "++loss.",
        "objective.label_smoothing": "++loss.epsilon=",
        "objective.gamma_beta_ratio": "++loss.gamma_beta_ratio=",
        "objective.desirable_weight": "++loss.desirable_weight=",
        "objective.undesirable_weight": "++loss.undesirable_weight=",
        "objective.reference": "++cache_reference_logprobs=true",
        "batch.global": "++model.batch_size=",
        "train.epochs": "++n_epochs=",
        "train.steps": "++n_examples=",
        "train.examples": "++n_examples=",
        "train.seed": "++seed=",
        "train.optimizer.kind": "++optimizer=AdamW",
        "train.optimizer.lr": "++lr=",
        "train.optimizer.betas": "++beta1=",
        "train.optimizer.weight_decay": "++weight_decay=",
        "train.schedule.warmup": "++warmup=",
        "train.clip_norm": "++model.max_grad_norm=",
        "train.precision": "++model.policy_dtype=",
        "train.activation_checkpointing": "++model.activation_checkpointing=",
    },
    "trl": {
        "model.path": "--model_name_or_path ",
        "model.revision": "--model_revision ",
        "model.context": "--max_length ",
        "model.attention": "--attn_implementation ",
        "model.lora.rank": "--lora_r ",
        "model.lora.alpha": "--lora_alpha ",
        "model.lora.dropout": "--lora_dropout ",
        "model.lora.targets": "--lora_target_modules ",
        "data.packing": "--packing",
        "data.path": ("--dataset_name org", '"org/a"'),
        "data.config": ("--dataset_config ", '"config": ', '"name": '),
        "data.split": ("--dataset_train_split ", '"split": '),
        "data.columns": '"columns": ',
        "data.folder": '"data_dir": ',
        "data.mixture": "dataset",
        "data.seed": " seed: ",
        "eval.samples": "test_split_size: ",
        "eval.every": "--eval_strategy ",
        "eval.data.path": "--dataset_test_split ",
        "eval.data.config": "--dataset_test_split ",
        "eval.data.folder": "--dataset_test_split ",
        "eval.data.split": "--dataset_test_split ",
        "eval.data.revision": "--dataset_test_split ",
        "eval.data.columns": "--dataset_test_split ",
        "eval.data.mixture": "--dataset_test_split ",
        "objective.kind": ".py",
        "objective.beta": "--beta ",
        "objective.label_smoothing": "--label_smoothing ",
        "objective.gamma_beta_ratio": "--simpo_gamma ",
        "objective.desirable_weight": "--desirable_weight ",
        "objective.undesirable_weight": "--undesirable_weight ",
        "objective.reference": "--precompute_ref_log_probs true",
        "batch.global": "--per_device_train_batch_size ",
        "train.epochs": "--num_train_epochs ",
        "train.steps": "--max_steps ",
        "train.examples": "--max_steps ",
        "train.seed": "--seed ",
        "train.optimizer.kind": "--optim ",
        "train.optimizer.lr": "--learning_rate ",
        "train.optimizer.betas": "--adam_beta1 ",
        "train.optimizer.eps": "--adam_epsilon ",
        "train.optimizer.weight_decay": "--weight_decay ",
        "train.schedule.kind": "--lr_scheduler_type ",
        "train.schedule.warmup": "--warmup_",
        "train.schedule.final_fraction": "min_lr_rate",
        "train.clip_norm": "--max_grad_norm ",
        "train.precision": "--bf16 ",
        "train.activation_checkpointing": "--gradient_checkpointing ",
        "train.compile": "--torch_compile true",
    },
    "torchtitan": {
        "model.context": "--training.seq_len ",
        "batch.global": "--training.global_batch_size ",
        "train.steps": "--training.steps ",
        "train.examples": "--training.steps ",
        "train.seed": "--debug.seed ",
        "train.optimizer.kind": "--optimizer.name AdamW",
        "train.optimizer.lr": "--optimizer.lr ",
        "train.optimizer.betas": "--optimizer.beta1 ",
        "train.optimizer.eps": "--optimizer.eps ",
        "train.optimizer.weight_decay": "--optimizer.weight_decay ",
        "train.schedule.kind": "--lr_scheduler.decay_",
        "train.schedule.warmup": "--lr_scheduler.warmup_steps ",
        "train.schedule.final_fraction": "--lr_scheduler.min_lr_factor ",
        "train.clip_norm": "--training.max_norm ",
        "train.precision": "--training.mixed_precision_param ",
        "train.activation_checkpointing": "--activation_checkpoint.mode ",
    },
    "accelerate": {"batch.global": "num_processes", "train.precision": "mixed_precision"},
    "deepspeed": {"batch.global": "train_batch_size", "train.precision": "bf16"},
    "torchtune": {"batch.global": "batch_size="},
}
# The systems on transformers' Trainer have TRL's keys with these exceptions. axolotl has a file of `key: value`.
_LIKE_TRL = {
    name: option
    for name, option in OPTIONS["trl"].items()
    if name.startswith(("train.", "objective.", "model.", "batch.")) and name != "objective.reference"
}
OPTIONS["llamafactory"] = {
    **_LIKE_TRL,
    "batch.global": "per_device_train_batch_size",
    "model.context": "--cutoff_len ",
    "model.attention": "--flash_attn ",
    "model.lora.rank": "--lora_rank ",
    "model.lora.targets": "--lora_target ",
    "data.loss_on": "--train_on_prompt true",
    "data.packing": "--neat_packing true",
    "objective.kind": "--stage ",
    "objective.beta": "--pref_beta ",
    "objective.label_smoothing": "--dpo_label_smoothing ",
    "objective.desirable_weight": "--kto_chosen_weight ",
    "objective.undesirable_weight": "--kto_rejected_weight ",
    "train.activation_checkpointing": "--disable_gradient_checkpointing ",
}
OPTIONS["swift"] = {
    **_LIKE_TRL,
    "model.path": "--model ",
    "model.attention": "--attn_impl ",
    "model.lora.rank": "--lora_rank ",
    "model.lora.targets": "--target_modules ",
    "data.loss_on": "--loss_scale all",
    "data.packing": "--packing true",
    "objective.kind": "swift ",
}
OPTIONS["axolotl"] = {
    **{name: f"{option.strip().removeprefix('--').partition(' ')[0]}: " for name, option in _LIKE_TRL.items()},
    "model.path": "base_model: ",
    "model.context": "sequence_len: ",
    "model.lora.targets": "lora_target_",
    "data.loss_on": "train_on_inputs: true",
    "data.packing": "sample_packing: true",
    "objective.kind": "",
    "objective.beta": "rl_beta: ",
    "objective.label_smoothing": "dpo_label_smoothing: ",
    "objective.desirable_weight": "kto_desirable_weight: ",
    "objective.undesirable_weight": "kto_undesirable_weight: ",
    "batch.global": "--micro-batch-size ",
    "train.epochs": "num_epochs: ",
    "train.optimizer.kind": "optimizer: ",
    "train.schedule.kind": "lr_scheduler: ",
    "train.schedule.warmup": "warmup_",
    "train.schedule.final_fraction": "min_lr_rate: ",
}
# Values that a system has anyway, so that they need no option. ANY: the loss implies it.
ANY = object()
ANYWHERE = {
    "model.kind": "hf",
    "model.weights": "pretrained",
    "data.kind": ANY,
    "data.packing": False,
    "objective.reference": "model",
}
ALIKE = {
    "dpo": {**ANYWHERE, "objective.mean_over": "samples", "objective.log_probs": "sum", "data.loss_on": "completions"},
    "halos": {
        **ANYWHERE,
        "objective.mean_over": "tokens",
        "objective.log_probs": "mean",
        "objective.label_smoothing": 0.0,
        "data.loss_on": "completions",
    },
    "trl": {
        **ANYWHERE,
        "objective.mean_over": "tokens",
        "objective.log_probs": "mean",
        "data.loss_on": "all",
        "model.frozen": "fp32",
        "train.compile": False,
        "train.kernels": "auto",
    },
    "torchtitan": {"model.kind": "hf", "model.weights": "pretrained"},
    "accelerate": {},
    "deepspeed": {},
    "torchtune": {},
}
for _target in ("axolotl", "llamafactory", "swift"):
    ALIKE[_target] = {**ALIKE["trl"], "data.loss_on": "completions"}
ON_TRAINER = ("trl", "axolotl", "llamafactory", "swift")
# The losses for which each system has options.
LOSSES = {
    "dpo": ("sft", "dpo", "ipo", "own"),
    "halos": ("sft", "dpo", "ipo", "simpo", "kto", "own"),
    "trl": ("sft", "dpo", "ipo", "simpo", "kto", "own"),
    "torchtitan": ("lm", "sft", "own"),
    "accelerate": ("lm", "sft", "kto", "own"),
    "deepspeed": ("lm", "sft", "kto", "own"),
    "torchtune": ("sft", "dpo", "own"),
    **dict.fromkeys(("axolotl", "llamafactory", "swift"), ("sft", "dpo", "ipo", "simpo", "kto", "own")),
}

names = st.text("abcdefghij", min_size=1, max_size=6)
cadences = st.sampled_from(["0 steps", "7 steps", "10%", "128 examples", "100 examples rounded", "0.5 epochs"])
rates = st.sampled_from([1e-6, 5e-7, 2e-5, 0.003])
shares = st.sampled_from([0.0, 0.1, 0.25])
maybe_name = st.none() | names


def section(**fields):
    return st.fixed_dictionaries(fields)


lora = section(
    rank=st.sampled_from([4, 16]), alpha=st.sampled_from([8.0, 32.0]), dropout=shares,
    targets=st.none() | st.lists(names, min_size=1, max_size=3),
)  # fmt: skip
hf = section(
    kind=st.just("hf"), path=names, revision=maybe_name, context=st.sampled_from([64, 512]),
    weights=st.sampled_from(["pretrained", "random"]), attention=st.sampled_from(["sdpa", "eager"]),
    chat_template=maybe_name, lora=st.none() | lora,
)  # fmt: skip
gpt = section(
    kind=st.just("gpt"), layers=st.integers(1, 4), width=st.sampled_from([8, 16]), heads=st.sampled_from([2, 4]),
    context=st.sampled_from([64, 512]), dropout=shares, tied_embeddings=st.booleans(),
)  # fmt: skip


columns = st.none() | st.sampled_from([{"messages": "messages"}, {"messages": "talk"}])
hub = {"config": maybe_name, "folder": maybe_name, "split": maybe_name, "revision": maybe_name, "columns": columns}
sets = st.lists(
    section(
        path=st.sampled_from(["org/a", "org/b", "c.jsonl"]), **hub,
        fraction=st.none() | st.sampled_from([0.5, 1.5]), weight=st.none() | st.sampled_from([1.0, 2.0]),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
data_sets = st.one_of(
    section(path=names, split=maybe_name),
    section(path=st.just("org/a"), **hub),
    section(mixture=sets, seed=st.integers(0, 3)),
)


def rows(kind, **more):
    fields = section(
        kind=st.just(kind), max_prompt=st.none() | st.sampled_from([32, 100]),
        cut_prompt=st.sampled_from(["start", "end"]), bad_rows=st.sampled_from(["refuse", "skip"]), **more,
    )  # fmt: skip
    return st.tuples(fields, data_sets).map(lambda parts: parts[0] | parts[1])


chat = rows("chat", loss_on=st.sampled_from(["completions", "all"]), packing=st.booleans())
text = section(kind=st.just("text"), path=names)
jsonl = section(kind=st.just("jsonl"), path=names, field=names)
betas = st.sampled_from([0.05, 0.1, 2.5])
reference = {"reference_model": maybe_name}
losses = {
    "lm": (section(kind=st.just("lm")), gpt, text | jsonl),
    "sft": (section(kind=st.just("sft"), mean_over=st.sampled_from(["tokens", "samples"])), hf, chat),
    "dpo": (
        section(
            kind=st.just("dpo"), beta=betas, label_smoothing=shares,
            reference=st.sampled_from(["model", "cached", "none"]), **reference,
        ),
        hf,
        rows("pairs"),
    ),
    "ipo": (
        section(
            kind=st.just("ipo"), beta=betas, log_probs=st.sampled_from(["mean", "sum"]),
            reference=st.sampled_from(["model", "cached"]), **reference,
        ),
        hf,
        rows("pairs"),
    ),
    "simpo": (section(kind=st.just("simpo"), beta=betas, gamma_beta_ratio=shares), hf, rows("pairs")),
    "kto": (
        section(
            kind=st.just("kto"), beta=betas, desirable_weight=st.sampled_from([1.0, 1.33]),
            undesirable_weight=st.sampled_from([1.0, 0.5]), **reference,
        ),
        hf,
        rows("feedback"),
    ),
    "own": (
        section(kind=st.just("own")), section(kind=st.just("own")), section(kind=st.just("own"), path=names),
    ),
}  # fmt: skip
decays = st.sampled_from([0.0, 0.01])
epsilons = st.sampled_from([1e-8, 1e-5])
optimizers = st.one_of(
    section(
        kind=st.just("adamw"), lr=rates, eps=epsilons, weight_decay=decays,
        betas=st.sampled_from([[0.9, 0.999], [0.9, 0.95], [0.8, 0.999]]),
    ),
    section(kind=st.just("rmsprop"), lr=rates, alpha=st.sampled_from([0.99, 0.9]), eps=epsilons, weight_decay=decays),
    section(kind=st.just("sgd"), lr=rates, momentum=st.sampled_from([0.0, 0.9]), weight_decay=decays),
)  # fmt: skip
lengths = st.sampled_from([{"steps": 9}, {"epochs": 1.0}, {"epochs": 1.5}, {"examples": 640}, {"examples": 6400}])
schedules = section(kind=st.sampled_from(["constant", "linear", "cosine"]), warmup=cadences, final_fraction=shares)
any_train = {
    "seed": st.integers(0, 9),
    "clip_norm": st.sampled_from([None, 1.0, 10.0]),
    "non_finite": st.sampled_from(["stop", "skip"]),
}
own_trains = section(**any_train, optimizer=section(kind=st.just("own")))
trains = section(
    **any_train, optimizer=optimizers, schedule=schedules, precision=st.sampled_from(["fp32", "bf16"]),
    activation_checkpointing=st.booleans(),
)  # fmt: skip
beside = {
    "name": names,
    "batch": section(
        **{"global": st.sampled_from([64, 128])}, max_micro=st.sampled_from([4, 8]),
        equality=st.sampled_from(["balanced", "bitwise"]),
    ),
    "eval": section(
        samples=st.sampled_from([0, 32, "5%"]),
        every=st.sampled_from(["100 steps", "640 examples", "10%", "1 epoch", "0.5 epochs"]),
    ),
    "workers": section(
        min=st.integers(1, 2), min_on=st.sampled_from(["any", "on-demand"]),
        max=st.integers(2, 8), cpus=st.sampled_from([1.0, 2.0]), gpus=st.integers(0, 1),
        resources=st.dictionaries(names, st.sampled_from([1.0, 2.0]), max_size=1), loader_processes=st.integers(0, 1),
        keep_processes=st.sampled_from(["auto", "never"]),
    ),
    "checkpoint": section(path=st.just("") | names, every=st.sampled_from(["auto", "5 steps"]), keep=st.integers(1, 3)),
}  # fmt: skip

caps = st.sampled_from([{}, {"max_tokens": 2048}, {"max_tokens": 4096}, {"max_tokens": 4096, "attention_at": 512}])


@st.composite
def trees(draw, loss):
    """A valid job as nested dicts."""
    objective, model, data = losses[loss]
    tree = {key: draw(its) for key, its in beside.items()}
    tree |= {"objective": draw(objective), "model": draw(model), "data": draw(data)}
    tree["train"] = {**draw(lengths), **draw(trains if loss != "own" else own_trains)}
    if loss != "own":  # whose samples may have no tokens
        tree["batch"] |= draw(caps)
    if loss not in {"own", "lm"} and (data := draw(st.none() | data_sets)):
        tree["eval"]["data"] = data
    assume(is_valid(tree))
    return tree


def is_valid(tree):
    try:
        Job.model_validate(tree)
    except ValidationError:
        return False
    return True


def said(tree, target):
    """The command with its file, and the listed values, for a job on 4 GPUs."""
    batch = tree["batch"]
    job = Job.model_validate(tree).model_dump(by_alias=True)
    recipe = Recipe(
        source="job.yaml", system="job", method=tree["objective"]["kind"], unit="sample", global_batch=batch["global"],
        accumulation=1, gpus=None, micro=batch["max_micro"], eval_batch=None, draft=Draft(job=job), foreign=None,
    )  # fmt: skip
    made = rewrite(recipe, target, 4)
    return f"{made.command}\n{made.file}", f" {' '.join(map(str, made.unsaid))} "


def values(tree, prefix=""):
    """Every value of a job with its dotted name."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and key != "columns":
            yield from values(value, f"{name}.")
        elif value is not None or name == "train.clip_norm":
            yield name, value


def is_pointless(tree, target, name):
    """Whether a value has no effect in this job."""
    schedule = tree["train"].get("schedule", {})
    if name == "train.schedule.final_fraction":
        return schedule["kind"] == "constant" or not schedule["final_fraction"]
    if name == "train.schedule.kind":  # which of the two follows from the loss there
        kind = "cosine" if target == "halos" and tree["objective"]["kind"] == "sft" else "constant"
        return target in {"dpo", "halos"} and schedule["kind"] == kind
    if says_nothing(tree, name) or (target in ON_TRAINER and name.startswith("eval.") and not is_evaluated(tree)):
        return True
    if name == "model.frozen":  # without adapters no weights are frozen
        return tree["model"].get("lora") is None
    return name == "data.cut_prompt" and target in ON_TRAINER and tree["data"].get("max_prompt") is None


def is_evaluated(tree):
    return bool(tree["eval"].get("samples") or tree["eval"].get("data"))


def says_nothing(tree, name):
    """Whether a value of the data is empty beside a mixture or a path, or a seed that chooses nothing."""
    section_name, _, key = name.rpartition(".")
    rows = {"data": tree["data"], "eval.data": tree["eval"].get("data")}.get(section_name) or {}
    is_mixture = bool(rows.get("mixture"))
    chooses = any(each.get("fraction") or each.get("weight") for each in rows.get("mixture", ()))
    return {"path": is_mixture, "mixture": not is_mixture, "seed": not chooses}.get(key, False)


@pytest.mark.parametrize("target", TARGETS)
@without_shrinking(30)  # the failing field's name says enough
@given(data=st.data())
def test_every_value_of_a_job_is_written_or_listed(target, data):
    """All fields are checked, defaults included. `test_tracking.py` checks trackers."""
    tree = data.draw(trees(data.draw(st.sampled_from(LOSSES[target]))))
    typed, listed = said(tree, target)
    for name, value in values(Job.model_validate(tree).model_dump(by_alias=True, exclude={"tracking"})):
        is_listed = re.search(rf"[ ,]{re.escape(name)}[. ]", listed)
        options = OPTIONS[target].get(name, ())
        is_written = any(option in typed for option in ((options,) if isinstance(options, str) else options))
        anyway = ALIKE[target].get(name, "\0")
        is_alike = anyway is ANY or anyway == value
        assert is_listed or is_written or is_alike or is_pointless(tree, target, name), (name, value, listed)


@pytest.mark.parametrize("target", TARGETS)
@without_shrinking(12)  # each tries every value
@given(data=st.data())
def test_another_value_makes_another_answer(target, data):
    """So the text contains the value itself, not a fixed phrase."""
    loss = data.draw(st.sampled_from(LOSSES[target]))
    tree, other = data.draw(trees(loss)), data.draw(trees(loss))
    before = dict(values(tree))
    for name, value in values(other):
        changed = with_value(tree, name, value) if before.get(name, value) != value else tree
        is_idle = is_pointless(tree, target, name) and is_pointless(changed, target, name)
        if changed != tree and is_valid(changed) and not is_idle:
            assert said(tree, target) != said(changed, target), name


def with_value(tree, name, value):
    """The same job with one other value."""
    changed = copy.deepcopy(tree)
    *path, last = name.split(".")
    place = changed
    for part in path:
        place = place[part]
    place[last] = value
    return changed
