"""What Ray says when it does not let us in, by its own functions, and what one worker finds no room for."""

import pytest

from planner.dispatch.connection_errors import refusal
from planner.dispatch.resources import room_for, shortage


def raised(call, *arguments, **named):
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever Ray raises
        call(*arguments, **named)
    return caught.value


def wrapped(error):
    """As `ray.init` hands on what went wrong below it."""
    outer = ConnectionError("Failed to connect to Ray cluster at 10.0.0.5:6379")
    outer.__cause__ = error
    return outer


def gcs_error(last):
    """As `ray._private.node` raises it, with the traceback of the last try in it."""
    return wrapped(
        RuntimeError(f"Failed to connect to GCS. Last connection error: Traceback (most recent):\n  {last}\n")
    )


def version_mismatch():
    from ray._private.utils import check_version_info

    return raised(check_version_info, {"ray_version": "2.1.0", "python_version": "3.8.1"}, "node 10.0.0.9")


def no_token():
    from ray._private.authentication.authentication_constants import (
        TOKEN_AUTH_ENABLED_BUT_NO_TOKEN_FOUND_ERROR_MESSAGE as MESSAGE,
    )
    from ray.exceptions import AuthenticationError

    return AuthenticationError(MESSAGE)


def dashboard():
    from ray.client_builder import _get_builder_from_address

    return raised(_get_builder_from_address, "http://10.0.0.5:8265")


def no_address():
    from ray._private.services import canonicalize_bootstrap_address

    return raised(canonicalize_bootstrap_address, "head")


def not_a_node():
    # ray._private.services.get_node_to_connect_for_driver
    return wrapped(
        RuntimeError("No node info found matching attributes: '10.0.0.9' when trying to resolve node to connect to.")
    )


# What a GCS with token authentication answered to a wrong token, and to none (ray 2.60, on loopback).
UNAUTHENTICATED = "ray.exceptions.AuthenticationError: InvalidAuthToken: Authentication token is missing or incorrect"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (version_mismatch, "the cluster has Ray 2.1.0 on Python 3.8.1, but this machine has Ray "),
        (lambda: wrapped(version_mismatch()), "Use the same versions (Ray: Failed to connect to Ray cluster"),
        (no_token, "no token was found. Put the cluster's token into RAY_AUTH_TOKEN or ~/.ray/auth_token"),
        (no_token, "Ray requires a token (RAY_AUTH_MODE=token, or no RAY_AUTH_MODE from Ray 2.61 on)"),
        (lambda: gcs_error(UNAUTHENTICATED), "with RAY_AUTH_MODE=token"),
        (dashboard, "this is the dashboard's address"),
        (no_address, "this is not an address. Write host:port"),
        (not_a_node, "this machine is not one of the cluster's nodes"),
        (lambda: gcs_error("Deadline Exceeded"), "does not answer as a Ray head"),
        (lambda: ConnectionError("Could not find any running Ray instance. Please"), "none runs on this machine"),
        (lambda: ConnectionError("Found multiple active Ray instances: {'a:1', 'b:2'}. P"), "of one: {'a:1', 'b:2'}"),
        (lambda: RuntimeError("something new\nand more"), "something new. Check --address, or omit it"),
        (RuntimeError, "RuntimeError. Check --address"),
    ],
)
def test_a_refusal_is_one_line_with_the_way_out(make, says):
    """Each sentence stands for one cause; what is not known keeps Ray's first line."""
    said = refusal(make())
    assert says in said
    assert "\n" not in said
    assert len(said) < 300


NODES = [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 2.0, "spot": 1.0}]


@pytest.mark.parametrize(
    ("wanted", "room", "why"),
    [
        ({"CPU": 2.0}, 7, ""),
        ({"CPU": 1.0, "GPU": 1.0}, 1, ""),
        ({"CPU": 64.0}, 0, "no node has more than 8 CPU, but workers.cpus is 64"),
        ({"CPU": 1.0, "disk": 0.5}, 0, "no node has any disk, but workers.resources.disk is 0.5"),
        (
            {"CPU": 1.0, "gpu": 1.0},
            0,
            "no node has any gpu, but workers.resources.gpu is 1 (GPUs belong in workers.gpus)",
        ),
        ({"GPU": 1.0, "spot": 1.0}, 0, "no node has everything that a worker needs (GPU 1, spot 1)"),
    ],
)
def test_what_no_node_has_is_named(wanted, room, why):
    """Resource by resource, with the key that asks for it; empty as long as one worker fits."""
    assert (room_for(wanted, NODES), shortage(wanted, NODES)) == (room, why)


def test_a_cluster_without_nodes_has_nothing():
    """As on a head that hands out no CPU, before the autoscaler has brought a node."""
    assert shortage({"GPU": 1.0}, []) == "no node has any GPU, but workers.gpus is 1"
