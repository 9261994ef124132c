"""What planner knows of an objective without loading torch: its section of the job, and its `ObjectiveSpec`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from planner.job.section import Section

# Where the log-probabilities of the reference come from: a frozen model, a table that is computed once, or neither
# (there is no reference, or it is uniform).
ReferenceSource = Literal["model", "cached", "none"]


class Objective(Section):
    """The section `objective` of a job. Each objective has its own subclass with its settings."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class ReferenceChoice:
    """The reference model of a job."""

    source: ReferenceSource
    model: str | None
    """a folder or a name on the hub. None means the first weights of the trained model"""


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """The facts about one objective. `planner.job.objective_registry` finds it by its kind.

    Raises:
        ValueError: a fact is invalid, or two contradict each other.
    """

    config: type[Objective]
    """the class of its section. Its `kind` is `Literal["NAME"]`"""
    samples: tuple[str, ...]
    """the samples that it learns from: `texts`, `pairs`, `feedback`, or the name that a `DataSpec` has"""
    reference: Literal["none", "optional", "required"]
    """whether its loss needs the log-probabilities of a reference model. With a field `reference` in the section, the
    user chooses their source. With a field `reference_model`, they choose another model than the first weights"""
    build: str | None
    """`module:Class`. It is called with the section and, unless `reference` is none, with a
    `planner.train.reference.frozen.Reference`. None if the user's own loop computes the loss"""
    is_coupled: bool = False
    """whether the class is a `planner.train.objectives.CoupledObjective`: losses depend on the whole global batch"""
    least_batch: int = 1
    """the smallest `batch.global`"""
    least_batch_because: str = ""
    """the reason for `least_batch`, shown in an error"""
    check_rows: str | None = None
    """`module:function`. One worker calls it with the data set and its order before the first step"""
    shown: Mapping[str, str] = field(default_factory=dict)
    """the metrics that a terminal shows beside the loss, in this order -> the label of each"""

    def __post_init__(self) -> None:
        if flaw := self._flaw():
            raise ValueError(f"ObjectiveSpec of {self.config.__name__}: {flaw}")

    @property
    def kind(self) -> str:
        """The objective's name in a job file."""
        (kind,) = _values(self.config, "kind")
        return kind

    def reference_of(self, objective: Objective) -> ReferenceChoice:
        """The reference model that a section of this kind chooses."""
        default: ReferenceSource = "none" if self.reference == "none" else "model"
        fields = dict(objective)
        return ReferenceChoice(source=fields.get("reference", default), model=fields.get("reference_model"))

    def _flaw(self) -> str:
        """What is wrong with the facts. Empty if nothing is."""
        if len(_values(self.config, "kind")) != 1:
            return 'kind must be Literal["NAME"]'
        samples = cast("object", self.samples)  # a package may have no types
        if not samples or not isinstance(samples, tuple) or not all(isinstance(each, str) for each in samples):
            return f"samples must name what it learns from, such as ('pairs',), found {samples!r}"
        if wrong := [name for name in (self.build, self.check_rows) if name is not None and name.count(":") != 1]:
            return f"write module:name instead of {wrong[0]!r}"
        least, shown = cast("object", self.least_batch), cast("object", self.shown)  # a package may have no types
        if not isinstance(least, int) or least < 1:
            return f"least_batch must be a whole number from 1, found {least!r}"
        if not isinstance(shown, Mapping):
            return f"shown must map metrics to labels, found {type(shown).__name__}"
        return self._reference_flaw()

    def _reference_flaw(self) -> str:
        sources = set(_values(self.config, "reference"))
        if self.reference == "none" and {"reference", "reference_model"} & self.config.model_fields.keys():
            return "reference is none, but the section has a field for it"
        if self.reference == "optional" and "none" not in sources:
            return "reference is optional, so the section needs a field `reference` that may be none"
        if self.reference == "required" and "none" in sources:
            return "reference is required, but the section's field `reference` may be none"
        if unknown := sources - set(get_args(ReferenceSource)):
            return f"reference must be one of {', '.join(get_args(ReferenceSource))}, found {', '.join(unknown)}"
        if "cached" in sources and self.samples != ("pairs",):
            return "reference may be cached only if samples are pairs"
        return ""


def _values(config: type[Objective], name: str) -> tuple[str, ...]:
    """The values that a field may have. Empty if there is no such field, or its type is not a Literal."""
    found = config.model_fields.get(name)
    return get_args(found.annotation) if found else ()
