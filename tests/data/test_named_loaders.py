"""The rules by which the DPO repository and HALOs make samples of the data sets that they name."""

import json
import random
from typing import get_args

import datasets
import numpy as np
import pytest
from byte_models import gpt
from rows_of import CLASSES

from planner.data.html_text import html_text
from planner.data.named_loaders import LOADERS
from planner.data.open import open_dataset
from planner.data.rows import open_rows
from planner.errors import DataError
from planner.job import LoaderName, RowSource


def loaded(tmp_path, loader, rows, kind="pairs", **keys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(open_rows(RowSource(path=str(path), loader=loader, **keys), takes_pairs=kind != "chat").read())


def fields(*arguments, **keys):
    found = loaded(*arguments, **keys)
    assert [row.flaw for row in found if row.flaw] == []
    return [row.fields for row in found]


def turn(role, content):
    return {"role": role, "content": content}


def user(content):
    return [turn("user", content)]


def assistant(content):
    return [turn("assistant", content)]


def test_every_name_has_a_loader():
    """The names of a job are those of the table."""
    assert set(get_args(LoaderName)) == set(LOADERS)


HH = [
    {"chosen": "\n\nHuman: a  b\n\nAssistant: c", "rejected": "\n\nHuman: a  b\n\nAssistant: d"},
    {"chosen": "\n\nHuman: a  b\n\nAssistant: e", "rejected": "\n\nHuman: a  b\n\nAssistant: f"},
    {
        "chosen": "\n\nHuman: x\n\nAssistant: y\n\nHuman: z\n\nAssistant: good  one",
        "rejected": "\n\nHuman: x\n\nAssistant: y\n\nHuman: z\n\nAssistant: bad",
    },
]


def test_hh_of_the_dpo_repository(tmp_path):
    """The prompt ends with the last word Assistant. sft imitates the last chosen completion of a prompt."""
    one, other = "\n\nHuman: a  b\n\nAssistant:", "\n\nHuman: x\n\nAssistant: y\n\nHuman: z\n\nAssistant:"
    assert fields(tmp_path, "dpo/hh", HH) == [
        {"prompt": one, "chosen": " c", "rejected": " d"},
        {"prompt": one, "chosen": " e", "rejected": " f"},
        {"prompt": other, "chosen": " good  one", "rejected": " bad"},
    ]
    assert fields(tmp_path, "dpo/hh", HH, kind="chat") == [
        {"prompt": one, "completion": " e"},
        {"prompt": other, "completion": " good  one"},
    ]


def test_hh_of_halos(tmp_path):
    """Messages without extra spaces. sft imitates the first chosen completion of a prompt."""
    other = [turn("user", "x"), turn("assistant", "y"), turn("user", "z")]
    assert fields(tmp_path, "halos/hh", HH) == [
        {"prompt": user("a b"), "chosen": assistant("c"), "rejected": assistant("d")},
        {"prompt": user("a b"), "chosen": assistant("e"), "rejected": assistant("f")},
        {"prompt": other, "chosen": assistant("good one"), "rejected": assistant("bad")},
    ]
    assert fields(tmp_path, "halos/hh", HH, kind="chat")[0]["completion"] == assistant("c")


def shp(history, a, b, score_a, score_b):
    label = int(score_a > score_b)
    return {
        "history": history,
        "human_ref_A": a,
        "human_ref_B": b,
        "score_A": score_a,
        "score_B": score_b,
        "labels": label,
    }


SHP = [shp("q", "one", "two", 10, 5), shp("q", "three", "four", 3, 4), shp("q", "five", "six", 7, 70)]


def test_shp_of_the_dpo_repository(tmp_path):
    """One score must be twice the other. sft imitates the completion with the highest score."""
    prompt = "\n\nHuman: q\n\nAssistant:"
    assert fields(tmp_path, "dpo/shp", SHP) == [
        {"prompt": prompt, "chosen": " one", "rejected": " two"},
        {"prompt": prompt, "chosen": " six", "rejected": " five"},
    ]
    assert fields(tmp_path, "dpo/shp", SHP, kind="chat") == [{"prompt": prompt, "completion": " six"}]


def test_shp_of_halos(tmp_path):
    """At most five pairs of a prompt, drawn with seed 0. The test split has all pairs. sft imitates the first one."""
    rows = [shp("q", f"a{i}", f"b{i}", 10, 1) for i in range(8)] + [shp("r", "c", "d", 4, 3)]
    chosen = random.Random(0).sample([f"a{i}" for i in range(8)], 5)
    assert [row["chosen"] for row in fields(tmp_path, "halos/shp", rows)] == [assistant(each) for each in chosen]
    assert fields(tmp_path, "halos/shp", rows, kind="chat") == [{"prompt": user("q"), "completion": assistant("a0")}]
    assert len(fields(tmp_path, "halos/shp", rows, split="test")) == 9


@pytest.mark.parametrize("score", [0, None, "3"])
def test_scores_must_be_numbers(tmp_path, score):
    """The row is named, as any bad row is."""
    found = loaded(tmp_path, "dpo/shp", [{**SHP[0], "score_B": score}])
    assert [row.flaw for row in found] == [f"score_A and score_B are 10 and {score}, and must be numbers above 0"]
    assert found[0].where.endswith("rows.jsonl:1")


def test_stack_exchange_of_the_dpo_repository(tmp_path):
    """All pairs of answers. Of equal scores the later one wins. The first hundredth of a shuffle is for test."""
    answers = [{"text": f"<p>{text}</p>", "pm_score": score} for text, score in (("a", 1), ("b", 3), ("c", 3))]
    row = {"question": "<p>How <b>so</b>?</p><pre><code>x\n</code></pre>", "answers": answers}
    prompt = "\n\nHuman: How ?\n\n<code>x\n</code>\n\nAssistant:"
    one = [{**row, "question": f"<p>{i}</p>"} for i in range(100)]
    assert fields(tmp_path, "dpo/se", [row]) == [
        {"prompt": prompt, "chosen": " b", "rejected": " a"},
        {"prompt": prompt, "chosen": " c", "rejected": " a"},
        {"prompt": prompt, "chosen": " c", "rejected": " b"},
    ]
    assert fields(tmp_path, "dpo/se", [row], kind="chat") == [{"prompt": prompt, "completion": " b"}]
    kept = datasets.Dataset.from_dict({"i": range(100)}).shuffle(seed=42).select(range(1))["i"]
    test = fields(tmp_path, "dpo/se", one, kind="chat", split="test")
    assert [each["prompt"] for each in test] == [f"\n\nHuman: {i}\n\nAssistant:" for i in kept]
    assert len(fields(tmp_path, "dpo/se", one, kind="chat")) == 99


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a</p>\n<p>b</p>", "a\n\nb"),
        ("text <p>a <a href='x'>link</a> b</p> more", "a  b"),
        (
            "<pre><code>x &lt; 1</code><code>y</code></pre><code>z</code>",
            "\n\n".join(f"<code>{c}</code>" for c in ("x < 1", "y", "z")),
        ),
        ("<ul><li>a</li></ul>", ""),
        ("", ""),
    ],
)
def test_the_text_of_html(html, text):
    """Paragraphs' own text and code. All else is left out, as the repository does."""
    assert html_text(html) == text


MESSAGES = [*user("q  r"), *assistant("good  one")]


@pytest.mark.parametrize(
    ("loader", "row"),
    [
        ("ultrabin", {"prompt": "q  r", "chosen": MESSAGES, "rejected": [*user("q"), *assistant("bad")]}),
        ("ultrafeedback_armorm", {"prompt": "q  r", "chosen": MESSAGES, "rejected": assistant("bad")}),
        ("safe_rlhf", {"prompt": "q  r", "response_0": "bad", "response_1": "good  one", "better_response_id": 1}),
        ("tulu_v25", {"chosen": MESSAGES, "rejected": [*user("other"), *assistant("bad")]}),
    ],
)
def test_pairs_of_halos(tmp_path, loader, row):
    """Each set has its own columns, and gives the same pair."""
    expected = {"prompt": user("q r"), "chosen": assistant("good one"), "rejected": assistant("bad")}
    assert fields(tmp_path, f"halos/{loader}", [row]) == [expected]
    imitated = fields(tmp_path, f"halos/{loader}", [row, row], kind="chat")
    assert imitated == [{"prompt": user("q r"), "completion": assistant("good one")}]


@pytest.mark.parametrize(
    ("loader", "row", "expected"),
    [
        (
            "ultrachat",
            {"prompt": "q", "messages": [*user("q"), *assistant("a  b"), *user("c"), *assistant("d")]},
            {"messages": [*user("q"), *assistant("a b"), *user("c"), *assistant("d")]},
        ),
        (
            "s1k_11",
            {"question": "q  r", "deepseek_thinking_trajectory": "hm  m", "deepseek_attempt": "42"},
            {
                "prompt": user("q  r"),
                "completion": assistant("<|im_start|>think\nhm  m\n<|im_start|>answer\n42"),
            },
        ),
        ("alpacaeval", {"instruction": "q", "output": "a"}, {"prompt": user("q"), "completion": assistant("a")}),
    ],
)
def test_conversations_of_halos(tmp_path, loader, row, expected):
    """They have no pairs."""
    split = "test" if loader == "alpacaeval" else "train"
    assert fields(tmp_path, f"halos/{loader}", [row], kind="chat", split=split) == [expected]
    assert fields(tmp_path, f"halos/{loader}", [row], split=split) == []


def test_oasst_of_halos(tmp_path):
    """Each ranked answer with the next better one. Answers below a message in another language are left out."""

    def message(key, parent, text, rank=None, role="assistant", lang="en"):
        return {"message_id": key, "parent_id": parent, "text": text, "rank": rank, "role": role, "lang": lang}

    rows = [
        message("m", None, "hello", role="prompter"),
        message("a", "m", "best", 0),
        message("c", "m", "worst", 2),
        message("b", "m", "second", 1),
        message("d", "m", "deutsch", 3, lang="de"),
        message("n", None, "hallo", role="prompter", lang="de"),
        message("e", "n", "one", 0),
        message("f", "n", "two", 1),
        message("g", "a", "more?", role="prompter"),
        message("h", "g", "alone", 1),
    ]
    pairs = [(row["prompt"], row["chosen"], row["rejected"]) for row in fields(tmp_path, "halos/oasst", rows)]
    assert pairs == [
        (user("hello"), assistant("second"), assistant("worst")),
        (user("hello"), assistant("best"), assistant("second")),
    ]


def test_a_loader_on_the_hub_has_its_own_splits(tmp_path):
    """Of a data set with the splits train_prefs and test_prefs, train is the first one."""
    row = {"prompt": "q", "chosen": [*user("q"), *assistant("a")], "rejected": [*user("q"), *assistant("b")]}
    for split, count in (("train_prefs", 3), ("test_prefs", 2)):
        rows = [{**row, "prompt": f"{split} {number}"} for number in range(count)]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "set" / f"{split}.parquet")
    (tmp_path / "set" / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train_prefs, path: train_prefs.parquet}\n"
        "  - {split: test_prefs, path: test_prefs.parquet}\n---\n"
    )
    source = RowSource(path=str(tmp_path / "set"), loader="halos/ultrabin")
    assert open_rows(source).count() == 3
    test = open_rows(source.model_copy(update={"split": "test"}))
    assert {row.fields["prompt"][0]["content"] for row in test.read(np.array([2, 0]))} == {"test_prefs 0"}
    with pytest.raises(DataError, match=r"'dev', but the loader halos/ultrabin has train and test\. Write"):
        open_rows(source.model_copy(update={"split": "dev"}))


@pytest.mark.parametrize(("kind", "num_rows"), [("pairs", 3), ("feedback", 6), ("chat", 2)])
def test_a_job_trains_on_such_rows(tmp_path, kind, num_rows):
    """Also as a set of a mixture."""
    path = tmp_path / "hh.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in HH))
    one = {"path": str(path), "loader": "dpo/hh"}
    settings = {"loss_on": "completions"} if kind == "chat" else {}
    assert open_dataset(CLASSES[kind](kind=kind, **one, **settings), gpt(200)).num_rows == num_rows
    mixed = open_dataset(CLASSES[kind](kind=kind, mixture=[one, {**one, "fraction": 2}], **settings), gpt(200))
    assert [each.num_rows for each in mixed.sets] == [num_rows, 2 * num_rows]
