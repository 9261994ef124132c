"""The size of a job's commits, before it trains."""

import importlib.util

from planner.base.text import how_to_install
from planner.data.model_folder import ModelFolder
from planner.data.stored_shapes import stored_shapes
from planner.errors import UserError
from planner.job import GptModel, HfModel, Job
from planner.job.model import gpt_shapes
from planner.job.optimizer import optimizer_tensors
from planner.plan.commit_size import CommitSize, ModelShapes, NotKnown

_OWN_LOOP = "your own loop makes the model. After the first commit, see the size of its folder in the run's checkpoints"


def commit_size(job: Job, *, may_build: bool) -> CommitSize | NotKnown:
    """The size of the job's commits, or why it is not known. Nothing is downloaded.

    Args:
        job: the job.
        may_build: whether a transformers model may be built (without its weights) if its files do not tell. It takes
            seconds.
    """
    found = _shapes(job, may_build=may_build)
    if isinstance(found, NotKnown):
        return found
    is_bitwise = job.batch.equality == "bitwise"
    return CommitSize(shapes=found, optimizer=optimizer_tensors(job.train.optimizer), is_bitwise=is_bitwise)


def _shapes(job: Job, *, may_build: bool) -> ModelShapes | NotKnown:
    model = job.model
    if isinstance(model, GptModel):
        return gpt_shapes(model)
    if not isinstance(model, HfModel):
        return NotKnown(reason=_OWN_LOOP)
    try:
        folder = ModelFolder.here(model)
        if folder is None:
            return NotKnown(reason=f"{model.path} is not on this machine. Run this on one that has it")
        return _hf_shapes(folder, may_build=may_build)
    except UserError as error:
        return NotKnown(reason=str(error))


def _hf_shapes(folder: ModelFolder, *, may_build: bool) -> ModelShapes | NotKnown:
    """The shapes of a model in a folder.

    Raises:
        UserError: the folder holds no model that can be trained with the job's settings.
    """
    if (found := stored_shapes(folder)) is not None:
        return found
    if not may_build:
        return NotKnown(reason="the model's files do not tell. See planner run JOB --dry-run, which builds the model")
    if importlib.util.find_spec("transformers") is None:
        return NotKnown(reason=f"only transformers can tell for this model: {how_to_install('hf')}")
    from planner.train.shard import hf_shapes  # torch and transformers

    return hf_shapes(folder)
