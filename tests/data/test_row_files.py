"""The files that rows come in: lines, arrays, parquet, data set folders, and which of their splits."""

import json

import pytest
from byte_models import gpt
from rows_of import all_parts, assistant, job_data, opened, user

from planner.data.open import open_dataset
from planner.data.paths import source_stamps
from planner.errors import DataError

ROWS = [{"prompt": f"{n}", "chosen": "yes", "rejected": "no", "note": None} for n in range(5)]
FOUND = [(f"\0{n}".encode(), b"yes\0", b"no\0") for n in range(5)]


def read(path, **settings):
    return open_dataset(job_data("pairs", path, **settings), gpt(100))


def parquet(rows, path):
    import pyarrow as pa
    from pyarrow import parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def folder_of(rows, path, **splits):
    from datasets import Dataset, DatasetDict

    made = DatasetDict({name: Dataset.from_list(part) for name, part in splits.items()}) if splits else None
    (made or Dataset.from_list(rows)).save_to_disk(str(path))
    return path


def test_every_file_format_has_the_same_samples(tmp_path):
    """By what a file begins with, whatever it is called: so their fingerprints are equal, too."""
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "lines").write_text(lines)
    (tmp_path / "mark.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.replace("\n", "\r\n\n").encode())
    (tmp_path / "array.jsonl").write_text("\n " + json.dumps(ROWS, indent=1))
    parquet(ROWS, tmp_path / "rows.parquet")
    folder_of(ROWS, tmp_path / "folder")
    names = ("lines", "mark.jsonl", "array.jsonl", "rows.parquet", "folder")
    datasets = [read(tmp_path / name) for name in names]
    assert [all_parts(dataset) for dataset in datasets] == [FOUND] * len(names)
    assert len({dataset.fingerprint for dataset in datasets}) == 1


def test_rows_run_on_over_the_files_of_a_glob(tmp_path):
    """In the order of names, and of any format."""
    parquet(ROWS[2:4], tmp_path / "b.rows")
    (tmp_path / "a.rows").write_text(json.dumps(ROWS[:2]))
    (tmp_path / "c.rows").write_text(json.dumps(ROWS[4]))
    assert all_parts(read(tmp_path / "*.rows")) == FOUND


def test_messages_in_columns_are_messages(tmp_path):
    """Arrow gives every message the keys of all messages. Keys that are null count as missing."""
    rows = [
        {"messages": [user("a") | {"name": "me"}, assistant("b")]},
        {"messages": [user("c"), assistant("d")]},
    ]
    parquet(rows, tmp_path / "rows.parquet")
    folder_of(rows, tmp_path / "folder")
    found = [open_dataset(job_data("chat", tmp_path / name), gpt(100)) for name in ("rows.parquet", "folder")]
    assert all_parts(found[0]) == all_parts(found[1]) == all_parts(opened("chat", rows, tmp_path))


def test_bad_rows_of_tables_have_numbers(tmp_path):
    """From 0, as the library counts them, with the file or the split."""
    rows = [*ROWS[:2], {"prompt": "x", "chosen": "same", "rejected": "same", "note": None}]
    parquet(rows, tmp_path / "rows.parquet")
    folder_of([], tmp_path / "folder", train=rows, test=ROWS)
    with pytest.raises(DataError, match=r"rows.parquet, row 2: chosen and rejected are the same"):
        read(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"folder/train, row 2: chosen and rejected are the same"):
        read(tmp_path / "folder")


def test_a_folder_with_splits_is_read_by_split(tmp_path):
    """train, or the one that the job names, or the only one. Else an error with those there are."""
    folder_of([], tmp_path / "two", train=ROWS[:3], test=ROWS[3:])
    folder_of([], tmp_path / "one", test_prefs=ROWS)
    folder_of([], tmp_path / "none", a=ROWS, b=ROWS)
    assert all_parts(read(tmp_path / "two")) == FOUND[:3]
    assert all_parts(read(tmp_path / "two", split="test")) == FOUND[3:]
    assert all_parts(read(tmp_path / "one")) == FOUND
    with pytest.raises(DataError, match=r"data.split: no 'train' at .*\. Write one of a, b$"):
        read(tmp_path / "none")
    with pytest.raises(DataError, match=r"data.split: no 'eval' at .*\. Write one of test, train$"):
        read(tmp_path / "two", split="eval")
    folder_of(ROWS, tmp_path / "single")
    folder_of([row | {"split": "test" if n > 2 else "train"} for n, row in enumerate(ROWS)], tmp_path / "column")
    assert all_parts(read(tmp_path / "column")) == FOUND[:3]
    assert all_parts(read(tmp_path / "column", split="test")) == FOUND[3:]
    with pytest.raises(DataError, match=r"data.split is 'test', but the rows at .* have no text as split\. Leave"):
        read(tmp_path / "single", split="test")


@pytest.mark.parametrize("as_array", [False, True])
def test_rows_may_name_their_split(as_array, tmp_path):
    """As HALOs writes them: train, unless the job says otherwise."""
    rows = [row | {"split": "test" if n > 2 else "train"} for n, row in enumerate(ROWS)]
    assert all_parts(opened("pairs", rows, tmp_path, as_array=as_array)) == FOUND[:3]
    assert all_parts(opened("pairs", rows, tmp_path, as_array=as_array, split="test")) == FOUND[3:]
    assert all_parts(opened("pairs", rows[3:], tmp_path, as_array=as_array)) == FOUND[3:]
    with pytest.raises(DataError, match=r"data.split: no 'eval' at .*\. Write one of test, train$"):
        opened("pairs", rows, tmp_path, as_array=as_array, split="eval")
    with pytest.raises(DataError, match=r"data.split is 'test', but the rows at .* have no text as split\. Leave"):
        opened("pairs", ROWS, tmp_path, as_array=as_array, split="test")


def test_a_row_whose_split_is_not_clear_is_bad(tmp_path):
    """Some rows name one: one that names none, or the first to do so, may be of the test set."""
    named = ROWS[1] | {"split": "train"}
    with pytest.raises(DataError, match=r"rows.jsonl:2: it names no split, and others do"):
        opened("pairs", [named, ROWS[2]], tmp_path)
    with pytest.raises(DataError, match=r"rows.jsonl:2: it names a split, and rows before it do not"):
        opened("pairs", [ROWS[2], named], tmp_path)


def test_an_invalid_data_set_is_refused(tmp_path):
    """A folder whose files have no columns needs a glob. A broken table is named with the library's message."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "rows.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"cannot load .*folder: .* write a glob such as .*folder/\*.jsonl"):
        read(tmp_path / "folder")
    (tmp_path / "folder" / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="cannot read the data set folder"):
        read(tmp_path / "folder")
    (tmp_path / "broken").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"data.path: cannot read .*broken: "):
        read(tmp_path / "broken")
    with pytest.raises(DataError, match="no file at"):
        read(tmp_path / "nothing")


def test_without_the_libraries_the_extra_is_named(tmp_path, monkeypatch):
    """Before anything else of the table is looked at."""
    import sys

    parquet(ROWS, tmp_path / "rows.parquet")
    folder_of(ROWS, tmp_path / "folder")
    for library, name in (("pyarrow", "rows.parquet"), ("datasets", "folder")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(
            DataError, match=rf"{library} is not installed: pip install '\.\[hf\]' in planner's checkout"
        ):
            read(tmp_path / name)


def test_a_changed_folder_has_another_fingerprint(tmp_path):
    """What a resize looks at before it opens the data anew."""
    folder = folder_of(ROWS, tmp_path / "folder")
    before = source_stamps(str(folder))
    folder_of(ROWS[:2], tmp_path / "other")
    assert source_stamps(str(folder)) == before
    next(folder.glob("*.arrow")).touch()
    assert source_stamps(str(folder)) != before


def test_progress_is_told_while_it_takes_long(tmp_path, monkeypatch):
    """Bytes of files, rows of folders."""
    from planner.data import ahead_sets

    monkeypatch.setattr(ahead_sets, "_ROWS_PER_BATCH", 2)
    folder_of(ROWS, tmp_path / "folder")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    for name in ("folder", "rows.json"):
        heard = []
        open_dataset(job_data("pairs", tmp_path / name), gpt(100), lambda *at, heard=heard: heard.append(at))
        assert len(heard) == 3
        assert heard == sorted(heard)
        assert all(done <= of for done, of in heard)


def test_a_changed_tokenizer_or_template_has_another_fingerprint(tmp_path):
    """So that a worker that stays through a resize does not go on with other tokens than the newcomers."""
    from planner.data.paths import model_stamps
    from planner.job import HfModel

    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "t.jinja").write_text("a")
    settings = {"kind": "hf", "path": str(tmp_path / "model"), "context": 9, "chat_template": str(tmp_path / "t.jinja")}
    found = [model_stamps(HfModel(**settings))]
    for name in ("model/tokenizer.json", "t.jinja"):
        (tmp_path / name).write_text("longer")
        found.append(model_stamps(HfModel(**settings)))
    assert len(set(found)) == 3
    assert model_stamps(HfModel(kind="hf", path="some/name", context=9)) == model_stamps(gpt(9)) == ()
