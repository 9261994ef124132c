"""Signals that end the work of this process."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends workers and removes what is half done, as Ctrl-C does; also where SIGINT is ignored (`nohup`)."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
