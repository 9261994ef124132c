"""The folder that an export fills before it has its name."""

import multiprocessing
import os
import signal

import pytest
from events import EVENT_S

from planner.errors import UserError
from planner.train.export.atomic_folder import unfinished_folder


def fill_and_die(target):
    with unfinished_folder(target) as half:
        (half / "weights").write_text("some")
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
def test_what_a_killed_export_left_goes_at_the_next_one(tmp_path):
    """And what another one is about to fill stays, as do those of other names."""
    target = tmp_path / "a model[1]"
    process = multiprocessing.get_context("fork").Process(target=fill_and_die, args=(target,))
    process.start()
    process.join(EVENT_S)
    assert process.exitcode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    other = tmp_path / ".b.12345678.half"
    other.mkdir()
    with unfinished_folder(target) as first:
        assert not left.exists()
        with unfinished_folder(target) as second:
            assert first.is_dir()
            assert second.is_dir()
    assert list(tmp_path.iterdir()) == [other]


def test_an_invalid_folder_is_a_mistake_of_the_user(tmp_path):
    """A file where the folder above should be."""
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made there"), unfinished_folder(tmp_path / "file" / "model"):
        pass
