"""Keys that a system does not have: they are of a fork of it, and may decide its loss or its batch."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from planner.recipes.drafting import plain
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader
from planner.recipes.hydra_grammar import Override
from planner.recipes.recipe import Draft, Trap
from planner.recipes.scalars import Unresolved

# Names that speak of a batch. planner does not guess what an unknown one of them does.
_OF_BATCH = re.compile(r"batch|accum|micro_?(?:step|size)|world_size|num_(?:gpus|processes|replicas|workers_per)")
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Fork:
    """What a recipe has that its system does not have. Values are texts."""

    of: str
    """the system, for messages"""
    loss: Mapping[str, str] = field(default_factory=dict)
    """what decides the loss: unknown keys below `loss.`, and known ones with an unknown value"""
    others: Mapping[str, str] = field(default_factory=dict)
    """all other unknown keys, such as `noise_rate`"""
    said: frozenset[str] = frozenset()
    """the keys of both that the command line sets"""

    def method(self, method: str) -> str:
        """The method as a recipe shows it: `dpo with loss.mode_loss=DrDPO`."""
        shown = [f"{key}={value}" for key, value in self._decisive().items()]
        return f"{method} with {', '.join(shown)}" if shown else method

    def _decisive(self) -> dict[str, str]:
        return {**self.loss, **{key: value for key, value in self.others.items() if key in self.said}}

    @property
    def why_own(self) -> str:
        """Why the user's own loop computes the loss, empty if planner's objective does."""
        return f"{self.of} does not have {_listed(self.loss)}, so planner does not know this loss" if self.loss else ""

    def note(self, draft: Draft) -> None:
        """Adds what the user must see to."""
        if self.others:
            draft.to_do.append(
                f"{_listed(self.others)}: not of {self.of}, so this is a fork or another version of it, and planner does "
                "not know what this changes. If it changes the loss or the data, see to it in a loop of your own or in "
                "your rows"
            )

    def trap(self) -> Trap | None:
        """That planner reads the recipe of a fork, for `planner check`."""
        every = {**self.loss, **self.others}
        if not every:
            return None
        text = (
            f"{self.of} does not have {_listed(every)}. planner counts batches as {self.of} does, and a fork may count "
            "otherwise."
        )
        return Trap(name="a fork", text=f"{text[0].upper()}{text[1:]}")


def _listed(values: Mapping[str, str]) -> str:
    shown = [f"{key}={value}" for key, value in list(values.items())[:_MOST_SHOWN]]
    left = len(values) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def fork_of(
    keys: KeyReader, is_known: Callable[[str], bool], of: str, used: frozenset[str], decided: Mapping[str, Any]
) -> Fork:
    """What a recipe has that its system does not have.

    Args:
        keys: the recipe. An unknown key whose name speaks of batches is added to its mistakes.
        is_known: whether the system has a key.
        of: the system, for messages.
        used: keys that an interpolation reads, whose values count where they are read.
        decided: known keys with values that planner does not know, which decide the loss.
    """
    loss = {key: plain(value) for key, value in decided.items()}
    others: dict[str, str] = {}
    said = {key for key in decided if keys.where(key) == COMMAND_LINE}
    for key, entry in keys.written():
        if entry.value is None or entry.value == {} or is_known(key) or key in used:
            continue
        keys.value(key)  # read, so that it is not listed as dropped
        (loss if key.startswith("loss.") else others)[key] = _shown(entry)
        if entry.where == COMMAND_LINE:
            said.add(key)
        if _OF_BATCH.search(key.lower()) and not keys.mistakes:
            keys.wrong(
                f"{key}: found {_shown(entry)}, but {of} has no such key, so planner does not know whether it changes "
                f"the batch. If it does not, write ~{key} behind the recipe"
            )
    return Fork(of=of, loss=loss, others=others, said=frozenset(said))


def _shown(entry: Entry) -> str:
    return plain(entry.value.text if isinstance(entry.value, Unresolved) else entry.value)


def text_or_value(keys: KeyReader, name: str) -> Any:
    """The value of a key, or its text if it contains a variable."""
    value = keys.value(name)
    found = keys.entries[name].value
    return found.text if isinstance(found, Unresolved) else value


def new_keys(overrides: Sequence[Override], base: Mapping[str, Entry], *, is_fork: bool) -> list[str]:
    """The keys of a command without a checkout that only a fork has, so that they need no `+` there.

    Below `loss.` an unknown key is a fork's unless a known key is near. Other unknown keys are if there is more to
    show that the command is of a fork: such a key, or `is_fork`.
    """
    known = list(base)
    unknown = [
        its.key
        for its in overrides
        if not its.sign and its.key not in base and not any(key.startswith(f"{its.key}.") for key in known)
    ]
    far = [key for key in unknown if not get_close_matches(key, known, cutoff=0.75)]
    below = [key for key in far if re.fullmatch(r"loss\.[\w.]+", key)]
    return far if below or is_fork else []
