"""A plugin of pytest: `--outcomes FILE` writes which tests passed, which failed, and why, for `run_tests.py`."""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser):
    """The file that `run_tests.py` reads."""
    parser.addoption("--outcomes", type=Path, help="where to write which tests failed, as JSON")
    parser.addoption(
        "--most-failures", type=int, default=0, help="stop after one more. Tests of one fixture count once"
    )


def pytest_configure(config):
    """Only the process that hears of all tests writes."""
    file = config.getoption("--outcomes")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(file, config))


class Outcomes:
    """Tests that passed, tests that failed with the reason, files not collected, and tests that ended pytest."""

    def __init__(self, file, config):
        self._file, self._config = file, config
        self._failed, self._passed, self._causes = {}, set(), set()
        self._uncollected, self._crashed = [], set()

    def pytest_runtest_logreport(self, report):
        """A test may fail twice: in itself and when its fixtures are put away. The first reason counts."""
        if report.failed:
            self._failed.setdefault(report.nodeid, _exception_line(report))
            self._causes.add(_cause(report))
            self._stop_after_too_many()
        elif report.passed and report.when == "call":
            self._passed.add(report.nodeid)

    def _stop_after_too_many(self):
        if 0 < self._config.getoption("--most-failures") < len(self._causes):
            plugins = self._config.pluginmanager
            runner = plugins.getplugin("dsession") or plugins.getplugin("session")
            runner.shouldstop = f"{len(self._causes)} failures"

    def pytest_collectreport(self, report):
        """Errors of a module's own lines, and two files of one name."""
        if report.failed:
            self._uncollected.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)  # of xdist
    def pytest_handlecrashitem(self, crashitem):
        """A crash takes the fixtures of other tests along. The scheduler may give the test to a second process."""
        self._crashed.add(crashitem)

    def pytest_sessionfinish(self):
        """Without this file, pytest itself crashed."""
        found = {
            "passed": sorted(self._passed - set(self._failed)),
            "failed": self._failed,
            "num_causes": len(self._causes),
            "uncollected": self._uncollected,
            "crashed": sorted(self._crashed),
        }
        self._file.write_text(json.dumps(found))


def _cause(report):
    """What makes a failure one of its own: the test, or the fixture that fails for all of its tests."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.nodeid if report.when == "call" or crash is None else (crash.path, crash.lineno, crash.message)


def _exception_line(report):
    """A traceback's last line. An exception of many lines says first what it is, such as the two sides of an `==`."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason"
    return lines[0] if crash is not None else lines[-1]
