"""The shapes of rows that planner reads: HALOs' JSON by its `type`, TRL's columns by their names."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planner.data.examples import (
    ASSISTANT,
    BadRow,
    Conversation,
    Example,
    PlainText,
    PromptCompletions,
    TextOrTurns,
    Turns,
)
from planner.data.fields import (
    Fields,
    completion_of,
    require_assistant_last,
    require_completion,
    settings_of,
    string_of,
    text_or_turns,
    truth_of,
    turns_of,
)

Kind = Literal["chat", "pairs", "feedback"]


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """A shape of rows."""

    name: str
    """its keys, for errors"""
    halos: str = ""
    """HALOs' `type`, empty for TRL's formats"""
    keys: tuple[str, ...]
    """keys that a row must have"""
    read: Callable[[Fields, Kind], list[Example]]

    def fits(self, fields: Fields) -> bool:
        """Whether a row has this shape, by its keys."""
        return (fields.get("type") == self.halos if self.halos else True) and all(key in fields for key in self.keys)


def format_of(fields: Fields, kind: Kind) -> RowFormat:
    """The shape of a row, among those that the kind of data accepts.

    Raises:
        BadRow: the row has none of them.
    """
    for found in _FORMATS[kind]:
        if found.fits(fields):
            return found
    if fields.get("type") == "scalar_feedback" and "reward" in fields:
        raise BadRow(
            "scalar_feedback, but no objective learns from a reward. Turn it into binary_feedback by a threshold"
        )
    if "conversations" in fields:
        raise BadRow(
            "conversations in ShareGPT's form, which planner does not read. Write messages: role (system, user, "
            "assistant) for from (system, human, gpt), content for value"
        )
    other = next((each for formats in _FORMATS.values() for each in formats if each.fits(fields)), None)
    found_keys = other.name if other else f"the keys {', '.join(sorted(map(str, fields))[:8]) or '(none)'}"
    raise BadRow(f"{found_keys}, and data.kind {kind} takes one of: {'; '.join(each.name for each in _FORMATS[kind])}")


def _rated(row: Fields, _kind: Kind) -> list[Example]:
    """A completion (TRL) or output (HALOs) with its label."""
    completion = completion_of(row, "output" if _HALOS_BINARY.fits(row) else "completion")
    return [_answered(text_or_turns(row, "prompt"), (completion,), row, is_desirable=truth_of(row, "label"))]


# -- TRL's


def _messages(row: Fields, _kind: Kind) -> list[Example]:
    messages = turns_of(row, "messages")
    require_assistant_last(messages, "messages")
    return [Conversation(messages=messages, settings=settings_of(row))]


def _text(row: Fields, _kind: Kind) -> list[Example]:
    return [PlainText(text=string_of(row, "text"))]


def _completion(row: Fields, _kind: Kind) -> list[Example]:
    if "label" in row:
        raise BadRow(
            "prompt and completion have a label, and an undesirable completion must not be imitated. Remove the label"
        )
    return [_answered(text_or_turns(row, "prompt"), (completion_of(row, "completion"),), row)]


def _preference(row: Fields, kind: Kind) -> list[Example]:
    chosen, rejected = text_or_turns(row, "chosen"), text_or_turns(row, "rejected")
    prompt: TextOrTurns
    if isinstance(chosen, str) and isinstance(rejected, str):
        if "prompt" not in row:
            raise BadRow("chosen and rejected are texts that do not show where their prompt ends. Add prompt")
        prompt = string_of(row, "prompt")
    elif isinstance(chosen, str) or isinstance(rejected, str):
        raise BadRow("one of chosen and rejected is a text, and the other is messages. Write both in one form")
    elif isinstance(row.get("prompt", ""), str):
        # A text prompt beside messages repeats the first one (UltraFeedback). What both begin with is the prompt.
        prompt, chosen, rejected = _common_beginning(chosen, rejected)
    else:
        prompt = turns_of(row, "prompt")
    for key, completion in (("chosen", chosen), ("rejected", rejected)):
        require_completion(completion, key)
    return _of_pair(prompt, chosen, rejected, row, kind)


def _common_beginning(chosen: Turns, rejected: Turns) -> tuple[Turns, Turns, Turns]:
    """The common beginning of both conversations, and the rest of each. The last message is never in the prompt."""
    most = min(len(chosen), len(rejected)) - 1
    length = next((i for i in range(most) if chosen[i] != rejected[i]), max(most, 0))
    if not length:
        raise BadRow("chosen and rejected have no common beginning to be their prompt. Add prompt as messages")
    return chosen[:length], chosen[length:], rejected[length:]


# -- HALOs'


def _sample(row: Fields, _kind: Kind) -> list[Example]:
    return [_answered(text_or_turns(row, "prompt"), (completion_of(row, "output"),), row)]


def _pairwise_feedback(row: Fields, kind: Kind) -> list[Example]:
    a, b = completion_of(row, "output_A"), completion_of(row, "output_B")
    chosen, rejected = (a, b) if truth_of(row, "label") else (b, a)
    return _of_pair(text_or_turns(row, "prompt"), chosen, rejected, row, kind)


_HALOS_SAMPLE = RowFormat(name="HALOs' type: sample", halos="sample", keys=("prompt", "output"), read=_sample)
_HALOS_BINARY = RowFormat(
    name="HALOs' type: binary_feedback",
    halos="binary_feedback",
    keys=("prompt", "output", "label"),
    read=_rated,
)
_HALOS_PAIRWISE = RowFormat(
    name="HALOs' type: pairwise_feedback",
    halos="pairwise_feedback",
    keys=("prompt", "output_A", "output_B", "label"),
    read=_pairwise_feedback,
)
_PREFERENCE = RowFormat(name="chosen, rejected (and prompt)", keys=("chosen", "rejected"), read=_preference)
_MESSAGES = RowFormat(name="messages", keys=("messages",), read=_messages)
_COMPLETION = RowFormat(name="prompt, completion", keys=("prompt", "completion"), read=_completion)
_LABELLED = RowFormat(name="prompt, completion, label", keys=("prompt", "completion", "label"), read=_rated)
_TEXT = RowFormat(name="text", keys=("text",), read=_text)

# The first match wins: rows of preference data often also have `messages`, and conversations a `prompt`.
_FORMATS: dict[Kind, tuple[RowFormat, ...]] = {
    "chat": (_HALOS_SAMPLE, _HALOS_PAIRWISE, _MESSAGES, _COMPLETION, _PREFERENCE, _TEXT),
    "pairs": (_HALOS_PAIRWISE, _PREFERENCE),
    "feedback": (_HALOS_BINARY, _HALOS_PAIRWISE, _LABELLED, _PREFERENCE),
}


# -- pairs and completions


def _of_pair(prompt: TextOrTurns, chosen: TextOrTurns, rejected: TextOrTurns, row: Fields, kind: Kind) -> list[Example]:
    """A pair, or for chat its chosen completion, or for feedback both completions: one desirable, one not."""
    if kind == "pairs":
        return [_answered(prompt, (chosen, rejected), row)]
    good = _answered(prompt, (chosen,), row)
    return [good] if kind == "chat" else [good, _answered(prompt, (rejected,), row, is_desirable=False)]


def _answered(
    prompt: TextOrTurns, completions: tuple[TextOrTurns, ...], row: Fields, *, is_desirable: bool = True
) -> PromptCompletions:
    """A `PromptCompletions` whose prompt and completions are all texts or all messages."""
    if not isinstance(prompt, str):
        if not prompt:
            raise BadRow("prompt has no messages")
        completions = tuple(
            ({"role": ASSISTANT, "content": each},) if isinstance(each, str) else each for each in completions
        )
    elif not all(isinstance(each, str) for each in completions):
        raise BadRow("the prompt is a text, and its completion is messages. Write both in one form")
    return PromptCompletions(
        prompt=prompt, completions=completions, is_desirable=is_desirable, settings=settings_of(row)
    )
