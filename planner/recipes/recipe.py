"""What a foreign recipe says, as values: our job, what became of every key, and what its own system would do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from planner.recipes.split import Span

Verdict = Literal["exact", "other batch", "error"]


@dataclass(frozen=True, kw_only=True)
class BatchOutcome:
    """What a foreign system does at one GPU count."""

    gpus: int
    verdict: Verdict
    batch: int | None
    """samples that an optimizer step really uses; none if there is no step"""
    text: str = ""
    """why it is an error, in a few words"""
    dropped: tuple[Span, ...] = ()
    """half-open ranges of positions of each batch that are never computed"""
    eval_text: str = "-"
    """the evaluation batch, in a few words"""


@dataclass(frozen=True, kw_only=True)
class Trap:
    """Something that trains otherwise than it reads, in one or two sentences."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class AmbiguousUnit:
    """A number whose unit is easily taken for another."""

    key: str
    value: str
    there: str
    """what really happens with it"""
    here: str
    """what a job says for the same"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What a check is asked beside the recipe."""

    counts: Sequence[int]
    rows: int | None = None
    """rows of the training data"""
    transformers: str | None = None
    """the version that would be used"""
    group_size: int | None = None
    """completions per prompt"""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """How to say the same global batch to a foreign system at one GPU count."""

    command: str
    """what to type"""
    file: str = ""
    """what to put into a file, if the system wants one"""
    arithmetic: str = ""
    """how the batch comes about; written by `rewrite`"""
    notes: tuple[str, ...] = ()
    unsaid: tuple[str, ...] = ()
    """what that system has no word for"""


class ForeignRecipe(Protocol):
    """A recipe as its own system reads it."""

    def outcome(self, gpus: int) -> BatchOutcome:
        """What happens at a GPU count."""

    def takes(self, gpus: int, micro: int, accumulation: int) -> bool:
        """Whether the system would start with another split of the same batch."""

    def traps(self, question: CheckOptions) -> list[Trap]:
        """What the outcome alone does not show."""

    def units(self) -> list[AmbiguousUnit]:
        """Numbers in units that mislead."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """One line about a key: what it was, and what became of it."""

    key: str
    text: str


@dataclass(kw_only=True)
class Draft:
    """A job in the making, with a line for every foreign key."""

    job: dict[str, Any] = field(default_factory=dict)
    carried: list[Note] = field(default_factory=list)
    derived: list[Note] = field(default_factory=list)
    dropped: list[Note] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    """our key -> a remark beside it in the file"""

    def set(self, ours: str, value: Any) -> None:
        """Our key, dotted; sections are made."""
        *path, last = ours.split(".")
        section = self.job
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value

    def carry(self, key: str, ours: str, value: Any, shown: str) -> None:
        """The same value under our name."""
        self.set(ours, value)
        self.carried.append(Note(key=key, text=f"{ours}: {shown}"))

    def derive(self, ours: str, value: Any, how: str) -> None:
        """Another value, worked out from what stands there; `how` has the arithmetic."""
        self.set(ours, value)
        self.derived.append(Note(key=ours, text=how))

    def drop(self, key: str, why: str) -> None:
        """Nothing here stands for it."""
        self.dropped.append(Note(key=key, text=why))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A foreign recipe, read."""

    source: str
    system: str = ""
    """dpo, halos, trl, deepspeed, job or what a package adds; `read_recipe` writes it, and the title"""
    title: str = ""
    """the system's name as people write it"""
    is_older: bool = False
    """whether it is of a version of its system that planner does not write for"""
    method: str
    """sft, dpo, cdpo, ipo, simpo, kto, ppo, grpo, orpo, ..."""
    unit: str
    """what a batch counts: example, pair, completion, packed row"""
    global_batch: int
    accumulation: int
    gpus: int | None
    """the count that it was tuned for, where that is known"""
    micro: int | None
    """the most samples that one GPU was known to hold"""
    eval_batch: int | None
    draft: Draft
    foreign: ForeignRecipe | None
    """none for a job of ours"""
    script: str = ""
    """the training script or command that the recipe names"""
    config: str = ""
    """the file that the recipe's own command names"""
    config_first: bool = False
    """whether the script takes its file as its first word, without --config: the older handbook's do"""
    words: tuple[str, ...] = ()
    """overrides of the recipe's own command, as they stand there"""
    launch_file: str = ""
    """accelerate's file that it is started with, as it was named; empty if none was"""

    @property
    def precision(self) -> str:
        """The job's precision; empty if the recipe does not say it or a loop of the user's own decides it."""
        train = self.draft.job.get("train", {})
        is_own = train.get("optimizer", {}).get("kind") == "own"
        return "" if is_own else train.get("precision", "")


def product(gpus: int, micro: int, accumulation: int, batch: int) -> str:
    """`128 = 8 GPUs x 8 x 2`."""
    return (
        f"{batch} = {gpus} GPUs x {micro} x {accumulation}"
        if gpus > 1
        else f"{batch} = 1 GPU x {micro} x {accumulation}"
    )
