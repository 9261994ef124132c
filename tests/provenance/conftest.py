"""One recorded run, which nobody trained, for all tests of verifiers."""

import shutil

import pytest
from made_up_runs import make_history


@pytest.fixture(scope="session")
def history(tmp_path_factory):
    """The recorded run's folder, with its data beside it. A test that changes it makes a copy."""
    folder = tmp_path_factory.mktemp("history")
    make_history(folder)
    return folder / "run"


@pytest.fixture
def run(history, tmp_path):
    """A copy of the recorded run to harm."""
    return shutil.copytree(history.parent, tmp_path / "copy") / "run"
