"""Token files of documents as samples: windows that join or mask documents, and one sample per document."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, word_level

from planner.data.document_sets import DocumentSet
from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.data.samples import NO_LOSS
from planner.errors import DataError
from planner.job import HfModel, JsonlData, TokensData

WORDS = 20
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)
CONTEXTS = st.integers(2, 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose words are numbers, and whose end of a document is 0."""
    return word_level(tmp_path_factory.mktemp("model") / "words", WORDS)


def prepared(path, folder, documents):
    """A token file of documents, each a list of numbers from 1."""
    path.mkdir()
    rows = [json.dumps({"text": " ".join(f"w{number}" for number in document)}) for document in documents]
    (path / "rows.jsonl").write_text("\n".join(rows))
    source = JsonlData(kind="jsonl", path=str(path / "rows.jsonl"))
    prepare(source, path / "tokens", model=HfModel(kind="hf", path=folder, context=2))
    return path / "tokens"


@pytest.fixture
def file(tmp_path, folder):
    """Three documents of 2, 1 and 3 words, each with an end."""
    return prepared(tmp_path / "data", str(folder), [[1, 2], [3], [4, 5, 6]])


def opened(path, folder, context=4, documents="join"):
    data = TokensData(kind="tokens", path=str(path), documents=documents)
    return open_dataset(data, HfModel(kind="hf", path=str(folder), context=context))


def shown(dataset):
    """Every sample: inputs, labels, and documents if there are."""
    return [
        (text.inputs.tolist(), text.labels.tolist(), None if text.documents is None else text.documents.tolist())
        for text in map(dataset.sample, range(dataset.num_rows))
    ]


_ = NO_LOSS


def test_three_ways_to_make_samples(file, folder):
    """Of 1 2 0, 3 0 and 4 5 6 0 in windows of 4. The last one is shorter."""
    assert shown(opened(file, folder)) == [([1, 2, 0, 3], [2, 0, 3, 0], None), ([0, 4, 5, 6], [4, 5, 6, 0], None)]
    assert shown(opened(file, folder, 5)) == [
        ([1, 2, 0, 3, 0], [2, 0, 3, 0, 4], None),
        ([4, 5, 6], [5, 6, 0], None),
    ]
    assert shown(opened(file, folder, documents="mask")) == [
        ([1, 2, 0, 3], [2, 0, _, 0], [0, 0, 0, 1]),
        ([0, 4, 5, 6], [_, 5, 6, 0], [0, 1, 1, 1]),
    ]
    assert shown(opened(file, folder, 2, "separate")) == [
        ([1, 2], [2, 0], None),
        ([3], [0], None),
        ([4, 5], [5, 6], None),
    ]


def stream(lengths):
    """Documents of these lengths, what they are joined, and the document of each token."""
    documents = [[1 + (7 * i + j) % (WORDS - 1) for j in range(length)] for i, length in enumerate(lengths)]
    joined = [token for document in documents for token in (*document, 0)]
    numbers = [i for i, document in enumerate(documents) for _ in (*document, 0)]
    return documents, np.array(joined), np.array(numbers)


@given(lengths=LENGTHS, context=CONTEXTS)
def test_windows_predict_every_token_but_the_first_once(tmp_path_factory, folder, lengths, context):
    """Joined or masked, they have the same inputs. Masked, no first token of a document is predicted."""
    documents, joined, numbers = stream(lengths)
    path = prepared(tmp_path_factory.mktemp("data") / "data", str(folder), documents)
    join, mask = (opened(path, folder, context, documents) for documents in ("join", "mask"))
    assert join.num_rows == mask.num_rows == -(-(len(joined) - 1) // context)
    whole, parts = ([each.sample(row) for row in range(join.num_rows)] for each in (join, mask))
    assert np.concatenate([text.inputs for text in whole]).tolist() == joined[:-1].tolist()
    assert np.concatenate([text.labels for text in whole]).tolist() == joined[1:].tolist()
    assert all(len(text.inputs) == context for text in whole[:-1])
    expected = np.where(numbers[1:] == numbers[:-1], joined[1:], NO_LOSS)
    assert np.concatenate([text.labels for text in parts]).tolist() == expected.tolist()
    for row, (one, other) in enumerate(zip(whole, parts, strict=True)):
        assert one.inputs.tolist() == other.inputs.tolist()
        of_row = numbers[:-1][row * context :][:context]
        assert other.documents.tolist() == (of_row - of_row[0]).tolist()
        assert other.num_tokens > 0  # a window always has something to learn


@given(lengths=LENGTHS, context=CONTEXTS)
def test_separate_documents_are_cut_to_the_context(tmp_path_factory, folder, lengths, context):
    """One sample each, in order."""
    documents, _, _ = stream(lengths)
    dataset = opened(
        prepared(tmp_path_factory.mktemp("data") / "data", str(folder), documents), folder, context, "separate"
    )
    whole = [[*document, 0] for document in documents]
    assert shown(dataset) == [(each[:-1][:context], each[1:][:context], None) for each in whole]


@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_evidence_is_of_what_is_read(file, folder, documents):
    """Tokens with loss, and the checksum of the sample."""
    dataset = opened(file, folder, documents=documents)
    found = [dataset.evidence(row) for row in range(dataset.num_rows)]
    assert [each.tokens for each in found] == [dataset.sample(row).num_tokens for row in range(dataset.num_rows)]
    assert len({each.check_sum for each in found}) == dataset.num_rows


def test_another_cut_is_another_data_set(file, folder, tmp_path):
    """The place of the file does not count."""
    (tmp_path / "copy").write_bytes(file.read_bytes())
    assert opened(tmp_path / "copy", folder).fingerprint == opened(file, folder).fingerprint
    others = [opened(file, folder, 5), opened(file, folder, 4, "mask"), opened(file, folder, 4, "separate")]
    assert len({each.fingerprint for each in (opened(file, folder), *others)}) == 4


@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_another_process_maps_the_file_itself(file, folder, documents):
    """Without the tokenizer. The file must be the same one."""
    dataset = opened(file, folder, 3, documents)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 600
    assert shown(pickle.loads(pickled)) == shown(dataset)
    content = bytearray(file.read_bytes())
    file.unlink()
    prepared(file.parent / "else", str(folder), [[1, 2, 3]]).rename(file)
    with pytest.raises(DataError, match="was replaced"):
        pickle.loads(pickled)
    assert shown(dataset)  # the old file lives on for who has it open
    assert content != file.read_bytes()


def test_documents_that_were_left_out_are_noted(tmp_path, folder):
    """When the file was prepared."""
    path = prepared(tmp_path / "data", str(folder), [[1], [], [2]])
    assert opened(path, folder).notes == ("1 document without tokens left out when the text was tokenized",)
    assert opened(prepared(tmp_path / "all", str(folder), [[1]]), folder).notes == ()


def test_a_window_reads_only_its_part_of_the_table(file, folder, monkeypatch):
    """The table of a large file has gigabytes. A search with another type of number would convert all of it."""
    dataset = opened(file, folder, documents="mask")
    types, real = [], np.searchsorted
    monkeypatch.setattr(np, "searchsorted", lambda a, v, **more: types.append((a.dtype, v.dtype)) or real(a, v, **more))
    dataset.sample(0)
    assert types == [(np.dtype("<u8"), np.dtype("<u8"))]


# -- what is refused


def test_the_tokenizer_must_be_the_models(file, tmp_path):
    """Another one is named with its size, and what to run."""
    other = byte_level(tmp_path / "other")
    with pytest.raises(DataError, match=r"prepared with another tokenizer than that of .*other \(the file has 20 ids"):
        opened(file, other)
    with pytest.raises(DataError, match=r"Prepare the text again: planner prepare --tokenizer .*more SOURCE OUTPUT"):
        opened(file, word_level(tmp_path / "more", WORDS + 1))


def test_bytes_and_ids_are_not_mixed_up(file, folder, tmp_path):
    """A model over bytes refuses ids, and a model with a tokenizer refuses bytes."""
    with pytest.raises(DataError, match=r"holds ids of a tokenizer \(20 of them\), and model.kind gpt reads bytes"):
        open_dataset(TokensData(kind="tokens", path=str(file)), gpt(4))
    prepare(JsonlData(kind="jsonl", path=str(file.parent / "rows.jsonl")), tmp_path / "bytes")
    with pytest.raises(DataError, match=r"bytes holds bytes, and .*words reads ids. Prepare the text again"):
        opened(tmp_path / "bytes", folder)


@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_an_id_that_the_model_does_not_know_is_refused(file, folder, documents):
    """Not every block is checked at opening, and a GPU would fail without a reason."""
    dataset = opened(file, folder, 9, documents)
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write((20).to_bytes(2, "little"))
    with pytest.raises(DataError, match="has token 20 in row 0, and the model knows 20, from 0"):
        dataset.sample(0)


def test_an_id_beyond_31_bits_is_refused():
    """An altered file may hold it, and as int32 it would be negative."""
    ids = np.array([2**32 - 1, 1, 1], "<u4")
    source = SimpleNamespace(name="FILE", num_tokens=3, read=lambda start, stop: ids[start:stop])
    dataset = DocumentSet(source=source, context=4, documents="join", known=20, fingerprint="")
    with pytest.raises(DataError, match=f"FILE has token {2**32 - 1} in row 0"):
        dataset.sample(0)


@pytest.mark.parametrize(("documents", "value"), [("mask", 10**9), ("mask", 4), ("separate", 10**9), ("separate", 1)])
def test_an_altered_table_is_refused(file, folder, documents, value):
    """An impossible row is refused when it is read."""
    dataset = opened(file, folder, 9, documents)
    with file.open("r+b") as stream:
        stream.seek(dataset.source.header.starts_at + 8)
        stream.write(value.to_bytes(8, "little"))
    with pytest.raises(DataError, match="table of rows was altered"):
        [dataset.sample(row) for row in range(dataset.num_rows)]


def test_a_file_that_shrinks_under_a_run_is_refused(file, folder):
    """To touch a page that is gone would kill the process."""
    dataset = opened(file, folder)
    with file.open("r+b") as stream:
        stream.truncate(4096)
    with pytest.raises(DataError, match="has changed while the run was reading it"):
        dataset.sample(0)
