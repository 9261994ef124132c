"""A packed micro-batch: all texts in one row, without padding. It holds what the padded one holds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_sets import SampleSet

from planner.data.samples import NO_LOSS, Text, check_sum_of
from planner.train.batches import TokenCounts
from planner.train.models.document_attention import positions_in
from planner.train.sample_batches import Sequences, batch_of, feedback_batch, pair_batch, text_batch

MAKE = {"chat": text_batch, "pairs": pair_batch, "feedback": feedback_batch}


def batch_of_rows(kind, rows, *, is_packed):
    """Partners, if the kind has any, are rows far away."""
    partners = {"partners": [row + 7 for row in rows]} if kind == "feedback" else {}
    return MAKE[kind](SampleSet(kind=kind), rows, 5, **partners, is_packed=is_packed)


def sequences_of(batch):
    return [batch.sequences, *([batch.mismatched] if hasattr(batch, "mismatched") else [])]


@pytest.mark.parametrize("kind", MAKE)
@given(rows=st.lists(st.integers(0, 40), min_size=1, max_size=7, unique=True))
def test_it_holds_what_the_padded_one_holds(kind, rows):
    """The same bytes of each text, so the same checksum, and the same counts but for the padding."""
    padded, packed = (batch_of_rows(kind, rows, is_packed=is_packed) for is_packed in (False, True))
    for one, other in zip(sequences_of(padded), sequences_of(packed), strict=True):
        assert other.parts() == one.parts()
        assert other.loss_tokens().tolist() == one.loss_tokens().tolist()
        assert (other.lengths, other.squares) == (one.lengths, one.squares)
        assert other.inputs.shape == other.labels.shape == (1, sum(one.lengths))
    assert packed.check_sum() == padded.check_sum()
    assert (packed.rows, packed.position, packed.num_tokens) == (padded.rows, padded.position, padded.num_tokens)
    counts, expected = vars(packed.token_counts), vars(padded.token_counts)
    assert counts | {"padded": 0} == expected | {"padded": 0}
    assert counts["padded"] == counts["inputs"]


@pytest.mark.parametrize("kind", MAKE)
def test_positions_begin_anew_in_each_text(kind):
    """Also where pairs and mismatched sequences follow each other."""
    for sequences in sequences_of(batch_of_rows(kind, [3, 4, 5], is_packed=True)):
        expected = [place for length in sequences.lengths for place in range(length)]
        assert positions_in(sequences.documents).tolist() == [expected]


@pytest.mark.parametrize("kind", MAKE)
def test_a_ghost_is_the_same_in_both_forms(kind):
    """One token without loss in each row."""
    padded, packed = (batch_of_rows(kind, [], is_packed=is_packed) for is_packed in (False, True))
    assert packed.sequences.inputs.shape == padded.sequences.inputs.shape == (2 if kind == "pairs" else 1, 1)
    assert packed.sequences.documents is None
    assert packed.token_counts == padded.token_counts == TokenCounts(padded=2 if kind == "pairs" else 1)
    assert packed.num_tokens == packed.check_sum() == 0


@pytest.mark.parametrize("kind", MAKE)
def test_one_text_alone_needs_no_documents(kind):
    """So attention is causal without a mask."""
    sequences = sequences_of(batch_of_rows(kind, [3], is_packed=True))
    assert [one.documents is None for one in sequences] == [kind != "pairs"] * len(sequences)


def text_with(documents):
    """Tokens with loss, with these document numbers."""
    ids = np.arange(len(documents), dtype=np.int32) + 65
    return Text(inputs=ids, labels=ids + 1, documents=np.array(documents, np.int32))


numbers = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(text_with)


@given(st.lists(numbers, min_size=1, max_size=5))
def test_a_text_keeps_its_own_documents_apart(texts):
    """A document begins where it did, and at each text. A text's numbers may begin anywhere and come again."""
    padded, packed = (batch_of(range(len(texts)), texts, is_packed=is_packed) for is_packed in (False, True))
    expected = sum(check_sum_of(row, text.parts()) for row, text in enumerate(texts))
    assert packed.check_sum() == padded.check_sum() == expected
    assert packed.sequences.squares == padded.sequences.squares
    places = [positions_in(torch.tensor(text.documents)[None])[0] for text in texts]
    assert positions_in(packed.sequences.documents)[0].tolist() == torch.cat(places).tolist()


@pytest.mark.parametrize("has_documents", [False, True])
def test_one_wrong_element_changes_the_checksum(has_documents):
    """An input, a label, or a document number that the text came with."""
    texts = [text_with([4, 4, 5]), text_with([1, 2])]
    texts = texts if has_documents else [Text(inputs=text.inputs, labels=text.labels) for text in texts]
    batch = batch_of([8, 9], texts, is_packed=True)
    whole, sequences = batch.check_sum(), batch.sequences
    for tensor in (sequences.inputs, sequences.labels, *([sequences.documents] if has_documents else [])):
        for place in range(5):
            tensor[0, place] += 1
            assert batch.check_sum() != whole
            tensor[0, place] -= 1
    assert batch.check_sum() == whole


def test_partners_may_be_any_rows():
    """Each prompt has its own partner's completion, and the same row may be a partner twice."""
    data = SampleSet(kind="feedback")
    batch = feedback_batch(data, [6, 2, 9], 0, partners=[2, 30, 30], is_packed=True)
    completions = [data.sample(row).completion.tolist() for row in (2, 30, 30)]
    labels = torch.split(batch.mismatched.labels[0], list(batch.mismatched.lengths))
    assert [label[label != NO_LOSS].tolist() for label in labels] == completions
    with pytest.raises(ValueError, match="shorter"):
        feedback_batch(data, [6, 2, 9], 0, partners=[2, 30])


def test_sequences_of_one_text_are_not_packed():
    """A text that is a packed row keeps its numbers as they are."""
    alone = Sequences.of([text_with([7, 7, 9])], is_packed=True)
    assert (alone.is_packed, alone.documents.tolist()) == (False, [[7, 7, 9]])
