"""Loads sharded weights and optimizer state from the run's folder, by torch.distributed.checkpoint (DCP).

`planner.train.checkpoints.shard_plan` saves them. Only tensors are saved and read. Hyper-parameters come from the job,
and the position from the manifest. DCP reshards: any number of workers can load what W workers saved.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors

from planner.errors import StoreError
from planner.store.records import Manifest, TrainingIdentity
from planner.store.run_folder import RunFolder
from planner.store.storage import Storage
from planner.train.checkpoints.tensor_reader import tensor_reader
from planner.train.exact.gradient_sums import STATE_KEY
from planner.train.state import OPTIMIZER, TrainState, tensor_digest
from planner.train.world import World


def load(world: World, storage: Storage, manifest: Manifest, state: TrainState, identity: TrainingIdentity) -> None:
    """Load a checked commit into the state, at any world size.

    If the user has accepted another optimizer or another `batch.equality`, the new one's state begins fresh, because
    the saved state does not fit it.

    Raises:
        StoreError: on every worker, if the files do not hold exactly the tensors of this model and optimizer, or hold
            other objects than tensors.
    """
    folder = manifest.folder
    reader = tensor_reader(storage, manifest)

    def prepare() -> dict[str, Tensor]:
        metadata = reader.read_metadata().state_dict_metadata
        saved = {name: Saved.of(item) for name, item in metadata.items()}
        return prepared(state, saved, manifest, identity)

    # Agreed before DCP's own collectives begin, in which the others would wait for a worker that raises alone.
    wanted = world.agree(prepare)
    try:
        load_tensors(wanted, storage_reader=reader)
    except CheckpointException as error:
        raise StoreError(f"{folder}: cannot load: {_reason(error)}") from error


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A tensor of a saved state."""

    shape: torch.Size
    dtype: torch.dtype

    @classmethod
    def of(cls, item: Any) -> Self:
        """As the metadata of a checkpoint has it."""
        assert isinstance(item, TensorStorageMetadata)  # the reader refuses anything else
        return cls(shape=item.size, dtype=item.properties.dtype)


def prepared(
    state: TrainState, saved: Mapping[str, Saved], manifest: Manifest, identity: TrainingIdentity
) -> dict[str, Tensor]:
    """The tensors of the state to load into, with optimizer state as in the saved one.

    Raises:
        StoreError: the saved tensors are not those of this model and optimizer.
    """
    anew = _begun_anew(manifest.identity, identity)
    # An empty tuple is the beginning of no name, so without a change nothing is left out.
    known = {name: item for name, item in saved.items() if not name.startswith(anew)}
    # DCP loads in place, into tensors that exist, and AdamW makes its state only in its first step.
    _create_optimizer_state(state, known)
    wanted = {name: tensor for name, tensor in state.tensors().items() if not name.startswith(anew)}
    if differing := sorted(set(wanted) ^ set(known)):
        raise StoreError(f"{manifest.name}: its tensors are not this job's: they differ in {', '.join(differing[:5])}")
    return wanted


def read(storage: Storage, manifest: Manifest, beginning: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the whole tensors of a commit whose names begin with `beginning`. Needs no process group.

    Raises:
        StoreError: a tensor cannot be read.
    """
    folder = manifest.folder
    reader = tensor_reader(storage, manifest)
    saved = reader.read_metadata().state_dict_metadata
    for name, item in sorted((name, item) for name, item in saved.items() if name.startswith(beginning)):
        assert isinstance(item, TensorStorageMetadata)  # the reader refuses anything else
        try:
            tensor = torch.empty(item.size, dtype=item.properties.dtype)
        except RuntimeError as error:
            raise StoreError(f"{folder}: cannot make room for {name} of shape {tuple(item.size)}") from error
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # on purpose
                load_tensors({name: tensor}, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise StoreError(f"{folder}: cannot load {name}: {_reason(error)}") from error
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise StoreError(f"{folder}: cannot load {name}: {reason}") from error
        yield name, tensor


def read_digests(storage: Storage, manifest: Manifest) -> dict[str, str]:
    """The digest of every whole tensor of a commit, computed from its files.

    Raises:
        StoreError: a tensor cannot be read.
    """
    return {name: tensor_digest(tensor) for name, tensor in read(storage, manifest)}


def check_files(world: World, run: RunFolder, manifest: Manifest) -> None:
    """Check the digests of all files of a commit, each by one worker.

    Raises:
        StoreError: on every worker, if any file is missing, torn or altered.
    """
    world.agree(lambda: run.check_files(manifest.folder, manifest.files[world.rank :: world.world_size]))


def _begun_anew(before: TrainingIdentity, now: TrainingIdentity) -> tuple[str, ...]:
    """The name prefixes of tensors that are not loaded, because the optimizer or the equality has changed."""
    optimizer = (f"{OPTIMIZER}/",) if before.optimizer != now.optimizer else ()
    return optimizer + ((STATE_KEY,) if before.equality != now.equality else ())


def _create_optimizer_state(state: TrainState, saved: Mapping[str, Saved]) -> None:
    """Allocate optimizer state for the saved tensors: a shard like the parameter's, or a scalar.

    Raises:
        StoreError: a saved tensor has another shape than its parameter.
    """
    # A fused or capturable step reads its count on the device, others on the CPU: as in torch's `load_state_dict`
    # (`_process_value_according_to_param_policy` in torch/optim/optimizer.py, torch 2.13), which needs a whole state.
    groups = [group for group in state.optimizer.param_groups if group.get("fused") or group.get("capturable")]
    counting_on_device = {shard for group in groups for shard in group["params"]}
    for name, (parameter, shard) in state.shards.items():
        prefix = f"{OPTIMIZER}/{name}/"
        for path in (path for path in saved if path.startswith(prefix)):
            size, dtype = saved[path].shape, saved[path].dtype
            if len(size) > 0 and size != parameter.shape:
                raise StoreError(f"{path} has shape {tuple(size)} in the checkpoint, {tuple(parameter.shape)} here")
            place = shard.device if shard in counting_on_device else torch.device("cpu")
            state.optimizer.state[shard][path.removeprefix(prefix)] = (
                torch.zeros_like(shard, dtype=dtype) if len(size) > 0 else torch.zeros(size, dtype=dtype, device=place)
            )


def _reason(error: CheckpointException) -> str:
    """The failure of the lowest rank, in one line."""
    rank, (failure, _) = min(error.failures.items())
    return f"worker {rank}: {type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"
