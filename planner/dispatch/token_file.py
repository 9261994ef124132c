"""The file with a cluster's token. Every user who can read it can do what its owner can."""

import stat
from collections.abc import Mapping

from planner.base.disk import expanded

_DEFAULT = "~/.ray/auth_token"
_OF_OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def token_warning(environment: Mapping[str, str]) -> str:
    """One sentence if others may read or write the file that Ray takes the token from; else nothing.

    `ray get-auth-token --generate` makes it with the shell's umask, so usually for everybody to read.
    """
    # In Ray's order: the variable itself, the path, the default; without a mode it uses a token that it finds.
    if environment.get("RAY_AUTH_TOKEN") or environment.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    file = expanded(environment.get("RAY_AUTH_TOKEN_PATH") or _DEFAULT)
    try:
        found = file.stat().st_mode
    except OSError:
        return ""  # that there is none is Ray's to say
    if not stat.S_ISREG(found) or not found & _OF_OTHERS:
        return ""
    mode = f"{stat.S_IMODE(found):04o}"
    return (
        f"{file}: other users of this machine may use this token (mode {mode}), and with it run what they like on the "
        f"cluster; chmod 600 {file}"
    )
