"""HALOs (ContextualAI/HALOs, read at 4831988): Hydra and accelerate, FSDP.

`model.batch_size` has had three meanings: of all GPUs and accumulation steps (since 2025-05-01), of one accumulation
step (before), and that again, sliced as in the DPO repository (branch legacy). What the system does with it is in
`planner.interop.halos_runs`.
"""

import re
from typing import Any

from planner.interop.accelerate import Launch
from planner.interop.drafting import (
    DATA_OF,
    Dataset,
    Options,
    carry,
    finish,
    job_name,
    make_own,
    names_of,
    order_sections,
    set_batch,
    set_data,
    set_optimizer,
    set_workers,
    whole_if,
)
from planner.interop.entries import Entry, Keys
from planner.interop.halos_runs import HalosFacts, Meaning
from planner.interop.recipe import Draft, Note, Recipe
from planner.interop.scalars import number
from planner.interop.shipped import HALOS_DEFAULTS, HALOS_REASONS
from planner.interop.split import nearest_multiple

TITLE = "HALOs"
GROUPS = ("model", "loss")
_WHOSE = "HALOs' own configuration"

# Hydra's loss=NAME there -> the method.
_TRAINERS = {
    "SFTTrainer": "sft",
    "DPOTrainer": "dpo",
    "CDPOTrainer": "cdpo",
    "IPOTrainer": "ipo",
    "SimPOTrainer": "simpo",
    "SLiCTrainer": "slic",
    "KTOTrainer": "kto",
    "PPOTrainer": "ppo",
    "GRPOTrainer": "grpo",
    "BradleyTerryTrainer": "bradley-terry",
    "ORPOTrainer": "orpo",
}
_UNPAIRED = ("kto", "ppo", "grpo", "kto-zero", "kto-simple", "kto-surprisal", "kto-logsigmoid")
_SHARED = {"cdpo": "dpo"}
# The number of processes that the shipped accelerate_config/fsdp_NAME.yaml files say.
_SHIPPED_FILES = {"2gpu": 2, "4gpu": 4, "8gpu": 8, "2x2gpu": 4, "2x4gpu": 8, "2x8gpu": 16}
_TOLD = re.compile(r"((?:^[ \t]*#[^\n]*\n)+)[ \t]*batch_size:", re.MULTILINE)


def base(choices: dict[str, str]) -> dict[str, Entry]:
    """HALOs' own configuration, as far as it is known, for a command line without its folder."""
    entries = {key: Entry(value=value, where=_WHOSE, is_default=True) for key, value in HALOS_DEFAULTS.items()}
    if choices.get("model", "").startswith("pythia"):
        entries["model.activation_checkpointing"] = Entry(value=False, where=_WHOSE, is_default=True)
    losses = {"kto": 0.1, "dpo": 0.1, "cdpo": 0.1, "grpo": 0.1, "simpo": 2.0}
    if (loss := choices.get("loss")) in losses:
        entries["loss.beta"] = Entry(value=losses[str(loss)], where=_WHOSE, is_default=True)
    return entries


def told_meaning(text: str) -> Meaning | None:
    """What the comment above `batch_size` in base_model.yaml says it counts; none if there is no such comment."""
    found = _TOLD.search(text)
    if found is None or "across all machines" not in found[1]:
        return None
    return "total" if "accumulation" in found[1] else "per accumulation step"


def processes_of(config_file: str) -> int | None:
    """The processes that one of HALOs' shipped accelerate files starts, by its name."""
    found = re.search(r"accelerate_config/fsdp_(\w+)\.yaml$", config_file)
    return _SHIPPED_FILES.get(found[1]) if found else None


def read(
    keys: Keys,
    choices: dict[str, str],
    options: Options,
    *,
    told: Meaning | None,
    launch: Launch | None,
    group: int | None,
) -> Recipe:
    """The recipe. Mistakes are noted in `keys`; `told` is what a comment says that batch_size counts."""
    written, accumulation = keys.whole("model.batch_size"), keys.whole("model.gradient_accumulation_steps", 1)
    meaning = _meaning(keys, options, told, accumulation)
    batch = written if meaning == "total" else written * accumulation
    method, why_own = _method(keys, choices)
    gpus = options.gpus or (launch.num_processes if launch else None)
    per_step = written // accumulation if meaning == "total" else written
    micro = None if gpus is None else max(per_step // gpus, 1)
    is_unpaired = method in _UNPAIRED or "Unpaired" in str(keys.value("loss.dataloader", ""))
    unit = "completion" if is_unpaired else "example" if method in {"sft", "csft"} else "pair"
    facts = HalosFacts(
        written=written,
        meaning=meaning,
        batch=batch,
        accumulation=accumulation,
        eval_batch=keys.whole("model.eval_batch_size", 32),
        is_sharded=keys.value("use_fsdp", True) is not False,
        method=method,
        unit=unit,
        is_unpaired=is_unpaired,
        eval_every=keys.whole("eval_every", 1024),
        n_examples=keys.whole("n_examples", 0, least=0) or None,
        n_epochs=keys.number("n_epochs", 0.0) or None,
        warmup=keys.number("warmup", 0.0),
        is_fsdp=launch is None or launch.kind in {"FSDP", ""},
        model_choice=choices.get("model", ""),
        clip_norm=keys.number("model.max_grad_norm", 0.0) or None,
        group=group,
        is_online=keys.value("online") is True,
        reward_model_path=keys.has("model.reward_model_path"),
    )
    if gpus and facts.meaning != "legacy" and facts.eval_batch % (divisor := facts.divisor(gpus)):
        keys.lacks(
            f"model.eval_batch_size: {facts.eval_batch} is no multiple of {divisor}, which HALOs wants at {gpus} GPUs; "
            f"write model.eval_batch_size={nearest_multiple(facts.eval_batch, divisor)}"
        )
    draft = _draft(keys, options, facts, gpus, micro, launch)
    finish(draft, keys, HALOS_REASONS, "not a key that planner knows of HALOs'")
    if why_own:
        make_own(draft, method, why_own)
    return Recipe(
        source=keys.source,
        system="halos",
        method=method,
        unit=unit,
        global_batch=batch,
        accumulation=accumulation,
        gpus=gpus,
        micro=micro,
        eval_batch=facts.eval_batch,
        draft=draft,
        foreign=facts,
    )


def _meaning(keys: Keys, options: Options, told: Meaning | None, accumulation: int) -> Meaning:
    """Which of the three; without accumulation all are one."""
    if keys.has("use_fsdp") and keys.has("mode"):
        for key in ("use_fsdp", "mode"):
            keys.value(key)
        return "legacy"
    asked: Meaning | None = None
    if options.halos_batch is not None:
        if options.halos_batch not in {"total", "per-accumulation"}:
            keys.wrong(f"--halos-batch {options.halos_batch[:40]}: write total or per-accumulation")
        asked = "total" if options.halos_batch == "total" else "per accumulation step"
    if asked and told and asked != told:
        keys.wrong(f"--halos-batch says {asked}, and the comment above model.batch_size says {told}; leave one out")
    if not asked and not told and accumulation > 1:
        keys.wrong(
            "model.batch_size: HALOs changed its meaning on 2025-05-01, and the file does not say which one it "
            "has; write "
            "--halos-batch total (newer: of all accumulation steps) or --halos-batch per-accumulation (older: of each)"
        )
    return asked or told or "total"


def _method(keys: Keys, choices: dict[str, str]) -> tuple[str, str]:
    """The method, and why it takes a loop of the user's own; empty if an objective of ours computes it."""
    trainer = keys.value("loss.trainer")
    method = choices.get("loss") or _TRAINERS.get(str(trainer)) or keys.value("loss.name")
    if not method:
        keys.wrong("loss: found no method; write loss=NAME behind the recipe, such as loss=kto")
        return "sft", ""
    method = str(method)
    if keys.value("humanline") is True:
        for key in ("log_epsilon_P", "log_epsilon_R", "humanline_iters", "humanline_alpha"):
            keys.value(key)
        return method, f"{method} with humanline=true (a reference that is overwritten while training)"
    if keys.value("loss.sync_reference") is True:
        return method, f"{method} with loss.sync_reference=true (a reference that is overwritten while training)"
    if _SHARED.get(method, method) in DATA_OF:
        return method, ""
    return method, f"planner has no objective for {method}"


def _draft(
    keys: Keys, options: Options, facts: HalosFacts, gpus: int | None, micro: int | None, launch: Launch | None
) -> Draft:
    draft = Draft()
    name = job_name(keys.value("exp_name"), f"{facts.model_choice}-{facts.method}")
    draft.derive("name", name, f"name {name}" + (": exp_name" if keys.value("exp_name") else ""))
    _set_model(draft, keys)
    kind = DATA_OF.get(_SHARED.get(facts.method, facts.method), "feedback" if facts.is_unpaired else "pairs")
    names = names_of(keys.value("train_datasets") or keys.value("datasets"))
    set_data(draft, kind, [Dataset(name=name, hub=False) for name in names])
    if keys.has("model.max_prompt_length"):
        carry(draft, keys, "model.max_prompt_length", "data.max_prompt", keys.whole("model.max_prompt_length"))
    _set_objective(draft, keys, facts.method)
    meanings = {
        "total": f"{facts.batch} as written: model.batch_size is the batch of all GPUs and accumulation steps",
        "per accumulation step": (
            f"{facts.batch} = {facts.written} x {facts.accumulation} accumulation steps (older HALOs)"
        ),
        "legacy": f"{facts.batch} = {facts.written} x {facts.accumulation} accumulation steps (HALOs legacy)",
    }
    set_batch(draft, keys, options, facts.batch, micro, meanings[facts.meaning])
    if gpus:
        whose = "--gpus" if options.gpus or launch is None else launch.source
        draft.derived.append(Note(key="gpus", text=f"tuned for {gpus} GPUs: {whose}"))
    _set_length(draft, keys, facts)
    carry(draft, keys, "seed", "train.seed", keys.whole("seed", 1, least=0))
    _set_optimizer(draft, keys)
    _set_schedule(draft, keys, facts)
    if facts.clip_norm:
        carry(draft, keys, "model.max_grad_norm", "train.clip_norm", facts.clip_norm)
    else:
        draft.to_do.append("train.clip_norm is planner's default 1.0: the recipe does not say model.max_grad_norm")
    _set_precision(draft, keys)
    _set_eval(draft, keys, facts)
    set_workers(draft, facts.batch, gpus)
    order_sections(draft)
    return draft


def _set_model(draft: Draft, keys: Keys) -> None:
    draft.set("model.kind", "hf")
    path = keys.text("model.name_or_path")
    if keys.has("model.load_from") and (start := keys.value("model.load_from")):
        draft.derive(
            "model.path", str(start), f"model.path {start}: model.load_from, the weights that training begins with"
        )
        keys.value("model.name_or_path")
    else:
        carry(draft, keys, "model.name_or_path", "model.path", path)
    carry(draft, keys, "model.max_length", "model.context", keys.whole("model.max_length", 1024, least=2))
    attention = keys.value("model.attn_implementation")
    if attention in {"sdpa", "eager", "flash_attention_2"}:
        carry(draft, keys, "model.attn_implementation", "model.attention", attention)
    if keys.flag("model.use_peft"):
        lora: dict[str, Any] = {
            "rank": keys.whole("model.peft.lora_r", 64),
            "alpha": keys.number("model.peft.lora_alpha", 256.0),
            "dropout": keys.number("model.peft.lora_dropout", 0.05),
        }
        targets = keys.value("model.peft.target_modules")
        if isinstance(targets, list):
            lora["targets"] = [str(target) for target in targets]
        draft.derive("model.lora", lora, f"model.lora rank {lora['rank']}, alpha {number(float(lora['alpha']))}")


def _set_objective(draft: Draft, keys: Keys, method: str) -> None:
    objective: dict[str, Any]
    text = ""
    if method == "sft":
        objective, text = (
            {"kind": "sft"},
            "a mean over all tokens of the global batch; there over those of a micro-batch",
        )
    elif method in {"dpo", "cdpo"}:
        objective = {"kind": "dpo", "beta": keys.number("loss.beta", 0.1)}
        if method == "cdpo":
            objective["label_smoothing"] = keys.number("loss.epsilon")
    elif method == "ipo":
        objective = {"kind": "ipo", "beta": keys.number("loss.tau"), "log_probs": "mean"}
        text = "loss.tau is beta here"
    elif method == "simpo":
        beta = keys.number("loss.beta", 2.0)
        ratio = keys.number("loss.gamma_beta_ratio", -1.0) if keys.has("loss.gamma_beta_ratio") else None
        if ratio is None and keys.has("loss.gamma"):
            ratio = keys.number("loss.gamma") / beta
            text = "gamma_beta_ratio = loss.gamma / loss.beta"
        objective = {"kind": "simpo", "beta": beta, "gamma_beta_ratio": 0.5 if ratio is None else ratio}
    elif method == "kto":
        objective = {
            "kind": "kto",
            "beta": keys.number("loss.beta", 0.1),
            "desirable_weight": keys.number("loss.desirable_weight", 1.0),
            "undesirable_weight": keys.number("loss.undesirable_weight", 1.0),
        }
        text = "the KL baseline is over the whole global batch here; there over a micro-batch of all GPUs"
    else:
        return
    if keys.value("cache_reference_logprobs") is True and method in {"dpo", "cdpo", "ipo"}:
        objective["reference"] = "cached"
    shown = ", ".join(f"{name} {number(its) if isinstance(its, float) else its}" for name, its in objective.items())
    draft.derive("objective", objective, f"objective {shown}" + (f": {text}" if text else ""))


def _set_length(draft: Draft, keys: Keys, facts: HalosFacts) -> None:
    if facts.n_examples:
        whole = -(-facts.n_examples // facts.batch) * facts.batch
        text = f"train.examples {whole}: n_examples {facts.n_examples} in whole batches of {facts.batch}"
        if facts.n_epochs:
            text += f"; there n_epochs {number(facts.n_epochs)} ends it earlier where the data has fewer rows"
        draft.derive("train.examples", whole, text)
    elif facts.n_epochs:
        carry(draft, keys, "n_epochs", "train.epochs", whole_if(facts.n_epochs))
    else:
        keys.lacks("n_epochs: found neither n_epochs nor n_examples; write one of them behind the recipe")


def _set_optimizer(draft: Draft, keys: Keys) -> None:
    name, lr = keys.text("optimizer", "AdamW"), keys.number("lr")
    kinds = {"AdamW": "adamw", "Adam": "adamw", "RMSprop": "rmsprop", "SGD": "sgd"}
    if name not in kinds:
        keys.refuse(
            "optimizer", f"planner has {', '.join(kinds)}; write optimizer=AdamW, or train by a loop of your own"
        )
    values: dict[str, Any] = {"kind": kinds.get(name, "adamw"), "lr": lr}
    from_keys = {"kind": "optimizer", "lr": "lr"}
    if keys.has("weight_decay"):
        values["weight_decay"] = keys.number("weight_decay")
        from_keys["weight_decay"] = "weight_decay"
    if values["kind"] == "adamw" and (keys.has("beta1") or keys.has("beta2")):
        values["betas"] = [keys.number("beta1", 0.9), keys.number("beta2", 0.999)]
        from_keys["betas"] = "beta1" if keys.has("beta1") else "beta2"
    elif values["kind"] == "adamw":
        draft.to_do.append("train.optimizer betas and weight_decay are planner's defaults where the recipe says none")
    set_optimizer(draft, keys, values, from_keys)


def _set_schedule(draft: Draft, keys: Keys, facts: HalosFacts) -> None:
    kind = "cosine" if facts.method == "sft" else "constant"
    if keys.has("warmup_steps"):
        warmup = f"{keys.whole('warmup_steps', 0, least=0)} steps"
    else:
        warmup = f"{number(round(facts.warmup * 100, 6))}%"
    text = f"train.schedule {kind} after {warmup}: HALOs is cosine for sft and constant for all others"
    draft.derive(
        "train.schedule", {"kind": kind, "warmup": warmup}, f"{text}; its warmup begins at a tenth of the rate"
    )


def _set_precision(draft: Draft, keys: Keys) -> None:
    dtype = keys.value("model.policy_dtype", "bfloat16")
    precision = "fp32" if dtype == "float32" else "bf16"
    text = f"train.precision {precision}: model.policy_dtype {dtype}"
    text += "; there weights and optimizer state are bf16, too, here fp32" if precision == "bf16" else ""
    draft.derive("train.precision", precision, text)
    if keys.flag("model.activation_checkpointing", default=True):
        carry(draft, keys, "model.activation_checkpointing", "train.activation_checkpointing", True)


def _set_eval(draft: Draft, keys: Keys, facts: HalosFacts) -> None:
    if keys.has("n_eval_examples"):
        samples = keys.whole("n_eval_examples")
        draft.derive(
            "eval.samples", samples, f"eval.samples {samples}: held out of the training rows, there of a test split"
        )
    else:
        draft.to_do.append("eval.samples: say how many rows to hold out; there all of the test split is evaluated")
        draft.set("eval.samples", 0)
    every = facts.eval_every // facts.batch * facts.batch
    if every:
        lowered = "" if every == facts.eval_every else f", lowered from {facts.eval_every} as there"
        draft.derive("eval.every", f"{every} examples", f"eval.every {every} examples{lowered}")
    else:
        draft.derive("eval.every", "1 step", f"eval.every 1 step: eval_every {facts.eval_every} is less than a batch")


def command(gpus: int, batch: int, accumulation: int, eval_batch: int, extra: list[str]) -> str:
    """What to type for a batch at a GPU count."""
    words = [
        f"++model.batch_size={batch}",
        f"++model.gradient_accumulation_steps={accumulation}",
        f"++model.eval_batch_size={eval_batch}",
    ]
    launcher = f"accelerate launch --config_file accelerate_config/fsdp_8gpu.yaml --num_processes {gpus} launch.py"
    return " ".join([launcher, *extra, *words])
