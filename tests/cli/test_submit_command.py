"""`planner submit` before it connects to a cluster. tests/dispatch tests the rest."""

import json
import shlex
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import planner
from planner.files import read_job
from planner.submit import shipment, submission

AT = ("--address", "http://127.0.0.1:1")
SHARED = ("--set", "checkpoint.path=/shared/tiny")


@pytest.fixture
def dry(cli, job):
    """A dry run of the job with these further arguments, as JSON."""

    def call(*arguments):
        answer = cli("submit", job.name, *AT, *SHARED, "--dry-run", "--json", *arguments)
        assert (answer.code, answer.err) == (0, "")
        return json.loads(answer.out)

    return call


class TestDryRun:
    def test_it_sends_the_package_the_job_and_its_relative_data_and_nothing_else(self, dry, tmp_path):
        """No run, no virtual environment, no cache and no secret."""
        for name in (".env", ".git/config", ".venv/bin/python", "runs/tiny/run.json", "notes.txt"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x")
        sent = set(dry()["files"])
        assert {"job.yaml", "text.txt", "planner/cli/__main__.py", "planner/py.typed"} <= sent
        assert {name for name in sent if not name.startswith("planner/")} == {"job.yaml", "text.txt"}
        assert not {name for name in sent if "__pycache__" in name}

    def test_it_runs_what_was_asked_for(self, dry):
        """The command has all overrides and acceptances, quoted. The driver gets the command that resumes."""
        found = dry("--set", "train.steps=9", "--accept", "seed", "--set", "checkpoint.path=/shared/a run", "--verbose")
        overrides = [*SHARED, "--set", "train.steps=9", "--set", "checkpoint.path=/shared/a run"]
        asked = [*overrides, "--accept", "seed", "--verbose"]
        command = ["exec", "python", "-m", "planner.cli", "run", "job.yaml"]
        assert shlex.split(found["entrypoint"]) == [*command, *asked]
        assert shlex.split(found["env_vars"]["PLANNER_RESUME"]) == ["planner", "submit", "job.yaml", *AT, *asked]

    def test_the_command_by_hand_brings_the_package_where_the_folder_has_none(self, dry, tmp_path, monkeypatch):
        """In a checkout, the folder already has the package."""
        package = Path(planner.__file__).parent
        elsewhere = shlex.split(dry()["by_hand"])
        assert elsewhere[:7] == ["ray", "job", "submit", *AT, "--working-dir", "."]
        assert json.loads(elsewhere[8])["py_modules"] == [str(package)]
        monkeypatch.setattr(submission, "package_folder", lambda: tmp_path / "planner")
        assert "py_modules" not in json.loads(shlex.split(dry()["by_hand"])[8])

    def test_it_says_all_that_in_words(self, cli, job):
        """As text, without a connection."""
        answer = cli("submit", job.name, *AT, *SHARED, "--dry-run")
        assert (answer.code, answer.err) == (0, "")
        assert "would go to http://127.0.0.1:1, with the run in /shared/tiny\n" in answer.out
        assert f"planner {planner.__version__}, job.yaml, text.txt: " in answer.out
        assert answer.out.endswith("nothing was sent\n")

    @pytest.mark.parametrize("path", ["python-stdlib", "/data/of/the/cluster", "~/data"])
    def test_data_that_the_cluster_has_stays_there(self, dry, path):
        assert "text.txt" not in dry("--set", f"data.path={path}")["files"]

    def test_a_folder_and_a_glob_bring_their_files(self, dry, tmp_path):
        """Names stay the same, so the job has the same meaning on the cluster."""
        for name in ("corpus/a.txt", "corpus/b/c.txt", "corpus/d.md"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("x")
        sent = [dry("--set", f"data.path={path}")["files"] for path in ("corpus", "corpus/**/*.txt")]
        assert [sum(name.startswith("corpus/") for name in names) for names in sent] == [3, 2]


def wrong(says, *arguments, name=""):
    return pytest.param(arguments, says, id=name or " ".join(arguments)[:60])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        wrong("submit needs --address. Write planner submit ... --address URL", "job.yaml"),
        wrong("this is not http://HOST:PORT. Give the address of the cluster's dashboard", "job.yaml", "--address", ""),
        wrong("such as http://10.0.0.5:8266", "job.yaml", "--address", "10.0.0.5:8266"),
        wrong("such as http://HOST:8265", "job.yaml", "--address", "auto"),
        wrong("such as http://head:8265", "job.yaml", "--address", "head:6379"),
        wrong("such as http://head:10001", "job.yaml", "--address", "ray://head:10001"),
        wrong("this is not http://HOST:PORT", "job.yaml", "--address", "http://"),
        wrong("Write http://HOST:8265", "job.yaml", "--address", "http://head:port"),
        wrong("Write http://HOST:8265", "job.yaml", "--address", "http://[::1:8265"),
        wrong(
            "6379 is the port for nodes and drivers. Give the address of the cluster's dashboard, such as "
            "http://10.0.0.5:8265",
            *("job.yaml", "--address", "http://10.0.0.5:6379"),
        ),
        wrong("missing.yaml: found no such file", "missing.yaml", *AT),
        wrong("job.yaml: train.stepz", "job.yaml", *AT, "--set", "train.stepz=4"),
        wrong("--accept nonsense: write one of data", "job.yaml", *AT, "--accept", "nonsense"),
        wrong("checkpoint.path: run is relative, so the run would be in the job's", "job.yaml", *AT),
        wrong("memory://x: each process has a memory:// of", "job.yaml", *AT, "--set", "checkpoint.path=memory://x"),
        wrong("checkpoint.path: runs/tiny is relative", "job.yaml", *AT, "--set", 'checkpoint.path=""'),
        wrong("data.path: no file at 'nothing'", "job.yaml", *AT, *SHARED, "--set", "data.path=nothing"),
        wrong("data.path: ../outside.txt is outside", "job.yaml", *AT, *SHARED, "--set", "data.path=../outside.txt"),
        wrong("the job file: ../job.yaml is outside", "../job.yaml", *AT, *SHARED),
    ],
)
def test_what_is_wrong_is_told_in_a_line_before_anything_is_sent(cli, job, arguments, says, monkeypatch):
    """Exit code 2, and what to do."""
    above = job.parent
    here = above / "here"
    here.mkdir()
    for name in ("job.yaml", "text.txt"):
        (here / name).write_bytes((above / name).read_bytes())
    (above / "outside.txt").write_text("x" * 100)
    monkeypatch.chdir(here)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    answer = cli("submit", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_a_dashboard_that_does_not_answer_is_no_mistake_of_the_input(cli, job, monkeypatch):
    """It may still be starting: exit code 1, as docs/reference/exit-codes.md says."""
    monkeypatch.chdir(job.parent)
    answer = cli("submit", job.name, *AT, *SHARED)
    assert (answer.code, answer.out) == (1, "")
    assert "no Ray dashboard at http://127.0.0.1:1: Connection refused. Check --address" in answer.err


def test_a_link_is_not_followed_to_what_lies_elsewhere(cli, job, monkeypatch, tmp_path_factory):
    """In a folder from another person, a link may name a private key."""
    secret = tmp_path_factory.mktemp("home") / "id_rsa"
    secret.write_text("secret")
    monkeypatch.chdir(job.parent)
    (job.parent / "texts").mkdir()
    (job.parent / "texts" / "a.txt").symlink_to(secret)
    answer = cli("submit", job.name, *AT, *SHARED, "--set", "data.path=texts")
    assert (answer.code, answer.out) == (2, "")
    assert "data.path: texts/a.txt links out of " in answer.err


def test_a_token_that_others_may_read_is_said_first(cli, job, monkeypatch, tmp_path):
    """The warning comes before any other output."""
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o640)
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    said = f"planner: {tmp_path}/token: other users of this machine can use this token (mode 0640) "
    assert cli("submit", job.name, *AT, *SHARED).err.startswith(said)
    (tmp_path / "token").chmod(0o600)
    assert said not in cli("submit", job.name, *AT, *SHARED).err


def test_more_than_ray_takes_is_refused_with_the_largest_files(cli, job, monkeypatch):
    """The message has the sum, the limit and the largest files."""
    (job.parent / "text.txt").write_bytes(bytes(3 * 2**20))
    monkeypatch.setattr(shipment, "MAX_BYTES", 2**20)
    answer = cli("submit", job.name, *AT, *SHARED)
    assert (answer.code, answer.out) == (2, "")
    assert "and Ray accepts 1.0 MiB (the largest: text.txt (3.0 MiB), " in answer.err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_log_that_breaks_off_leaves_the_commands_for_the_job(cli, job, monkeypatch, as_json):
    """As Ctrl-C does. But it is an error, because nobody knows how the job ended."""
    server = SimpleNamespace(ray_version="2.60.0", submit=lambda _it: None, follow=lambda _id, _show: None)
    api = SimpleNamespace(JobsApi=SimpleNamespace(connect=lambda _address: server))
    monkeypatch.setitem(sys.modules, "planner.submit.jobs_api", api)
    answer = cli("submit", job.name, *AT, *SHARED, "--follow", *(["--json"] if as_json else []))
    assert answer.code == 1
    assert answer.err.endswith("planner: http://127.0.0.1:1: the log broke off before the job ended\n")
    if as_json:
        found = json.loads(answer.out)
        assert found["status"] == "RUNNING"
        assert "exit_code" not in found
    else:
        assert " is still running\n  log      ray job logs " in answer.out
        assert "\n  resume   planner submit " in answer.out


def test_without_rays_job_client_the_extra_is_named(cli, job, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    answer = cli("submit", job.name, *AT, *SHARED)
    assert answer.code == 2
    assert answer.err.endswith("pip install 'PATH_OF_ITS_WHEEL[submit]'\n")


def test_equal_files_make_an_equal_archive(job, monkeypatch):
    """Ray names an archive by its content and sends it once. One changed byte makes another archive."""
    monkeypatch.chdir(job.parent)
    archives = [Path(name) for name in ("a.zip", "b.zip", "c.zip")]
    for archive in archives:
        if archive.name == "c.zip":
            Path("text.txt").write_text("other")
        shipment.write_archive(shipment.collect(job.name, read_job(job)), archive)
    first, second, third = (archive.read_bytes() for archive in archives)
    assert first == second != third
    assert zipfile.ZipFile("c.zip").read("text.txt") == b"other"


@pytest.mark.process
def test_on_the_cluster_the_driver_says_how_it_is_resumed_from_here(cli, recorded, tmp_path, monkeypatch):
    """It does not print the command for the head."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.runner.execute.embedded", interrupted)
    monkeypatch.setenv("PLANNER_RESUME", "planner submit job.yaml --address http://head:8265")
    answer = cli("run", recorded.job, "--set", f'checkpoint.path="{tmp_path}/run"')
    assert answer.code == 130
    assert answer.out.endswith(". Resume with: planner submit job.yaml --address http://head:8265\n")
