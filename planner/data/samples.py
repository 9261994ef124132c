"""Tokenized rows of prompts and completions: the values that data hands to training."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

NO_LOSS = -100
"""the label without loss (torch's default `ignore_index`)"""

Ids = NDArray[np.int32]
"""token ids, labels or document numbers"""


# Without `==`: arrays are compared element by element, so a comparison of two texts has no one answer.
@dataclass(frozen=True, kw_only=True, eq=False)
class Text:
    """A sequence of inputs and labels. All arrays have shape `(n,)`, n >= 1."""

    inputs: Ids
    labels: Ids
    """the token after each input, or `NO_LOSS`"""
    documents: Ids | None = None
    """in a packed row, the document number of each input, from 0. Attention stays within a document."""

    @classmethod
    def of(cls, ids: Ids) -> "Text":
        """A text of ids `(n + 1,)`, in which each but the first is a label."""
        return cls(inputs=ids[:-1], labels=ids[1:])

    @property
    def num_tokens(self) -> int:
        """Number of tokens with loss."""
        return int((self.labels != NO_LOSS).sum())

    def parts(self) -> tuple[bytes, ...]:
        """The bytes of all arrays, for a checksum."""
        documents = () if self.documents is None else (self.documents,)
        return tuple(array.astype("<i4").tobytes() for array in (self.inputs, self.labels, *documents))


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two completions of one prompt. Labels are on the completion alone."""

    chosen: Text
    rejected: Text

    @property
    def num_tokens(self) -> int:
        """Number of tokens with loss in both completions."""
        return self.chosen.num_tokens + self.rejected.num_tokens

    def parts(self) -> tuple[bytes, ...]:
        """The bytes of both texts, for a checksum."""
        return self.chosen.parts() + self.rejected.parts()


@dataclass(frozen=True, kw_only=True, eq=False)
class Feedback:
    """A completion with a label: desirable or undesirable."""

    text: Text
    """prompt and completion. Labels are on the completion alone."""
    is_desirable: bool
    prompt: Ids
    """the prompt alone, cut as in `text`. The KL baseline appends another sample's completion to it."""
    context: int
    """most tokens of a prompt with its completion"""

    @property
    def completion(self) -> Ids:
        """The completion's token ids, shape `(k,)`, k >= 1: the labels with loss."""
        found: Ids = self.text.labels[self.text.labels != NO_LOSS]
        return found

    @property
    def num_tokens(self) -> int:
        """Number of tokens with loss."""
        return self.text.num_tokens

    def parts(self) -> tuple[bytes, ...]:
        """The bytes of the text and of the label, for a checksum."""
        return (*self.text.parts(), bytes([self.is_desirable]))


class Sample(Protocol):
    """What training needs of a sample of any kind."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens with loss."""
        ...

    def parts(self) -> tuple[bytes, ...]:
        """The bytes of all that enters a forward pass, for a checksum."""
        ...


def text_of(prompt: Ids, completion: Ids, context: int) -> Text:
    """A prompt and its completion as one sequence, cut at its end to `context` tokens. Loss is on the completion alone.

    Shapes `(p,)` and `(k,)`, p >= 1, k >= 1 -> `(n,)`, n = min(p + k, context) - 1. The last token is only a label.
    """
    tokens = np.concatenate([prompt, completion]).astype(np.int32)[:context]
    labels = tokens[1:].copy()
    labels[: len(prompt) - 1] = NO_LOSS
    return Text(inputs=tokens[:-1], labels=labels)


def text_lengths(
    prompt_lengths: NDArray[np.int64], completion_lengths: NDArray[np.int64], context: int
) -> NDArray[np.int64]:
    """The inputs of `text_of` for n prompts and completions of these lengths, each `(n,)`."""
    inputs: NDArray[np.int64] = np.minimum(prompt_lengths + completion_lengths, context) - 1
    return inputs


def check_sum_of(row: int, parts: tuple[bytes, ...]) -> int:
    """64 bits over a row's number and all parts of its sample. A step's checksum is their sum modulo 2^64."""
    digest = hashlib.blake2b(row.to_bytes(8, "little"), digest_size=8)
    for part in parts:
        # With its length: otherwise bytes could move from one part to the next unnoticed.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")
