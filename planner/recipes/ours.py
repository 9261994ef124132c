"""A job of planner's own as a recipe, so that its batch can be said to another system."""

from planner.files import read_job
from planner.recipes.drafting import Options
from planner.recipes.recipe import Draft, Recipe
from planner.recipes.source import RecipeSource
from planner.recipes.system import System


def detect(found: RecipeSource) -> bool:
    """Whether the file has `batch.global`."""
    batch = found.tree.get("batch")
    return isinstance(batch, dict) and "global" in batch


def read(found: RecipeSource, options: Options) -> Recipe:
    """The job; overrides are those of `--set`."""
    del options
    job = read_job(found.path, found.words)
    return Recipe(
        source=found.path,
        method="a loop of your own" if job.is_own else job.objective.kind,
        unit="sample",
        global_batch=job.batch.global_batch,
        accumulation=1,
        gpus=None,
        micro=job.batch.max_micro,
        eval_batch=None,
        draft=Draft(job=job.model_dump(by_alias=True)),
        foreign=None,
    )


SYSTEM = System(name="job", title="planner", detect=detect, read=read)
