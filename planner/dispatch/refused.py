"""What Ray says when it does not let us in -> one line that names the way out."""

import re

_HOW = "the cluster's token belongs into RAY_AUTH_TOKEN or ~/.ray/auth_token here"
# The first that is found in the error, or in what caused it, is said; its groups fill the sentence.
_SENTENCES = {
    r"Version mismatch:.+?Ray: (\S+)\s+Python: (\S+).+?Ray: (\S+)\s+Python: (\S+)": (
        "the cluster has Ray {0} on Python {1}, and here is Ray {2} on Python {3}; use the same on both sides"
    ),
    r"no authentication token was found": (
        "Ray wants a token here (RAY_AUTH_MODE=token, or no RAY_AUTH_MODE from Ray 2.61 on), and no token was found; "
        f"{_HOW}"
    ),
    r"InvalidAuthToken|(?i:authentication token is (?:missing|invalid)|invalid or missing authentication token)": (
        f"it does not take the token that came, or none came; {_HOW}, with RAY_AUTH_MODE=token"
    ),
    r"couldn't find an authentication token|file cannot be opened or is empty": (
        f"RAY_AUTH_MODE is token, and no token can be read; {_HOW}, or its file's path into RAY_AUTH_TOKEN_PATH"
    ),
    r"No node info found matching attributes|Failed to get node info for possible node ids": (
        "this machine is not one of its nodes; start from one that is"
    ),
    r"It looks like you set RAY_ADDRESS to an HTTP address": (
        "that is the address of its dashboard; write its head's, host:6379 by default"
    ),
    r"Could not find any running Ray instance": "none runs on this machine; write the head's address, host:port",
    r"Found multiple active Ray instances: ({.*?})": "several run on this machine; write the address of one: {0}",
    r"Malformed|[Ii]nvalid (?:Ray )?address|Port is not specified|Unable to parse port": (
        "that is no address; write host:port, the port being 6379 by default"
    ),
    r"Failed to connect to (?:GCS|Ray cluster)": (
        "what listens there does not answer as a Ray head does; write the head's own port, 6379 by default"
    ),
}


def refusal(error: BaseException) -> str:
    """Why Ray did not connect, the way out, and the first sentence that Ray itself said."""
    said = "\n".join(_chain(error))
    line = next((line.strip() for line in said.splitlines() if line.strip()), type(error).__name__)
    first = line.partition(". ")[0]
    for pattern, sentence in _SENTENCES.items():
        if match := re.search(pattern, said, re.DOTALL):
            return f"{sentence.format(*match.groups())} (Ray: {first.rstrip('.:')})"
    return f"{line}; check --address, or leave it out"


def _chain(error: BaseException | None) -> list[str]:
    """What the error says, and what those say that it was raised from."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__
    return texts
