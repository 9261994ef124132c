"""Which shapes of rows which kind of data takes, and what samples they make: with bytes, so that all can be read."""

import pytest
from rows_of import all_parts, assistant, opened, user

from planner.errors import DataError

HI, YO, NO = [user("hi")], [assistant("yo")], [assistant("no")]
PROMPT = b"\0user: hi\nassistant: "

HALOS_SAMPLE = {"type": "sample", "prompt_id": 1, "sample_id": 0, "prompt": HI, "output": "yo", "dataset": "x"}
HALOS_BINARY = {"type": "binary_feedback", "prompt": HI, "output": YO, "label": 0, "reward": -1.5}
HALOS_PAIR = {"type": "pairwise_feedback", "prompt": HI, "output_A": NO, "output_B": YO, "label": 0}
PAIR = {"prompt": "hi ", "chosen": "yo", "rejected": "no"}
PAIR_OF_MESSAGES = {"prompt": HI, "chosen": YO, "rejected": NO}
# As UltraFeedback has it: the prompt a text, the completions whole conversations, and messages besides.
ULTRAFEEDBACK = {"prompt": "hi", "chosen": HI + YO, "rejected": HI + NO, "messages": HI + YO, "score_chosen": 8}
LABELLED = {"prompt": "hi ", "completion": "yo", "label": False}

SAMPLES = {
    "chat": [
        ({"messages": HI + YO}, [(PROMPT, b"yo\0")]),
        ({"messages": HI + YO, "prompt": "hi", "prompt_id": "7"}, [(PROMPT, b"yo\0")]),
        ({"prompt": "hi ", "completion": "yo"}, [(b"\0hi ", b"yo\0")]),
        ({"prompt": HI, "completion": YO}, [(PROMPT, b"yo\0")]),
        ({"prompt": HI, "completion": "yo"}, [(PROMPT, b"yo\0")]),
        ({"prompt": "", "completion": "yo"}, [(b"\0", b"yo\0")]),
        (HALOS_SAMPLE, [(PROMPT, b"yo\0")]),
        (HALOS_PAIR, [(PROMPT, b"yo\0")]),
        (PAIR, [(b"\0hi ", b"yo\0")]),
        (ULTRAFEEDBACK, [(PROMPT, b"yo\0")]),
    ],
    "pairs": [
        (PAIR, [(b"\0hi ", b"yo\0", b"no\0")]),
        (PAIR_OF_MESSAGES, [(PROMPT, b"yo\0", b"no\0")]),
        ({"chosen": HI + YO, "rejected": HI + NO}, [(PROMPT, b"yo\0", b"no\0")]),
        (ULTRAFEEDBACK, [(PROMPT, b"yo\0", b"no\0")]),
        (HALOS_PAIR, [(PROMPT, b"yo\0", b"no\0")]),
        (HALOS_PAIR | {"label": True}, [(PROMPT, b"no\0", b"yo\0")]),
        (HALOS_PAIR | {"output_A": "A", "output_B": "B"}, [(PROMPT, b"B\0", b"A\0")]),
    ],
    "feedback": [
        (LABELLED, [(b"\0hi ", b"yo\0", False)]),
        (LABELLED | {"label": 1}, [(b"\0hi ", b"yo\0", True)]),
        ({"prompt": HI, "completion": YO, "label": True}, [(PROMPT, b"yo\0", True)]),
        (HALOS_BINARY, [(PROMPT, b"yo\0", False)]),
        (HALOS_BINARY | {"label": 1}, [(PROMPT, b"yo\0", True)]),
        (PAIR, [(b"\0hi ", b"yo\0", True), (b"\0hi ", b"no\0", False)]),
        (HALOS_PAIR, [(PROMPT, b"yo\0", True), (PROMPT, b"no\0", False)]),
    ],
}
ALL = [
    pytest.param(kind, row, found, id=f"{kind}-{i}") for kind in SAMPLES for i, (row, found) in enumerate(SAMPLES[kind])
]


@pytest.mark.parametrize("as_array", [False, True], ids=["lines", "array"])
@pytest.mark.parametrize(("kind", "row", "found"), ALL)
def test_a_row_makes_its_samples(kind, row, found, as_array, tmp_path):
    """Of a JSON array as of lines. What else a row has is left alone, and null is as good as nothing."""
    dataset = opened(kind, [row, row | {"score": None, "label_": 3}], tmp_path, as_array=as_array)
    assert all_parts(dataset) == found * 2


@pytest.mark.parametrize(
    ("kind", "row", "says"),
    [
        ("chat", LABELLED, "prompt and completion have a label"),
        ("chat", HALOS_BINARY, "HALOs' type: binary_feedback, and data.kind chat takes"),
        ("pairs", LABELLED, "data.kind pairs takes one of: HALOs' type: pairwise_feedback; chosen, rejected"),
        ("pairs", {"messages": HI + YO}, "messages, and data.kind pairs takes one of"),
        ("feedback", {"messages": HI + YO}, "data.kind feedback takes one of"),
        ("feedback", {"prompt": "a", "completion": "b"}, "prompt, completion, and data.kind feedback takes"),
        ("feedback", {"type": "scalar_feedback", "prompt": HI, "output": YO, "reward": 1.5}, "by a threshold"),
        ("chat", {"question": 1, "answer": 2}, "the keys answer, question, and data.kind chat takes"),
        ("chat", {}, r"the keys \(none\)"),
    ],
)
def test_a_row_of_another_kind_is_refused(kind, row, says, tmp_path):
    """With what the kind takes."""
    with pytest.raises(DataError, match=says) as raised:
        opened(kind, [row], tmp_path)
    assert f"{tmp_path}/rows.jsonl:1: " in str(raised.value)


def test_a_text_bears_loss_everywhere_or_nowhere(tmp_path):
    """It has no completion: a job that asks for its loss alone is told so, before all rows are found bad."""
    with pytest.raises(DataError, match=r"Write data\.loss_on: all"):
        opened("chat", [{"text": "abc"}], tmp_path, bad_rows="skip")
    sample = opened("chat", [{"text": "abc"}], tmp_path, loss_on="all").sample(0)
    assert (sample.inputs.tolist(), sample.labels.tolist()) == ([0, 97, 98, 99], [97, 98, 99, 0])


@pytest.mark.parametrize(
    ("row", "labels"),
    [({"messages": HI + YO}, b"user: hi\nassistant: yo\0"), ({"prompt": "hi ", "completion": "yo"}, b"hi yo\0")],
)
def test_loss_on_all_is_on_the_prompt_too(row, labels, tmp_path):
    """Every token but the first is predicted."""
    sample = opened("chat", [row], tmp_path, loss_on="all").sample(0)
    assert bytes(sample.labels.tolist()) == labels


def test_every_turn_of_the_assistant_bears_loss(tmp_path):
    """And nothing else does."""
    messages = [{"role": "system", "content": "be brief"}, *HI, *YO, user("why?"), assistant("so")]
    sample = opened("chat", [{"messages": messages}], tmp_path).sample(0)
    assert bytes(sample.inputs.tolist()) == b"\0system: be brief\nuser: hi\nassistant: yo\0\nuser: why?\nassistant: so"
    assert bytes(sample.labels[sample.labels >= 0].tolist()) == b"yo\0so\0"
    assert sample.labels[-3:].tolist() == list(b"so\0")


def test_rows_of_two_formats_are_refused_at_the_first_that_differs(tmp_path):
    """Even where bad rows are left out: the row is a good one, of another data set."""
    rows = [PAIR, PAIR, PAIR | {"type": "pairwise_feedback"}, HALOS_PAIR]
    with pytest.raises(DataError, match=r"rows.jsonl:4: a row of HALOs' type: pairwise_feedback, after rows of chosen"):
        opened("pairs", rows, tmp_path, bad_rows="skip")


def test_a_prompt_is_what_both_conversations_begin_with(tmp_path):
    """As far as they are alike, and never their last message."""
    begin = [*HI, *YO, user("again")]
    row = {"chosen": [*begin, assistant("a")], "rejected": [*begin, assistant("b")]}
    [(prompt, chosen, rejected)] = all_parts(opened("pairs", [row], tmp_path))
    assert prompt == b"\0user: hi\nassistant: yo\0\nuser: again\nassistant: "
    assert (chosen, rejected) == (b"a\0", b"b\0")
