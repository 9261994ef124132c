"""Every wrong input gives a message, an exit code, and nothing else."""

import subprocess
import sys

import pytest
import typer

from planner.cli.commands import COMMANDS

LONG = "x" * 5000


@pytest.fixture
def place(job):
    """A correct job, with files and folders that are wrong in different ways."""
    tmp_path = job.parent
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "zeros.yaml").write_bytes(bytes(1000))
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "tabs.yaml").write_text("name: x\nmodel:\n\tkind: gpt\n")
    (tmp_path / "short.txt").write_text("x")
    (tmp_path / "rows.jsonl").write_text('{"text": "abc"}\n' * 10)
    (tmp_path / "bad.jsonl").write_text('{"text": "abc"}\nnope\n')
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "blank.jsonl").write_text("\n\n")
    for folder, content in [("torn", '{"sha256": "0'), ("foreign", '{"a": 1}'), ("number", "7")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.json").write_text(content)
    (tmp_path / "folder-as-file" / "run.json").mkdir(parents=True)
    return tmp_path


def gpus(text, says):
    return pytest.param(("plan", "job.yaml", f"--gpus={text}"), 2, says, id=f"gpus {text!r}")


def setting(command, *overrides, code=2, says):
    settings = [argument for override in overrides for argument in ("--set", override)]
    shown = " ".join(overrides)[:60].replace("\0", "NUL")
    return pytest.param((command, "job.yaml", *settings), code, says, id=f"{command} with {shown}")


def typed(code, says, *arguments):
    shown = " ".join(arguments)[:60].replace("\0", "NUL")
    return pytest.param(arguments, code, says, id=f"planner {shown}")


MISSING = "a count is missing"
GPU_RESOURCE = ("--set", "workers.resources={GPU: 1}")
WRONG = [
    # -- counts
    gpus("", MISSING),
    gpus(" ", MISSING),
    gpus("\t", MISSING),
    gpus("-", MISSING),
    gpus("-1", MISSING),
    gpus("1-", MISSING),
    gpus(",", MISSING),
    gpus("1,", MISSING),
    gpus(",1", MISSING),
    gpus("1,,2", MISSING),
    gpus("0", "'0' is not a count"),
    gpus("0-3", "'0' is not a count"),
    gpus("5-2", "5-2 runs backwards. Write 2-5"),
    gpus("1,9-3", "9-3 runs backwards. Write 3-9"),
    gpus("1.5", "'1.5' is not a count"),
    gpus("a", "'a' is not a count"),
    gpus("1e3", "'1e3' is not a count"),
    gpus("+1", "'+1' is not a count"),
    gpus("0x4", "'0x4' is not a count"),
    gpus("1_000", "'1_000' is not a count"),
    gpus("65537", "'65537' is not a count from 1 to 65536"),
    gpus("1-65537", "'65537' is not a count"),
    gpus("99999999999999999999", "is not a count"),
    gpus("9" * 5000, "is not a count"),
    gpus("１", "'１' is not a count"),  # noqa: RUF001  the digit of another width is the point
    gpus("٣", "'٣' is not a count"),
    gpus("²", "'²' is not a count"),
    gpus("1–4", "'1–4' is not a count"),  # noqa: RUF001  a typesetter's dash
    gpus("1-3-5", "'3-5' is not a count"),
    gpus("1 2", "'1 2' is not a count"),
    gpus("1\n2", r"'1\n2' is not a count"),
    gpus("[bold]3", "'[bold]3' is not a count"),
    gpus("all", "'all' is not a count"),
    # -- the command line
    typed(2, "nonsense", "nonsense"),
    typed(2, "trian", "trian", "job.yaml"),
    typed(2, "JOB", "plan"),
    typed(2, "JOB", "run"),
    typed(2, "RUN", "audit"),
    typed(2, "extra", "plan", "job.yaml", "extra"),
    typed(2, "extra", "run", "job.yaml", "extra"),
    typed(2, "extra", "audit", "run", "extra"),
    typed(2, "extra", "demo", "job.yaml", "extra"),
    typed(2, "--bogus", "plan", "job.yaml", "--bogus"),
    typed(2, "--bogus", "run", "job.yaml", "--bogus"),
    typed(2, "--bogus", "audit", "run", "--bogus"),
    typed(2, "--bogus", "demo", "--bogus"),
    typed(2, "--bogus", "--bogus"),
    typed(2, "--set", "plan", "job.yaml", "--set"),
    typed(2, "--json", "plan", "job.yaml", "--json=yes"),
    typed(2, "--gpus", "plan", "job.yaml", "--gpus"),
    typed(2, "--accept nonsense: write one of data", "run", "job.yaml", "--accept", "nonsense"),
    typed(2, "write one of data", "run", "job.yaml", "--accept", ""),
    typed(2, "--accept DATA", "run", "job.yaml", "--accept", "data", "--accept", "DATA"),
    typed(2, "--nodes", "run", "job.yaml", "--nodes", "-1"),
    typed(2, "--nodes", "run", "job.yaml", "--nodes", "abc"),
    typed(2, "--nodes", "run", "job.yaml", "--nodes", "1.5"),
    typed(2, "--nodes", "run", "job.yaml", "--nodes", "65"),
    typed(
        2,
        "workers.min is 3, and the local cluster has 2 places. Write a workers.min of at most 2, or write planner run "
        "--nodes 3",
        *("run", "job.yaml", "--nodes", "2", "--set", "workers.min=3"),
    ),
    # -- job files
    *(typed(2, "missing.yaml: found no such file", command, "missing.yaml") for command in ("plan", "run", "demo")),
    *(typed(2, "empty: found a directory", command, "empty") for command in ("plan", "run", "demo")),
    *(typed(2, "empty.yaml: found nothing in it", command, "empty.yaml") for command in ("plan", "run", "demo")),
    *(typed(2, "binary.yaml: found byte 0x80", command, "binary.yaml") for command in ("plan", "run", "demo")),
    typed(2, "nothing.yaml: found no such file", "demo", "nothing.yaml"),
    typed(2, "found a NUL byte", "plan", "zeros.yaml"),
    typed(2, "Write a mapping", "plan", "list.yaml"),
    typed(2, "found a tab", "plan", "tabs.yaml"),
    typed(2, "found a directory", "plan", ""),
    typed(2, r"a\x00b: found an impossible file name", "plan", "a\0b"),
    typed(2, "[red]x.yaml: found no such file", "plan", "[red]x.yaml"),
    typed(2, "File name too long", "plan", LONG),
    typed(2, "Input/output error", "plan", "/proc/self/mem"),
    # -- overrides
    *(setting(command, "steps", says='the override "steps"') for command in ("plan", "run")),
    setting("plan", "", says='the override ""'),
    setting("plan", "=1", says='the override "=1"'),
    setting("plan", "batch..global=1", says='the override "batch..global=1"'),
    *(setting(command, "colour=red", says="colour: found an unknown key") for command in ("plan", "run")),
    setting("plan", "batch.globl=1", says="Did you mean batch.global?"),
    *(
        setting(command, "workers.resources={CPU: 2}", says="workers.resources.CPU: CPU cores belong in workers.cpus")
        for command in ("plan", "run", "verify")
    ),
    *(
        setting(command, "workers.resources={TPU: 1}", says="workers.resources.TPU: TPU names an accelerator")
        for command in ("plan", "run", "verify")
    ),
    typed(
        2,
        "workers.resources.memory: planner reserves no memory",
        *("submit", "job.yaml", "--address", "http://127.0.0.1:1", "--set", "workers.resources={memory: 1}"),
    ),
    typed(2, "workers.resources.GPU: GPUs belong", *("run", "job.yaml", "--dry-run"), *GPU_RESOURCE),
    setting("plan", "batch.global=0", says="batch.global: found 0"),
    setting("plan", "batch.global=many", says='batch.global: found "many"'),
    setting("plan", "batch.global=1048577", says="Write a whole number from 1 to 1048576"),
    setting("plan", "batch=1", says="batch: found 1"),
    setting("plan", "workers.min=9", says="min 9 is above max 8"),
    setting("run", "train.epochs=2", says="found steps and epochs. Write exactly one of"),
    # -- data
    setting("run", "data.path=missing.txt", says="missing.txt"),
    setting("run", "data.path=empty", says="data.path: no file at"),
    setting("run", "data.path=short.txt", says="short.txt' holds no text"),
    setting("run", "data.path=*.nope", says="data.path: no file at"),
    setting("run", "data.path=**a", says="**a"),
    setting("run", f"data.path={LONG}", says="File name too long"),
    setting("run", r'data.path="a\0b"', says=r"a\x00b"),
    setting("run", "data.path=s3://bucket/x", says="data.path: no file at"),
    setting("run", "data.kind=jsonl", "data.path=bad.jsonl", says="bad.jsonl:2: not JSON"),
    setting("run", "data.kind=jsonl", "data.path=deep.jsonl", says="deep.jsonl:1: nested too deeply"),
    setting("run", "data.kind=jsonl", "data.path=blank.jsonl", says="holds no rows"),
    setting("run", "data.kind=jsonl", "data.path=/proc/self/mem", says="cannot read /proc/self/mem"),
    setting("run", "data.kind=jsonl", "data.path=rows.jsonl", "data.field=body", says="no text under 'body'"),
    setting("run", "eval.samples=110", says="110 are held out"),
    setting("run", "eval.samples=100000", says="100000 are held out"),
    setting("run", "data.path=missing.txt", "checkpoint.path=file", code=1, says="file is a file"),
    # -- the run's folder
    setting("run", "checkpoint.path=file", code=1, says="file is a file"),
    setting("run", "checkpoint.path=file/run", code=1, says="file is a file"),
    setting("run", "checkpoint.path=/proc/x", code=1, says="/proc/x: cannot write there"),
    setting("run", f"checkpoint.path={LONG}", code=1, says="File name too long"),
    setting("run", "checkpoint.path=nope://x/y", code=1, says="nope"),
    setting("run", "checkpoint.path=torn", code=1, says="torn/run.json: torn or not written by"),
    setting("run", "checkpoint.path=foreign", code=1, says="foreign/run.json: torn or not written by"),
    typed(2, "RUN is empty", "audit", ""),
    typed(1, "missing: no run here", "audit", "missing"),
    typed(1, "missing: no run here", "audit", "missing", "--json"),
    typed(1, "file: no run here", "audit", "file"),
    typed(1, "job.yaml: no run here", "audit", "job.yaml"),
    typed(1, "empty: no run here", "audit", "empty"),
    typed(1, "torn/run.json: torn or not written by", "audit", "torn"),
    typed(1, "torn/run.json: torn or not written by", "audit", "torn", "--json"),
    typed(1, "foreign/run.json: torn or not written by", "audit", "foreign"),
    typed(1, "number/run.json: torn or not written by", "audit", "number"),
    typed(1, "folder-as-file: cannot use run.json: Is a directory", "audit", "folder-as-file"),
    typed(1, "nope", "audit", "nope://x"),
    typed(1, r"a\x00b: a path must not contain a NUL byte", "audit", "a\0b"),
    typed(1, r"\x1b[31mx: no run here", "audit", "\x1b[31mx"),
    typed(1, "[red]x: no run here", "audit", "[red]x"),
]


def names_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG)
def test_a_wrong_input_is_refused_with_a_sentence(cli, place, arguments, code, says):
    """Exit code 2 for a wrong input, 1 for a run that cannot be used. stdout is empty, and no file is left."""
    before = names_of(place)
    answer = cli(*arguments)
    assert says in answer.err
    assert answer.code == code
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert all(char.isprintable() or char == "\n" for char in answer.err)
    assert names_of(place) == before


@pytest.mark.process
def test_the_sound_job_would_have_been_started(cli, place):
    """Each input above has one mistake. Without it, the run reaches the start of its cluster."""
    answer = cli("run", "job.yaml")
    assert (answer.code, answer.err) == (1, "planner: a cluster would have been started\n")
    assert answer.out == f"tiny: a new run in {place / 'run'}\n"


@pytest.mark.process
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("samples", [109, 110])
def test_the_last_row_can_be_trained_on(cli, samples):
    """Of 110 rows, at most 109 may be held out, as the message says."""
    answer = cli("run", "job.yaml", "--set", f"eval.samples={samples}")
    assert ("Hold out at most 109" in answer.err) is (samples == 110)
    assert answer.code == (2 if samples == 110 else 1)


@pytest.mark.usefixtures("place")
def test_every_mistake_of_a_job_has_its_line(cli):
    """Three mistakes are three lines. Each begins with the file's name."""
    answer = cli("plan", "job.yaml", "--set", "batch.global=0", "--set", "train.seed=-1", "--set", "colour=red")
    lines = answer.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("planner: job.yaml: ") for line in lines)


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["plan", "job.yaml", "--gpus", "0"], 2, "'0' is not a count"),
        (["plan", "missing.yaml"], 2, "missing.yaml: found no such file"),
        (["plan", "--bogus"], 2, "--bogus"),
        (["audit", "empty"], 1, "empty: no run here"),
        (["audit", "torn"], 1, "torn or not written by"),
        (["run", "job.yaml", "--set", "data.path=missing.txt"], 2, "missing.txt"),
        (["demo", "missing.yaml"], 2, "missing.yaml: found no such file"),
    ],
)
def test_a_process_ends_with_the_same_code(place, arguments, code, says):
    """In real processes. Only a few, because each one starts Python."""
    before = names_of(place)
    command = [sys.executable, "-m", "planner.cli", *arguments]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert names_of(place) == before


@pytest.mark.process
def test_a_message_in_another_encoding_is_still_a_message(place):
    """On an ASCII terminal the name is escaped, without a traceback."""
    command = [sys.executable, "-m", "planner.cli", "plan", "nö.yaml"]
    settings = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, env=settings)
    assert done.returncode == 2
    assert done.stderr.startswith("planner: n\\xf6.yaml: found no such file")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_says_what_is_kept_when_it_is_interrupted(cli, monkeypatch, command):
    """In one line. `watch` gives the terminal back as it was."""

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli.commands.load", interrupted)
    answer = cli(command)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.count("\n") == 1

    def command_function() -> None:
        raise KeyboardInterrupt

    maker = typer.Typer()
    maker.command()(command_function)
    monkeypatch.setattr("planner.cli.commands.load", lambda _name: typer.main.get_command(maker))
    answer = cli(command)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.startswith(f"planner: {command} was interrupted. ") == (command != "watch")
    assert answer.err.count("\n") == (command != "watch")


def test_ctrl_c_is_130(cli, monkeypatch):
    """Also before anything has started. There is no traceback."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli.plan_command.read_job", interrupted)
    answer = cli("plan", "job.yaml")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "planner: plan was interrupted. It changed nothing\n"
    assert "Traceback" not in answer.err
