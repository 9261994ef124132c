"""Ctrl-C, SIGTERM and a closed terminal.

The first signal stops a run after a commit. The second says so at once and ends the workers at once.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from planner.base.text import duration
from planner.base.wait_reports import WaitReports
from planner.dispatch.live_status import live_status
from planner.dispatch.mailbox import end_reply_key, end_request_key
from planner.dispatch.ray_internal import kv_get, kv_put

# In the wakeup pipe, after the numbers of the signals that were ignored. No signal has this number.
_NO_LONGER_IGNORED = b"\0"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.1
# Ray Train ends its workers within a second or two.
_ABORT_S = 10.0
# It waits for a group that starts just now. Somebody who asked twice does not.
_AT_ONCE_S = 3.0
# Ray Train's handler waits in C++ code, which looks for signals once a second.
_AGAIN_S, _REPEATS = 3.0, 5
# A step and a commit often take less than this.
_SAID_AFTER_S = 30.0
# `timeout` sends SIGTERM twice, and a closed terminal may send SIGHUP twice. Those are one request. Ctrl-C is a person.
_SAME_S = 1.0


class Interrupts:
    """A context manager around Ray Train's `fit`, in the main thread. An interrupt raises `KeyboardInterrupt`.

    A process that was started with SIGINT or SIGHUP ignored (`nohup`, a shell's `&`) still ignores it, although Ray
    Train installs its own handler. SIGTERM always stops the run.
    """

    def __init__(self, launch_id: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._launch_id, self._print, self._clock = launch_id, say, clock
        self._asked_s = float("-inf")
        self._ended, self._sending = threading.Event(), threading.Lock()
        self._is_soft = self._ignores_sigint = self._is_over = False
        self._num_heard = self._num_own = 0
        self._num_asked = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        # Not SIGINT: Ray Train installs its own handler for that one, around which `soften` puts ours.
        for number in _SIGNALS[1:]:
            if self._before[number] != signal.SIG_IGN:
                signal.signal(number, self._raise_sigint)
        if self._before[signal.SIGINT] == signal.SIG_IGN:
            self._ignores_sigint = True
            signal.signal(signal.SIGINT, self._unless_ignored(signal.default_int_handler))
        # Ray starts drivers of submitted jobs with SIGINT blocked.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        heard, self._written = os.pipe()
        # Python refuses a blocking descriptor for this.
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        threading.Thread(target=self._insist, args=(heard,), name="planner-insist", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `_interrupt` sends under this lock, so that no signal of ours reaches the handlers of before.
        with self._sending:
            self._ended.set()
        # First: a signal in between would be written to a closed descriptor, or to another file that has its number by
        # then.
        signal.set_wakeup_fd(-1)
        os.close(self._written)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, SystemExit):  # Ray Train raises it when it has ended its workers
            raise KeyboardInterrupt from error

    def _raise_sigint(self, *_: object) -> None:
        """Stop ignoring SIGINT, and raise it: the threads below end the run through SIGINT."""
        now_s, before_s = self._clock(), self._asked_s
        self._asked_s = now_s
        if now_s - before_s < _SAME_S:
            return
        self._ignores_sigint = False
        # A full pipe has more signals in it than anybody needs.
        with suppress(BlockingIOError):
            os.write(self._written, _NO_LONGER_IGNORED)
        signal.raise_signal(signal.SIGINT)

    def _unless_ignored(self, handler: Callable[..., object]) -> Callable[..., None]:
        """The handler, called only while SIGINT is not ignored."""

        def handle(number: int, frame: Any) -> None:
            if not self._ignores_sigint:
                handler(number, frame)

        return handle

    def soften(self, end_now: Any) -> Callable[..., None]:
        """A SIGINT handler that stops the run after a commit. `end_now` is Ray Train's, which ends workers at once."""
        self._is_soft = True

        def handle(number: int, frame: Any) -> None:
            if self._ended.is_set():
                return
            self._num_asked += 1
            if self._is_over or self._num_asked > 1:
                end_now(number, frame)
            else:
                self._asked_s = self._clock()
                threading.Thread(target=self._stop, name="planner-stop", daemon=True).start()

        return self._unless_ignored(handle)

    def _start_repeating(self, wait_s: float) -> bool:
        """Repeat the signal if Ray Train does not end within `wait_s`. False: that had begun already."""
        begins = not self._is_over
        self._is_over = True
        if begins:
            threading.Thread(target=self._repeat, args=(wait_s,), name="planner-repeat", daemon=True).start()
        return begins

    def _interrupt(self) -> None:
        """Send this process a SIGINT that nobody asked for."""
        with self._sending:
            if not self._ended.is_set():  # otherwise it would reach the handler of before
                self._num_own += 1
                os.kill(os.getpid(), signal.SIGINT)

    def _say(self, text: str) -> None:
        """Print it, if somebody still reads: the terminal may be closed, or the other end of a pipe interrupted too."""
        with suppress(Exception, SystemExit):  # rich raises the second for a broken pipe
            self._print(text)

    def _stop(self) -> None:
        """Let all workers stop at one step and commit, then end them."""
        try:
            kv_put(end_request_key(self._launch_id), "yes")
            wait_text = self._wait_text()
            if not self._is_over:  # a second interrupt was faster
                self._say(
                    f"stopping: {wait_text}. To end the workers at once and keep the last durable step, interrupt once "
                    "more"
                )
            began_s, reports = time.monotonic(), WaitReports(_SAID_AFTER_S)
            # This loop ends: the controller abandons workers that do not commit, and `controller_heartbeat.py` ends a
            # controller that does not answer.
            while not (self._is_over or self._ended.is_set() or kv_get(end_reply_key(self._launch_id))):
                waited_s = time.monotonic() - began_s
                if reports.due(waited_s):
                    self._say(self._still_text(waited_s))
                time.sleep(_POLL_S)
        finally:
            if not self._ended.is_set() and self._start_repeating(_ABORT_S):
                self._interrupt()

    def _still_text(self, waited_s: float) -> str:
        """What the stop waits for after `waited_s` seconds, and what the next interrupt does."""
        return (
            f"still stopping after {duration(waited_s)}: {self._wait_text()}. Interrupt once more to end the workers "
            "at once: the run then resumes from the last durable step"
        )

    def _wait_text(self) -> str:
        """What the stop waits for, with the usual time if the controller has published it."""
        status = live_status(self._launch_id)
        return (status and status.stop) or "all workers finish their step, then it becomes durable"

    def _insist(self, heard: int) -> None:
        """Answer a second interrupt, and repeat an early SIGINT if Ray Train does not end in time.

        This thread reads the signals from the wakeup file descriptor until its writing end is closed. Python calls its
        handlers later, when Ray's C++ code returns, and only once for two signals that came before that.
        """
        ignores = self._ignores_sigint
        while numbers := os.read(heard, 1):
            ignores = ignores and numbers != _NO_LONGER_IGNORED
            if numbers[0] != signal.SIGINT or ignores:
                continue
            if self._num_own:
                self._num_own -= 1
            elif self._is_soft:
                self._hear()
            else:
                self._repeat(_ABORT_S)
        os.close(heard)

    def _hear(self) -> None:
        """Count an interrupt that reached the soft handler, and answer it from the second on."""
        self._num_heard += 1
        if self._num_heard == 1 or self._ended.is_set():
            return
        if self._is_over:
            self._say("the workers are being ended already")
            return
        self._start_repeating(_AT_ONCE_S)
        self._interrupt()  # the handler may have been called once for both
        self._say("ending the workers at once. The run resumes from the last durable step")

    def _repeat(self, wait_s: float) -> None:
        """Send more SIGINTs, one after another, if Ray Train has not ended in time.

        A controller without workers never handles the abort, and Ray Train gives up at the third SIGINT. Two at once
        would count as one: Linux queues no second signal of a kind.
        """
        for _ in range(_REPEATS):
            if self._ended.wait(wait_s):
                return
            self._interrupt()
            wait_s = _AGAIN_S
