"""`planner prepare`: what it prints, what it refuses, and that a run accepts its token file."""

import json
import os
import stat

import pytest
from tiny_tokenizers import word_level

ROWS = '{"text": "abc"}\n' * 10


@pytest.fixture
def place(job):
    """The folder of a correct job, with sources of each kind."""
    folder = job.parent
    (folder / "rows.jsonl").write_text(ROWS)
    (folder / "folder").mkdir()
    (folder / "folder" / "a.txt").write_text("hello")
    (folder / "there").write_text("here before")
    return folder


@pytest.mark.process
def test_it_says_what_it_made_and_what_to_write(cli, place):
    """A run accepts the token file. Its cluster is not started here."""
    answer = cli("prepare", "text.txt", "text.tokens")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("text.tokens: 1761 tokens (bytes), in ")
    assert answer.out.endswith("\nin a job:  data: {kind: tokens, path: text.tokens}\n")
    run = cli("run", "job.yaml", "--set", "data.kind=tokens", "--set", "data.path=text.tokens")
    assert (run.code, run.err) == (1, "planner: a cluster would have been started\n")
    assert run.out == f"tiny: a new run in {place / 'run'}\n"


@pytest.mark.usefixtures("place")
def test_its_json(cli):
    """The values for a script."""
    found = json.loads(cli("prepare", "rows.jsonl", "rows.tokens", "--kind", "jsonl", "--json").out)
    digest = found.pop("sha256")
    tokenizer = {"tokenizer": "bytes", "vocabulary": 256, "empty": 0}
    assert found == {
        "path": "rows.tokens",
        "kind": "rows",
        "tokens": 50,
        "rows": 10,
        "dtype": "uint8",
        "bytes": 4240,
        **tokenizer,
    }
    assert len(digest) == 64


@pytest.fixture
def model(place):
    """A model's folder beside the sources, whose words are w1 to w9."""
    word_level(place / "model", 10)
    return "model"


def test_documents_of_a_tokenizer(cli, place, model):
    """What was made, for people and for scripts, and what to write into the job."""
    (place / "folder" / "a.txt").write_text("w1 w2 w9")
    (place / "folder" / "b.txt").write_text("")
    answer = cli("prepare", "folder", "a.tokens", "--tokenizer", model)
    assert (answer.code, answer.err) == (0, "")
    made = "a.tokens: 1 document (1 empty one left out), 4 tokens (uint16, 10 ids), in "
    assert answer.out.startswith(made)
    assert answer.out.endswith("\nin a job:  data: {kind: tokens, path: a.tokens}\n")
    found = json.loads(cli("prepare", "folder", "b.tokens", "--tokenizer", model, "--json").out)
    assert {found.pop(key).__class__ for key in ("sha256", "tokenizer")} == {str}
    assert found == {
        "path": "b.tokens",
        "kind": "documents",
        "tokens": 4,
        "rows": 1,
        "dtype": "uint16",
        "bytes": 4096 + 8 + 16,
        "vocabulary": 10,
        "empty": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tokenizer", ""], "--tokenizer is empty. Write a name"),
        (["--revision", "main"], "--revision main: it belongs to --tokenizer"),
        (["--tokenizer", "model", "--revision", ""], "--revision is empty"),
        (["--tokenizer", "./nowhere"], "planner: --tokenizer: ./nowhere (relative to "),
        (["--tokenizer", "folder"], "planner: --tokenizer: the tokenizer of folder cannot be loaded"),
    ],
)
@pytest.mark.usefixtures("model")
def test_a_tokenizer_that_is_not_there_is_a_sentence_and_leaves_nothing(cli, place, arguments, says):
    """With the name of the option, not of a job's key."""
    answer = cli("prepare", "text.txt", "new", *arguments)
    assert (answer.code, answer.out, says in answer.err) == (2, "", True), answer.err
    assert not (place / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["", "new"], 2, "SOURCE is empty"),
        (["text.txt", ""], 2, "OUTPUT is empty"),
        (
            ["missing", "new"],
            2,
            "planner: no file at 'missing' (relative to CURRENT_FOLDER, where planner runs). Write a file",
        ),
        (["rows.jsonl", "new"], 2, "rows.jsonl: the kind is not clear. Write --kind jsonl"),
        (["text.txt", "new", "--kind", "csv"], 2, "csv"),
        (
            ["text.txt", "new", "--kind", "jsonl"],
            2,
            "text.txt is plain text, and the kind jsonl reads JSON lines. Choose",
        ),
        (["rows.jsonl", "new", "--kind", "jsonl", "--field", "body"], 2, "['text']). Set --field or correct"),
        (["rows.jsonl", "new", "--kind", "jsonl", "--field", ""], 2, "--field is empty"),
        (["text.txt", "new", "--field", "body"], 2, "--field body: text has no fields"),
        (["text.txt", "there"], 2, "there exists already. Choose another name, or replace it with --force"),
        (["text.txt", "folder", "--force"], 2, "folder is not a regular file"),
        (["text.txt", "/dev/null", "--force"], 2, "/dev/null is not a regular file"),
        (["text.txt", "text.txt", "--force"], 2, "text.txt is in text.txt, where it would count as source"),
        (["folder", "folder/new"], 2, "folder/new is in folder, where it would count as source"),
        (["text.txt", "nowhere/new"], 2, "there is no folder nowhere. Make it first"),
        (["text.txt", "there/new"], 2, "there is no folder there. Make it first"),
        (["text.txt", "x" * 300], 2, "File name too long"),
        (["text.txt", "/proc/new"], 1, "planner: cannot write /proc/new: "),
        (["text.txt"], 2, "OUTPUT"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_leaves_nothing(cli, place, arguments, code, says):
    """One line, an exit code, and every file unchanged."""
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    answer = cli("prepare", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert says.replace("CURRENT_FOLDER", str(place)) in answer.err
    assert "Traceback" not in answer.err
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda content: content[:-1], "an incomplete copy"),
        (lambda content: b"\0" * len(content), "is not a token file"),
        (lambda content: content[:40] + b"?" + content[41:], "its header is torn or altered"),
        (lambda content: content[:5000] + b"?" + content[5001:], "its content was altered"),
    ],
)
def test_a_run_refuses_a_token_file_that_is_not_whole(cli, place, harm, says):
    """Before anything is started."""
    cli("prepare", "text.txt", "text.tokens")
    file = place / "text.tokens"
    file.write_bytes(harm(file.read_bytes()))
    answer = cli("run", "job.yaml", "--set", "data.kind=tokens", "--set", "data.path=text.tokens")
    assert answer.code == 2
    assert says in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(("source", "expected"), [(0o600, 0o600), (0o640, 0o640), (0o666, 0o644), (0o400, 0o600)])
def test_tokens_get_the_permissions_of_their_source(cli, place, source, expected):
    """The token file is also limited by the umask."""
    (place / "folder" / "a.txt").chmod(source)
    before = os.umask(0o022)
    try:
        assert cli("prepare", "folder", "new").code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((place / "new").stat().st_mode) == expected
