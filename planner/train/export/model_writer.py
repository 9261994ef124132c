"""Writes a commit's model into a folder: weights or adapters, their configuration, and the tokenizer."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from planner.base.version import VERSION
from planner.data.model_folder import CONFIG, ModelFolder
from planner.data.tokenizer_files import FILES
from planner.errors import StoreError, UserError
from planner.provenance.stage import EarlierCommit
from planner.store.records import Manifest
from planner.store.run_folder import RunFolder
from planner.train.checkpoints import checkpoint
from planner.train.export import tensor_files
from planner.train.export.tensor_files import Shapes
from planner.train.models import private
from planner.train.models.first_weights import read_rows, rows_of, stored_buffers
from planner.train.models.four_bit import pack, quantizable, unpack
from planner.train.models.hf import ADAPTER, HfCausal, build_for_shapes, peft_name, transformers_name
from planner.train.state import MODEL

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

DType = Literal["fp32", "bf16"]
What = Literal["model", "adapter", "merged model"]
Progress = Callable[[int, int], None]
"""(tensors done, of how many)"""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes one commit into a folder."""

    run: RunFolder
    manifest: Manifest
    source: ModelFolder
    """the files that the run's first weights came from"""
    base: EarlierCommit | None
    """the commit of an earlier run that has the weights below the adapters. None: they are in `source`"""
    folder: Path
    dtype: DType
    progress: Progress

    def write(self, *, merge: bool) -> tuple[What, list[Path], int]:
        """Write all files. Returns the kind of export, the files with tensors, and the number of tensors."""
        bare = build_for_shapes(self.source)
        self._copy_tokenizer()
        if self.source.model.lora is None:
            return "model", *self._weights(bare, self._trained(bare))
        if merge:
            _require_untied(bare)
            return "merged model", *self._weights(bare, self._merged(bare))
        return "adapter", *self._adapter(bare)

    def _weights(self, bare: HfCausal, tensors: Iterator[tuple[str, Tensor]]) -> tuple[list[Path], int]:
        """Write a model's weights and its configuration. Returns the files and the number of tensors."""
        names = self._names(bare)
        buffers = dict(self._buffers(bare))
        shapes = {**names, **{name: tuple(buffer.shape) for name, buffer in buffers.items()}}
        planned = {private.name_in_files(bare.hf, name): shape for name, shape in shapes.items()}
        self._write_config(bare)
        files = self._write("model", planned, chain((tensor for _, tensor in tensors), buffers.values()))
        return files, len(planned)

    def _names(self, bare: HfCausal) -> dict[str, tuple[int, ...]]:
        """Transformers' names of all weights, in the order in which they are written, with their shapes."""
        parameters = [(name, p) for name, p in bare.named_parameters() if not bare.is_adapter(p)]
        return {transformers_name(name): tuple(p.shape) for name, p in sorted(parameters)}

    def _buffers(self, bare: HfCausal) -> Iterator[tuple[str, Tensor]]:
        """The buffers that files hold beside the weights. They are not trained, so they are read from the source.

        None for random weights: transformers sets the same values where a file has none.
        """
        found = {transformers_name(name): buffer for name, buffer in stored_buffers(bare)}
        if not found or self.source.model.weights == "random":
            return
        stored = self.source.tensors
        in_files = private.names_in_model(bare.hf, stored, dict(found))
        for name, buffer in sorted(found.items()):
            tensor = torch.empty(buffer.shape)
            read_rows(stored[in_files[name]], rows_of(tensor), tensor)
            yield name, tensor

    def _trained(self, bare: HfCausal) -> Iterator[tuple[str, Tensor]]:
        """The weights of a run that trains all of them, from the commit.

        Raises:
            StoreError: the commit holds other tensors.
        """
        wanted = [name for name, _ in sorted(bare.named_parameters())]
        found = checkpoint.read(self.run.storage, self.manifest, f"{MODEL}/")
        for done, (name, tensor) in enumerate(_paired(wanted, found, self.manifest.name), 1):
            self.progress(done, len(wanted))
            yield transformers_name(name), tensor

    def _merged(self, bare: HfCausal) -> Iterator[tuple[str, Tensor]]:
        """The weights of a run that trains adapters: the frozen weights plus what the adapters add."""
        packed = {f"hf.{name}.weight" for name in quantizable(bare.hf)} if self.source.model.frozen == "nf4" else set()
        self._read_adapters(bare)
        names = sorted(name for name, p in bare.named_parameters() if not bare.is_adapter(p))
        frozen = self._frozen(bare, names) if self.base is None else self._of_earlier_run(self.base, names)
        for done, (name, weight) in enumerate(zip(names, frozen, strict=True), 1):
            layer = bare.get_submodule(name.rpartition(".base_layer.")[0])
            # In 4 bits as the adapters were trained with it.
            tensor = unpack(pack(weight), weight.shape[1], torch.float32) if name in packed else weight
            if name.endswith(".base_layer.weight"):
                tensor += private.delta_weight(layer)
            self.progress(done, len(names))
            yield transformers_name(name), tensor

    def _frozen(self, bare: HfCausal, names: list[str]) -> Iterator[Tensor]:
        """The weights of these names in the source's files."""
        stored = self.source.tensors
        known: dict[str, Any] = {
            # Under all of their names: a file may hold a tied weight under any of them.
            transformers_name(name): p
            for name, p in bare.named_parameters(remove_duplicate=False)
        }
        in_files = private.names_in_model(bare.hf, stored, known)
        for name in names:
            where = next(in_files[alias] for alias in _aliases(known, transformers_name(name)) if alias in in_files)
            tensor = torch.empty(stored[where].shape)
            read_rows(stored[where], slice(0, tensor.shape[0]), tensor)
            yield tensor

    def _of_earlier_run(self, base: EarlierCommit, names: list[str]) -> Iterator[Tensor]:
        """The weights of these names in a commit of a run without adapters, where the order is the same."""
        found = checkpoint.read(base.run.storage, base.manifest, f"{MODEL}/")
        committed = [name.replace(".base_layer.", ".") for name in names]
        return (tensor for _, tensor in _paired(committed, found, base.manifest.name))

    def _adapter(self, bare: HfCausal) -> tuple[list[Path], int]:
        """Write adapters in peft's layout. Returns the files and the number of tensors."""
        trained = sorted((name, p) for name, p in bare.named_parameters() if bare.is_adapter(p))
        planned = {peft_name(name): tuple(p.shape) for name, p in trained}
        config = bare.hf.peft_config[ADAPTER]
        # peft itself writes true into what it saves, so that who loads adapters does not train them by accident.
        config.base_model_name_or_path, config.inference_mode = self.source.model.path, True
        config.save_pretrained(self.folder)
        found = checkpoint.read(self.run.storage, self.manifest, f"{MODEL}/")
        pairs = _paired([name for name, _ in trained], found, self.manifest.name)
        files = self._write("adapter_model", planned, (tensor for _, tensor in pairs))
        return files, len(planned)

    def _read_adapters(self, bare: HfCausal) -> None:
        """Load all adapters into `bare`, whose layers have no memory."""
        trained = sorted(name for name, p in bare.named_parameters() if bare.is_adapter(p))
        found = checkpoint.read(self.run.storage, self.manifest, f"{MODEL}/")
        for name, tensor in _paired(trained, found, self.manifest.name):
            path, _, key = name.rpartition(".")
            bare.get_submodule(path).register_parameter(key, torch.nn.Parameter(tensor))

    def _write(self, stem: str, planned: Shapes, tensors: Iterator[Tensor]) -> list[Path]:
        metadata = {
            "planner": VERSION,
            "planner_run": self.manifest.run_id,
            "planner_commit": self.manifest.name,
        }
        return tensor_files.write(self.folder, stem, planned, tensors, DTYPES[self.dtype], metadata)

    def _write_config(self, bare: HfCausal) -> None:
        config = dict(self.source.config)
        config["architectures"] = [type(bare.hf).__name__]
        # transformers 5 reads either name, 4 only the older one.
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(DTYPES[self.dtype]).removeprefix("torch.")
        (self.folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")

    def _copy_tokenizer(self) -> None:
        """Copy tokenizer, chat template and generation settings."""
        for file in self.source.files("generation_config.json", *FILES):
            shutil.copyfile(file, self.folder / file.name)
        if (template := self.source.model.chat_template) is not None:
            try:
                shutil.copyfile(template, self.folder / "chat_template.jinja")
            except OSError as error:
                raise UserError(
                    f"model.chat_template: {template}: {error.strerror}. The model was trained with this file, so put "
                    "it back"
                ) from error


def _paired(names: list[str], found: Iterator[tuple[str, Tensor]], commit: str) -> Iterator[tuple[str, Tensor]]:
    """Pair the expected names with a commit's tensors. Both are sorted by name.

    Raises:
        StoreError: the commit has other names.
    """
    ahead = iter(names)
    for path, tensor in found:
        name = next(ahead, None)
        if path != f"{MODEL}/{name}":
            raise StoreError(f"checkpoints/{commit}: its tensors are not this model's: they differ in {path}")
        assert name is not None
        yield name, tensor
    if (missing := next(ahead, None)) is not None:
        raise StoreError(f"checkpoints/{commit}: its tensors are not this model's: {missing} is missing")


def _require_untied(bare: HfCausal) -> None:
    """Check that no adapter is on a weight that several layers share, into which it could not be merged.

    Raises:
        UserError: an adapter is on a shared weight.
    """
    known: dict[str, Any] = dict(bare.named_parameters(remove_duplicate=False))
    for name in known:
        if name.endswith(".base_layer.weight") and (others := _aliases(known, name)[1:]):
            raise UserError(
                f"--merge: {transformers_name(name)} has an adapter and is also {transformers_name(others[0])}, so "
                "merging would change both and give another model. Export the adapters, without --merge"
            )


def _aliases(known: dict[str, Any], name: str) -> list[str]:
    """All names of a tensor that may be tied to others, `name` first."""
    return [name, *(other for other, tensor in known.items() if tensor is known[name] and other != name)]
