"""Ray's own files go below the run's folder, whatever file system it is on."""

import pytest

from planner.dispatch.ray_files import ray_storage
from planner.store.storage import Storage


def test_a_folder_is_a_path(tmp_path):
    """Nothing but Ray's own way."""
    assert ray_storage(Storage(str(tmp_path))) == {"storage_path": f"{tmp_path}/ray"}


def test_a_url_that_pyarrow_knows_is_left_to_it():
    """With its own credentials, as before."""
    assert ray_storage(Storage("file:///tmp/run")) == {"storage_path": "file:///tmp/run/ray"}


def test_a_url_that_only_fsspec_knows():
    """Bytes that Ray writes are where planner reads them."""
    storage = Storage("memory://runs/one")
    arguments = ray_storage(storage)
    folder = arguments["storage_path"]
    arguments["storage_filesystem"].create_dir(folder)
    with arguments["storage_filesystem"].open_output_stream(f"{folder}/state") as stream:
        stream.write(b"of Ray")
    assert storage.read("ray/state") == b"of Ray"
    storage.delete("ray")


@pytest.mark.parametrize("scheme", ["slow", "nowhere"])
def test_an_unknown_url_is_refused_before(scheme):
    """By `Storage`, whose message says what to do."""
    with pytest.raises(Exception, match="no file system is known"):
        ray_storage(Storage(f"{scheme}://a/b"))
