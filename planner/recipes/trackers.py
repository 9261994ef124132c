"""Drafts a job's section `tracking` from the trackers that a recipe names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.files.messages import cut
from planner.recipes.entries import KeyReader
from planner.recipes.recipe import Draft, Note
from planner.recipes.scalars import Unresolved, has_shell

GROUP = "planner.trackers"
NO_SUCH_TRACKER = f"planner has no tracker of that kind (entry point {GROUP})"
_KIND_OF = {"WANDB": "wandb", "MLFLOW": "mlflow", "TRACKIO": "trackio", "TENSORBOARD": "tensorboard"}
# planner takes these from the environment of the process that tracks, and writes them into no file.
_SECRETS = ("WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


def kind_of(variable: str) -> str:
    """The kind of tracker that reads an environment variable, empty if none does."""
    return _KIND_OF.get(variable.partition("_")[0], "")


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that a tracker reads, without secrets."""
    return {name: value for name, value in environment.items() if kind_of(name) and name not in _SECRETS}


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A value of a recipe, and its place."""

    key: str
    """the key or variable, for notes"""
    text: str
    why_unknown: str = ""
    default_of: str = ""
    """whose default it is, empty if the recipe itself has it"""


@dataclass(kw_only=True)
class TrackerDraft:
    """The trackers of a job in the making, with a note for each value. `close` writes them into the draft."""

    draft: Draft
    keys: KeyReader
    environment: Mapping[str, str]
    """variables that the recipe's command or `--env` sets"""
    trackers: list[dict[str, Any]] = field(default_factory=list)
    _variables: dict[str, _Given] = field(init=False)
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        given = {name: _Given(key=name, text=text) for name, text in self.environment.items() if kind_of(name)}
        # TRL's parser sets these after the shell did.
        for key, entry in self.keys.entries.items():
            name = key.removeprefix("env.")
            if name != key and kind_of(name) and self.keys.value(key) is not None:
                given[name] = _Given(key=key, text=str(entry.value))
        self._variables = given

    @property
    def kinds(self) -> list[str]:
        """The kinds of the trackers so far."""
        return [tracker["kind"] for tracker in self.trackers]

    def add(self, kind: str) -> None:
        """Begin a tracker. `take` sets its values."""
        self.trackers.append({"kind": kind})

    def has(self, name: str) -> bool:
        """Whether the recipe itself sets a key or a variable."""
        found = self._find(name)
        return found is not None and not found.default_of

    def variable(self, name: str) -> str:
        """The value of an environment variable, empty if the recipe does not set it."""
        given = self._variables.get(name)
        return given.text if given else ""

    def take(self, ours: str, *names: str, default: str = "", why: str = "") -> None:
        """Set a value of the newest tracker from the first key or variable that the recipe sets.

        Args:
            ours: the value's name in the tracker.
            names: keys and variables of the recipe, first the one that wins. Variables are in capitals.
            default: the value if the recipe sets none of them. Empty: planner's default.
            why: where the default comes from, for the note.
        """
        found = [given for name in names if (given := self._find(name)) is not None]
        self._used |= {given.key for given in found}
        for given in found[1:]:
            self.draft.drop(given.key, f"{found[0].key} replaces it")
        if not found:
            if default:
                self._set(ours, default)
                self._derive(f"{self._named(ours)} {default}: {why}")
        elif found[0].why_unknown:
            first = found[0]
            self.draft.drop(first.key, f"{cut(first.text)} ({first.why_unknown}): write {self._named(ours)} in the job")
        else:
            self._carry(ours, found[0])

    def use(self, name: str, text: str) -> None:
        """Note a key or a variable that the recipe sets as carried over, with what it became."""
        key = self._variables[name].key if name in self._variables else name
        if key not in self._used:
            self._used.add(key)
            self.draft.carried.append(Note(key=key, text=text))

    def leave(self, name: str, why: str) -> None:
        """Note a key or a variable that the recipe sets as dropped."""
        given = self._find(name)
        if given is not None and not given.default_of and given.key not in self._used:
            self._used.add(given.key)
            self.draft.drop(given.key, why)

    def say(self, text: str, *told: str) -> None:
        """Note a decision about the trackers. The text also tells of the recipe's keys `told`."""
        self._derive(text)
        self.draft.told.update(told)

    def close(self) -> None:
        """Write the trackers into the job, and note the variables that none of them took."""
        for name in self._variables:
            if name in _SECRETS:
                self.leave(name, "planner writes no secrets into a job: set it where you start the run")
            elif kind_of(name) in self.kinds:
                self.leave(name, f"planner's {kind_of(name)} tracker has no such setting")
            else:
                self.leave(name, f"only {kind_of(name)} reads it, and the job has no such tracker")
        if self.trackers:
            self.draft.set("tracking", self.trackers[0] if len(self.trackers) == 1 else self.trackers)

    def _find(self, name: str) -> _Given | None:
        if name.isupper():
            given = self._variables.get(name)
            if given is None or not has_shell(given.text):
                return given
            return _Given(key=given.key, text=given.text, why_unknown="a shell variable that is not set")
        value, entry = self.keys.value(name), self.keys.entries.get(name)
        if entry is None or entry.value is None:
            return None
        whose = entry.where if entry.is_default else ""
        if isinstance(entry.value, Unresolved):
            return _Given(key=name, text=entry.value.text, why_unknown=entry.value.why, default_of=whose)
        if isinstance(value, list | dict):
            self.keys.refuse(name, "Write a text")
            return None
        return _Given(key=name, text=str(value), default_of=whose)

    def _named(self, ours: str) -> str:
        return f"tracking.{self.trackers[-1]['kind']}.{ours}"

    def _set(self, ours: str, text: str) -> None:
        value = [tag.strip() for tag in text.split(",") if tag.strip()] if ours == "tags" else text
        self.trackers[-1][ours] = value

    def _carry(self, ours: str, given: _Given) -> None:
        if ours == "name" and given.text == self.draft.job.get("name"):
            return  # planner's default
        self._set(ours, given.text)
        if given.default_of:
            self._derive(f"{self._named(ours)} {cut(given.text)}: {given.key} of {given.default_of}")
        else:
            self.draft.carried.append(Note(key=given.key, text=f"{self._named(ours)}: {cut(given.text)}"))

    def _derive(self, text: str) -> None:
        self.draft.derived.append(Note(key="tracking", text=text))


def take_wandb_mode(made: TrackerDraft) -> None:
    """Set the newest tracker's mode from WANDB_MODE. wandb's other modes than offline send the run."""
    mode = made.variable("WANDB_MODE").lower()
    if mode in {"offline", "dryrun"}:
        made.trackers[-1]["mode"] = "offline"
        made.use("WANDB_MODE", "tracking.wandb.mode: offline")
    elif mode:
        made.use("WANDB_MODE", f"tracking.wandb.mode: online ({cut(mode)})")


def wandb_is_disabled(made: TrackerDraft) -> str:
    """The variable that turns wandb off, empty if none does."""
    if made.variable("WANDB_MODE").lower() == "disabled":
        return "WANDB_MODE"
    return "WANDB_DISABLED" if made.variable("WANDB_DISABLED").lower() in {"1", "on", "yes", "true"} else ""
