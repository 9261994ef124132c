"""TensorBoard's event files."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planner.base.disk import expanded
from planner.base.permissions import make_folder
from planner.errors import TrackerUnavailable
from planner.job.tracking import TensorboardTracking
from planner.tracking.row import Row
from planner.tracking.tracker import TrackedRun


def check(section: TensorboardTracking, url: str) -> None:
    """Check that the event files have a folder.

    Raises:
        TrackerUnavailable: the run is at a URL, and the section names no folder.
    """
    if "://" in url and not section.folder:
        raise TrackerUnavailable(f"{url}: tensorboard needs a folder on this machine. Write tracking.folder")


class EventFiles:
    """Writes one event per row, so that a crash leaves no row with half of its values. Each process adds a file."""

    tracker_id = ""

    def __init__(self, folder: Path, root: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        make_folder(folder, root)
        self._last_step = max((step for file in _newest_files(folder) for step in _steps(file)), default=-1)
        self._writer = EventFileWriter(str(folder))

    def last_step(self) -> int:
        """The highest step of the newest event file that has steps, or -1."""
        return self._last_step

    def log(self, rows: Sequence[Row]) -> None:
        """Write one event per row, and flush."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._writer.add_event(Event(wall_time=row.time_s, step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def live(self, values: Mapping[str, float]) -> None:
        """Ignored: event files are only appended to."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def open_tracker(section: TensorboardTracking, run: TrackedRun) -> EventFiles:
    """Open a new event file in the run's own folder, because events do not name their run.

    Raises:
        OSError: the folder cannot be written.
    """
    if not section.folder:
        return EventFiles(Path(run.folder) / "tensorboard", Path(run.folder))
    folder = expanded(section.folder).absolute()
    return EventFiles(folder / f"{run.name}-{run.run_id[:6]}", folder)


def _newest_files(folder: Path) -> Iterator[Path]:
    """The newest event file with a step, and those after it."""
    files = folder.glob("events.out.tfevents.*")
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        yield file
        if next(_steps(file), None) is not None:
            return


def _steps(file: Path) -> Iterator[int]:
    """The steps of an event file's rows. A torn last event, as a crash leaves it, ends the file."""
    from tensorboard.compat.proto.event_pb2 import Event

    with file.open("rb") as stream:
        while len(header := stream.read(12)) == 12:
            (length,) = struct.unpack("<Q", header[:8])
            body = stream.read(length)
            if len(body) < length or len(stream.read(4)) < 4:
                return
            event = Event.FromString(body)
            if event.HasField("summary"):
                yield event.step
