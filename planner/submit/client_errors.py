"""What goes wrong between Ray's job client and a dashboard, each as one sentence for people."""

import contextlib
import os
from collections.abc import Iterator

import requests
from ray.exceptions import AuthenticationError

from planner.base.text import last_line
from planner.errors import RunError, UserError


@contextlib.contextmanager
def readable_errors(address: str) -> Iterator[None]:
    """What goes wrong between Ray's client and the dashboard, as a sentence."""
    try:
        yield
    except AuthenticationError as error:
        raise UserError(f"{address}: {_why_not_let_in(str(error))}") from error
    except (requests.exceptions.RequestException, ConnectionError) as error:
        reason = f"the connection was lost: {short_text(root_cause(error))}"
        raise RunError(f"{address}: {reason}; see what became of the job: ray job list --address {address}") from error
    except RuntimeError as error:  # another status than 200, and behind it what the server says, often a traceback
        status, _, words = str(error).partition(": ")
        reason = last_line(words.rstrip(". \n"))
        raise RunError(f"{address}: {status}: {reason}") from error


def _why_not_let_in(text: str) -> str:
    if text.startswith("Authentication required"):
        return (
            "the cluster wants a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file that holds it "
            "(ray get-auth-token, on the head)"
        )
    if text.startswith("Authentication failed"):
        return f"the cluster does not take the token {_token_source()}; its own: ray get-auth-token, on the head"
    return text.partition(". ")[0]  # a file that cannot be read; more than advice does not follow


def _token_source() -> str:
    """Where Ray has looked for it, in its order."""
    if "RAY_AUTH_TOKEN" in os.environ:
        return "in RAY_AUTH_TOKEN"
    return f"in {os.environ.get('RAY_AUTH_TOKEN_PATH', '~/.ray/auth_token')}"


def unreachable(address: str, reason: str) -> str:
    """That nothing answers there, why, and what to do."""
    return (
        f"no Ray dashboard at {address}: {reason}; check --address (a dashboard on the head's loopback is reached "
        "through `ray dashboard CLUSTER.yaml`), and that the head has ray[default]"
    )


def root_cause(error: BaseException) -> BaseException:
    """The first error of the chain."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def short_text(error: BaseException) -> str:
    """What the system says of it, or its first line, or its class."""
    return getattr(error, "strerror", None) or first_line(str(error)) or type(error).__name__


def first_line(text: str) -> str:
    """The first line that is not empty; the empty string if there is none."""
    return text.strip().partition("\n")[0]
