"""The values of a recipe: the draft of a job, a note for every key, and the interface to what its own system does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from planner.files.messages import cut
from planner.recipes.split import Span

Verdict = Literal["exact", "other batch", "error"]


@dataclass(frozen=True, kw_only=True)
class BatchOutcome:
    """What the recipe's system does at one GPU count."""

    gpus: int
    verdict: Verdict
    batch: int | None
    """samples that an optimizer step uses, None if there is no step"""
    text: str = ""
    """the error, short enough for a table cell"""
    is_raised: bool = True
    """whether the system's code raises the error, whose name then begins the text (`ValueError: ...`)"""
    dropped: tuple[Span, ...] = ()
    """half-open ranges of positions in each batch that are never computed"""
    eval_text: str = "-"
    """the evaluation batch, short enough for a table cell"""


@dataclass(frozen=True, kw_only=True)
class Trap:
    """A difference between what a recipe seems to train and what its system trains, in a few sentences."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class AmbiguousUnit:
    """A number whose unit is easily mistaken."""

    key: str
    value: str
    there: str
    """what the recipe's system does with it"""
    here: str
    """the same value in a planner job"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of `planner check` beside the recipe."""

    counts: Sequence[int]
    """the GPU counts to check"""
    rows: int | None = None
    """rows of the training data"""
    transformers: str | None = None
    """the version of transformers that would train"""
    group_size: int | None = None
    """completions per prompt"""


@dataclass(frozen=True, kw_only=True)
class ToDo:
    """What the user must do, or must know."""

    text: str
    commands: tuple[str, ...] = ()
    """shell commands that the text speaks of"""
    is_of_model: bool = False
    """whether `convert --to` another system shows it, too: the model to make ready, or which rows train"""

    def __str__(self) -> str:
        """The text, and each command on a line of its own."""
        return "\n".join([self.text, *self.commands])


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """The command that trains the same global batch in another system at one GPU count."""

    command: str
    """what to type"""
    file: str = ""
    """the text of a file that the command needs, empty if it needs none"""
    arithmetic: str = ""
    """the factors of the batch, filled in by `rewrite`"""
    notes: tuple[str, ...] = ()
    unsaid: tuple[ToDo, ...] = ()
    """values that the system's options cannot express"""


class ForeignRecipe(Protocol):
    """What the recipe's own system does with it. Each system has a class with these methods."""

    def outcome(self, gpus: int) -> BatchOutcome:
        """What the system does at a GPU count."""

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:
        """Whether the system would start with another split of the same batch."""

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes do not show."""

    def units(self) -> list[AmbiguousUnit]:
        """The numbers whose units are easily mistaken."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """One line of a list of `planner convert`: a key, and what became of it."""

    key: str
    text: str
    is_trained: bool = False
    """whether it changes what trains, so that `convert --to` another system names it, too"""


@dataclass(kw_only=True)
class Draft:
    """A job in the making, with a note for every key of the recipe."""

    job: dict[str, Any] = field(default_factory=dict)
    carried: list[Note] = field(default_factory=list)
    derived: list[Note] = field(default_factory=list)
    dropped: list[Note] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    """the recipe's keys of which a note on another key tells"""
    to_do: list[ToDo] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    """job key -> a comment beside it in the job file"""
    padding: str = ""
    """how the recipe's system pads, as a sentence, if `batch.max_tokens` of the job avoids that. Else empty"""

    def set(self, ours: str, value: Any) -> None:
        """Set a dotted key of the job, without a note. Missing sections are created."""
        *path, last = ours.split(".")
        section = self.job
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value

    def carry(self, key: str, ours: str, value: Any, shown: str) -> None:
        """Set the job's key `ours` to the value of the recipe's `key`, and note it. `shown` is the value as text."""
        self.set(ours, value)
        self.carried.append(Note(key=key, text=f"{ours}: {shown}"))

    def derive(self, ours: str, value: Any, how: str, *told: str) -> None:
        """Set the job's key `ours` to a derived value, and note it.

        `how` has the key, the value and the reason. It also tells of the recipe's keys `told`.
        """
        self.set(ours, value)
        self.told.update(told)
        self.derived.append(Note(key=ours, text=how))

    def ask(self, text: str, *commands: str, of_model: bool = False, at: int | None = None) -> None:
        """Add what the user must do. `at` is its place in the list, by default the end."""
        made = ToDo(text=text, commands=commands, is_of_model=of_model)
        self.to_do.insert(len(self.to_do) if at is None else at, made)

    def drop(self, key: str, why: str, *, is_trained: bool = False) -> None:
        """Note a key of the recipe that has no counterpart in the job, with the reason."""
        self.dropped.append(Note(key=key, text=why, is_trained=is_trained))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe that planner has read."""

    source: str
    """where the recipe is, for messages"""
    system: str = ""
    """dpo, halos, trl, deepspeed, job or a name that a package adds. `read_recipe` fills in system and title"""
    title: str = ""
    """the system's name in messages"""
    is_older: bool = False
    """whether it is of an older version of its system, for which planner writes no options"""
    method: str
    """sft, dpo, cdpo, ipo, simpo, kto, ppo, grpo, orpo, ..."""
    unit: str
    """what a batch counts: example, pair, completion, packed row"""
    global_batch: int
    accumulation: int
    gpus: int | None
    """the GPU count that it was tuned for, None if unknown"""
    micro: int | None
    """the largest micro-batch that one GPU is known to hold, None if unknown"""
    eval_batch: int | None
    draft: Draft
    foreign: ForeignRecipe | None
    """what its system does with it, None for a planner job"""
    script: str = ""
    """the training script or command that the recipe names"""
    script_path: str = ""
    """that script with its folder, as the recipe's command has it"""
    config: str = ""
    """the file that the recipe's own command names"""
    config_first: bool = False
    """whether the file is the script's first argument, without --config, as in the older alignment-handbook"""
    arguments: tuple[str, ...] = ()
    """overrides of the recipe's own command, as written"""
    launch_file: str = ""
    """the accelerate file that the recipe names, empty if none"""
    environment: Mapping[str, str] = field(default_factory=dict)
    """variables of trackers that the recipe's command sets"""
    repeats: tuple[str, ...] = ()
    """a text for each key that a file of the recipe has twice. Its system takes the last one"""
    open_arguments: tuple[str, ...] = ()
    """arguments of the recipe's own command in shell variables that are not set"""

    def traps(self, options: CheckOptions) -> list[Trap]:
        """What the outcomes of `foreign` do not show, what planner could not read, and keys that a file has twice."""
        assert self.foreign is not None
        made = [Trap(name="a key twice", text=f"{each}.") for each in self.repeats]
        if self.open_arguments:
            text = (
                f"{cut(', '.join(self.open_arguments), 120)} is not set, so planner does not know these arguments. If "
                "they set the batch, it is another one. --env NAME=VALUE sets a variable."
            )
            made.append(Trap(name="not read", text=text))
        made += self.foreign.traps(options)
        if padding := self.draft.padding:
            text = f"{padding[0].upper()}{padding[1:]}. batch.max_tokens of a job avoids that."
            made.append(Trap(name="padding", text=text))
        return made

    @property
    def precision(self) -> str:
        """The job's precision. Empty if the recipe does not set it or the user's own loop decides it."""
        train = self.draft.job.get("train", {})
        is_own = train.get("optimizer", {}).get("kind") == "own"
        return "" if is_own else train.get("precision", "")


def product(gpus: int, micro: int, accumulation: int, batch: int) -> str:
    """The factors of a batch as text: `128 = 8 GPUs x 8 x 2`."""
    return (
        f"{batch} = {gpus} GPUs x {micro} x {accumulation}"
        if gpus > 1
        else f"{batch} = 1 GPU x {micro} x {accumulation}"
    )
