"""The job's section `model`: what to train."""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner.job.section import Section
from planner.plan.commit_size import ModelShapes

# Of `planner.train.models.gpt`, which imports torch.
_VOCABULARY = 256


class GptModel(Section):
    """A small decoder-only transformer over bytes (vocabulary 256)."""

    kind: Literal["gpt"] = Field(description="a small decoder-only transformer over bytes")
    layers: int = Field(ge=1, le=512, description="transformer blocks")
    width: int = Field(ge=1, le=65_536, description="features per token, a multiple of heads")
    heads: int = Field(ge=1, le=1024, description="attention heads per block")
    context: int = Field(ge=1, le=2**20, description="tokens per sample")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations that are set to zero in training")
    tied_embeddings: bool = Field(default=False, description="use one matrix for the token embedding and the head")

    @model_validator(mode="after")
    def _width_splits_into_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} does not split into {self.heads} heads. Write a multiple of {self.heads}"
            )
        return self


NAME = Annotated[str, Field(min_length=1)]


class Lora(Section):
    """LoRA: low-rank adapters beside frozen weights (Hu et al. 2021), by the peft library."""

    rank: int = Field(default=16, ge=1, le=4096, description="rank of each adapter's two factors")
    alpha: float = Field(default=32.0, gt=0, le=2**20, description="scale of the adapters, which is alpha / rank")
    dropout: float = Field(
        default=0.0, ge=0, lt=1, description="share of an adapter's inputs that are set to zero in training"
    )
    targets: Annotated[tuple[NAME, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None,
        description="name endings of the layers that get an adapter. null means all linear layers except the head",
    )


class HfModel(Section):
    """A causal language model of the Hugging Face transformers library, with its tokenizer."""

    kind: Literal["hf"] = Field(description="a causal language model of transformers")
    path: str = Field(min_length=1, description="a local folder, or a name on the Hugging Face hub")
    revision: str | None = Field(
        default=None, min_length=1, description="branch, tag or commit on the hub. null means the default branch"
    )
    context: int = Field(ge=2, le=2**22, description="most tokens per sample. Longer samples are cut")
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained",
        description="first weights: those of the folder, or random ones drawn from train.seed for its configuration",
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "varlen"] = Field(
        default="auto",
        description="how attention is computed. flash_attention_2: the package flash-attn. varlen: torch's own flash "
        "attention (torch 2.11 or newer). Both need GPUs and bf16, and are not for bitwise runs. auto: the first that "
        "can be used of varlen (for packed rows), flash_attention_2 and sdpa",
    )
    chat_template: str | None = Field(
        default=None, min_length=1, description="path of a Jinja file. null means the template of the tokenizer"
    )
    lora: Lora | None = Field(default=None, description="train only LoRA adapters. null trains all weights")
    frozen: Literal["fp32", "nf4"] = Field(
        default="fp32",
        description="how linear layers below adapters are stored. nf4: 4 bits per weight (QLoRA). It needs lora",
    )

    @model_validator(mode="after")
    def _only_frozen_weights_are_packed(self) -> Self:
        if self.frozen != "fp32" and self.lora is None:
            raise ValueError(f"frozen: {self.frozen} is for weights below adapters. Write model.lora, or remove frozen")
        return self


class OwnModel(Section):
    """The model that your own training loop makes (the train function of `data.path`)."""

    kind: Literal["own"] = Field(description="made by your own training loop")


Model = GptModel | HfModel | OwnModel


def gpt_shapes(model: GptModel) -> ModelShapes:
    """The shapes of the parameters of planner's own transformer. `planner.train.models.gpt.Gpt` has the same ones."""
    d = model.width
    block = Counter({(d,): 6, (3 * d, d): 1, (3 * d,): 1, (d, d): 1, (4 * d, d): 1, (4 * d,): 1, (d, 4 * d): 1})
    shapes = Counter({shape: count * model.layers for shape, count in block.items()})
    shapes.update([(_VOCABULARY, d), (model.context, d), (d,), (d,)])
    if not model.tied_embeddings:
        shapes.update([(_VOCABULARY, d)])
    return ModelShapes(trained=shapes, num_blocks=model.layers)
