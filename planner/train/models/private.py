"""The private interfaces of transformers and peft that loading a model in shards needs.

Tested with transformers 5.23 and peft 0.21 by tests/fsdp/test_hf_training.py and tests/train/test_model_safety.py.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import UserError

# In files of older versions. It is recomputed, never loaded.
_RECOMPUTED = r"rotary_emb\.inv_freq$"


def is_flash_attention(hf: Any) -> bool:
    """Whether the model uses flash attention, which splits packed rows by positions only in a batch of one row."""
    return "flash" in str(hf.config._attn_implementation)


@contextlib.contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """A context in which peft's layers skip their adapters.

    peft's own method would toggle `requires_grad`, on parameters that FSDP manages.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "_disable_adapters")]
    before = [layer._disable_adapters for layer in layers]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer._disable_adapters = value


def initialize(root: nn.Module, name: str, *, recurse: bool) -> None:
    """Initialise a module (and the modules in it, with `recurse`) as transformers does without files."""
    from transformers import PreTrainedModel

    module, owner = root.get_submodule(name), root.get_submodule(name)
    # The innermost PreTrainedModel around the module has the method that initialises it.
    while not isinstance(owner, PreTrainedModel):
        name = name.rpartition(".")[0]
        owner = root.get_submodule(name)
    if recurse:
        module.apply(owner._initialize_weights)
    else:
        # transformers would skip a module that it has initialised before.
        _mark(module, is_done=False)
        owner._initialize_weights(module)


def leave_alone(module: nn.Module) -> None:
    """Make `initialize` skip this module."""
    _mark(module, is_done=True)


def _mark(module: nn.Module, *, is_done: bool) -> None:
    marked: Any = module
    marked._is_hf_initialized = is_done


def computed_buffers(module: nn.Module) -> dict[str, Tensor]:
    """A module's own buffers that are in no file, by name."""
    names = module._non_persistent_buffers_set
    return {name: buffer for name, buffer in module.named_buffers(recurse=False) if name in names}


def is_superfluous(hf: Any, name: str) -> bool:
    """Whether transformers ignores a tensor of this name in the files."""
    patterns = [_RECOMPUTED, *(hf._keys_to_ignore_on_load_unexpected or ())]
    return any(re.search(pattern, name) for pattern in patterns)


def names_in_model(hf: Any, stored: Iterable[str], known: dict[str, Any]) -> dict[str, str]:
    """Name in the model -> name in its files. transformers renames some tensors, and adds or drops a prefix.

    Raises:
        UserError: a tensor is stored in another form than the model computes with.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    changes = get_model_conversion_mapping(hf)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    found = {}
    for name in stored:
        new, converter = rename_source_key(name, renamings, converters, hf.base_model_prefix, known)
        if converter is not None:
            raise UserError(
                f"{name} is stored in another form than {hf.config.model_type} computes with (such as the experts of a "
                "mixture). planner cannot train such models yet"
            )
        found[new] = name
    return found


def name_in_files(hf: Any, name: str) -> str:
    """The name of a tensor in the files that transformers writes."""
    from transformers.core_model_loading import revert_weight_conversion

    (found,) = revert_weight_conversion(hf, {name: torch.empty(0, device="meta")})
    return str(found)


def delta_weight(layer: Any) -> Tensor:
    """The tensor that a layer's adapter adds to the layer's weight."""
    delta: Tensor = layer.get_delta_weight(*layer.active_adapters)
    return delta.detach()
