"""The private interfaces of transformers and peft that loading a model in shards needs.

Tested with transformers 5.23 and peft 0.21 by tests/fsdp/test_hf_training.py and tests/train/test_model_safety.py.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.base.text import how_to_install
from planner.errors import UserError

# In files of older versions. It is recomputed, never loaded.
_RECOMPUTED = r"rotary_emb\.inv_freq$"


def is_flash_attention(hf: Any) -> bool:
    """Whether the model uses flash attention, which splits packed rows by positions only in a batch of one row."""
    return "flash" in str(hf.config._attn_implementation)


def takes_attention(hf: Any) -> bool:
    """Whether a model's layers call the attention function that is registered under the name in its configuration."""
    return bool(hf._supports_attention_backend)


def has_attention(hf: Any, name: str) -> bool:
    """Whether that name is the one in a model's configuration."""
    return bool(hf.config._attn_implementation == name)


def mask_tokens(hf: Any) -> int | None:
    """The tokens of the causal masks that a model keeps in its layers. None: it keeps none.

    GPT-Neo has a mask of `max_position_embeddings` tokens in each layer. Packed rows may be longer, since positions
    begin again with each document. Not every model that keeps a mask uses it.
    """
    sizes = [
        buffer.shape[-1]
        for buffer in hf.buffers()
        if buffer.dtype == torch.bool and buffer.ndim > 1 and buffer.shape[-1] == buffer.shape[-2]
    ]
    return min(sizes, default=None)


@contextlib.contextmanager
def without_packed_rows() -> Iterator[None]:
    """Have transformers take each row for one text. It would make a mask for tensors whose values it cannot see."""
    from transformers import masking_utils

    name = "find_packed_sequence_indices"
    before = vars(masking_utils).get(name)
    if before is None:  # another version of transformers: sizes then have a mask too many
        yield
        return
    setattr(masking_utils, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masking_utils, name, before)


def use_liger(hf: Any) -> None:
    """Replace a model's norms, rotary positions and feed-forward layers by Liger's kernels, in place.

    The loss stays planner's: Liger's sums would not be over the global batch.

    Raises:
        UserError: liger-kernel is not installed, or knows no such model.
    """
    try:
        from liger_kernel.transformers import monkey_patch as liger
    except ImportError as error:
        raise UserError(
            f"train.kernels: liger-kernel cannot be imported on a worker ({error}). Install it there "
            f"({how_to_install('liger')}), or write train.kernels: own"
        ) from error
    kind = hf.config.model_type
    if kind not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"train.kernels: Liger has no kernels for {kind}. Write train.kernels: own")
    liger._apply_liger_kernel_to_instance(model=hf, cross_entropy=False, fused_linear_cross_entropy=False)


# Operations by which transformers makes logits of hidden states, if the head is all there is. Others scale or cap them.
_PLAIN = {"slice", "view", "_unsafe_view", "reshape", "alias", "detach", "t", "transpose", "_to_copy", "mm", "addmm"}
_PRODUCTS = {"mm", "addmm"}


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the names of the operations that are done while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def has_plain_head(hf: Any) -> bool:
    """Whether a model's logits are its output layer's product with the last hidden states, and nothing else.

    The model computes logits of hidden states that it is given, on the device of its weights (such as meta), and the
    operations are noted. Gemma 2 caps logits, Granite and Cohere scale them, and adapters may be on the layer.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPast

    class Given(BaseModelOutputWithPast):  # type: ignore[misc]
        def __getattr__(self, _name: str) -> None:
            """Some models look for more, such as what routers said."""

    head, base = hf.get_output_embeddings(), hf.base_model
    if type(head) is not nn.Linear or base is hf:
        return False
    hidden = torch.zeros(1, 1, head.in_features, dtype=head.weight.dtype, device=head.weight.device)
    tokens = torch.zeros(1, 1, dtype=torch.int64, device=hidden.device)
    given = Given(last_hidden_state=hidden)
    before, operations = vars(base).get("forward"), _Operations()
    base.forward = lambda *_, **__: given
    try:
        with torch.no_grad(), operations:
            logits = hf(input_ids=tokens, use_cache=False).logits
    except Exception:  # noqa: BLE001  # a model that needs more than that keeps its own way
        return False
    finally:
        del base.forward
        if before is not None:
            base.forward = before
    products = [name for name in operations.names if name in _PRODUCTS]
    return set(operations.names) <= _PLAIN and len(products) == 1 and logits.shape == (1, 1, head.out_features)


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
