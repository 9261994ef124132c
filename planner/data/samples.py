"""What a row of prompts and completions is, once it is tokens: the values between data and training."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NO_LOSS = -100
"""the label that bears no loss (torch's default `ignore_index`)"""

Ids = NDArray[np.int32]
"""token ids, or labels, or numbers of documents"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """A sequence that a model reads, with what it is to predict. All arrays have shape `(n,)`, n >= 1."""

    inputs: Ids
    labels: Ids
    """what follows each input; `NO_LOSS` where no loss is borne"""
    documents: Ids | None = None
    """of a packed row: the number of the document that each input is of, from 0; attention never crosses"""

    @property
    def num_tokens(self) -> int:
        """Loss-bearing tokens."""
        return int((self.labels != NO_LOSS).sum())

    def parts(self) -> tuple[bytes, ...]:
        """What a checksum is taken over."""
        documents = () if self.documents is None else (self.documents,)
        return tuple(array.astype("<i4").tobytes() for array in (self.inputs, self.labels, *documents))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two completions of one prompt. Labels are on the completion alone."""

    chosen: Text
    rejected: Text

    @property
    def num_tokens(self) -> int:
        """Loss-bearing tokens of both."""
        return self.chosen.num_tokens + self.rejected.num_tokens

    def parts(self) -> tuple[bytes, ...]:
        """What a checksum is taken over."""
        return self.chosen.parts() + self.rejected.parts()


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedback:
    """A completion that is desirable or not."""

    text: Text
    """prompt and completion; labels are on the completion alone"""
    is_desirable: bool
    prompt: Ids
    """the prompt by itself, cut to what `text` has of it: the KL baseline puts another sample's completion behind it"""

    @property
    def completion(self) -> Ids:
        """The completion's token ids, shape `(k,)`, k >= 1: the labels that bear loss."""
        found: Ids = self.text.labels[self.text.labels != NO_LOSS]
        return found

    @property
    def num_tokens(self) -> int:
        """Loss-bearing tokens."""
        return self.text.num_tokens

    def parts(self) -> tuple[bytes, ...]:
        """What a checksum is taken over."""
        return (*self.text.parts(), bytes([self.is_desirable]))


Sample = Text | Pair | Feedback


def text_of(prompt: Ids, completion: Ids, context: int) -> Text:
    """A prompt and its completion as one sequence, its end cut to `context` tokens; loss on the completion alone.

    Shapes `(p,)` and `(k,)`, p >= 1, k >= 1 -> `(n,)`, n = min(p + k, context) - 1: a last token is no input.
    """
    tokens = np.concatenate([prompt, completion]).astype(np.int32)[:context]
    labels = tokens[1:].copy()
    labels[: len(prompt) - 1] = NO_LOSS
    return Text(inputs=tokens[:-1], labels=labels)


def check_sum_of(row: int, parts: tuple[bytes, ...]) -> int:
    """64 bits over a row's number and all parts of its sample; a step's checksum is their sum modulo 2^64."""
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")
