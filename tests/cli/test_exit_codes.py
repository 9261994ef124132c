"""Each row of docs/reference/exit-codes.md has cases, and each case ends with that row's code and form of output."""

import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

import planner
from planner.cli.other_words import COMMANDS as OTHER_COMMANDS
from planner.errors import TrainingFailed
from planner.provenance.compare import Check
from planner.store.lease import DriverLease
from planner.store.storage import Storage

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md").read_text(encoding="utf-8")
ROWS = [tuple(found) for found in re.findall(r"(?m)^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", PAGE)]
CASES = []
NOBODY, NO_DASHBOARD = "127.0.0.1:1", "http://127.0.0.1:1"
SHARED = ("--set", "checkpoint.path=/shared/tiny")


def row(code, what, when, *, starts_processes=False):
    """A case of the row of the page.

    One that starts processes imports no Ray: the tests of a cluster in this process come later, with a token.
    """

    def add(case):
        of_page = (str(code), what, when)
        marks = [pytest.mark.process] if starts_processes else []
        CASES.append(pytest.param(of_page, case, marks=marks, id=" ".join(of_page)))
        return case

    return add


class Place:
    """What a case works with: commands in a folder of its own, a job, and a finished run."""

    def __init__(self, cli, job, recorded, monkeypatch):
        self.cli, self.job, self.folder, self.monkeypatch = cli, job, job.parent, monkeypatch
        self.recorded = recorded

    def run(self):
        """A copy of the finished run."""
        return shutil.copytree(self.recorded.run, self.folder / "finished")

    def starting(self, error):
        """`planner run` of a new run, in which the start of the cluster raises this."""

        def start(*_arguments):
            raise error

        self.monkeypatch.setattr("planner.runner.execute.embedded", start)
        return self.cli("run", self.job.name)

    def submitting(self, status="SUCCEEDED", code=0, error=None):
        """`planner submit --follow` of a job that ends so."""
        from planner.submit import jobs_api  # imports Ray

        class Server:
            ray_version = "2.60.0"

            def submit(self, _submission):
                pass

            def follow(self, *_arguments):
                if error is not None:
                    raise error
                return jobs_api.Ended(status=status, exit_code=code, reason="") if status else None

        self.monkeypatch.setattr(jobs_api.JobsApi, "connect", lambda _address: Server())
        return self.cli("submit", self.job.name, *SHARED, "--address", NO_DASHBOARD, "--follow")


@row(0, "every command", "It did what you asked for.")
def _(place):
    return [place.cli("plan", place.job), place.cli("--help"), place.cli("plan", "--help"), place.cli("--version")]


@row(0, "`planner runs`, `planner show`", "Runs are in any state, broken ones included.")
def _(place):
    run = place.run()
    shutil.rmtree(run / "manifests")
    return [place.cli("runs", place.folder), place.cli("show", run)]


@row(0, "`planner submit`", "The job was sent. With `--follow`, it succeeded.")
def _(place):
    return [place.submitting(), place.cli("submit", place.job.name, *SHARED, "--address", NO_DASHBOARD)]


@row(0, "`planner notice-agent`", "The machine is in no cloud.")
def _(place):
    place.monkeypatch.setattr("planner.cli.notice_agent_command._CLOUD_AGAIN_S", 0.0)
    return [place.cli("notice-agent", "--endpoint", "http://127.0.0.1:1")]


@row(1, "`planner run`", "The run failed.", starts_processes=True)
def _(place):
    return [place.starting(TrainingFailed("worker 0 failed"))]


@row(1, "`planner run`", "Another driver holds the run.")
def _(place):
    run = place.run()
    with DriverLease(Storage(str(run)), "launch", print):
        return [place.cli("run", place.recorded.job, "--set", f'checkpoint.path="{run}"', "--set", "train.steps=8")]


@row(1, "`planner audit`", "The run is not clean.")
def _(place):
    run = place.run()
    segment = run / "ledger" / "000001.jsonl"
    segment.write_text(segment.read_text().replace('"samples":6', '"samples":5', 1))
    return [place.cli("audit", run), place.cli("audit", run, "--json")]


@row(
    1,
    "`planner verify`",
    "The two histories differ, or cannot be compared because of random numbers.",
)
def _(place):
    answers = []
    for what in ("losses", "random numbers"):
        checks = [Check(what=what, passed=False, detail="differ")]
        place.monkeypatch.setattr("planner.cli.verify_command.verify_job", lambda *_, found=checks, **__: found)
        answers += [place.cli("verify", place.job), place.cli("verify", place.job, "--json")]
    assert "NOT COMPARED" in answers[2].out
    return answers


@row(
    1,
    "`planner convert --to SYSTEM`",
    "No setting of that system trains exactly this batch on that number of GPUs.",
)
def _(place):
    return [place.cli("convert", place.job, "--to", "deepspeed", "--at", "4")]


@row(
    1,
    "`planner submit --follow`",
    "The job failed, or its log broke off and the job continues. If the job ended with 2, so does the command.",
)
def _(place):
    wrong = place.submitting("FAILED", 2)
    assert wrong.code == 2
    return [place.submitting("FAILED", 1), place.submitting(status="")]


@row(1, "a command with a run or a folder of runs", "There is none, or planner cannot read it.")
def _(place):
    missing = [place.cli(name, "no-such-run") for name in ("show", "watch", "audit", "report", "track", "runs")]
    unknown = [place.cli(name, "nonsense://bucket/run") for name in ("show", "watch", "audit", "report", "runs")]
    run = place.run()
    shutil.rmtree(run / "manifests")
    return [*missing, *unknown, place.cli("export", "no-such-run", "-o", "out"), place.cli("audit", run)]


@row(1, "a command that writes", "planner cannot write its files, or the disk is full.")
def _(place):
    (place.folder / "file").write_text("x")
    return [place.cli("run", place.job, "--set", "checkpoint.path=file/run")]


@row(1, "a command with `--address`", "No Ray cluster or dashboard answers there.", starts_processes=True)
def _(place):
    return [
        place.cli("run", place.job, "--address", NOBODY),
        place.cli("run", place.job, "--address", NOBODY, "--dry-run"),
        place.cli("probe", place.folder, "--address", NOBODY),
    ]


@row(1, "a command with `--address`", "No Ray cluster or dashboard answers there.")
def _(place):
    return [place.cli("submit", place.job.name, *SHARED, "--address", NO_DASHBOARD)]


@row(2, "every command", "It, an option or a value does not exist, or an argument is missing or too much.")
def _(place):
    return [
        place.cli("trian"),
        place.cli("base.yaml"),
        place.cli(""),
        place.cli("--no-such-option"),
        place.cli("plan"),
        place.cli("plan", place.job, "--no-such-option"),
        place.cli("plan", place.job, "too-much"),
        place.cli("run", place.job, "--nodes", "many"),
        place.cli("run", place.job, "--nodes", "99"),
        place.cli("run", place.job, "--nodes"),
        place.cli("run", place.job, "--json=1"),
        place.cli("prepare", "text.txt", "out", "--kind", "x"),
        place.cli("submit", place.job.name),
    ]


@row(2, "a command with a job or a recipe", "The file, its data or its model is missing or wrong.")
def _(place):
    (place.folder / "recipe.sh").write_text("echo nothing to train\n")
    return [
        *(place.cli(name, "no-such-job.yaml") for name in ("plan", "run", "verify", "demo", "check", "convert")),
        *(place.cli(name, place.job, "--set", "batch.global=0") for name in ("plan", "run", "verify")),
        place.cli("run", place.job, "--set", "data.path=nothing"),
        place.cli("check", "recipe.sh"),
    ]


@row(2, "a command that writes", "The folder of its output does not exist.")
def _(place):
    return [
        place.cli("init", "no-such-folder/job.yaml"),
        place.cli("report", place.run(), "-o", "no-such-folder/page.html"),
        place.cli("prepare", "text.txt", "no-such-folder/tokens"),
    ]


NO_ADDRESS = "It is not an address, or what answers there refuses the token or is of another version."


@row(2, "a command with `--address`", NO_ADDRESS, starts_processes=True)
def _(place):
    return [place.cli("run", place.job, "--address", "127.0.0.1:99999")]


@row(2, "a command with `--address`", NO_ADDRESS)
def _(place):
    from planner.submit import jobs_api  # imports Ray

    no_address = place.cli("submit", place.job.name, *SHARED, "--address", "auto")
    place.monkeypatch.setattr(jobs_api, "_client", lambda _address: SimpleNamespace(_server_ray_version="2.1.0"))
    return [no_address, place.cli("submit", place.job.name, *SHARED, "--address", NO_DASHBOARD)]


@row(130, "every command", "You pressed Ctrl-C.", starts_processes=True)
def _(place):
    def interrupted(*_arguments):
        raise KeyboardInterrupt

    place.monkeypatch.setattr("planner.cli.plan_command.read_job", interrupted)
    return [place.starting(KeyboardInterrupt()), place.cli("plan", place.job)]


@row(130, "`run`, `demo`, `verify`, `prepare`", "They got SIGTERM.", starts_processes=True)
def _(place):
    def terminated(*_arguments, **_named):
        os.kill(os.getpid(), signal.SIGTERM)

    for name in (
        "planner.cli.verify_command.verify_job",
        "planner.cli.prepare_command.prepare_file",
        "planner.runner.execute.embedded",
    ):
        place.monkeypatch.setattr(name, terminated)
    return [
        place.cli("verify", place.job),
        place.cli("prepare", "text.txt", "out"),
        place.cli("run", place.job),
        place.cli("demo", place.job),
    ]


@row(130, "`planner submit --follow`", "Somebody stopped the job, or you left with Ctrl-C and the job continues.")
def _(place):
    return [place.submitting("STOPPED", 130), place.submitting(error=KeyboardInterrupt())]


def test_every_row_of_the_page_has_a_case_and_every_case_a_row():
    """A promise without a case is not kept by anything."""
    assert len(ROWS) > 15
    assert set(ROWS) == {of_page for of_page, _ in (case.values for case in CASES)}


# Of a command whose answer is on stdout: verdicts, JSON, and a job that failed and can be resumed.
ENDS_OF_ANSWERS = ("audit: NOT", "verify: FAILED", "verify: NOT", "}", "  resume ")


@pytest.mark.parametrize(("of_page", "case"), CASES)
def test_a_row_is_true(cli, job, recorded, monkeypatch, of_page, case):
    """The code, and every line on stderr begins with `planner: ` where there is an error. No box and no traceback."""
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    code = int(of_page[0])
    answers = case(Place(cli, job, recorded, monkeypatch))
    assert [(answer.code, answer.err) for answer in answers if answer.code != code] == []
    for answer in answers:
        lines = answer.err.splitlines()
        assert [line for line in lines if code in {1, 2} and not line.startswith("planner: ")] == []
        assert "Traceback" not in answer.out + answer.err
        last = answer.out.splitlines()[-1:] or [""]
        assert lines or code in {0, 130} or last[0].startswith(ENDS_OF_ANSWERS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "no such command: trian. If you meant train: planner run JOB trains the job"),
        (["pln"], "no such command: pln. Did you mean planner plan?"),
        (["ver"], "no such command: ver. Did you mean planner verify?"),
        (["Plan"], "no such command: Plan. Write planner plan"),
        (["resume"], "no such command: resume. planner run JOB resumes the job's run from its newest commit"),
        (["dry_run"], "no such command: dry_run. planner run JOB --dry-run checks a job and starts nothing"),
        (["base.yaml"], "planner plan base.yaml shows its batch, planner run base.yaml trains it"),
        (["job.yaml"], "planner plan job.yaml shows its batch, planner run job.yaml trains it"),
        (["recipe.sh"], "planner check recipe.sh or planner convert recipe.sh"),
        (["train.py"], "planner check train.py"),
        (["./nothing/here"], "planner run ./nothing/here for a job, planner check ./nothing/here for a recipe"),
        (["xyzzy"], "no such command: xyzzy. planner --help lists the commands"),
        (["."], "planner runs . lists its runs"),
        (["plan"], "plan needs JOB, a job file (YAML). Write planner plan JOB"),
        (["run", "job.yaml", "--vebrose"], "run has no option --vebrose. Did you mean --verbose?"),
        (
            ["plan", "job.yaml", "--vebrose"],
            "plan has no option --vebrose. planner run and planner submit have --verbose",
        ),
        (["show", "run", "--follow"], "show has no option --follow. planner submit and planner track have it"),
        (["run", "job.yaml", "--resume"], "planner run resumes by itself"),
        (["run", "job.yaml", "--steps", "4"], "run has no option --steps. Write --set train.steps=400"),
        (["show", "run", "--steps", "4"], "show has no option --steps. planner verify has it"),
        (["plan", "job.yaml", "--seed", "4"], "plan has no option --seed. Write --set train.seed=1"),
        ([""], "no such command: ''. planner --help lists the commands"),
        (["run", "job.yaml", "--lr", "4"], "Write --set train.optimizer.lr=1e-4"),
        (["-h"], "Write --help"),
        (["run", "job.yaml", "--nodes", "x"], "--nodes x: write a whole number from 0 to 64"),
        (["run", "job.yaml", "--nodes", "99"], "--nodes 99: write a whole number from 0 to 64"),
        (["run", "job.yaml", "--nodes"], "--nodes needs a value after it"),
        (["run", "job.yaml", "--json=4"], "--json takes no value"),
        (["run", "job.yaml", "train.steps=4"], "A value of the job needs --set: --set train.steps=4"),
        (["runs", "a", "b"], "runs takes FOLDER alone, not also b"),
        (["prepare", "a", "b", "--kind", "jsnl"], "--kind jsnl: write text or jsonl. Did you mean jsonl?"),
        (["plan", "job.yaml", "--storage-gbps", "fast"], "--storage-gbps fast: write a number"),
        (["verify", "job.yaml", "--steps", "0"], "--steps 0: write a whole number of at least 1"),
        (["submit", "job.yaml"], "submit needs --address. Write planner submit ... --address URL, or set RAY_API_"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("job")
def test_a_wrong_command_line_says_in_one_line_what_to_write(cli, monkeypatch, arguments, says):
    """The nearest command or option, or what does here what people know by another word."""
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(r"planner: [^\n]+\n", answer.err)
    assert says in answer.err


def test_planner_alone_prints_its_help_and_no_error(cli):
    """The exit code says that a command is missing."""
    answer = cli()
    assert (answer.code, answer.err) == (2, "")
    assert "Usage: planner" in answer.out


@pytest.mark.parametrize("stderr", [None, "/dev/full"])
def test_an_error_that_nobody_can_read_has_its_exit_code(cli, monkeypatch, stderr):
    """stderr is closed, or on a full disk."""
    stream = None if stderr is None else Path(stderr).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115
    monkeypatch.setattr("sys.stderr", stream)
    assert cli("trian").code == 2


def test_a_run_given_as_a_command_is_told_what_shows_it(cli, recorded, tmp_path):
    shutil.copytree(recorded.run, tmp_path / "tiny")
    assert "planner show tiny, planner watch tiny or planner audit tiny" in cli("tiny").err


def test_what_other_words_name_exists(cli):
    """Each command and option in those texts."""
    from planner.cli import other_words
    from planner.cli.commands import COMMANDS, load

    texts = [*other_words.COMMANDS.values(), *other_words.OPTIONS.values()]
    named = {name for text in texts for name in re.findall(r"planner ([a-z-]+) (?:[A-Z]|--)", text)}
    assert named <= set(COMMANDS)
    assert len(named) > 10
    assert not set(OTHER_COMMANDS) & set(COMMANDS)
    options = {option for name in COMMANDS for each in load(name).params for option in each.opts}
    asked = {option for text in texts for option in re.findall(r"(?<= )--[a-z-]+", text)}
    assert asked - options <= {"--help", "--version"}
    assert cli("plan", "--help").code == 0


def test_keys_that_are_suggested_are_keys_of_a_job(job):
    """`--set KEY=VALUE` with each key named for an unknown option."""
    from planner.cli.other_words import OPTIONS

    keys = {key for text in OPTIONS.values() for key in re.findall(r"--set ([a-z_.]+)=", text)}
    assert {"batch.global", "train.steps"} <= keys
    for key in keys - {"model.path"}:  # that one needs a model of transformers
        value = {"checkpoint.path": "run", "data.path": "text.txt"}.get(key, "1")
        assert planner.read_job(str(job), [f"{key}={value}"])
