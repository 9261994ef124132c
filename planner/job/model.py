"""What is trained."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner.job.section import Section


class GptModel(Section):
    """A decoder-only transformer over bytes (vocabulary 256)."""

    kind: Literal["gpt"] = Field(description="the kind of model")
    layers: int = Field(ge=1, le=512, description="transformer blocks")
    width: int = Field(ge=1, le=65_536, description="features per token; a multiple of heads")
    heads: int = Field(ge=1, le=1024, description="attention heads per block")
    context: int = Field(ge=1, le=2**20, description="tokens per sample")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations set to zero in training")
    tied_embeddings: bool = Field(default=False, description="one matrix for the token embedding and the head")

    @model_validator(mode="after")
    def _width_splits_into_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} does not split into {self.heads} heads; write a multiple of {self.heads}"
            )
        return self


NAME = Annotated[str, Field(min_length=1)]


class Lora(Section):
    """Low-rank adapters beside frozen weights (Hu et al. 2021), by the peft library."""

    rank: int = Field(default=16, ge=1, le=4096, description="of the two factors")
    alpha: float = Field(default=32.0, gt=0, le=2**20, description="the adapters are scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of an adapter's inputs set to zero in training")
    targets: Annotated[tuple[NAME, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None,
        description="ends of the names of the layers that get one; null: all linear layers but the head",
    )


class HfModel(Section):
    """A causal language model of the Hugging Face transformers library, with its tokenizer."""

    kind: Literal["hf"] = Field(description="the kind of model")
    path: str = Field(min_length=1, description="a local folder, or a name on the Hugging Face hub")
    revision: str | None = Field(default=None, min_length=1, description="of a name on the hub: branch, tag or commit")
    context: int = Field(ge=2, le=2**22, description="tokens per sample; longer ones are cut")
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained", description="random: the folder's configuration with first weights from train.seed"
    )
    attention: Literal["sdpa", "eager", "flash_attention_2"] = Field(
        default="sdpa", description="how transformers computes it"
    )
    chat_template: str | None = Field(
        default=None, min_length=1, description="a Jinja file; null: the one that comes with the tokenizer"
    )
    lora: Lora | None = Field(default=None, description="train adapters alone; null: all weights")


class OwnModel(Section):
    """Made by the train function of `data.path`."""

    kind: Literal["own"] = Field(description="made by your own loop")


Model = GptModel | HfModel | OwnModel
