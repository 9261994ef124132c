"""Shows a board on the terminal's second screen until q is pressed, and then restores the first one."""

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from planner.cli.run_watcher import RunWatcher
from planner.report.board import Line, board
from planner.report.watched_run import Seen, Style

_POLL_S, _POLL_REMOTE_S = 0.5, 3.0
_KEY_S = 0.2
# A store that has not answered for this long is named on the board.
_SLOW_S = 10.0
_FOOTER = "q ends this view, not the run"
_FOOTER_WITHOUT_KEYS = "Ctrl-C ends this view, not the run"
_INTERRUPTED = 130

# Words are on a background of their own, so that they are readable on dark and on light terminals.
STYLES: dict[Style, str] = {
    "": "",
    "bold": "bold",
    "dim": "dim",
    "good": "bold black on green",
    "change": "bold black on yellow",
    "wait": "bold black on cyan",
    "bad": "bold white on red",
}


def as_text(line: Line) -> Text:
    """A line of a board for rich."""
    return Text.assemble(*((text, STYLES[style]) for text, style in line), no_wrap=True, overflow="crop")


class LiveBoard:
    """Draws the board, and reads keys. A thread looks at the run, so that a store that hangs does not stop q."""

    def __init__(self, console: Console, watcher: RunWatcher, *, is_remote: bool, ascii_only: bool) -> None:
        self._console, self._watcher, self._ascii_only = console, watcher, ascii_only
        self._poll_s = _POLL_REMOTE_S if is_remote else _POLL_S
        self._seen: Seen | None = None
        self._looking_since_s: float | None = None
        self._failure: BaseException | None = None
        self._signal = 0
        self._is_over = threading.Event()
        self._has_keys = sys.stdin is not None and sys.stdin.isatty()

    def run(self) -> int:
        """Show the board until q, Ctrl-C or SIGTERM. Returns the exit code. SIGTERM ends this process.

        Raises:
            BaseException: whatever looking at the run raised. The terminal is already restored.
        """
        threading.Thread(target=self._look, name="planner-look", daemon=True).start()
        with self._heard_signals():
            try:
                while self._show():
                    self._suspend()
            finally:
                self._is_over.set()
        if self._signal == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)
        return _INTERRUPTED if self._signal == signal.SIGINT else 0

    def _look(self) -> None:
        try:
            while not self._is_over.is_set():
                self._looking_since_s = time.monotonic()
                self._seen = self._watcher.look()
                self._looking_since_s = None
                self._is_over.wait(self._poll_s)
        except BaseException as error:  # noqa: BLE001  # the outer edge of a thread: `_show` raises it again
            self._failure = error

    def _show(self) -> bool:
        """Show the board. True if the terminal asks to suspend this process (Ctrl-Z)."""
        self._signal = 0
        with self._keys(), Live(console=self._console, screen=True, auto_refresh=False) as live:
            while not self._signal:
                if self._failure is not None:
                    raise self._failure
                live.update(self._drawn(), refresh=True)
                if self._is_q_pressed():
                    return False
        return self._signal == signal.SIGTSTP

    def _drawn(self) -> Group:
        width, height = self._console.size
        footer = _FOOTER if self._has_keys else _FOOTER_WITHOUT_KEYS
        waited_s = time.monotonic() - since_s if (since_s := self._looking_since_s) is not None else 0.0
        if waited_s > _SLOW_S:
            footer = f"the run's folder has not answered for {waited_s:.0f} s. {footer}"
        if self._seen is None:
            return Group(Text("looking at the run"))
        lines = board(self._seen, width, height, time.time(), footer=footer, ascii_only=self._ascii_only)
        return Group(*map(as_text, lines))

    # -- the terminal

    @contextmanager
    def _keys(self) -> Iterator[None]:
        """Read keys one by one and without echo. The terminal's settings are restored afterwards."""
        if not self._has_keys:
            yield
            return
        before = termios.tcgetattr(sys.stdin)
        try:
            tty.setcbreak(sys.stdin)
            yield
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

    def _is_q_pressed(self) -> bool:
        """Whether q was pressed within the next moment, or the terminal is gone."""
        if not self._has_keys:
            time.sleep(_KEY_S)
            return False
        if not select.select([sys.stdin], [], [], _KEY_S)[0]:
            return False
        keys = os.read(sys.stdin.fileno(), 64)
        return not keys or b"q" in keys.lower()

    @contextmanager
    def _heard_signals(self) -> Iterator[None]:
        """Let signals end the loop, so that the terminal is restored in one place."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP)}
        for number in before:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def _suspend(self) -> None:
        """Stop this process until the user continues it. The terminal is already restored."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._hear)
