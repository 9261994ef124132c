"""Chat templates (Jinja) of Hugging Face tokenizers: messages as text, with the parts that the assistant writes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner.base.json_text import shown
from planner.data.examples import ASSISTANT, BadRow, Turn, Turns
from planner.errors import DataError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_DATE = "strftime_now"
# The default day of Llama's templates. With today's date, a template would make other samples every day, and a run of
# two days would be two runs.
_DAY = {"%d": "26", "%-d": "26", "%m": "07", "%b": "Jul", "%B": "July", "%Y": "2024", "%y": "24", "%A": "Friday"}
Pieces = tuple[tuple[str, bool], ...]


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """The chat template that a job names, or that of the tokenizer."""

    tokenizer: Any
    own: str | None
    """source of the job's template. None: that of the tokenizer"""
    where: str
    """names the model in errors"""

    def text(self, messages: Turns, settings: Mapping[str, Any], *, is_open: bool = False) -> str:
        """The messages as text. If `is_open`, it ends where the assistant would begin its next message.

        Raises:
            BadRow: the template refuses the messages.
            DataError: there is no template, or it is not Jinja.
        """
        return self._rendered(messages, settings, add_generation_prompt=is_open)[0]

    def continued(self, prompt: Turns, completion: Turns, settings: Mapping[str, Any]) -> tuple[str, str]:
        """`(prompt, completion)` as text, split where the assistant begins.

        Raises:
            BadRow: the template refuses the messages, or writes the prompt differently with a completion.
        """
        whole = self.text((*prompt, *completion), settings)
        at = self._beginning(prompt, settings, whole)
        if at == len(whole):
            raise BadRow("the chat template writes nothing for the completion")
        return whole[:at], whole[at:]

    def pieces(self, messages: Turns, settings: Mapping[str, Any]) -> Pieces:
        """The text in pieces, each with whether the assistant writes it.

        The assistant's pieces are those in `{% generation %}`. A template without it shows them by the text that each
        of the assistant's messages adds to the messages before it.

        Raises:
            BadRow: the template refuses the messages, or writes one differently when more come after it.
        """
        if _GENERATION.search(self._source(settings)):
            whole, spans = self._rendered(messages, settings, return_assistant_tokens_mask=True)
            return _cut(whole, spans)
        whole = self.text(messages, settings)
        spans = []
        for number in (i for i, turn in enumerate(messages) if turn["role"] == ASSISTANT):
            start = self._beginning(messages[:number], settings, whole)
            with_it = whole if number + 1 == len(messages) else self.text(messages[: number + 1], settings)
            if not whole.startswith(with_it):
                raise BadRow(_MOVES)
            spans.append((start, len(with_it)))
        return _cut(whole, spans)

    def _beginning(self, messages: Turns, settings: Mapping[str, Any], whole: str) -> int:
        """Length of the text of the first messages in `whole`, the text of a longer conversation."""
        if not messages:
            raise BadRow(
                "the assistant begins, and a chat template without {% generation %} does not show where its text starts"
            )
        # With the beginning of the assistant's message first: that part is not what the assistant writes.
        for is_open in (True, False):
            text = self.text(messages, settings, is_open=is_open)
            if whole.startswith(text):
                return len(text)
        raise BadRow(_MOVES)

    def _rendered(
        self, messages: tuple[Turn, ...], settings: Mapping[str, Any], **how: bool
    ) -> tuple[str, list[tuple[int, int]]]:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        source = self._source(settings)
        # `how` comes last: a row's own settings must not decide where its prompt ends.
        values = {**self.tokenizer.special_tokens_map, **settings, **how}
        try:
            texts, spans = render_jinja_template([list(messages)], chat_template=source, **values)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f"{self.where}: its chat template is not valid Jinja: {error}") from error
        except Exception as error:  # a template is a program, and may raise anything
            raise BadRow(
                f"the chat template refuses it: {' '.join(str(error).split())[:300] or repr(error)}"
            ) from error
        text: str = texts[0]
        return text, spans[0] if spans else []

    def _source(self, settings: Mapping[str, Any]) -> str:
        theirs = self.tokenizer.chat_template
        try:
            source = self.tokenizer.get_chat_template(self.own, settings.get("tools"))
        except ValueError as error:  # there is none, or there are several and none is the default
            names = ", ".join(sorted(map(repr, theirs))) if isinstance(theirs, dict) else ""
            what = f"the chat templates {names}, and none is 'default'" if names else "no chat template"
            raise DataError(
                f"{self.where}: its tokenizer has {what}, and the rows are messages. Name a Jinja file with "
                "model.chat_template: FILE, or write prompts and completions as texts"
            ) from error
        if not isinstance(source, str):
            raise DataError(
                f"{self.where}: the chat_template of its tokenizer is {shown(source)}, and must be a string. Copy the "
                "tokenizer's files again, or name a Jinja file with model.chat_template: FILE"
            )
        return _dated(source)


_MOVES = (
    "the chat template writes a message differently when more come after it, so planner cannot find the assistant's "
    "text. Mark it in the template with {% generation %}, or write data.loss_on: all"
)


@lru_cache
def _dated(source: str) -> str:
    if _DATE not in source:
        return source
    fixed = "".join(f".replace('{code}', '{value}')" for code, value in _DAY.items())
    # Jinja trims this newline after the block.
    return f"{{% macro {_DATE}(format) %}}{{{{ format{fixed} }}}}{{% endmacro %}}\n{source}"


def _cut(text: str, spans: list[tuple[int, int]]) -> Pieces:
    """The text in pieces, cut at the assistant's spans."""
    pieces, at = [], 0
    for start, end in spans:
        pieces += [(text[at:start], False), (text[start:end], True)]
        at = end
    return (*pieces, (text[at:], False))
