"""`KeyRule`, one row for each key of a training system, and `Rules`, the rows of a system.

A row says what planner knows of a key: the job's key that takes its value, its default, what it does to the batch, and
why it is dropped. The readers, the refusals, the lists of known keys and the documented table all come from the rows.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

NO_SETTING = "planner has no such setting"
"""why a key is dropped if nothing more is known of it"""
NO_WANDB = "planner's wandb tracker has no such setting"
EMPTY: tuple[Any, ...] = (0, [], {})
"""values that are as good as none, for `alters`"""
NESTED = ("section", "tree")
"""the `value` of rows that have keys below them"""
ANY = "*"
"""ends the name of a row that stands for all keys with that beginning"""


class Effect(NamedTuple):
    """What a key does to the batch, and what planner does about it."""

    planner: Literal["reads", "refuses", "says"]
    """reads computes with it, refuses takes only `plain`, says shows it in a trap or as the unit"""
    how: str
    """what it does to the batch. For `refuses` it is the second sentence of the error, with what to do"""
    plain: tuple[Any, ...] = (None,)
    """the values that change nothing, for `refuses`"""

    def takes(self, value: Any) -> bool:
        """Whether a value changes nothing. `False` is not 0, and `True` is not 1."""
        return any(value is each or (type(value) is type(each) and value == each) for each in self.plain)


class KeyRule(NamedTuple):
    """What planner knows of one key. A named tuple, because a system has hundreds and they are made at each start."""

    name: str
    """the key as the system writes it, dotted if it is in a section. `hub_*` stands for all that begin with `hub_`"""
    about: str = ""
    """what it concerns, such as `evaluation`"""
    ours: str = ""
    """the job's key that takes its value, empty if none does or if code decides it"""
    into: str = ""
    """the key of the layer below that it is another name of, such as `per_device_train_batch_size`"""
    value: Literal[
        "any", "truth", "text", "words", "scalar", "number", "real", "whole", "norm", "list", "section", "tree"
    ] = "any"
    """what the system takes. A truth may be written as `yes` or `1`, words as `none` or `007`, also several. A scalar:
    any single value. A number is at least 0, a real any number. Any: values and lists, and no keys below it. A section:
    keys below it and nothing else. A tree: keys below it, or anything else, such as the name of a file with them"""
    choices: tuple[Any, ...] = ()
    """the only values that the system takes, with None if it takes null. Empty if it takes others, too"""
    grows: bool = False
    """whether newer versions may take more texts than `choices`. Only one that resembles a choice is a mistake then"""
    least: int = 1
    """the least whole number that the system takes"""
    default: Any = None
    """the system's value if the key is missing. A mapping gives one for each method, and `""` the one of all others"""
    why: str = ""
    """why a job has no counterpart"""
    note: str = ""
    """what a note says of the key if it is missing, such as the default of each version"""
    effect: Effect | None = None
    """what it does to the batch, None if it cannot change it"""
    alters: tuple[Any, ...] | None = None
    """for a key that changes any loss, or what is trained, so that planner has no objective for it: the values with
    which it does not. None for all other keys"""
    of_loss: bool = False
    """whether it is a setting of a loss, which the user's own loop gets if no objective of planner's computes that"""
    unset: Literal["", "free", "job", "decides"] = ""
    """what a shell variable without a value means: a mistake if nothing else, nothing if `free` or dropped, a mistake
    only for a job if `job`, and a mistake although the key may be dropped if `decides`"""
    stands_alone: bool = False
    """whether a command line may have it without a value"""
    is_true: bool = False
    """whether it is true by default in a version, so that a command line may have `--no_NAME`"""
    mark: bool = False
    """whether hardly another system has the key, so that two of them name the system"""
    is_old: bool = False
    """whether newer versions of the system no longer take it"""

    def default_of(self, method: str) -> Any:
        """The default for a method."""
        return self.default.get(method, self.default.get("")) if isinstance(self.default, Mapping) else self.default


def key(name: str, **facts: Any) -> KeyRule:
    """One row."""
    return KeyRule(name=name, **facts)


def keys(names: str, **facts: Any) -> tuple[KeyRule, ...]:
    """A row with the same facts for each of these names, which are in one text."""
    return tuple(KeyRule(name=name, **facts) for name in names.split())


def about(subject: str, *rows: KeyRule | tuple[KeyRule, ...]) -> tuple[KeyRule, ...]:
    """The rows with what they concern."""
    flat = (each for part in rows for each in ((part,) if isinstance(part, KeyRule) else part))
    return tuple(each._replace(about=subject) for each in flat)


def reads(how: str) -> Effect:
    """An effect that planner computes with."""
    return Effect(planner="reads", how=how)


def says(how: str) -> Effect:
    """An effect that planner shows in a trap or as the unit."""
    return Effect(planner="says", how=how)


def refuses(how: str, *plain: Any) -> Effect:
    """An effect for which planner takes only these values of the key, or none."""
    return Effect(planner="refuses", how=how, plain=(None, *plain))


@dataclass(frozen=True)
class Rules:
    """The rows of a system, or of one section of its recipes. Iterates over them in their order."""

    rows: tuple[KeyRule, ...]
    _found: dict[str, KeyRule | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        names = Counter(row.name for row in self.rows)
        if len(names) < len(self.rows):
            twice = ", ".join(name for name, count in names.items() if count > 1)
            raise ValueError(f"several rows for {twice}")

    def __iter__(self) -> Iterator[KeyRule]:
        return iter(self.rows)

    def __or__(self, others: "Rules") -> "Rules":
        """These rows and others. A row of the others replaces one of that name."""
        theirs = {row.name for row in others}
        return Rules((*(row for row in self if row.name not in theirs), *others))

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all rows that stand for one key."""
        return frozenset(self._by_name)

    def row(self, name: str) -> KeyRule | None:
        """The row of a key: of its own name, of the longest section that has one, or of its beginning."""
        if name not in self._found:
            self._found[name] = self._row(name)
        return self._found[name]

    def of_key(self, name: str) -> KeyRule | None:
        """The row that a reader of the layer below asks for by its own name: the one renamed to it, or its own."""
        return self._renamed.get(name) or self._by_name.get(name)

    def has(self, name: str) -> bool:
        """Whether a row has exactly this name, or is of a section around it."""
        return name in self._by_name or any(name.startswith(f"{section}.") for section in self.of(value="section"))

    def exact(self, name: str) -> KeyRule | None:
        """The row with exactly this name, None if there is none."""
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> KeyRule:
        """The row with exactly this name."""
        return self._by_name[name]

    def of(self, **facts: Any) -> tuple[str, ...]:
        """The names of the rows with these facts: `rules.of(value="truth")`."""
        return tuple(row.name for row in self if all(getattr(row, name) == its for name, its in facts.items()))

    def reasons(self, written: Iterable[str]) -> dict[str, str]:
        """Why a job has no counterpart, for each key of which that is known, also for those written that `*` covers."""
        found = {row.into or row.name: row.why for row in self if row.why and not row.name.endswith(ANY)}
        for name in written:
            for beginning, row in self._beginnings:
                if row.why and name.startswith(beginning):
                    found.setdefault(name, row.why)
        return found

    @cached_property
    def _by_name(self) -> dict[str, KeyRule]:
        return {row.name: row for row in self if not row.name.endswith(ANY)}

    @cached_property
    def _renamed(self) -> dict[str, KeyRule]:
        return {row.into: row for row in reversed(self.rows) if row.into and not row.is_old}

    @cached_property
    def _beginnings(self) -> tuple[tuple[str, KeyRule], ...]:
        return tuple((row.name.removesuffix(ANY), row) for row in self if row.name.endswith(ANY))

    def _row(self, name: str) -> KeyRule | None:
        section = name
        while section:
            if section in self._by_name:
                return self._by_name[section]
            section = section.rpartition(".")[0]
        return next((row for beginning, row in self._beginnings if name.startswith(beginning)), None)


NO_RULES = Rules(())
