"""Splits a shell script into words and operators, as bash does, and keeps which characters were quoted.

It runs nothing and fills nothing in: `grammar` makes commands of the words, `values` fills in variables.
Its time is linear in the script's length, and it does not recurse.
"""

import re
from dataclasses import dataclass
from typing import Literal

from planner.recipes.shell.brackets import ShellError, close

_BLANKS = re.compile(r"[ \t]*(?:\\\n[ \t]*)*")
_PLAIN = re.compile(r"[^\s'\"\\$`|&;()<>]+|[^\S \t\n]+")
_IN_DOUBLE = re.compile(r"[^\"\\$`]+")
_OPERATOR = re.compile(r"&>>|&>|&&|&|\|\||\|&|\||;;&|;;|;&|;|\(|\)|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(", re.ASCII)
_DESCRIPTOR = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})(?=[<>])", re.ASCII)
# A backslash before blanks or a comment ends the command in bash, which passes one blank as an argument. READMEs have
# it, and TRL and Hydra refuse that argument, so nobody trains with it. planner reads it as the README means it.
_README_CONTINUED = re.compile(r"\\[ \t]+(?:#[^\n]*)?\n")
_NEXT_LINE = re.compile(r"[^\n]*(?:\n|$)")
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|([0-7]{1,3})|([abeEfnrtv\\'\"?])|[cU])")
_ANSI = re.compile(r"(?:[^'\\]|\\.)*", re.DOTALL)
_ESCAPED_IN_BACKTICKS = re.compile(r"\\([\\`$])")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: literal text, or something that a shell replaces."""

    kind: Literal["text", "variable", "command", "arithmetic"]
    text: str
    """literal text without quotes, the inside of `${...}`, of `$(...)` or of `$((...))`"""
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a script."""

    parts: tuple[Part, ...]
    raw: str
    """the word as written"""
    line: int
    elements: tuple["Word", ...] | None = None
    """the values of an array, `NAME=(a b)`. Then `parts` is `NAME=`"""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, an operator, the end of a line or the end of the script."""

    kind: Literal["word", "operator", "newline", "end"]
    text: str
    line: int
    word: Word | None = None


@dataclass(slots=True)
class HereDocument:
    """The text behind `<<END`. `body` is empty until the lexer has read the line's end."""

    end: str
    strips_tabs: bool
    is_quoted: bool
    body: str = ""


class Lexer:
    """Reads one token after another, because the grammar decides what some characters mean."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._line, self._counted = 1, 0
        self.documents: list[HereDocument] = []

    @property
    def line(self) -> int:
        """The number of the line that is read next, from 1."""
        if self.at > self._counted:
            self._line += self.text.count("\n", self._counted, self.at)
            self._counted = self.at
        return self._line

    def token(self) -> Token:
        """The next token.

        Raises:
            ShellError: a quote or a bracket has no end.
        """
        self._skip_blanks()
        line = self.line
        if self.at >= len(self.text):
            self._read_documents()
            return Token("end", "", line)
        if self.text[self.at] == "\n":
            self.at += 1
            self._read_documents()
            return Token("newline", "\n", line)
        if found := _DESCRIPTOR.match(self.text, self.at):
            self.at = found.end()  # the number before a redirection
        found = _OPERATOR.match(self.text, self.at)
        if found and not self.text.startswith(("<(", ">("), self.at):
            self.at = found.end()
            return Token("operator", found[0], line)
        return Token("word", "", line, self.word())

    def word(self) -> Word:
        """The word that begins here."""
        start, line = self.at, self.line
        if found := _ARRAY.match(self.text, self.at):
            self.at = found.end()
            name = (Part("text", found[0][:-1], False),)
            return Word(name, self.text[start : self.at], line, self._elements())
        parts: list[Part] = []
        while self.at < len(self.text) and self._continue(parts):
            pass
        return Word(merged(parts), self.text[start : self.at], line)

    def all_of(self, parts: list[Part]) -> None:
        """Add the pieces of the whole text, in which blanks and operators are text."""
        while self.at < len(self.text):
            if not self._continue(parts):
                parts.append(Part("text", self.text[self.at], False))
                self.at += 1

    def skip_brackets(self) -> str:
        """The text up to the `)` that ends what began before this place, which is then behind it."""
        start = self.at
        self.at = close(self.text, self.at, "(")
        return self.text[start : self.at - 1]

    def _skip_blanks(self) -> None:
        while True:
            at = self.at
            if found := _BLANKS.match(self.text, at):
                self.at = found.end()
            if found := _README_CONTINUED.match(self.text, self.at):
                self.at = found.end()
            if self.text.startswith("#", self.at):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            if self.at == at:
                return

    def _elements(self) -> tuple[Word, ...]:
        """The words of an array, up to its `)`."""
        words = []
        while True:
            token = self.token()
            if token.word and token.word.elements is None:
                words.append(token.word)
            elif token.kind == "operator" and token.text == ")":
                return tuple(words)
            elif token.kind != "newline":
                raise ShellError(f"line {token.line}: an array has no end")

    def _continue(self, parts: list[Part]) -> bool:
        """Adds the next piece of a word. False at the word's end."""
        text, at = self.text, self.at
        if found := _PLAIN.match(text, at):
            self.at = found.end()
            parts.append(Part("text", found[0], False))
            return True
        sign = text[at]
        if sign == "\\":
            if at + 1 >= len(text):
                raise ShellError(f"line {self.line}: nothing is behind a backslash")
            self.at = at + 2
            if text[at + 1] != "\n":
                parts.append(Part("text", text[at + 1], True))
        elif sign == "'":
            end = self._find("'", at + 1, "a single quote")
            parts.append(Part("text", text[at + 1 : end], True))
        elif sign == '"':
            self._double(parts, at + 1)
        elif sign in "$`":
            self._dollar(parts, is_quoted=False)
        elif sign in "<>" and text.startswith("(", at + 1):
            self.at = at + 2
            parts.append(Part("command", self.skip_brackets(), False))
        else:
            return False
        return True

    def _find(self, sign: str, start: int, what: str) -> int:
        """The place of a sign, behind which reading goes on."""
        end = self.text.find(sign, start)
        if end < 0:
            raise ShellError(f"line {self.line}: {what} has no end")
        self.at = end + 1
        return end

    def _double(self, parts: list[Part], start: int) -> None:
        """The pieces between double quotes."""
        line, before = self.line, len(parts)
        self.at = start
        self.quoted(parts, '"')
        if len(parts) == before:
            parts.append(Part("text", "", True))
        if self.at >= len(self.text):
            raise ShellError(f"line {line}: a double quote has no end")
        self.at += 1

    def quoted(self, parts: list[Part], end: str) -> None:
        """Adds the pieces of a quoted text up to `end`, or to the end of a text that has none."""
        text = self.text
        while self.at < len(text):
            sign = text[self.at]
            if sign == end:
                return
            if sign == "\\":
                after = text[self.at + 1 : self.at + 2]
                self.at += 2 if after else 1
                if after != "\n":
                    parts.append(Part("text", after if after and after in f"$`\\{end}" else f"\\{after}", True))
            elif sign in "$`":
                self._dollar(parts, is_quoted=True)
            elif found := _IN_DOUBLE.match(text, self.at):
                self.at = found.end()
                parts.append(Part("text", found[0], True))
            else:  # a double quote in a here-document
                self.at += 1
                parts.append(Part("text", sign, True))

    def _dollar(self, parts: list[Part], *, is_quoted: bool) -> None:
        """The piece that begins with a dollar or a backtick."""
        text, at = self.text, self.at
        if text[at] == "`":
            self.at = at + 1
            parts.append(Part("command", self._backticks(), is_quoted))
        elif text.startswith("${", at):
            self.at = close(text, at + 2, "quoted brace" if is_quoted else "brace")
            parts.append(Part("variable", text[at + 2 : self.at - 1], is_quoted))
        elif text.startswith("$(", at):
            self.at = at + 2
            inner = self.skip_brackets()
            if inner.startswith("(") and close(inner, 1, "(") == len(inner):
                parts.append(Part("arithmetic", inner[1:-1], is_quoted))
            else:
                parts.append(Part("command", inner, is_quoted))
        elif text.startswith("$'", at) and not is_quoted:
            self._ansi(parts, at + 2)
        elif text.startswith('$"', at) and not is_quoted:
            self._double(parts, at + 2)
        elif text.startswith("$[", at):
            raise ShellError(f"line {self.line}: found $[...], which planner does not read", "Write $((...))")
        elif found := _NAME.match(text, at + 1):
            self.at = found.end()
            parts.append(Part("variable", found[0], is_quoted))
        else:
            self.at = at + 1
            parts.append(Part("text", "$", True))

    def _backticks(self) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] != "`":
            self.at += 2 if self.text[self.at] == "\\" else 1
        if self.at >= len(self.text):
            raise ShellError(f"line {self.line}: a backtick has no end")
        self.at += 1
        return _ESCAPED_IN_BACKTICKS.sub(r"\1", self.text[start : self.at - 1])

    def _ansi(self, parts: list[Part], start: int) -> None:
        """The text of `$'...'`."""
        found = _ANSI.match(self.text, start)
        end = found.end() if found else start
        if not self.text.startswith("'", end):
            raise ShellError(f"line {self.line}: a single quote has no end")
        self.at = end + 1
        parts.append(Part("text", _ESCAPE.sub(_unescaped, self.text[start:end]), True))

    def _read_documents(self) -> None:
        """Reads the texts of the here-documents that were begun on this line."""
        for document in self.documents:
            lines = []
            while found := _NEXT_LINE.match(self.text, self.at):
                if self.at >= len(self.text):
                    raise ShellError(f"line {self.line}: the text behind <<{document.end} has no end")
                self.at = found.end()
                line = found[0].lstrip("\t") if document.strips_tabs else found[0]
                if line.rstrip("\n") == document.end:
                    break
                lines.append(line)
            document.body = "".join(lines)
        self.documents.clear()


def _unescaped(found: re.Match[str]) -> str:
    if found[4]:
        return _ESCAPES.get(found[4], found[4])
    code = int(found[1] or found[2] or found[3] or "0", 8 if found[3] else 16)
    if not code or (code > 0x7F and not found[2]):
        raise ShellError(f"found {found[0]} in a quoted text, which planner does not read")
    return chr(code)


def merged(parts: list[Part]) -> tuple[Part, ...]:
    """The pieces, with neighbouring texts of the same kind as one."""
    made: list[Part] = []
    texts: list[str] = []
    for part, after in zip(parts, [*parts[1:], None], strict=False):
        if part.kind != "text":
            made.append(part)
            continue
        texts.append(part.text)
        if after is None or after.kind != "text" or after.is_quoted != part.is_quoted:
            made.append(Part("text", "".join(texts), part.is_quoted))
            texts = []
    return tuple(made)
