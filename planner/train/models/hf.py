"""Causal language models of the transformers library, with or without adapters of the peft library.

Shapes: m rows, T tokens, V vocabulary.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner.data.hf_tokenizer import escape_logs
from planner.data.model_checks import require_fit
from planner.data.model_folder import CONFIG, ModelFolder
from planner.errors import UserError
from planner.events.training import AdaptersPlaced, AttentionChosen
from planner.job import Lora
from planner.job.compute import FLASH, VARLEN
from planner.train.models import document_attention, private, varlen_attention
from planner.train.models.blocks import Checkpointing, checkpoint_settings
from planner.train.models.document_attention import Documents, positions_in
from planner.train.models.four_bit import FourBitLinear
from planner.train.models.head import Targets, log_probs_in, log_probs_of

ADAPTER = "default"
"""peft's name for a model's only adapter"""
_PREFIX = "hf."
_WRITE_AUTO = "Write model.attention: auto"
_REASON_CHARS = 200


class HfCausal(nn.Module):
    """A causal language model of transformers with the call signature of planner's models."""

    def __init__(self, hf: Any, *, has_adapters: bool = False, chosen: AttentionChosen | None = None) -> None:
        super().__init__()
        self.hf = hf
        self.chosen = chosen
        """what `model.attention: auto` became. None: the job names its attention"""
        self.has_adapters = has_adapters
        self._flattens = private.is_flash_attention(hf)
        self._takes_boundaries = private.has_attention(hf, VARLEN)
        self.has_plain_head = private.has_plain_head(hf)
        """whether logits are `head(last hidden state)`, so that they can be computed in chunks"""

    def forward(
        self, inputs: Tensor, documents: Tensor | Documents | None = None, targets: Targets | None = None
    ) -> Tensor:
        """Token ids `(m, T)` -> logits `(m, T, V)`. With `targets`, their log-probabilities (`log_probs_of`).

        `documents`, `(m, T)`, numbers the documents of packed rows. Positions restart where the number changes, and
        attention stays within a document: transformers makes each layer's mask (such as sliding windows) from the
        positions.
        """
        if targets is None:
            logits: Tensor = self._run(self.hf, inputs, documents).logits
            return logits.reshape(*inputs.shape, -1)
        if not self.has_plain_head:
            return log_probs_in(self._run(self.hf, inputs, documents).logits, targets)
        head = self.hf.get_output_embeddings()
        return log_probs_of(self._run(self.hf.base_model, inputs, documents)[0], head.weight, head.bias, targets)

    def _run(self, module: nn.Module, inputs: Tensor, documents: Tensor | Documents | None) -> Any:
        numbers = documents.numbers if isinstance(documents, Documents) else documents
        positions = None if numbers is None else positions_in(numbers)
        if self._takes_boundaries:
            given = varlen_attention.arguments_for(inputs, positions, documents)
            return module(input_ids=inputs, use_cache=False, **given)
        if positions is None:
            return module(input_ids=inputs, use_cache=False)
        if self._flattens:
            # For flash attention, transformers splits sequences by positions only if there is one row (5.23,
            # `_is_packed_sequence`). A row's positions begin with 0, so rows are kept apart like documents.
            inputs, positions = inputs.reshape(1, -1), positions.reshape(1, -1)
        return module(input_ids=inputs, position_ids=positions, use_cache=False)

    def is_adapter(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter belongs to an adapter. In a model with adapters, all other parameters are frozen."""
        return self.has_adapters and parameter.requires_grad

    def without_adapters(self) -> AbstractContextManager[None]:
        """A context in which the model computes without its adapters."""
        return private.without_adapters(self)


def require_packed(
    model: HfCausal, setting: str, *, row_tokens: int = 0, any_worker: Callable[[bool], bool] = bool
) -> None:
    """Check that a model keeps the documents of a packed row apart. All workers must call it.

    A masked token has a weight of exactly zero. So other tokens in one document leave the next one's logits equal to
    the bit, by two forward passes. In a mixture of experts they change how many tokens an expert gets, and so how its
    products round. There the gradient decides, by a third pass: that of the second document's logits is exactly zero
    at the first document's tokens. That needs no bound for rounding. It does not see what has no gradient, such as
    experts that leave out tokens when they have too many.

    Args:
        model: the model, in shards or not.
        setting: of the job, which packs rows. An error names it.
        row_tokens: tokens of the longest row.
        any_worker: whether a value is true on any worker. Passes must be the same on all.

    Raises:
        UserError: the model cannot read rows of that length, or tokens in one document reach the next.
    """
    kind, most = model.hf.config.model_type, private.mask_tokens(model.hf)
    with _checking(model):
        if most is not None and row_tokens > most and any_worker(not _reads_row(model, most + 1)):
            raise UserError(
                f"batch.max_tokens: rows have up to {row_tokens} tokens, and the masks of {kind} have {most}. "
                "Write less (for kto: of batch.max_micro), or remove it"
            )
        if not any_worker(not _has_same_bits(model)) or _has_own_gradient(model):
            return
    raise UserError(f"{setting}: {kind} lets a packed row's documents see each other. Remove that setting")


@torch.no_grad()
def _reads_row(model: HfCausal, num_tokens: int) -> bool:
    """Whether a model reads a row of two documents that has so many tokens."""
    documents = torch.arange(num_tokens, device=next(model.parameters()).device)[None] // (num_tokens // 2 + 1)
    try:
        model(torch.ones_like(documents), documents)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # sizes that do not match
        return False
    return True


_DOCUMENTS, _FIRST = (0, 0, 0, 1, 1), 3
"""document numbers of a short row, and the tokens of its first document"""


@contextmanager
def _checking(model: HfCausal) -> Iterator[None]:
    is_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(is_training)
        if isinstance(model, FSDPModule):
            # Without a backward pass the outermost parameters stay unsharded, and the optimizer would be made over
            # those.
            model.reshard()


def _second_logits(model: HfCausal, first: tuple[int, ...]) -> Tensor:
    """Logits of the second document behind another one."""
    device = next(model.parameters()).device
    found: Tensor = model(torch.tensor([[*first, 5, 6]], device=device), torch.tensor([_DOCUMENTS], device=device))
    return found[:, _FIRST:]


@torch.no_grad()
def _has_same_bits(model: HfCausal) -> bool:
    """Whether other tokens in the first document leave the second one's logits as they are."""
    return torch.equal(*(_second_logits(model, first) for first in ((1, 2, 3), (4, 3, 2))))


def _has_own_gradient(model: HfCausal) -> bool:
    """Whether the second document's logits depend on its own tokens' embeddings alone."""
    embedded: list[Tensor] = []

    def note(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    handle = model.hf.get_input_embeddings().register_forward_hook(note)
    try:
        for parameter in trained:
            parameter.requires_grad_(False)  # a tensor's has no keyword
        with torch.enable_grad():
            _second_logits(model, (1, 2, 3)).float().square().sum().backward()  # type: ignore[no-untyped-call]
    finally:
        handle.remove()
        for parameter in trained:
            parameter.requires_grad_()
    gradients = [tensor.grad for tensor in embedded if tensor.grad is not None]
    return bool(gradients) and all(
        not each[:, :_FIRST].count_nonzero() and bool(each[:, _FIRST:].count_nonzero()) for each in gradients
    )


def transformers_name(name: str) -> str:
    """Transformers' own name for a parameter, a buffer or a module, without planner's prefix and peft's part."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def peft_name(name: str) -> str:
    """The name of an adapter's parameter in peft's files."""
    before, _, after = name.removeprefix(_PREFIX).rpartition(f".{ADAPTER}")
    return f"base_model.model.{before}{after}"


def computable_attention(choices: tuple[str, ...], device: torch.device) -> tuple[str, ...]:
    """Those of the choices of `model.attention: auto` that this machine can compute. `sdpa` always is one."""
    from transformers.utils import is_flash_attn_2_available

    there = {
        FLASH: device.type == "cuda" and is_flash_attn_2_available(),
        VARLEN: varlen_attention.is_there(device),
    }
    return tuple(name for name in choices if there.get(name, True))


def build_on_meta(
    folder: ModelFolder,
    *,
    activation_checkpointing: Checkpointing = False,
    auto_attention: tuple[str, ...] = ("sdpa",),
    use_liger: bool = False,
) -> HfCausal:
    """The model on the meta device (without memory) in float32.

    Args:
        folder: of the model.
        activation_checkpointing: what the backward pass computes again.
        auto_attention: what `model.attention: auto` stands for: the first of these that the model has. The last one
            must be there.
        use_liger: whether Liger's kernels take the place of torch's.

    Raises:
        UserError: the folder holds no model that can be trained with the job's settings.
    """
    require_fit(folder)
    config = folder.model
    import transformers

    escape_logs()
    document_attention.use_in_transformers()
    varlen_attention.use_in_transformers()
    from_config: Any = transformers.AutoModelForCausalLM.from_config

    def built(attention: str) -> Any:
        with torch.device("meta"):
            # float32 whatever the files hold: FSDP casts weights for a pass, and the optimizer needs them in full.
            return from_config(settings, attn_implementation=attention, dtype=torch.float32, trust_remote_code=False)

    try:
        settings = transformers.AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
        # By default, transformers keeps the keys and values of every layer, for a generation that never comes.
        settings.use_cache = False
        chosen = None
        if config.attention == "auto":
            hf, chosen = _first_that_fits(built, auto_attention)
        else:
            hf = built(config.attention)
    except Exception as error:
        raise _refusal(folder, error) from error
    if config.attention == VARLEN:
        varlen_attention.check(hf)
    if use_liger:
        private.use_liger(hf)
    if activation_checkpointing:
        # transformers 6 removes the older name, and late versions of 5 introduced the newer one.
        enable = getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
        rank = None if config.lora is None else config.lora.rank
        enable(checkpoint_settings(activation_checkpointing, rank))
    if config.lora is not None:
        add_adapters(hf, config.lora)
    return HfCausal(hf, has_adapters=config.lora is not None, chosen=chosen)


def _first_that_fits(built: Callable[[str], Any], choices: tuple[str, ...]) -> tuple[Any, AttentionChosen]:
    """The model with the first attention that it has. Others are passed over, each with its reason."""
    *others, last = choices
    passed_over = []
    for name in others:
        try:
            hf = built(name)
        except Exception as error:  # noqa: BLE001  # a model without it: a ValueError of flash attention, and others
            passed_over.append(
                f"{name}: transformers cannot make the model with it ({_first_line(error)[:_REASON_CHARS]})"
            )
            continue
        reason = varlen_attention.reason_against(hf) if name == VARLEN else ""
        if not reason:
            return hf, AttentionChosen(attention=name, passed_over=tuple(passed_over))
        passed_over.append(f"{name}: {reason}")
    return built(last), AttentionChosen(attention=last, passed_over=tuple(passed_over))


def _refusal(folder: ModelFolder, error: Exception) -> UserError:
    """Of a model that transformers did not make.

    It may have an unknown model_type, code of its own, or attention that is not installed. Values of a wrong type can
    raise anything.
    """
    attention = folder.model.attention
    if attention == FLASH and isinstance(error, ImportError):
        needs = "GPUs and the package flash-attn on every worker"
        return UserError(f"model.attention {FLASH} needs {needs}. {_WRITE_AUTO}")
    reason = " ".join(str(error).split())[:_REASON_CHARS] or type(error).__name__
    advice = f". {_WRITE_AUTO}" if attention == FLASH and "Attention" in reason else ""
    return UserError(f"{folder.path / CONFIG}: transformers cannot make a model from it: {reason}{advice}")


def build_for_shapes(folder: ModelFolder) -> HfCausal:
    """As `build_on_meta`, for what does not compute with the model. This machine may lack GPUs and flash-attn.

    Raises:
        UserError: the folder holds no model that can be trained with the job's settings.
    """
    if folder.model.attention == FLASH:
        folder = replace(folder, model=folder.model.model_copy(update={"attention": "auto"}))
    return build_on_meta(folder)


def add_adapters(hf: Any, lora: Lora) -> None:
    """Add adapters to the layers that the job names, in place, and freeze all other parameters.

    Raises:
        UserError: a name matches no layer of this model.
    """
    from peft import inject_adapter_in_model

    names = [name for name, _ in hf.named_modules()]
    for target in lora.targets or ():
        if not any(f".{name}".endswith(f".{target}") for name in names):
            ends = dict.fromkeys(name.rpartition(".")[2] for name in _linear_layers(hf))
            raise UserError(f"model.lora.targets: {target} matches no layer of this model. Choose of {', '.join(ends)}")
    try:
        inject_adapter_in_model(lora_config(lora), hf, adapter_name=ADAPTER)
    except ValueError as error:
        raise UserError(f"model.lora.targets: {_first_line(error)}") from error


def adapters_of(model: HfCausal) -> AdaptersPlaced:
    """The number of a model's linear layers, and how many of them have adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted = {name for name, module in model.hf.named_modules() if isinstance(module, BaseTunerLayer)}
    return AdaptersPlaced(adapted=len(adapted), layers=len(adapted | _linear_layers(model.hf).keys()))


def _linear_layers(hf: Any) -> dict[str, None]:
    """The names of the linear layers that may get adapters, in the model's order: all except the head."""
    from transformers.pytorch_utils import Conv1D

    head = hf.get_output_embeddings()
    found = [n for n, m in hf.named_modules() if isinstance(m, nn.Linear | Conv1D | FourBitLinear) and m is not head]
    return dict.fromkeys(name.removesuffix(".base_layer") for name in found if ".lora_" not in name)


def lora_config(lora: Lora) -> Any:
    """The job's adapter settings as peft's configuration."""
    from peft import LoraConfig, TaskType

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # any number works
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        task_type=TaskType.CAUSAL_LM,
    )


def bare_copy(model: HfCausal) -> HfCausal:
    """A second model on the meta device, whose units are filled one by one."""
    return copy.deepcopy(model)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
