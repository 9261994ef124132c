"""The generated part of docs/reference/recipe-keys.md: every key of other systems that planner knows, by its row."""

from planner.recipes.rule import KeyRule, Rules
from planner.recipes.system import System
from planner.recipes.systems import READ, reader
from planner.recipes.trainer import keys, launch_keys

_SECTIONS = {
    "accelerator_config": keys.ACCELERATOR_CONFIG,
    "accelerator_config.gradient_accumulation_kwargs": keys.GRADIENT_ACCUMULATION,
    "parallelism_config": keys.PARALLELISM_CONFIG,
    "fsdp_config": keys.FSDP_PLUGIN,
    "deepspeed": keys.DEEPSPEED,
    "model_init_kwargs": keys.MODEL_INIT_KWARGS,
    "accelerate launch, torchrun and deepspeed": launch_keys.ACCELERATE_LAUNCH,
    "environment variables": launch_keys.VARIABLES,
}


def recipe_keys() -> list[str]:
    """A section for each system, the Trainer's first, which has the keys that the others share with it."""
    trainer = reader("trainer")
    lines = [*_system(trainer, Rules(())), *_sections()]
    for system in READ:
        if system.rules.rows and system.name != trainer.name:
            lines += _system(system, trainer.rules)
    return lines


def _system(system: System, shared: Rules) -> list[str]:
    own = [row for row in system.rules if shared.exact(row.name) != row and row not in shared.rows]
    title = system.title[0].upper() + system.title[1:]
    return [f"## {title}", "", f"{len(own)} rows, of {system.versions}.", "", *_subjects(own)]


def _sections() -> list[str]:
    lines: list[str] = []
    for name, rules in _SECTIONS.items():
        said = [row for row in rules if row.effect]
        lines += [f"### {name}", "", *_table(said), *_others([row for row in rules if not row.effect])]
    return lines


def _subjects(rows: list[KeyRule]) -> list[str]:
    lines: list[str] = []
    for subject in dict.fromkeys(row.about for row in rows):
        of_it = [row for row in rows if row.about == subject]
        said = [row for row in of_it if _becomes(row)]
        others = [row for row in of_it if row not in said]
        lines += [f"### {subject[0].upper()}{subject[1:]}", "", *_table(said), *_others(others)]
    return lines


def _table(rows: list[KeyRule]) -> list[str]:
    if not rows:
        return []
    lines = ["| key | default | what becomes of it |", "| --- | --- | --- |"]
    return [*lines, *(f"| `{row.name}` | {_default(row)} | {_becomes(row)} |" for row in rows), ""]


def _others(rows: list[KeyRule]) -> list[str]:
    """The keys of which there is nothing more to say than that they are known."""
    return [f"Also known: {', '.join(f'`{row.name}`' for row in rows)}.", ""] if rows else []


def _default(row: KeyRule) -> str:
    if isinstance(row.default, dict):
        return ", ".join(f"{its} ({method or 'else'})" for method, its in row.default.items())
    return "" if row.default is None else str(row.default)


def _becomes(row: KeyRule) -> str:
    """The job's key, the key below it, its effect on the batch, and why it is dropped. Empty if nothing is known."""
    parts = [f"`{row.ours}`"] if row.ours else []
    parts += [f"read as `{row.into}`"] if row.into and not row.ours else []
    parts += [f"{row.effect.planner}: {row.effect.how}"] if row.effect else []
    parts += [row.why] if row.why else []
    parts += ["with it, your own loop computes the loss"] if row.alters is not None else []
    return ". ".join(parts).replace("|", "\\|").replace("<", "\\<")
