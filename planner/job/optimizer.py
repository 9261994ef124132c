"""The job's section `train.optimizer`."""

from typing import Annotated, Literal

from pydantic import Field

from planner.job.section import Section
from planner.plan.commit_size import OptimizerTensors

# Descriptions that several optimizers share.
_LR = "peak learning rate"
_EPS = "added to the denominator of the update"
_L2 = "factor of the L2 penalty: this times the weight is added to the gradient"


class AdamW(Section):
    """AdamW with decoupled weight decay."""

    kind: Literal["adamw"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), strict=False, description="decay of the moving averages of the gradient and of its square"
    )
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(
        default=0.0, ge=0, le=100, description="this times the learning rate is the share of a weight lost in each step"
    )


class RMSprop(Section):
    """RMSprop, the optimizer of the DPO repository."""

    kind: Literal["rmsprop"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=100, description=_LR)
    alpha: float = Field(default=0.99, ge=0, lt=1, description="decay of the moving average of the squared gradient")
    eps: float = Field(default=1e-8, gt=0, le=1, description=_EPS)
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class SGD(Section):
    """Stochastic gradient descent with optional momentum."""

    kind: Literal["sgd"] = Field(description="the optimizer")
    lr: float = Field(gt=0, le=1000, description=_LR)
    momentum: float = Field(default=0.0, ge=0, lt=1, description="share of the last update that is kept. 0 means none")
    weight_decay: float = Field(default=0.0, ge=0, le=100, description=_L2)


class OwnOptimizer(Section):
    """The optimizer that your own training loop makes (the train function of `data.path`), with its learning rates."""

    kind: Literal["own"] = Field(description="made by your own training loop")


Optimizer = AdamW | RMSprop | SGD | OwnOptimizer


def optimizer_tensors(optimizer: Optimizer) -> OptimizerTensors:
    """The tensors of state that the job's optimizer keeps for each parameter.

    torch.optim (2.13): AdamW has `exp_avg`, `exp_avg_sq` and the scalar `step`, RMSprop without momentum `square_avg`
    and `step`, SGD `momentum_buffer` if it has momentum.
    """
    assert not isinstance(optimizer, OwnOptimizer)  # only the user's own loop knows
    if isinstance(optimizer, SGD):
        return OptimizerTensors(like_parameter=1 if optimizer.momentum else 0, scalars=0)
    return OptimizerTensors(like_parameter=2 if isinstance(optimizer, AdamW) else 1, scalars=1)
