"""Explains why Ray refused a connection: one line that says what to do."""

import re

_HOW = "Put the cluster's token into RAY_AUTH_TOKEN or ~/.ray/auth_token on this machine"
# Patterns of `_SENTENCES` that mean that no Ray cluster answered.
_NONE_HERE = "Could not find any running Ray instance"
_NO_HEAD = r"Failed to connect to (?:GCS|Ray cluster)"
_UNANSWERED = (_NONE_HERE, _NO_HEAD)
# Pattern in Ray's error or in its causes -> what planner says. The first match wins, and its groups fill the text.
_SENTENCES = {
    r"Version mismatch:.+?Ray: (\S+)\s+Python: (\S+).+?Ray: (\S+)\s+Python: (\S+)": (
        "the cluster has Ray {0} on Python {1}, but this machine has Ray {2} on Python {3}. Use the same versions"
    ),
    r"no authentication token was found": (
        "Ray requires a token (RAY_AUTH_MODE=token, or no RAY_AUTH_MODE from Ray 2.61 on), but no token was found. "
        f"{_HOW}"
    ),
    r"InvalidAuthToken|(?i:authentication token is (?:missing|invalid)|invalid or missing authentication token)": (
        f"the cluster rejected the token, or received none. {_HOW}, with RAY_AUTH_MODE=token"
    ),
    r"couldn't find an authentication token|file cannot be opened or is empty": (
        f"RAY_AUTH_MODE is token, but no token can be read. {_HOW}, or its file's path into RAY_AUTH_TOKEN_PATH"
    ),
    r"No node info found matching attributes|Failed to get node info for possible node ids": (
        "this machine is not one of the cluster's nodes. Start from one of them"
    ),
    r"It looks like you set RAY_ADDRESS to an HTTP address": (
        "this is the dashboard's address. Give the head's address instead, host:6379 by default"
    ),
    _NONE_HERE: "none runs on this machine. Give the head's address, host:port",
    r"Found multiple active Ray instances: ({.*?})": "several run on this machine. Give the address of one: {0}",
    r"Malformed|[Ii]nvalid (?:Ray )?address|Port is not specified|Unable to parse port": (
        "this is not an address. Write host:port (Ray's default port is 6379)"
    ),
    _NO_HEAD: (
        "the process that listens there does not answer as a Ray head. Give the head's own port, 6379 by default"
    ),
}

# What Ray says when a cluster answers, or when the address is wrong: another try would give the same.
_ANSWERED = re.compile("|".join(pattern for pattern in _SENTENCES if pattern not in _UNANSWERED), re.DOTALL)


def is_unanswered(error: BaseException) -> bool:
    """Whether no Ray cluster answered, so that another try may succeed. False if one refused, or for no address."""
    return _ANSWERED.search("\n".join(_chain(error))) is None


def refusal(error: BaseException) -> str:
    """Why Ray did not connect and what to do, with the first sentence of Ray's own error."""
    said = "\n".join(_chain(error))
    line = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    first = line.partition(". ")[0]
    for pattern, sentence in _SENTENCES.items():
        if match := re.search(pattern, said, re.DOTALL):
            return f"{sentence.format(*match.groups())} (Ray: {first.rstrip('.:')})"
    return f"{line.rstrip('.')}. Check --address, or omit it"


def _chain(error: BaseException | None) -> list[str]:
    """The text of the error and of its causes, outermost first."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return texts
