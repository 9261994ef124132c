"""Text for models with a tokenizer: the samples of its token file, made at the start and kept on disk."""

import errno
import json
import os
import pickle

import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import all_bytes
from tiny_tokenizers import word_level

from planner.data import text_sets
from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.errors import DataError
from planner.job import HfModel, JsonlData, TextData, TokensData

DOCUMENTS = ["join", "mask", "separate"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose words are numbers, and whose end of a document is 0."""
    return str(word_level(tmp_path_factory.mktemp("model") / "words", 20))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache for data of any size. The calls that write to it."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(text_sets, "LEAST_BYTES", 0)
    calls, write = [], text_sets.write_file

    def counted(*arguments):
        calls.append(arguments[1])
        return write(*arguments)

    monkeypatch.setattr(text_sets, "write_file", counted)
    return calls


def text(path, documents):
    path.mkdir(exist_ok=True)
    for number, document in enumerate(documents):
        (path / f"{number:03d}.txt").write_text(document)
    return {"kind": "text", "path": str(path)}


def jsonl(path, documents):
    path.mkdir(exist_ok=True)
    (path / "rows.jsonl").write_text("".join(json.dumps({"body": document}) + "\n" for document in documents))
    return {"kind": "jsonl", "path": str(path), "field": "body"}


WRITERS = {"text": (text, TextData), "jsonl": (jsonl, JsonlData)}


def shown(dataset):
    return [sample.parts() for sample in dataset.samples(range(dataset.num_rows))]


words = st.lists(st.integers(1, 19), max_size=9).map(lambda numbers: " ".join(f"w{number}" for number in numbers))


@given(
    kind=st.sampled_from(sorted(WRITERS)),
    documents=st.lists(words, min_size=1, max_size=6).filter(any),
    how=st.sampled_from(DOCUMENTS),
    context=st.integers(2, 12),
)
def test_text_has_the_samples_of_its_token_file(tmp_path_factory, folder, kind, documents, how, context):
    """However documents become samples. So it is the same data, and a note says what was left out."""
    place, (write, section) = tmp_path_factory.mktemp("text"), WRITERS[kind]
    model = HfModel(kind="hf", path=folder, context=context)
    data = section(**write(place / "source", documents), documents=how)
    prepare(data, place / "tokens", model=model)
    ours = open_dataset(data, model)
    theirs = open_dataset(TokensData(kind="tokens", path=str(place / "tokens"), documents=how), model)
    assert shown(ours) == shown(theirs) == shown(pickle.loads(pickle.dumps(ours)))
    assert (ours.fingerprint, ours.notes) == (theirs.fingerprint, theirs.notes)


def test_each_kind_has_its_own_documents(tmp_path, folder):
    """Text is joined, and rows are samples, if the job does not say otherwise."""
    model = HfModel(kind="hf", path=folder, context=8)
    documents = ["w1 w2", "w3"]
    whole = open_dataset(TextData(**text(tmp_path / "text", documents)), model)
    rows = open_dataset(JsonlData(**jsonl(tmp_path / "rows", documents)), model)
    assert [sample.inputs.tolist() for sample in map(whole.sample, range(whole.num_rows))] == [[1, 2, 0, 3]]
    assert [sample.inputs.tolist() for sample in map(rows.sample, range(rows.num_rows))] == [[1, 2], [3]]


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_it_is_tokenized_once_on_a_machine(tmp_path, folder, cache, kind):
    """Another context or way of documents reads the same file. Another content, tokenizer or field makes another."""
    write, section = WRITERS[kind]
    data = section(**write(tmp_path / "source", ["w1 w2 w3", "w4"]))
    model = HfModel(kind="hf", path=folder, context=4)
    first = open_dataset(data, model)
    assert shown(open_dataset(data, model)) == shown(first)
    open_dataset(data.model_copy(update={"documents": "mask"}), model.model_copy(update={"context": 2}))
    assert len(cache) == 1
    write(tmp_path / "source", ["w1 w2 w3", "w4 w5"])
    assert shown(open_dataset(data, model)) != shown(first)
    assert len(set(cache)) == 2
    assert shown(first)  # the old file lives on for who has it open


def test_rows_of_bytes_are_kept_too(tmp_path, cache):
    """They need not be parsed again."""
    data = JsonlData(**jsonl(tmp_path / "source", ["one", ""]))
    for _ in range(2):
        dataset = open_dataset(data, gpt(8))
        assert [all_bytes(dataset.sample(row)) for row in range(2)] == [b"\0one\0", b"\0\0"]
    assert len(cache) == 1


def test_a_damaged_file_is_made_anew(tmp_path, cache):
    """As after a full disk or a copy of the cache."""
    data = JsonlData(**jsonl(tmp_path / "source", ["one", "two"]))
    before = shown(open_dataset(data, gpt(8)))
    (place,) = cache
    place.write_bytes(place.read_bytes()[:-8])
    assert shown(open_dataset(data, gpt(8))) == before
    assert cache == [place, place]


def test_a_cache_that_may_only_be_read_is_read(tmp_path, cache, monkeypatch):
    """As one in an image, or of another user."""
    data = JsonlData(**jsonl(tmp_path / "source", ["one", "two"]))
    before = shown(open_dataset(data, gpt(8)))

    def refuse(_place):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(text_sets.os, "utime", refuse)
    assert shown(open_dataset(data, gpt(8))) == before
    assert len(cache) == 1


def test_other_processes_need_no_cache(tmp_path, cache):
    """Loader processes of a long run start again at a resize, when its tokens may be gone from the cache."""
    dataset = open_dataset(JsonlData(**jsonl(tmp_path / "source", ["one", "two"])), gpt(8))
    sent = pickle.dumps(dataset)
    cache[0].unlink()
    assert shown(pickle.loads(sent)) == shown(dataset)


def test_text_that_changes_while_it_is_read_is_not_kept(tmp_path, cache, folder, monkeypatch):
    """Its tokens would be found for the text as it was before, if that comes back."""
    data = TextData(**text(tmp_path / "source", ["w1 w2"]))
    write = text_sets.write_file

    def replaced(*arguments):
        text(tmp_path / "source", ["w3 w4 w5"])
        return write(*arguments)

    monkeypatch.setattr(text_sets, "write_file", replaced)
    with pytest.raises(DataError, match=r"source has changed while it was read\. Start the run again"):
        open_dataset(data, HfModel(kind="hf", path=folder, context=4))
    assert not cache[0].exists()


def test_bytes_are_those_of_their_fingerprint(tmp_path, cache):
    """Even if another file has the same size and time. Workers compare fingerprints."""
    data, found = JsonlData(**jsonl(tmp_path / "source", ["one"])), []
    for content in ("one", "two"):
        jsonl(tmp_path / "source", [content])
        os.utime(tmp_path / "source" / "rows.jsonl", (1e9, 1e9))
        found.append(open_dataset(data, gpt(8)))
    assert [all_bytes(dataset.sample(0)) for dataset in found] == [b"\0one\0", b"\0two\0"]
    assert found[0].fingerprint != found[1].fingerprint
    assert len(set(cache)) == 2


def test_no_place_for_the_tokens_is_an_error(tmp_path, cache, monkeypatch):
    """Memory may not hold what the disk cannot."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "file" / "cache"))
    data = JsonlData(**jsonl(tmp_path / "source", ["one"]))
    with pytest.raises(DataError, match=r"have no place in the cache \(.*Set PLANNER_CACHE to a folder with room"):
        open_dataset(data, gpt(8))
    assert not cache


def test_text_that_is_not_text_is_refused(tmp_path, folder):
    """Bytes are trained on as they are, and a tokenizer reads characters."""
    (tmp_path / "latin.txt").write_bytes("naïve".encode("latin-1"))
    data = TextData(kind="text", path=str(tmp_path / "latin.txt"))
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8 at byte 2"):
        open_dataset(data, HfModel(kind="hf", path=folder, context=4))
    assert open_dataset(data, gpt(4)).num_rows == 2
