"""Reads a run's story from its folder. It reads each ledger once, in parts, and does not check the chain."""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from planner.store.follow import WholeLedger
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.story.teller import StoryTeller
from planner.story.values import RunHistory


def read_story(
    run: RunFolder, name: str, newest: Manifest | None, progress: Callable[[int, int], None] = lambda _done, _of: None
) -> RunHistory:
    """Read a run's story.

    Args:
        run: the run.
        name: how to call it.
        newest: its newest commit, if there is one.
        progress: called with `(done, of)` after each generation.

    Raises:
        NewerFormat: another version of planner wrote a part of it.
        PlanError: this version of planner does not know the layout of a generation.
        StoreError: there is no run, or the store cannot be reached.
    """
    run.identity()
    durable = run.commits()  # before the ledger: the record of a later one may not be in it yet
    teller, numbers, reading = StoryTeller(), run.segments(), 0
    for number, record in WholeLedger(run).new_records():
        if number != reading:
            progress(bisect_left(numbers, number), len(numbers))
            reading = number
        teller.add(record)
    hosts = sorted(set(_hosts(run)))
    versions = newest.versions if newest else None
    return teller.story(run.storage.url, name, hosts=hosts, versions=versions, durable=durable)


def _hosts(run: RunFolder) -> Iterator[str]:
    """The machines of the processes that claimed the newest generations. Torn claims are left out."""
    for number in run.generations()[-_MOST_CLAIMS:]:
        if host := (run.claim(number) or {}).get("host"):
            yield str(host)


_MOST_CLAIMS = 100
