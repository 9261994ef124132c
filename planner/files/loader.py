"""Loads the text and the YAML of files that a user names, within limits of size, depth and number of values.

With aliases and merge keys (`<<`), a file of 700 bytes can expand beyond all memory. So each alias counts as all the
values that it repeats, while the file is read. `planner.files.yaml_reader` reads jobs from `events`, without aliases.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from planner.base.disk import read_bounded
from planner.errors import printable

MAX_BYTES = 2**20
MAX_DEPTH = 40
MAX_VALUES = 50_000
"""including what aliases repeat. The largest cluster file known to us has 6,000."""
# PyYAML reads `1:1:1` as a number in base 60, in quadratic time.
_MAX_NUMBER = 100
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
# What PyYAML's constructors raise for a wrong tag, an invalid date, or 1,000 nested brackets.
_NO_YAML = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)


class Unreadable(Exception):
    """The file has no text that can be read. The message says what was found and what to do."""


def read_text(path: str | Path, kind: str, most_bytes: int = MAX_BYTES) -> str:
    """The file's text. `kind` names it in errors, such as `job file`.

    Raises:
        Unreadable: there is no file, it is larger than `most_bytes` (1 MiB), or it is not UTF-8 text.
    """
    try:
        return _decode(read_bounded(path, most_bytes))
    except OSError as error:
        raise Unreadable(_why_unread(error, kind, most_bytes)) from None
    except ValueError:  # a NUL, or what the file system cannot encode
        raise Unreadable("found an impossible file name. Write the path of a file") from None


def _why_unread(error: OSError, kind: str, most_bytes: int) -> str:
    one = f"an {kind}" if kind[:1] in "aeiou" else f"a {kind}"
    if isinstance(error, FileNotFoundError):
        return f"found no such file. Write the path of {one}"
    if isinstance(error, IsADirectoryError):
        return f"found a directory. Write the path of {one} in it"
    if isinstance(error, PermissionError):
        return "found a file that you may not read. Give yourself permission to read it"
    if error.errno == errno.EFBIG:
        return f"found more than {most_bytes} bytes. Write the path of {one}, which has at most {most_bytes >> 20} MiB"
    if error.errno in {errno.EINVAL, errno.ENXIO}:  # ENXIO: a socket
        return "found a pipe or a device. Write the path of a regular file"
    return f"found a file that cannot be read ({printable(error.strerror or str(error))}). Write another path"


def _decode(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        found = f"found byte 0x{data[error.start]:02x} at byte offset {error.start}, which is not UTF-8"
        raise Unreadable(f"{found}. Save the file as UTF-8 text") from None
    if (offset := data.find(b"\0")) >= 0:
        found = f"found a NUL byte at byte offset {offset}, so this is a binary file"
        raise Unreadable(f"{found}. Write the path of a text file")
    return text


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader with limits. Beyond a limit it raises a `yaml.MarkedYAMLError`."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._num_values = 0
        self._sizes: dict[int, int] = {}
        """id of a node -> number of values in it, including what aliases repeat"""

    def compose_document(self) -> yaml.Node | None:
        """The nodes of one document. Sizes of earlier documents are dropped, since Python may reuse their ids."""
        self._sizes.clear()
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node with everything below it."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_much(f"more than {MAX_DEPTH} levels", mark)
        before = self._num_values
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias and id(node) not in self._sizes:
            raise _too_much("an alias to a value that contains it", mark)
        self._num_values += self._sizes[id(node)] if is_alias else 1
        if self._num_values > MAX_VALUES:
            raise _too_much(f"more than {MAX_VALUES} values, counting what aliases repeat", mark)
        if not is_alias:
            self._sizes[id(node)] = self._num_values - before
        self._depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """A scalar. Numbers in base 60 must be short."""
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and ":" in node.value and len(node.value) > _MAX_NUMBER:
            raise _too_much(f"a number of {len(node.value)} characters", node.start_mark)
        return node


def _too_much(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(problem=problem, problem_mark=mark)


class YamlMistake(Exception):
    """PyYAML cannot read a text, or it is beyond a limit."""

    def __init__(self, problem: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        """PyYAML's words, or those of the limit"""
        self.line, self.column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        """from 1. 0 if PyYAML names no place, as for a wrong date or tag"""


@contextmanager
def _yaml_mistakes() -> Iterator[None]:
    """Make a `YamlMistake` of each error that PyYAML raises."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlMistake(error.problem or error.context or "no YAML", mark) from None
    except _NO_YAML as error:
        raise YamlMistake(next(iter(str(error).splitlines()), type(error).__name__)) from None


def events(text: str) -> Iterator[yaml.Event]:
    """PyYAML's events of a text, without a limit on their number.

    Raises:
        YamlMistake: the text is no YAML.
    """
    with _yaml_mistakes():
        yield from yaml.parse(text, Loader=yaml.SafeLoader)


def documents(text: str) -> list[Any]:
    """The values of all documents in a text.

    Raises:
        YamlMistake: the text is no YAML, or beyond a limit.
    """
    with _yaml_mistakes():
        return list(yaml.load_all(text, Loader=BoundedLoader))


def document(text: str, loader: Callable[[str], BoundedLoader]) -> Any:
    """The value of the one document in a text, read by a loader of the caller's. None if there is none.

    Raises:
        YamlMistake: the text is no YAML, beyond a limit, or has more than one document.
    """
    with _yaml_mistakes():
        return loader(text).get_single_data()
