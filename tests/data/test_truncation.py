"""Samples that are too long, and several in a row: properties, against another way to say the same."""

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from byte_models import gpt
from hypothesis import given
from hypothesis import strategies as st
from rows_of import all_parts, as_bytes, assistant, opened, user

from planner.data.packing import pack
from planner.data.samples import check_sum_of
from planner.data.shared_array import SharedArray
from planner.data.truncation import LengthLimits
from planner.errors import DataError

lengths = st.integers(1, 30)


def ids(start, length):
    return np.arange(start, start + length, dtype=np.int32)


@given(
    prompt=lengths, first=lengths, second=lengths, context=lengths, most=st.none() | lengths, begin=st.integers(0, 1),
    side=st.sampled_from(["start", "end"]),
)  # fmt: skip
def test_what_is_cut_is_the_prompt_first_and_then_the_ends(prompt, first, second, context, most, begin, side):
    """The rule of the DPO repository and HALOs: nothing where all fits, and the longer completion decides."""
    begin = min(begin, prompt)
    whole, completions = ids(0, prompt), [ids(100, first), ids(200, second)]
    cut = LengthLimits(context=context, max_prompt=most, side=side)
    found = cut.completions(whole, completions, begin)
    is_long = prompt + max(first, second) > context
    kept = min(prompt, most) if most and is_long else prompt
    if kept >= context:
        assert found is None
        return
    expected = whole.tolist()
    if kept < prompt:
        expected = expected[:kept] if side == "end" else expected[:begin] + expected[prompt - kept + begin :]
    assert found[0].tolist() == expected
    room = context - kept
    assert [part.tolist() for part in found[1:]] == [c.tolist()[:room] for c in completions]
    if not is_long:
        assert sum(map(len, found)) == prompt + first + second


@given(sizes=st.lists(lengths, min_size=1, max_size=60), slack=st.integers(0, 40))
def test_packing_loses_nothing_and_overfills_no_row(sizes, slack):
    """Every document is in one row. No two rows would fit into one. The order within a row is that of the numbers."""
    capacity = max(sizes) + slack
    documents, starts = pack(np.array(sizes), capacity)
    assert sorted(documents.tolist()) == list(range(len(sizes)))
    assert (starts[0], starts[-1]) == (0, len(sizes))
    rows = [documents[a:b].tolist() for a, b in itertools.pairwise(starts)]
    fill = [sum(sizes[d] for d in row) for row in rows]
    assert all(row == sorted(row) and row for row in rows)
    assert max(fill) <= capacity
    assert sum(sorted(fill)[:2]) > capacity or len(fill) == 1


@given(sizes=st.lists(lengths, min_size=1, max_size=40), capacity=st.integers(30, 50))
def test_packing_puts_each_document_where_it_fits_best(sizes, capacity):
    """Against a search through all rows."""
    free, row_of = [], {}
    for document in sorted(range(len(sizes)), key=lambda d: (-sizes[d], d)):
        fitting = [row for row in range(len(free)) if free[row] >= sizes[document]]
        row = min(fitting, key=lambda r: free[r], default=len(free))
        free += [capacity] * (row == len(free))
        free[row] -= sizes[document]
        row_of[document] = row
    documents, starts = pack(np.array(sizes), capacity)
    filled = [sum(sizes[d] for d in documents[a:b]) for a, b in itertools.pairwise(starts)]
    assert sorted(filled) == sorted(capacity - left for left in free)


def test_packing_is_quick():
    """100,000 documents in a context of 65,536: to look through all rows for each would take minutes."""
    sizes = np.random.default_rng(0).integers(1, 65_536, 100_000)
    documents, starts = pack(sizes, 65_536)
    assert len(documents) == 100_000
    assert sizes.sum() / (len(starts) - 1) / 65_536 > 0.99


words = st.text("abc", min_size=1, max_size=12)
turns = st.lists(st.tuples(words, words), min_size=1, max_size=3)


def borne(text):
    return sorted(label for label in text.labels.tolist() if label >= 0)


@given(rows=st.lists(turns, min_size=1, max_size=12), context=st.integers(40, 140))
def test_packed_rows_hold_the_conversations_as_they_are_alone(tmp_path_factory, rows, context):
    """Inputs, labels and so every token that bears loss, exactly once. Documents are numbered from 0 in each row."""
    folder = tmp_path_factory.mktemp("rows")
    dicts = [{"messages": [t for a, b in row for t in (user(a), assistant(b))]} for row in rows]
    alone = opened("chat", dicts, folder, model=gpt(context))
    together = opened("chat", dicts, folder, model=gpt(context), packing=True)
    found = []
    for row in range(together.num_rows):
        text = together.sample(row)
        assert len(text.inputs) == len(text.labels) == len(text.documents) <= context
        numbers = text.documents.tolist()
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(numbers[-1] + 1))
        for number in set(numbers):
            of_it = text.documents == number
            found.append((as_bytes(text.inputs[of_it]), text.labels[of_it].tolist()))
    samples = [alone.sample(row) for row in range(alone.num_rows)]
    assert sorted(found) == sorted((as_bytes(s.inputs), s.labels.tolist()) for s in samples)
    assert together.notes[-1].startswith(f"{len(rows)} conversations are packed into {together.num_rows} rows")


def test_a_long_prompt_is_cut_where_the_job_says(tmp_path):
    """At its start, the beginning kept, or at its end. The note has the number of rows and tokens."""
    rows = [{"prompt": "abcdefgh", "completion": "xyz"}, {"prompt": "a", "completion": "x"}]
    cut = {"model": gpt(8), "max_prompt": 4}
    assert all_parts(opened("chat", rows, tmp_path, **cut))[0] == (b"\0fgh", b"xyz\0")
    dataset = opened("chat", rows, tmp_path, **cut, cut_prompt="end")
    assert all_parts(dataset) == [(b"\0abc", b"xyz\0"), (b"\0a", b"x\0")]
    [note] = dataset.notes
    assert note == "1 of 2 samples were cut to model.context: 8 tokens. 5 of 17 tokens are left out"


def test_without_max_prompt_the_end_is_cut_and_a_vanished_completion_is_bad(tmp_path):
    """A row without a token to learn from would be a sample of nothing."""
    rows = [{"prompt": "abcdef", "chosen": "xyz", "rejected": "uvw"}]
    assert all_parts(opened("pairs", rows, tmp_path, model=gpt(9))) == [(b"\0abcdef", b"xy", b"uv")]
    with pytest.raises(DataError, match="its prompt of 7 tokens leaves nothing of the completion within"):
        opened("pairs", rows, tmp_path, model=gpt(7))


def test_evidence_is_of_all_that_a_sample_holds(tmp_path):
    """Tokens that bear loss, and the checksum of what a batch will hold. Another label is another checksum."""
    rows = {"feedback": [{"prompt": "a", "completion": "bc", "label": label} for label in (True, False)]}
    rows["pairs"] = [
        {"prompt": "a", "chosen": "bc", "rejected": "de"},
        {"prompt": "a", "chosen": "de", "rejected": "bc"},
    ]
    rows["chat"] = [{"messages": [user("a"), assistant("b")]}, {"messages": [user("a"), assistant("c")]}]
    for kind, tokens in (("feedback", 3), ("pairs", 6), ("chat", 2)):
        dataset = opened(kind, rows[kind], tmp_path)
        found = [dataset.evidence(row) for row in (0, 1)]
        sums = [check_sum_of(row, dataset.sample(row).parts()) for row in (0, 1)]
        assert found == [(tokens, sums[0]), (tokens, sums[1])]
        assert check_sum_of(0, dataset.sample(1).parts()) != sums[0]


@pytest.mark.parametrize(
    ("settings", "is_other"),
    [({}, False), ({"bad_rows": "skip"}, False), ({"packing": True}, True), ({"loss_on": "all"}, True),
     ({"max_prompt": 5}, True), ({"max_prompt": 5, "cut_prompt": "end"}, True), ({"model": gpt(20)}, True)],
)  # fmt: skip
def test_the_fingerprint_is_of_the_samples(settings, is_other, tmp_path):
    """What makes other samples makes another data set, and nothing else does."""
    rows = [{"prompt": "a long prompt", "completion": "and what follows it"}] * 3
    usual = opened("chat", rows, tmp_path, model=gpt(30)).fingerprint
    assert (opened("chat", rows, tmp_path, **{"model": gpt(30), **settings}).fingerprint != usual) == is_other
    assert opened("chat", rows[:2], tmp_path, model=gpt(30)).fingerprint != usual
    pair = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    assert len({opened(kind, pair, tmp_path).fingerprint for kind in ("chat", "pairs", "feedback")}) == 3


@pytest.mark.process
def test_a_loader_process_maps_the_tokens(tmp_path):
    """What is sent to it does not grow with the data, and is of no use when this process is gone."""
    rows = [{"prompt": "a" * 100, "chosen": "b" * n, "rejected": "c"} for n in range(1, 500)]
    dataset = opened("pairs", rows, tmp_path)
    sent = pickle.dumps(dataset)
    assert len(sent) < 2000 < dataset.tokens.array.nbytes
    code = (
        "import pickle, sys; d = pickle.loads(sys.stdin.buffer.read());"
        "print(d.num_rows, d.fingerprint, d.sample(498).chosen.inputs.sum())"
    )
    found = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True).stdout.split()
    expected = [dataset.num_rows, dataset.fingerprint, dataset.sample(498).chosen.inputs.sum()]
    assert [word.decode() for word in found] == [str(value) for value in expected]
    del dataset
    with pytest.raises(DataError, match="the process that holds the data at /proc/"):
        pickle.loads(sent)


@given(parts=st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=4))
def test_a_column_is_what_was_appended(parts):
    """Of its dtype, and read-only."""
    column = SharedArray.new("<i4")
    for part in parts:
        column.append(part)
    assert column.array.tolist() == [value for part in parts for value in part]
    assert column.array.dtype == np.int32
    assert not column.array.flags.writeable or not column.array.size
    assert pickle.loads(pickle.dumps(column)).array.tolist() == column.array.tolist()


def test_samples_may_be_written_to(tmp_path):
    """torch wants that of what it takes over. The data set does not change."""
    dataset = opened("chat", [{"prompt": "a", "completion": "b"}], tmp_path)
    dataset.sample(0).inputs[:] = 7
    assert as_bytes(dataset.sample(0).inputs) == b"\0ab"
