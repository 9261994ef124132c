"""`model.attention: varlen`: attention within documents on GPUs, by torch's own flash attention and without a mask.

The kernel takes the places where documents begin in all rows laid behind each other. They are computed once per forward
pass, go to the model in the mask's place, and reach each layer as its mask would.

The numbers beside the places would cost a wait for the GPU in each layer. So they are sizes of the tensor, which is
expanded, without memory for them:

    boundaries  `(window, longest, N + 1)` int32. `[0, 0]` has the places: begins of N documents, and the end
    longest     tokens of the longest document
    window      tokens that a token attends to, itself included. `longest`: all of its document up to itself

Shapes: m rows, T tokens, H heads, D width of a head, N documents.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from planner.errors import UserError
from planner.job.compute import VARLEN
from planner.train.models import private
from planner.train.models.document_attention import BY_TOKEN, Documents, places_of
from planner.train.models.head import moved

_NAME = "model.attention varlen: "
_OTHER = "Write model.attention: auto"
# What the kernel can hold (`mha_varlen_fwd` in torch's flash_api.cpp).
_WIDTH_MULTIPLE, _MOST_WIDTH = 8, 256
_LEAST_CAPABILITY = (8, 0)
# What changes attention and the kernel has no argument for: a cap on scores, a sink, a bias, keys of earlier passes.
_UNKNOWN = ("softcap", "s_aux", "position_bias", "cache")


def boundaries_of(inputs: Tensor, documents: Tensor | Documents | None) -> Tensor:
    """Inputs `(m, T)` and document numbers `(m, T)` -> boundaries `(longest, longest, N + 1)`.

    Without document numbers each row is a document. Padding at a row's end then belongs to it, behind all other tokens.
    """
    rows, tokens = inputs.shape
    if documents is None:
        places = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device=inputs.device)
        return places.expand(tokens, tokens, -1)
    if isinstance(documents, Documents):
        return documents.places.expand(documents.longest, documents.longest, -1)
    # This copy is the forward pass's only wait for the GPU.
    on_host = places_of(documents.cpu())
    longest = int(on_host.diff().max())
    return moved(on_host, inputs.device).expand(longest, longest, -1)


@cache
def kernel() -> Callable[..., Tensor]:
    """Return torch's `varlen_attn`.

    Raises:
        UserError: this torch has none that takes a window.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        found: Any = None
    else:
        found = varlen_attn
    # Versions of torch differ in its arguments, so they decide and not the version.
    if found is None or "window_size" not in inspect.signature(found).parameters:
        has = f"this worker has {torch.__version__}"
        raise UserError(f"model.attention varlen needs torch 2.11 or newer, and {has}. {_OTHER}")
    return found  # type: ignore[no-any-return]


@cache
def is_there(device: torch.device) -> bool:
    """Whether the kernel runs on a worker's device."""
    try:
        require(device)
    except UserError:
        return False
    return True


def takes_width(width: int) -> bool:
    """Whether the kernel takes heads with that many features."""
    return width % _WIDTH_MULTIPLE == 0 and width <= _MOST_WIDTH


def require(device: torch.device) -> None:
    """Check that the kernel runs on a worker's device.

    Raises:
        UserError: it does not.
    """
    if device.type != "cuda":
        raise UserError(f"model.attention varlen needs a GPU, and this worker trains on its CPU. {_OTHER}")
    found = torch.cuda.get_device_capability(device)
    if found < _LEAST_CAPABILITY:
        raise UserError(
            "model.attention varlen needs a GPU of compute capability 8.0 or more, and this one has "
            f"{found[0]}.{found[1]}. {_OTHER}"
        )
    kernel()


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: `(m, H, T, D)` -> `(m, T, H, D)`. `attention_mask` are boundaries.

    Raises:
        UserError: the model's attention is more than the kernel computes.
    """
    if reason := _obstacle(module, query, key, value, settings):
        raise UserError(f"{_NAME}{reason}. {_OTHER}")
    if query.device.type == "meta":
        return query.transpose(1, 2), None
    window, longest, _ = attention_mask.shape
    # -1: no limit. The window counts the token itself, and the kernel does not.
    before = window - 1 if window < longest else -1
    return within(query, key, value, attention_mask[0, 0], longest, before=before, scaling=scaling), None


def within(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    longest: int,
    *,
    before: int = -1,
    scaling: float | None = None,
) -> Tensor:
    """Causal attention within documents, by the kernel: `(m, H, T, D)` -> `(m, T, H, D)`.

    Args:
        query: of all heads.
        key: may have fewer heads.
        value: as many as `key`.
        places: `(N + 1,)` int32, on the device: where documents begin in all rows behind each other, and the end.
        longest: tokens of the longest document.
        before: tokens before itself that a token attends to. -1: all of its document.
        scaling: of the products of queries and keys. None: one over the root of D.
    """
    rows, heads, tokens, width = query.shape
    laid = [each.transpose(1, 2).reshape(rows * tokens, each.shape[1], width) for each in (query, key, value)]
    found = kernel()(
        *laid, places, places, longest, longest, scale=scaling, window_size=(before, 0), **_grouping(heads, key)
    )
    return found.view(rows, tokens, heads, width)


def _grouping(heads: int, key: Tensor) -> dict[str, bool]:
    # torch 2.11 takes fewer heads in keys and values without being told, and torch 2.13 does not.
    is_told = "enable_gqa" in inspect.signature(kernel()).parameters
    return {"enable_gqa": True} if is_told and key.shape[1] != heads else {}


def _obstacle(module: Any, query: Tensor, key: Tensor, value: Tensor, settings: dict[str, Any]) -> str:
    """Why the kernel cannot compute this attention. Empty if it can."""
    width = query.shape[-1]
    if key.shape[-1] != width or value.shape[-1] != width:
        return f"heads have {width} features in queries and {value.shape[-1]} in values, and the kernel takes one width"
    if not takes_width(width):
        return f"heads have {width} features, and the kernel takes multiples of {_WIDTH_MULTIPLE} up to {_MOST_WIDTH}"
    if settings.get("dropout"):
        return f"the model drops {settings['dropout']:g} of its attention, and the kernel cannot"
    is_causal = settings.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        return "the model's attention is not causal"
    found = [name for name in _UNKNOWN if settings.get(name) is not None]
    found += [
        name
        for name, value in settings.items()
        if isinstance(value, Tensor) and value.ndim and name not in (*BY_TOKEN, *found)
    ]
    return f"the kernel has no {', '.join(found)}, which this model's attention takes" if found else ""


def boundaries_of_layer(
    *,
    mask_function: Callable[..., Tensor],
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **_settings: Any,
) -> Tensor:
    """A mask function of transformers: a pass's boundaries -> those of a kind of layer, with its window.

    Args:
        mask_function: whether a query may attend to a key: `(row, head, query, key)`.
        attention_mask: what the model was given as its mask.
        local_size: the window of the layers.
        use_vmap: whether the model combines its masks with others.

    Raises:
        UserError: a token may attend to other tokens than the last `local_size` ones.
    """
    assert attention_mask is not None, "only HfCausal calls a model with this attention"
    if use_vmap or not _is_a_window(mask_function, local_size):
        raise UserError(f"{_NAME}layers of this model have more than a causal window. {_OTHER}")
    longest = attention_mask.shape[1]
    window = longest if local_size is None else min(local_size, longest)
    return attention_mask[0].expand(window, -1, -1)


def _is_a_window(may_attend: Callable[..., Tensor], size: int | None) -> bool:
    """Whether a token may attend to itself and the `size - 1` ones before it (to all of them, without a size)."""
    # Behind the first window. There, attention in blocks differs from one that slides.
    query = 2**20 if size is None else size + 1
    first = 0 if size is None else query - size + 1
    expected = {first: True, query: True, query + 1: False}
    if size is not None:
        expected[first - 1] = False
    on_host = partial(torch.tensor, device="cpu")
    try:
        return all(
            bool(may_attend(on_host(0), on_host(0), on_host(query), on_host(key))) == may
            for key, may in expected.items()
        )
    except (RuntimeError, IndexError):  # a function of the tokens of a batch
        return False


@cache
def use_in_transformers() -> None:
    """Make `varlen` a name that transformers knows, in this process."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(VARLEN, attend)
    AttentionMaskInterface.register(VARLEN, boundaries_of_layer)


def check(hf: Any) -> None:
    """Check on the meta device that a model's attention is what the kernel computes.

    Some models look at values, such as the longest position. Then the first pass of training checks them.

    Raises:
        UserError: it is not.
    """
    if reason := _refusal(hf)[0]:
        raise UserError(f"{_NAME}{reason}. {_OTHER}")


def reason_against(hf: Any) -> str:
    """Why `auto` does not choose the kernel for a model. Empty if the model's attention is known to be right."""
    reason, is_known = _refusal(hf)
    return reason if is_known else f"{hf.config.model_type} shows only in training whether it can compute with it"


@torch.no_grad()
def _refusal(hf: Any) -> tuple[str, bool]:
    """Why a model cannot compute with the kernel (empty if it can), and whether that is known on the meta device."""
    kind = hf.config.model_type
    if not private.takes_attention(hf):
        return f"transformers cannot exchange the attention of {kind}", True
    inputs = torch.zeros(1, 2, dtype=torch.int64, device="meta")
    try:
        hf.base_model(input_ids=inputs, use_cache=False, **arguments_for(inputs, None))
    except UserError as error:
        return str(error).removeprefix(_NAME).removesuffix(f". {_OTHER}"), True
    except Exception as error:  # noqa: BLE001  # a model may raise anything at other arguments than its own
        if "meta" in str(error).lower():
            return "", False
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return f"{kind} cannot compute with it: {reason}", True
    return "", True


def arguments_for(
    inputs: Tensor, positions: Tensor | None, documents: Tensor | Documents | None = None
) -> dict[str, Tensor]:
    """What a model with this attention is called with beside its inputs `(m, T)`.

    Positions are always given: some models would count them by a mask.
    """
    if positions is None:
        positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
    return {"attention_mask": boundaries_of(inputs, documents), "position_ids": positions}
