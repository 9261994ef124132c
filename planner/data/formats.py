"""The shapes of rows that planner reads: HALOs' JSON by its `type`, TRL's columns by their names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """A shape of rows."""

    name: str
    """its keys, for errors"""
    halos: str = ""
    """HALOs' `type`, empty for TRL's formats"""
    keys: tuple[str, ...]
    """keys that a row must have"""
    read: Callable[[Fields], Example]
    """raises `BadRow`. A pair is a prompt with two completions, first the chosen one"""

    def fits(self, fields: Fields) -> bool:
        """Whether a row has this shape, by its keys."""
        return (fields.get("type") == self.halos if self.halos else True) and all(key in fields for key in self.keys)


def format_of(fields: Fields, kind: str, formats: Sequence[RowFormat]) -> RowFormat:
    """The shape of a row, among those that a kind of data accepts.

    Raises:
        BadRow: the row has none of them.
    """
    for found in formats:
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
    other = next((each for each in _ALL if each.fits(fields)), None)
    found_keys = other.name if other else f"the keys {', '.join(sorted(map(str, fields))[:8]) or '(none)'}"
    raise BadRow(f"{found_keys}, and data.kind {kind} takes one of: {'; '.join(each.name for each in formats)}")


def _rated(row: Fields) -> Example:
    """A completion (TRL) or output (HALOs) with its label."""
    completion = completion_of(row, "output" if HALOS_BINARY.fits(row) else "completion")
    return answered(text_or_turns(row, "prompt"), (completion,), row, is_desirable=truth_of(row, "label"))


# -- TRL's


def _messages(row: Fields) -> Example:
    messages = turns_of(row, "messages")
    require_assistant_last(messages, "messages")
    return Conversation(messages=messages, settings=settings_of(row))


def _text(row: Fields) -> Example:
    return PlainText(text=string_of(row, "text"))


def _completion(row: Fields) -> Example:
    if "label" in row:
        raise BadRow(
            "prompt and completion have a label, and an undesirable completion must not be imitated. Remove the label"
        )
    return answered(text_or_turns(row, "prompt"), (completion_of(row, "completion"),), row)


def _preference(row: Fields) -> Example:
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
    return answered(prompt, (chosen, rejected), row)


def _common_beginning(chosen: Turns, rejected: Turns) -> tuple[Turns, Turns, Turns]:
    """The common beginning of both conversations, and the rest of each. The last message is never in the prompt."""
    most = min(len(chosen), len(rejected)) - 1
    length = next((i for i in range(most) if chosen[i] != rejected[i]), max(most, 0))
    if not length:
        raise BadRow("chosen and rejected have no common beginning to be their prompt. Add prompt as messages")
    return chosen[:length], chosen[length:], rejected[length:]


# -- HALOs'


def _sample(row: Fields) -> Example:
    return answered(text_or_turns(row, "prompt"), (completion_of(row, "output"),), row)


def _pairwise_feedback(row: Fields) -> Example:
    a, b = completion_of(row, "output_A"), completion_of(row, "output_B")
    chosen, rejected = (a, b) if truth_of(row, "label") else (b, a)
    return answered(text_or_turns(row, "prompt"), (chosen, rejected), row)


HALOS_SAMPLE = RowFormat(name="HALOs' type: sample", halos="sample", keys=("prompt", "output"), read=_sample)
HALOS_BINARY = RowFormat(
    name="HALOs' type: binary_feedback",
    halos="binary_feedback",
    keys=("prompt", "output", "label"),
    read=_rated,
)
HALOS_PAIRWISE = RowFormat(
    name="HALOs' type: pairwise_feedback",
    halos="pairwise_feedback",
    keys=("prompt", "output_A", "output_B", "label"),
    read=_pairwise_feedback,
)
PREFERENCE = RowFormat(name="chosen, rejected (and prompt)", keys=("chosen", "rejected"), read=_preference)
MESSAGES = RowFormat(name="messages", keys=("messages",), read=_messages)
COMPLETION = RowFormat(name="prompt, completion", keys=("prompt", "completion"), read=_completion)
LABELLED = RowFormat(name="prompt, completion, label", keys=("prompt", "completion", "label"), read=_rated)
TEXT = RowFormat(name="text", keys=("text",), read=_text)

# What each kind of data accepts. The first match wins: rows of preference data often also have `messages`, and
# conversations a `prompt`.
CHAT = (HALOS_SAMPLE, HALOS_PAIRWISE, MESSAGES, COMPLETION, PREFERENCE, TEXT)
PAIRS = (HALOS_PAIRWISE, PREFERENCE)
FEEDBACK = (HALOS_BINARY, HALOS_PAIRWISE, LABELLED, PREFERENCE)
_ALL = (HALOS_SAMPLE, HALOS_BINARY, HALOS_PAIRWISE, PREFERENCE, MESSAGES, COMPLETION, LABELLED, TEXT)


def answered(
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
