"""The shapes of the parameters that a transformers model trains."""

from collections import Counter

from planner.job import HfModel
from planner.plan.commit_size import ModelShapes
from planner.train.models.hf import build_on_meta
from planner.train.shard import blocks_of


def hf_shapes(config: HfModel) -> ModelShapes:
    """The shapes of the parameters that a job with this model trains, adapters alone if it has any.

    The model is built as the workers build it, without its weights. That takes seconds, mostly to import transformers.

    Raises:
        UserError: there is no such model, or it cannot be trained with the job's settings.
    """
    model, _ = build_on_meta(config)
    trained = Counter(tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad)
    return ModelShapes(trained=trained, num_blocks=len(blocks_of(model)))
