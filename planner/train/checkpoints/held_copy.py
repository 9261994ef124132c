"""A worker's copy of its shards in host memory, from which a commit is written while training goes on.

The buffers are made at the first copy and kept: a copy into memory that was written before takes less than half the
time of one into fresh pages. On CUDA they are page-locked, and a second stream copies into them beside the next step's
forward and backward passes. Only the optimizer's step must wait for it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

MakeBuffers = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""makes a buffer on the host for each tensor, of its type and shape"""


def own_memory(shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Buffers in this process's memory."""
    return {name: torch.empty(shard.shape, dtype=shard.dtype) for name, shard in shards.items()}


class HeldCopy:
    """Kept buffers, one per tensor.

    Args:
        device: on which training computes.
        make: makes the buffers, anew if a name, type or shape changes.
    """

    def __init__(self, device: torch.device, make: MakeBuffers = own_memory) -> None:
        self._device, self._make = device, make
        self._buffers: dict[str, Tensor] = {}
        cuda: Any = torch.cuda  # its functions have no types
        self._stream = cuda.Stream(device) if device.type == "cuda" else None
        self._copied: Any = None

    def take(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy this worker's shards. What lies on the CPU is copied when it returns, the rest after `wait`.

        The copy is valid until the next call. Nothing may change the tensors on a GPU before `guard`.
        """
        if not self._fits(shards):
            self.drop()  # before the new ones are made
            made = self._make(shards)
            self._buffers = {
                name: _page_locked(made[name]) if shard.is_cuda else made[name] for name, shard in shards.items()
            }
        # At once, on this thread: the optimizer changes these (Adam's step counts) without any stream that could wait.
        for name, shard in shards.items():
            if not shard.is_cuda:
                self._buffers[name].copy_(shard)
        if self._stream is not None:
            # The side stream does not see by itself that the last optimizer's step still runs on the training stream.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                for name, shard in shards.items():
                    if shard.is_cuda:
                        # Where a buffer could not be page-locked, CUDA copies before this returns: slower, and right as
                        # well.
                        self._buffers[name].copy_(shard, non_blocking=True)
                self._copied = self._stream.record_event()
        return dict(self._buffers)

    def drop(self) -> None:
        """Free the buffers. The next copy makes new ones."""
        self.wait()  # a GPU that still copies would write into freed memory
        self._buffers = {}

    def guard(self) -> None:
        """Make what the device does from now on wait for the copy. Call it before anything changes the tensors."""
        # The device waits, not Python: the training thread goes on queueing the next step.
        if self._copied is not None:
            torch.cuda.current_stream(self._device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait until the copy is complete. Any thread may call it."""
        if self._copied is not None:
            # In a new thread, device 0 is the current one, and to wait there would take some 500 MiB of its memory.
            with torch.cuda.device(self._device):
                self._copied.synchronize()

    def _fits(self, shards: Mapping[str, Tensor]) -> bool:
        """Whether there is a buffer for each of them."""
        return self._buffers.keys() == shards.keys() and all(
            buffer.shape == shards[name].shape and buffer.dtype == shards[name].dtype
            for name, buffer in self._buffers.items()
        )


def _page_locked(buffer: Tensor) -> Tensor:
    """The buffer, page-locked if the driver allows it. torch's `pin_memory` would round its size up to a power of 2."""
    address, num_bytes = buffer.data_ptr(), buffer.nbytes
    cuda: Any = torch.cuda  # its functions have no types
    runtime = cuda.cudart()
    if num_bytes and int(runtime.cudaHostRegister(address, num_bytes, 0)) == 0:
        finalize(buffer, runtime.cudaHostUnregister, address)
    elif num_bytes:
        with suppress(RuntimeError):  # CUDA keeps its last error, which torch would raise at some later kernel
            torch.zeros(1, device="cuda")
    return buffer
