"""The form of a page of frozen answers: a block for each case, and a table of the texts that occur twice or more.

A line of a block is `word | text`, or `word @abcde @fghij` for texts of the table. A text that is not printable on one
line is in JSON.
"""

import difflib
import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import frozen_answers
from frozen_answers import Case

FOLDER = Path(__file__).parent / "frozen"
_HEAD = "# Written by tests/recipes/freeze.py. README.md beside it says how to read it."
_LINE = re.compile(r"(.*?) (?:\| (.*)|(@[a-z0-9]+(?: @[a-z0-9]+)*))", re.DOTALL)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_SHORTEST = 9
_INPUTS = ("recipe", "args", "options", "question", "ask", "to", "than")
_ALL = "check convert to"
# The first letters of a name -> the page's first case with what follows them.
_LIKE = {
    "+ ": lambda case, name: frozen_answers.with_line(case, name, name[2:]),
    "& ": lambda case, name: replace(case, name=name, args=(*case.args, name[2:])),
    "$ ": lambda case, name: replace(case, name=name, recipe=name[2:]),
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A case, and its lines as they are stored."""

    case: Case
    inputs: tuple
    """pairs (word, text), as the page has them"""
    base: str = ""
    """an earlier case. The lines are the differences from its answer then, if these are fewer"""
    lines: tuple = ()
    """pairs (word, text)"""


def names():
    """The names of all pages."""
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(name):
    """The blocks of a page, by the names of their cases."""
    return parse((FOLDER / f"{name}.txt").read_text())


def write(name, blocks):
    """Write a page."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.txt").write_text(page_text(blocks.values()))


def answered(blocks):
    """The same blocks with the answers of today."""
    answers = {}
    return {name: _answered(block, answers) for name, block in blocks.items()}


def _answered(block, answers):
    name = block.case.name
    answers[name] = frozen_answers.answer_of(block.case)
    lines = answers[name]
    # A case with another end, such as a refusal, has its whole answer.
    if block.base and len(changed := differences(answers[block.base], lines)) < len(lines):
        lines = changed
    return Block(case=block.case, inputs=block.inputs, base=block.base, lines=tuple(lines))


def differences(before, after):
    """The lines that one answer has and another has not, as pairs (`-word` or `+word`, text)."""
    made = []
    for tag, first, end, other, other_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            made += [(f"-{word}", text) for word, text in before[first:end]]
            made += [(f"+{word}", text) for word, text in after[other:other_end]]
    return made


# -- text to blocks


def parse(text):
    """The blocks of a page's text."""
    head, *parts = re.split(r"^== ", text, flags=re.MULTILINE)
    assert head.startswith(_HEAD), "not a page of frozen answers"
    texts, found = {}, {}
    if parts and parts[-1].startswith("texts\n"):
        texts = {f"@{key}": _decoded(its) for key, its in (line.split(" | ", 1) for line in _lines(parts.pop()))}
    for part in parts:
        name = part.partition("\n")[0]
        lines = [pair for line in _lines(part) for pair in _pairs(line, texts)]
        assert name not in found, f"two cases {name}"
        found[name] = _block(name, lines, found)
    return found


def _lines(part):
    return [line for line in part.split("\n")[1:] if line]


def _pairs(line, texts):
    found = _LINE.fullmatch(line)
    assert found, f"no line of a page: {line[:100]}"
    word, text, references = found.groups()
    return [(word, _decoded(text))] if references is None else [(word, texts[each]) for each in references.split()]


def _is_input(word):
    return word in _INPUTS or word.startswith(("file ", "folder "))


def _block(name, lines, others):
    inputs = [pair for pair in lines if _is_input(pair[0])]
    told = dict(inputs)
    answer = tuple(pair for pair in lines if not _is_input(pair[0]))
    if name[:2] in _LIKE:
        base = next(iter(others))
        case = _LIKE[name[:2]](others[base].case, name)
        return Block(case=case, inputs=tuple(inputs), base=base, lines=answer)
    case = Case(
        name=name,
        recipe=told["recipe"],
        args=tuple(json.loads(told.get("args", "[]"))),
        options=json.loads(told.get("options", "{}")),
        question=json.loads(told.get("question", "{}")),
        files={word.removeprefix("file "): text for word, text in inputs if word.startswith("file ")},
        ask=tuple(told.get("ask", _ALL).split()),
        to=tuple(told.get("to", "").split()),
    )
    return Block(case=case, inputs=tuple(inputs), base=told.get("than", ""), lines=answer)


def _decoded(text):
    return json.loads(text) if text.startswith('"') else text


# -- blocks to text


def encoded(text):
    """A text on one line."""
    is_plain = text.isprintable() and text == text.strip() and text and not text.startswith('"')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.replace("\n", "").isprintable())


def page_text(blocks):
    """The text of a page. Blocks keep their order."""
    blocks = list(blocks)
    counted = Counter(text for block in blocks for _, text in (*block.inputs, *block.lines))
    keys = _keys(sorted(text for text, times in counted.items() if times > 1 and len(text) >= _SHORTEST))
    parts = [f"{_HEAD}\n"]
    for block in blocks:
        lines = [f"== {block.case.name}"]
        last = None
        for word, text in (*block.inputs, *block.lines):
            key = keys.get(text)
            if key and last == word:
                lines[-1] += f" @{key}"
            else:
                lines.append(f"{word} @{key}" if key else f"{word} | {encoded(text)}")
            last = word if key else None
        parts.append("\n".join(lines) + "\n")
    if keys:
        table = sorted(f"{key} | {encoded(text)}" for text, key in keys.items())
        parts.append("\n".join(["== texts", *table]) + "\n")
    return "\n".join(parts)


def _keys(texts):
    """A short key for each text, made of its digest, so that another text does not change it."""
    made, taken = {}, set()
    for text in texts:
        number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16])
        key = ""
        while len(key) < 4 or key in taken:
            number, letter = divmod(number, len(_LETTERS))
            key += _LETTERS[letter]
        taken.add(key)
        made[text] = key
    return made


def case_inputs(case):
    """The lines of a new case's inputs."""
    made = [("recipe", case.recipe)]
    made += [("args", json.dumps(list(case.args)))] if case.args else []
    made += [("options", json.dumps(case.options))] if case.options else []
    made += [("question", json.dumps(case.question))] if case.question else []
    made += [("ask", " ".join(case.ask))] if case.ask != tuple(_ALL.split()) else []
    made += [("to", " ".join(case.to))] if case.to else []
    return (*made, *((f"file {name}", text) for name, text in case.files.items()))
