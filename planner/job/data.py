"""What planner knows of a kind of data without reading any: its section of the job, and its `DataSpec`."""

from dataclasses import dataclass
from typing import cast, get_args

from planner.job.model import Model
from planner.job.section import Section


class Data(Section):
    """The section `data` of a job. Each kind of data has its own subclass with its settings."""

    kind: str
    path: str

    def flaw_with(self, model: Model) -> str:
        """Why a model cannot read data with these settings, as a sentence with the correction. Empty if it can."""
        del model
        return ""

    def sample_tokens(self, model: Model) -> int | None:
        """Tokens of each sample, where all have the same number: windows of a text, and packed rows. Else None."""
        del model
        return None

    @property
    def packing_setting(self) -> str:
        """The setting that puts several documents into one row, with attention within each. Empty if rows have one."""
        return ""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The facts about one kind of data. `planner.job.data_registry` finds it by its kind.

    Raises:
        ValueError: a fact is invalid.
    """

    config: type[Data]
    """the class of its section. Its `kind` is `Literal["NAME"]`"""
    samples: str
    """what its samples are: `texts`, `pairs`, `feedback` or a name of yours. An objective names those it learns from"""
    open: str
    """`module:function`. It is called with the section, the section `model` and a `planner.data.base.Progress`, and
    returns a `planner.data.base.SampleDataset`. It raises a `DataError`"""
    make_batch: str | None
    """`module:function` of (data set, rows, position of the first row in the order) that returns a
    `planner.train.batches.MicroBatch`: a ghost without rows. None if the user's own loop makes batches"""
    models: tuple[str, ...] = ("gpt", "hf")
    """the values of `model.kind` that read it"""
    has_partners: bool = False
    """whether each sample needs the next sample of its global batch as a partner (the last one needs the first). Then
    `make_batch` gets `partners=`: one row for each row"""
    where: str = "Write a file, a folder or a glob"
    """what to write as `data.path`, for the error if there is nothing"""

    def __post_init__(self) -> None:
        if flaw := self._flaw():
            raise ValueError(f"DataSpec of {getattr(self.config, '__name__', self.config)}: {flaw}")

    @property
    def kind(self) -> str:
        """Its name in a job file."""
        (kind,) = get_args(self.config.model_fields["kind"].annotation)
        return str(kind)

    def _flaw(self) -> str:
        """What is wrong with the facts. Empty if nothing is."""
        config = cast("object", self.config)  # a package may have no types
        if not isinstance(config, type) or not issubclass(config, Data):
            return f"config must be a class of planner.job.Data, found {config!r}"
        if len(get_args(self.config.model_fields["kind"].annotation)) != 1:
            return 'kind must be Literal["NAME"]'
        if not self.samples:
            return "samples is empty. Write texts, pairs, feedback or a name of yours"
        if wrong := [name for name in (self.open, self.make_batch) if name is not None and name.count(":") != 1]:
            return f"write module:name instead of {wrong[0]!r}"
        return ""
