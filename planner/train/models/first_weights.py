"""First weights of a sharded transformers model, read from files or drawn at random.

A worker never holds more than its shard and one unit. A unit is a block, or a module outside all blocks, whose weights
are drawn at once. When weights are read, a worker reads only the rows of its shard.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.base import progress_counter
from planner.data.model_folder import ModelFolder
from planner.data.safetensors_headers import StoredTensor
from planner.errors import UserError
from planner.train.collectives import shard_of
from planner.train.models import private
from planner.train.models.four_bit import row_lengths
from planner.train.models.four_bit import stored as stored_in_four_bits
from planner.train.models.hf import ADAPTER, HfCausal, transformers_name

# Most tensor names in an error.
_NAMED = 3
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Bytes per read: enough for a disk's full speed, and small compared to a shard.
_PIECE_BYTES = 2**24


@torch.no_grad()
def read(model: HfCausal, folder: ModelFolder, *, buffers_only: bool = False) -> None:
    """Fill this worker's shards of all weights except adapters from safetensors files of any floating-point type.

    With `buffers_only`, only the buffers in the files are read, because checkpoints do not hold them.

    Raises:
        UserError: a tensor is missing, has another shape, or does not belong to this model.
    """
    stored, lengths = folder.tensors, row_lengths(model)
    for name, (own_name, target) in _match(model, folder).items():
        if buffers_only and isinstance(target, nn.Parameter):
            continue
        if own_name in lengths:
            rows = torch.empty(len(shard_of(target)), lengths[own_name])
            read_rows(stored[name], rows_of(target), rows)
            shard_of(target).copy_(stored_in_four_bits(rows.to(target.device)))
        else:
            read_rows(stored[name], rows_of(target), shard_of(target))


@torch.no_grad()
def draw(model: HfCausal, bare: HfCausal, blocks: Iterable[str], seed: int) -> None:
    """Fill this worker's shards of all weights except adapters, and the buffers that files hold, with random values.

    transformers draws them, and they depend only on the seed and their names.

    Args:
        model: the sharded model.
        bare: the same model without shards and without memory.
        blocks: names of the model's blocks.
        seed: of the run.
    """
    targets: dict[str, Tensor] = dict(_fillable(model, remove_duplicate=True))
    lengths = row_lengths(model)
    for name in _units(bare, frozenset(blocks)):
        # On the CPU: a GPU's generator draws other numbers, so the first weights would depend on the device.
        unit = bare.get_submodule(name).to_empty(device="cpu")
        for adapter in (adapter for layer in unit.modules() for adapter in _adapters(layer)):
            # Adapters draw no random numbers here, so the other weights are equal with and without adapters.
            adapter.apply(private.leave_alone)
        with _seeded(seed, name):
            private.initialize(bare, name, recurse=True)
        for local_name, tensor in (*unit.named_parameters(), *unit.named_buffers()):
            if (full := f"{name}.{local_name}") in targets:
                _copy_into(targets[full], tensor, is_packed=full in lengths)
        progress_counter.count_work()
        # Frees the unit's memory before the next one gets some.
        unit.to_empty(device="meta")


@torch.no_grad()
def draw_adapters(model: HfCausal, bare: HfCausal, seed: int) -> None:
    """Fill this worker's shards of the adapters with values that peft draws. They depend only on seed and name."""
    parameters = dict(model.named_parameters())
    for name, layer in bare.named_modules():
        if not (adapters := _adapters(layer)):
            continue
        for adapter in adapters:
            adapter.to_empty(device="cpu")
        with _seeded(seed, name):
            layer.reset_lora_parameters(ADAPTER, init_lora_weights=True)
        for local_name, tensor in layer.named_parameters():
            if tensor.device.type != "meta":
                _copy_into(parameters[f"{name}.{local_name}"], tensor)
        for adapter in adapters:
            adapter.to_empty(device="meta")


@torch.no_grad()
def compute_buffers(model: HfCausal, bare: HfCausal) -> None:
    """Compute the buffers that are in no file, such as a rotary embedding's frequencies, by transformers.

    Raises:
        UserError: transformers does not compute a buffer of this model family.
    """
    for name, source in bare.named_modules():
        if not private.computed_buffers(source):
            continue
        source.to_empty(device="cpu", recurse=False)
        buffers = {key: b for key, b in private.computed_buffers(source).items() if b.is_floating_point()}
        # NaN shows afterwards which of them transformers did not compute.
        for buffer in buffers.values():
            buffer.fill_(torch.nan)
        # `devices=[]`: by default, `fork_rng` saves the state of every GPU, and so starts CUDA on all of them.
        with torch.random.fork_rng(devices=[]):
            private.initialize(bare, name, recurse=False)
        for key, buffer in private.computed_buffers(source).items():
            if key in buffers and bool(buffer.isnan().any()):
                raise UserError(f"{name}.{key} is in no file, and transformers does not compute it. Use another model")
            model.get_submodule(name).get_buffer(key).copy_(buffer)
        source.to_empty(device="meta", recurse=False)


def _match(model: HfCausal, folder: ModelFolder) -> dict[str, tuple[str, Tensor]]:
    """Name in the files -> name in the model, and the tensor.

    Raises:
        UserError: the files do not hold exactly this model's tensors.
    """
    own_names = {transformers_name(name): name for name, _ in _fillable(model)}
    targets = {transformers_name(name): tensor for name, tensor in _fillable(model)}
    stored, lengths = folder.tensors, row_lengths(model)
    renamed = private.names_in_model(model.hf, stored, dict(targets))
    aliases: dict[Tensor, list[str]] = {}
    for name, tensor in targets.items():
        aliases.setdefault(tensor, []).append(name)
    wanted: dict[str, tuple[str, Tensor]] = {}
    missing: list[str] = []
    reshaped: list[str] = []
    for tensor, names in aliases.items():
        found = next((renamed[name] for name in names if name in renamed), None)
        if found is None:
            missing.append(names[0])
        elif stored[found].shape != (shape := _whole_shape(tensor, lengths.get(own_names[names[0]]))):
            reshaped.append(f"{found} {stored[found].shape} instead of {shape}")
        else:
            wanted[found] = own_names[names[0]], tensor
    unexpected = [
        n for name, n in renamed.items() if name not in targets and not private.is_superfluous(model.hf, name)
    ]
    for what, found_names in (("missing", missing), ("of another shape", reshaped), ("not the model's", unexpected)):
        if found_names:
            more = f" and {len(found_names) - _NAMED} more" if len(found_names) > _NAMED else ""
            raise UserError(
                f"{folder.path}: its weights do not match its configuration ({what}: "
                f"{', '.join(sorted(found_names)[:_NAMED])}{more}). Repair the folder, or download the model again"
            )
    return wanted


def _fillable(model: HfCausal, *, remove_duplicate: bool = False) -> Iterator[tuple[str, Tensor]]:
    """All parameters except adapters', by each of their names, and the buffers that files hold."""
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        if not model.is_adapter(parameter):
            yield name, parameter
    yield from stored_buffers(model)


def stored_buffers(model: HfCausal) -> Iterator[tuple[str, Tensor]]:
    """The buffers that files hold beside the parameters, such as a layer's fixed scale, by name."""
    for path, module in model.named_modules():
        computed = private.computed_buffers(module)
        for key, buffer in module.named_buffers(recurse=False):
            if key not in computed:
                yield f"{path}.{key}", buffer


def _adapters(layer: nn.Module) -> list[nn.Module]:
    """A layer's adapters. Empty for other modules."""
    names: Any = getattr(layer, "adapter_layer_names", ())
    found = (getattr(layer, name) for name in names)
    return [adapter for adapter in found if isinstance(adapter, nn.Module)]


def rows_of(tensor: Tensor) -> slice:
    """This worker's rows. FSDP2 gives `ceil(n / W)` to each worker, the last ones fewer or none (`torch.chunk`)."""
    num_rows = tensor.shape[0] if tensor.ndim else 1
    if not isinstance(tensor, DTensor):
        return slice(0, num_rows)
    size = -(-num_rows // tensor.device_mesh.size())
    start = min(tensor.device_mesh.get_local_rank() * size, num_rows)
    stop = min(start + size, num_rows)
    assert shard_of(tensor).shape[0] == stop - start
    return slice(start, stop)


def read_rows(stored: StoredTensor, rows: slice, target: Tensor) -> None:
    """Read some rows of a stored tensor into `target`, in pieces, and no other bytes of the file.

    The safetensors library would map the file. Mapped pages count as the worker's memory, and remote storage would
    deliver them one by one.

    Raises:
        UserError: the rows cannot be read, or are not floating-point numbers.
    """
    if rows.start == rows.stop:
        return
    # A scalar is one row.
    shape = stored.shape or (1,)
    num_rows, target = shape[0], target if target.ndim else target.view(1)
    if stored.dtype not in _TYPES or prod(stored.shape) * _TYPES[stored.dtype].itemsize != stored.end - stored.start:
        raise UserError(f"{stored.file}: a tensor of type {stored.dtype} and shape {stored.shape} cannot be read")
    row_bytes = (stored.end - stored.start) // num_rows
    step = max(_PIECE_BYTES // row_bytes, 1)
    try:
        with stored.file.open("rb") as stream:
            for start in range(rows.start, rows.stop, step):
                stop = min(start + step, rows.stop)
                stream.seek(stored.start + start * row_bytes)
                # A copy that can be written: torch warns about memory that cannot.
                content = bytearray(stream.read((stop - start) * row_bytes))
                piece = torch.frombuffer(content, dtype=_TYPES[stored.dtype]).view(stop - start, *shape[1:])
                target[start - rows.start : stop - rows.start].copy_(piece)
                progress_counter.count_work()
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if the file has become shorter
        raise UserError(f"{stored.file}: cannot be read: {error}") from error


def _whole_shape(tensor: Tensor, length: int | None) -> tuple[int, ...]:
    """The shape of what a tensor stands for. `length`: weights per row, if they are packed."""
    return tuple(tensor.shape) if length is None else (tensor.shape[0], length)


def _copy_into(target: Tensor, whole: Tensor, *, is_packed: bool = False) -> None:
    rows = whole[rows_of(target)] if whole.ndim else whole
    shard_of(target).copy_(stored_in_four_bits(rows) if is_packed else rows)


def _units(bare: HfCausal, blocks: frozenset[str]) -> Iterator[str]:
    """The names of all blocks, and of modules outside them with own parameters, in the model's order."""
    for name, module in bare.named_modules():
        inside = any(name.startswith(f"{block}.") for block in blocks)
        if name in blocks or (not inside and next(module.parameters(recurse=False), None) is not None):
            yield name


@contextmanager
def _seeded(seed: int, name: str) -> Iterator[None]:
    key = f"weights {seed} {transformers_name(name)}".encode()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))
        yield
