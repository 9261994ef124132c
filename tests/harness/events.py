"""Waiting for events that must come. No test has a limit of its own."""

import re
import subprocess
import time

EVENT_S = 300.0
"""For an event that must come, in seconds. Five minutes, since no shorter limit tells a hang from a machine that is
busy with other things. A test that passes does not wait so long: it ends with the event. pytest's own limit
(pyproject.toml) is longer, so that the message says what did not come."""

_LOOK_S = 0.02
# "connecting to ... (3 s so far)": planner.cli.activity
_WORK = re.compile(r"^(?!warning)[a-z]+ing .*\n", re.MULTILINE)


def wait_for(event, missing=lambda: "it never came to this"):
    """Wait until `event()` is true, and return what it returned. `missing()` says what is there instead."""
    until_s = time.monotonic() + EVENT_S
    while not (found := event()):
        assert time.monotonic() < until_s, missing()
        time.sleep(_LOOK_S)
    return found


def ended(process):
    """Wait until a `subprocess.Popen` has ended. Returns its exit code, standard output and standard error.

    Standard error is without the lines about work that takes more than three seconds. On a slow machine most does.
    """
    try:
        out, err = process.communicate(timeout=EVENT_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"{process.args} has not ended. It printed:\n{out}{err}") from error
    return process.returncode, out, _WORK.sub("", err) if err else err
