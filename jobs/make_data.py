"""Small data for the jobs in this folder, in the formats that people have: `python jobs/make_data.py data/words`.

A prompt asks for a word in one of two ways, and what is right is known: `upper kazot` wants `KAZOT`, and `write kazot`
wants `kazot`. What is wrong has one to five other letters, `KAZUT`: nothing but the prompt tells right from wrong. No
word is asked for twice: held-out words are new.

    chat.jsonl      TRL's messages                      chat.json      HALOs' sample
    pairs.jsonl     TRL's prompt, chosen, rejected      pairs.json     HALOs' pairwise_feedback
    feedback.jsonl  TRL's prompt, completion, label     feedback.json  HALOs' binary_feedback

Needs Python's standard library alone. Makes the same files on every machine.
"""

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

NUM_ROWS = 6000
NUM_LETTERS = 5

Fields = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """What is asked, and what may be answered."""

    request: str
    right: str
    wrong: str
    is_right: bool
    """which of the two a row has that holds one of them"""

    @property
    def turns(self) -> list[Fields]:
        """The request as the first message of a conversation."""
        return [turn("user", self.request)]

    @property
    def answer(self) -> str:
        """Of a row that holds one."""
        return self.right if self.is_right else self.wrong


def examples() -> Iterator[Example]:
    """One of each word."""
    dice = random.Random(0)
    words: set[str] = set()
    while len(words) < NUM_ROWS:
        word = "".join(dice.choices(ascii_lowercase, k=NUM_LETTERS))
        if word in words:
            continue
        words.add(word)
        request = dice.choice(("upper", "write"))
        wrong = other_letters(word, dice)
        answers = (word.upper(), wrong.upper()) if request == "upper" else (word, wrong)
        yield Example(f"{request} {word}", *answers, is_right=dice.random() < 0.5)


def other_letters(word: str, dice: random.Random) -> str:
    """The word with one to all of its letters changed, each as often as any other."""
    places = dice.sample(range(len(word)), k=dice.randint(1, len(word)))
    return "".join(
        dice.choice(ascii_lowercase.replace(letter, "")) if place in places else letter
        for place, letter in enumerate(word)
    )


# -- a row of each format


def messages(example: Example) -> Fields:
    """TRL's, for SFT."""
    return {"messages": [*example.turns, turn("assistant", example.right)]}


def preference(example: Example) -> Fields:
    """TRL's, for DPO, IPO and SimPO."""
    return {"prompt": f"{example.request}: ", "chosen": example.right, "rejected": example.wrong}


def labelled(example: Example) -> Fields:
    """TRL's, for KTO."""
    return {"prompt": f"{example.request}: ", "completion": example.answer, "label": example.is_right}


def sample(example: Example) -> Fields:
    """HALOs', for SFT."""
    return {"type": "sample", "prompt": example.turns, "output": example.right}


def pairwise_feedback(example: Example) -> Fields:
    """HALOs', for DPO and its kin, and for KTO, which takes pairs apart. A label of 1: A is the better one."""
    a, b = (example.right, example.wrong) if example.is_right else (example.wrong, example.right)
    outputs = {"output_A": [turn("assistant", a)], "output_B": [turn("assistant", b)]}
    return {"type": "pairwise_feedback", "prompt": example.turns, **outputs, "label": int(example.is_right)}


def binary_feedback(example: Example) -> Fields:
    """HALOs', for KTO."""
    output = [turn("assistant", example.answer)]
    return {"type": "binary_feedback", "prompt": example.turns, "output": output, "label": int(example.is_right)}


def turn(role: str, content: str) -> Fields:
    """A message."""
    return {"role": role, "content": content}


LINES = {"chat": messages, "pairs": preference, "feedback": labelled}
ARRAYS = {"chat": sample, "pairs": pairwise_feedback, "feedback": binary_feedback}


def main(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = list(examples())
    for name, row in LINES.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row(each))}\n" for each in made))
    for name, row in ARRAYS.items():
        (folder / f"{name}.json").write_text(json.dumps([row(each) for each in made], indent=1))
    names = ", ".join(sorted(f"{name}.{end}" for name in LINES for end in ("json", "jsonl")))
    sys.stdout.write(f"{NUM_ROWS} rows each in {folder}: {names}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python jobs/make_data.py FOLDER")
    main(Path(sys.argv[1]))
