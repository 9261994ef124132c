"""planner's own job file as a `System`, so that `convert --to` can write its batch for another system."""

from planner.files import read_job
from planner.recipes.drafting import RecipeOptions
from planner.recipes.recipe import Draft, Recipe
from planner.recipes.source import RecipeSource
from planner.recipes.system import System


def detect(found: RecipeSource) -> bool:
    """Whether the file has `batch.global`."""
    batch = found.tree.get("batch")
    return isinstance(batch, dict) and "global" in batch


def read(found: RecipeSource, options: RecipeOptions) -> Recipe:
    """The job as a recipe. Overrides are those of `--set`.

    Raises:
        JobError: the job file or an override is wrong.
    """
    del options
    job = read_job(found.path, found.arguments)
    return Recipe(
        source=found.path,
        method="a loop of your own" if job.is_own else job.objective.kind,
        unit="sample",
        global_batch=job.batch.global_batch,
        accumulation=1,
        gpus=None,
        micro=None if job.batch.max_micro == "auto" else job.batch.max_micro,
        eval_batch=None,
        draft=Draft(job=job.model_dump(by_alias=True)),
        foreign=None,
    )


SYSTEM = System(name="job", title="planner", detect=detect, read=read, takes_repeats=True)
