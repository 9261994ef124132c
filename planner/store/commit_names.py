"""The names of steps that a run can resume from: commits, and steps that were only held."""

import re
from collections.abc import Iterable

_NAME = re.compile(r"[0-9]{12}-[0-9]{6}")


def commit_name(step: int, generation: int) -> str:
    """The name of a commit, such as `000000000120-000003`. Two generations never write the same name."""
    return f"{step:012d}-{generation:06d}"


def commit_of(name: str) -> tuple[int, int]:
    """The step and the generation in a commit's name."""
    return int(name[:12]), int(name[13:])


def rank(name: str) -> tuple[str, str]:
    """The sort key of a name: by generation, then by step."""
    # As text: the numbers are padded with zeros, so they sort alike.
    return name[13:], name[:12]


def named(files: Iterable[str], ending: str = "") -> list[str]:
    """The names among file names with this ending, by generation and then by step. Other files are ignored."""
    names = (file.removesuffix(ending) for file in files if file.endswith(ending))
    return sorted((name for name in names if _NAME.fullmatch(name)), key=rank)
