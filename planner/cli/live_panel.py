"""Shows a run on the terminal while the main thread runs it. It follows the ledger, not Ray."""

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from planner.base.wait_reports import SILENCE_S, WaitReports
from planner.errors import StoreError
from planner.report.run_view import durable_text, metric_texts, news_text, plan_text, speed_texts, step_line
from planner.store.follow import Follower
from planner.store.records import Record
from planner.store.run_folder import RunFolder
from planner.story.run_story import RunStory, StoryFold

_POLL_S = 0.25
# Without a terminal, a step line is printed this often.
_PLAIN_INTERVAL_S = 5.0
# The cluster is asked this often which step is held.
_ASK_S = 1.0
# A longer pause between steps is explained.
_QUIET_S = 2.0
# Without a step for this long, a line says that the run is still alive. In a start and in a pause, it comes sooner.
_SILENCE_S = 15.0
# A look takes milliseconds. A disk that hangs must not delay the end of a run for longer.
_LAST_LOOK_S = 10.0
_SLOW_DISK_S = 30.0
_STARTING = "workers are starting (about half a minute on a busy machine)"


class LivePanel:
    """A context manager: a live panel on a terminal, plain lines elsewhere."""

    def __init__(self, run: RunFolder, console: Console, begin: StoryFold) -> None:
        self.react: Callable[[RunStory], None] = lambda _story: None
        """called after every look"""
        self.state: Callable[[], str] = lambda: ""
        """returns what happens while no step is done, or empty if not known"""
        self.why: Callable[[], str] = lambda: ""
        """returns the same with the time that is left now, or empty if not known"""
        self.held_step: Callable[[], int] = lambda: 0
        """returns the newest step that is held, or 0 if not known"""
        self._asked_s = float("-inf")
        self._said_state = ""
        self._has_stepped = False
        self._stepped_s = time.monotonic()
        self._reminders = WaitReports(SILENCE_S)
        self._follower = Follower(run, from_now=True)
        self._console = console
        self._fold, self._story = begin, begin.story
        self._held, self._event = 0, "waiting for workers"
        self._began_s = self._printed_s = self._said_s = time.monotonic()
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)
        self._is_terminal = console.file.isatty() and console.is_interactive
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="planner-watch", daemon=True)
        self._looking_since_s: float | None = None
        self._folder = run.storage.url

    @property
    def durable(self) -> str:
        """What is durable and what is held, as text."""
        return durable_text(self._story, self._held)

    def say(self, line: str) -> None:
        """Print a line above the panel."""
        # A terminal's panel needs whole lines above it. Elsewhere, a line is never broken.
        self._said_s = time.monotonic()
        elapsed_s = self._said_s - self._began_s
        self._console.print(f"{elapsed_s:5.0f} s  {line}", soft_wrap=not self._is_terminal)

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._live.start()
        self._thread.start()
        threading.Thread(target=self._watch_the_disk, name="planner-watch-disk", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_LAST_LOOK_S)
        if self._thread.is_alive():
            self.say(
                f"the run's folder has not answered for {_LAST_LOOK_S:.0f} s: its state may be newer than shown here"
            )
        else:
            self._look()
        if self._is_terminal:
            self._live.stop()
        if self._story.step:
            self.say(step_line(self._story, self._held))

    def _loop(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._look()
            self.react(self._story)

    def _watch_the_disk(self) -> None:
        """Warn if a look into the run's folder hangs. The thread that looks cannot say so itself."""
        reports = WaitReports(_SLOW_DISK_S)
        while not self._stop.wait(1.0):
            since_s = self._looking_since_s
            waited_s = time.monotonic() - since_s if since_s is not None else 0.0
            if waited_s < 1.0:
                reports.reset()
            elif reports.due(waited_s):
                self.say(f"{self._folder} has not answered for {waited_s:.0f} s: check that disk or mount")

    def _look(self) -> None:
        self._held = self._held_step()  # asked first: the ledger then has that step too
        self._looking_since_s = time.monotonic()
        try:
            records = self._follower.new_records()
        except StoreError:
            return  # a store that is away for a moment only makes the view old
        finally:
            self._looking_since_s = None
        before = self._story
        self._tell(records)
        if self._story.generation != before.generation:
            self._held = 0  # what was held before may be lost
        now_s = time.monotonic()
        if self._story.step != before.step:
            self._stepped_s, self._said_state, self._has_stepped = now_s, "", True
            self._reminders = WaitReports(_SILENCE_S)
        elif now_s - self._stepped_s > _QUIET_S:
            self._say_state()
        if not self._is_terminal and self._is_line_due(now_s):
            moved = self._story.step > before.step
            if moved or self._reminders.due(self._silence_s):
                self._printed_s = now_s
                self.say(step_line(self._story, self._held) if moved else self._silence())

    def _tell(self, records: Iterable[Record]) -> None:
        told = [news for news in map(self._fold.add, records) if news]
        self._story = self._fold.story
        for news in told:
            self._event = news_text(news)
            if news.is_listed:
                self.say(self._event)

    def _held_step(self) -> int:
        """The newest step that is held, asked again each second and whenever a line may be printed."""
        now_s = time.monotonic()
        if now_s - self._asked_s <= _ASK_S and (self._is_terminal or not self._is_line_due(now_s)):
            return self._held
        self._asked_s = now_s
        return self.held_step()

    def _is_line_due(self, now_s: float) -> bool:
        """Whether the last line is old enough for one without news. In a start and in a pause, any line counts."""
        if self._has_stepped and not self._said_state:
            return now_s - self._printed_s > _PLAIN_INTERVAL_S
        return now_s - self._said_s >= SILENCE_S

    @property
    def _silence_s(self) -> float:
        return time.monotonic() - self._stepped_s

    def _silence(self) -> str:
        state = self.why() or self.state() or ("" if self._has_stepped else _STARTING)
        return f"no step for {self._silence_s:.0f} s{state and f': {state}'}"

    def _say_state(self) -> None:
        """Show a new state at once, because the ledger gets the reason for a pause only after it."""
        state = self.state()
        if state and state != self._said_state:
            self._said_state = state
            self._reminders = WaitReports(self._silence_s + SILENCE_S)
            self.say(state)

    def _panel(self) -> Table:
        story = self._story
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        loss = "-" if story.loss is None else f"{story.loss:.4f}"
        held_out = f"   held out {story.last_eval.loss:.4f}" if story.last_eval else ""
        table.add_row("step", f"{story.step} / {story.total_steps or '?'}   ({self.durable})")
        table.add_row("loss", "  ".join([loss, *metric_texts(story.metrics)]) + held_out)
        table.add_row("workers", f"{story.world_size}   {plan_text(story.plan)}")
        table.add_row("speed", "   ".join(speed_texts(story)) or "-")
        quiet = f"   no step for {self._silence_s:.0f} s" if self._silence_s > _SILENCE_S else ""
        table.add_row("last", f"{self._said_state or self._event}{quiet}")
        table.add_row("time", f"{time.monotonic() - self._began_s:.0f} s")
        return table
