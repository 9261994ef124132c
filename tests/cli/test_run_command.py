"""`planner run` and `planner demo` up to the start of a cluster."""

import contextlib
import shlex
import shutil
from types import SimpleNamespace

import pytest

from planner.cli.live_panel import LivePanel
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.story.run_story import RunStory, StoryFold

# A terminal library would take the first two for a style and the third for a picture.
ODD = "[bold]run[-bold] :smile:"


@pytest.fixture
def finished(recorded, tmp_path):
    """A copy of a finished run."""
    return shutil.copytree(recorded.run, tmp_path / ODD)


def test_a_finished_run_has_nothing_to_do(cli, recorded, finished):
    """One line with the unchanged folder name, exit code 0, and no cluster."""
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{finished}"')
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{finished}: finished at step 4, nothing to do\n"


@pytest.mark.process
def test_a_longer_run_resumes_where_it_ended(cli, recorded, finished):
    """With more steps, the opening line has the step and the folder."""
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{finished}"', "--set", "train.steps=9")
    assert answer.out == f"tiny: resuming at step 4 of 9 in {finished}\n"
    assert answer.err == "planner: a cluster would have been started\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("batch.global=7", "global_batch"),
        ("train.seed=1", "seed"),
        ("model.layers=2", "model"),
        ("eval.samples=6", "data"),
    ],
)
def test_another_job_is_refused_before_anything_starts(cli, recorded, finished, override, field):
    """The message says how to accept the change by name, and accepting it works."""
    arguments = ("run", recorded.job, "--set", f'checkpoint.path="{finished}"', "--set", override)
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (1, "")
    assert f"the run was made with another {field} (" in answer.err
    assert f"{finished}: " in answer.err
    assert answer.err.endswith(f"or accept it: --accept {field}\n")
    accepted = cli(*arguments, "--accept", field, "--set", "train.steps=9")
    assert accepted.out == f"tiny: resuming at step 4 of 9 in {finished}\n"


def test_a_refusal_names_every_field_and_each_change_once(cli, recorded, finished):
    """The equality also decides the recipe. Without the run's job, only the fields can be named."""
    arguments = ("run", recorded.job, "--set", f'checkpoint.path="{finished}"', "--set", "batch.equality=bitwise")
    arguments = (*arguments, "--set", "train.seed=1")
    named = "the run was made with another equality, recipe and seed"
    changed = "batch.equality: balanced -> bitwise; train.seed: 0 -> 1"
    assert f"{named} ({changed}). Change them back, " in cli(*arguments).err
    shutil.rmtree(finished / "jobs")
    unknown = "; ".join(f"{field}: the old one is not known" for field in ("equality", "recipe", "seed"))
    assert f"{named} ({unknown}). " in cli(*arguments).err


@pytest.mark.process
def test_a_new_run_prints_its_folder_as_it_is(cli, recorded, tmp_path):
    """The opening line of `planner run` is not broken at any width."""
    folder = tmp_path / (ODD + " and a name that is longer than a narrow terminal is wide") / ("x" * 150)
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{folder}"')
    assert answer.out == f"tiny: a new run in {folder}\n"


@pytest.mark.process
def test_the_demo_prints_its_folder_as_it_is(cli, recorded):
    """The opening line of `planner demo`. The folder of an earlier run is not touched."""
    answer = cli("demo", recorded.job)
    assert answer.out == f"tiny: 4 steps of exactly 6 samples, in {recorded.run}-2\n"
    assert answer.err == "planner: a cluster would have been started\n"
    shutil.rmtree(f"{recorded.run}-2")


@pytest.mark.process
def test_the_command_that_resumes_can_be_pasted(cli, recorded, tmp_path, monkeypatch):
    """After Ctrl-C, it is quoted for a shell and has all of the user's arguments."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.runner.execute.embedded", interrupted)
    arguments = [
        "run",
        str(recorded.job),
        "--nodes",
        "2",
        "--set",
        f"checkpoint.path={tmp_path}/a run",
        "--accept",
        "data",
    ]
    answer = cli(*arguments)
    assert answer.code == 130
    assert f"interrupted: nothing was committed yet in {tmp_path}/a run. Resume with: " in answer.out
    assert shlex.split(answer.out.splitlines()[-1].partition("Resume with: ")[2]) == ["planner", *arguments]


def test_a_line_said_while_watching_is_printed_as_it_is(tmp_path, capsys):
    """Events may contain paths and settings. A pipe gets them unchanged."""
    from planner.cli.options import console

    line = f"commit {ODD} was passed over [/] {'x' * 200} [link=http://x]here"
    LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold()).say(line)
    assert capsys.readouterr().out == f"    0 s  {line}\n"


def test_the_panel_shows_an_event_as_it_is(tmp_path, capsys):
    """Markup in an event is not interpreted on a terminal's panel."""
    from planner.cli.options import console

    watch = LivePanel(RunFolder(Storage(str(tmp_path))), console(), StoryFold())
    seen = SimpleNamespace(loss=1.5, metrics={}), SimpleNamespace(loss=2.5)
    watch._event = ODD
    watch._story = RunStory(step=3, total_steps=9, committed_step=2, last_step=seen[0], last_eval=seen[1])
    console().print(watch._panel())
    shown = capsys.readouterr().out
    assert f"last     {ODD}" in shown
    assert "3 / 9   (durable 2)" in shown
    assert "1.5000   held out 2.5000" in shown


@pytest.mark.process
def test_a_dead_address_is_told_in_seconds(cli, recorded, tmp_path):
    """No process listens there: exit code 1 and one line. Ray itself retries for ten minutes."""
    path = tmp_path / "run"
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{path}"', "--address", "127.0.0.1:1")
    assert answer.code == 1
    assert "no Ray cluster at 127.0.0.1:1: " in answer.err
    assert "Check --address (or RAY_ADDRESS)" in answer.err


@pytest.mark.process
def test_a_disk_that_is_full_already_starts_nothing(cli, recorded, small_disk):
    """One line with the sizes, before a cluster is started."""
    with contextlib.suppress(OSError), (small_disk / "hog").open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{small_disk}"')
    assert answer.code == 1
    sizes = "a small file needs 4.1 kB, and 0 bytes are free"
    assert f"the disk is full: {sizes}. Make room there, then run the same command again" in answer.err
    assert "starting a local Ray cluster" not in answer.out


@pytest.mark.process
def test_an_interrupted_extension_is_not_called_finished(cli, recorded, finished, monkeypatch):
    """The commit was the last one of a shorter job, and this launch asked for more steps."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.runner.execute.embedded", interrupted)
    answer = cli("run", recorded.job, "--set", "train.steps=9", "--set", f'checkpoint.path="{finished}"')
    assert answer.code == 130
    assert "interrupted: step 4 of 9 is committed" in answer.out
