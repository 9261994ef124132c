"""Waits of tests: they end with the event, and say what is missing if it does not come."""

import subprocess
import sys

import events
import pytest
from events import ended, wait_for


def test_a_wait_returns_what_came():
    """The first value that is true."""
    values = iter([0, "", None, "here", "later"])
    assert wait_for(lambda: next(values)) == "here"


def test_what_does_not_come_is_named(monkeypatch):
    """With what is there instead."""
    monkeypatch.setattr(events, "EVENT_S", 0.0)
    with pytest.raises(AssertionError, match="2 of 3 nodes"):
        wait_for(lambda: False, lambda: "2 of 3 nodes")


@pytest.mark.process
def test_a_process_that_does_not_end_is_killed_and_its_output_shown(monkeypatch):
    """The output of one that ends is returned with its code."""
    command = [sys.executable, "-c", "print('one'); import sys; sys.exit(3)"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    assert ended(subprocess.Popen(command, **pipes)) == (3, "one\n", "")
    monkeypatch.setattr(events, "EVENT_S", 0.01)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10**6)"], **pipes)
    with pytest.raises(AssertionError, match="has not ended"):
        ended(process)
    assert process.returncode == -9
