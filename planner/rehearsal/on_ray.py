"""Trains a job on Ray through a history of world sizes. Nodes are added and removed when steps are done.

A small job does hundreds of steps before Ray sees a new node. So a group waits at the end of its stage until it is told
to stop or its node is gone.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from planner.dispatch import mailbox
from planner.dispatch.ray_internal import drain_node, kv_get, kv_put
from planner.dispatch.worker import worker_hooks
from planner.errors import TrainingFailed
from planner.local_cluster.embedded import EmbeddedCluster
from planner.rehearsal.stages import SizePhase
from planner.store.follow import Follower
from planner.store.records import StepRecord
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.hooks import Hooks
from planner.train.setup import Launch

_POLL_S = 0.1
# A group makes use of a short notice (`elastic.step`), and a stage ends when the group has stopped.
_NOTICE_S = 300.0
# After a node is lost, a smaller group starts within half a minute (`launch.EMBEDDED`).
_CHANGE_DEADLINE_S = 180.0


class Director:
    """A context manager with a thread that changes the cluster when a stage's steps are done.

    Its workers have the hooks of `observed_hooks` with the same history.
    """

    def __init__(
        self,
        cluster: EmbeddedCluster,
        run: RunFolder,
        launch_id: str,
        history: Sequence[SizePhase],
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._launch_id, self._history, self._say = cluster, launch_id, history, say
        self._noticed: set[str] = set()
        self._num_taken = 0
        self._follower = Follower(run)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="planner-director", daemon=True)

    def __enter__(self) -> Self:
        _begin_stage(self._launch_id, 0)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join(_CHANGE_DEADLINE_S)
        if self._thread.is_alive():
            self._say(f"a change of the cluster was not done after {_CHANGE_DEADLINE_S:.0f} s and is abandoned")

    def _run(self) -> None:
        number = done = 0
        while number + 1 < len(self._history) and not self._stop.wait(_POLL_S):
            steps = [r.step + 1 for r in self._follower.new_records() if isinstance(r, StepRecord)]
            done = max([done, *steps])
            if done >= self._history[number].end_step:
                number += 1
                # Publish the stage first: the new group reads it when it starts.
                _begin_stage(self._launch_id, number)
                self._change_to(self._history[number].world_size)

    def _change_to(self, world_size: int) -> None:
        nodes = [node for node in self._cluster.nodes() if node not in self._noticed]
        for _ in range(world_size - len(nodes)):
            self._say(f"adding a node to {len(nodes)}")
            self._cluster.add_node()
        while len(nodes) > world_size:
            self._take_away(nodes.pop())

    def _take_away(self, node: str) -> None:
        """Remove a node, alternately by SIGKILL and by notice. After a notice it ends when its worker has left."""
        self._num_taken += 1
        if self._num_taken % 2:
            self._say("killing a node")
            self._cluster.kill_node(node)
        else:
            self._say("giving a node notice")
            self._noticed.add(node)
            drain_node(node, _NOTICE_S, "rehearsal")


def observed_hooks(history: Sequence[SizePhase], launch: Launch) -> Hooks:
    """The hooks of a rehearsed job's worker: wait at the end of each stage, and record checksums."""
    import ray.train

    from planner.rehearsal.observe import StepRecorder
    from planner.rehearsal.randomness import WithoutDropout, turn_off_functions

    world_size = ray.train.get_context().get_world_size()
    number = int(kv_get(_stage_key(launch.launch_id)))
    stage = history[number]
    is_last = number == len(history) - 1

    def wait(step: int) -> bool:
        """Whether to stop before `step`. Waits at the end of a stage. The ledger records the last step afterwards."""
        if world_size == stage.world_size and (step <= stage.end_step or is_last):
            return mailbox.stop_requested()
        deadline_s = time.monotonic() + _CHANGE_DEADLINE_S
        while not mailbox.stop_requested():
            if time.monotonic() > deadline_s:
                following = history[min(number + 1, len(history) - 1)].world_size
                raise TrainingFailed(
                    f"step {step}: {world_size} workers were not resized to {following} within "
                    f"{_CHANGE_DEADLINE_S:.0f} s"
                )
            time.sleep(_POLL_S)
        return True

    hooks, storage = replace(worker_hooks(launch), should_stop=wait), Storage(launch.url)
    if launch.job.batch.equality == "bitwise":  # masks do not depend on the world size
        return replace(hooks, observe=StepRecorder(storage))
    turn_off_functions()  # for good: this process trains only this job
    dropout = WithoutDropout()
    return replace(hooks, begin=dropout.begin, observe=StepRecorder(storage, dropout))


def _begin_stage(launch_id: str, number: int) -> None:
    kv_put(_stage_key(launch_id), str(number))


def _stage_key(launch_id: str) -> str:
    return f"stage-{launch_id}"
