"""Handles signals that end the work of this process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """A context in which SIGTERM raises KeyboardInterrupt like Ctrl-C, also where SIGINT is ignored (`nohup`)."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
