"""Fixtures: a run's folder on this machine and one on a stand-in for an object store."""

import uuid

import pytest

from planner.store.storage import Storage


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path):
    """A folder that does not exist yet: on this machine, and in fsspec's in-process stand-in for an object store."""
    if request.param == "local":
        yield str(tmp_path / "run")
        return
    address = f"memory://{uuid.uuid4().hex}"
    yield address
    Storage(address).delete("")


@pytest.fixture
def storage(url):
    """An empty folder."""
    return Storage(url)
