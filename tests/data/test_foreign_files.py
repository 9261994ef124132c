"""A file of another format is refused with its format, what planner reads there, and how to convert it."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from byte_models import gpt
from datasets import Dataset
from pyarrow import feather, ipc, orc, parquet
from rows_of import all_parts, job_data
from safetensors.numpy import save

from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.errors import DataError
from planner.job import JsonlData, TextData

ROWS = [{"text": f"words {n}", "prompt": f"{n}", "chosen": "yes", "rejected": "no"} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
TABLE = pa.Table.from_pylist(ROWS)


def arrow(maker):
    sink = io.BytesIO()
    with maker(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def written(write):
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def zipped(sink):
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("rows.jsonl", LINES)


def tarred(sink):
    with tarfile.open(fileobj=sink, mode="w") as archive:
        member = tarfile.TarInfo("rows.jsonl")
        member.size = len(LINES)
        archive.addfile(member, io.BytesIO(LINES))


def database():
    connection = sqlite3.connect(":memory:")
    connection.execute("create table rows (text)")
    return connection.serialize()


# Name -> its content, what it is, and how to get rows. Also without its ending.
BINARY = {
    "stream.arrow": (arrow(ipc.new_stream), "an Arrow stream", "Dataset.from_file(FILE)"),
    "file.arrow": (arrow(ipc.new_file), "an Arrow or Feather file", "feather.read_table(FILE)"),
    "rows.feather": (written(lambda f: feather.write_feather(TABLE, f)), "an Arrow or Feather file", "Convert it"),
    "rows.parquet": (written(lambda f: parquet.write_table(TABLE, f)), "a parquet file", "Dataset.from_parquet(FILE)"),
    "rows.orc": (written(lambda f: orc.write_table(TABLE, f)), "an ORC file", "Export its rows"),
    "rows.jsonl.gz": (gzip.compress(LINES), "compressed by gzip", "gunzip"),
    "rows.jsonl.bz2": (bz2.compress(LINES), "compressed by bzip2", "bunzip2"),
    "rows.jsonl.xz": (lzma.compress(LINES), "compressed by xz", "unxz"),
    "rows.jsonl.zst": (b"\x28\xb5\x2f\xfd\x04\x00" + LINES, "compressed by zstd", "unzstd"),
    "rows.zip": (written(zipped), "a zip archive", "Export its rows"),
    "rows.tar": (written(tarred), "a tar archive", "tar -xf"),
    "rows.npy": (written(lambda f: np.save(f, np.arange(5))), "a NumPy array", "Export its rows"),
    "rows.npz": (written(lambda f: np.savez(f, a=np.arange(5))), "a zip archive", "Export its rows"),
    "rows.safetensors": (save({"a": np.ones(5, np.float32)}), "a safetensors file", "Export its rows"),
    "rows.pkl": (pickle.dumps(ROWS), "a pickle", "Export its rows"),
    "rows.avro": (b"Obj\x01\x04\x14avro.codec", "an Avro file", "Export its rows"),
    "rows.sqlite": (database(), "an SQLite database", "Export its rows"),
    "rows.tokens": (b"planner-tokens " + b"0" * 64, "a token file of planner", "Choose the kind tokens"),
}
LINES_ONLY = {
    "rows.utf16": (LINES.decode().encode("utf-16"), "UTF-16 text", "iconv"),
    "rows.utf32": (LINES.decode().encode("utf-32"), "UTF-32 text", "iconv -f utf-32"),
    "rows.bin": (bytes(range(7, -1, -1)) * 50, "a binary file", "Export its rows"),
    "object.json": (json.dumps(ROWS[0], indent=1).encode(), "JSON over several lines", "jq -c . FILE"),
    "rows.csv": (b"text,label\nwords,1\n", "a CSV file", "Dataset.from_csv(FILE)"),
    "rows.tsv": (b"text\tlabel\nwords\t1\n", "a TSV file", "Dataset.from_csv(FILE, sep="),
    "rows.TXT": (b"Once upon a time\n", "plain text", "Choose the kind text"),
    "rows.yaml": (b"- text: words\n", "a YAML file", "as JSON"),
    "rows.xml": (b"<rows/>\n", "a file of markup", "as JSON"),
}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def refusal(data):
    with pytest.raises(DataError) as caught:
        open_dataset(data, gpt(100))
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 500
    return message


@pytest.mark.parametrize("name", [*BINARY, *LINES_ONLY])
def test_a_file_of_another_format_is_not_read_as_json_lines(name, file):
    content, what, fix = {**BINARY, **LINES_ONLY}[name]
    path = file(name, content)
    said = refusal(JsonlData(kind="jsonl", path=str(path)))
    assert said.startswith(f"data.path: {path} is {what}")
    assert "the kind jsonl reads JSON lines. " in said
    assert fix in said


@pytest.mark.parametrize("name", [*BINARY, *LINES_ONLY])
@pytest.mark.parametrize("bad_rows", ["refuse", "skip"])
def test_a_file_that_planner_has_no_reader_for_is_not_read_as_rows(name, bad_rows, file):
    """Parquet is read, whatever its name."""
    content, what, fix = {**BINARY, **LINES_ONLY}[name]
    data = job_data("pairs", file(name, content), bad_rows=bad_rows)
    if what == "a parquet file":
        assert len(all_parts(open_dataset(data, gpt(100)))) == len(ROWS)
        return
    said = refusal(data)
    assert f"{name} is {what}" in said
    assert "planner reads JSON lines, JSON arrays, parquet files and folders of `save_to_disk`. " in said
    assert fix in said


@pytest.mark.parametrize("name", BINARY)
def test_first_bytes_decide_and_not_the_name(name, file):
    content, what, _ = BINARY[name]
    assert f"rows.jsonl is {what}" in refusal(JsonlData(kind="jsonl", path=str(file("rows.jsonl", content))))
    assert f"words.txt is {what}" in refusal(TextData(kind="text", path=str(file("words.txt", content))))


def test_binary_files_among_text_are_told_and_read(file):
    """A run that has begun with such a folder must be able to resume. What is to be prepared anew is refused."""
    folder = file("page.txt", b"Once upon a time\n").parent
    file("scan.pdf", b"%PDF-1.7\n\x00\x01")
    data = TextData(kind="text", path=str(folder))
    dataset = open_dataset(data, gpt(100))
    counts = "1 of 2 files are in binary formats, and their bytes are trained on as they are"
    glob = "Write a glob for the files of plain text, such as FOLDER/*.txt"
    assert dataset.notes == (f"{counts} ({folder}/scan.pdf is a PDF document). {glob}",)
    with pytest.raises(DataError, match=r"scan\.pdf is a PDF document, and the kind text reads plain text\."):
        prepare(data, folder.parent / "new")


def test_an_array_is_no_file_of_json_lines(file):
    path = file("rows.json", b"\xef\xbb\xbf \n" + json.dumps(ROWS).encode())
    assert "is a JSON array, and the kind jsonl reads" in refusal(JsonlData(kind="jsonl", path=str(path)))
    assert len(all_parts(open_dataset(job_data("pairs", path), gpt(100)))) == len(ROWS)


@pytest.mark.parametrize("name", ["rows", "rows.csv", "rows.txt", "rows.arrow", "rows.parquet", "rows.gz"])
def test_json_lines_are_read_whatever_their_name(name, file):
    for content in (LINES, b"\xef\xbb\xbf" + LINES):
        dataset = open_dataset(JsonlData(kind="jsonl", path=str(file(name, content))), gpt(100))
        assert dataset.num_rows == len(ROWS)


@pytest.mark.parametrize("name", ["rows.csv", "rows.txt"])
def test_a_bad_first_line_hides_no_rows(name, file):
    """A comment, in a file whose name says nothing about it."""
    path = file(name, b"# made by hand\n" + LINES)
    assert open_dataset(job_data("pairs", path, bad_rows="skip"), gpt(100)).num_rows == len(ROWS)
    assert f"{path}:1: not JSON" in refusal(JsonlData(kind="jsonl", path=str(path)))


@pytest.mark.parametrize("content", [b'{"text": "a"}\n', b"ORCHIDS\n", b"a,b\n1,2\n", b"BZh9\n", "7z ä\n".encode()])
def test_text_is_read_whatever_it_says(content, file):
    open_dataset(TextData(kind="text", path=str(file("words.csv", content))), gpt(100))


def test_a_data_set_folder_is_named_as_the_way_to_its_files(tmp_path):
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "folder"))
    shard = next((tmp_path / "folder").glob("*.arrow"))
    assert "Name the folder that `save_to_disk` wrote" in refusal(job_data("pairs", shard))
    assert len(all_parts(open_dataset(job_data("pairs", tmp_path / "folder"), gpt(100)))) == len(ROWS)


@pytest.mark.parametrize("source", [TextData, JsonlData])
def test_a_token_file_is_not_made_of_another_format(source, file, tmp_path):
    path = file("rows", BINARY["stream.arrow"][0])
    with pytest.raises(DataError, match="rows is an Arrow stream, as the datasets library writes, and the kind"):
        prepare(source(kind="text" if source is TextData else "jsonl", path=str(path)), tmp_path / "new")
    assert [each.name for each in tmp_path.iterdir()] == ["rows"]
