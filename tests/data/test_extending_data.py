"""A reader of row files from another package: the example of docs/extending.md, as it stands there."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from byte_models import gpt
from rows_of import job_data, prompt_and_completion

from planner.data import row_files, sample_cache
from planner.data.open import open_dataset
from planner.errors import DataError, PlannerError

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"
SECTION = DOCUMENT.read_text().partition("\n## A data format\n")[2].partition("\n## ")[0]
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL))
ROWS = [
    {"prompt": "2 + 2 =", "chosen": "4", "rejected": "5"},
    {"prompt": 'Say "hi"\non two lines.', "chosen": "hi\nhi", "rejected": "hi hi"},
]


def install(folder, name, entry_points):
    """A distribution as pip would leave it."""
    information = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [line for group, found in entry_points.items() for line in (f"[{group}]", *map(" = ".join, found.items()))]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, empty."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    row_files._packages.cache_clear()
    yield folder
    sys.modules.pop("planner_csv", None)
    row_files._packages.cache_clear()


@pytest.fixture
def example(site):
    """The package of the document, installed. Its module."""
    project = tomllib.loads(BLOCKS["toml"])["project"]
    install(site, project["name"], project["entry-points"])
    module = site / "planner_csv.py"
    module.write_text(BLOCKS["python"])
    return module


def csv_file(folder, text=BLOCKS["csv"]):
    path = folder / "pairs.csv"
    path.write_bytes(text.encode())
    return path


def opened(path, **settings):
    return open_dataset(job_data("pairs", path, **settings), gpt(100))


@pytest.mark.usefixtures("example")
def test_a_package_can_add_a_form_of_file(tmp_path):
    """The samples of the document's CSV are those of the same rows as JSON lines."""
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    here, there = opened(csv_file(tmp_path)), opened(tmp_path / "pairs.jsonl")
    assert here.num_rows == len(ROWS)
    assert here.fingerprint == there.fingerprint
    assert [here.evidence(row) for row in range(2)] == [there.evidence(row) for row in range(2)]
    assert prompt_and_completion(here.sample(1).rejected) == (b'\0Say "hi"\non two lines.', b"hi hi\0")


@pytest.mark.usefixtures("example")
def test_its_rows_are_refused_by_their_place(tmp_path):
    """Too many cells, too few, and what the reader itself raises."""
    path = csv_file(tmp_path, "\ufeffprompt,chosen,rejected\na,b,c\nd,e\nf,g,h,i\n")
    with pytest.raises(DataError, match="2 of 3 rows cannot be used") as caught:
        opened(path)
    assert f"{path}:3: the keys chosen, prompt" in str(caught.value)
    assert f"{path}:4: more cells than the first line has" in str(caught.value)
    assert opened(path, bad_rows="skip").num_rows == 1
    path.write_bytes(b"prompt,chosen,rejected\n\xff,b,c\n")
    with pytest.raises(DataError, match=r"data.path: cannot read .*pairs\.csv: 'utf-8' codec"):
        opened(path)


@pytest.mark.usefixtures("example")
def test_what_planner_reads_includes_the_files_of_packages(tmp_path):
    (tmp_path / "pairs.tsv").write_text("prompt\tchosen\n")
    with pytest.raises(DataError, match=r"is a TSV file, and planner reads .*, \.csv files and folders"):
        opened(tmp_path / "pairs.tsv")


@pytest.mark.usefixtures("site")
def test_without_the_package_the_file_is_refused_with_what_planner_reads(tmp_path):
    reads = "JSON lines, JSON arrays, parquet files and folders of `save_to_disk`"
    with pytest.raises(DataError, match=rf"pairs.csv is a CSV file, and planner reads {reads}\. Convert it"):
        opened(csv_file(tmp_path))


def test_other_files_do_not_import_it(example, tmp_path):
    """A broken package affects only jobs with its files. They get one error with its name."""
    example.write_text("raise OSError('broken')\n")
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert opened(tmp_path / "pairs.jsonl").num_rows == 2
    with pytest.raises(PlannerError, match=r"csv of planner-csv 0\.1\.0 cannot be used \(OSError: broken\)"):
        opened(csv_file(tmp_path))


def test_a_package_cannot_take_planners_file_endings(site, tmp_path):
    """The run would train on other rows without notice."""
    (site / "planner_lines.py").write_text("def rows(file): ...")
    install(site, "planner-lines", {"planner.row_files": {"jsonl": "planner_lines:rows"}})
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.raises(PlannerError, match=r"jsonl of planner-lines .*planner reads such files itself"):
        opened(tmp_path / "pairs.jsonl")


@pytest.mark.parametrize(
    "code",
    [
        "rows = 3",
        "def rows(file):\n    yield 3",
        "def rows(file):\n    return 3",
        "def rows(file):\n    raise SystemExit(0)\n    yield",
        "def rows(file):\n    yield 'a place', {}, 'start', ''",
        "def rows(file):\n    yield 'a place', {}, 0, None",
    ],
)
def test_an_invalid_reader_is_refused(code, example, tmp_path):
    """By the package's name or the file's. Never with a traceback."""
    example.write_text(code)
    with pytest.raises(PlannerError, match="csv"):
        opened(csv_file(tmp_path))


def test_kept_rows_are_made_again_by_other_code(example, tmp_path, monkeypatch):
    """Tokenized rows stay on disk, and may not outlive the reader that made them."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    path = csv_file(tmp_path)
    first = opened(path)
    assert opened(path).fingerprint == first.fingerprint
    example.write_text(BLOCKS["python"].replace("yield RawRow", "if table.line_num == 2: yield RawRow"))
    del sys.modules["planner_csv"]
    assert (first.num_rows, opened(path).num_rows) == (2, 1)
