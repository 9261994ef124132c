"""Files of other formats than the one that they would be read as: what they are, and how to convert them.

The first bytes decide. A name's ending only names a format of text whose content does not begin like JSON.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import DataError

HEAD_BYTES = 4096
"""enough of a file to recognise its format"""
# The safetensors library reads no larger header.
_MAX_HEADER_BYTES = 100_000_000
_BLANKS = b"\xef\xbb\xbf \t\r\n"


@dataclass(frozen=True, kw_only=True)
class _Form:
    """A format that planner does not read, or not there."""

    name: str
    begins: Callable[[bytes], bool]
    """whether the beginning of a file has this format"""
    to_rows: str = "Export its rows as JSON, one object per line"
    to_text: str = ""
    """what to do where plain text is read. Empty: choose other files"""


def _magic(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(starts)


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MAX_HEADER_BYTES


def _converted(table: str) -> str:
    return f"Convert it with the datasets library: datasets.{table}.to_json('rows.jsonl')"


_BINARY_FORMS = (
    _Form(name="a parquet file", begins=_magic(b"PAR1"), to_rows=_converted("Dataset.from_parquet(FILE)")),
    _Form(
        name="an Arrow stream, as the datasets library writes",
        begins=_magic(b"\xff\xff\xff\xff"),
        to_rows="Name the folder that `save_to_disk` wrote, with the kind chat, pairs or feedback, or convert the "
        "file: datasets.Dataset.from_file(FILE).to_json('rows.jsonl')",
    ),
    _Form(
        name="an Arrow or Feather file",
        begins=_magic(b"ARROW1", b"FEA1"),
        to_rows=_converted("Dataset(pyarrow.feather.read_table(FILE))"),
    ),
    _Form(name="compressed by gzip", begins=_magic(b"\x1f\x8b"), to_rows="Unpack it with gunzip"),
    _Form(name="compressed by zstd", begins=_magic(b"\x28\xb5\x2f\xfd"), to_rows="Unpack it with unzstd"),
    _Form(
        name="compressed by bzip2",
        begins=lambda head: bool(re.match(rb"BZh[1-9]1AY&SY", head)),
        to_rows="Unpack it with bunzip2",
    ),
    _Form(name="compressed by xz", begins=_magic(b"\xfd7zXZ\x00"), to_rows="Unpack it with unxz"),
    _Form(name="compressed by lz4", begins=_magic(b"\x04\x22\x4d\x18"), to_rows="Unpack it with unlz4"),
    _Form(
        name="a zip archive, such as .zip, .xlsx, .npz or a checkpoint of torch",
        begins=_magic(b"PK\x03\x04", b"PK\x05\x06"),
    ),
    _Form(name="a 7z archive", begins=_magic(b"7z\xbc\xaf\x27\x1c"), to_rows="Unpack it with 7z x"),
    _Form(name="a tar archive", begins=lambda head: head[257:262] == b"ustar", to_rows="Unpack it with tar -xf"),
    _Form(name="a NumPy array", begins=_magic(b"\x93NUMPY")),
    _Form(name="a safetensors file", begins=_is_safetensors),
    _Form(name="a pickle", begins=_magic(*(b"\x80" + bytes([version]) for version in range(2, 6)))),
    _Form(name="an Avro file", begins=_magic(b"Obj\x01")),
    _Form(name="an ORC file", begins=lambda head: head.startswith(b"ORC") and b"\0" in head),
    _Form(name="an SQLite database", begins=_magic(b"SQLite format 3\0")),
    _Form(name="an HDF5 file", begins=_magic(b"\x89HDF\r\n\x1a\n")),
    _Form(name="a PDF document", begins=_magic(b"%PDF-")),
    _Form(
        name="a token file of planner",
        begins=_magic(b"planner-tokens "),
        to_rows="Choose the kind tokens",
        to_text="Choose the kind tokens",
    ),
)
# Before UTF-16, which has the same first bytes.
_UTF_32 = _Form(
    name="UTF-32 text",
    begins=_magic(b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
    to_rows="Convert it to UTF-8: iconv -f utf-32 -t utf-8 FILE > rows.jsonl",
)
_UTF_16 = _Form(
    name="UTF-16 text",
    begins=_magic(b"\xff\xfe", b"\xfe\xff"),
    to_rows="Convert it to UTF-8: iconv -f utf-16 -t utf-8 FILE > rows.jsonl",
)
_UNKNOWN = _Form(name="a binary file", begins=lambda head: b"\0" in head)
_ARRAY = _Form(
    name="a JSON array",
    begins=lambda head: bool(re.match(rb"\[\s*(\{|$)", head)),
    to_rows="Write one object per line: jq -c '.[]' FILE > rows.jsonl",
)
_OBJECT = _Form(
    name="JSON over several lines",
    begins=lambda head: bool(re.match(rb"\{[ \t\r]*\n", head)),
    to_rows="Write one object per line: jq -c . FILE > rows.jsonl",
)
_GLOB = "Write a glob for the files of plain text, such as FOLDER/*.txt"
_LINE_OF_JSON = re.compile(rb"^[ \t]*[{\[]", re.MULTILINE)


def _text_form(name: str, to_rows: str = _Form.to_rows) -> _Form:
    return _Form(name=name, begins=lambda _head: True, to_rows=to_rows)


# By the ending of the name.
_TEXT_FORMS = {
    "csv": _text_form("a CSV file", _converted("Dataset.from_csv(FILE)")),
    "tsv": _text_form("a TSV file", _converted(r"Dataset.from_csv(FILE, sep='\t')")),
    **dict.fromkeys(
        ("txt", "md", "rst", "log"), _text_form("plain text", "Choose the kind text, or write rows as JSON")
    ),
    **dict.fromkeys(("yaml", "yml"), _text_form("a YAML file")),
    **dict.fromkeys(("xml", "html", "htm"), _text_form("a file of markup")),
}


def require_plain_text(file: Path, head: bytes) -> None:
    """Check that a file for `data.kind: text` is in no binary format that planner knows.

    Args:
        file: the file.
        head: its first `HEAD_BYTES` bytes.

    Raises:
        DataError: it is.
    """
    if form := _binary_form(head):
        fix = form.to_text or _GLOB
        raise DataError.of("data.path", f"{file} is {form.name}, and the kind text reads plain text. {fix}")


def text_notes(heads: Sequence[tuple[Path, bytes]]) -> tuple[str, ...]:
    """A note about files in binary formats among those of `data.kind: text`, or nothing.

    They are read as they are: a run that has begun with them must be able to resume.

    Args:
        heads: each file with its first `HEAD_BYTES` bytes.

    Raises:
        DataError: no file is in another format than those.
    """
    found = [(file, form) for file, head in heads if (form := _binary_form(head))]
    if found and len(found) == len(heads):
        require_plain_text(*heads[0])
    if not found:
        return ()
    file, form = found[0]
    counts = f"{len(found)} of {len(heads)} files are in binary formats"
    return (f"{counts}, and their bytes are trained on as they are ({file} is {form.name}). {_GLOB}",)


def binary_name(head: bytes) -> str:
    """What a file in a binary format is, such as `a parquet file`. Empty if planner does not know the format.

    Args:
        head: its first `HEAD_BYTES` bytes.
    """
    form = _binary_form(head)
    return form.name if form else ""


def _binary_form(head: bytes) -> _Form | None:
    return next((form for form in _BINARY_FORMS if form.begins(head)), None)


def require_rows(file: Path, head: bytes, reads: str) -> None:
    """Check that a file which will be read as JSON lines does not begin like another format.

    Args:
        file: the file.
        head: its first `HEAD_BYTES` bytes.
        reads: what planner reads there, for the error.

    Raises:
        DataError: it does.
    """
    if form := _form_of(file, head):
        raise DataError.of("data.path", f"{file} is {form.name}, and {reads}. {form.to_rows}")


def _form_of(file: Path, head: bytes) -> _Form | None:
    content = head.lstrip(_BLANKS)
    binary = _binary_form(head) or next((form for form in (_UTF_32, _UTF_16) if form.begins(head)), None)
    lines = next((form for form in (_ARRAY, _OBJECT) if form.begins(content)), None)
    # Other files may have a bad first line, which is refused by its number.
    if binary or lines or not content or _LINE_OF_JSON.search(content):
        return binary or lines
    return _UNKNOWN if b"\0" in head else _TEXT_FORMS.get(file.suffix.removeprefix(".").lower())
