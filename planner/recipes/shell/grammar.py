"""Makes commands of a script's words by bash's grammar: lists, pipelines, conditions, loops and functions.

It keeps only what decides which variables a command sees: whether it runs always, maybe, many times, or in a shell of
its own.
"""

import re

from planner.recipes.shell.brackets import ShellError, close
from planner.recipes.shell.nodes import MOST_NESTED, Assignment, Block, Node, Simple, arithmetic, assignment_of, chained
from planner.recipes.shell.words import HereDocument, Lexer, Token, Word

# Far above any real script.
_MOST_CHARACTERS = 300_000
_MOST_LEVELS = 6
_MOST_COMMANDS = 20_000

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Where a command begins, bash reads on to the `]`, also over blanks and lines.
_SUBSCRIPT = re.compile(r"[A-Za-z_]\w*\[", re.ASCII)
_FUNCTION = re.compile(r"[^\s'\"\\$`=]+")
_RESERVED_ENDS = ("then", "else", "elif", "fi", "do", "done", "esac", "}")
_OPERATOR_ENDS = (")", ";;", ";&", ";;&")
_OPENING = ("if", "while", "until", "for", "select", "case", "function", "{", "[[", "coproc")


def parse(text: str) -> tuple[Node, ...]:
    """The commands of a script.

    Raises:
        ShellError: bash refuses the script, or it is longer or deeper than planner reads.
    """
    if "\0" in text:
        raise ShellError("found a null character", "Write the command without it")
    if len(text) > _MOST_CHARACTERS:
        raise ShellError(f"found {len(text)} characters, and planner reads {_MOST_CHARACTERS}")
    return _Parser(text).script()


class _Parser:
    """Recursive descent, at most 40 levels deep."""

    def __init__(self, text: str, level: int = 0) -> None:
        self.level = level
        self.lexer = Lexer(text)
        self.token = self.lexer.token()
        self.depth = 0
        self.num_commands = 0

    def script(self) -> tuple[Node, ...]:
        body = self._list()
        if self.token.kind != "end":
            raise self._unexpected()
        return body

    def _unexpected(self) -> ShellError:
        shown = self.token.word.raw if self.token.word else self.token.text.replace("\n", "the line's end")
        return ShellError(f"line {self.token.line}: a shell does not expect {shown[:40] or 'the end'} there")

    def _next(self) -> Token:
        token, self.token = self.token, self.lexer.token()
        for part in token.word.parts if token.word and self.level < _MOST_LEVELS else ():
            # bash refuses a script with a `$(...)` that is no script.
            if part.kind == "command" and part.text:
                _Parser(part.text, self.level + 1).script()
        return token

    def _is(self, *operators: str) -> bool:
        return self.token.kind == "operator" and self.token.text in operators

    def _is_word(self, *words: str) -> bool:
        return self.token.word is not None and self.token.word.raw in words

    def _expect(self, text: str) -> None:
        if not (self._is(text) or self._is_word(text)):
            raise self._unexpected()
        self._next()

    def _skip_lines(self) -> None:
        while self.token.kind == "newline":
            self._next()

    def _list(self, *, is_needed: bool = False) -> tuple[Node, ...]:
        """Commands up to a word or operator that ends a list."""
        nodes: list[Node] = []
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise ShellError(f"line {self.token.line}: found commands nested more than {MOST_NESTED} deep")
        self._skip_lines()
        while not self._is_at_end():
            made = self._chain()
            is_background = self._is("&")
            nodes += [Block("own shell", tuple(made))] if is_background else made
            if self._is(";", "&") or self.token.kind == "newline":
                self._next()
                self._skip_lines()
            elif not self._is_at_end():
                raise self._unexpected()
        self.depth -= 1
        if is_needed and not nodes:
            raise self._unexpected()
        return tuple(nodes)

    def _is_at_end(self) -> bool:
        return self.token.kind == "end" or self._is(*_OPERATOR_ENDS) or self._is_word(*_RESERVED_ENDS)

    def _chain(self) -> list[Node]:
        """Pipelines with `&&` and `||` between them."""
        parts = [("", self._pipeline())]
        while self._is("&&", "||"):
            operator = self._next().text
            self._skip_lines()
            parts.append((operator, self._pipeline()))
        return chained(parts)

    def _pipeline(self) -> list[Node]:
        while self._is_word("!", "time"):
            if self._next().word and self._is_word("-p"):
                self._next()
        made = self._command()
        if not self._is("|", "|&"):
            return made
        nodes: list[Node] = [Block("own shell", tuple(made))]
        while self._is("|", "|&"):
            self._next()
            self._skip_lines()
            nodes.append(Block("own shell", tuple(self._command())))
        return nodes

    def _command(self) -> list[Node]:
        self.num_commands += 1
        if self.num_commands > _MOST_COMMANDS:
            raise ShellError(f"found more than {_MOST_COMMANDS} commands")
        if self._is("("):
            made = self._brackets()
        elif self._is_word(*_OPENING):
            made = self._compound()
        else:
            return self._simple()
        self._redirections()
        return made

    def _brackets(self) -> list[Node]:
        line = self.token.line
        if self.lexer.text.startswith("(", self.lexer.at):
            return [arithmetic(self._raw_brackets(), line)]
        self._next()
        body = self._list(is_needed=True)
        self._expect(")")
        return [Block("own shell", body)]

    def _raw_brackets(self) -> str:
        """The text of `((...))`, behind whose first bracket the lexer is."""
        inner = self.lexer.skip_brackets()
        if close(inner, 1, "(") != len(inner):
            raise ShellError(f"line {self.token.line}: found (( without ))", "Write ( ( for a shell in a shell")
        self._next()
        return inner[1:-1]

    def _compound(self) -> list[Node]:
        word = self.token.word.raw if self.token.word else ""
        readers = {
            "if": self._if,
            "while": self._while,
            "until": self._while,
            "for": self._for,
            "select": self._for,
            "case": self._case,
            "{": self._group,
            "[[": self._condition,
            "function": self._named_function,
        }
        if word not in readers:
            raise ShellError(f"line {self.token.line}: found {word}, which planner does not read")
        return readers[word]()

    def _while(self) -> list[Node]:
        self._next()
        condition = self._list(is_needed=True)
        return [Block("loop", (*condition, *self._do()))]

    def _group(self) -> list[Node]:
        self._next()
        body = self._list(is_needed=True)
        self._expect("}")
        return [Block("all", body)]

    def _named_function(self) -> list[Node]:
        self._next()
        name = self._plain_name(_FUNCTION)
        if self._is("("):
            self._next()
            self._expect(")")
        return [self._function(name)]

    def _if(self) -> list[Node]:
        """The first condition runs always. All else runs maybe."""
        self._next()
        made: list[Node] = [Block("all", self._list(is_needed=True))]
        self._expect("then")
        made.append(Block("maybe", self._list(is_needed=True)))
        while self._is_word("elif"):
            self._next()
            condition = self._list(is_needed=True)
            self._expect("then")
            made.append(Block("maybe", (*condition, Block("maybe", self._list(is_needed=True)))))
        if self._is_word("else"):
            self._next()
            made.append(Block("maybe", self._list(is_needed=True)))
        self._expect("fi")
        return made

    def _do(self) -> tuple[Node, ...]:
        self._expect("do")
        body = self._list(is_needed=True)
        self._expect("done")
        return body

    def _for(self) -> list[Node]:
        line = self._next().line
        name = ""
        if self._is("("):
            if not self.lexer.text.startswith("(", self.lexer.at):
                raise self._unexpected()
            header = arithmetic(self._raw_brackets(), line)
        else:
            header = None
            name = self._plain_name(_NAME)
            self._skip_lines()
            if self._is_word("in"):
                self._next()
                while self.token.word:
                    self._next()
                if not self._is(";") and self.token.kind != "newline":
                    raise self._unexpected()
        if self._is(";"):
            self._next()
        self._skip_lines()
        body = self._do()
        return [Block("loop", (header, *body) if header else body, name)]

    def _case(self) -> list[Node]:
        self._next()
        if self._next().word is None:
            raise self._unexpected()
        self._skip_lines()
        self._expect("in")
        self._skip_lines()
        made: list[Node] = []
        while not self._is_word("esac"):
            if self._is("("):
                self._next()
            while not self._is(")"):
                if not self.token.word and not self._is("|"):
                    raise self._unexpected()
                self._next()
            self._next()
            made.append(Block("maybe", self._list()))
            if self._is(";;", ";&", ";;&"):
                self._next()
                self._skip_lines()
            elif not self._is_word("esac"):
                raise self._unexpected()
        self._next()
        return made

    def _condition(self) -> list[Node]:
        """`[[ ... ]]`, whose words are no commands."""
        line = self._next().line
        while not self._is_word("]]"):
            if self.token.kind == "end" or self._is(";", "&"):
                raise self._unexpected()
            self._next()
        self._next()
        return [Simple((), (), line, None)]

    def _plain_name(self, pattern: re.Pattern[str]) -> str:
        if not self.token.word or not pattern.fullmatch(self.token.word.raw):
            raise self._unexpected()
        return self._next().word.raw  # type: ignore[union-attr]

    def _function(self, name: str) -> Block:
        line = self.token.line
        self._skip_lines()
        if not (self._is("(") or self._is_word(*_OPENING)):
            raise self._unexpected()
        return Block("function", tuple(self._command()), name, line)

    def _simple(self) -> list[Node]:
        line = self.token.line
        assignments: list[Assignment] = []
        words: list[Word] = []
        stdin: list[HereDocument] = []
        if self._is_word("$"):
            self._next()  # the prompt in a README
        has_redirection = False
        while True:
            if document := self._redirection():
                has_redirection = True
                stdin += document if isinstance(document, list) else []
            elif (word := self.token.word) is None:
                break
            elif not words and (found := assignment_of(word)):
                assignments.append(found)
                self._next()
            else:
                if not words and _SUBSCRIPT.match(word.raw):
                    raise self._unexpected()
                words.append(word)
                self._next()
                if self._is("(") and len(words) == 1 and not assignments and _FUNCTION.fullmatch(word.raw):
                    self._next()
                    self._expect(")")
                    return [self._function(word.raw)]
        if not (words or assignments or has_redirection) or (words and words[0].raw in (*_RESERVED_ENDS, "]]", "!")):
            raise self._unexpected()
        return [Simple(tuple(assignments), tuple(words), line, stdin[-1] if stdin else None)]

    def _redirections(self) -> None:
        while self._redirection():
            pass

    def _redirection(self) -> list[HereDocument] | bool:
        """Reads a redirection: True or its here-document, False if there is none."""
        if not self._is("<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"):
            return False
        operator = self._next().text
        if self.token.word is None:
            raise self._unexpected()
        word = self.token.word
        made: list[HereDocument] = []
        if operator in {"<<", "<<-"}:
            is_quoted = any(part.is_quoted for part in word.parts)
            end = "".join(part.text for part in word.parts)
            made = [HereDocument(end, strips_tabs=operator == "<<-", is_quoted=is_quoted)]
            self.lexer.documents += made
        self._next()
        return made or True
