"""A token that others may read is said; what is none, or none of theirs, is not. An embedded cluster has its own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dispatch.launch import EMBEDDED, set_environment
from planner.dispatch.token_file import token_warning
from planner.local_cluster.environment import supervisor_environment, token_environment


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = tmp_path / ".ray" / "auth_token"
    place.parent.mkdir()
    place.write_text("secret")
    place.chmod(0o644)
    return place


@pytest.mark.parametrize("environment", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "TOKEN"}])
def test_the_default_file_is_said_with_its_remedy(file, environment):
    """Ray takes it without being asked, too."""
    assert token_warning(environment) == (
        f"{file}: other users of this machine can use this token (mode 0644) and run any code on "
        f"the cluster. Run: chmod 600 {file}"
    )


@given(mode=st.integers(0, 0o777))
def test_of_a_file_by_its_path_the_mode_decides(tmp_path_factory, mode):
    """Bits of the group or of all others that let them read or write."""
    place = tmp_path_factory.getbasetemp() / "token"
    place.write_text("secret")
    place.chmod(mode)
    assert bool(token_warning({"RAY_AUTH_TOKEN_PATH": str(place)})) == bool(mode & 0o066)
    place.unlink()


@pytest.mark.parametrize(
    "environment",
    [
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_TOKEN": "secret"},
        {"RAY_AUTH_TOKEN_PATH": "/not/there"},
        {"RAY_AUTH_TOKEN_PATH": "/dev/null"},
    ],
)
@pytest.mark.usefixtures("file")
def test_where_the_file_is_not_asked_nothing_is_said(environment):
    """Without auth, with a token in the environment, without a file: that is Ray's to say."""
    assert token_warning(environment) == ""


@pytest.mark.parametrize(
    "users",
    [
        {},  # up to Ray 2.60 no token by default, from 2.61 on the one in the user's file
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "for another cluster"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/not/there"},
        {"RAY_AUTH_MODE": "token", "RAY_ENABLE_K8S_TOKEN_AUTH": "true"},
    ],
)
def test_an_embedded_cluster_has_a_token_of_its_own_whatever_the_user_has(monkeypatch, tmp_path, users):
    """In the driver and in the cluster's processes: Ray takes the variable before it looks for a file."""
    monkeypatch.setattr(os, "environ", dict(users))
    set_environment(EMBEDDED, embedded=True)
    own = token_environment()
    assert (own["RAY_AUTH_MODE"], len(own["RAY_AUTH_TOKEN"])) == ("token", 64)
    for environment in (os.environ, supervisor_environment(tmp_path, {})):
        assert {name: environment[name] for name in own} == own
        assert environment["RAY_ENABLE_K8S_TOKEN_AUTH"] == "false"
