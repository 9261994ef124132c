"""The job's section `tracking`: where the run's curves are sent. Each kind is one service or file format.

The kinds are planner's own, and those of installed packages (the entry points `planner.trackers`, each of which names
a `TrackerSpec`).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator

from planner.errors import TrackerUnavailable
from planner.job.kind_registry import KindField, KindRegistry
from planner.job.section import Section


class Tracking(Section):
    """One tracker in the section `tracking` of a job. Each kind has its own subclass with its settings."""

    kind: str


class WandbTracking(Tracking):
    """Weights & Biases."""

    kind: Literal["wandb"] = Field(default="wandb", description="Weights & Biases")
    project: str = Field(default="", description="project of the run. Empty: the name of the job")
    entity: str = Field(default="", description="user or team. Empty: the default of your account")
    group: str = Field(default="", description="group of the run")
    name: str = Field(default="", description="name of the run that is shown. Empty: the name of the job")
    tags: tuple[str, ...] = Field(default=(), strict=False, description="tags of the run")
    mode: Literal["online", "offline"] = Field(
        default="online",
        description="offline: write files in the run's folder, for `wandb sync`. WANDB_MODE replaces online",
    )


class TensorboardTracking(Tracking):
    """TensorBoard's event files."""

    kind: Literal["tensorboard"] = Field(default="tensorboard", description="TensorBoard's event files")
    folder: str = Field(default="", description="each run has a folder in it. Empty: `tensorboard` in the run's folder")


class MlflowTracking(Tracking):
    """MLflow."""

    kind: Literal["mlflow"] = Field(default="mlflow", description="MLflow")
    uri: str = Field(default="", description="tracking URI. Empty: the variable MLFLOW_TRACKING_URI")
    experiment: str = Field(default="", description="experiment of the run. Empty: the name of the job")
    name: str = Field(default="", description="name of the run that is shown. Empty: the name of the job")

    @field_validator("uri")
    @classmethod
    def _has_no_password(cls, uri: str) -> str:
        if urlsplit(uri).password:
            raise ValueError(
                "it has a password, and the run's folder keeps the job. Set the variable MLFLOW_TRACKING_URI instead"
            )
        return uri


class TrackioTracking(Tracking):
    """trackio."""

    kind: Literal["trackio"] = Field(default="trackio", description="trackio")
    project: str = Field(default="", description="project of the run. Empty: the name of the job")
    name: str = Field(default="", description="name of the run that is shown. Empty: the name of the job")
    space: str = Field(default="", description="Hugging Face Space to send to. Empty: a local database")


class JsonlTracking(Tracking):
    """A file with one JSON object per step."""

    kind: Literal["jsonl"] = Field(default="jsonl", description="a file with one JSON object per step")
    path: str = Field(default="", description="path of the file. Empty: `tracking.jsonl` in the run's folder")


@dataclass(frozen=True, kw_only=True)
class TrackerSpec:
    """The facts about one kind of tracker.

    Raises:
        ValueError: a fact is invalid.
    """

    config: type[Tracking]
    """the class of its section. Its `kind` is `Literal["NAME"]`"""
    open: str
    """`module:function`. It is called with the section and a `planner.tracking.tracker.TrackedRun`, and returns a
    `planner.tracking.tracker.Tracker`"""
    check: str = ""
    """`module:function`, or empty. It is called with the section and the URL of the run's folder before a run starts.
    It raises a PlannerError if a setting is missing, and asks no server"""
    package: str = ""
    """the import name of the library that it needs. Empty if it needs none"""
    extra: str = ""
    """the extra of planner that installs the library. Empty if there is none"""

    def __post_init__(self) -> None:
        if len(self._kinds()) != 1:
            raise ValueError(f'TrackerSpec of {self.config.__name__}: kind must be Literal["NAME"]')
        for name in (self.open, *([self.check] if self.check else [])):
            if not isinstance(cast("object", name), str) or name.count(":") != 1:
                raise ValueError(f"TrackerSpec of {self.config.__name__}: write module:name instead of {name!r}")

    @property
    def kind(self) -> str:
        """The tracker's name in a job file."""
        (kind,) = self._kinds()
        return kind

    def _kinds(self) -> tuple[str, ...]:
        return get_args(self.config.model_fields["kind"].annotation)


def _ours(config: type[Tracking], module: str, *, package: str = "", check: str = "") -> TrackerSpec:
    return TrackerSpec(
        config=config,
        open=f"{module}:open_tracker",
        check=check and f"{module}:{check}",
        package=package,
        extra=package,
    )


TRACKERS = KindRegistry(
    what="tracker",
    group="planner.trackers",
    ours={
        spec.kind: spec
        for spec in (
            _ours(WandbTracking, "planner.tracking.wandb", package="wandb"),
            _ours(TensorboardTracking, "planner.tracking.tensorboard", package="tensorboard", check="check"),
            _ours(MlflowTracking, "planner.tracking.mlflow", package="mlflow", check="check"),
            _ours(TrackioTracking, "planner.tracking.trackio", package="trackio"),
            _ours(JsonlTracking, "planner.tracking.jsonl", check="check"),
        )
    },
    spec=TrackerSpec,
    unavailable=TrackerUnavailable,
)
"""every kind of tracker. Its methods raise `TrackerUnavailable`"""


def _as_list(value: Any) -> Any:
    """`wandb`, `{kind: wandb}` or a list of them."""
    values = value if isinstance(value, list | tuple) else [value]
    return tuple({"kind": each} if isinstance(each, str) else each for each in values)


Trackers = Annotated[tuple[Annotated[Tracking, KindField(TRACKERS)], ...], BeforeValidator(_as_list)]
