"""The commands: a table for the overview, and a group that imports a command's module only when it is called."""

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Name -> what the overview says: the first paragraph of the command's own help. The command `a-b` is the function
# `a_b` in the module `planner.cli.a_b_command`.
COMMANDS = {
    "init": "Write a commented job that runs as it is, and the schema that editors check it by.",
    "plan": "Show how the job's global batch is split at each GPU count. Starts nothing.",
    "run": "Train the job, or resume it where its run directory ends.",
    "convert": (
        "Turn a recipe of the DPO repository, HALOs, TRL or DeepSpeed into a job, or say its batch to one of those."
    ),
    "check": "Show at which GPU counts a recipe trains as written: in its own system, and here. Starts nothing.",
    "prepare": (
        "Turn text or jsonl into one token file for data.kind: tokens. The samples stay the same, at every context."
    ),
    "runs": (
        "List the runs in a folder, the one that was active last first. Reads only; damaged ones are shown as broken."
    ),
    "show": ("Show how a run stands: its state, its generations, what happened last, and what resumes it. Reads only."),
    "submit": (
        "Send the job to a Ray cluster and train it there. The same command resumes it. Ctrl-C does not stop it."
    ),
    "audit": ("Re-derive what should have been fed along the committed lineage. Exits with 1 if the run is not clean."),
    "export": "Write a commit in the Hugging Face layout: safetensors, configuration, tokenizer. Adapters: in peft's.",
    "verify": "Train the job twice, at a fixed size and through a history of sizes, and compare everything.",
    "demo": "Train on four local nodes; one gets notice, two come, one dies. Then audit the result.",
    "notice-agent": (
        "Watch AWS, Google Cloud or Azure for the notice that this machine will be taken, and drain its Ray node."
    ),
    "schema": (
        "Print the job file's JSON Schema. `planner schema > job.schema.json` puts it where a job's first line looks."
    ),
}

# What the recipe's own system would be given: its options are not ours.
_FOREIGN_OPTIONS = {"ignore_unknown_options": True, "allow_interspersed_args": True}
_SETTINGS: dict[str, dict[str, Any]] = {"convert": _FOREIGN_OPTIONS, "check": _FOREIGN_OPTIONS}


class LazyGroup(TyperGroup):
    """Holds a name and a line of help for each command. The command that is called, or completed, takes its place."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, words in COMMANDS.items():
            self.add_command(TyperCommand(name=name, help=words))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments name, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None or command is None else load(name), rest


def load(name: str) -> TyperCommand:
    """Import the module of a command, and make the command."""
    function = name.replace("-", "_")
    maker = typer.Typer(add_completion=False)
    maker.command(name, context_settings=_SETTINGS.get(name))(
        getattr(importlib.import_module(f"planner.cli.{function}_command"), function)
    )
    command = typer.main.get_command(maker)
    assert isinstance(command, TyperCommand)
    return command
