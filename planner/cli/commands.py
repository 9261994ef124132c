"""The table of commands, and a group that imports a command's module only when the command is called."""

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Name -> the first paragraph of the command's own help. The command `a-b` is the function `a_b` in the module
# `planner.cli.a_b_command`.
COMMANDS = {
    "init": "Write a commented job file that runs as it is, and the JSON Schema for editors.",
    "plan": "Show how the job's global batch is split at each GPU count. Starts nothing.",
    "run": "Train the job, or resume its run from the newest commit.",
    "convert": ("Make a job from a recipe of TRL, DeepSpeed or another system, or another system's settings (--to)."),
    "check": (
        "Show at which GPU counts a recipe trains its exact batch, in its own system and with planner. Starts nothing."
    ),
    "prepare": "Turn text or jsonl into one token file for data.kind: tokens. The file serves every context.",
    "runs": "List the runs in a folder, the last active run first. Damaged runs are shown as broken. Changes nothing.",
    "show": (
        "Show how a run stands: its state, generations, last events and the command that resumes it. Changes nothing."
    ),
    "watch": ("Watch a run on a live board: workers, loss, events and the next decision. q ends it. Changes nothing."),
    "submit": (
        "Send the job to a Ray cluster and train it there. The same command resumes it. Ctrl-C does not stop it."
    ),
    "report": "Write one static HTML page about a run, or about several compared. It needs no network and no server.",
    "audit": "Check that each step of a run used exactly its samples and no record was altered. Exits with 1 if not.",
    "track": (
        "Send the steps that a run's trackers lack: after a server was down, or to one that its job does not name."
    ),
    "fit": "Fit seconds per step to what a run has measured, and write a rates file for `planner plan --rates`.",
    "export": (
        "Write a commit in the Hugging Face layout (safetensors, configuration, tokenizer), or adapters in peft's."
    ),
    "verify": "Train the job twice, at one world size and through several, and compare the two runs.",
    "demo": ("Train on four local nodes: one gets a preemption notice, two join, one is killed. Then audit the run."),
    "notice-agent": "Watch the cloud for a preemption notice for this machine, and drain its Ray node.",
    "probe": "Measure the storage at PATH, the network between nodes, and copies to and from GPUs.",
    "simulate": (
        "Play the job through a trace of spot nodes, with planner's own decisions and with others. Starts nothing."
    ),
    "schema": "Print the JSON Schema of the job file, with which editors complete and check job files.",
}

# The panels of the overview, and the commands in each.
PANELS = {
    "Start": ("init", "plan", "run", "demo"),
    "Look at a run": ("runs", "show", "watch", "report", "audit", "fit", "track", "export"),
    "Recipes of other systems": ("check", "convert"),
    "On a cluster": ("probe", "simulate", "submit", "notice-agent"),
    "Prepare and verify": ("prepare", "verify", "schema"),
}

# `convert` and `check` also take the options of the recipe's own system.
_FOREIGN_OPTIONS = {"ignore_unknown_options": True, "allow_interspersed_args": True}
_SETTINGS: dict[str, dict[str, Any]] = {"convert": _FOREIGN_OPTIONS, "check": _FOREIGN_OPTIONS}

# What a command keeps when Ctrl-C or SIGTERM ends it.
_UNCHANGED = "It changed nothing"
_KEPT = {
    "demo": "What is committed stays",
    "run": "What is committed stays, and the same command goes on from there",
    "submit": "If it said that the job was sent, the job goes on",
    "watch": "",
    "verify": "Nothing was compared, and its temporary runs are removed",
    "prepare": "No partial file remains",
    "export": "The folder appears only when it is complete",
    "probe": "Files of the probe are removed, unless the line above names them",
    "track": "What was sent stays. The same command goes on from there",
    "report": "The page is written last",
    "fit": "The file is written last",
    "init": "The file is written last",
    "convert": "The file is written last",
}


def _without_bool(parameters: list[Any]) -> list[Any]:
    """The parameters of a command. A flag takes no value, so its help shows no `<bool>` behind it."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class UnknownCommand(Exception):
    """The first word of the command line is no command. It is the only argument of the exception."""


class PlainCommand(TyperCommand):
    """A command whose help shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` included."""
        return _without_bool(super().get_params(ctx))


class LazyGroup(TyperGroup):
    """Holds the name and the help of each command. It imports the one that is called or completed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, names in PANELS.items():
            for name in names:
                self.add_command(TyperCommand(name=name, help=COMMANDS[name], rich_help_panel=panel))

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` included."""
        return _without_bool(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Call the command. If it is interrupted, say what is kept. typer then exits with 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if text := _interrupted_text(ctx.invoked_subcommand or "planner"):
                typer.echo(f"planner: {text}", err=True)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Import the command that the arguments name, and return its name, the command and the other arguments.

        Raises:
            UnknownCommand: there is no such command.
        """
        if args and args[0] not in COMMANDS and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise UnknownCommand(args[0])
        name, command, rest = super().resolve_command(ctx, args)
        return name, None if name is None or command is None else load(name), rest


def load(name: str) -> TyperCommand:
    """Import a command's module, and return the command."""
    function = name.replace("-", "_")
    maker = typer.Typer(add_completion=False)
    maker.command(name, cls=PlainCommand, context_settings=_SETTINGS.get(name))(
        getattr(importlib.import_module(f"planner.cli.{function}_command"), function)
    )
    command = typer.main.get_command(maker)
    assert isinstance(command, TyperCommand)
    return command


def _interrupted_text(command: str) -> str:
    """One line about a command that was interrupted before it could say more itself. May be empty."""
    kept = _KEPT.get(command, _UNCHANGED)
    return f"{command} was interrupted. {kept}" if kept else ""
