"""What a job's model needs of memory, found without a device: its own passes run on tensors without values.

torch's fake tensors (`FakeTensorMode`) have shapes and types only. The model computes a micro-batch of them with
planner's own loss, forward and backward, and each storage is counted from the operation that makes it until it is
freed. So every model of transformers is measured, with its checkpointing, adapters and 4-bit layers, and no formula
knows any of them. Attention is that of torch's `sdpa` on a CPU, which keeps the same tensors as flash attention.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from planner.data.model_folder import ModelFolder
from planner.job import GptModel, Job, Model, Train
from planner.job.memory import Device, needs_second_model
from planner.plan.commit_size import FLOAT32_BYTES
from planner.plan.memory import Footprint, Live, Pass, SampleSize, Unit, Units
from planner.train.models import private
from planner.train.models.four_bit import own_tables, quantize
from planner.train.models.gpt import Gpt
from planner.train.models.head import Targets, full_chunks, sized_for
from planner.train.models.hf import HfCausal, build_on_meta
from planner.train.shard import blocks_of


def footprint(
    job: Job, folder: ModelFolder | None, reference: ModelFolder | None, sample: SampleSize, device: Device
) -> Footprint:
    """Measure a job's model.

    Args:
        job: its model is planner's own, or the folder's.
        folder: of the trained model. None for planner's own.
        reference: of the second model, if the loss needs one that is not the trained one's first weights.
        sample: the largest one.
        device: `cuda` or `cpu`: losses are computed in chunks of another size on each.

    Raises:
        UserError: the folder holds no model that can be trained with the job's settings.
        NotImplementedError, RuntimeError: the model's operations depend on values, as those of routers may.
    """
    model, second = _model(folder or job.model, job.train), None
    if needs_second_model(job):
        other = _model(reference or folder or job.model, job.train)
        second = _units(other.requires_grad_(requires_grad=False), job.train)
    units = _units(model, job.train)
    with FakeTensorMode(), own_tables(), private.without_packed_rows(), sized_for(device):
        _fake(model, job.train)
        measured = tuple((count, _pass(model, sample, count)) for count in _counts(model, sample, device))
    return Footprint(units=units, reference=second, sample=sample, measured=measured)


def _model(config: Model | ModelFolder, train: Train) -> nn.Module:
    """The model that workers would make, on the meta device."""
    if not isinstance(config, ModelFolder):
        assert isinstance(config, GptModel)  # a user's own loop builds its model itself
        with torch.device("meta"):
            return Gpt(config, activation_checkpointing=train.activation_checkpointing)
    # Weights are not read. Attention that this machine lacks keeps what `sdpa` keeps.
    changes = {"weights": "random", "attention": "eager" if config.model.attention == "eager" else "sdpa"}
    config = replace(config, model=config.model.model_copy(update=changes))
    model = build_on_meta(config, activation_checkpointing=train.activation_checkpointing)
    if config.model.frozen == "nf4":
        quantize(model.hf)
    return model


def _units(model: nn.Module, train: Train) -> Units:
    """Its blocks and the rest, with their sizes. A parameter that two layers share counts once."""
    blocks = blocks_of(model).values()
    own = {parameter for block in blocks for parameter in block.parameters()}
    rest = [parameter for parameter in model.parameters() if parameter not in own]
    return Units(rest=_unit(rest, train), blocks=tuple(_unit(list(block.parameters()), train) for block in blocks))


def _unit(parameters: list[nn.Parameter], train: Train) -> Unit:
    element_bytes = 2 if train.precision == "bf16" else FLOAT32_BYTES
    return Unit(
        trained=sum(each.numel() for each in parameters if each.requires_grad),
        frozen_bytes=sum(each.nbytes for each in parameters if not each.requires_grad),
        # Weights in 4 bits are stored as bfloat16 and gathered as they are.
        gathered_bytes=sum(each.numel() * min(each.itemsize, element_bytes) for each in parameters),
    )


def _counts(model: nn.Module, sample: SampleSize, device: str) -> list[int]:
    """The micro-batches to measure: in samples. Memory is linear between them, and beyond the last."""
    head: Any = model.hf.get_output_embeddings() if isinstance(model, HfCausal) else model.head
    tokens = sample.rows * sample.tokens
    full = [-(-count // tokens) for count in full_chunks(head.weight.shape[0], device)]
    return sorted({1, *full, 2 * full[-1]})


def _fake(model: nn.Module, train: Train) -> None:
    """Replace its tensors by fake ones of the CPU, and weights by those that FSDP gathers."""
    weights = dict[nn.Parameter, nn.Parameter]()  # one for a parameter that two layers share
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in weights:
                dtype = torch.bfloat16 if train.precision == "bf16" else parameter.dtype
                tensor = torch.empty(parameter.shape, dtype=dtype, device="cpu")
                weights[parameter] = nn.Parameter(tensor, parameter.requires_grad)
            setattr(module, name, weights[parameter])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu"))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations make, until they are freed."""

    def __init__(self, known: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._weights = [tensor.untyped_storage() for tensor in known]  # kept, so that no other one gets their identity
        self._known = {id(storage) for storage in self._weights}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = id(storage), storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._free, key, num_bytes)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)

    def _free(self, key: int, num_bytes: int) -> None:
        self.now -= num_bytes
        self._known.discard(key)


@dataclass
class _Parts:
    """The parts of a pass, as they end."""

    counter: _Counter
    done: list[Live] = field(default_factory=list)

    def end(self, free: Callable[[], None] = lambda: None) -> None:
        """A part has ended. `free` drops what FSDP drops then."""
        peak, now = self.counter.peak, self.counter.now
        self.done.append(Live(peak=peak, end=now))
        free()
        self.counter.peak = self.counter.now


def _pass(model: nn.Module, sample: SampleSize, num_samples: int) -> Pass:
    """A forward and a backward pass of a micro-batch."""
    counter = _Counter(iter([*model.parameters(), *model.buffers()]))
    parts = _Parts(counter)
    tokens = torch.zeros(num_samples * sample.rows, sample.tokens, dtype=torch.int64)
    places = torch.arange(tokens.numel())
    targets = Targets(places=places, tokens=torch.zeros_like(places), is_summed=sample.is_summed)
    blocks = list(blocks_of(model).values())
    with _noting(blocks, parts), counter:
        found = model(tokens, None, targets)
        loss = found if sample.is_summed else found.sum()
        del found
        loss.backward()
        parts.end()
    for parameter in model.parameters():
        parameter.grad = None
    forward, loss_part, *found_blocks, end = parts.done
    if len(found_blocks) < len(blocks):  # below frozen embeddings, the first block's input has no gradient
        found_blocks, end = [*found_blocks, end], Live(peak=end.end, end=end.end)
    return Pass(forward=forward, loss=loss_part, blocks=tuple(found_blocks), end=end)


@contextmanager
def _noting(blocks: list[nn.Module], parts: _Parts) -> Iterator[None]:
    """Note where parts of a pass end, and drop a block's gradients when its backward pass is over."""

    def drop(number: int) -> None:
        for parameter in blocks[number].parameters():
            parameter.grad = None

    seen = set[object]()  # a block that is computed again in the backward pass calls its hooks again

    def ends(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if "end" not in seen:
            seen.add("end")
            hidden = output if isinstance(output, Tensor) else output[0]
            hidden.register_hook(lambda _gradient: parts.end())
            parts.end()

    def begins(number: int, inputs: Any, settings: Any) -> None:
        hidden = inputs[0] if inputs else settings["hidden_states"]
        if number not in seen and hidden.requires_grad:
            # Its gradient is there when the block's backward pass is over.
            hidden.register_hook(lambda _gradient: parts.end(lambda: drop(number)))
        seen.add(number)

    handles = [blocks[-1].register_forward_hook(ends)]
    for number, block in enumerate(blocks):
        handles.append(
            block.register_forward_pre_hook(
                lambda _module, inputs, settings, number=number: begins(number, inputs, settings), with_kwargs=True
            )
        )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
