"""Random shell scripts with a training command, and what bash itself makes of their words: the judge of `command.py`.

bash runs each script in an empty folder, where `python`, `torchrun` and the like only write down their arguments.
"""

import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from planner.errors import RecipeError
from planner.recipes.command import command_of
from planner.recipes.scalars import has_shell

WATCHED = ("A", "B", "C", "D")
"""variables whose exported values are compared"""
_STUBS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "trl")
_STUB = """#!/bin/bash
{ printf 'call\\0%s\\0' "${0##*/}"; printf '%s\\0' "$#" "$@"
for name in A B C D; do [ -n "${!name+x}" ] && printf '%s\\0' "$name=${!name}"; done; printf 'end\\0'; } >>"$JUDGE"
"""
_RUN = """shopt -u progcomp
for case in "$1"/*.sh; do
  mkdir "$case.d"; : >"$case.calls"
  ( cd "$case.d" && JUDGE="$case.calls" timeout 5 bash --norc --noprofile "$case" </dev/null >"$case.out" 2>"$case.err" )
done
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


def bash(scripts, folder):
    """For each script, the programs that bash starts in their order, and whether an expression failed."""
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
    """The programs that a script started, and whether an expression failed, so that bash left a command out."""
    said = Path(f"{case}.err").read_text(errors="replace")
    return _calls(Path(f"{case}.calls").read_text()), "(error token is" in said


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
        if not trainings:
            counts.no_command += 1
        else:
            counts.refused += 1
            reason = str(error)[:70]
            counts.reasons[reason] = counts.reasons.get(reason, 0) + 1
        return ""
    words = [*command.launched, command.path, *command.arguments]
    words = words[next(at for at, word in enumerate(words) if word in _STUBS) :]
    if len({call.words for call in trainings}) > 1:
        return f"bash starts {len(trainings)} trainings, planner one: {words}"
    if not trainings and (has_failed or any(map(is_open, words))):
        counts.unresolved += 1  # bash may fail at what planner leaves open
        return ""
    if not trainings:
        return f"bash starts no training, planner {words}"
    call = trainings[0]
    if tuple(words) != call.words and not _may_be(words, call.words):
        return f"bash   {list(call.words)}\nplanner {words}"
    for name in () if has_failed else WATCHED:
        said, true = command.environment.get(name), call.environment.get(name)
        if said != true and not (said and is_open(said)):
            return f"{name}: bash {true!r}, planner {said!r}"
    if tuple(words) == call.words:
        counts.equal += 1
    else:
        counts.unresolved += 1
    return ""


def _is_training(call):
    """Whether a stub was called as a training. The scripts have no other program with such a word."""
    is_of_trl = call.words[0] == "trl" and call.words[1:2] == ("sft",)
    return is_of_trl or any(word.endswith(("sft.py", "train.py")) for word in call.words[1:])


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


_TEXTS = [
    "a",
    "lr",
    "1e-6",
    "x.y",
    "--bf16",
    "8",
    "",
    "<|im_end|>",
    "|",
    ">",
    ";",
    "&&",
    "#",
    "a#b",
    "  ",
    "a b",
    "(c)",
]
_TEXTS += ["*", "[a,b]", "{x}", "=", "~", "!", "\\", "%", "é", "\t", "\n", "&", "<<EOF", "2>&1", "$", "python sft.py"]


class Maker:
    """Makes scripts of pieces of bash's grammar."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.documents = []

    def pick(self, *values):
        return self.random.choice(values)

    def single(self):
        return "'" + "".join(self.random.choices([*_TEXTS, "$A", '"', "${b.c}"], k=self.random.randint(0, 3))) + "'"

    def double(self):
        pieces = [each.replace("\\", "\\\\").replace("$", "\\$") for each in _TEXTS]
        pieces += ["\\a", "\\$A", '\\"', "\\`", "'", "\\\n", "$", "\\\\"]
        made = []
        for _ in range(self.random.randint(0, 4)):
            made.append(self.variable(is_quoted=True) if self.random.random() < 0.3 else self.pick(*pieces))
        text = "".join(made)
        return '"' + (f"{text}." if text.endswith("$") else text) + '"'

    def variable(self, *, is_quoted=False):
        name = self.pick("A", "B", "C", "D", "E", "arr", "low")
        default = self.pick("", "d", "d e", "$B", "1")
        return self.pick(
            f"${name}.", f"${{{name}}}", f"${{{name}}}", f"${{{name}:-{default}}}", f"${{{name}-{default}}}",
            f"${{{name}:+{default}}}", f"${{#{name}}}", f"${{{name}%x}}", f"${{{name}:1}}", f"$(({name} + 1))", "$((2 * (3 + 4) % 5))",
            "$((-7 / 2))", f"$((${{{name}:-3}} * 2))", "$(echo a)", "$(echo 'a b')", "`echo c`", "$1", "$#", '$@' if is_quoted else '"$@"',
            "${arr[@]}" if is_quoted else '"${arr[@]}"', "${arr[*]}", "${arr[1]}", "$arr.",
        )  # fmt: skip

    def escape(self):
        return "\\" + self.pick("|", " ", "#", "$", "'", '"', "\\", ">", "&", ";", "a", "<", "(", "\n", "*")

    def plain(self):
        return self.pick(
            "a", "b#c", "8", "x=y", "1e-6", "[a]", "[a,b]", "{x}", "a/b", "+k", "=", "%", "é", "@", ":", "^"
        )

    def ansi(self):
        return self.pick("$'a\\tb'", "$'it\\'s'", "$'\\x41|'", '$"a b"', "$'\\n'", "$'#'")

    def word(self):
        makers = [self.plain, self.plain, self.single, self.double, self.variable, self.escape, self.ansi]
        return "".join(self.pick(*makers)() for _ in range(self.random.choice([1, 1, 1, 2, 3])))

    def argument(self):
        made = self.pick("--lr ", "--eos_token ", "a.b=", "++x=", "--o=", "") + self.word()
        return f"x{made}" if made.startswith("#") else made

    def redirection(self):
        kind = self.random.randint(0, 9)
        if kind == 0:
            end = self.pick("EOF", "'EOF'", '"E F"', "\\EOF")
            body = self.pick("it's\n", '"\n', "$A `echo` x\n", "python sft.py a\n", "", "EOFX\n\tEOF\n")
            self.documents.append(body + end.strip("'\"\\") + "\n")
            return f"<<{end}"
        return self.pick(
            ">out", "2>&1", "&>log", ">>x", "> 'a b'", "</dev/null", "<<<w", '<<< "a $A"', "2>/dev/null", ">|y"
        )

    def gap(self):
        return self.pick(" ", " ", " ", "  ", "\t", " \\\n", " \\\n    ")

    def command(self):
        start = self.pick(
            "python sft.py", "python -u src/sft.py", "python train.py", "torchrun --nproc_per_node 8 sft.py", "trl sft",
            "accelerate launch --config_file=a.yaml sft.py", "accelerate launch --num_processes 8 sft.py", "python3 -m trl.scripts.sft sft.py",
            "nohup python train.py", "env C=3 python train.py", "deepspeed sft.py", "exec python sft.py",
        )  # fmt: skip
        if self.random.random() < 0.2:
            start = f"{self.assignment()} {start}"
        made = [start]
        for _ in range(self.random.randint(0, 5)):
            made += [self.gap(), self.redirection() if self.random.random() < 0.12 else self.argument()]
        return "".join(made)

    def assignment(self):
        name = self.pick("A", "B", "C", "D", "low")
        value = self.pick(self.word(), self.word(), "", "8", "4", "'a b'", '"--x 1 --y"')
        return f"{name}{self.pick('=', '=', '=', '+=')}{value}"

    def statement(self):
        """A line before or behind the training."""
        kind = self.random.randint(0, 17)
        if kind < 5:
            return self.assignment() + self.pick("\n", "; ", " ;", " && ")
        if kind < 8:
            return f"export {self.assignment()} {self.assignment().replace('+=', '=')}\n"
        return self.pick(
            "# don't (\n", 'echo "python sft.py a" >/dev/null\n', "cat >f <<'X'\npython sft.py b\nX\n", "set -- p 'q r'\n",
            f"if true; then {self.assignment()}; fi\n", f"for i in 1 2; do {self.assignment()}; done\n", "arr=(a 'b c' \"$A\")\n",
            "arr+=(d)\n", f"f() {{ {self.assignment()}; }}; f\n", "unset B\n", f"eval '{'A=8'}'\n", f"({self.assignment()})\n",
            "set -euo pipefail\nset +eu\n", "echo a | tee bb >/dev/null\n", "[[ a < b && -n x ]]\n", "((A=3))\n", "export -n A\n", "declare -x D=2\n",
            f"true || {self.assignment()}\n", f"false || {self.assignment()}\n", f"case a in b) {self.assignment()};; *) :;; esac\n",
            f"g() {{ local {self.assignment().replace('+=', '=')}; : $A; }}\ng\n", "shift\n", "printf '%s' sft.py >/dev/null\n", "read A <<< z\n",
        )  # fmt: skip

    def around(self, command):
        """The command in a place of the grammar."""
        end = self.pick(
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
        if self.documents:
            return command + "\n" + "".join(self.documents)
        where = self.random.randint(0, 11)
        inner = command.rstrip()
        if inner.endswith("\\"):
            return command + "x" + end
        if where == 0:
            return f"if true; then {inner}; fi\n"
        if where == 1:
            return f"{{ {inner}; }}{end}"
        if where == 2:
            return f"( {inner} ){end}"
        if where == 3:
            return f"go() {{\n {inner}\n}}\ngo 'x y' z\n"
        if where == 4 and "'" not in inner:
            return f"bash -c '{inner}'{end}"
        if where == 5:
            return 'bash -c "' + "".join(f"\\{each}" if each in '"\\$`' else each for each in inner) + f'" n o{end}'
        if where == 6:
            return f"true && {inner}{end}"
        if where == 7:
            return f"for i in 1; do\n{inner}\ndone\n"
        if where == 8 and "'" not in inner:
            return f"eval '{inner}'{end}"
        return command + end

    def soup(self):
        """Random signs behind a training command: mostly no valid script."""
        pieces = [
            "'",
            '"',
            "\\",
            "$A",
            "`",
            "|",
            "&",
            ";",
            "(",
            ")",
            "</dev/null ",
            ">f",
            "#",
            " ",
            " ",
            "a",
            "b",
            "{",
            "}",
            "=",
            "\n",
        ]
        pieces += [
            "$(",
            "${",
            "$((",
            "))",
            "fi",
            "done",
            "if ",
            "then ",
            "EOF",
            "<<EOF",
            "$'",
            "[[ ",
            " ]]",
            "A=1",
            "&>",
            "<<<",
            "!",
            "function ",
        ]
        return "python sft.py a " + "".join(self.random.choices(pieces, k=self.random.randint(1, 8)))

    def script(self):
        """A script."""
        if self.random.random() < 0.12:
            return self.soup()
        before = "".join(self.statement() for _ in range(self.random.randint(0, 4)))
        return before + self.around(self.command())


def scripts(seed, count):
    """Scripts of a seed."""
    return [Maker(f"{seed}/{number}").script() for number in range(count)]


def judged(seed, count, folder: Path):
    """The counts of the scripts of a seed, and the differences with their scripts."""
    counts, differences = Counts(), []
    made = scripts(seed, count)
    for script, (calls, has_failed) in zip(made, bash(made, folder), strict=True):
        if text := judge(script, calls, has_failed, counts):
            differences.append(f"{script}\n--- {text}")
    return counts, differences


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        total, found = judged(int(sys.argv[1]), int(sys.argv[2]), Path(place))
    print("\n======\n".join(found[: int(os.environ.get("SHOWN", "12"))]))
    print(total, len(found))
