"""Parquet and Arrow files of a stranger: Ray Data's pickles in them never run, in a worker or anywhere else."""

import json
import os
import pickle
import subprocess
import sys

import pyarrow as pa
import pytest
from events import EVENT_S
from pyarrow import parquet

from planner.data.arrow_types import require_plain
from planner.data.rows import read_rows
from planner.errors import DataError

PICKLED = {"ARROW:extension:name": "ray.data.arrow_pickled_object", "ARROW:extension:metadata": ""}

# As in a worker: Ray Train brings Ray Data, which registers its types. Prints how each place was refused, or what it
# held; and at the end what the first one holds without our look at its columns.
READ = """
import os, sys
import ray.data
from planner.data import rows, tables
from planner.errors import DataError

marker, *places = sys.argv[1:]
for place in places:
    try:
        print("ROWS", list(rows.read_rows(place, None)))
    except DataError as error:
        print("REFUSED", error)
print("RAN" if os.path.exists(marker) else "DID NOT RUN")
tables.require_plain = lambda *_: None
list(rows.read_rows(places[0], None))
print("RAN" if os.path.exists(marker) else "DID NOT RUN")
"""


class Call:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


def field(name="text", kind=None):
    return pa.field(name, kind or pa.large_binary(), metadata=PICKLED if kind is None else None)


def tables(marker):
    """The pickle as a column, and within columns of other kinds."""
    evil = pickle.dumps(Call(marker))
    inner = field("x")
    return {
        "plain": (field(), [evil]),
        "list": (field("text", pa.list_(inner)), [[evil]]),
        "struct": (field("text", pa.struct([inner])), [{"x": evil}]),
        "deep": (field("text", pa.list_(pa.struct([pa.field("y", pa.list_(inner))]))), [[{"y": [evil]}]]),
    }


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "ran"


@pytest.fixture
def places(tmp_path, marker):
    """A parquet file for each, and a data set folder that says of itself that it holds bytes."""
    from datasets import Dataset

    for name, (column, values) in tables(marker).items():
        table = pa.table([pa.array(values, column.type)], schema=pa.schema([column]))
        parquet.write_table(table, tmp_path / f"{name}.parquet")
    Dataset.from_dict({"text": ["x"]}).save_to_disk(tmp_path / "folder")
    features = {"text": {"dtype": "large_binary", "_type": "Value"}}
    schema = pa.schema([field()], metadata={"huggingface": json.dumps({"info": {"features": features}})})
    [file] = (tmp_path / "folder").glob("*.arrow")
    with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(pa.table([pa.array([pickle.dumps(Call(marker))], pa.large_binary())], schema=schema))
    (tmp_path / "folder" / "dataset_info.json").write_text(json.dumps({"features": features}))
    return [*sorted(tmp_path.glob("*.parquet")), tmp_path / "folder"]


@pytest.mark.process
def test_a_parquet_file_runs_no_code_in_a_worker(places, marker):
    """All files with a pickle are refused by the column. Without the check of columns, the pickle runs."""
    places.sort(key=lambda place: place.name != "plain.parquet")
    command = [sys.executable, "-c", READ, *map(str, (marker, *places))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=EVENT_S, check=True).stdout.splitlines()
    *answers, guarded, unguarded = found
    assert len(answers) == len(places)
    assert all(answer.startswith("REFUSED data.path: ") for answer in answers), answers
    assert sum("the column 'text' is of the type ray.data.arrow_pickled_object" in answer for answer in answers) >= 4
    assert (guarded, unguarded) == ("DID NOT RUN", "RAN")


def test_the_driver_refuses_it_too(places):
    """In a process that has not registered the type: before anything is started, with the same message."""
    for place in places:
        if place.suffix == ".parquet":
            with pytest.raises(DataError, match=r"the column 'text' is of the type ray\.data\.arrow_pickled_object"):
                list(read_rows(str(place), None))


class Foreign(pa.ExtensionType):
    def __init__(self, name="somebody.else"):
        super().__init__(pa.binary(), name)

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage, _serialized):
        return cls()


FOREIGN = Foreign()  # held: pyarrow itself does not


@pytest.mark.parametrize(
    "kind",
    [
        FOREIGN,
        pa.list_(FOREIGN),
        pa.struct([("x", FOREIGN)]),
        pa.map_(pa.string(), FOREIGN),
        pa.large_list(FOREIGN),
        pa.list_(FOREIGN, 2),
    ],
    ids=str,
)
def test_a_type_in_python_is_found_wherever_it_is(kind):
    with pytest.raises(DataError, match=r"column 'a' is of the type somebody\.else"):
        require_plain(pa.schema([pa.field("a", kind)]), "here")


def test_what_the_libraries_of_data_sets_write_is_read():
    """Types of datasets and pandas, Arrow's types, and everything without a foreign type."""
    kinds = [pa.string(), pa.list_(pa.int32()), pa.dictionary(pa.int8(), pa.string()), pa.uuid(), pa.json_()]
    kinds += [pa.struct([("role", pa.string())]), Foreign("datasets.features.features.Array2DExtensionType")]
    require_plain(pa.schema([pa.field(str(i), kind) for i, kind in enumerate(kinds)]), "here")
