"""Rows as the loaders of the DPO repository and HALOs make them from the data sets that they name.

A loader groups rows by prompt, since both systems train on one completion per prompt with sft, and on pairs otherwise.
Sources: `preference_datasets.py` of eric-mitchell/direct-preference-optimization (commit 21fd7fe), and `train/data.py`
of ContextualAI/HALOs (commit 110030f).
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from planner.data.examples import ASSISTANT, BadRow
from planner.data.fields import Fields, string_of, turns_of
from planner.data.html_text import html_text
from planner.data.row import Row
from planner.job import LoaderName

# Reading a recipe imports this module, and numpy would take most of its time.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEAST_RATIO = 2
_MOST_PAIRS = 5
_PAIRS_SEED = 0


@dataclass
class PromptGroup:
    """A prompt with its completions. It grows while rows are read."""

    prompt: Any
    """a text, or messages"""
    completions: list[Any] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """(chosen, rejected), numbers of completions"""
    scores: list[float] = field(default_factory=list)
    target: int = 0
    """the completion to imitate"""


_SAME: Mapping[str, str] = {"train": "train", "test": "test"}

Groups = dict[str, PromptGroup]
Add = Callable[[Groups, Fields, str], None]
"""Adds a row to the groups, for a split in the loader's own words. It raises `BadRow`."""


@dataclass(frozen=True, kw_only=True)
class NamedLoader:
    """What a system makes of a data set that it names."""

    path: str
    """the data set on the hub"""
    add: Add
    finish: Callable[[Groups, str], None] = lambda _groups, _split: None
    """called once with all groups and the split"""
    splits: Mapping[str, str] | None = field(default_factory=lambda: _SAME)
    """the loader's split -> that of the hub. None: it takes any split of the hub by its name"""
    folder: str | None = None
    """`data_dir` of the data set on the hub"""
    is_conversation: bool = False
    """whether a completion is the rest of a conversation, with further messages of the user"""
    chosen: "Callable[[int, str], NDArray[np.int64]] | None" = None
    """(number of rows, split) -> the rows of the split, where the loader makes it itself"""


def loaded_rows(loader: NamedLoader, rows: Iterable[Row], split: str, *, takes_pairs: bool) -> Iterator[Row]:
    """The rows to train on, in planner's formats: one per pair, or one per prompt."""
    groups: Groups = {}
    flawed = []
    last = None
    for row in rows:
        last = row
        if row.flaw:
            flawed.append(row)
            continue
        try:
            loader.add(groups, row.fields, split)
        except BadRow as error:
            flawed.append(replace(row, fields={}, flaw=str(error)))
    loader.finish(groups, split)
    yield from flawed
    if last is None:
        return
    for number, group in enumerate(groups.values()):
        for fields in _fields_of(loader, group, takes_pairs=takes_pairs):
            yield Row(where=f"prompt {number} of {loader.path}", fields=fields, flaw="", read=last.read)


def _fields_of(loader: NamedLoader, group: PromptGroup, *, takes_pairs: bool) -> Iterator[dict[str, Any]]:
    if not takes_pairs:
        prompt, completion = group.prompt, group.completions[group.target]
        yield (
            {"messages": prompt + completion}
            if loader.is_conversation
            else {"prompt": prompt, "completion": completion}
        )
        return
    for chosen, rejected in group.pairs:
        yield {
            "prompt": group.prompt,
            "chosen": group.completions[chosen],
            "rejected": group.completions[rejected],
        }


def _group(groups: Groups, key: str, prompt: Any) -> PromptGroup:
    return groups.setdefault(key, PromptGroup(prompt=prompt))


def _add_pair(group: PromptGroup, chosen: Any, rejected: Any) -> int:
    """Append both completions as a pair, and return the number of the chosen one."""
    first = len(group.completions)
    group.completions += [chosen, rejected]
    group.pairs.append((first, first + 1))
    return first


# -- the DPO repository: texts

_HUMAN, _AI = "\n\nHuman: ", "\n\nAssistant:"


def _dpo_hh(groups: Groups, row: Fields, _split: str) -> None:
    chosen, rejected = string_of(row, "chosen"), string_of(row, "rejected")
    end = chosen.rfind(_AI)
    if end < 0:
        raise BadRow("chosen has no '\\n\\nAssistant:', which ends the prompt")
    length = end + len(_AI)
    group = _group(groups, chosen[:length], chosen[:length])
    # The last one of a prompt is the one to imitate.
    group.target = _add_pair(group, chosen[length:], rejected[length:])


def _dpo_shp(groups: Groups, row: Fields, _split: str) -> None:
    if _ratio(row) < _LEAST_RATIO:
        return
    prompt = f"{_HUMAN}{string_of(row, 'history')}{_AI}"
    group = _group(groups, prompt, prompt)
    first = len(group.completions)
    group.completions += [f" {string_of(row, key)}" for key in ("human_ref_A", "human_ref_B")]
    group.scores += [row["score_A"], row["score_B"]]
    group.pairs.append((first, first + 1) if row.get("labels") == 1 else (first + 1, first))


def _ratio(row: Fields) -> float:
    """The larger score over the smaller one."""
    scores = [row.get("score_A"), row.get("score_B")]
    found = [score for score in scores if isinstance(score, int | float) and score > 0]
    if len(found) != 2:
        raise BadRow(f"score_A and score_B are {scores[0]} and {scores[1]}, and must be numbers above 0")
    return max(found) / min(found)


def _imitate_the_best(groups: Groups, _split: str) -> None:
    for group in groups.values():
        # A completion that occurs twice has the score of its first occurrence.
        scores = [group.scores[group.completions.index(completion)] for completion in group.completions]
        group.target = scores.index(max(scores))


def _dpo_se(groups: Groups, row: Fields, _split: str) -> None:
    prompt = f"{_HUMAN}{html_text(string_of(row, 'question'))}{_AI}"
    answers = row.get("answers")
    if not isinstance(answers, list) or not answers:
        raise BadRow("answers is no list of answers")
    group = PromptGroup(prompt=prompt)
    for answer in answers:
        group.completions.append(f" {html_text(string_of(answer, 'text'))}")
        group.scores.append(answer["pm_score"])
    for i in range(len(answers)):
        group.pairs += [(i, j) if group.scores[i] > group.scores[j] else (j, i) for j in range(i + 1, len(answers))]
    groups[prompt] = group  # a question that occurs again replaces the earlier one


_SE_SEED, _SE_TEST_SHARE = 42, 0.01


def _se_split(num_rows: int, split: str) -> "NDArray[np.int64]":
    """Of `Dataset.shuffle(42)`, the first hundredth is the test split."""
    import numpy as np

    shuffled = np.random.default_rng(_SE_SEED).permutation(num_rows)
    num_test = int(num_rows * _SE_TEST_SHARE)
    return np.sort(shuffled[:num_test] if split == "test" else shuffled[num_test:])


# -- HALOs: messages

_EXTRA_SPACE = re.compile(r"[ \t]{2,}")
_TURNS = re.compile(r"\n\nHuman: |\n\nAssistant: ")


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": _EXTRA_SPACE.sub(" ", text)}


def _user(text: str) -> list[dict[str, str]]:
    return [_turn("user", text)]


def _assistant(text: str) -> list[dict[str, str]]:
    return [_turn(ASSISTANT, text)]


def _cleaned(turns: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**turn, **_turn(turn["role"], turn.get("content") or "")} for turn in turns]


def _halos_hh(groups: Groups, row: Fields, _split: str) -> None:
    texts = [text.strip() for text in _TURNS.split(string_of(row, "chosen"))[1:]]
    if len(texts) < 2:
        raise BadRow("chosen has no prompt and answer after '\\n\\nHuman: ' and '\\n\\nAssistant: '")
    *before, chosen = texts
    rejected = string_of(row, "rejected").split("\n\nAssistant: ")[-1].strip()
    prompt = [_turn((ASSISTANT if i % 2 else "user"), text) for i, text in enumerate(before)]
    _add_pair(_group(groups, " ".join(before), prompt), _assistant(chosen), _assistant(rejected))


def _halos_shp(groups: Groups, row: Fields, split: str) -> None:
    if _ratio(row) < _LEAST_RATIO and split == "train":
        return
    history = string_of(row, "history")
    group = _group(groups, history, _user(history))
    first = len(group.completions)
    group.completions += [_assistant(string_of(row, key)) for key in ("human_ref_A", "human_ref_B")]
    group.pairs.append((first, first + 1) if row.get("labels") == 1 else (first + 1, first))


def _few_pairs(groups: Groups, split: str) -> None:
    if split != "train":
        return
    for group in groups.values():
        # A generator for each prompt, so the same pairs are chosen wherever the prompt is.
        dice = random.Random(_PAIRS_SEED)
        group.pairs = dice.sample(group.pairs, min(_MOST_PAIRS, len(group.pairs)))


def _halos_ultrabin(groups: Groups, row: Fields, _split: str) -> None:
    prompt = string_of(row, "prompt")
    chosen, rejected = (string_of(_last(row, key), "content") for key in ("chosen", "rejected"))
    group = _group(groups, prompt, _user(prompt))
    group.target = _add_pair(group, _assistant(chosen), _assistant(rejected))


def _last(row: Fields, key: str) -> Mapping[str, Any]:
    turns = turns_of(row, key)
    if not turns:
        raise BadRow(f"{key} is an empty list")
    return turns[-1]


def _halos_armorm(groups: Groups, row: Fields, _split: str) -> None:
    prompt = string_of(row, "prompt")
    group = _group(groups, prompt, _user(prompt))
    group.target = _add_pair(group, _cleaned([_last(row, "chosen")]), _cleaned([_last(row, "rejected")]))


def _halos_ultrachat(groups: Groups, row: Fields, _split: str) -> None:
    prompt, turns = string_of(row, "prompt"), turns_of(row, "messages")
    _group(groups, prompt, _cleaned(turns[:1])).completions.append(_cleaned(turns[1:]))


def _halos_s1k(groups: Groups, row: Fields, _split: str) -> None:
    question = string_of(row, "question")
    thoughts, attempt = string_of(row, "deepseek_thinking_trajectory"), string_of(row, "deepseek_attempt")
    answer = f"<|im_start|>think\n{thoughts}\n<|im_start|>answer\n{attempt}"
    # This loader alone does not remove extra spaces.
    group = _group(groups, question, [{"role": "user", "content": question}])
    group.completions.append([{"role": ASSISTANT, "content": answer}])


def _halos_safe_rlhf(groups: Groups, row: Fields, _split: str) -> None:
    prompt, better = string_of(row, "prompt"), row.get("better_response_id")
    if better not in (0, 1):
        raise BadRow(f"better_response_id is {better}, and must be 0 or 1")
    chosen, rejected = (string_of(row, f"response_{number}") for number in (better, 1 - better))
    group = _group(groups, prompt, _user(prompt))
    group.target = _add_pair(group, _assistant(chosen), _assistant(rejected))


def _halos_alpacaeval(groups: Groups, row: Fields, _split: str) -> None:
    instruction = string_of(row, "instruction")
    group = _group(groups, instruction, [{"role": "user", "content": instruction}])
    group.completions.append([{"role": ASSISTANT, "content": string_of(row, "output")}])


def _halos_oasst(groups: Groups, row: Fields, _split: str) -> None:
    """Collect the English messages. `_oasst_pairs` needs all of them."""
    if row.get("lang") == "en":
        groups[string_of(row, "message_id")] = PromptGroup(prompt=row)


def _oasst_pairs(groups: Groups, _split: str) -> None:
    """Each ranked answer with the next better one to the same message."""
    messages = {key: group.prompt for key, group in groups.items()}
    answers: dict[str, list[Fields]] = {}
    for message in messages.values():
        answers.setdefault(message.get("parent_id", ""), []).append(message)
    groups.clear()
    for message in messages.values():
        rank, parent = message.get("rank"), message.get("parent_id")
        if not rank or parent is None:
            continue
        better = next((each for each in answers[parent] if each.get("rank") == rank - 1), None)
        path = _path_to_root(messages, parent)
        if better is None or path is None:
            continue
        prompt = [_turn("user" if each["role"] == "prompter" else ASSISTANT, each["text"]) for each in path]
        group = _group(groups, repr(prompt), prompt)
        _add_pair(group, _assistant(better["text"]), _assistant(message["text"]))
        group.target = len(group.completions) - 1  # HALOs names none, and takes the last one


def _path_to_root(messages: Mapping[str, Fields], key: str) -> list[Fields] | None:
    """The messages from the first one to `key`. None if one is missing, because it has another language."""
    path: list[Fields] = []
    next_key: str | None = key
    while next_key is not None:
        if next_key not in messages:
            return None
        path.append(messages[next_key])
        next_key = messages[next_key].get("parent_id")
    return path[::-1]


def _halos_tulu(groups: Groups, row: Fields, _split: str) -> None:
    chosen, rejected = turns_of(row, "chosen"), turns_of(row, "rejected")
    if len(chosen) < 2 or not rejected:
        raise BadRow("chosen has no prompt before its last message, or rejected is empty")
    key = " ".join(str(turn.get("content")) for turn in chosen[:-1])
    _add_pair(_group(groups, key, _cleaned(chosen[:-1])), _cleaned(chosen[-1:]), _cleaned(rejected[-1:]))


_HH, _SHP, _TULU = "Anthropic/hh-rlhf", "stanfordnlp/SHP", "allenai/tulu-2.5-preference-data"
LOADERS: dict[LoaderName, NamedLoader] = {
    "dpo/hh": NamedLoader(path=_HH, add=_dpo_hh),
    "dpo/shp": NamedLoader(path=_SHP, add=_dpo_shp, finish=_imitate_the_best),
    "dpo/se": NamedLoader(
        path="HuggingFaceH4/stack-exchange-preferences",
        add=_dpo_se,
        finish=_imitate_the_best,
        splits={"train": "train", "test": "train"},
        chosen=_se_split,
    ),
    "halos/hh": NamedLoader(path=_HH, add=_halos_hh),
    "halos/hh_helpful": NamedLoader(path=_HH, add=_halos_hh, folder="helpful-base"),
    "halos/hh_harmless": NamedLoader(path=_HH, add=_halos_hh, folder="harmless-base"),
    "halos/shp": NamedLoader(path=_SHP, add=_halos_shp, finish=_few_pairs),
    "halos/oasst": NamedLoader(
        path="OpenAssistant/oasst1",
        add=_halos_oasst,
        finish=_oasst_pairs,
        splits={"train": "train", "test": "validation"},
    ),
    "halos/ultrabin": NamedLoader(
        path="HuggingFaceH4/ultrafeedback_binarized",
        add=_halos_ultrabin,
        splits={"train": "train_prefs", "test": "test_prefs"},
    ),
    "halos/ultrafeedback_armorm": NamedLoader(path="princeton-nlp/llama3-ultrafeedback-armorm", add=_halos_armorm),
    "halos/ultrachat": NamedLoader(
        path="HuggingFaceH4/ultrachat_200k",
        add=_halos_ultrachat,
        splits={"train": "train_sft", "test": "test_sft"},
        is_conversation=True,
    ),
    "halos/s1k_11": NamedLoader(
        path="simplescaling/s1K-1.1", add=_halos_s1k, splits={"train": "train", "test": "train"}
    ),
    "halos/safe_rlhf": NamedLoader(path="PKU-Alignment/PKU-SafeRLHF-single-dimension", add=_halos_safe_rlhf),
    "halos/alpacaeval": NamedLoader(path="tatsu-lab/alpaca_eval", add=_halos_alpacaeval, splits={"test": "eval"}),
    "halos/tulu_v25": NamedLoader(path=_TULU, add=_halos_tulu, splits=None),
}
"""name of a loader -> what it does. The part before the slash is the system"""
