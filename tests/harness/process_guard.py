"""A plugin of pytest: a test that starts processes fails unless it says so by its marker `process`.

Only tests with this marker are run once more if they fail, so it must be true.
"""

import sys

import pytest

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
# The test that runs now in this process, if it may start none.
_unmarked = []


def _look(event, _arguments):
    if _unmarked and event in _STARTS:
        test = _unmarked.pop()  # once, so that what tidies up may go on
        pytest.fail(f"{test} starts a process ({event}): mark it by @pytest.mark.process", pytrace=False)


sys.addaudithook(_look)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Watch this test."""
    if item.get_closest_marker("process") is None:
        _unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked.clear()
