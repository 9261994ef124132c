"""Finds the shell scripts in a document: the fenced blocks of a README, and lines outside them."""

import re
from dataclasses import dataclass

_DOCUMENT = (".md", ".markdown", ".mdx", ".rst", ".txt", ".py", ".ipynb", ".html", ".tex")
_SCRIPT = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
_SHEBANG = re.compile(r"#![^\n]*\b(?:ba|z|da|k)?sh\b")
_FENCE = re.compile(r"[ \t]*(?:[>*-][ \t]+)?(?:```+|~~~+)[ \t]*([\w+-]*)[^`\n]*")
_FENCE_LINE = re.compile(rf"^{_FENCE.pattern}$", re.MULTILINE)
_OF_SHELLS = (
    "",
    "bash",
    "sh",
    "shell",
    "zsh",
    "console",
    "terminal",
    "text",
    "txt",
    "shellscript",
    "shell-session",
    "cmd",
)
# A backslash at a line's end, also with a comment behind it, as in READMEs.
_CONTINUED = re.compile(r"\\[ \t]*(#[^\n]*)?\n")


@dataclass(frozen=True)
class Script:
    """A part of a text that is a shell script."""

    text: str
    before: int
    """the number of lines before it"""
    is_line: bool = False
    """whether it is a line of prose or a command, so that it may be no script at all"""


def continued(text: str) -> str:
    """The text with lines joined where a backslash continues them."""
    return _CONTINUED.sub(" ", text)


def scripts_in(text: str, source: str) -> list[Script]:
    """The scripts in a text. A text that is no document is one script.

    Args:
        text: the text of a file, or a command.
        source: the file's path, whose suffix may tell a document.
    """
    is_script = _SHEBANG.match(text) or source.endswith(_SCRIPT)
    if is_script or not (source.endswith(_DOCUMENT) or _FENCE_LINE.search(text)):
        # A command may stand in the backticks of the README that it is from.
        bare = text.strip()
        is_in_backticks = len(bare) > 1 and bare[0] == bare[-1] == "`"
        return [Script(bare.strip("`") if is_in_backticks else text, 0)]
    return _parts(text.split("\n"))


def _parts(lines: list[str]) -> list[Script]:
    """The fenced blocks for shells, and each line outside of blocks with the lines that continue it."""
    made: list[Script] = []
    at = 0
    while at < len(lines):
        start = at
        at += 1
        if fence := _FENCE.fullmatch(lines[start]):
            while at < len(lines) and not _FENCE.fullmatch(lines[at]):
                at += 1
            if fence[1].lower() in _OF_SHELLS:
                made.append(Script("\n".join(lines[start + 1 : at]), start + 1))
            at += 1
            continue
        while at < len(lines) and _CONTINUED.search(f"{lines[at - 1]}\n"):
            at += 1
        line = "\n".join(lines[start:at]).strip().strip("`")
        made.append(Script(line, start, is_line=True))
    return made
