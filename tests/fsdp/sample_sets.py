"""Small data sets of prompts and completions, in memory or in a file; lengths are very unequal."""

import hashlib
import json
import random
from dataclasses import dataclass

import numpy as np

from planner.data.base import sample_row_counts
from planner.data.samples import Feedback, Pair, text_of


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def words(dice, most):
    return "".join(dice.choice("abcdefgh ") for _ in range(dice.randint(1, most)))


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """Made anew, and the same, in every process."""

    kind: str
    num_rows: int = 60
    context: int = 24
    notes: tuple[str, ...] = ()
    sets: tuple = ()

    @property
    def fingerprint(self):
        return hashlib.sha256(f"{self.kind} {self.num_rows} {self.context}".encode()).hexdigest()

    def sample(self, row):
        dice = random.Random(f"{self.kind} {row}")
        prompt = ids(words(dice, 9))
        good, bad = (text_of(prompt, ids(words(dice, 30)), self.context) for _ in range(2))
        if self.kind == "chat":
            return good
        if self.kind == "pairs":
            return Pair(chosen=good, rejected=bad)
        return Feedback(text=good, is_desirable=dice.random() < 0.6, prompt=prompt, context=self.context)

    def samples(self, rows):
        return [self.sample(row) for row in rows]

    def evidence(self, row):
        return sample_row_counts(row, self.sample(row))


def write_rows(path, kind, num_rows=60, only_desirable=False):
    """A file of such rows, as TRL's users have them."""
    dice, rows = random.Random(kind), []
    for _ in range(num_rows):
        prompt, good, bad = words(dice, 9), words(dice, 30), words(dice, 30)
        answers = {
            "chat": {"completion": good},
            "pairs": {"chosen": good, "rejected": bad},
            "feedback": {"completion": good, "label": only_desirable or dice.random() < 0.6},
        }
        rows.append({"prompt": prompt, **answers[kind]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
