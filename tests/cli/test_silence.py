"""No command is silent for more than three seconds: what takes long is named, and tests wait for its name."""

import io
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from events import wait_for

from planner.base import wait_reports
from planner.cli import activity
from planner.cli import live_panel as watching
from planner.cli.live_panel import LivePanel
from planner.cli.options import console
from planner.errors import RunError
from planner.files import read_job
from planner.local_cluster.embedded import EmbeddedCluster
from planner.runner.local import embedded, local_cluster
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.run_story import StoryFold

AT = ("--address", "http://127.0.0.1:1", "--set", "checkpoint.path=/shared/tiny")


@pytest.fixture
def said(monkeypatch):
    """What commands say about work that takes long. Any work takes long."""
    lines = []
    monkeypatch.setattr(wait_reports, "SILENCE_S", 0.0)
    monkeypatch.setattr(wait_reports, "_LOOK_S", 0.01)
    monkeypatch.setattr(activity, "_say_on", lambda _out: lines.append)
    return lines


@pytest.fixture
def slow(monkeypatch, said):
    """Makes a function of planner so slow that it only ends, with an error, when this was said."""

    def patch(name, what):
        def never(*_arguments, **_named):
            wait_for(lambda: any(what in line for line in said))
            raise RunError("it was said")

        monkeypatch.setattr(name, never)

    return patch


@pytest.mark.parametrize(
    ("arguments", "name", "what"),
    [
        (["audit", "finished"], "planner.cli.audit_command.audit_run", "steps audited: 0"),
        (["runs", "."], "planner.cli.runs_command.survey_folder", "reading ."),
        (["show", "finished"], "planner.cli.show_command.survey", "reading finished"),
        (["report", "finished"], "planner.cli.report_command.survey", "reading "),
        (["report", "finished"], "planner.cli.report_command.read_story", "generations read"),
        (["report", "finished"], "planner.pictures.run_pictures.draw_run", "finished: drawing"),
        (["export", "finished", "-o", "out"], "planner.train.export.commit_at", "reading finished"),
        (["track", "finished", "--tracking", "jsonl"], "planner.cli.track_command.track_run", "sending steps to the"),
        (["verify", "job.yaml"], "planner.cli.verify_command.verify_job", "starting the workers"),
        (["prepare", "text.txt", "out"], "planner.cli.prepare_command.prepare_file", "bytes read: 0"),
        (["probe", "."], "planner.cli.probe_command.measure", "measuring"),
        (["submit", "job.yaml", *AT], "planner.cli.submit_command.collect", "collecting the files"),
        (["run", "job.yaml"], "planner.runner.start.check_here", "checking the model"),
        (["run", "job.yaml"], "planner.runner.start.open_data", "data checked: 0"),
        (
            ["run", "job.yaml", "--address", "x:1"],
            "planner.dispatch.connection.require_ray",
            "connecting to the Ray cluster",
        ),
        (["run", "job.yaml", "--dry-run"], "planner.cli.run_command.forecast", "checking the start"),
        (["verify", "job.yaml", "--dry-run"], "planner.cli.verify_command.histories", "checking the model and the"),
        (["watch", "finished"], "planner.cli.watch_command.RunWatcher.look", "reading finished"),
        (["demo", "job.yaml"], "planner.runner.start.open_data", "data checked: 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value).rpartition(".")[2],
)
@pytest.mark.process
@pytest.mark.usefixtures("job")
def test_a_command_says_what_takes_long(cli, recorded, tmp_path, slow, arguments, name, what):
    """It would be silent meanwhile."""
    shutil.copytree(recorded.run, tmp_path / "finished")
    slow(name, what)
    answer = cli(*arguments)
    assert "it was said" in answer.err


@pytest.mark.usefixtures("job")
def test_a_dashboard_that_does_not_answer_is_named(cli, slow):
    """In a test of its own, because it imports Ray."""
    slow("planner.submit.jobs_api.JobsApi.connect", "connecting to http://127.0.0.1:1")
    assert "it was said" in cli("submit", "job.yaml", *AT).err


def test_a_sent_job_that_does_not_start_is_waited_for_aloud(cli, job, said, monkeypatch):
    """Until the first text of its log, and no longer."""
    from planner.submit import jobs_api  # imports Ray

    monkeypatch.chdir(job.parent)

    class Server:
        ray_version = "2.60.0"

        def submit(self, _submission):
            wait_for(lambda: any("sending planner" in line for line in said))

        def follow(self, _id, show):
            wait_for(lambda: any("waiting for the job's first line" in line for line in said))
            show("the log\n")
            said.clear()
            return jobs_api.Ended(status="SUCCEEDED", exit_code=0, reason="")

    monkeypatch.setattr(jobs_api.JobsApi, "connect", lambda _address: Server())
    answer = cli("submit", job.name, *AT, "--follow")
    assert answer.code == 0
    assert "the log\n" in answer.out
    assert said == []


def test_the_start_of_a_local_cluster_counts_its_nodes(job, monkeypatch):
    """The head is the first."""
    counts = []
    monkeypatch.setattr(
        "planner.local_cluster.embedded.open_link", lambda _variables: SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(EmbeddedCluster, "_ask", lambda *_: {"address": "127.0.0.1:1", "node_id": "n"})

    @contextmanager
    def progress(what):
        counts.append(what)
        yield lambda done, of: counts.append((done, of))

    with embedded(local_cluster(read_job(job), 3), lambda _line: None, progress):
        pass
    assert counts == ["Ray's head and nodes started", (1, 4), (2, 4), (3, 4)]


def test_before_the_first_step_a_run_speaks_within_three_seconds(tmp_path, monkeypatch, capsys):
    """After the first step, its steps are printed each five seconds, and a silence of fifteen is explained."""
    now_s, state = [100.0], [""]
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    panel = LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())
    panel.state = lambda: state[0]
    said_s = []
    for quarter in range(1, 121):
        now_s[0] = 100.0 + quarter / 4
        state[0] = "2 workers started, loading" if quarter > 40 else ""
        panel._look()
        if out := capsys.readouterr().out:
            said_s.append((quarter / 4, out.split("  ", 1)[1].strip()))
    starting = "workers are starting (about half a minute on a busy machine)"
    assert [at_s for at_s, _ in said_s] == [3.0, 6.0, 10.25, 13.25, 26.5]  # at growing intervals after each news
    assert said_s[0][1].endswith(f"no step for 3 s: {starting}")
    assert said_s[2][1].endswith("2 workers started, loading")
    assert said_s[3][1].endswith("no step for 13 s: 2 workers started, loading")


def test_a_pause_between_steps_speaks_within_three_seconds_of_each_news(tmp_path, monkeypatch, capsys):
    """A node was lost: the new workers take long to start."""
    now_s = [100.0]
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    panel = LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())
    panel._fold.step = 1
    said_s = []
    for quarter in range(1, 61):
        now_s[0] = 100.0 + quarter / 4
        panel.state = lambda: "1 node lost" if now_s[0] > 104 else ""
        panel._look()
        if capsys.readouterr().out:
            said_s.append(quarter / 4)
    assert said_s == [4.25, 7.25, 14.25]


def test_a_terminal_counts_instead_of_lines(monkeypatch, capsys):
    """The text is shown with a clock, in one line that goes away."""
    monkeypatch.setattr(activity, "_SHOWN_AFTER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with activity.doing("reading [bold]runs/x") as now:
        now("drawing")
    err = capsys.readouterr().err
    assert "reading [bold]runs/x" in err
    assert "0:00:0" in err
    assert err.index("drawing")


@pytest.mark.parametrize("terminal", ["", "xterm", "dumb"])
def test_short_work_shows_nothing(monkeypatch, capsys, terminal):
    """Neither on a terminal nor elsewhere. Not even an empty line."""
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: bool(terminal), raising=False)
    with activity.doing("reading"):
        pass
    with activity.progress_bar("steps audited") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_dumb_terminal_gets_lines(monkeypatch, said):
    """It cannot take a line back, so it has no counter. Such as a shell in Emacs."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with activity.doing("reading"):
        wait_for(lambda: "reading" in said)
    with activity.progress_bar("steps audited"):
        wait_for(lambda: "steps audited: 0" in said)


def test_colors_that_are_forced_into_a_file_make_it_no_terminal(monkeypatch, said):
    """`FORCE_COLOR`, as many CI systems have it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with activity.doing("reading", console()):
        wait_for(lambda: "reading" in said)


def test_a_pipe_that_is_closed_meanwhile_ends_the_command_at_its_next_line(monkeypatch):
    """Not in silence and with exit code 0: the lines of the work itself say nothing about the pipe."""
    tries = []

    class Closed(io.StringIO):
        def write(self, text):
            tries.append(text)
            raise BrokenPipeError

    monkeypatch.setattr(wait_reports, "SILENCE_S", 0.0)
    monkeypatch.setattr(wait_reports, "_LOOK_S", 0.01)
    out = console()
    out.file = Closed()
    monkeypatch.setattr(out, "on_broken_pipe", lambda: tries.append("broken"))
    with activity.doing("reading", out):
        wait_for(lambda: tries)
    assert not out.quiet
    assert "broken" not in tries
    out.print("the next line")
    assert "broken" in tries


def test_a_dumb_terminal_gets_a_run_s_lines(tmp_path, monkeypatch):
    """No panel is drawn there."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert not LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())._is_terminal
