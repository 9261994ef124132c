"""The lengths of samples, without making them: what the samples have, for every kind of data."""

import json

import numpy as np
import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import opened
from tiny_tokenizers import word_level

from planner.data.evaluation import WithEvaluation
from planner.data.open import open_dataset
from planner.data.prepare_tokens import prepare
from planner.data.sample_sets import ChatSet, joined
from planner.errors import DataError
from planner.job import HfModel, JsonlData, TextData, TokensData
from planner.train.sample_batches import feedback_batch, pair_batch, text_batch

WORDS = st.text("ab c", max_size=30)
PROMPTS = st.text("ab c", min_size=1, max_size=30)
CONTEXTS = st.integers(4, 40)


def counted(dataset, kind="texts"):
    """What training counts for each row, as tensors."""
    make = {"texts": text_batch, "pairs": pair_batch, "feedback": feedback_batch}[kind]
    partners = [{"partners": [row]} if kind == "feedback" else {} for row in range(dataset.num_rows)]
    counts = [make(dataset, [row], 0, **more).token_counts for row, more in enumerate(partners)]
    return [(each.inputs, each.squares) for each in counts]


def pairs_of(lengths):
    return list(zip(lengths.tokens.tolist(), lengths.squares.tolist(), strict=True))


def agrees(dataset, kind="texts"):
    """Check the lengths of all rows, of rows in another order and of none."""
    found = counted(dataset, kind)
    assert pairs_of(dataset.lengths(range(dataset.num_rows))) == found
    turned = np.arange(dataset.num_rows)[::-1].repeat(2)
    assert pairs_of(dataset.lengths(turned)) == [found[row] for row in turned]
    none = dataset.lengths([])
    assert [(each.dtype, each.shape) for each in none] == [(np.int64, (0,))] * 2


def some(row):
    return st.lists(st.fixed_dictionaries(row), min_size=1, max_size=8)


ROWS = {
    "chat": some({"prompt": PROMPTS, "completion": WORDS}),
    "pairs": some({"prompt": PROMPTS, "chosen": WORDS.map("a".__add__), "rejected": WORDS.map("b".__add__)}),
    "feedback": some({"prompt": PROMPTS, "completion": WORDS, "label": st.booleans()}),
}
SHAPES = [("chat", {}), ("chat", {"packing": True}), ("pairs", {}), ("feedback", {})]


@pytest.mark.parametrize(("kind", "settings"), SHAPES)
@given(data=st.data(), context=CONTEXTS, max_prompt=st.none() | st.integers(1, 12))
def test_rows_have_the_lengths_of_their_samples(tmp_path_factory, kind, settings, data, context, max_prompt):
    """Also where prompts or completions are cut."""
    rows = data.draw(ROWS[kind])
    folder = tmp_path_factory.mktemp("rows")
    cut = {} if settings else {"max_prompt": max_prompt}  # packing takes no cut prompts
    try:
        found = opened(kind, rows, folder, model=gpt(context), bad_rows="skip", **settings, **cut)
    except DataError:
        return  # no row can be used
    agrees(found, {"chat": "texts"}.get(kind, kind))
    agrees(joined([("a", found), ("b", found)]), {"chat": "texts"}.get(kind, kind))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose words are numbers."""
    return word_level(tmp_path_factory.mktemp("model") / "words", 20)


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), context=st.integers(2, 25))
def test_documents_have_the_lengths_of_their_samples(tmp_path_factory, folder, lengths, context):
    """Joined, masked and apart, of an hf model's ids."""
    path = tmp_path_factory.mktemp("tokens")
    rows = [json.dumps({"text": " ".join(["w1"] * length)}) for length in lengths]
    (path / "rows.jsonl").write_text("\n".join(rows))
    model = HfModel(kind="hf", path=str(folder), context=context)
    prepare(JsonlData(kind="jsonl", path=str(path / "rows.jsonl")), path / "tokens", model=model)
    for documents in ("join", "mask", "separate"):
        agrees(open_dataset(TokensData(kind="tokens", path=str(path / "tokens"), documents=documents), model))
        agrees(open_dataset(JsonlData(kind="jsonl", path=str(path / "rows.jsonl"), documents=documents), model))


@given(texts=st.lists(st.text("abc", min_size=2, max_size=40), min_size=1, max_size=5), context=st.integers(2, 25))
def test_bytes_have_the_lengths_of_their_samples(tmp_path_factory, texts, context):
    """Files of text, and rows of JSON lines."""
    path = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(texts):
        (path / f"{number}.txt").write_text(text)
    (path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    agrees(open_dataset(TextData(kind="text", path=f"{path}/*.txt"), gpt(context)))
    agrees(open_dataset(JsonlData(kind="jsonl", path=str(path / "rows.jsonl")), gpt(context)))


@pytest.mark.parametrize(("documents", "value"), [("mask", 10**9), ("mask", 4), ("separate", 10**9), ("separate", 1)])
def test_an_altered_table_is_refused(tmp_path, folder, documents, value):
    """As when the sample is made."""
    (tmp_path / "rows.jsonl").write_text('{"text": "w1 w2"}\n{"text": "w3"}\n{"text": "w4 w5"}')
    model = HfModel(kind="hf", path=str(folder), context=4)
    found = open_dataset(JsonlData(kind="jsonl", path=str(tmp_path / "rows.jsonl"), documents=documents), model)
    starts = found.source.starts.copy()
    starts[1] = value
    object.__setattr__(found.source, "starts", starts)
    with pytest.raises(DataError, match="its table of rows was altered at row"):
        found.lengths(range(found.num_rows))


CHATS = [{"prompt": "abc", "completion": "d" * n} for n in range(1, 9)]


@pytest.mark.parametrize("settings", [{}, {"packing": True}])
def test_rows_for_evaluation_have_theirs(tmp_path, settings):
    """In any order with rows to train on."""
    (tmp_path / "other").mkdir()
    training = opened("chat", CHATS, tmp_path, model=gpt(12), **settings)
    other = opened("chat", CHATS[::-1], tmp_path / "other", model=gpt(12), **settings)
    chosen = np.arange(other.num_rows)[::2]
    agrees(WithEvaluation(training=training, evaluation=other, chosen=chosen))


def test_lengths_that_a_class_does_not_say_are_refused(tmp_path):
    """A package's class may be from before there were any."""

    class Others(ChatSet):
        lengths = ChatSet.__mro__[1].lengths

    kept = opened("chat", CHATS, tmp_path)
    with pytest.raises(DataError, match="Others has no lengths of samples"):
        Others(**vars(kept)).lengths([0])
