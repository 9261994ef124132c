"""What a job trains, as shapes: the parameters of planner's own model, and the tensors that an optimizer keeps."""

from collections import Counter

from planner.job.model import GptModel
from planner.job.optimizer import SGD, AdamW, OwnOptimizer, RMSprop
from planner.plan.commit_size import ModelShapes, OptimizerTensors

# Of `planner.train.models.gpt`, which imports torch.
_VOCABULARY = 256


def gpt_shapes(model: GptModel) -> ModelShapes:
    """The shapes of the parameters of planner's own transformer. `planner.train.models.gpt.Gpt` has the same ones."""
    d = model.width
    block = Counter({(d,): 6, (3 * d, d): 1, (3 * d,): 1, (d, d): 1, (4 * d, d): 1, (4 * d,): 1, (d, 4 * d): 1})
    shapes = Counter({shape: count * model.layers for shape, count in block.items()})
    shapes.update([(_VOCABULARY, d), (model.context, d), (d,), (d,)])
    if not model.tied_embeddings:
        shapes.update([(_VOCABULARY, d)])
    return ModelShapes(trained=shapes, num_blocks=model.layers)


def optimizer_tensors(optimizer: AdamW | RMSprop | SGD | OwnOptimizer) -> OptimizerTensors:
    """The tensors of state that the job's optimizer keeps for each parameter.

    torch.optim (2.13): AdamW has `exp_avg`, `exp_avg_sq` and the scalar `step`, RMSprop without momentum `square_avg`
    and `step`, SGD `momentum_buffer` if it has momentum.
    """
    assert not isinstance(optimizer, OwnOptimizer)  # only the user's own loop knows
    if isinstance(optimizer, SGD):
        return OptimizerTensors(like_parameter=1 if optimizer.momentum else 0, scalars=0)
    return OptimizerTensors(like_parameter=2 if isinstance(optimizer, AdamW) else 1, scalars=1)
