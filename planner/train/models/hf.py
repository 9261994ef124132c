"""Causal language models of the transformers library, with or without adapters of the peft library.

Shapes: m rows, T tokens, V vocabulary.
"""

import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from planner.data.hf_tokenizer import escape_logs
from planner.data.model_checks import require_fit
from planner.data.model_folder import CONFIG, ModelFolder
from planner.errors import UserError
from planner.events.training import AdaptersPlaced
from planner.job import Lora
from planner.job.compute import FLASH, VARLEN, attention_choices
from planner.train.models import document_attention, private, varlen_attention
from planner.train.models.blocks import Checkpointing, checkpoint_settings
from planner.train.models.document_attention import positions_in
from planner.train.models.four_bit import FourBitLinear
from planner.train.models.head import Targets, log_probs_in, log_probs_of

ADAPTER = "default"
"""peft's name for a model's only adapter"""
_PREFIX = "hf."
_WRITE_AUTO = "Write model.attention: auto"


class HfCausal(nn.Module):
    """A causal language model of transformers with the call signature of planner's models."""

    def __init__(self, hf: Any, *, has_adapters: bool = False) -> None:
        super().__init__()
        self.hf = hf
        self.has_adapters = has_adapters
        self._flattens = private.is_flash_attention(hf)
        self._takes_boundaries = private.has_attention(hf, VARLEN)
        self.has_plain_head = private.has_plain_head(hf)
        """whether logits are `head(last hidden state)`, so that they can be computed in chunks"""

    def forward(self, inputs: Tensor, documents: Tensor | None = None, targets: Targets | None = None) -> Tensor:
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

    def _run(self, module: nn.Module, inputs: Tensor, documents: Tensor | None) -> Any:
        positions = None if documents is None else positions_in(documents)
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


@torch.no_grad()
def require_packed(model: HfCausal, setting: str) -> None:
    """Check by two forward passes that a model keeps the documents of a packed row apart. All workers must call it.

    A masked token has a weight of exactly zero, so the logits must be equal to the bit.

    Args:
        model: the model, in shards or not.
        setting: of the job, which packs rows. An error names it.

    Raises:
        UserError: other tokens in one document change the logits of the next.
    """
    device = next(model.parameters()).device
    documents = torch.tensor([[0, 0, 0, 1, 1]], device=device)
    is_training = model.training
    model.eval()
    one, other = (model(torch.tensor([[*begin, 5, 6]], device=device), documents) for begin in ((1, 2, 3), (4, 3, 2)))
    model.train(is_training)
    if isinstance(model, FSDPModule):
        # Without a backward pass the outermost parameters stay unsharded, and the optimizer would be made over those.
        model.reshard()
    if not torch.equal(one[:, 3:], other[:, 3:]):
        kind = model.hf.config.model_type
        raise UserError(f"{setting}: {kind} lets a packed row's documents see each other. Remove that setting")


def transformers_name(name: str) -> str:
    """Transformers' own name for a parameter, a buffer or a module, without planner's prefix and peft's part."""
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def peft_name(name: str) -> str:
    """The name of an adapter's parameter in peft's files."""
    before, _, after = name.removeprefix(_PREFIX).rpartition(f".{ADAPTER}")
    return f"base_model.model.{before}{after}"


def fastest_attention(device: torch.device, precision: str) -> str:
    """What `model.attention: auto` stands for on this machine, except for models that have no flash attention."""
    from transformers.utils import is_flash_attn_2_available

    choices = attention_choices(
        precision,
        on_gpu=device.type == "cuda",
        is_deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    return next(name for name in choices if name != FLASH or is_flash_attn_2_available())


def build_on_meta(
    folder: ModelFolder,
    *,
    activation_checkpointing: Checkpointing = False,
    auto_attention: str = "sdpa",
    use_liger: bool = False,
) -> HfCausal:
    """The model on the meta device (without memory) in float32.

    Args:
        folder: of the model.
        activation_checkpointing: what the backward pass computes again.
        auto_attention: what `model.attention: auto` stands for.
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
        try:
            hf = built(auto_attention if config.attention == "auto" else config.attention)
        except ValueError:
            if config.attention != "auto" or auto_attention == "sdpa":
                raise
            hf = built("sdpa")  # the model has no flash attention
    except Exception as error:
        raise _refusal(folder, error) from error
    if config.attention == VARLEN:
        varlen_attention.check(hf)
    if use_liger:
        private.use_liger(hf)
    if activation_checkpointing:
        # transformers 6 removes the older name, and late versions of 5 introduced the newer one.
        enable = getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
        enable(checkpoint_settings(activation_checkpointing))
    if config.lora is not None:
        add_adapters(hf, config.lora)
    return HfCausal(hf, has_adapters=config.lora is not None)


def _refusal(folder: ModelFolder, error: Exception) -> UserError:
    """Of a model that transformers did not make.

    It may have an unknown model_type, code of its own, or attention that is not installed. Values of a wrong type can
    raise anything.
    """
    attention = folder.model.attention
    if attention == FLASH and isinstance(error, ImportError):
        needs = "GPUs and the package flash-attn on every worker"
        return UserError(f"model.attention {FLASH} needs {needs}. {_WRITE_AUTO}")
    reason = " ".join(str(error).split())[:200] or type(error).__name__
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
