"""The tokenizer of a Hugging Face model, with its chat template. transformers is imported only for such a model."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from planner.base.disk import expanded, place_text, read_bounded
from planner.base.text import how_to_install
from planner.data.chat_template import ChatTemplate
from planner.data.examples import BadRow, Conversation, Example, PlainText, PromptCompletions
from planner.data.model_folder import ModelFolder
from planner.data.rust_errors import require_caught, tokenizing, without_backtrace
from planner.data.samples import Ids
from planner.data.tokenizer import MarkedText, Marks, PromptText
from planner.data.tokenizer_files import require_vocabulary, why_not_loaded
from planner.errors import DataError, UserError, printable_lines
from planner.job import HfModel

# Twenty times the longest template known.
_MAX_TEMPLATE_BYTES = 2**20
# Case, digits, accents, other scripts, blanks, lines, code and a contraction: what rules of tokenizers differ in.
_SAMPLE = (
    "The year 2024 wasn't like 1999:  naïve CAFÉ, Äpfel, 日本語, привет 👋🏽.\n\n\tif (x_1 != 3.14159) { return"
    " y[12345]; }\r\n  HelloWorld <s>a</s> ﬁn e\u0301 http://example.org/?q=1&r=%20\n"
)


class _PrintableLogFilter(logging.Filter):
    """Escapes log messages: transformers logs raw values of a model's files, which could control a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message and keep the record."""
        record.msg, record.args = printable_lines(record.getMessage()), ()
        return True


_ESCAPING = _PrintableLogFilter()


def escape_logs() -> None:
    """Escape what transformers logs from now on. transformers must be imported. A second call changes nothing."""
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(_ESCAPING)


@dataclass(frozen=True, kw_only=True)
class HfTokenizer:
    """A fast tokenizer, with the ids that begin and end a text, and a chat template.

    It adds the beginning token if the tokenizer would do so by itself, and the end-of-sequence token. It does not add
    them a second time if a text or a template already has them.
    """

    tokenizer: Any
    template: ChatTemplate
    vocabulary: int | None
    begin: tuple[int, ...]
    end: int
    where: str
    """names the model's tokenizer in errors"""

    @classmethod
    def load(cls, model: HfModel) -> "HfTokenizer":
        """Load the tokenizer of a model. It is downloaded if the model is neither a folder nor in the hub's cache.

        Raises:
            DataError: it cannot be found or loaded, is not a fast one, or has no end-of-sequence token.
        """
        where = f"model.path: the tokenizer of {model.path}"
        try:
            import transformers
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as error:
            raise DataError(f"{where}: the library transformers is not installed: {how_to_install('hf')}") from error
        escape_logs()
        folder = _folder(model, where)
        require_vocabulary(folder, where)
        try:
            # trust_remote_code is explicit: without it, transformers would ask on a terminal whether to run the code.
            with without_backtrace():
                tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except BaseException as error:  # errors of JSON, of the folder, and Rust's panics
            require_caught(error)
            raise DataError(f"{where}{why_not_loaded(folder, error, transformers)}") from error
        if not tokenizer.is_fast:
            raise DataError(f"{where} is not a fast one (it has no tokenizer.json). Convert it first")
        if tokenizer.eos_token_id is None:
            raise DataError(f"{where} has no end-of-sequence token. Set eos_token in its tokenizer_config.json")
        # Only a text shows whether the tokenizer begins it with a token: not every tokenizer has a setting that says
        # so.
        with tokenizing(where):
            first = tokenizer("a")["input_ids"][:1]
        return cls(
            tokenizer=tokenizer,
            template=ChatTemplate(tokenizer=tokenizer, own=_template_file(model), where=f"model.path: {model.path}"),
            vocabulary=getattr(config.get_text_config(), "vocab_size", None),
            begin=tuple(first) if first == [tokenizer.bos_token_id] else (),
            end=tokenizer.eos_token_id,
            where=where,
        )

    @property
    def num_begin(self) -> int:
        """Number of tokens that the tokenizer adds at the beginning of a text: 0 or 1."""
        return len(self.begin)

    @property
    def digest(self) -> str:
        """64 hex digits over the tokenizer in memory, its template, and the versions of the libraries."""
        own = (self.template.own, self.tokenizer.chat_template, self.tokenizer.special_tokens_map)
        versions = [metadata.version(name) for name in ("jinja2", "tokenizers", "transformers")]
        facts = (own, versions, self.vocabulary, self.begin, self.end, self.tokenizer.backend_tokenizer.to_str())
        return sha256(repr(facts).encode()).hexdigest()

    @property
    def num_ids(self) -> int:
        """All ids of the tokenizer are in `[0, num_ids)`."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1

    @property
    def ids_digest(self) -> str:
        """64 hex digits over what ids mean: each id's text, which of them begin and end a document, and a sample's ids.

        Not over the tokenizer's files: another version of the libraries may store the same tokenizer otherwise. The
        sample tells tokenizers apart that have the same ids and cut texts otherwise.
        """
        (sample,) = self.documents([_SAMPLE])
        facts = (sorted(self.tokenizer.get_vocab().items()), self.begin, self.end, list(sample.ids))
        return sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()

    def documents(self, texts: Sequence[str]) -> Sequence[Any]:
        """Tokenize plain texts as they are: what looks like a special token in a text is text.

        Returns:
            For each text an encoding of the tokenizers library, with `ids` and `offsets` and without beginning and end.
        """
        return self._encode(list(texts), split_special_tokens=True).encodings or ()

    def render(self, example: Example, *, is_marked: bool) -> MarkedText | PromptText:
        """Render an example: messages by the chat template, texts unchanged.

        Raises:
            BadRow: the template refuses the messages, or its text does not show where the completion begins.
            DataError: there are messages but no template.
        """
        match example:
            case PlainText():
                return MarkedText(pieces=((example.text, True),))
            case Conversation(messages=messages, settings=settings) if is_marked:
                return MarkedText(pieces=self.template.pieces(messages, settings))
            case Conversation(messages=messages, settings=settings):
                return MarkedText(pieces=((self.template.text(messages, settings), True),))
            case PromptCompletions():
                return self._prompt_text(example)

    def _prompt_text(self, example: PromptCompletions) -> PromptText:
        prompt = example.prompt
        if isinstance(prompt, str):
            return PromptText(prompt=prompt, completions=tuple(c for c in example.completions if isinstance(c, str)))
        parts = [
            self.template.continued(prompt, each, example.settings)
            for each in example.completions
            if not isinstance(each, str)
        ]
        if len({before for before, _ in parts}) > 1:
            raise BadRow("the chat template writes the prompt in two ways, depending on what follows it")
        return PromptText(prompt=parts[0][0], completions=tuple(after for _, after in parts))

    def sequences(self, texts: Sequence[MarkedText]) -> list[tuple[Ids, Marks, bool]]:
        """Tokenize each text as a whole, or piece by piece if a token would cross the edge between two pieces."""
        pieces = [_joined(marked) for marked in texts]
        whole = self._encode(["".join(text for text, _ in each) for each in pieces])
        apart: dict[int, list[list[int]]] = {}
        bounds = [self._bounds(whole, i, each) for i, each in enumerate(pieces)]
        for i in (i for i, found in enumerate(bounds) if found is None):
            apart[i] = self._ids([text for text, _ in pieces[i]])
        found = []
        for i, each in enumerate(pieces):
            if i in apart:
                ids = [token for part in apart[i] for token in part]
                lengths = [len(part) for part in apart[i]]
            else:
                ids = whole["input_ids"][i]
                lengths = np.diff([0, *(bounds[i] or []), len(ids)]).tolist()
            marks = np.repeat([is_assistant for _, is_assistant in each], lengths)
            found.append((*self._closed(ids, marks), i not in apart))
        return found

    def _closed(self, ids: list[int], marks: Marks) -> tuple[Ids, Marks]:
        before = self._missing_begin(ids)
        # Without text of the assistant, the end is not the assistant's either. Such a conversation is refused later.
        after = self._missing_end(ids) if marks.any() else ()
        marks = np.concatenate([np.zeros(len(before), bool), marks, np.ones(len(after), bool)])
        return _array([*before, *ids, *after]), marks

    def prompt_completions(self, texts: Sequence[PromptText]) -> list[tuple[Ids, ...]]:
        """Tokenize each prompt alone, and each completion as the tokens that it adds to the prompt.

        If a completion changes the prompt's tokens, it is tokenized alone. So a prompt has the same tokens whatever
        follows it, as when the model generates from it.
        """
        prompts = self._ids([each.prompt for each in texts])
        pairs = [(i, c) for i, each in enumerate(texts) for c in each.completions]
        joint = self._ids([texts[i].prompt + c for i, c in pairs])
        after: list[list[int] | None] = [
            ids[len(prompts[i]) :] if ids[: len(prompts[i])] == prompts[i] else None
            for ids, (i, _) in zip(joint, pairs, strict=True)
        ]
        alone = iter(self._ids([c for ids, (_, c) in zip(after, pairs, strict=True) if ids is None]))
        completions: list[list[Ids]] = [[] for _ in texts]
        for (i, _), part in zip(pairs, after, strict=True):
            ids = next(alone) if part is None else part
            completions[i].append(_array([*ids, *self._missing_end(ids)]))
        return [
            (_array([*self._missing_begin(ids), *ids]), *each) for ids, each in zip(prompts, completions, strict=True)
        ]

    def _missing_begin(self, ids: list[int]) -> tuple[int, ...]:
        return () if tuple(ids[: len(self.begin)]) == self.begin else self.begin

    def _missing_end(self, ids: list[int]) -> tuple[int, ...]:
        """The end token unless the text already has it. A template may write white space after it."""
        for token in reversed(ids):
            if token == self.end:
                return ()
            with tokenizing(self.where):
                text = self.tokenizer.decode([token])
            if text.strip():
                break
        return (self.end,)

    def _bounds(self, whole: Any, number: int, pieces: list[tuple[str, bool]]) -> list[int] | None:
        """The first token of each piece but the first. None if a token crosses the edge between two pieces."""
        bounds, at = [], 0
        for text, _ in pieces[:-1]:
            at += len(text)
            last, first = whole.char_to_token(number, at - 1), whole.char_to_token(number, at)
            if last is None or first is None or first <= last:
                return None
            bounds.append(first)
        return bounds

    def _ids(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self._encode(texts)["input_ids"] if texts else []
        return ids

    def _encode(self, texts: list[str], *, split_special_tokens: bool | None = None) -> Any:
        with tokenizing(self.where):
            return self.tokenizer(
                texts or [""],
                add_special_tokens=False,
                split_special_tokens=split_special_tokens,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )


def _joined(marked: MarkedText) -> list[tuple[str, bool]]:
    """The pieces without empty ones. Neighbours with one mark are joined."""
    pieces = [piece for piece in marked.pieces if piece[0]]
    return [
        ("".join(text for text, _ in group), is_assistant)
        for is_assistant, group in groupby(pieces, key=lambda p: p[1])
    ]


def _array(ids: list[int]) -> Ids:
    return np.array(ids, np.int32)


def _folder(model: HfModel, where: str) -> Path:
    """The folder of the model's tokenizer, whose files transformers may open.

    Raises:
        DataError: there is none, or a file must not be opened.
    """
    try:
        folder = ModelFolder.find_tokenizer(model)
    except UserError as error:
        raise DataError(str(error)) from error
    try:
        folder.require_readable()
    except UserError as error:
        raise DataError(f"{where} cannot be loaded: {error}") from error
    return folder.path


def _template_file(model: HfModel) -> str | None:
    if model.chat_template is None:
        return None
    try:
        return read_bounded(expanded(model.chat_template), _MAX_TEMPLATE_BYTES).decode()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        place = place_text(model.chat_template)
        raise DataError(f"model.chat_template: cannot read {model.chat_template}{place}: {reason}") from error
