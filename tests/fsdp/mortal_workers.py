"""Worker processes for one call each, which a test may kill. They are forked from a process that has imported torch."""

import multiprocessing
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

from events import EVENT_S

from planner.errors import PlannerError
from planner.rehearsal.local_workers import _call

# What a forkserver imports once, for all workers that are forked from it.
PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.onnx",
    "planner.provenance.audit",
    "planner.train.custom_loop",
    "planner.train.generation",
]


class WorkersKilled(Exception):
    """A worker was ended by a signal, and then all others were."""


def run(function, world_size, *arguments):
    """`function(rank, *arguments)` on new worker processes. Results by rank.

    Raises:
        WorkersKilled: one of them was killed. The others are killed then, as a controller does it.
        PlannerError: a worker raised it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes, answers = [], {}
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            call = (theirs, function, arguments, rank, world_size, str(Path(folder) / "rendezvous"))
            process = context.Process(target=_serve_once, args=call)
            process.start()
            theirs.close()
            processes.append((process, ours))
        try:
            while len(answers) < world_size:
                waiting = {pipe: rank for rank, (_, pipe) in enumerate(processes) if rank not in answers}
                ready = wait(waiting, EVENT_S)
                assert ready, f"workers {sorted(waiting.values())} hang"
                for pipe in ready:
                    try:
                        answers[waiting[pipe]] = pipe.recv()
                    except EOFError as error:
                        raise WorkersKilled(f"worker {waiting[pipe]} was killed") from error
        finally:
            for process, pipe in processes:
                process.kill()
                process.join()
                pipe.close()
    for rank in range(world_size):
        if isinstance(answers[rank], PlannerError):
            raise answers[rank]
    return [answers[rank] for rank in range(world_size)]


def _serve_once(pipe, function, arguments, rank, world_size, file):
    import torch

    torch.set_num_threads(1)
    pipe.send(_call(function, arguments, rank, world_size, "gloo", file))
