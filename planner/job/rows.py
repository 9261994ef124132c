"""Rows of data sets in the section `data` of a job: one data set or a mixture, and what all kinds of rows have."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from planner.job.data import Data
from planner.job.section import Section

_PATH = (
    "JSON array, jsonl or parquet files (a file or a glob), a data set folder, or a data set on the Hugging Face hub"
)
_SPLIT = (
    "split of a data set, or of rows that name their split. Of a data set on the hub also a part, such as "
    "train[:10%]. null means the only split, or train"
)
# Of the sets of a mixture. SmolLM3's has 25.
_MOST_SETS = 1000


def _as_mapping(value: Any) -> Any:
    """A list of column names as a mapping of each name to itself."""
    is_list = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return {name: name for name in value} if is_list else value


def _as_sets(value: Any) -> Any:
    """The sets of a mixture, of which a text stands for its path."""
    return (
        tuple({"path": each} if isinstance(each, str) else each for each in value) if isinstance(value, list) else value
    )


_Text = Annotated[str, Field(min_length=1)]
Config = Annotated[_Text | None, Field(description="configuration of a data set on the hub")]
Split = Annotated[_Text | None, Field(description=_SPLIT)]
Revision = Annotated[_Text | None, Field(description="branch, tag or commit of a data set on the hub. null means main")]
Columns = Annotated[
    Annotated[
        dict[_Text, _Text],
        Field(min_length=1),
        BeforeValidator(_as_mapping, json_schema_input_type=list[str] | dict[str, str]),
    ]
    | None,
    Field(
        description="the columns to use: a list of names, or planner's names with those in the data, such as "
        "{messages: conversation}. null means all"
    ),
]
"""planner's name of a column -> its name in the data"""


LoaderName = Literal[
    "dpo/hh",
    "dpo/shp",
    "dpo/se",
    "halos/hh",
    "halos/hh_helpful",
    "halos/hh_harmless",
    "halos/shp",
    "halos/oasst",
    "halos/ultrabin",
    "halos/ultrafeedback_armorm",
    "halos/ultrachat",
    "halos/s1k_11",
    "halos/safe_rlhf",
    "halos/alpacaeval",
    "halos/tulu_v25",
]
"""the data sets that the DPO repository and HALOs load by name, and their rules for the rows"""
Loader = Annotated[
    LoaderName | None,
    Field(
        description="whose rules make samples of the rows: those of the DPO repository or HALOs for a data set that "
        "they name. null means planner's own"
    ),
]
Folder = Annotated[_Text | None, Field(description="folder within a data set on the hub (`data_dir`)")]


class RowSource(Section):
    """Rows of one data set."""

    path: str = Field(min_length=1, description=_PATH)
    config: Config = None
    folder: Folder = None
    split: Split = None
    revision: Revision = None
    columns: Columns = None
    loader: Loader = None

    @property
    def name(self) -> str:
        """The set as text: its path, configuration, folder and split."""
        return " ".join(filter(None, (self.path, self.config, self.folder, self.split)))


class MixtureSet(RowSource):
    """One data set of a mixture. Set at most one of `weight`, `fraction` and `rows`. Without them, it has all rows."""

    weight: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        description="share of this set in the mixture, relative to the weights of the other sets. An epoch is as long "
        "as possible without repeating a row. Set it for all sets or for none",
    )
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="part of the set's rows that an epoch uses, rounded down. 2 means each row twice",
    )
    rows: int | None = Field(
        default=None, ge=1, le=2**40, description="rows of the set that an epoch uses. More than it has repeats rows"
    )

    @model_validator(mode="after")
    def _one_share(self) -> Self:
        found = [name for name in ("weight", "fraction", "rows") if getattr(self, name) is not None]
        if len(found) > 1:
            raise ValueError(f"found {' and '.join(found)}. Write at most one of weight, fraction and rows")
        return self


class Rows(Section):
    """Where rows are: one data set, or a mixture of several."""

    path: str = Field(default="", description=f"{_PATH}. Write this or mixture")
    config: Config = None
    folder: Folder = None
    split: Split = None
    revision: Revision = None
    columns: Columns = None
    loader: Loader = None
    mixture: Annotated[
        tuple[MixtureSet, ...], Field(strict=False, max_length=_MOST_SETS), BeforeValidator(_as_sets)
    ] = Field(default=(), description="several data sets as one. Write this or path")
    seed: int = Field(
        default=0,
        ge=0,
        lt=2**32,
        description="seed of the choice of rows, for sets of which an epoch uses a part",
    )

    @model_validator(mode="after")
    def _path_or_mixture(self) -> Self:
        if self.path and self.mixture:
            raise ValueError("found path and mixture. Write one of them")
        if not self.path and not self.mixture:
            raise ValueError("found no path and no mixture. Write one of them")
        return self

    @model_validator(mode="after")
    def _sets_say_their_own(self) -> Self:
        if not self.mixture:
            return self
        found = [name for name in RowSource.model_fields if name != "path" and getattr(self, name) is not None]
        if found:
            raise ValueError(f"{found[0]} belongs to a set of the mixture. Write it there")
        weighted = sum(each.weight is not None for each in self.mixture)
        if 0 < weighted < len(self.mixture):
            raise ValueError(
                f"{weighted} of {len(self.mixture)} sets of the mixture have a weight, which is relative to the "
                "others. Write a weight for all sets or for none"
            )
        return self

    @property
    def sets(self) -> tuple[MixtureSet, ...]:
        """The data sets: those of the mixture, or the one at `path`."""
        if self.mixture:
            return self.mixture
        named = {name: getattr(self, name) for name in RowSource.model_fields}
        return (MixtureSet(**named),)

    def with_sets(self, sets: tuple[MixtureSet, ...]) -> Self:
        """A copy with these data sets in the place of `sets`."""
        if self.mixture:
            return self.model_copy(update={"mixture": sets})
        return self.model_copy(update={name: getattr(sets[0], name) for name in RowSource.model_fields})


class RowsData(Rows, Data):
    """The keys that all data of prompts and completions has. A kind of data of rows is a subclass."""

    kind: str

    max_prompt: int | None = Field(
        default=None,
        ge=1,
        le=2**22,
        description="tokens to keep of a prompt if prompt and completion together exceed model.context. null means all",
    )
    cut_prompt: Literal["start", "end"] = Field(
        default="start", description="which end of a prompt loses tokens when it is cut to max_prompt"
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        default="refuse",
        description="refuse stops the run if a row cannot be used. skip leaves such rows out and counts them",
    )
    tokenize: Literal["ahead", "on_demand"] = Field(
        default="ahead",
        description="when rows are tokenized: ahead means all of them before the first step, on_demand each one when a "
        "step needs it, for data that would take too long",
    )

    @model_validator(mode="after")
    def _rows_are_known(self) -> Self:
        if self.tokenize == "on_demand" and (loader := next(filter(None, (each.loader for each in self.sets)), None)):
            raise ValueError(
                f"the loader {loader} makes samples of all rows together, and tokenize: on_demand one by one. Write "
                "tokenize: ahead"
            )
        if self.tokenize == "on_demand" and self.bad_rows == "skip":
            raise ValueError(
                "tokenize: on_demand must know the number of samples before it reads them, so it cannot leave out bad "
                "rows. Write bad_rows: refuse, or tokenize: ahead"
            )
        return self
