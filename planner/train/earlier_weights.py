"""First weights from a commit of an earlier run (`after`), read in shards at any world size of either run.

They are equal to the last bit to those that `planner export` writes and `model.path` reads. A commit holds the whole
weights of a run that trained all of them, so a run that trains adapters can begin from it, and no run from adapters.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.tensor import DTensor

from planner.base import progress_counter
from planner.data.job_folders import of_trained
from planner.data.model_folder import ModelFolder
from planner.errors import StoreError, UserError
from planner.job import GptModel, HfModel, Job
from planner.provenance.identity import MODEL as MODEL_FACT
from planner.provenance.stage import EarlierCommit, earlier_commit
from planner.train.checkpoints import checkpoint
from planner.train.checkpoints.checkpoint import Saved
from planner.train.checkpoints.tensor_reader import TensorReader, tensor_reader
from planner.train.collectives import shard_of
from planner.train.models.first_weights import stored_buffers
from planner.train.models.four_bit import row_lengths, stored
from planner.train.models.hf import HfCausal
from planner.train.state import MODEL
from planner.train.world import World

# Most differences in an error.
_NAMED = 3
# Keys of a configuration that change neither a model's tensors nor how it computes with them.
_FREE = frozenset(
    {"_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id"}
    | {"torch_dtype", "transformers_version", "use_cache"}
)
_GPT = ("layers", "width", "heads", "context", "tied_embeddings")
# URLs and digests of the commits whose files this process has read once to check them. A resize need not do it again.
_checked: set[tuple[str, str | None]] = set()


@dataclass(frozen=True, kw_only=True)
class EarlierWeights:
    """The weights in the commit that a job goes on from. All workers make it."""

    commit: EarlierCommit
    same_files: bool
    """whether `model.path` has the files that the earlier run had"""

    @classmethod
    def of(
        cls, job: Job, folder: ModelFolder | None, world: World, what: str = "the first weights"
    ) -> "EarlierWeights | None":
        """Find and check the commit of a job, whose model has this folder, if any. None if the job has no `after`.

        `what` is read from the commit, for errors.

        Raises:
            PlannerError: on every worker, if the commit is not there, is damaged, or is another model's.
        """
        if job.after is None:
            return None
        commit = world.agree(lambda: earlier_commit(job, what))
        same_files = world.agree(lambda: require_suits(job, folder, commit))
        key = (job.after.run, job.after.manifest)
        if not all(world.gather(key in _checked)):
            checkpoint.check_files(world, commit.run, commit.manifest)
            _checked.add(key)
        return cls(commit=commit, same_files=same_files)

    @torch.no_grad()
    def fill(self, model: nn.Module) -> None:
        """Fill this worker's shards of all weights except adapters. No collective.

        Raises:
            PlannerError: the commit holds other tensors, or cannot be read.
        """
        reader = tensor_reader(self.commit.run.storage, self.commit.manifest)
        metadata = reader.read_metadata().state_dict_metadata
        saved = {name: Saved.of(item) for name, item in metadata.items() if name.startswith(f"{MODEL}/")}
        lengths, targets = row_lengths(model), dict(_targets(model))
        self._require_same_tensors(saved, {name: _shape(p, lengths.get(own)) for name, (own, p) in targets.items()})
        if isinstance(model, HfCausal) and not self.same_files and any(True for _ in stored_buffers(model)):
            raise UserError(
                f"after: the model has buffers that are in no commit, and model.path has other files than "
                f"{self.commit.run.storage.url} was made with. Write the model.path of that run"
            )
        self._load(reader, {name: p.detach() for name, (own, p) in targets.items() if own not in lengths})
        for name, (own, parameter) in targets.items():
            if own in lengths:
                rows = _rows_like(parameter, lengths[own])
                self._load(reader, {name: rows})
                shard_of(parameter).copy_(stored(shard_of(rows)))

    def _load(self, reader: TensorReader, tensors: dict[str, Tensor]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # each worker reads its own shards
                load_tensors(tensors, storage_reader=reader, no_dist=True)
        except (CheckpointException, OSError) as error:
            raise StoreError(f"{self._where}: its weights cannot be read: {error}") from error
        progress_counter.count_work()

    def _require_same_tensors(self, saved: Mapping[str, Saved], wanted: Mapping[str, tuple[int, ...]]) -> None:
        found = {name: tuple(each.shape) for name, each in saved.items()}
        differing = [
            f"{name.removeprefix(f'{MODEL}/')}: {found.get(name, 'none')} there, {wanted.get(name, 'none')} here"
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ]
        if differing:
            raise _other_model(self._where, differing)

    @property
    def _where(self) -> str:
        return f"{self.commit.run.storage.url} (step {self.commit.manifest.step})"


def require_suits(job: Job, folder: ModelFolder | None, commit: EarlierCommit) -> bool:
    """Check that an earlier run trained all weights of the job's model. Returns whether `model.path` has its files.

    Args:
        job: the job that goes on.
        folder: of its model. None: it has no files, or they are not on this machine, and only workers compare them.
        commit: of the earlier run.

    Raises:
        UserError: the model is another one, or the run trained adapters.
        StoreError: the earlier run's job cannot be read.
    """
    before, now = commit.run.job(commit.manifest.job_digest).model, job.model
    url = commit.run.storage.url
    if before.kind != now.kind:
        raise _other_model(url, [f"model.kind: {before.kind} there, {now.kind} here"])
    if isinstance(before, GptModel):
        values = ((key, getattr(before, key), getattr(now, key)) for key in _GPT)
        if differing := [f"model.{key}: {old} there, {new} here" for key, old, new in values if old != new]:
            raise _other_model(url, differing)
    if isinstance(before, HfModel) and isinstance(now, HfModel):
        if before.lora is not None:
            raise UserError(
                f"after: {url} trained adapters, and its commits hold no other weights. Merge them, and write the new "
                f"folder as model.path without after: planner export {url} -o FOLDER --merge"
            )
        return folder is not None and _require_same_config(before, folder, commit)
    return True


def _require_same_config(before: HfModel, folder: ModelFolder, commit: EarlierCommit) -> bool:
    """Compare the configuration in a folder with that of the earlier run. Returns whether all files are the same.

    Raises:
        UserError: they differ, or the earlier run's is not here.
    """
    url = commit.run.storage.url
    with suppress(UserError):  # such as a folder without weights
        if of_trained(str(commit.manifest.facts.get(MODEL_FACT, ""))) == replace(folder, model=before).fingerprint():
            return True
    there = seen_folder(before)
    if there is None:
        raise UserError(
            f"after: {url} was made with model.path {before.path}, which is not here, and {folder.path} has other "
            "files. Write that model.path, so that the configurations can be compared"
        )
    old, new = (_config(each) for each in (there, folder))
    keys = sorted(key for key in {*old, *new} if key not in _FREE and "drop" not in key)
    differing = [f"{key}: {old.get(key)} there, {new.get(key)} here" for key in keys if old.get(key) != new.get(key)]
    if differing:
        raise _other_model(url, differing)
    return False


def _other_model(url: str, differing: list[str]) -> UserError:
    more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
    return UserError(
        f"after: {url} trained another model than this job has ({', '.join(differing[:_NAMED])}{more}). Write the "
        "model of that run"
    )


def seen_folder(model: HfModel) -> ModelFolder | None:
    """The folder of a model. None if it is not on this machine, for whatever reason."""
    try:
        return ModelFolder.here(model)
    except UserError:
        return None


def _config(folder: ModelFolder) -> dict[str, Any]:
    """A model's configuration with transformers' defaults, since files leave some of them out."""
    import transformers

    try:
        found: dict[str, Any] = transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False).to_dict()
    except Exception as error:  # values of a wrong type can raise anything
        raise UserError(f"{folder.path}: transformers cannot read its configuration: {error}") from error
    return found


def _targets(model: nn.Module) -> Iterator[tuple[str, tuple[str, nn.Parameter]]]:
    """Name in a commit -> the model's own name and the parameter, for all parameters but adapters'."""
    for name, parameter in model.named_parameters():
        if not (isinstance(model, HfCausal) and model.is_adapter(parameter)):
            yield f"{MODEL}/{name.replace('.base_layer.', '.')}", (name, parameter)


def _shape(parameter: Tensor, length: int | None) -> tuple[int, ...]:
    """The shape of what a parameter stands for. `length`: weights per row, if they are packed in 4 bits."""
    return tuple(parameter.shape) if length is None else (parameter.shape[0], length)


def _rows_like(parameter: Tensor, length: int) -> Tensor:
    """Uninitialised rows of `length` weights in float32, sharded like a packed parameter."""
    local = shard_of(parameter)
    rows = torch.empty(len(local), length, device=local.device)
    if not isinstance(parameter, DTensor):
        return rows
    shape = torch.Size((parameter.shape[0], length))
    return DTensor.from_local(
        rows, parameter.device_mesh, parameter.placements, run_check=False, shape=shape, stride=(length, 1)
    )
