"""Turns the errors between Ray's job client and a dashboard into short messages."""

import contextlib
import os
from collections.abc import Iterator

import requests
from ray.exceptions import AuthenticationError

from planner.base.text import last_line
from planner.errors import RunError, UserError


@contextlib.contextmanager
def readable_errors(address: str) -> Iterator[None]:
    """Turn errors of Ray's client and of the dashboard into `PlannerError`s.

    Raises:
        UserError: the dashboard refused the token.
        RunError: the connection was lost, or the dashboard reported an error.
    """
    try:
        yield
    except AuthenticationError as error:
        raise UserError(f"{address}: {_token_problem(str(error))}") from error
    except (requests.exceptions.RequestException, ConnectionError) as error:
        reason = f"the connection was lost: {short_text(root_cause(error))}"
        raise RunError(f"{address}: {reason}. To see the job's status: ray job list --address {address}") from error
    except RuntimeError as error:  # an HTTP status other than 200, then the server's text, often a traceback
        status, _, text = str(error).partition(": ")
        reason = last_line(text.rstrip(". \n"))
        raise RunError(f"{address}: {status}: {reason}") from error


def _token_problem(text: str) -> str:
    """Why the token was refused and what to do, from the text of Ray's error."""
    if text.startswith("Authentication required"):
        return (
            "the cluster requires a token. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with the token "
            "(run ray get-auth-token on the head)"
        )
    if text.startswith("Authentication failed"):
        return f"the cluster rejected the token {_token_source()}. Run ray get-auth-token on the head to see its own"
    return text.partition(". ")[0]  # the token file cannot be read. The rest of Ray's text is general advice


def _token_source() -> str:
    """Where Ray found the token: the variable wins over the file."""
    if "RAY_AUTH_TOKEN" in os.environ:
        return "in RAY_AUTH_TOKEN"
    return f"in {os.environ.get('RAY_AUTH_TOKEN_PATH', '~/.ray/auth_token')}"


def unreachable(address: str, reason: str) -> str:
    """The message that no dashboard answers at `address`, why, and what to do."""
    return (
        f"no Ray dashboard at {address}: {reason}. Check --address and that ray[default] is installed on the head "
        "(for a dashboard on the head's loopback, run `ray dashboard CLUSTER.yaml` first)"
    )


def root_cause(error: BaseException) -> BaseException:
    """The innermost error of the chain."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def short_text(error: BaseException) -> str:
    """The system's description of the error, else its first line, else its class name."""
    return getattr(error, "strerror", None) or first_line(str(error)) or type(error).__name__


def first_line(text: str) -> str:
    """The first line that is not empty. Empty if there is none."""
    return text.strip().partition("\n")[0]
