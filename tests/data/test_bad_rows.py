"""Rows that cannot be used: every one is named with its place and its reason, and left out only where a job says so."""

import json
from pathlib import Path

import pytest
from byte_models import gpt
from rows_of import all_parts, assistant, opened, user

from planner.errors import DataError

HI, YO, NO = [user("hi")], [assistant("yo")], [assistant("no")]
GOOD = {
    "chat": {"messages": HI + YO},
    "pairs": {"prompt": HI, "chosen": YO, "rejected": NO},
    "feedback": {"prompt": HI, "completion": YO, "label": True},
}
BAD = [
    ("chat", {"conversations": [{"from": "human", "value": "hi"}]}, "conversations in ShareGPT's form"),
    ("chat", "{", "not JSON"),
    ("chat", "[" * 100_000, "nested too deeply"),
    ("chat", "[]", "an array instead of an object"),
    ("chat", "3", "a number instead of an object"),
    ("chat", {"messages": None}, r"the keys \(none\)"),
    ("chat", {"messages": "hi"}, "messages is a string, and must be a list"),
    ("chat", {"messages": []}, "messages is an empty list"),
    ("chat", {"messages": ["hi"]}, r"messages\[0\] is a string, and must be a message"),
    ("chat", {"messages": [{"content": "hi"}, *YO]}, r"messages\[0\].role is missing, and must be a text"),
    ("chat", {"messages": [{"role": 1, "content": "hi"}, *YO]}, r"messages\[0\].role is a number, and must be a text"),
    ("chat", {"messages": [{"role": "", "content": "hi"}, *YO]}, r"messages\[0\].role is empty, and must be a text"),
    ("chat", {"messages": [{"role": "user"}, *YO]}, r"messages\[0\].content is missing, and must be a text"),
    (
        "chat",
        {"messages": [{"role": "user", "content": 3}, *YO]},
        r"messages\[0\].content is a number, and must be a text",
    ),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "text"}]}, *YO]}, "a list of parts as content"),
    ("chat", '{"messages": [{"role": "\\ud800", "content": "hi"}]}', r"messages\[0\]\.role is not valid Unicode"),
    (
        "chat",
        '{"messages": [{"role": "user", "content": "a", "name": ["\\ud800"]}]}',
        r"messages\[0\]\.name is not valid Unicode",
    ),
    (
        "chat",
        '{"messages": [{"role": "assistant", "content": "a"}], "chat_template_kwargs": {"a": "\\ud800"}}',
        "chat_template_kwargs or tools is not valid Unicode",
    ),
    ("chat", {"messages": HI}, "messages ends with a message of user, not of the assistant"),
    ("chat", {"messages": [*HI, assistant("")]}, "messages ends with an empty message"),
    ("chat", '{"messages": [{"role": "user", "content": "\\ud800"}]}', r"messages\[0\] is not valid Unicode"),
    ("chat", {"messages": HI + YO, "chat_template_kwargs": 3}, "chat_template_kwargs is a number"),
    ("chat", {"messages": [user("h" * 90), *YO]}, "its prompt of 109 tokens leaves nothing of the completion"),
    ("pairs", {"prompt": 3, "chosen": YO, "rejected": NO}, "prompt is a number, and must be a list"),
    ("pairs", {"prompt": [], "chosen": YO, "rejected": NO}, "prompt has no messages"),
    ("pairs", {"prompt": HI, "chosen": YO, "rejected": "no"}, "one of chosen and rejected is a text"),
    ("pairs", {"prompt": HI, "chosen": "yo", "rejected": ""}, "prompt is an array, and must be a text"),
    ("pairs", {"prompt": "hi", "chosen": "yo", "rejected": ""}, "rejected is empty"),
    ("pairs", {"chosen": "hi yo", "rejected": "hi no"}, "do not show where their prompt ends"),
    ("pairs", {"chosen": YO, "rejected": NO}, "no common beginning to be their prompt"),
    ("pairs", {"prompt": HI, "chosen": YO, "rejected": []}, "rejected is an empty list"),
    ("pairs", {"prompt": HI, "chosen": YO, "rejected": [*NO, *HI]}, "rejected ends with a message of user"),
    ("pairs", {"prompt": HI, "chosen": YO, "rejected": [*NO, *HI, *YO]}, "messages of assistant, user, assistant"),
    ("pairs", {"prompt": HI, "chosen": YO, "rejected": YO}, "chosen and rejected are the same$"),
    ("pairs", {"chosen": HI + YO, "rejected": HI + YO}, "chosen and rejected are the same$"),
    (
        "pairs",
        {"prompt": "a", "chosen": "b" * 99 + "c", "rejected": "b" * 99 + "d"},
        "chosen and rejected are the same after the cut to model.context: 100 tokens",
    ),
    ("feedback", {"prompt": HI, "completion": YO, "label": "yes"}, "label is 'yes', and must be true or false"),
    ("feedback", {"prompt": HI, "completion": YO, "label": 2}, "label is 2, and must be true or false"),
    ("feedback", {"prompt": HI, "completion": YO, "label": [1]}, r"label is \[1\], and must be"),
    ("feedback", {"prompt": HI, "completion": 7, "label": 1}, "completion is a number, and must be a text or a list"),
    (
        "feedback",
        {"prompt": "hi", "completion": YO, "label": 1},
        "the prompt is a text, and its completion is mess",
    ),
    ("feedback", {"prompt": "hi" * 60, "completion": "yo", "label": 1}, "its prompt of 121 tokens leaves nothing"),
]


@pytest.mark.parametrize(("kind", "row", "says"), BAD, ids=[f"{kind} {says[:40]}" for kind, _, says in BAD])
def test_a_bad_row_is_named_or_left_out(kind, row, says, tmp_path):
    """Its line and the reason. With `skip`, the good ones are what they are without it."""
    rows = [GOOD[kind], row, GOOD[kind]]
    with pytest.raises(DataError, match=says) as raised:
        opened(kind, rows, tmp_path, model=gpt(100))
    first, named = str(raised.value).splitlines()
    assert first == "data.path: 1 of 3 rows cannot be used. Correct them, or write data.bad_rows: skip"
    assert named.startswith(f"  {tmp_path}/rows.jsonl:2: ")
    kept = opened(kind, rows, tmp_path, model=gpt(100), bad_rows="skip")
    assert all_parts(kept) == all_parts(opened(kind, [rows[0], rows[2]], tmp_path, model=gpt(100)))
    assert kept.notes[0].startswith("1 of 3 rows were left out (data.bad_rows: skip): 1 as ")


def test_many_bad_rows_are_counted_and_the_first_ones_named(tmp_path, monkeypatch):
    """In the order of the file. The paths are short: a message has at most 500 characters."""
    monkeypatch.chdir(tmp_path)
    rows = [GOOD["chat"], *({"messages": HI} for _ in range(7))]
    with pytest.raises(DataError) as raised:
        opened("chat", rows, Path())
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("data.path: 7 of 8 rows cannot be used")
    named = lines[1:-1]
    assert named[0].startswith("  rows.jsonl:2: ")
    assert named[1:] == [f"  rows.jsonl:{number}: the same" for number in range(3, 2 + len(named))]
    assert lines[-1] == f"  ... and {7 - len(named)} more"


def test_reasons_are_counted_by_what_they_have_in_common(tmp_path):
    """Rows that differ by a number have one reason."""
    rows = [GOOD["chat"], {"messages": HI}, *({"messages": [user("h" * n), *YO]} for n in (200, 201))]
    [note] = opened("chat", rows, tmp_path, model=gpt(100), bad_rows="skip").notes
    assert note.startswith(f"3 of 4 rows were left out (data.bad_rows: skip): 2 as {tmp_path}/rows.jsonl:3: its prompt")
    assert f"; 1 as {tmp_path}/rows.jsonl:2: messages ends" in note


def test_rows_of_an_array_have_numbers(tmp_path):
    """From 0, as `json.load` has them."""
    with pytest.raises(DataError, match=r"rows.json, row 1: messages ends with a message of user"):
        opened("chat", [GOOD["chat"], {"messages": HI}], tmp_path, as_array=True)


def test_an_array_that_breaks_off_is_refused_whatever_the_job_says(tmp_path):
    """planner cannot know what comes after that."""
    (tmp_path / "x").mkdir()
    with pytest.raises(DataError, match="begins like a JSON array but is not one"):
        opened("chat", [json.dumps(GOOD["chat"]), "{"], tmp_path, as_array=True, bad_rows="skip")


@pytest.mark.parametrize(
    ("rows", "says"), [([], "holds no rows"), ([{"a": 1}], "1 of 1 rows cannot be used. Correct them$")]
)
def test_data_without_a_usable_row_is_refused(rows, says, tmp_path):
    """With `skip`, too."""
    with pytest.raises(DataError, match=f"(?m){says}"):
        opened("chat", rows, tmp_path, bad_rows="skip")
