"""Which errors of a start are worth another one."""

from pathlib import Path

import pytest

from planner.dispatch.connection import _embedded_text
from planner.local_cluster.environment import supervisor_environment
from planner.local_cluster.start_errors import RAYS_TEXTS, is_late

pytestmark = pytest.mark.usefixtures("ray_environment")


@pytest.mark.parametrize("text", RAYS_TEXTS)
def test_each_text_is_one_of_rays(text):
    """Ray is the judge: a text that it no longer has fails here."""
    import ray

    sources = (Path(ray.__file__).parent / "_private").glob("*.py")
    assert any(text in source.read_text() for source in sources)


def test_rays_own_limits_and_lost_connections_are_late():
    """As Ray raises them in `Node`, `services` and the client of its GCS."""
    from ray.exceptions import GetTimeoutError, RpcError

    late = [
        Exception("The current node timed out during startup. This could happen because some of the raylet failed"),
        RuntimeError("Failed to start GCS.  Last 0 lines of error files:\n\n. Last connection error: None"),
        RuntimeError("Timed out waiting for file /tmp/x"),
        TimeoutError("Timed out while waiting for nodes to join."),
        ConnectionError("Could not read 'x' from GCS. Did GCS start successfully?"),
        BrokenPipeError(32, "Broken pipe"),
        RpcError("failed to connect to all addresses", rpc_code=14),
        GetTimeoutError("no answer"),
    ]
    assert [error for error in late if not is_late(error)] == []


def test_what_ray_was_given_is_not_late():
    """Another start would raise it again, whatever it quotes."""
    told = [
        ValueError("Attempting to start raylet with 1 GPU, but CUDA_VISIBLE_DEVICES contains []."),
        ValueError("a resource named timed out"),
        AssertionError("`CPU` cannot be a custom resource"),
        FileNotFoundError(2, "No such file or directory"),
        RuntimeError("Version mismatch"),
        KeyError("x"),
    ]
    assert [error for error in told if is_late(error)] == []


def test_the_load_is_named_only_if_something_was_too_slow():
    """For the driver's connection to its own cluster, too."""
    slow, wrong = RuntimeError("No node info found matching attributes: 'a'"), ValueError("bad\nmore")
    assert "does not answer (Ray: No node info found matching attributes: 'a'). This machine is" in _embedded_text(slow)
    assert _embedded_text(wrong) == "the local Ray cluster cannot be used. Ray says ValueError: bad"


@pytest.mark.parametrize(
    ("hidden", "passed_on"), [("", "-1"), ("NoDevFiles", "-1"), ("2,3", "2,3"), ("-1", "-1"), (None, None)]
)
def test_a_user_who_hides_all_gpus_still_gets_nodes_on_which_cpus_stand_for_them(monkeypatch, hidden, passed_on):
    """Ray takes a node's GPU if it sees at least one name of a device. CUDA finds no device of the name -1."""
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    environment = supervisor_environment(Path("/tmp/x"), {})
    assert environment.get("CUDA_VISIBLE_DEVICES") == passed_on
    if passed_on is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", passed_on)
    visible = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    assert visible is None or len(visible) >= 1
