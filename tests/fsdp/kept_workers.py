"""Worker processes that many tests share."""

from planner.errors import PlannerError
from planner.rehearsal.local_workers import LocalWorkers


class KeptWorkers:
    """A context manager with the `run` of `LocalWorkers`. Workers start anew after a call in which one died or hung.

    So a test that breaks them takes no other test along.
    """

    def __init__(self, most, context):
        self._most, self._context, self._local = most, context, None

    def run(self, function, world_size, *arguments):
        """Call `function(rank, *arguments)` on `world_size` workers. Results by rank."""
        if self._local is None or not all(process.is_alive() for process, _ in self._local._workers):
            self.close()
            self._local = LocalWorkers(self._most, context=self._context)
        try:
            return self._local.run(function, world_size, *arguments)
        except BaseException as error:  # also a test's time limit: answers would be left in the pipes
            if not isinstance(error, PlannerError) or not self._local._workers:
                self.close()
            raise

    def close(self):
        """End all workers."""
        if self._local is not None:
            self._local.close()
            self._local = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
