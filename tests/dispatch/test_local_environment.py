"""What the processes of a local cluster inherit."""

from pathlib import Path

from planner.local_cluster.environment import supervisor_environment


def test_tensors_travel_on_loopback(monkeypatch):
    """Over gloo and over NCCL, whatever the user has set for a cluster."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    found = supervisor_environment(Path("home"), {})
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")


def test_gpus_that_the_user_hides_stay_hidden(monkeypatch):
    """Ray takes an empty list for none at all, and CUDA's own word for it is -1."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert supervisor_environment(Path("home"), {})["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert supervisor_environment(Path("home"), {})["CUDA_VISIBLE_DEVICES"] == "2,3"
