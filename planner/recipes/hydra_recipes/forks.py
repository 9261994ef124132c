"""Keys that a system does not have: they are of a fork of it, and may decide its loss or its batch."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from planner.files.messages import cut
from planner.recipes.drafting import plain
from planner.recipes.entries import COMMAND_LINE, Entry, KeyReader
from planner.recipes.hydra.grammar import Override
from planner.recipes.recipe import Draft, Trap
from planner.recipes.scalars import Unresolved

# Names that speak of a batch. planner does not guess what an unknown one of them does.
_OF_BATCH = re.compile(r"batch|accum|micro_?(?:step|size)|world_size|num_(?:gpus|processes|replicas|workers_per)")
_MOST_SHOWN = 8
# Keys whose defaults change a training most.
_DECISIVE = (
    *("lr", "gradient_accumulation_steps", "model.gradient_accumulation_steps", "n_epochs", "warmup_steps", "warmup"),
    *("optimizer", "max_length", "model.max_length", "max_prompt_length"),
)


@dataclass(frozen=True, kw_only=True)
class Fork:
    """What a recipe has that its system does not have. Values are texts."""

    of: str
    """the system, for messages"""
    loss: Mapping[str, str] = field(default_factory=dict)
    """what decides the loss: unknown keys with `loss` in their name, and known ones with an unknown value"""
    others: Mapping[str, str] = field(default_factory=dict)
    """all other unknown keys, such as `noise_rate`"""
    said: frozenset[str] = frozenset()
    """the keys of both that the command line sets"""
    blind: str = ""
    """values of the system that stand in for those of a fork whose configuration is not there, such as `lr=5e-7`"""

    def method(self, method: str) -> str:
        """The method as a recipe shows it: `dpo with loss.mode_loss=DrDPO`."""
        loss = {key: value for key, value in self.loss.items() if key != "loss.name"}
        decisive = {**loss, **{key: value for key, value in self.others.items() if key in self.said}}
        return f"{method} with {_listed(decisive)}" if decisive else method

    @property
    def why_own(self) -> str:
        """Why the user's own loop computes the loss, empty if planner's objective does."""
        return f"{_listed(self.loss)}: not a loss of {self.of} that planner knows" if self.loss else ""

    def note(self, draft: Draft) -> None:
        """Adds what the user must see to."""
        if self.others:
            draft.ask(
                f"{_listed(self.others)}: not of {self.of}, so this is a fork or another version of it. planner does "
                "not know what this changes. If it changes the loss or the data, see to it in a loop of your own or in "
                "your rows",
                of_model=any(key.startswith("model.") for key in self.others),
            )

        if self.blind:
            draft.ask(
                f"the fork's configuration is not beside the command, so these values are those of {self.of}, and the "
                f"fork's may differ: {self.blind}. Run planner in the checkout of the fork, or convert its folder"
            )

    def trap(self) -> Trap | None:
        """That planner reads the recipe of a fork, for `planner check`."""
        every = {**self.loss, **self.others}
        if not every:
            return None
        text = (
            f"{_listed(every)}: not of {self.of} as planner knows it. planner counts batches as {self.of} does, and a "
            "fork may count otherwise. "
        ) + (f"Its configuration is not there: {self.blind} are of {self.of}." if self.blind else "")
        return Trap(name="a fork", text=text.strip())


def _listed(values: Mapping[str, str]) -> str:
    shown = [f"{cut(key)}={value}" for key, value in list(values.items())[:_MOST_SHOWN]]
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
        (loss if "loss" in key.lower() else others)[key] = _shown(entry)
        if entry.where == COMMAND_LINE:
            said.add(key)
        if _OF_BATCH.search(key.lower()) and not keys.mistakes:
            keys.wrong(
                f"{key}: found {_shown(entry)}, but {of} has no such key, so planner does not know whether it changes "
                f"the batch. If it does not, write ~{key} behind the recipe"
            )
    blind = _blind(keys) if loss or others else ""
    return Fork(of=of, loss=loss, others=others, said=frozenset(said), blind=blind)


def _blind(keys: KeyReader) -> str:
    """The defaults that decide a training. A batch that only a default gives is a mistake: a fork may differ."""
    for key in ("batch_size", "model.batch_size"):
        if key in keys.entries and keys.entries[key].is_default and not keys.mistakes:
            keys.wrong(
                f"{key}: found none, and this command is of a fork, whose default planner does not know. Run planner "
                f"in the checkout of the fork, or write {key}=N"
            )
    entries = ((key, keys.entries[key]) for key in _DECISIVE if key in keys.entries)
    return ", ".join(f"{key}={_shown(its)}" for key, its in entries if its.is_default and its.value is not None)


def _shown(entry: Entry) -> str:
    return plain(entry.value.text if isinstance(entry.value, Unresolved) else entry.value)


def _has_near(key: str, known: Sequence[str]) -> bool:
    """Whether a section has a key of nearly this name, so that the key may be mistyped."""
    section, _, last = key.rpartition(".")
    names = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    return bool(get_close_matches(last, names, cutoff=0.75))


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
    far = [key for key in unknown if not _has_near(key, known)]
    below = [key for key in far if re.fullmatch(r"loss\.[\w.]+", key)]
    return far if below or is_fork else []
