"""A worker whose process may serve one generation after another; runs in that process."""

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
from planner.dispatch.ray_internal import shapes


class KeepingRayTrainWorker(RayTrainWorker):  # type: ignore[misc]
    """A worker whose process may serve one generation after another."""

    def run_train_fn(self, train_fn_ref: shapes.TrainFunctionRef) -> None:
        """Ray's, with a way out for a parked thread that neither finishes nor fails."""
        gc.freeze()  # modules and Ray: the collection that ends this generation need not look at them
        super().run_train_fn(_Unwinding(train_fn_ref))

    def quiesce(self, timeout_s: float) -> None:
        """Unwind the parked training thread.

        Raises:
            RuntimeError: it does not end.
        """
        super().shutdown()
        context: shapes.TrainContext = get_train_context()
        thread = context.execution_context.training_thread_runner._thread
        mailbox.release()
        thread.join(timeout_s)
        if thread.is_alive():
            raise RuntimeError("the training thread did not unwind")

    def forget(self) -> None:
        """Leave nothing of the old generation behind."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized():  # Ray leaves out the group of one
            dist.destroy_process_group()
        mailbox.reset()
        gc.collect()
        # Without it the resident set grows by about 100 MB a resize: freed arenas that glibc holds on to.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if "torch._dynamo" in sys.modules:  # else compiled code falls back to eager after eight generations
            sys.modules["torch._dynamo"].reset()

    def init_train_context(self, *arguments: object, **options: object) -> None:
        """Ray's; two of the context's defaults are shared by all contexts of a process, and one was shut down."""
        super().init_train_context(*arguments, **options)
        context: shapes.TrainContext = get_train_context()
        context.checkpoint_upload_threadpool = ThreadPoolExecutor(max_workers=1)
        context.report_order_condition = threading.Condition()


class _Unwinding:
    """Stands in for a reference to the training function."""

    def __init__(self, reference: shapes.TrainFunctionRef) -> None:
        self._reference = reference

    def get(self) -> Callable[[], object]:
        """The function; released from its park it returns, and no traceback pins the model."""
        train = self._reference.get()

        def run() -> object:
            try:
                return train()
            except mailbox.Released:
                return None

        return run


class KeptWorkerActor(shapes.WorkerActor, Protocol):
    """The process of a `KeepingRayTrainWorker`."""

    quiesce: shapes.RemoteMethod
    forget: shapes.RemoteMethod
