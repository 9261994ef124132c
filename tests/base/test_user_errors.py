"""What is told of an error in code that a user wrote, and which errors another try may not meet again."""

import pickle
import runpy
import socket

import pytest

from planner.base.text import as_submitted
from planner.base.user_errors import MAX_TRACEBACK_CHARS, UserCodeFailed, code_error, origin_of


class DistBackendError(RuntimeError):
    """torch's, whose base class is called DistError."""


DistError = type("DistError", (RuntimeError,), {})
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
RayActorError = type("RayActorError", (Exception,), {"__module__": "ray.exceptions"})


def raised(error, cause=None):
    with pytest.raises(type(error)) as caught:
        raise error from cause
    return caught.value


@pytest.mark.parametrize(
    ("error", "origin"),
    [
        (AttributeError("'Run' object has no attribute 'shrad'"), "code"),
        (NameError("x"), "code"),
        (AssertionError(), "code"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "code"),
        (SystemExit(0), "code"),
        (FileNotFoundError(2, "No such file", "labels.csv"), "code"),
        (FileExistsError(17, "File exists", "out"), "code"),
        (PermissionError(13, "denied"), "environment"),
        (ConnectionResetError("reset"), "environment"),
        (TimeoutError(), "environment"),
        (MemoryError(), "environment"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "environment"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "environment"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), "environment"),
        (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), "environment"),
        (RayActorError("the actor died"), "environment"),
        (ExceptionGroup("tasks", [ValueError("x"), OSError(28, "No space left on device")]), "environment"),
        (ExceptionGroup("tasks", [ValueError("x"), KeyError("x")]), "code"),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), "peers"),
        (DistError("NCCL communicator was aborted"), "peers"),
        (ValueError("gloo is a word of mine"), "code"),
    ],
)  # fmt: skip
def test_a_mistake_in_code_is_told_from_what_another_try_may_not_meet(error, origin):
    """Nodes, networks, memory and storage come back. A mistake does not go away."""
    assert origin_of(error) == origin


def test_an_error_that_was_raised_from_one_of_storage_counts_as_that_one():
    """The user's code may give it a text of its own. Circles of causes end."""
    cause = OSError(5, "Input/output error")
    assert origin_of(raised(ValueError("no samples"), cause)) == "environment"
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    assert origin_of(one) == "code"


def test_the_line_of_the_users_file_is_named_and_not_that_of_a_library(tmp_path):
    """`socket` is where the error was raised, and `loop.py` is where it can be mended."""
    loop = tmp_path / "loop.py"
    loop.write_text("import socket\n\ndef train(run):\n    socket.inet_aton(run)\n")
    train = runpy.run_path(str(loop))["train"]
    with pytest.raises(TypeError) as caught:
        train(None)
    found = code_error(caught.value)
    assert found.text == f"TypeError: {caught.value} ({loop}:4, in train)"
    assert found.traceback.startswith("Traceback (most recent call last):")
    assert f'File "{loop}", line 4, in train' in found.traceback
    assert socket.__name__ in found.traceback


def test_a_syntax_error_names_its_line(tmp_path):
    """No frame of the file is in its traceback: the file never ran."""
    loop = tmp_path / "loop.py"
    loop.write_text("x = 1\ndef train(run:\n")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(loop))
    assert code_error(caught.value).text == f"SyntaxError: '(' was never closed ({loop}:2)"


def test_a_syntax_error_of_text_names_the_line_that_read_it(tmp_path):
    """Such as in a setting that their code evaluates. `<unknown>:1` is no place."""
    loop = tmp_path / "loop.py"
    loop.write_text("import ast\ndef train(run):\n    ast.literal_eval('3 3')\n")
    with pytest.raises(SyntaxError) as caught:
        runpy.run_path(str(loop))["train"](None)
    assert code_error(caught.value).place == f"{loop}:3, in train"


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_are_libraries_too(tmp_path, folder):
    """An environment that Ray makes for a job sees the packages of its base."""
    library = tmp_path / folder / "layers.py"
    library.parent.mkdir()
    library.write_text("def forward(x):\n    return x.weight\n")
    loop = tmp_path / "loop.py"
    loop.write_text("def train(forward):\n    forward(None)\n")
    with pytest.raises(AttributeError) as caught:
        runpy.run_path(str(loop))["train"](runpy.run_path(str(library))["forward"])
    assert code_error(caught.value).place == f"{loop}:2, in train"


def test_a_path_of_a_submitted_job_is_told_as_in_the_checkout():
    """Ray unpacks what was sent below a folder of its own, on every node."""
    copy = "/tmp/ray/session_2026-11-25_22-46-29_1_2/runtime_resources/working_dir_files/_ray_pkg_0a1b2c3d4e5f"
    assert as_submitted(f"{copy}/jobs/loop.py:7, in train") == "jobs/loop.py:7, in train"
    assert as_submitted(f'  File "{copy}/jobs/loop.py", line 7') == '  File "jobs/loop.py", line 7'


class Unprintable(Exception):
    def __init__(self, needed):
        super().__init__()
        self.needed = needed

    def __str__(self):
        raise RuntimeError("not even this")


def test_whatever_was_raised_it_is_bounded_printable_and_can_be_sent():
    """Ray pickles errors, and the terminal shows them."""
    wild = code_error(raised(ValueError("\x1b[31m" + "x" * 100_000 + "\nsecond line")))
    assert len(wild.text) < 800
    assert len(wild.traceback) <= MAX_TRACEBACK_CHARS * 1.1
    assert "\x1b" not in wild.text + wild.traceback
    assert "\n" not in wild.text
    failed = pickle.loads(pickle.dumps(UserCodeFailed(code_error(raised(Unprintable(1))), "code", 3)))
    assert str(failed).startswith("train() raised Unprintable (")
    assert (failed.origin, failed.num_steps) == ("code", 3)
