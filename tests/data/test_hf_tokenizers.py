"""Tokenizers and chat templates of Hugging Face models, trained here: what a sample's tokens are, and whose."""

import itertools
import json
import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rows_of import assistant, opened, user
from tiny_tokenizers import CHATML, CHATML_MARKED, ZEPHYR, byte_level, sentence_piece

from planner.data.open import open_dataset
from planner.errors import DataError
from planner.job import ChatData, HfModel

HI, YO = [user("hello there")], [assistant("how are you")]


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Name -> a folder with a tokenizer and a config."""
    root = tmp_path_factory.mktemp("tokenizers")
    makers = {
        "chatml": lambda f: byte_level(f, CHATML),
        "marked": lambda f: byte_level(f, CHATML_MARKED),
        "plain": lambda f: byte_level(f, None),
        "zephyr": lambda f: sentence_piece(f, ZEPHYR),
        "small": lambda f: byte_level(f, CHATML, vocab_size=320),
    }
    for name, make in makers.items():
        (root / name).mkdir()
        make(root / name)
    return root


def model(folder, context=1000, **settings):
    return HfModel(kind="hf", path=str(folder), context=context, **settings)


@cache
def loaded(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def whole(text):
    """All tokens of a text: its inputs and its last label."""
    return [*text.inputs.tolist(), text.labels.tolist()[-1]]


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


contents = st.text(st.sampled_from("aé日 \n.helo"), min_size=1, max_size=12).filter(str.strip)


@examples(25)
@given(
    turns=st.lists(st.tuples(contents, contents), min_size=1, max_size=3), name=st.sampled_from(["chatml", "zephyr"])
)
def test_the_tokens_that_bear_loss_are_the_assistants_words(tmp_path_factory, folders, turns, name):
    """Against text: the tokens of each stretch, decoded, are what the template writes from one place to the next."""
    messages = [turn for a, b in turns for turn in (user(a), assistant(b))]
    text = opened("chat", [{"messages": messages}], tmp_path_factory.mktemp("r"), model=model(folders / name)).sample(0)
    tokenizer = loaded(folders / name)
    expected = []
    for number in range(1, len(messages), 2):
        before = tokenizer.apply_chat_template(messages[:number], tokenize=False, add_generation_prompt=True)
        after = tokenizer.apply_chat_template(messages[: number + 1], tokenize=False)
        expected.append(after[len(before) :])
    all_words = tokenizer.apply_chat_template(messages, tokenize=False)
    found = ["".join(run) for run in _runs(tokenizer, text)]
    assert "".join(found).removeprefix("<s>").replace(" ", "") == all_words.replace(" ", "")
    # SentencePiece decodes a first blank away; blanks apart, every stretch is the assistant's to the letter.
    assert [run.replace(" ", "") for run in found[1::2]] == [words.replace(" ", "") for words in expected]


def _runs(tokenizer, text):
    """Neighbouring tokens with and without loss, each stretch decoded, the first one without."""
    ids, is_borne = whole(text), [False, *(text.labels >= 0).tolist()]
    edges = [0, *(i for i in range(1, len(ids)) if is_borne[i] != is_borne[i - 1]), len(ids)]
    for start, stop in itertools.pairwise(edges):
        yield tokenizer.decode(ids[start:stop], clean_up_tokenization_spaces=False)


def test_a_template_that_marks_the_assistant_is_believed(folders, tmp_path):
    """transformers' own mask, which leaves the line's end after a turn out."""
    messages = [*HI, *YO, user("fine"), assistant("thank you")]
    text = opened("chat", [{"messages": messages}], tmp_path, model=model(folders / "marked")).sample(0)
    out = loaded(folders / "marked").apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    assert text.inputs.tolist() == out["input_ids"][:-1]
    assert (text.labels >= 0).tolist() == [bool(m) for m in out["assistant_masks"][1:]]
    assert (
        sum(out["assistant_masks"])
        < opened("chat", [{"messages": messages}], tmp_path, model=model(folders / "chatml")).sample(0).num_tokens
    )


@pytest.mark.parametrize("name", ["chatml", "plain", "zephyr"])
def test_texts_begin_and_end_once(name, folders, tmp_path):
    """With the tokenizer's own beginning, if it has one, and its end-of-sequence token, whether written or not."""
    tokenizer = loaded(folders / name)
    begin, end = ([tokenizer.bos_token_id] if name == "zephyr" else []), tokenizer.eos_token_id
    rows = [{"prompt": "hello ", "completion": "there"}]
    rows.append({"prompt": f"{tokenizer.bos_token or ''}hello ", "completion": f"there{tokenizer.eos_token}"})
    dataset = opened("chat", rows, tmp_path, model=model(folders / name))
    first, second = (whole(dataset.sample(row)) for row in (0, 1))
    assert first == second
    assert first[: len(begin)] == begin
    assert (first.count(end), first[-1]) == (1, end)
    assert begin == [] or first.count(begin[0]) == 1
    plain = opened("chat", [{"text": "hello there"}], tmp_path, model=model(folders / name), loss_on="all").sample(0)
    assert whole(plain) == [*begin, *ids_of(tokenizer, "hello there"), end]


def test_a_template_that_writes_no_end_gets_one(folders, tmp_path):
    """Else the model would never learn to stop. Where a line's end comes after it, it is there already."""
    (tmp_path / "open.jinja").write_text(
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    )
    tokenizer = loaded(folders / "chatml")
    row = {"messages": HI + YO}
    bare = opened(
        "chat", [row], tmp_path, model=model(folders / "chatml", chat_template=str(tmp_path / "open.jinja"))
    ).sample(0)
    assert whole(bare) == [*ids_of(tokenizer, "user: hello there\nassistant: how are you\n"), tokenizer.eos_token_id]
    assert bare.labels[-1] == tokenizer.eos_token_id
    closed = opened("chat", [row], tmp_path, model=model(folders / "chatml")).sample(0)
    assert whole(closed).count(tokenizer.eos_token_id) == 2  # one for each message
    assert tokenizer.decode(whole(closed)[-2:]) == "<|im_end|>\n"


@given(prompt=contents, completion=contents, name=st.sampled_from(["plain", "zephyr"]))
def test_a_prompt_has_the_tokens_that_it_has_alone(tmp_path_factory, folders, prompt, completion, name):
    """Whatever follows it: the same in both completions of a pair, and what a model would be asked with."""
    row = {"prompt": prompt, "chosen": completion, "rejected": f"{completion}!"}
    pair = opened("pairs", [row], tmp_path_factory.mktemp("r"), model=model(folders / name)).sample(0)
    tokenizer = loaded(folders / name)
    alone = [*([tokenizer.bos_token_id] if name == "zephyr" else []), *ids_of(tokenizer, prompt)]
    for text, words in ((pair.chosen, completion), (pair.rejected, f"{completion}!")):
        borne = text.labels[text.labels >= 0].tolist()
        assert whole(text) == alone + borne
        joint = ids_of(tokenizer, prompt + words)
        cut = len(ids_of(tokenizer, prompt))
        follows = joint[cut:] if joint[:cut] == ids_of(tokenizer, prompt) else ids_of(tokenizer, words)
        assert borne == [*follows, tokenizer.eos_token_id]


def test_pairs_and_feedback_take_messages_up_to_where_the_assistant_goes_on(folders, tmp_path):
    """The template's words before and after that place."""
    tokenizer = loaded(folders / "chatml")
    row = {"prompt": HI, "chosen": YO, "rejected": [assistant("fine")]}
    pair = opened("pairs", [row], tmp_path, model=model(folders / "chatml")).sample(0)
    prompt = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"
    assert whole(pair.rejected) == [*ids_of(tokenizer, prompt), *ids_of(tokenizer, "fine<|im_end|>\n")]
    first, second = (
        opened("feedback", [row], tmp_path, model=model(folders / "chatml")).sample(number) for number in (0, 1)
    )
    assert first.prompt.tolist() == second.prompt.tolist() == ids_of(tokenizer, prompt)
    assert first.completion.tolist() == ids_of(tokenizer, "how are you<|im_end|>\n")
    assert (first.is_desirable, second.is_desirable) == (True, False)


def test_a_template_that_moves_words_is_refused(folders, tmp_path):
    """As Qwen3's, which takes the thoughts of earlier turns out: what the assistant wrote there cannot be told."""
    template = tmp_path / "moving.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' and loop.last %}"
        "think {% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    moving = model(folders / "chatml", chat_template=str(template))
    assert opened("chat", [{"messages": HI + YO}], tmp_path, model=moving).num_rows == 1
    several = [{"messages": HI + YO + HI + YO}]
    with pytest.raises(DataError, match="writes a message differently when more come after it"):
        opened("chat", several, tmp_path, model=moving)
    assert opened("chat", several, tmp_path, model=moving, loss_on="all").num_rows == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for %}", "is not valid Jinja"),
        ("{{ raise_exception('no system') }}", "the chat template refuses it: no system"),
        ("{{ messages[0].nothing.there }}", "the chat template refuses it: "),
        ("{{ messages[0]['content'] }}", "the chat template writes nothing for the completion"),
    ],
)
def test_a_template_that_fails_is_named(source, says, folders, tmp_path):
    """Its own words."""
    (tmp_path / "t.jinja").write_text(source)
    with pytest.raises(DataError, match=says):
        opened(
            "chat", [{"prompt": HI, "completion": YO}], tmp_path,
            model=model(folders / "chatml", chat_template=str(tmp_path / "t.jinja")),
        )  # fmt: skip


def test_a_row_may_have_settings_of_its_template(folders, tmp_path):
    """`chat_template_kwargs`, as TRL has them, and `tools`."""
    (tmp_path / "t.jinja").write_text(
        "{% if tools %}{{ tools[0]['name'] }} {% endif %}{% for m in messages %}{{ m['role'][0] }}{{ sign }}"
        "{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}a{{ sign }}{% endif %}"
    )
    row = {"messages": HI + YO, "chat_template_kwargs": {"sign": "=", "more": None}, "tools": [{"name": "sum"}]}
    text = opened(
        "chat", [row], tmp_path, model=model(folders / "chatml", chat_template=str(tmp_path / "t.jinja"))
    ).sample(0)
    assert loaded(folders / "chatml").decode(whole(text)) == "sum u=hello there a=how are you <|im_end|>"


def test_a_template_that_asks_for_the_date_gets_the_same_one_every_day(folders, tmp_path):
    """Llama's templates do: a run of two days would have two data sets."""
    (tmp_path / "t.jinja").write_text("{{ strftime_now('%d %b %Y') }}\n" + CHATML)
    text = opened(
        "chat",
        [{"messages": HI + YO}],
        tmp_path,
        model=model(folders / "chatml", chat_template=str(tmp_path / "t.jinja")),
    ).sample(0)
    assert loaded(folders / "chatml").decode(whole(text)).startswith("26 Jul 2024\n<|im_start|>user\n")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (5, r"the chat_template of its tokenizer is 5 \(a number\), and must be a string"),
        ([{"name": "default", "template": True}], r"is true \(a boolean\), and must be a string"),
        ([{"name": "x\x1b", "template": ""}], r"has the chat templates 'x\\x1b', and none is 'default'"),
    ],
)
def test_a_template_of_a_wrong_type_is_not_said_to_be_missing(found, says, folders, tmp_path):
    shutil.copytree(folders / "plain", tmp_path / "odd")
    settings = tmp_path / "odd" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": found}))
    with pytest.raises(DataError, match=says):
        opened("chat", [{"messages": HI + YO}], tmp_path, model=model(tmp_path / "odd"))


def test_messages_without_a_template_are_refused(folders, tmp_path):
    """And texts are not: they need none."""
    bare = model(folders / "plain")
    with pytest.raises(DataError, match=r"has no chat template, and the rows are messages\. Name a Jinja file"):
        opened("chat", [{"messages": HI + YO}], tmp_path, model=bare)
    with pytest.raises(DataError, match=r"model.chat_template: cannot read gone.jinja .*: No such file"):
        opened("chat", [{"messages": HI + YO}], tmp_path, model=model(folders / "plain", chat_template="gone.jinja"))
    assert opened("chat", [{"prompt": "hello", "completion": "you"}], tmp_path, model=bare).num_rows == 1


def test_an_empty_prompt_needs_a_tokenizer_that_begins_texts(folders, tmp_path):
    """Else nothing would predict the completion's first token."""
    row = {"prompt": "", "completion": "how"}
    with pytest.raises(DataError, match="its prompt is empty, and this tokenizer adds no token"):
        opened("feedback", [row | {"label": 1}], tmp_path, model=model(folders / "chatml"))
    text = opened("chat", [row], tmp_path, model=model(folders / "zephyr")).sample(0)
    assert text.labels.tolist() == [*ids_of(loaded(folders / "zephyr"), "how"), 2]


def test_tokens_that_the_model_does_not_know_are_refused(folders, tmp_path):
    """A config of another model."""
    import shutil

    shutil.copytree(folders / "plain", tmp_path / "other")
    config = (tmp_path / "other" / "config.json").read_text()
    (tmp_path / "other" / "config.json").write_text(config.replace('"vocab_size": ', '"vocab_size": 10, "x": '))
    with pytest.raises(DataError, match=r"rows.jsonl:1: it has token \d+, and the model knows 10, from 0"):
        opened("chat", [{"prompt": "hello", "completion": "you"}], tmp_path, model=model(tmp_path / "other"))


def test_another_tokenizer_makes_another_data_set(folders, tmp_path):
    """Another template makes another data set. A template that writes the same text does not."""
    rows = [{"messages": HI + YO}]

    def fingerprint(**settings):
        folder = settings.pop("folder", "chatml")
        return opened("chat", rows, tmp_path, model=model(folders / folder, **settings)).fingerprint

    (tmp_path / "same.jinja").write_text(CHATML)
    (tmp_path / "other.jinja").write_text(CHATML.replace("'\\n'", "' '"))
    usual = fingerprint()
    assert fingerprint(chat_template=str(tmp_path / "same.jinja")) == usual
    assert fingerprint(chat_template=str(tmp_path / "other.jinja")) != usual
    assert len({fingerprint(folder=name) for name in ("chatml", "marked", "small", "zephyr")}) == 4


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_folder_without_a_tokenizer_is_refused(content, tmp_path, monkeypatch):
    """In one line of planner's own, and without a look at the hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "model").mkdir()
    if content:
        (tmp_path / "model" / "config.json").write_text(content)
    with pytest.raises(DataError, match=r"^model.path: the tokenizer of .*model cannot be loaded: [^\n]+$"):
        opened("chat", [{"messages": HI + YO}], tmp_path, model=model(tmp_path / "model"))


def test_tokenizing_in_one_batch_or_in_many_is_the_same(folders, tmp_path, monkeypatch):
    """A row's tokens are its own business."""
    from planner.data import ahead_sets

    rows = [{"messages": [user("hello" * n), assistant("you " * n)]} for n in range(1, 12)]
    usual = opened("chat", rows, tmp_path, model=model(folders / "chatml"))
    monkeypatch.setattr(ahead_sets, "_ROWS_PER_BATCH", 3)
    assert opened("chat", rows, tmp_path, model=model(folders / "chatml")).fingerprint == usual.fingerprint
    assert np.diff(usual.ends.array).min() > 0


def test_the_template_that_comes_with_the_jobs_is_zephyrs(folders, tmp_path):
    """For models without one: token for token what Zephyr's own gives, prompts and conversations."""
    file = Path(__file__).parents[2] / "jobs" / "full" / "turns.jinja"
    rows = {
        "chat": {"messages": HI + YO + HI + YO},
        "feedback": {"prompt": HI, "completion": YO, "label": True},
    }
    for kind, row in rows.items():
        settings = {"loss_on": "all"} if kind == "chat" else {}
        here, there = (
            opened(kind, [row], tmp_path, model=model(folders / "zephyr", chat_template=template), **settings)
            for template in (str(file), None)
        )
        assert here.fingerprint == there.fingerprint


def test_a_template_that_marks_nothing_leaves_nothing_to_learn(folders, tmp_path):
    """Not even the end of the sequence, which is put behind it."""
    template = tmp_path / "marks.jinja"
    template.write_text(
        "{% for m in messages %}{% if m['thinks'] %}{% generation %}{{ m['content'] }}{% endgeneration %}"
        "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
    with pytest.raises(DataError, match="nothing in it is the assistant's"):
        opened(
            "chat", [{"messages": [*HI, *YO]}], tmp_path, model=model(folders / "chatml", chat_template=str(template))
        )


def test_conversations_whose_tokens_are_not_those_of_their_whole_text_are_counted(tmp_path, folders):
    """Where the generation prompt ends with a letter, the assistant's first word merges with it."""
    template = tmp_path / "seam.jinja"
    template.write_text(
        "{% for m in messages %}{{ 'h' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{% else %}{{ m['content'] + '\\n' }}{% endif %}{% endfor %}"
    )
    seam = model(folders / "chatml", chat_template=str(template))
    rows = [{"messages": [user("you"), assistant(words)]} for words in ("ello there", ". fine")]
    notes = opened("chat", rows, tmp_path, model=seam).notes
    assert [note for note in notes if note.startswith("1 of 2 conversations are tokenized piece by piece")]
    assert not opened("chat", rows, tmp_path, model=seam, loss_on="all").notes


@pytest.mark.parametrize("answer", [OSError("[Errno -2] Name or service not known"), None])
def test_a_name_that_is_nowhere_is_asked_for_once(tmp_path, monkeypatch, answer):
    """And after the data: a misspelt folder's name is one that the hub could have."""
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_CACHE

    asked = []

    def repo_info(_self, name, **settings):
        asked.append((name, settings["timeout"] > 0))
        raise answer

    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    monkeypatch.chdir(tmp_path)
    model = HfModel(kind="hf", path="models/tinny", context=8)
    data = ChatData(kind="chat", path="rows.jsonl")
    if answer is None:
        place = f"(relative to {Path.cwd()}, where planner runs)"
        with pytest.raises(DataError, match=re.escape(f"no file at 'rows.jsonl' {place}")):
            open_dataset(data, model)
        assert asked == []
        return
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}')
    with pytest.raises(DataError) as caught:
        open_dataset(data, model)
    assert asked == [("models/tinny", True)]
    assert str(caught.value) == (
        f"model.path: no folder models/tinny (relative to {tmp_path}, where planner runs), nor in {HF_HUB_CACHE}, "
        "nor on the hub: OSError: [Errno -2] Name or service not known. Check the network, or write a folder"
    )
