"""What `make test` makes of failures: a test that starts processes is run once more, anything else refuses."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
# Plugins that take a second to import.
UNUSED = "-p no:hypothesispytest -p no:pytest_cov -p no:randomly -p no:anyio"
CONFTEST = "pytest_plugins = ['outcomes']\n"
INI = "[pytest]\nmarkers = process\n    slow\n"
# Fails as often as `FAILS` says, and counts in a file, since each try has a process of its own.
TESTS = """
import os
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.parametrize("number", range(5))
def test_sometimes(number):
    tries = Path(f"tries-{number}")
    so_far = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (so_far + 1))
    fails = int(os.environ["FAILS"].split(",")[number])
    assert so_far >= fails, f"try {so_far}"


@pytest.fixture(scope="module")
def shared():
    tries = Path("fixture")
    if "FIXTURE_FAILS" in os.environ and not tries.exists():
        tries.write_text("")
        raise RuntimeError("no cluster")


@pytest.mark.process
@pytest.mark.parametrize("number", range(5))
def test_of_one_fixture(shared, number):
    pass


@pytest.mark.process
def test_skipped():
    if "SKIPS" in os.environ:
        if Path("skips").exists():
            pytest.skip("the second time")
        Path("skips").write_text("")
        raise AssertionError


@pytest.mark.process
def test_crash():
    if "CRASHES" in os.environ:
        os._exit(9)


def test_pure():
    assert "PURE_FAILS" not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("process", marks=pytest.mark.process), "pure"])
def test_slow(kind):
    Path(f"slow-{kind}").write_text("")
"""


@pytest.fixture
def run(tmp_path):
    """`run(*options, FAILS="0,1,...")` -> exit code, output, and the lines of the log."""
    for name, text in (("conftest.py", CONFTEST), ("pytest.ini", INI), ("test_sample.py", TESTS)):
        (tmp_path / name).write_text(text)

    def call(*options, **environment):
        # What an outer pytest has set is not for this one.
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        command = [sys.executable, str(HERE / "run_tests.py"), "--workers", "1", "--flaky-log", "flaky.log", *options]
        variables = {**outside, "PYTHONPATH": str(HERE), "PYTEST_ADDOPTS": UNUSED, **environment}
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        log = tmp_path / "flaky.log"
        return done.returncode, done.stdout, log.read_text().splitlines() if log.exists() else []

    return call


def test_what_passes_when_run_again_is_flaky(run):
    """Three may. Each has a line with the reason of its first failure, at the end."""
    code, output, log = run(FAILS="1,0,1,0,1")
    assert code == 0, output
    expected = [f"FLAKY test_sample.py::test_sometimes[{number}]: " for number in (0, 2, 4)]
    last = output.splitlines()[-3:]
    assert [line.partition(": ")[0] + ": " for line in last] == expected
    assert [line.partition("]: ")[2] for line in last] == ["AssertionError: try 0"] * 3
    assert [line.split(" ", 2)[2] for line in log] == last


def test_a_fixture_that_fails_counts_once(run):
    """Five tests use it. All are run again."""
    code, output, log = run(FAILS="0,0,0,0,1", FIXTURE_FAILS="1")
    assert code == 0, output
    assert len(log) == 6
    assert sum("RuntimeError: no cluster" in line for line in log) == 5


def test_what_does_not_pass_when_run_again_refuses(run):
    """It fails twice, or it is skipped then. The one that passed is told all the same."""
    code, output, log = run(FAILS="2,0,1,0,0", SKIPS="1")
    assert code == 1
    last = output.splitlines()[-1]
    assert last.startswith("refused: ")
    assert "test_sometimes[0]" in last
    assert [line.split(" ", 2)[2].partition(": ")[0] for line in log] == ["FLAKY test_sample.py::test_sometimes[2]"]


def test_all_pass(run, tmp_path):
    """Nothing is said, and nothing is kept. Slow tests are run by `make test-all` alone, pure ones and others."""
    code, output, log = run(FAILS="0,0,0,0,0")
    assert code == 0, output
    assert log == []
    assert "FLAKY" not in output
    assert not list(tmp_path.glob("slow-*"))
    assert run("--all", FAILS="0,0,0,0,0")[0] == 0
    assert {path.name for path in tmp_path.glob("slow-*")} == {"slow-process", "slow-pure"}


def test_four_failures_refuse_at_once(run, tmp_path):
    """Nothing is run again."""
    code, output, log = run(FAILS="1,1,1,1,0")
    assert code == 1
    assert "4 failed" in output.splitlines()[-1]
    assert log == []
    assert (tmp_path / "tries-0").read_text() == "x"


def test_a_pure_test_that_fails_refuses_at_once(run, tmp_path):
    """Before anything that takes long."""
    code, output, _ = run(FAILS="0,0,0,0,0", PURE_FAILS="1")
    assert code == 1
    assert "test_pure" in output.splitlines()[-1]
    assert not (tmp_path / "tries-0").exists()


def test_a_file_that_cannot_be_collected_refuses(run, tmp_path):
    """Two files of one name passed for one once, and a landing was refused."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "test_sample.py").write_text("def test_other(): pass\n")
    code, output, _ = run(FAILS="0,0,0,0,0")
    assert code == 1
    last = output.splitlines()[-1]
    assert last.startswith("refused: ")
    assert "test_sample.py" in last
    assert "collected" in last


def test_a_crash_of_a_test_process_refuses(run):
    """Even if each test would pass alone."""
    code, output, log = run(FAILS="0,0,0,0,0", CRASHES="1")
    assert code == 1
    assert output.splitlines()[-1].startswith("refused: ")
    assert "1 ended pytest: test_sample.py::test_crash" in output.splitlines()[-1]
    assert log == []
