"""A key that a file has twice. PyYAML and `json` take the last one. OmegaConf and DeepSpeed refuse the file."""

from dataclasses import dataclass

from planner.files.messages import cut


@dataclass(frozen=True, kw_only=True)
class RepeatedKey:
    """A key that occurs twice or more in one mapping of a file."""

    name: str
    lines: tuple[int, ...] = ()
    """from 1, empty if unknown"""
    value: str = ""
    """the last value as text, empty if it is a mapping or a list"""

    @property
    def note(self) -> str:
        """What a system that takes such a file does."""
        value = f" ({cut(self.value, 40)})" if self.value else ""
        return f"{cut(self.name)}: {self._twice()}. The last one counts{value}"

    def refusal(self, title: str) -> str:
        """What a system that does not take such a file does. `title` is its name."""
        return f"found {cut(self.name)} {self._twice()}. {title} refuses such a file: keep one"

    def _twice(self) -> str:
        """`twice, on lines 3 and 9`, `twice, on line 3` or `twice`."""
        last = list(dict.fromkeys(self.lines[-2:]))
        return ", ".join(
            ["twice", *([f"on line{'s'[: len(last) - 1]} {' and '.join(map(str, last))}"] if last else [])]
        )
