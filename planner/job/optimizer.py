"""What turns gradients into updates."""

from typing import Annotated, Literal

from pydantic import Field

from planner.job.section import Section

# Said by more than one optimizer.
_LR = "peak learning rate"
_EPS = "added to the denominator of the update"
_L2 = "times the weight, added to the gradient"


class AdamW(Section):
    """AdamW with decoupled weight decay."""

    kind: Literal["adamw"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), strict=False, description="decay of the averages of the gradient and of its square"
    )
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(
        default=0.0, ge=0, le=100, description="times the learning rate: the share of a weight taken off at each step"
    )


class RMSprop(Section):
    """RMSprop, as the DPO repository trains with."""

    kind: Literal["rmsprop"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    alpha: float = Field(default=0.99, ge=0, lt=1, description="decay of the average of the squared gradient")
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class SGD(Section):
    """Stochastic gradient descent with optional momentum."""

    kind: Literal["sgd"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=1000, description=_LR)
    momentum: float = Field(default=0.0, ge=0, lt=1, description="share of the last update that is kept")
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class OwnOptimizer(Section):
    """Made by the train function of `data.path`, learning rates included."""

    kind: Literal["own"] = Field(description="made by your own loop")


Optimizer = AdamW | RMSprop | SGD | OwnOptimizer
