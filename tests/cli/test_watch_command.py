"""`planner watch` on a terminal of its own: what is on it, how it ends, and that nothing of it is left."""

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios

import pytest
from events import wait_for

pytestmark = pytest.mark.process

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]")
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?[34][0-9][;m]")


class Terminal:
    """Python on a pseudo-terminal, and what it has written there."""

    def __init__(self, *arguments, columns=80, rows=24, **environment):
        self.output = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for stream in range(3):
                os.dup2(slave, stream)
            outer = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
            command = [sys.executable, *map(str, arguments)]
            os.execve(sys.executable, command, {**outer, "TERM": "xterm-256color", **environment})

    def read_until(self, text, *, after=0):
        """Read until the text was written behind position `after`. Returns the position behind it."""

        def has_come():
            self._read()
            return self.output.find(text, after) >= 0

        wait_for(has_come, lambda: self.output[-2000:])
        return self.output.find(text, after) + len(text)

    def _read(self):
        while select.select([self._master], [], [], 0)[0]:
            self.output += os.read(self._master, 2**16)

    def type(self, keys):
        os.write(self._master, keys)

    def end(self):
        """Wait for the process, and return its exit code, or minus the signal that ended it."""

        def status_at_its_end():
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (status,) if pid else None

        (status,) = wait_for(status_at_its_end, lambda: self.output[-2000:])
        self.pid = 0
        self._read()
        return os.waitstatus_to_exitcode(status)

    @property
    def settings(self):
        return termios.tcgetattr(self.slave)

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)
        os.close(self.slave)


@pytest.fixture
def watch():
    """Starts `planner watch` on a terminal."""
    opened = []

    def start(*arguments, **options):
        opened.append(Terminal("-m", "planner.cli", "watch", *arguments, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def no_trace(terminal):
    """Whether the first screen is as before: nothing was printed before the second screen, or after it."""
    before, after = terminal.output.split(ENTER, 1)[0], terminal.output.rsplit(LEAVE, 1)[1]
    return not CONTROL.sub(b"", before + after)


@pytest.mark.parametrize(
    ("how", "code"),
    [(b"q", 0), (b"Q", 0), (b"\x03", 130), (signal.SIGTERM, -signal.SIGTERM)],
    ids=["q", "Q", "^C", "term"],
)
def test_it_ends_and_leaves_no_trace(watch, recorded, how, code):
    """By a key or by a signal: the screen, the terminal's settings and the run's folder are as before."""
    files = sorted(recorded.run.rglob("*"))
    terminal = watch(recorded.run)
    terminal.read_until(b"finished")
    assert terminal.settings != terminal.before
    terminal.type(how) if isinstance(how, bytes) else os.kill(terminal.pid, how)
    assert terminal.end() == code
    assert no_trace(terminal)
    assert terminal.settings == terminal.before
    assert sorted(recorded.run.rglob("*")) == files


def test_it_gives_the_terminal_back_while_it_is_suspended(watch, recorded):
    """Ctrl-Z restores it; the board comes back when the process continues."""
    terminal = watch(recorded.run)
    at = terminal.read_until(b"finished")
    terminal.type(b"\x1a")
    # A process without a parent in its session cannot stay stopped, so it continues at once.
    at = terminal.read_until(LEAVE, after=at)
    at = terminal.read_until(ENTER, after=at)
    terminal.read_until(b"finished", after=at)
    terminal.type(b"q")
    assert terminal.end() == 0
    assert terminal.settings == terminal.before


def test_it_follows_the_size_of_the_terminal(watch, recorded):
    """A larger one has room for the curve."""
    terminal = watch(recorded.run, columns=60, rows=12)
    at = terminal.read_until(b"finished")
    fcntl.ioctl(terminal.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 160, 0, 0))
    terminal.read_until(b"step 1  ", after=at)
    terminal.type(b"q")
    assert terminal.end() == 0


def test_colours_can_be_off(watch, recorded):
    """NO_COLOR (https://no-color.org)."""
    found = {}
    for name, environment in {"with": {}, "without": {"NO_COLOR": "1"}}.items():
        terminal = watch(recorded.run, **environment)
        terminal.read_until(b"finished")
        terminal.type(b"q")
        assert terminal.end() == 0
        found[name] = bool(COLOUR.search(terminal.output))
    assert found == {"with": True, "without": False}


def test_an_empty_folder_is_waited_for(watch, recorded, tmp_path):
    """Until a driver begins the run there."""
    run = tmp_path / "run"
    run.mkdir()
    terminal = watch(run)
    at = terminal.read_until(b"not started")
    shutil.copytree(recorded.run, run, dirs_exist_ok=True)
    terminal.read_until(b"finished", after=at)
    terminal.type(b"q")
    assert terminal.end() == 0


def test_without_a_terminal_it_prints_one_board(cli, recorded):
    """In a pipe: once, without colours and without blank lines at its end."""
    answer = cli("watch", recorded.run)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].rstrip().endswith("finished")
    assert "\x1b" not in answer.out
    assert any("step 4: held-out loss" in line for line in lines)
    assert lines[-1]


@pytest.mark.parametrize("where", ["missing", "other", ""])
def test_a_folder_without_a_run_is_refused(cli, tmp_path, where):
    """A path that is wrong, a folder with something else, or nothing at all."""
    (tmp_path / "other" / "run").mkdir(parents=True)
    answer = cli("watch", where)
    assert answer.code in {1, 2}
    assert answer.out == ""
    assert ("no run here" if where else "RUN is empty") in answer.err


FAILS = """
from planner.cli.live_board import LiveBoard
from planner.cli.options import console

class Watcher:
    def look(self):
        raise KeyError("looked")

LiveBoard(console(), Watcher(), is_remote=False, ascii_only=False).run()
"""


def test_an_error_gives_the_terminal_back():
    """Whatever looking at the run raises reaches the caller, after the board was closed."""
    terminal = Terminal("-c", FAILS)
    try:
        terminal.read_until(b"KeyError: 'looked'", after=terminal.read_until(LEAVE))
        assert terminal.end() == 1
        assert terminal.settings == terminal.before
    finally:
        terminal.close()
