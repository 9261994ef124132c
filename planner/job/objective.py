"""What the loss is."""

from typing import ClassVar, Literal

from pydantic import Field

from planner.job.section import Section

# Where an objective's reference log-probabilities come from. Each objective declares its own: as a field where the
# user chooses, else as a constant. "none" is a uniform reference, or no use for one.
ReferenceSource = Literal["model", "cached", "none"]


class LmObjective(Section):
    """Next-token prediction: the mean cross-entropy over every loss-bearing token of the global batch."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["lm"] = Field(default="lm", description="what the loss is")


class SftObjective(Section):
    """Supervised fine-tuning: the cross-entropy of completions."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["sft"] = Field(description="supervised fine-tuning")
    mean_over: Literal["tokens", "samples"] = Field(
        default="tokens",
        description="tokens: every token of the global batch weighs the same; samples: sums of tokens, a mean of those",
    )


_BETA = "how strongly the policy is held to its reference"
_REFERENCE = "log-probabilities of the first weights: from a second frozen model, or computed once and kept in the run"
_REFERENCE_MODEL = "another model than the first weights: a local folder, or a name on the hub"


class DpoObjective(Section):
    """Direct preference optimisation (Rafailov et al. 2023); with label smoothing, conservative DPO."""

    kind: Literal["dpo"] = Field(description="direct preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5, description="share of labels taken to be wrong")
    reference: ReferenceSource = Field(default="model", description=f"{_REFERENCE}; none: uniform")
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class IpoObjective(Section):
    """Identity preference optimisation (Azar et al. 2023)."""

    kind: Literal["ipo"] = Field(description="identity preference optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    log_probs: Literal["mean", "sum"] = Field(
        default="mean", description="of a completion's tokens: TRL and HALOs take the mean, the DPO repository the sum"
    )
    reference: Literal["model", "cached"] = Field(default="model", description=_REFERENCE)
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class SimpoObjective(Section):
    """Simple preference optimisation (Meng et al. 2024), without a reference."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["simpo"] = Field(description="simple preference optimisation")
    beta: float = Field(default=2.0, gt=0, le=1000, description="scales the difference of mean log-probabilities")
    gamma_beta_ratio: float = Field(default=0.5, ge=0, le=1000, description="the margin asked for, divided by beta")


class KtoObjective(Section):
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024), of completions without partners."""

    reference: ClassVar[ReferenceSource] = "model"

    kind: Literal["kto"] = Field(description="Kahneman-Tversky optimisation")
    beta: float = Field(default=0.1, gt=0, le=1000, description=_BETA)
    desirable_weight: float = Field(default=1.0, ge=0, le=1000, description="of desirable completions in the loss")
    undesirable_weight: float = Field(default=1.0, ge=0, le=1000, description="of undesirable completions in the loss")
    reference_model: str | None = Field(default=None, min_length=1, description=_REFERENCE_MODEL)


class OwnObjective(Section):
    """Computed by the train function of `data.path`."""

    reference: ClassVar[ReferenceSource] = "none"

    kind: Literal["own"] = Field(description="computed by your own loop")


Objective = LmObjective | SftObjective | DpoObjective | IpoObjective | SimpoObjective | KtoObjective | OwnObjective
