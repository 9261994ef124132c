"""HALOs (ContextualAI/HALOs, read at 4831988): Hydra and accelerate, FSDP.

`model.batch_size` counts the samples of all GPUs and accumulation steps (since 2025-05-01) or of one accumulation step
(before, and in the branch legacy, which slices batches as the DPO repository does). See `halos_runs`.
"""

import re
from collections.abc import Mapping
from typing import Any

from planner.base.disk import is_file
from planner.recipes.config_reader import text_of
from planner.recipes.drafting import DATA_OF, RecipeOptions, finish, make_own
from planner.recipes.engine import refuse_values, shipped
from planner.recipes.entries import Entry, KeyReader
from planner.recipes.halos.batching import HalosFacts, Meaning
from planner.recipes.halos.job import SHARED, make_draft
from planner.recipes.halos.keys import CONFIG, LOSSES, OF_LEGACY, OF_LOSS, RULES
from planner.recipes.hydra.compose import Composed
from planner.recipes.hydra_recipes.forks import Fork, fork_of
from planner.recipes.hydra_recipes.read import HydraSystem
from planner.recipes.hydra_recipes.read import read as read_configuration
from planner.recipes.recipe import Recipe
from planner.recipes.scalars import number
from planner.recipes.source import RecipeSource
from planner.recipes.split import nearest_multiple
from planner.recipes.trainer.accelerate import LaunchSettings, read_launch
from planner.recipes.trainer.launcher import launch_of

_WHOSE = "HALOs' own configuration"

# HALOs' loss.trainer -> the method, as in loss=NAME.
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
# Methods whose loss differs from planner's objective of the same name, and the difference.
_ANOTHER_LOSS = {"orpo": "planner's orpo takes the mean of its cross-entropy over tokens, HALOs over pairs"}
# Losses of HALOs that have a reference model, where an older version says so by loss.use_reference_model.
_WITH_REFERENCE = ("dpo", "cdpo", "ipo", "kto")
_LOADERS = re.compile(
    "(?:Conditional)?SFTDataLoader|(?:Score|Group|Unbalanced)*UnpairedPreferenceDataLoader|"
    "(?:PairedPreference|HalfPref|Pref)DataLoader"
)
_UNPAIRED = ("kto", "ppo", "grpo", "kto-zero", "kto-simple", "kto-surprisal", "kto-logsigmoid")
_TOLD = re.compile(r"((?:^[ \t]*#[^\n]*\n)+)[ \t]*batch_size:", re.MULTILINE)


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe in a file, a folder or a command.

    Raises:
        RecipeError: a file, key or value is wrong or missing.
    """
    return read_configuration(found, options, HydraSystem("HALOs", CONFIG, base, _read))


def _read(keys: KeyReader, made: Composed, found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The recipe of a composed configuration, with what its command and its files say. Notes mistakes in `keys`."""
    launch = launch_of(found.command, options, keys, found.source) if found.command else None
    if options.accelerate and launch is None:
        launch = read_launch(options.accelerate)
    if launch and options.gpus and launch.num_processes not in {None, options.gpus}:
        said = f"{launch.counted_by or launch.source} says {launch.num_processes} processes"
        keys.wrong(f"{options.gpus_option} {options.gpus}: {said}. Leave one of them out")
    group = found.command.group_size if found.command else None
    commented, used = _meaning_in_files(found), frozenset(made.used)
    return recipe_from(keys, made.choices, options, commented=commented, launch=launch, group=group, used=used)


def _meaning_in_files(found: RecipeSource) -> Meaning | None:
    """What a comment in HALOs' files says that batch_size counts, None if there is none."""
    if found.folder is not None:
        file = found.folder / "model" / "base_model.yaml"
        return meaning_in_comment(text_of(file)) if is_file(file) else None
    return meaning_in_comment(found.text) if found.kind == "keys" else None


def base(choices: Mapping[str, str]) -> dict[str, Entry]:
    """HALOs' default configuration, as far as known, for a command without its folder. `choices` are Hydra's groups."""
    loss = choices.get("loss", "")
    entries = shipped(CONFIG, _WHOSE, loss)
    if choices.get("model", "").startswith("pythia"):
        entries["model.activation_checkpointing"] = Entry(value=False, where=_WHOSE, is_default=True)
    if loss in LOSSES:
        its = [row for row in OF_LOSS if not isinstance(row.default, Mapping) or loss in row.default]
        entries |= shipped(its, _WHOSE, loss)
    return entries


def meaning_in_comment(text: str) -> Meaning | None:
    """What `batch_size` counts by the comment above it in base_model.yaml. None if there is no such comment."""
    found = _TOLD.search(text)
    if found is None or "across all machines" not in found[1]:
        return None
    return "total" if "accumulation" in found[1] else "per accumulation step"


def recipe_from(
    keys: KeyReader,
    choices: dict[str, str],
    options: RecipeOptions,
    *,
    commented: Meaning | None,
    launch: LaunchSettings | None,
    group: int | None,
    used: frozenset[str] = frozenset(),
) -> Recipe:
    """The recipe of a HALOs configuration.

    Args:
        keys: the configuration. Mistakes are added to it.
        choices: Hydra's groups and their files.
        options: the command line's options.
        commented: what a comment in HALOs' files says that batch_size counts, None if there is none.
        launch: the launcher's settings, None if unknown.
        group: completions per prompt, None if unknown.
        used: keys that interpolations read.
    """
    keys.refuse_null("HALOs", "model.gradient_accumulation_steps", "model.eval_batch_size", "eval_every")
    written, accumulation = keys.whole("model.batch_size"), keys.read("model.gradient_accumulation_steps")
    meaning = _meaning(keys, options, commented, accumulation)
    keys.rules = OF_LEGACY if meaning == "legacy" else RULES
    refuse_values(keys, "HALOs")
    method, why_own = _method(keys, choices)
    keys.method = method
    fork = fork_of(keys, OF_LEGACY.has, "HALOs", used, _decided(keys, method))
    why_own = why_own or fork.why_own
    facts = _facts(keys, choices, written, accumulation, meaning, method, launch, group, fork)
    gpus = options.gpus or (launch.num_processes if launch else None)
    if gpus and meaning != "legacy" and facts.eval_batch % (divisor := facts.divisor(gpus)):
        keys.lacks(
            f"model.eval_batch_size: {facts.eval_batch} is no multiple of {divisor}, which HALOs requires at {gpus} "
            f"GPUs. Write model.eval_batch_size={nearest_multiple(facts.eval_batch, divisor)}"
        )
    per_step = written // accumulation if meaning == "total" else written
    micro = None if gpus is None else max(per_step // gpus, 1)
    draft = make_draft(keys, options, facts, gpus, micro, launch, is_own=bool(why_own))
    finish(draft, keys, _reasons(keys, fork, is_own=bool(why_own)), "planner does not know this key of HALOs")
    if why_own:
        make_own(draft, fork.method(method), why_own, has_groups=method.startswith("grpo"))
    fork.note(draft)
    return Recipe(
        source=keys.source,
        method=_shown(keys, fork.method(method)),
        unit=facts.unit,
        global_batch=facts.batch,
        accumulation=accumulation,
        gpus=gpus,
        micro=micro,
        eval_batch=facts.eval_batch,
        draft=draft,
        foreign=facts,
        is_older=facts.is_legacy,
    )


def _reasons(keys: KeyReader, fork: Fork, *, is_own: bool) -> dict[str, str]:
    """Why a job has no counterpart, for each key of which that is known."""
    every = keys.rules.reasons(keys.entries)
    if keys.value("model.use_peft") is not True:
        every["model.peft"] = "only read with model.use_peft=true"
    if is_own:
        every |= dict.fromkeys(("loss.trainer", "trainer"), "your loop takes its place")
    return {key: why for key, why in every.items() if key not in fork.loss}


def _facts(
    keys: KeyReader,
    choices: dict[str, str],
    written: int,
    accumulation: int,
    meaning: Meaning,
    method: str,
    launch: LaunchSettings | None,
    group: int | None,
    fork: Fork,
) -> HalosFacts:
    """The settings on which the verdicts depend. Notes mistakes in `keys`."""
    is_unpaired = method in _UNPAIRED or "Unpaired" in str(keys.value("loss.dataloader", ""))
    return HalosFacts(
        written=written,
        meaning=meaning,
        batch=written if meaning == "total" else written * accumulation,
        accumulation=accumulation,
        eval_batch=keys.read("model.eval_batch_size"),
        is_sharded=keys.value("use_fsdp", True) is not False,
        method=method,
        unit="completion" if is_unpaired else "example" if method in {"sft", "csft"} else "pair",
        is_unpaired=is_unpaired,
        eval_every=keys.read("eval_every"),
        n_examples=keys.whole("n_examples", 0, least=0) or None,
        n_epochs=keys.number("n_epochs", 0.0) or None,
        warmup=_warmup(keys),
        is_fsdp=launch is None or launch.kind in {"FSDP", ""},
        model_choice=choices.get("model", ""),
        clip_norm=keys.norm("model.max_grad_norm", 0.0),
        clips=keys.norm("model.max_grad_norm", 1.0) is not None,
        group=group,
        reward_model_path=keys.has("model.reward_model_path"),
        fork=fork,
    )


def _warmup(keys: KeyReader) -> str:
    """The warmup as a cadence. `warmup` is a fraction of the run, the older `warmup_steps` counts optimizer steps."""
    if keys.has("warmup_steps"):
        return f"{keys.whole('warmup_steps', 0, least=0)} steps"
    return f"{number(round(keys.number('warmup', 0.0) * 100, 6))}%"


def _meaning(keys: KeyReader, options: RecipeOptions, commented: Meaning | None, accumulation: int) -> Meaning:
    """What model.batch_size counts. It makes no difference without accumulation."""
    if keys.has("use_fsdp") and keys.has("mode"):
        for key in ("use_fsdp", "mode"):
            keys.value(key)
        return "legacy"
    asked: Meaning | None = None
    if options.halos_batch is not None:
        if options.halos_batch not in {"total", "per-accumulation"}:
            keys.wrong(f"--halos-batch {options.halos_batch[:40]}: not a meaning. Write total or per-accumulation")
        asked = "total" if options.halos_batch == "total" else "per accumulation step"
    if asked and commented and asked != commented:
        keys.wrong(
            f"--halos-batch says {asked}, but the comment above model.batch_size says {commented}. Leave one out"
        )
    if not asked and not commented and accumulation > 1:
        keys.wrong(
            "model.batch_size: HALOs changed its meaning on 2025-05-01, and the recipe does not say which one it uses. "
            "Write --halos-batch total (newer: all accumulation steps) or --halos-batch per-accumulation (older: each)"
        )
    return asked or commented or "total"


def _method(keys: KeyReader, choices: dict[str, str]) -> tuple[str, str]:
    """The method, and why it needs the user's own loop. The reason is empty if planner has the objective."""
    trainer = keys.value("loss.trainer")
    method = choices.get("loss") or _TRAINERS.get(str(trainer)) or keys.value("loss.name") or trainer
    if not method:
        keys.wrong("loss: found no method. Write loss=NAME behind the recipe, such as loss=kto")
        return "sft", ""
    method = str(method)
    if keys.value("humanline") is True:
        return method, f"{method} with humanline=true (a reference that changes during training)"
    if keys.value("loss.sync_reference") is True:
        return method, f"{method} with loss.sync_reference=true (a reference that changes during training)"
    if SHARED.get(method, method) in DATA_OF:
        return method, ""
    of = f" (loss.trainer={trainer})" if trainer else ""
    return method, _ANOTHER_LOSS.get(method, f"planner has no objective for {method}{of}")


def _shown(keys: KeyReader, method: str) -> str:
    """The method as the recipe shows it, with settings that change its loss."""
    on = [f"{key}=true" for key in ("humanline", "loss.sync_reference") if keys.value(key) is True]
    return f"{method}{', ' if ' with ' in method else ' with '}{', '.join(on)}" if on else method


def _decided(keys: KeyReader, method: str) -> dict[str, Any]:
    """Known keys whose values make another loss than the method's own, or one that HALOs does not have."""
    found = {key: keys.value(key) for key in ("loss.tokenwise_KL", "loss.length_normalization") if keys.value(key)}
    trainer, name = keys.value("loss.trainer"), keys.value("loss.name")
    is_shipped = method in _TRAINERS.values()
    if is_shipped and trainer is not None and _TRAINERS.get(str(trainer)) != method:
        found["loss.trainer"] = trainer
    if is_shipped and name not in (None, method):
        found["loss.name"] = name
    has_reference = keys.value("loss.use_reference_model")
    if method in DATA_OF and has_reference not in (None, method in _WITH_REFERENCE):
        found["loss.use_reference_model"] = has_reference
    for key in ("loss.policy_hf_model_class", "loss.reference_hf_model_class"):
        if method in DATA_OF and keys.value(key) not in (None, "AutoModelForCausalLM"):
            found[key] = keys.value(key)
    loader = keys.value("loss.dataloader")
    if loader is not None and not _LOADERS.fullmatch(str(loader)):
        keys.refuse(
            "loss.dataloader",
            "HALOs does not have it, so planner does not know its batches. Write PairedPreferenceDataLoader, "
            "UnpairedPreferenceDataLoader or SFTDataLoader behind the recipe if its batches are those of one",
        )
    return found
