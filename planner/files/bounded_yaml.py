"""A YAML loader with limits. With aliases and merge keys (`<<`), a file of 700 bytes can expand beyond all memory.

Each alias counts as all the values that it repeats, while the file is read.
"""

from typing import Any

import yaml

MAX_DEPTH = 40
MAX_VALUES = 50_000
"""including what aliases repeat. The largest cluster file known to us has 6,000."""
# PyYAML reads `1:1:1` as a number in base 60, in quadratic time.
_MAX_NUMBER = 100
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


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
