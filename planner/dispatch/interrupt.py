"""Ctrl-C, SIGTERM and a closed terminal. The first signal stops a run after a commit, the second at once."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from planner.base.text import duration
from planner.base.wait_reports import WaitReports
from planner.dispatch.mailbox import end_reply_key, end_request_key, state_key
from planner.dispatch.ray_internal import kv_get, kv_put

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.1
# Ray Train ends its workers within a second or two.
_ABORT_S = 10.0
# A step and a commit often take less than this.
_SAID_AFTER_S = 30.0


class Interrupts:
    """A context manager around Ray Train's `fit`, in the main thread. An interrupt raises `KeyboardInterrupt`.

    A process that was started with SIGINT or SIGHUP ignored (`nohup`, a shell's `&`) still ignores it, although Ray
    Train installs its own handler. SIGTERM always stops the run.
    """

    def __init__(self, launch_id: str, say: Callable[[str], None]) -> None:
        self._launch_id, self._say = launch_id, say
        self._ended = threading.Event()
        self._is_soft = self._is_asked = self._ignores_sigint = False

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS[1:]:
            if self._before[number] != signal.SIG_IGN:
                signal.signal(number, self._raise_sigint)
        if self._before[signal.SIGINT] == signal.SIG_IGN:
            self._ignores_sigint = True
            signal.signal(signal.SIGINT, self._unless_ignored(signal.default_int_handler))
        # Ray starts drivers of submitted jobs with SIGINT blocked.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        heard, self._written = os.pipe()
        os.set_blocking(self._written, False)
        signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)
        threading.Thread(target=self._insist, args=(heard,), name="planner-insist", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        signal.set_wakeup_fd(-1)
        os.close(self._written)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, SystemExit):  # Ray Train raises it when it has ended its workers
            raise KeyboardInterrupt from error

    def _raise_sigint(self, *_: object) -> None:
        """Stop ignoring SIGINT, and raise it: the threads below end the run through SIGINT."""
        self._ignores_sigint = False
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
            if self._is_asked:
                end_now(number, frame)
                return
            self._is_asked = True
            threading.Thread(target=self._stop, name="planner-stop", daemon=True).start()

        return self._unless_ignored(handle)

    def _stop(self) -> None:
        """Let all workers stop at one step and commit, then end them."""
        self._say("stopping: all workers finish their step and commit. Interrupt again to end them at once")
        try:
            kv_put(end_request_key(self._launch_id), "yes")
            began_s, reports = time.monotonic(), WaitReports(_SAID_AFTER_S)
            # This loop ends: the controller abandons workers that do not commit, and `controller_heartbeat.py` ends a
            # controller that does not answer.
            while not (self._ended.is_set() or kv_get(end_reply_key(self._launch_id))):
                waited_s = time.monotonic() - began_s
                if reports.due(waited_s):
                    state = kv_get(state_key(self._launch_id))
                    self._say(
                        f"still stopping after {duration(waited_s)}{state and f': {state}'}. "
                        "Interrupt again to end the workers at once and keep the last commit"
                    )
                time.sleep(_POLL_S)
        finally:
            if not self._ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    def _insist(self, heard: int) -> None:
        """Repeat SIGINT if Ray Train does not end in time.

        A controller without workers never handles the abort, and Ray Train gives up at the third SIGINT. This thread
        reads the signals from the wakeup file descriptor until its writing end is closed.
        """
        num_heard = 0
        while numbers := os.read(heard, 1):
            if numbers[0] != signal.SIGINT or self._ignores_sigint:
                continue
            num_heard += 1
            if self._is_soft and num_heard == 1:
                continue
            if not self._ended.wait(_ABORT_S):
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGINT)
        os.close(heard)
