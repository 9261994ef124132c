"""A Ray Train worker whose process can serve several generations. This code runs in that process."""

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker

from planner.dispatch import mailbox
from planner.dispatch.ray_internal import group_names as names
from planner.dispatch.ray_internal.compatibility import remote


class KeepingRayTrainWorker(RayTrainWorker):  # type: ignore[misc]
    """A worker whose process can serve several generations."""

    def run_train_fn(self, train_fn_ref: names.TrainFunctionRef) -> None:
        """Run the training function in a thread that `quiesce` can end while it is parked."""
        gc.freeze()  # the collection at the end of this generation can skip modules and Ray
        super().run_train_fn(_WrappedTrainFunction(train_fn_ref))

    def quiesce(self, timeout_s: float) -> None:
        """Unwind the parked training thread.

        Raises:
            RuntimeError: the thread did not end in `timeout_s`.
        """
        super().shutdown()
        context: names.TrainContext = get_train_context()
        thread = context.execution_context.training_thread_runner._thread
        mailbox.release()
        thread.join(timeout_s)
        if thread.is_alive():
            raise RuntimeError("the training thread did not unwind")

    def forget(self) -> None:
        """Free what the last generation left: process group, events, memory and compiled code."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():  # Ray does not destroy a group of one
            dist.destroy_process_group()
        mailbox.reset()
        # FSDP's hooks and their modules refer to each other, so only a collection frees the model.
        gc.collect()
        # Without this, memory grows by about 100 MB per resize: glibc keeps freed arenas.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if "torch._dynamo" in sys.modules:  # otherwise compiled code falls back to eager after eight generations
            sys.modules["torch._dynamo"].reset()

    def init_train_context(self, *arguments: object, **options: object) -> None:
        """Initialize Ray's context with its own thread pool and condition.

        Ray shares both among all contexts of a process, as defaults of a data class
        (ray/train/v2/_internal/execution/context.py:141, Ray 2.60), and has shut down the pool of the last generation
        (worker_group/worker.py:153). Its method makes the context and takes neither, so they are set afterwards.
        """
        super().init_train_context(*arguments, **options)
        context: names.TrainContext = get_train_context()
        context.checkpoint_upload_threadpool = ThreadPoolExecutor(max_workers=1)
        context.report_order_condition = threading.Condition()


class _WrappedTrainFunction:
    """A reference to the training function that returns when it is released from its park."""

    def __init__(self, reference: names.TrainFunctionRef) -> None:
        self._reference = reference

    def get(self) -> Callable[[], object]:
        """The training function. It swallows `UnwindTraining`, so that no traceback keeps the model alive."""
        train = self._reference.get()

        def run() -> object:
            try:
                return train()
            except mailbox.UnwindTraining:
                return None

        return run


class KeptWorkerActor(names.WorkerActor, Protocol):
    """The actor of a `KeepingRayTrainWorker`."""

    @remote
    def quiesce(self, timeout_s: float) -> None:
        """Unwind the parked training thread."""

    @remote
    def forget(self) -> None:
        """Free what the last generation left."""
