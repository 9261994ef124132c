"""The file with a cluster's token. Every user who can read it can use the cluster."""

import stat
from collections.abc import Mapping

from planner.base.disk import expanded

_DEFAULT = "~/.ray/auth_token"
_OF_OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def token_warning(environment: Mapping[str, str]) -> str:
    """A warning if other users can read or write the file that Ray reads the token from. Empty otherwise.

    `ray get-auth-token --generate` creates it with the shell's umask, so usually every user can read it.
    """
    # Ray looks at the variable, then the path, then the default. Without a mode it uses any token that it finds.
    if environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    file = expanded(environment.get("RAY_AUTH_TOKEN_PATH") or _DEFAULT)
    try:
        found = file.stat().st_mode
    except OSError:
        return ""  # Ray reports a missing file
    if not stat.S_ISREG(found) or not found & _OF_OTHERS:
        return ""
    mode = f"{stat.S_IMODE(found):04o}"
    return (
        f"{file}: other users of this machine can use this token (mode {mode}) and run any code on the cluster. "
        f"Run: chmod 600 {file}"
    )
