"""`Dialect`: what a system on transformers' Trainer does in its own way, such as TRL, LLaMA-Factory and axolotl."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft
from planner.recipes.row_sources import DatasetSource
from planner.recipes.trainer.batching import TrainerFacts


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a recipe trains, as its reader found out."""

    method: str
    """sft, dpo, kto, orpo, grpo, ..."""
    told_by: str
    """what names the method: a key, a script or an option"""
    loss: str
    """the method, or its loss if that is another one"""
    unit: str
    """what a batch counts: example, pair, completion, packed row"""
    why_own: str = ""
    """why no objective of planner's computes the loss, so that the job needs the user's own loop. Empty if one does"""


@dataclass(frozen=True, kw_only=True)
class NamedSets:
    """The data sets of a recipe."""

    train: list[DatasetSource] = field(default_factory=list)
    test: list[DatasetSource] = field(default_factory=list)
    """the rows that it evaluates if they are not held out of those to train on"""
    held_key: str = ""
    """the key that says how many rows are held out, empty if the recipe's script holds none out"""
    seed: int = 0
    """the seed by which the script chooses the rows of a part"""
    remark: str = ""
    """how the choice of rows differs from the script's"""
    told: frozenset[str] = frozenset()
    """the recipe's keys of which the note on the data tells"""


def no_reasons(keys: KeyReader, *, is_own: bool) -> Mapping[str, str]:  # noqa: ARG001
    """No reasons beyond those of the rows."""
    return {}


def same(keys: KeyReader, facts: TrainerFacts) -> TrainerFacts:  # noqa: ARG001
    """The facts of the Trainer, to which the system adds none."""
    return facts


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The functions that draft a job's sections in a system's own way. Each may note mistakes in the `KeyReader`.

    `job.fill` calls them in this order. All other sections are the Trainer's.
    """

    title: str
    """the system's name in messages"""
    set_model: Callable[[Draft, KeyReader], None]
    """sets `model`, its context and its adapters"""
    set_rows: Callable[[Draft, KeyReader, TrainerFacts], NamedSets]
    """sets `data`, and returns the recipe's data sets"""
    set_objective: Callable[[Draft, KeyReader, TrainerFacts], None]
    """sets `objective`, which planner computes"""
    note_loss: Callable[[Draft, KeyReader], None]
    """puts the settings of another loss into the draft, for the user's own loop"""
    set_padding: Callable[[Draft, KeyReader, TrainerFacts], None]
    """sets `batch.max_tokens`, or notes that the system pads. It is not called for the user's own loop"""
    facts: Callable[[KeyReader, TrainerFacts], TrainerFacts] = same
    """the facts with those of the system's own keys"""
    least_transformers: tuple[int, ...] = ()
    """the oldest version of transformers that it takes. Traps of older ones are not listed"""
    reasons: Callable[..., Mapping[str, str]] = no_reasons
    """why keys are dropped, beyond what the rows say. `is_own` says whether the user's own loop computes the loss"""
