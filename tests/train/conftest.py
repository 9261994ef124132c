"""For tests of what a worker does, in the process of the tests."""

from datetime import timedelta

import pytest
from events import EVENT_S


@pytest.fixture(scope="module")
def process_group(tmp_path_factory):
    """A process group of this process alone, on one thread."""
    import torch
    import torch.distributed as dist

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rendezvous = tmp_path_factory.mktemp("world") / "rendezvous"
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1, timeout=timedelta(seconds=EVENT_S)
    )
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)
