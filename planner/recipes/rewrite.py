"""A recipe at a GPU count -> what to type into a foreign system for exactly the same batch, or why that cannot be."""

import shlex
from collections.abc import Callable
from pathlib import PurePath

from planner.base.disk import is_file
from planner.errors import NotExact
from planner.job import Job
from planner.recipes import accelerate, deepspeed, dpo, halos, torchtitan, trl
from planner.recipes.halos_runs import HalosFacts
from planner.recipes.job_text import job_of
from planner.recipes.launcher import SHIPPED_BY_TRL, beside
from planner.recipes.recipe import Recipe, Rewrite, product
from planner.recipes.say_hydra import to_dpo, to_halos
from planner.recipes.say_trl import to_trl
from planner.recipes.saying import Saying
from planner.recipes.split import accumulation_for, nearest_counts, nearest_multiple, percent
from planner.recipes.texts import mapping_of, text_of
from planner.recipes.trl_runs import TrlFacts

TARGETS = ("dpo", "halos", "trl", "accelerate", "deepspeed", "torchtitan")
_TITLES = {
    "dpo": dpo.TITLE,
    "halos": halos.TITLE,
    "trl": trl.TITLE,
    "accelerate": "accelerate",
    "deepspeed": deepspeed.TITLE,
    "torchtitan": torchtitan.TITLE,
}
# What each can train; the last three say nothing of a loss.
_METHODS = {
    "dpo": ("sft", "dpo", "ipo"),
    "halos": ("sft", "dpo", "ipo", "simpo", "kto"),
    "trl": ("sft", "dpo", "ipo", "kto", "simpo"),
    "torchtitan": ("lm", "sft"),
}
_BATCH_KEYS = (
    "batch_size",
    "eval_batch_size",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "trainer",
)
_SAY: dict[str, Callable[[Saying], None]] = {
    "dpo": to_dpo,
    "halos": to_halos,
    "trl": to_trl,
    "torchtitan": torchtitan.say,
}


def rewrite(recipe: Recipe, target: str, gpus: int) -> Rewrite:
    """How `target` trains exactly this batch on so many GPUs.

    Of all splits B = W x A x m, the one with the fewest accumulation steps whose micro-batch m one GPU was known to
    hold, and m of at least 2 for KTO: accumulation costs a full gradient under FSDP, and time everywhere.

    Raises:
        NotExact: there is no such split; the message names the nearest counts and the nearest batch.
    """
    job = job_of(recipe)[0] if needs_job(recipe, target) else None
    if job is not None and not job.is_own and job.objective.kind not in _METHODS.get(target, (job.objective.kind,)):
        raise NotExact(
            f"{_TITLES[target]} has no {job.objective.kind}: it trains {', '.join(_METHODS[target])}; planner run "
            "keeps "
            "it exact here"
        )
    accumulation = _accumulation(recipe, gpus)
    if accumulation is None:
        raise NotExact(_refusal(recipe, target, gpus))
    micro = recipe.global_batch // gpus // accumulation
    command, file, notes = _written(recipe, target, gpus, micro, accumulation)
    unsaid: list[str] = []
    if job is not None:
        words, unsaid = _said(recipe, job, target)
        command = _with(recipe, target, gpus, micro, accumulation, words) if target in _SAY else command
    unsaid += _launcher_unsaid(recipe, target)
    return Rewrite(
        command=command,
        file=file,
        arithmetic=product(gpus, micro, accumulation, recipe.global_batch),
        notes=tuple(notes),
        unsaid=tuple(unsaid),
    )


def needs_job(recipe: Recipe, target: str) -> bool:
    """Whether more than batch sizes must be said: another system does not know the rest of the recipe."""
    return recipe.foreign is None or (target in _SAY and not _is_its_own(recipe, target))


def _is_its_own(recipe: Recipe, target: str) -> bool:
    """Whether the target system reads this recipe. planner writes for HALOs, which does not read its branch legacy."""
    is_legacy = isinstance(recipe.foreign, HalosFacts) and recipe.foreign.is_legacy
    return recipe.system == target and not is_legacy


def _said(recipe: Recipe, job: Job, target: str) -> tuple[list[str], list[str]]:
    """The job in the target's options, and the list of values that those options cannot say."""
    saying = Saying(job=job)
    saying.write("batch.global")
    if target in {"accelerate", "deepspeed"}:
        saying.write("" if job.is_own else "train.precision")
        saying.close("YOUR_SCRIPT must say it: this file has no word for it")
        return saying.words, saying.unsaid
    if job.is_own:
        saying.remark("model, data, loss and length: only the batch is said here")
        saying.unsaid += recipe.draft.to_do
    else:
        _SAY[target](saying)
        # Weights to begin with, or a chat template, that lie in no key of the job yet.
        saying.unsaid += [text for text in recipe.draft.to_do if text.startswith("model.")]
    saying.close(f"no option of {_TITLES[target]} says it")
    return saying.words, saying.unsaid


def _launcher_unsaid(recipe: Recipe, target: str) -> list[str]:
    if target != "trl" or _launch_file(recipe):
        return []
    named = f"{recipe.launch_file} does not lie here" if recipe.launch_file else "the recipe names no accelerate file"
    text = f"the launcher: {named}, and {PurePath(trl.SHIPPED_FILE).name} stands for it"
    return [f"{text}; write your own there, or give it as --accelerate FILE"]


def _accumulation(recipe: Recipe, gpus: int) -> int | None:
    least = 2 if recipe.method.startswith("kto") else 1
    kept = recipe.accumulation
    share = recipe.global_batch // gpus
    if recipe.micro is None and not recipe.global_batch % (gpus * kept) and share // kept >= least:
        return kept

    def is_possible(micro: int, steps: int) -> bool:
        return micro >= least and (
            not isinstance(recipe.foreign, TrlFacts | HalosFacts) or recipe.foreign.takes(gpus, micro, steps)
        )

    return accumulation_for(recipe.global_batch, gpus, recipe.micro, is_possible)


def _refusal(recipe: Recipe, target: str, gpus: int) -> str:
    batch = recipe.global_batch
    below, above = nearest_counts(gpus, lambda count: _accumulation(recipe, count) is not None, batch)
    run = f"planner run {recipe.source}"
    if recipe.foreign:
        run = "convert it without --to, and planner run the job"
    counts = " or ".join(f"{count}" for count in (below, above) if count)
    nearest = nearest_multiple(batch, gpus)
    where = f"{counts} GPU{'' if counts == '1' else 's'}" if counts else "nowhere"
    rest = f"{batch} % {gpus} = {batch % gpus}" if batch % gpus else "what is left to a GPU is too little or too much"
    return (
        f"{_TITLES[target]} cannot train a batch of {batch} on {gpus} GPUs: its micro-batches are equal, and {rest}. "
        f"Exact there: {where}; nearest batch at {gpus}: {nearest} ({percent(nearest, batch):+.1f}%). "
        f"Here it is exact: {run}"
    )


def _written(recipe: Recipe, target: str, gpus: int, micro: int, steps: int) -> tuple[str, str, list[str]]:
    """Command, file and remarks that say the batch alone."""
    notes: list[str] = []
    if target == "accelerate":
        launcher = f"accelerate launch --config_file accelerate.yaml --num_processes {gpus} YOUR_SCRIPT"
        return launcher, *_accelerate_file(recipe, gpus, micro, steps)
    if target == "deepspeed":
        command = f"deepspeed --num_gpus {gpus} YOUR_SCRIPT --deepspeed ds_config.json"
        return command, *_deepspeed_file(recipe, gpus, micro, steps)
    if target in {"dpo", "halos"}:
        unit = gpus if target == "dpo" else gpus * steps
        if recipe.eval_batch and recipe.eval_batch % unit:
            notes.append(
                f"eval_batch_size {nearest_multiple(recipe.eval_batch, unit)} in place of {recipe.eval_batch}, which "
                f"{unit} does not divide; training is the same"
            )
    if target == "halos" and steps > 1:
        notes.append(f"no_sync: with {steps} accumulation steps each GPU holds a whole gradient")
    if target == "halos":
        notes.append(
            "for HALOs of 2025-05-01 or newer; --config_file: any of accelerate_config/, the count is overridden"
        )
    if target == "trl":
        notes += _launch_notes(recipe, gpus, steps)
    if target == "torchtitan":
        context = recipe.draft.job.get("model", {}).get("context")
        notes.append(torchtitan.version_note(micro, recipe.global_batch, context))
    if recipe.micro and micro < recipe.micro:
        notes.append(f"the micro-batch is {micro} in place of {recipe.micro}")
    return _with(recipe, target, gpus, micro, steps, _same(recipe, target)), "", notes


def _launch_file(recipe: Recipe) -> str:
    """The user's own accelerate file, or one that TRL ships, which its command names without a path."""
    if recipe.system != "trl" and not _local_launch(recipe):
        return ""
    name = recipe.launch_file
    return f"trl/accelerate_configs/{name}.yaml" if name in SHIPPED_BY_TRL else name


def _local_launch(recipe: Recipe) -> str:
    """Where the accelerate file lies on this machine, if it does."""
    path = beside(recipe.source, recipe.launch_file) if recipe.launch_file else ""
    return path if path and is_file(path) else ""


def _accelerate_file(recipe: Recipe, gpus: int, micro: int, steps: int) -> tuple[str, list[str]]:
    """The user's own with the counts changed, or one of ours; and what else must hold."""
    must = f"the script must use micro-batches of {micro}"
    if not (path := _local_launch(recipe)):
        return accelerate.file_text(gpus, steps, precision=_precision(recipe)), [must, *_guessed_precision(recipe)]
    is_in_file = accelerate.read_launch(path).accumulation is not None
    notes = [must if is_in_file else f"{must}, and {steps} accumulation steps, which {path} does not say"]
    return accelerate.with_counts(text_of(path), gpus, steps), [*notes, *_machines(path, gpus)]


def _deepspeed_file(recipe: Recipe, gpus: int, micro: int, steps: int) -> tuple[str, list[str]]:
    """The user's file with the three batch numbers replaced, or a new file; and what else must hold."""
    must = "the script must not set other batch sizes"
    if recipe.system == "deepspeed":
        return deepspeed.with_sizes(mapping_of(text_of(recipe.source), recipe.source), gpus, micro, steps), [must]
    text = deepspeed.file_text(gpus, micro, steps, precision=_precision(recipe))
    return text, [must, *_guessed_precision(recipe)]


def _precision(recipe: Recipe) -> str:
    """The job's precision; empty if the recipe does not say it or a loop of the user's own decides it."""
    train = recipe.draft.job.get("train", {})
    is_own = train.get("optimizer", {}).get("kind") == "own"
    return "" if is_own else train.get("precision", "")


def _guessed_precision(recipe: Recipe) -> list[str]:
    return [] if _precision(recipe) else ["mixed precision in the file is bf16: write your own if it is another"]


def _launch_notes(recipe: Recipe, gpus: int, steps: int) -> list[str]:
    """What the launcher's file says that the command line does not beat."""
    if not (path := _local_launch(recipe)):
        return []
    said = accelerate.read_launch(path).accumulation
    notes = [] if said in {None, steps} else [f"gradient_accumulation_steps is {said} in {path}: write {steps} there"]
    return [*notes, *_machines(path, gpus)]


def _machines(path: str, gpus: int) -> list[str]:
    """What to do with a launch file for several machines. Its `--num_processes` counts all of them together."""
    machines = accelerate.read_launch(path).machines
    if gpus % machines:
        return [f"num_machines is {machines} in {path}, which does not divide {gpus}"]
    each = f"start the command on each of them (--machine_rank), with {gpus // machines} GPUs there"
    return [f"num_machines is {machines} in {path}: {each}; for one machine write 1"] if machines > 1 else []


def _same(recipe: Recipe, target: str) -> list[str]:
    """In its own system the recipe's own words stay, but for those that say batches."""
    if not _is_its_own(recipe, target):
        return []
    if not recipe.words:
        return [] if target == "trl" else ["..."]
    kept, skips = [], False
    for word in recipe.words:
        key = word.partition("=")[0].lstrip("+-").rpartition(".")[2]
        is_value = skips and not word.startswith("-")
        skips = key in _BATCH_KEYS and word.startswith("--") and "=" not in word
        if key not in _BATCH_KEYS and not is_value:
            kept.append(word if "$" in word else shlex.quote(word))
    return kept


def _with(recipe: Recipe, target: str, gpus: int, micro: int, steps: int, extra: list[str]) -> str:
    batch = recipe.global_batch
    if target == "torchtitan":
        return torchtitan.command(gpus, micro, batch, extra)
    if target == "trl":
        is_yaml = recipe.system == "trl" and PurePath(recipe.source).suffix in {".yaml", ".yml"}
        config = recipe.config or (recipe.source if is_yaml else "")
        method = {"ipo": "dpo", "cdpo": "dpo", "simpo": "cpo"}.get(recipe.method, recipe.method)
        return trl.command(
            gpus,
            micro,
            steps,
            script=recipe.script,
            config=config,
            config_first=recipe.config_first,
            method=method,
            launch_file=_launch_file(recipe),
            extra=extra,
        )
    unit = gpus if target == "dpo" else gpus * steps
    evaluated = nearest_multiple(recipe.eval_batch or batch, unit)
    write = dpo.command if target == "dpo" else halos.command
    return write(gpus, batch, steps, evaluated, extra)
