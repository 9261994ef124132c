"""Follows a shell script from command to command, with the variables that each one sees. It runs nothing.

A variable is known where bash is certain to give it that value. Behind a condition or a loop that sets it, it is
unknown.
"""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.recipes.shell.brackets import ShellError
from planner.recipes.shell.builtins import DECLARING, SETTING, arguments, declared, names_set, set_options, shift
from planner.recipes.shell.fields import Filled, has_braces
from planner.recipes.shell.grammar import parse
from planner.recipes.shell.nodes import Block, Node, Simple, assignment_of
from planner.recipes.shell.programs import nested_script, program_at, reads_script
from planner.recipes.shell.values import Shell, Value
from planner.recipes.shell.words import HereDocument, Lexer, Part, Word, merged

_MOST_STARTS = 50_000
_MOST_CALLS = 20
_MOST_SHELLS = 6
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Started:
    """A program that the script starts."""

    words: tuple[str, ...]
    """the program and its arguments"""
    assigned: Mapping[str, str]
    """variables before the program"""
    line: int
    has_braces: bool
    """whether bash may make more words of it, by `{a,b}`"""
    shell: Shell
    """the shell that starts it, as it is at that moment"""


@dataclass(kw_only=True)
class Follower:
    """Follows scripts, and tells `visit` of each program that they start."""

    visit: Callable[[Started], None]
    hints: re.Pattern[str]
    """texts in `$(...)` without this are not followed"""
    num_starts: int = 0
    called: set[str] = field(default_factory=set)
    """functions that the script has called"""
    _calls: list[str] = field(default_factory=list)
    _locals: list[set[str]] = field(default_factory=lambda: [set()])
    """variables that each function declares for itself"""
    _first_lines: list[int] = field(default_factory=lambda: [0])
    """the line before each shell's first, so that lines of a text in quotes are counted in the whole script"""

    def follow(self, text: str, shell: Shell, before: int = 0) -> None:
        """Follow a script in a shell. `before` is the number of lines before it.

        Raises:
            ShellError: bash refuses it, or planner cannot read it with certainty.
        """
        if len(self._first_lines) > _MOST_SHELLS:
            raise ShellError(f"found shells nested more than {_MOST_SHELLS} deep")
        self._first_lines.append(before)
        try:
            self._all(parse(text), shell)
        finally:
            self._first_lines.pop()

    def call(self, name: str, shell: Shell, arguments: tuple[str, ...] | None, *, num_shifted: int | None = 0) -> None:
        """Follow a function. Its arguments are None if they are unknown.

        `num_shifted` is None unless the arguments given from outside may be the function's.
        """
        self.called.add(name)
        if name in self._calls or len(self._calls) >= _MOST_CALLS:
            raise ShellError(f"found functions that call {name[:40]} again and again")
        self._calls.append(name)
        self._locals.append(set())
        inner = replace(shell, layers=[*shell.layers, {}], positional=arguments, num_shifted=num_shifted)
        self._all(shell.functions[name], inner)
        shell.exports_all, shell.splits = inner.exports_all, inner.splits
        local = self._locals.pop()
        for changed, value in inner.layers[-1].items():
            if changed not in local:
                shell.set(changed, value)
        self._calls.pop()

    def _all(self, nodes: Sequence[Node], shell: Shell) -> bool:
        """Follows commands in their order. True if one of them ends the script or function."""
        for node in nodes:
            if self._simple(node, shell) if isinstance(node, Simple) else self._block(node, shell):
                return True
        return False

    def _block(self, block: Block, shell: Shell) -> bool:
        if block.kind == "all":
            return self._all(block.body, shell)
        if block.kind == "function":
            shell.functions[block.name] = block.body
        elif block.kind == "own shell":
            self._all(block.body, _copy(shell))
        else:
            self._maybe(block, shell)
        return False

    def _maybe(self, block: Block, shell: Shell) -> None:
        """Follows commands that run maybe or several times. What they change is unknown behind them."""
        shell.layers.append({})
        if block.kind == "loop":
            for name in names_set(block.body, shell, set()) | ({block.name} if block.name else set()):
                shell.set(name, None)
        before, exported = (shell.positional, shell.num_shifted, shell.exports_all), set(shell.exported)
        self._all(block.body, shell)
        changed = shell.layers.pop()
        shell.never_known |= exported - shell.exported  # whether later values are exported is unknown, too
        for name in exported ^ shell.exported:
            shell.exported.add(name)
            changed[name] = None
        for name, value in changed.items():
            if not shell.is_set(name) or shell.value(name) != value:
                shell.set(name, None)
        if (shell.positional, shell.num_shifted, shell.exports_all) != before:
            shell.positional = shell.num_shifted = None

    def _simple(self, node: Simple, shell: Shell) -> bool:
        self.num_starts += 1
        if self.num_starts > _MOST_STARTS:
            raise ShellError(f"found more than {_MOST_STARTS} commands")
        self._inside(node, shell)
        if not node.words:
            for its in node.assignments:
                shell.assign(its)
            return False
        first = node.words[0].raw
        if first in DECLARING:
            self._declare(node, shell)
            return False
        if any(word.elements is not None for word in node.words):
            raise ShellError(f"line {self._line(node)}: a shell does not expect ( there")
        filled = [shell.fill(word) for word in node.words]
        words = tuple(text for each in filled for text in each.words)
        return self._started(node, words, filled, shell)

    def _started(self, node: Simple, words: tuple[str, ...], filled: Sequence[Filled], shell: Shell) -> bool:
        name = words[0] if words else ""
        if name in {"exit", "return"}:
            return True
        if name in SETTING and (name != "printf" or "-v" in words):
            for each in words[1:]:
                for found in _NAME.findall(each) if name == "let" else [each]:
                    shell.set(found, None)
            if name == "unset":
                shell.exported.difference_update(words[1:])
        elif name == "set":
            set_options(words[1:], shell)
        elif name == "shift":
            shift(words[1:], shell)
        elif name in shell.functions:
            self._called(node, words, shell)
        elif words:
            self._nested(node, words, filled, shell)
            self.visit(self._of(node, words, shell))
        return name == "exec" and len(words) > 1

    def _called(self, node: Simple, words: tuple[str, ...], shell: Shell) -> None:
        for its in node.assignments:
            shell.assign(its)
        self.call(words[0], shell, arguments(words[1:]), num_shifted=None)
        for its in node.assignments:
            shell.set(its.name, None)

    def _of(self, node: Simple, words: tuple[str, ...], shell: Shell) -> Started:
        assigned: dict[str, str] = {}
        inner = (
            shell
            if not node.assignments
            else replace(shell, layers=[*shell.layers, {}], exported=set(), exports_all=False)
        )
        for its in node.assignments:
            inner.assign(its)
            value = inner.value(its.name)
            assigned[its.name] = value if isinstance(value, str) else f"${its.name}"
        braces = any(has_braces(word) for word in node.words)
        return Started(words=words, assigned=assigned, line=self._line(node), has_braces=braces, shell=shell)

    def _line(self, node: Simple) -> int:
        return self._first_lines[-1] + node.line

    def _declare(self, node: Simple, shell: Shell) -> None:
        """`export A=1 B=2`, `declare -x A=1`, `local A`."""
        first = node.words[0].raw
        options = "".join(word.raw[1:] for word in node.words[1:] if word.raw.startswith(("-", "+")))
        exports = (first == "export" and "n" not in options) or "x" in options
        if "i" in options or (first != "export" and "n" in options):
            raise ShellError(f"line {self._line(node)}: found {first} -{options}, which planner does not read")
        changes = set("luAc")
        values: dict[str, Value] = {}
        names: list[str] = []
        # bash fills in all words before it sets the first variable.
        for word in [] if "f" in options else node.words[1:]:
            if word.raw.startswith(("-", "+")):
                continue
            if its := assignment_of(word):
                values[its.name] = None if changes & set(options) else shell.assigned(its)
                names.append(its.name)
            else:
                names += declared(shell.fill(word).words, values, is_local=first == "local")
        if changes & set(options):
            shell.never_known |= {*names}  # the attribute stays, and changes later values, too
        for name, value in values.items():
            shell.set(name, value)
        if first not in {"export", "readonly"}:
            self._locals[-1].update(names)
        if exports:
            shell.exported.update(names)
        elif first == "export":
            shell.exported.difference_update(names)

    def _nested(self, node: Simple, words: tuple[str, ...], filled: Sequence[Filled], shell: Shell) -> None:
        """Follows the text that a command gives to another shell."""
        unknown = {name for each in filled for name in each.unknown}
        if found := nested_script(words):
            text, behind = found
            at = program_at(words)
            if at is not None and words[at] == "eval":
                inner = shell
                inner.never_known |= unknown
                if not self.hints.search(text):
                    with contextlib.suppress(ShellError):
                        self.follow(text, inner, self._line_of_text(node, text))
            else:
                inner = _child(shell, node, unknown, arguments(behind[1:]))
            self._follow_text(text, inner, self._line_of_text(node, text))
        elif node.stdin and reads_script(words):
            made = _document(node.stdin, shell)
            inner = _child(shell, node, unknown | made.unknown, None)
            self._follow_text("".join(made.words), inner, self._line(node))

    def _follow_text(self, text: str, shell: Shell, before: int) -> None:
        if self.hints.search(text):
            self.follow(text, shell, before)

    def _line_of_text(self, node: Simple, text: str) -> int:
        """The line before the text's first one."""
        word = next((word for word in node.words if "\n" in word.raw and text[:1] == "\n"), None)
        return (word.line if word else node.line) + self._first_lines[-1] - 1

    def _inside(self, node: Simple, shell: Shell) -> None:
        """Follows the commands in `$(...)`."""
        words = [*node.words, *(its.word for its in node.assignments)]
        for word in words:
            for part in word.parts:
                if part.kind == "command" and self.hints.search(part.text):
                    self.follow(part.text, _copy(shell), self._first_lines[-1] + word.line - 1)


def _copy(shell: Shell) -> Shell:
    """A shell of its own with the same variables."""
    return replace(shell, layers=[*shell.layers, {}], exported=set(shell.exported), functions=dict(shell.functions))


def _child(shell: Shell, node: Simple, unknown: set[str], positional: tuple[str, ...] | None) -> Shell:
    """The shell of `bash -c`: it sees what is exported. A variable that the text around it left open stays unknown."""
    inner = _copy(shell)
    for its in node.assignments:
        inner.assign(its)
    passed = shell.exported | {its.name for its in node.assignments}
    layer = {name: value for layer in inner.layers for name, value in layer.items() if name in passed}
    return replace(
        inner,
        layers=[layer],
        exported=passed,
        never_known=shell.never_known | unknown,
        positional=positional,
        num_shifted=None,
        splits=True,
        exports_all=False,
    )


def _document(document: HereDocument, shell: Shell) -> Filled:
    """The text of a here-document."""
    if document.is_quoted:
        return Filled(words=[document.body])
    parts: list[Part] = []
    Lexer(document.body).quoted(parts, "")
    return shell.fill(Word(merged(parts), document.body, 0), splits=False)
