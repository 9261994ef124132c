"""Small data sets of prompts and completions, made in memory: very unequal lengths, and both kinds of feedback."""

import hashlib
import random
from dataclasses import dataclass

import numpy as np

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
        return Feedback(text=good, is_desirable=dice.random() < 0.6, prompt=prompt)


def open_in_memory(data, model, _progress=None):
    """Stands in for `open_dataset`."""
    return SampleSet(kind=data.kind, context=model.context)
