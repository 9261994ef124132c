"""Random shell scripts with a training command, and what bash itself makes of their words: the judge of `command.py`.

bash runs each script in an empty folder, where `python`, `torchrun` and the like only write down their arguments.
"""

import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import RecipeError
from planner.recipes.command import command_of
from planner.recipes.scalars import has_shell

WATCHED = ("A", "B", "C", "D")
"""variables whose exported values are compared"""
_STUBS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "trl")
# What bash says when it leaves a command out for another reason than its words.
_FAILURES = (
    "(error token is", ": No such file or directory", "parameter not set", "parameter null or not set",
    "ambiguous redirect", "bad substitution",
)  # fmt: skip
_SCRIPTS = ("sft.py", "train.py", "dpo.py", "kto.py", "grpo.py")
_STUB = """#!/bin/bash
{ printf 'call\\0%s\\0' "${0##*/}"; printf '%s\\0' "$#" "$@"
for name in A B C D; do [ -n "${!name+x}" ] && printf '%s\\0' "$name=${!name}"; done; printf 'end\\0'; } >>"$JUDGE"
"""
_RUN = """shopt -u progcomp
for case in "$1"/*.sh; do
  mkdir "$case.d"; : >"$case.calls"
  ( cd "$case.d"
    JUDGE="$case.calls" timeout 5 bash --norc --noprofile "$case" </dev/null >"$case.out" 2>"$case.err" )
done; true
"""


@dataclass(frozen=True)
class Call:
    """A program that bash started."""

    words: tuple[str, ...]
    """the program's name and its arguments"""
    environment: dict[str, str]


@dataclass
class Counts:
    """How many scripts planner read as bash does."""

    equal: int = 0
    unresolved: int = 0
    """a word is left open, all others are equal"""
    refused: int = 0
    no_command: int = 0
    """neither bash nor planner found a training"""
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, other):
        """Add the counts of other scripts."""
        for name in ("equal", "unresolved", "refused", "no_command"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count

    def note(self, error, *, is_training):
        """Count a refusal of planner's."""
        if is_training:
            self.refused += 1
            self.reasons[error[:90]] = self.reasons.get(error[:90], 0) + 1
        else:
            self.no_command += 1


def bash(scripts, folder):
    """For each script: the programs that bash starts, and whether something failed, so that bash left one out."""
    stubs, cases = folder / "stubs", folder / "cases"
    for place in (stubs, cases):
        place.mkdir(parents=True)
    for name in _STUBS:
        (stubs / name).write_text(_STUB)
        (stubs / name).chmod(0o755)
    for number, script in enumerate(scripts):
        (cases / f"{number:06}.sh").write_text(script)
    environment = {"PATH": f"{stubs}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    subprocess.run(["bash", "--norc", "--noprofile", "-c", _RUN, "run", str(cases)], env=environment, check=True)
    return [_started(cases / f"{number:06}.sh") for number in range(len(scripts))]


def _started(case):
    """What one script started."""
    said = Path(f"{case}.err").read_text(errors="replace")
    has_failed = any(text in said for text in _FAILURES)
    return _calls(Path(f"{case}.calls").read_text()), has_failed


def _calls(text):
    fields, made = text.split("\0"), []
    while fields and fields[0] == "call":
        count = int(fields[2])
        words = (fields[1], *fields[3 : 3 + count])
        end = fields.index("end", 3 + count)
        made.append(Call(words, dict(each.split("=", 1) for each in fields[3 + count : end])))
        fields = fields[end + 1 :]
    return made


def judge(script, calls, has_failed, counts):
    """Compare planner's words with bash's. The text of a difference, empty if there is none.

    If an expression has failed in bash (`has_failed`), what it left out may be missing in bash's call.
    """
    trainings = [call for call in calls if _is_training(call)]
    try:
        command = command_of(script, "the command")
    except RecipeError as error:
        counts.note(str(error), is_training=bool(trainings))
        return ""
    words = [*command.launched, command.path, *command.arguments]
    words = words[next(at for at, word in enumerate(words) if word in _STUBS) :]
    return _compared(command, words, trainings, has_failed, counts)


def _compared(command, words, trainings, has_failed, counts):
    """The text of a difference between planner's command and the trainings that bash started."""
    if len({call.words for call in trainings}) > 1:
        return f"bash starts {len(trainings)} trainings, planner one: {words}"
    if not trainings and (has_failed or any(map(is_open, words))):
        counts.unresolved += 1  # bash may fail at what planner leaves open
        return ""
    if has_failed and tuple(words) != trainings[0].words:
        counts.unresolved += 1  # bash went on behind a command that failed, whose variables planner has set
        return ""
    if not trainings:
        return f"bash starts no training, planner {words}"
    call = trainings[0]
    if tuple(words) != call.words and not _may_be(words, call.words):
        return f"bash   {list(call.words)}\nplanner {words}"
    if tuple(words) == call.words:
        counts.equal += 1
    else:
        counts.unresolved += 1
    return "" if has_failed else _difference(command.environment, call.environment)


def _difference(said, true):
    """The exported variables that differ."""
    names = [name for name in WATCHED if said.get(name) != true.get(name) and not is_open(said.get(name, ""))]
    return ", ".join(f"{name}: bash {true.get(name)!r}, planner {said.get(name)!r}" for name in names)


def _is_training(call):
    """Whether a stub was called as a training. The scripts have no other program with such a word."""
    is_of_trl = call.words[0] == "trl" and call.words[1:2] == ("sft",)
    return is_of_trl or any(word.endswith(_SCRIPTS) for word in call.words[1:])


def is_open(word):
    """Whether a reader sees that planner left something open in a word."""
    return has_shell(word) or "${" in word


def _may_be(words, true):
    """Whether words with open ones may be the true ones. An open word may be any number of words."""
    if not any(map(is_open, words)):
        return False
    at = next(at for at, word in enumerate(words) if is_open(word))
    behind = next(at for at, word in enumerate(reversed(words)) if is_open(word))
    return tuple(words[:at]) == true[:at] and (not behind or tuple(words[-behind:]) == true[-behind:])


_TEXTS = (
    "a", "lr", "1e-6", "x.y", "--bf16", "8", "", "<|im_end|>", "|", ">", ";", "&&", "#", "a#b", "  ", "a b", "(c)", "*",
    "[a,b]", "{x}", "=", "~", "!", "\\", "%", "é", "\t", "\n", "&", "<<EOF", "2>&1", "$", "python sft.py",
)  # fmt: skip
_IN_DOUBLE = ("\\a", "\\$A", '\\"', "\\`", "'", "\\\n", "$", "\\\\")
_PLAIN = ("a", "b#c", "8", "x=y", "1e-6", "[a]", "[a,b]", "{x}", "a/b", "+k", "=", "%", "é", "@", ":", "^")
_ANSI = ("$'a\\tb'", "$'it\\'s'", "$'\\x41|'", '$"a b"', "$'\\n'", "$'#'")
_VARIABLES = (
    "$NAME.", "${NAME}", "${NAME}", "${NAME:-DEFAULT}", "${NAME-DEFAULT}", "${NAME:+DEFAULT}", "${#NAME}", "${NAME%x}",
    "${NAME:1}", "$((NAME + 1))", "$((2 * (3 + 4) % 5))", "$((-7 / 2))", "$((${NAME:-3} * 2))", "$(echo a)",
    "$(echo 'a b')",
    "`echo c`", "$1", "$#", "${arr[*]}", "${arr[1]}", "$arr.",
    '$(echo "x y")', "${NAME:-'q r'}", '${NAME:-"q r"}', "$((NAME))", "$((NAME * 2 - -1))",
    "`echo \\`echo a\\``", "${NAME?}",
    "${NAME:=z}", "${NAME/a/b}", "${NAME^^}", "${NAME:-$((1 + 2))}", "${#arr[@]}", "$((1+2))",
    "$(printf %s a)",
)  # fmt: skip
_STARTS = (
    "python sft.py", "python -u src/sft.py", "python train.py", "torchrun --nproc_per_node 8 sft.py", "trl sft",
    "accelerate launch --config_file=a.yaml sft.py", "accelerate launch --num_processes 8 sft.py",
    "nohup python train.py",
    "python3 -m trl.scripts.sft sft.py", "env C=3 python train.py", "deepspeed sft.py", "exec python sft.py",
)  # fmt: skip
_REDIRECTIONS = (">out", "2>&1", "&>log", ">>x", "> 'a b'", "</dev/null", "<<<w", '<<< "a $A"', "2>/dev/null", ">|y")
_DOCUMENTS = ("it's\n", '"\n', "$A `echo` x\n", "python sft.py a\n", "", "EOFX\n\tEOF\n")
# SET is an assignment, SET1 one without `+=`.
_STATEMENTS = (
    "SET\n", "SET; ", "SET ;", "SET && ", "SET\n", "export SET SET1\n", "export SET SET1\n", "export SET\n",
    "# don't (\n", 'echo "python sft.py a" >/dev/null\n', "cat >f <<'X'\npython sft.py b\nX\n", "set -- p 'q r'\n",
    "if true; then SET; fi\n", "for i in 1 2; do SET; done\n", "arr=(a 'b c' \"$A\")\n", "arr+=(d)\n",
    "f() { SET; }; f\n",
    "unset B\n", "eval 'A=8'\n", "(SET)\n", "set -euo pipefail\nset +eu\n", "echo a | tee bb >/dev/null\n",
    "[[ a < b && -n x ]]\n", "((A=3))\n", "export -n A\n", "declare -x D=2\n", "true || SET\n", "false || SET\n",
    "case a in b) SET;; *) :;; esac\n", "g() { local SET1; : $A; }\ng\n", "shift\n", "printf '%s' sft.py >/dev/null\n",
    "read A <<< z\n", "while false; do SET; done\n", "until true; do SET; done\n",
    "if false; then SET; else SET1; fi\n",
    "export A\n", "h() { A=$1; B=$#; }; h $C x\n", "set -a; SET\nset +a\n", "SET | cat\n", "{ SET; } >f\n",
    "SET & wait\n",
    "unset -v A\n", ": ${B:=5}\n", "let A=3\n", "printf -v B x\n", "k() { return; SET; }; k\n", "IFS=,\n",
    "m() { local A; SET; }; m\n", "A=1 B=2 true\n", "SET SET1\n", "arr=($A x)\n", "cd . && SET\n", "readonly E=1\n",
    "for A in 1 2; do :; done\n", "n() ( SET )\nn\n", "if true; then unset A; fi\n", "false || export SET\n",
    "o() { if true; then SET; fi; }; o; o\n", "declare -i D=3\n", "typeset A=7\n", "case $A in 8|4) SET;; esac\n",
)  # fmt: skip
_ENDS = (
    "",
    "",
    "",
    "\n",
    ";",
    " # don't\n",
    " | cat\n",
    " || true\n",
    " &\nwait\n",
    " && echo done\n",
    " 2>&1 | tee l\n",
)
_AROUND = (
    "if true; then IT; fi\n", "{ IT; }", "( IT )", "go() {\n IT\n}\ngo 'x y' z\n", "true && IT",
    "for i in 1; do\nIT\ndone\n",
    "bash -c 'IT'", "eval 'IT'", "bash -c DOUBLE n o", "IT", "IT", "IT", "IT",
)  # fmt: skip
_SOUP = (
    "'", '"', "\\", "$A", "`", "|", "&", ";", "(", ")", "</dev/null ", ">f", "#", " ", " ", "a", "b", "{", "}", "=",
    "\n", "$(", "${", "$((", "))", "fi", "done", "if ", "then ", "EOF", "<<EOF", "$'", "[[ ", " ]]", "A=1",
    "&>", "<<<", "!", "function ",
)  # fmt: skip


class Maker:
    """Makes scripts of pieces of bash's grammar."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.pick = self.random.choice
        self.documents = []

    def single(self):
        return "'" + "".join(self.random.choices([*_TEXTS, "$A", '"', "${b.c}"], k=self.random.randint(0, 3))) + "'"

    def double(self):
        pieces = [*(each.replace("\\", "\\\\").replace("$", "\\$") for each in _TEXTS), *_IN_DOUBLE]
        made = [
            self.variable(is_quoted=True) if self.random.random() < 0.3 else self.pick(pieces)
            for _ in range(self.random.randint(0, 4))
        ]
        text = "".join(made)
        return '"' + (f"{text}." if text.endswith("$") else text) + '"'

    def variable(self, *, is_quoted=False):
        several = ("$@", "${arr[@]}") if is_quoted else ('"$@"', '"${arr[@]}"')
        made = self.pick([*_VARIABLES, *several])
        name = self.pick(["A", "B", "C", "D", "E", "arr", "low"])
        return made.replace("NAME", name).replace("DEFAULT", self.pick(["", "d", "d e", "$B", "1"]))

    def word(self):
        makers = [
            lambda: self.pick(_PLAIN), lambda: self.pick(_PLAIN), self.single, self.double, self.variable,
            lambda: "\\" + self.pick("| #$'\"\\>&;a<(\n*"), lambda: self.pick(_ANSI),
        ]  # fmt: skip
        return "".join(self.pick(makers)() for _ in range(self.pick([1, 1, 1, 2, 3])))

    def argument(self):
        made = self.pick(["--lr ", "--eos_token ", "a.b=", "++x=", "--o=", ""]) + self.word()
        return f"x{made}" if made.startswith("#") else made

    def redirection(self):
        if self.random.random() < 0.9:
            return self.pick(_REDIRECTIONS)
        end = self.pick(["EOF", "'EOF'", '"E F"', "\\EOF"])
        self.documents.append(self.pick(_DOCUMENTS) + end.strip("'\"\\") + "\n")
        return f"<<{end}"

    def command(self):
        made = [f"{self.assignment()} " if self.random.random() < 0.2 else "", self.pick(_STARTS)]
        for _ in range(self.random.randint(0, 5)):
            made.append(self.pick([" ", " ", " ", "  ", "\t", " \\\n", " \\\n    "]))
            made.append(self.redirection() if self.random.random() < 0.12 else self.argument())
        return "".join(made)

    def assignment(self, *, adds=True):
        value = self.pick([self.word(), self.word(), "", "8", "4", "'a b'", '"--x 1 --y"'])
        sign = self.pick(["=", "=", "=", "+="]) if adds else "="
        return f"{self.pick(['A', 'B', 'C', 'D', 'low'])}{sign}{value}"

    def statement(self):
        """A line before the training."""
        made = self.pick(_STATEMENTS).replace("SET1", self.assignment(adds=False))
        return made.replace("SET", self.assignment())

    def around(self, command):
        """The command in a place of the grammar."""
        if self.documents:
            return command + "\n" + "".join(self.documents)
        inner, around = command.rstrip(), self.pick(_AROUND)
        if inner.endswith("\\"):
            return f"{command}x"
        if "'IT'" in around and "'" in inner:
            around = "IT"
        double = '"' + "".join(f"\\{each}" if each in '"\\$`' else each for each in inner) + '"'
        made = around.replace("DOUBLE", double).replace("IT", inner)
        return made if made.endswith("\n") else made + self.pick(_ENDS)

    def script(self):
        """A script. One in eight is a command with random signs behind it, mostly no valid script."""
        if self.random.random() < 0.12:
            made = "python sft.py a " + "".join(self.random.choices(_SOUP, k=self.random.randint(1, 8)))
            # planner reads a backslash before blanks as the README that has it means it.
            return re.sub(r"\\(?=[ \t]+(?:#[^\n]*)?\n)", "", made)
        before = "".join(self.statement() for _ in range(self.random.randint(0, 4)))
        return before + self.around(self.command())


def scripts(seed, count):
    """Scripts of a seed."""
    return [Maker(f"{seed}/{number}").script() for number in range(count)]


def judged(made, folder: Path):
    """The counts of scripts, and the differences between bash and planner with their scripts."""
    counts, differences = Counts(), []
    for script, (calls, has_failed) in zip(made, bash(made, folder), strict=True):
        if text := judge(script, calls, has_failed, counts):
            differences.append(f"{script}\n--- {text}")
    return counts, differences
